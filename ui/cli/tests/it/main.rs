//! The `gantry` program as a person at a terminal meets it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod cdi;
mod commands;
mod place;
mod readme;
mod up;
