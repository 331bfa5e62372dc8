//! The `gantry` program as a person at a terminal meets it.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests; what is skipped says so")]

mod commands;
mod place;
mod readme;
mod up;
