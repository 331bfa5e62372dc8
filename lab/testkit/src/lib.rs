//! A whole cluster for tests, and the real `kubectl` to drive it with.
//!
//! ```text
//!   Lab ── Cluster (API server, scheduler, agents, kubelets) ── TLS ── kubeconfig ── Kubectl (each version found)
//! ```
//!
//! A dev-dependency only. Waiting is for a state, with a generous limit, never for a duration.

mod kubectl;
mod lab;

pub use kubectl::{Kubectl, Output, kubectls};
pub use lab::{Answer, Lab, eventually};
