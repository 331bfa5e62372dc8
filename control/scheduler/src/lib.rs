//! The Kubernetes adapter of the engine: watch, assume, bind, explain.
//!
//! ```text
//!   Pods, Nodes, GpuNodes ──watch──▶ Cluster ──Event──▶ engine State ──Decision──▶ writes
//!                                   (what was seen)        ▲     │                  ├ Binding with the assignment   (many at once)
//!                                                          │     └ explain          ├ condition PodScheduled, Event (once a reason)
//!                     outcome of a binding ────────────────┘                        └ Event for advice              (once a pod)
//! ```
//!
//! One loop owns everything; whatever can wake it is an `Input`. Decisions are taken on what is *assumed*: a decided pod holds its
//! devices before its binding is written, so that the loop never waits for the API server. Which devices a pod has stands in
//! the annotation `gantry.dev/assignment`, which travels in the Binding and costs no write of its own. After a restart the
//! ledger is rebuilt from bound pods and from what the nodes' agents report; nothing is decided before all of it is there.
//!
//! A binding whose outcome is not known (a lost answer, a conflict) is looked up before its devices are given to anybody else.
//!
//! Time stamps come from the clock and names from the ids that [`Options`] carries, so that a run in virtual time repeats itself.

mod cluster;
mod metrics;
mod service;
mod writes;

pub use cluster::engine_events;
pub use service::{Handle, Options, SCHEDULER_NAMES, Scheduler};

/// Why the scheduler cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nothing to schedule.
    #[error("no scheduler name: give at least one spec.schedulerName to serve, such as gantry-scheduler")]
    NoSchedulerName,
    /// The scheduler that a handle belongs to has ended.
    #[error("the scheduler has ended")]
    Ended,
}
