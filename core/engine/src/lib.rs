//! Cluster state, placement and explanation: decide(state, now) -> decisions.
