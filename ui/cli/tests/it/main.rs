//! The `gantry` program as a person at a terminal meets it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod access;
mod cdi;
mod commands;
mod manifests;
mod place;
mod readme;
mod serve;
mod up;
