//! End-to-end tests: a whole cluster, driven as its users drive it.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests; what is skipped says so")]

mod bad_input;
mod chain;
mod examples;
mod faults;
mod kept;
mod kubectl_matrix;
mod pitfalls;
mod stress;
