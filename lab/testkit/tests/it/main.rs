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

/// Whether a test is left out because clusters are real Kubernetes.
fn left_out_on_kubernetes(test: &str, reason: &str) -> bool {
    left_out(gantry_testkit::Lab::on_kubernetes(), "Kubernetes", test, reason)
}

/// Whether a test is left out because clusters are embedded ones.
fn left_out_on_embedded(test: &str, reason: &str) -> bool {
    left_out(!gantry_testkit::Lab::on_kubernetes(), "embedded", test, reason)
}

/// Says what is left out on standard output, past what catches a test's output: it must be seen.
fn left_out(left_out: bool, tier: &str, test: &str, reason: &str) -> bool {
    if left_out {
        let _ = writeln!(std::io::stdout(), "\nskipped on the {tier} tier: {test}: {reason}");
    }
    left_out
}
