//! What others can ask of a running agent, and the state that its parts share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_api::{ASSIGNMENT_ANNOTATION, ContainerGpus};
use gantry_cdi::DeviceName;
use gantry_driver::Machine;
use gantry_model::{Gpu, GpuId, PodKey};
use gantry_nri::State as Nri;
use gantry_nvidia_config::Config;
use tokio::sync::{Notify, watch};

use crate::checkpoint::Checkpoint;
use crate::ended::Kubelet;
use crate::facts::Facts;
use crate::health::Verdict;
use crate::log::Log;
use crate::pods::NodePods;
use crate::response::Host;
use crate::state::{Created, Listed, Lists, State};
use crate::{Error, IdentityMode, LogLine, cdi};

/// A container that is about to be created, as the runtime knows it (NRI's `CreateContainer`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerIdentity {
    /// Its pod.
    pub pod: PodKey,
    /// The pod's annotations.
    pub annotations: BTreeMap<String, String>,
    /// The container's name.
    pub name: String,
    /// The ids of the devices that the kubelet granted it, in the kubelet's order.
    pub devices: Vec<String>,
}

/// What the runtime has to do for a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Adjustment {
    /// CDI devices to inject, besides those that the kubelet passes on from `Allocate`.
    pub cdi_devices: Vec<DeviceName>,
    /// The GPUs and partitions that the container has now, in the order in which it sees them.
    pub gpus: Vec<GpuId>,
}

/// Where the kernel module lists the device numbers of MIG instances.
const MIG_MINORS: &str = "/proc/driver/nvidia-caps/mig-minors";

/// What the agent's parts share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    checkpoint: Mutex<Checkpoint>,
    facts: Mutex<Facts>,
    verdicts: Mutex<Vec<Verdict>>,
    pub(crate) log: Log,
    /// The device list of each resource; every change is a new one.
    pub(crate) devices: watch::Sender<Arc<Lists>>,
    /// Counts changes of what is reported to the API server.
    pub(crate) revision: watch::Sender<u64>,
    /// Counts changes of owners that nothing else in the cluster tells: GPUs that were chosen here, and pods that have ended.
    pub(crate) untold: watch::Sender<u64>,
    /// Counts registrations with the kubelet.
    pub(crate) registrations: watch::Sender<u64>,
    /// What is known of the CDI files.
    cdi: Mutex<cdi::Known>,
    /// What is wrong with the configuration that the node should have, while it has another.
    pub(crate) config_fault: watch::Sender<Option<String>>,
    /// How it is found out who decides.
    pub(crate) choice: Choice,
    /// Whether the container runtime asks the agent.
    pub(crate) nri: watch::Sender<Nri>,
    /// Whether it is known who decides. Nothing is offered before.
    pub(crate) decided: watch::Sender<bool>,
    /// Whether there is a configuration to go by.
    pub(crate) configured: watch::Sender<bool>,
    /// Told of each allocation.
    pub(crate) allocated: Notify,
    /// The pods of the node, where there is an API server.
    pub(crate) pods: Arc<NodePods>,
    /// What of the kubelet tells that pods have ended.
    pub(crate) kubelet: Kubelet,
    /// The containers that run, by id, with the UIDs of their pods: what the container runtime tells while it is connected.
    containers: Mutex<BTreeMap<String, String>>,
}

/// How it is found out who decides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    /// Whether it may change.
    pub(crate) auto: bool,
    /// Whether the container runtime is to ask through NRI.
    pub(crate) nri: bool,
    /// Whether the API server tells of the node's pods.
    pub(crate) pods: bool,
    /// Whether it is known from the beginning.
    pub(crate) decided: bool,
}

impl Shared {
    pub(crate) fn new(
        state: State,
        checkpoint: Checkpoint,
        facts: Facts,
        log: Log,
        choice: Choice,
        kubelet: Kubelet,
    ) -> Self {
        let nri = Nri::Away { since: log.now(), why: "NRI is not used".to_owned() };
        let devices = Arc::new(state.lists());
        Self {
            state: Mutex::new(state),
            checkpoint: Mutex::new(checkpoint),
            facts: Mutex::new(facts),
            verdicts: Mutex::default(),
            log,
            devices: watch::Sender::new(devices),
            revision: watch::Sender::new(0),
            untold: watch::Sender::new(0),
            registrations: watch::Sender::new(0),
            cdi: Mutex::default(),
            config_fault: watch::Sender::new(None),
            choice,
            nri: watch::Sender::new(nri),
            decided: watch::Sender::new(choice.decided),
            configured: watch::Sender::new(false),
            allocated: Notify::new(),
            pods: Arc::default(),
            kubelet,
            containers: Mutex::default(),
        }
    }

