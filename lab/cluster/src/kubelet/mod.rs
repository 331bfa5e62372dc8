//! A simulated kubelet: what a real one does with pods, as seen from the API server.
//!
//! ```text
//!   Hub (one watch of pods) ──▶ Kubelet ──▶ one Worker a pod ──▶ launch ──▶ Sandbox (runtime)
//!                                  │            │ status, events
//!                                  ├── Node, Lease        ▼
//!                                  └── DeviceManager    API server
//! ```
//!
//! Decisions are pure functions (`plan`, `status`); workers carry them out. Containers belong to the machine, so they
//! survive a kubelet that is restarted.

mod agent_pod;
mod events;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hub;
mod launch;
mod node_status;
mod plan;
mod probes;
mod simulation;
mod sources;
mod status;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gantry_kit::{CancellationToken, Tasks};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::{mpsc, watch};

use crate::Error;
use crate::device_manager::{DeviceManager, DeviceManagerOptions};
use crate::machine::Machine;
use crate::runtime::Sandbox;
pub(crate) use agent_pod::{AGENT_DAEMON_SET, daemon_set};
pub(crate) use events::pod_reference;
pub(crate) use hub::Hub;
use hub::PodEvent;
pub(crate) use status::is_terminal;
use worker::{Ended, Worker};

/// The version that simulated kubelets report: the API server's own.
pub(crate) const KUBELET_VERSION: &str = "v1.33.0+gantry";

/// A kubelet of one machine, from its start to its stop.
#[derive(Debug)]
pub(crate) struct Kubelet {
    machine: Arc<Machine>,
    /// Only machines with devices need one.
    devices: Option<DeviceManager>,
    tasks: Tasks,
}

/// What wakes the kubelet's loop.
enum Event {
    Cancelled,
    Pods(PodEvent),
    Ended(String, Ended),
}

/// A worker as the kubelet sees it.
struct Known {
    pod: watch::Sender<Arc<Pod>>,
    gone: CancellationToken,
}

impl Kubelet {
    /// Starts a kubelet; it runs until `tasks` is stopped. The machine's kubelet before must have been stopped.
    pub(crate) fn start(machine: Arc<Machine>, tasks: Tasks) -> Result<(), Error> {
        let devices = if machine.plate.gpu_count > 0 {
            let options = DeviceManagerOptions {
                root: machine.plate.run_dir.clone(),
                state: machine.plate.state_dir.clone(),
            };
            Some(DeviceManager::start(options, tasks.clone())?)
        } else {
            None
        };
        let pods = machine.shared.hub.subscribe(&machine.plate.name);
        let kubelet = Arc::new(Self { machine, devices, tasks: tasks.clone() });
        let reporting = Arc::clone(&kubelet);
        tasks.spawn_until_cancelled(async move { reporting.report().await });
        tasks.spawn(async move { kubelet.run(pods).await });
        Ok(())
    }

    async fn run(self: Arc<Self>, mut pods: mpsc::UnboundedReceiver<PodEvent>) {
        let mut workers: BTreeMap<String, Known> = BTreeMap::new();
        let (ended, mut endings) = mpsc::unbounded_channel();
        loop {
            let event = tokio::select! {
                () = self.tasks.token().cancelled() => Event::Cancelled,
                Some(event) = pods.recv() => Event::Pods(event),
                Some((uid, how)) = endings.recv() => Event::Ended(uid, how),
            };
            match event {
                Event::Cancelled => return,
                Event::Ended(uid, how) => {
                    // A deletion that came in while the worker ended must not be lost.
                    let pending = workers.remove(&uid).filter(|known| !known.gone.is_cancelled());
                    let latest = pending.map(|known| known.pod.borrow().clone());
                    let deleted = latest.filter(|pod| pod.metadata.deletion_timestamp.is_some());
                    if let Some(pod) = deleted.filter(|_| how == Ended::Done) {
                        self.update(pod, &mut workers, &ended);
                    }
                }
                Event::Pods(PodEvent::Update(pod)) => self.update(pod, &mut workers, &ended),
                Event::Pods(PodEvent::Gone(uid)) => self.gone(&uid, &workers),
                Event::Pods(PodEvent::Sync(list)) => {
                    let listed: BTreeSet<String> =
                        list.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
                    let known: Vec<String> = self.machine.sandboxes().keys().cloned().collect();
                    for uid in known.iter().filter(|uid| !listed.contains(*uid)) {
                        self.gone(uid, &workers);
                    }
                    let live = worker::live(&list);
                    // The agent first: what the device manager has freed is offered to others at once.
                    if let Some(agent) = self.machine.agent() {
                        agent.synchronize(&live);
                    }
                    if let Some(manager) = &self.devices {
                        manager.retain(&live);
                    }
                    for pod in list {
                        self.update(pod, &mut workers, &ended);
                    }
                }
            }
        }
    }

    fn update(
        self: &Arc<Self>,
        pod: Arc<Pod>,
        workers: &mut BTreeMap<String, Known>,
        ended: &mpsc::UnboundedSender<(String, Ended)>,
    ) {
        let metadata = &pod.metadata;
        let (Some(uid), Some(name)) = (metadata.uid.clone(), metadata.name.as_deref()) else { return };
        if let Some(known) = workers.get(&uid) {
            known.pod.send_replace(pod);
            return;
        }
        // A pod that has ended needs nothing until it is deleted.
        if is_terminal(&pod) && metadata.deletion_timestamp.is_none() {
            return;
        }
        let namespace = metadata.namespace.as_deref().unwrap_or("default");
        let existing = self.machine.sandboxes().get(&uid).cloned();
        let sandbox = existing.unwrap_or_else(|| {
            let status = pod.status.as_ref();
            let ip = status.and_then(|status| status.pod_ip.clone()).unwrap_or_else(|| self.machine.pod_ip());
            let started = status.and_then(|status| status.start_time.as_ref()).map(|time| time.0);
            let started = started.unwrap_or_else(|| self.machine.shared.clock.now());
            let sandbox = Arc::new(Sandbox::new(&uid, namespace, name, ip, started));
            self.machine.sandboxes().insert(uid.clone(), Arc::clone(&sandbox));
            sandbox
        });
        let (sender, receiver) = watch::channel(pod);
        let gone = CancellationToken::new();
        let worker = Worker::new(Arc::clone(self), sandbox, receiver, gone.clone());
        let ended = ended.clone();
        workers.insert(uid.clone(), Known { pod: sender, gone });
        self.tasks.spawn(async move {
            let how = worker.run().await;
            // Nobody listens once the kubelet has stopped.
            let _ = ended.send((uid, how));
        });
    }

    /// A pod that the API server no longer has.
    fn gone(&self, uid: &str, workers: &BTreeMap<String, Known>) {
        let sandbox = self.machine.sandboxes().remove(uid);
        if let Some(known) = workers.get(uid) {
            known.gone.cancel();
        } else {
            self.free(uid);
        }
        if let Some(sandbox) = sandbox {
            sandbox.stop_all();
        }
    }

    /// Frees what a pod that has ended held: at the agent first, for what the device manager frees is offered to others at once.
    fn free(&self, uid: &str) {
        self.machine.pod_ended(uid);
        if let Some(manager) = &self.devices {
            manager.release(uid);
        }
    }
}

#[cfg(test)]
mod tests;
