//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

pub use crate::controllers::fuzzing::{cron_schedule, index_ranges};
