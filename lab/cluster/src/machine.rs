//! A simulated machine: what stays when its kubelet or its agent is restarted, and what they share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_agent::FolderWatch;
use gantry_gpu::SimGpus;
use gantry_kit::{SharedClock, SharedIds};
use gantry_workloads::EventRecorder;
use k8s_openapi::api::core::v1::Taint;
use kube::Client;
use tokio::sync::watch;

use crate::kubelet::Hub;
use crate::runtime::{NodeHardware, Sandbox};

/// What all machines of a cluster share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) client: Client,
    pub(crate) clock: SharedClock,
    pub(crate) ids: SharedIds,
    pub(crate) hub: Hub,
    pub(crate) recorder: EventRecorder,
    /// One inotify instance for all agents; without, they look from time to time.
    pub(crate) folder_watch: Option<FolderWatch>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// What a machine is made of.
#[derive(Debug, Clone)]
pub(crate) struct Plate {
    pub(crate) name: String,
    /// The machine's number in the cluster, from 0; its addresses follow from it.
    pub(crate) index: u32,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) gpus: Option<Arc<SimGpus>>,
    pub(crate) gpu_count: u32,
    /// The folder below which drivers are installed, by version; machines share it.
    pub(crate) drivers_dir: PathBuf,
    /// The folder of sockets and CDI files.
    pub(crate) run_dir: PathBuf,
    /// The folder of checkpoints.
    pub(crate) state_dir: PathBuf,
}

impl Plate {
    /// The folder that the agent writes CDI files into and the runtime reads.
    pub(crate) fn cdi_dir(&self) -> PathBuf {
        self.run_dir.join("cdi")
    }
}

/// One machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) plate: Plate,
    pub(crate) shared: Shared,
    pub(crate) hardware: Arc<NodeHardware>,
    /// What the runtime injects devices from.
    pub(crate) cdi: gantry_cdi::Folders,
    /// Pods by UID.
    sandboxes: Mutex<BTreeMap<String, Arc<Sandbox>>>,
    /// The node agent, while its container runs.
    agent: watch::Sender<Option<Arc<gantry_agent::Handle>>>,
    /// Pods that ended while no agent ran, by UID: the next one is told first of all.
    ended: Mutex<BTreeSet<String>>,
    next_pid: AtomicU32,
    next_ip: AtomicU32,
    /// Whether the API server shows the node ready with all its GPUs.
    pub(crate) ready: watch::Sender<bool>,
}

impl Machine {
    pub(crate) fn new(plate: Plate, shared: Shared) -> Arc<Self> {
        let hardware = Arc::new(NodeHardware(plate.gpus.clone()));
        let cdi = gantry_cdi::Folders::new(vec![plate.cdi_dir()]);
        Arc::new(Self {
            cdi,
            plate,
            shared,
            hardware,
            sandboxes: Mutex::default(),
            agent: watch::Sender::new(None),
            ended: Mutex::default(),
            next_pid: AtomicU32::new(1_000),
            next_ip: AtomicU32::new(0),
            ready: watch::Sender::new(false),
        })
    }

    pub(crate) fn sandboxes(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Sandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn agent(&self) -> Option<Arc<gantry_agent::Handle>> {
        self.agent.borrow().clone()
    }

    /// The node agent, for which it waits: after a restart pods and agent start at the same time.
    pub(crate) async fn agent_soon(&self, patience: Duration) -> Option<Arc<gantry_agent::Handle>> {
        let mut agent = self.agent.subscribe();
        let running = tokio::time::timeout(patience, agent.wait_for(Option::is_some)).await;
        running.ok()?.ok()?.clone()
    }

    /// Makes the machine's agent known.
    pub(crate) fn agent_started(&self, handle: &Arc<gantry_agent::Handle>) {
        let mut ended = self.ended();
        for uid in std::mem::take(&mut *ended) {
            handle.remove_pod(&uid);
        }
        self.agent.send_replace(Some(Arc::clone(handle)));
    }

    /// Forgets an agent that has ended, unless another has started since.
    pub(crate) fn agent_ended(&self, handle: &Arc<gantry_agent::Handle>) {
        self.agent.send_if_modified(|known| {
            let same = known.as_ref().is_some_and(|known| Arc::ptr_eq(known, handle));
            if same {
                *known = None;
            }
            same
        });
    }

    /// Tells the agent that a pod has ended for good: its GPUs are free.
    pub(crate) fn pod_ended(&self, uid: &str) {
        let mut ended = self.ended();
        match self.agent() {
            Some(agent) => agent.remove_pod(uid),
            None => drop(ended.insert(uid.to_owned())),
        }
    }

    fn ended(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.next_pid.fetch_add(1, Ordering::Relaxed)
    }

    /// The machine's address in the nodes' network, 172.16.0.0/12.
    pub(crate) fn host_ip(&self) -> String {
        let host = self.plate.index + 2;
        format!("172.{}.{}.{}", 16 + host / 65_536, host / 256 % 256, host % 256)
    }

    /// The machine's part of the pods' network, 10.128.0.0/9: room for 32,768 machines.
    pub(crate) fn pod_cidr(&self) -> String {
        format!("10.{}.{}.0/24", 128 + self.plate.index / 256, self.plate.index % 256)
    }

    /// An address for a new pod: in turn, so that one is not used again soon, and never one that a pod has.
    pub(crate) fn pod_ip(&self) -> String {
        let network = self.pod_cidr();
        let prefix = network.trim_end_matches("0/24");
        let used: Vec<String> = self.sandboxes().values().map(|sandbox| sandbox.ip.clone()).collect();
        let mut candidate = String::new();
        for _ in 0..253 {
            let number = self.next_ip.fetch_add(1, Ordering::Relaxed);
            candidate = format!("{prefix}{}", 2 + number % 253);
            if !used.contains(&candidate) {
                break;
            }
        }
        candidate
    }

    /// A container's identifier: 64 hexadecimal digits.
    pub(crate) fn container_id(&self) -> String {
        let ids = &self.shared.ids;
        format!("{:016x}{:016x}{:016x}{:016x}", ids.next(), ids.next(), ids.next(), ids.next())
    }

    /// Ends every process at once, as a power failure does.
    pub(crate) fn power_off(&self) {
        let now = self.shared.clock.now();
        let all: Vec<Arc<Sandbox>> = self.sandboxes().values().cloned().collect();
        for sandbox in all {
            sandbox.power_off(now);
        }
        self.agent.send_replace(None);
        self.ready.send_replace(false);
    }
}
