//! The process kit: clock, ids, logging, signals, drain.
