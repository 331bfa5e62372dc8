//! End-to-end tests: a whole cluster, driven as its users drive it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod examples;
mod kubectl_matrix;
