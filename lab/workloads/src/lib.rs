//! The small controllers that plain YAML needs: Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, CronJob, the
//! endpoints of Services, and the status of PodDisruptionBudgets, HorizontalPodAutoscalers and ResourceQuotas. They
//! do what kube-controller-manager does, with its conditions, reasons and events.
//!
//! Each controller is a pure function from what is observed to a plan; one runtime serves all of them:
//!
//! ```text
//!            list, watch                 keys that are due
//! API server ───────────▶ store ────────────────────────────▶ queue ──▶ worker
//!      ▲                    ▲  ╰─ observed objects ─▶ plan(observed, now) ◀──╯
//!      │                    │                              │ steps
//!      ╰── create, patch, delete, events ◀── writer ◀──────╯
//!                           ╰─── answers go into the store at once
//! ```
//!
//! Because a writer puts what the server answered into the store, a controller always sees its own writes and
//! never creates a pod twice. Time comes from a [`gantry_kit::Clock`], waiting is tokio's, iteration is sorted: on
//! a paused runtime a run is a pure function of its input.

mod controllers;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod json;
mod kinds;
mod plan;
mod pod;
mod runtime;
mod store;

use gantry_kit::{CancellationToken, SharedClock, SharedIds};
use kube::Client;
use kube::core::Status;
pub use runtime::{Event, EventRecorder};

/// What the controllers are made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where time stamps come from.
    pub clock: SharedClock,
    /// Where the names of events come from.
    pub ids: SharedIds,
    /// How many objects are reconciled at the same time.
    pub workers: usize,
}

impl Options {
    /// The usual settings: eight workers.
    pub fn new(clock: SharedClock, ids: SharedIds) -> Self {
        Self { clock, ids, workers: 8 }
    }
}

/// All controllers, ready to run.
#[derive(Clone)]
pub struct Workloads {
    client: Client,
    options: Options,
}

impl Workloads {
    /// Controllers that act through `client`, which needs the rights of kube-controller-manager.
    pub fn new(client: Client, options: Options) -> Self {
        Self { client, options }
    }

    /// Runs until cancelled. Nothing ends it earlier: what fails is tried again, later each time.
    pub async fn run(self, cancel: CancellationToken) {
        runtime::run(self.client, self.options, cancel).await;
    }
}

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The request could not be built.
    #[error("request could not be built")]
    Request(#[source] kube::core::request::Error),
    /// The API server refused, or was not reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// A watch ended with an error.
    #[error("watch of {kind} ended: {}", status.message)]
    Watch {
        /// The kind that was watched.
        kind: &'static str,
        /// What the API server said.
        status: Box<Status>,
    },
}
