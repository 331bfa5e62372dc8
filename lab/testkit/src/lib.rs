//! A whole cluster for tests, and the real `kubectl` to drive it with.
//!
//! ```text
//!   Lab ─┬─ embedded: gantry-cluster in this process ──────────────────────────────┬─ TLS ── kubeconfig ── Kubectl (each version found)
//!        └─ kubernetes: gantry-kubernetes, and gantry's processes in its nodes ────┘
//! ```
//!
//! `GANTRY_TIER` chooses; a test is the same on both.
//!
//! A dev-dependency only. Waiting is for a state, with a generous limit, never for a duration.

mod embedded;
mod kubectl;
mod lab;
mod real;
mod truth;

pub use kubectl::{Kubectl, Output, kubectls};
pub use lab::{Answer, Lab, eventually};
pub use truth::RealContainer;