    /// Writes a line into the agent's log and into the process's.
    pub(crate) fn say(&self, text: String) {
        tracing::info!(node = &*self.state().node, "{text}");
        self.log.write(text);
    }

    /// Changes who decides, for this reason. What is held stays as it is.
    pub(crate) fn set_mode(&self, mode: IdentityMode, why: &str) {
        let who = match mode {
            IdentityMode::Assignment => "the scheduler's assignment",
            IdentityMode::Kubelet => "the kubelet",
        };
        let changed = {
            let mut state = self.state();
            let changed = state.set_mode(mode);
            if changed {
                self.publish(&state);
            }
            changed
        };
        if self.decided.send_replace(true) && !changed {
            return;
        }
        self.say(format!("Identity: {who} decides which GPU a container gets, because {why}"));
    }

    /// Records a container that runs.
    pub(crate) fn learn(&self, container: &ContainerIdentity, gpus: &[GpuId]) -> Result<bool, Error> {
        let mut state = self.state();
        let learned = state.learn(container, gpus)?;
        if learned {
            self.publish_untold(&state);
        }
        Ok(learned)
    }

    /// Takes over what the kubelet lists; `known` are the pods that were known when it was asked.
    pub(crate) fn follow(&self, listed: &[Listed], known: &BTreeSet<String>, told: &mut Vec<String>) {
        let mut state = self.state();
        let (changed, contradictions) =
            state.follow(listed, known, |namespace, name| self.pods.uid(namespace, name));
        if changed {
            self.publish_untold(&state);
        }
        drop(state);
        for text in contradictions.iter().filter(|text| !told.contains(text)) {
            self.say(format!("Podresources: {text}"));
        }
        *told = contradictions;
    }

    /// Frees the GPUs of a pod; whether it had any.
    pub(crate) fn remove_pod(&self, uid: &str) -> bool {
        let mut state = self.state();
        let freed = state.retain(|known| known != uid);
        if freed {
            self.publish_untold(&state);
        }
        freed
    }

    /// The containers that run, by id, with the UIDs of their pods.
    pub(crate) fn containers(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cdi(&self) -> MutexGuard<'_, cdi::Known> {
        self.cdi.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host as an answer to `Allocate` needs it. Partitions come and go, so their numbers are read each time.
    pub(crate) fn host(config: &Config) -> Host {
        let minors = if config.plugin.pass_device_specs {
            std::fs::read_to_string(MIG_MINORS).unwrap_or_default()
        } else {
            String::new()
        };
        Host::look(config, &minors)
    }

    /// The devices that are out of service.
    pub(crate) fn verdicts(&self) -> MutexGuard<'_, Vec<Verdict>> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a change of owners that nothing else in the cluster tells.
    fn publish_untold(&self, state: &State) {
        self.untold.send_modify(|count| *count += 1);
        self.publish(state);
    }

    /// Publishes a changed state: to the kubelet, to disk, to the API server. While devices are not described, the kubelet learns of the
    /// health of those that it knows, and of nothing else.
    pub(crate) fn publish(&self, state: &State) {
        let mut devices = state.lists();
        self.devices.send_if_modified(|known| {
            if !self.cdi().ready {
                devices = known_alone(known, &devices);
            }
            let changed = **known != devices;
            if changed {
                *known = Arc::new(devices);
            }
            changed
        });
        let written = self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner).write(state);
        if let Err(error) = written {
            // What is lost with the file can be rebuilt from the pods; what runs must not suffer.
            tracing::warn!(%error, "cannot write the checkpoint");
            self.log.write(format!("Cannot write the checkpoint: {error}"));
        }
        self.revision.send_modify(|count| *count += 1);
    }
}

/// The lists that are known, with the health that `new` tells of their devices.
fn known_alone(known: &Lists, new: &Lists) -> Lists {
    let mut lists = known.clone();
    for (resource, devices) in &mut lists {
        for device in devices {
            let now = new.get(resource).and_then(|list| list.iter().find(|new| new.id == device.id));
            if let Some(now) = now {
                device.clone_from(now);
            }
        }
    }
    lists
}

/// A running agent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(pub(crate) Arc<Shared>);

