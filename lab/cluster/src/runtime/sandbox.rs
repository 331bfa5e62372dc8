//! The containers of one pod as the runtime knows them. They outlive a kubelet, as real ones do.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gantry_kit::CancellationToken;
use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

use super::{ContainerView, Log};

/// How a run of a container ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Termination {
    pub(crate) exit_code: i32,
    /// `Completed`, `Error`, `StartError`, …
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) started: Timestamp,
    pub(crate) finished: Timestamp,
    pub(crate) id: String,
}

/// Where a container stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// Not started, and why.
    Waiting { reason: String, message: String },
    /// Running since.
    Running { started: Timestamp },
    /// Ended.
    Terminated(Termination),
}

/// What is kept of a running process, besides its state.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) id: String,
    /// The number under which the node's GPUs know the process.
    pub(crate) pid: u32,
    pub(crate) log: Arc<Log>,
    pub(crate) view: Option<Arc<ContainerView>>,
    /// Cancelled to end the process.
    pub(crate) stop: CancellationToken,
    pub(crate) stdin: Option<mpsc::UnboundedSender<Bytes>>,
    /// Live output for those who attach.
    pub(crate) output: broadcast::Sender<Bytes>,
}

/// One container of the pod.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) state: State,
    /// The end of the run before this one.
    pub(crate) last: Option<Termination>,
    pub(crate) restarts: u32,
    /// The present or latest run.
    pub(crate) run: Option<Run>,
    pub(crate) previous_log: Option<Arc<Log>>,
    /// The startup probe has succeeded, or there is none.
    pub(crate) started: bool,
    /// The readiness probe succeeds, or there is none.
    pub(crate) ready: bool,
    /// When it may be started again.
    pub(crate) retry_at: Option<Instant>,
    /// The wait before the next start but one.
    pub(crate) backoff: Duration,
    /// When the run started on the clock that waits are measured by.
    pub(crate) since: Instant,
}

impl Record {
    /// A container that has not run yet.
    pub(crate) fn waiting(reason: &str, message: &str) -> Self {
        Self {
            state: State::Waiting { reason: reason.to_owned(), message: message.to_owned() },
            last: None,
            restarts: 0,
            run: None,
            previous_log: None,
            started: false,
            ready: false,
            retry_at: None,
            backoff: Duration::ZERO,
            since: Instant::now(),
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }
}

/// A pod on a node.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) ip: String,
    /// When the kubelet took the pod on.
    pub(crate) started: Timestamp,
    containers: Mutex<BTreeMap<String, Record>>,
    changed: watch::Sender<u64>,
}

impl Sandbox {
    pub(crate) fn new(uid: &str, namespace: &str, name: &str, ip: String, started: Timestamp) -> Self {
        Self {
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ip,
            started,
            containers: Mutex::default(),
            changed: watch::Sender::new(0),
        }
    }

    pub(crate) fn containers(&self) -> MutexGuard<'_, BTreeMap<String, Record>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes one container's record and tells those who wait.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.containers().get_mut(name) {
            change(record);
        }
        self.notify();
    }

    pub(crate) fn notify(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Records the end of a run, unless it was recorded already.
    pub(crate) fn exited(&self, name: &str, termination: Termination) {
        {
            let mut containers = self.containers();
            let Some(record) = containers.get_mut(name) else { return };
            let current = record.run.as_ref().is_some_and(|run| run.id == termination.id);
            if !current || !record.is_running() {
                return;
            }
            if let Some(run) = &record.run {
                run.log.close();
            }
            record.ready = false;
            record.state = State::Terminated(termination);
        }
        self.notify();
    }

    /// Whether any container runs.
    pub(crate) fn is_running(&self) -> bool {
        self.containers().values().any(Record::is_running)
    }

    /// Asks every running process to end.
    pub(crate) fn stop_all(&self) {
        for record in self.containers().values() {
            if let Some(run) = record.run.as_ref().filter(|_| record.is_running()) {
                run.stop.cancel();
            }
        }
    }

    /// Ends everything at once without a trace, as a power failure does; what was running is found dead later.
    pub(crate) fn power_off(&self, now: Timestamp) {
        for record in self.containers().values_mut() {
            let State::Running { started } = record.state else { continue };
            let Some(run) = &record.run else { continue };
            record.state = State::Terminated(Termination {
                exit_code: 255,
                reason: "Unknown".to_owned(),
                message: String::new(),
                started,
                finished: now,
                id: run.id.clone(),
            });
            record.ready = false;
            run.stop.cancel();
            run.log.close();
        }
    }
}
