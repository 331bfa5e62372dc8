//! The `gantry` program as a person at a terminal meets it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod commands;
mod place;
mod readme;
mod up;