impl Handle {
    /// Decides which GPUs a container gets; the runtime calls this before it creates the container, and injects the
    /// answer. Asked again for the same container, it gives the same answer.
    ///
    /// # Errors
    /// Where scheduler, kubelet and agent do not agree, a GPU is unhealthy, or another pod owns it. Nothing is changed then.
    pub fn create_container(&self, container: &ContainerIdentity) -> Result<Adjustment, Error> {
        let mut state = self.0.state();
        let node = Arc::clone(&state.node);
        let granted = state.grant(container, || self.0.pods.promised(&node, &container.pod.uid));
        let Created { devices: gpus, behind_slots } = granted.inspect_err(|error| {
            self.0.log.write(format!("Refused container {}: {error}", container.name));
        })?;
        if gpus.is_empty() {
            return Ok(Adjustment::default());
        }
        if state.mode == IdentityMode::Kubelet || !container.annotations.contains_key(ASSIGNMENT_ANNOTATION) {
            self.0.untold.send_modify(|count| *count += 1);
        }
        self.0.publish(&state);
        // All but slots came with the answer to Allocate already.
        let cdi_devices =
            behind_slots.iter().map(cdi::plugin_device).collect::<Result<_, gantry_cdi::Error>>()?;
        Ok(Adjustment { cdi_devices, gpus })
    }

    /// Frees the GPUs of a pod whose containers have ended for good; one without GPUs is fine. A runtime calls this when it stops the
    /// pod's sandbox (NRI's `StopPodSandbox`): before the kubelet offers the devices to others.
    pub fn remove_pod(&self, uid: &str) {
        self.0.remove_pod(uid);
    }

    /// Frees the GPUs of all pods but these: what a runtime that has just started says (NRI's `Synchronize`).
    pub fn synchronize(&self, live: &BTreeSet<String>) {
        let mut state = self.0.state();
        if state.retain(|uid| live.contains(uid)) {
            self.0.publish_untold(&state);
        }
    }

    /// Who decides which GPU a container gets.
    pub fn identity_mode(&self) -> IdentityMode {
        self.0.state().mode
    }

    /// Whether the container runtime asks the agent through NRI, and every change of it.
    pub fn nri(&self) -> watch::Receiver<Nri> {
        self.0.nri.subscribe()
    }

    /// The GPUs by index, with their health.
    pub fn gpus(&self) -> Vec<Gpu> {
        self.0.state().gpus().to_vec()
    }

    /// The machine with its driver as it was described last: what [`Machine::container_edits`] follows from. `None` while there is no driver.
    pub fn machine(&self) -> Option<Arc<Machine>> {
        self.0.cdi().machine.clone()
    }

    /// Why the CDI files cannot be brought up to date now; it is being tried again.
    pub fn cdi_error(&self) -> Option<String> {
        self.0.cdi().error.as_ref().map(|trouble| trouble.text.clone())
    }

    /// Which container has which GPUs.
    pub fn in_use(&self) -> Vec<ContainerGpus> {
        self.0.state().in_use()
    }

    /// The log from line number `from` on, as far as it is kept, and the number of the next line.
    pub fn logs(&self, from: u64) -> (Vec<LogLine>, u64) {
        self.0.log.read(from)
    }

    /// Changes whenever a line is logged; its value is the number of the next line.
    pub fn logs_changed(&self) -> watch::Receiver<u64> {
        self.0.log.changed()
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(self.0.state().config())
    }

    /// What is wrong with the configuration that the node should have, while it keeps an earlier one.
    pub fn config_fault(&self) -> watch::Receiver<Option<String>> {
        self.0.config_fault.subscribe()
    }

    /// How often resources have been registered with the kubelet.
    pub fn registrations(&self) -> watch::Receiver<u64> {
        self.0.registrations.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use gantry_proto::deviceplugin::{Device, HEALTHY, UNHEALTHY};

    use super::*;

    fn lists(entries: &[(&str, &[(&str, &str)])]) -> Lists {
        let device = |(id, health): &(&str, &str)| Device {
            id: (*id).to_owned(),
            health: (*health).to_owned(),
            topology: None,
        };
        let list =
            |(resource, devices): &(&str, &[_])| (Arc::from(*resource), devices.iter().map(device).collect());
        entries.iter().map(list).collect()
    }

    #[test]
    fn while_devices_are_not_described_the_kubelet_learns_of_health_alone() {
        let known = lists(&[("gpu", &[("a", HEALTHY), ("b", HEALTHY)]), ("mig", &[("c", HEALTHY)])]);
        let new = lists(&[("gpu", &[("b", UNHEALTHY), ("d", HEALTHY)]), ("new", &[("e", HEALTHY)])]);
        let expected = lists(&[("gpu", &[("a", HEALTHY), ("b", UNHEALTHY)]), ("mig", &[("c", HEALTHY)])]);
        assert_eq!(known_alone(&known, &new), expected);
    }
}
