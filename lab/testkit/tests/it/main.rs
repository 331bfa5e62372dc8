//! End-to-end tests: a whole cluster, driven as its users drive it.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests; what is skipped says so")]

use std::io::Write as _;

mod bad_input;
mod chain;
mod examples;
mod faults;
mod install;
mod kept;
mod kubectl_matrix;
mod pitfalls;
mod stress;
mod wrapper;

/// Whether a test is left out because clusters are real Kubernetes. Says so on standard output, past what catches a test's output: a
/// test that is left out must be seen.
fn left_out_on_kubernetes(test: &str, reason: &str) -> bool {
    let left_out = gantry_testkit::Lab::on_kubernetes();
    if left_out {
        let _ = writeln!(std::io::stdout(), "\nskipped on the Kubernetes tier: {test}: {reason}");
    }
    left_out
}

/// The same of the embedded tier.
fn left_out_on_embedded(test: &str, reason: &str) -> bool {
    let left_out = !gantry_testkit::Lab::on_kubernetes();
    if left_out {
        let _ = writeln!(std::io::stdout(), "\nskipped on the embedded tier: {test}: {reason}");
    }
    left_out
}
