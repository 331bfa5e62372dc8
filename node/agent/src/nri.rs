//! The agent as a plugin of the container runtime: whose container is created, and which GPUs it gets.
//!
//! ```text
//!   device plugin ─Allocate: gantry.dev/devices.…=slot-3,slot-0─▶ kubelet ─▶ runtime ─CreateContainer(pod UID, …)─▶ here
//!                                                                 runtime ◀─CDI devices, gantry.dev/gpus=GPU-…,GPU-…──┘
//! ```
//!
//! What was granted comes in an annotation of the container. Kubelets make it from the plugin's answer alone, whereas a variable
//! could be the pod's. What a container was given is written into another, so that the ledger can be
//! rebuilt from what runs.
//!
//! That a pod's sandbox ends frees its GPUs at once. containerd forgets sandboxes in this respect when it restarts and never tells their
//! end; of containers it goes on to tell. Hence those are followed, too, for `ended` to ask.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_api::ASSIGNMENT_ANNOTATION;
use gantry_model::{GpuId, PodKey};
use gantry_nri::{CdiDevice, Container, ContainerAdjustment, Event, Events, PodSandbox};
use gantry_shim::{DEVICES_ANNOTATION, GPUS_ANNOTATION, granted_devices, is_slot};

use crate::handle::Shared;
use crate::{ContainerIdentity, Handle};

/// The plugin's name among those of the runtime.
pub(crate) const NAME: &str = "gantry";

/// Plugins are asked in ascending order: after those that change what containers are, before those that check.
pub(crate) const INDEX: &str = "50";

pub(crate) struct Plugin {
    shared: Arc<Shared>,
    /// The newest sandbox of each pod, by the pod's UID.
    sandboxes: Mutex<BTreeMap<String, String>>,
}

impl Plugin {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, sandboxes: Mutex::default() }
    }

    fn sandboxes(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, text: String) {
        tracing::warn!("{text}");
        self.shared.log.write(text);
    }

    /// Whose container it is. The annotations of a pod are those of its beginning: an assignment that came later is in the API server.
    fn identity(
        &self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<ContainerIdentity, gantry_shim::Error> {
        let mut annotations = BTreeMap::new();
        let assignment = pod.annotations.get(ASSIGNMENT_ANNOTATION).cloned();
        if let Some(text) = assignment.or_else(|| self.shared.pods.assignment(&pod.uid)) {
            annotations.insert(ASSIGNMENT_ANNOTATION.to_owned(), text);
        }
        let told = container.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        Ok(ContainerIdentity {
            pod: PodKey {
                namespace: pod.namespace.as_str().into(),
                name: pod.name.as_str().into(),
                uid: pod.uid.as_str().into(),
            },
            annotations,
            name: container.name.clone(),
            devices: granted_devices(told)?,
        })
    }

    /// A pod's containers have ended: its GPUs are free, unless it is an earlier sandbox of a pod that goes on.
    fn ended(&self, pod: &PodSandbox) {
        {
            let mut sandboxes = self.sandboxes();
            if sandboxes.get(&pod.uid).is_some_and(|newest| *newest != pod.id) {
                return;
            }
            sandboxes.remove(&pod.uid);
        }
        self.shared.remove_pod(&pod.uid);
    }
}

impl gantry_nri::Plugin for Plugin {
    fn events(&self) -> Events {
        Events::of(&[
            Event::CreateContainer,
            Event::StopContainer,
            Event::RemoveContainer,
            Event::StopPodSandbox,
            Event::RemovePodSandbox,
        ])
    }

    /// Takes over what runs: frees what belongs to pods that are gone, and learns what the ledger does not know.
    fn synchronize(&self, pods: Vec<PodSandbox>, containers: Vec<Container>) {
        let (live, newest) = live(&pods, &containers);
        let uids: BTreeSet<String> = live.iter().map(|pod| pod.uid.clone()).collect();
        *self.sandboxes() = newest;
        Handle(Arc::clone(&self.shared)).synchronize(&uids);
        let by_id: BTreeMap<&str, &PodSandbox> = pods.iter().map(|pod| (pod.id.as_str(), pod)).collect();
        *self.shared.containers() = containers
            .iter()
            .filter_map(|container| {
                Some((container.id.clone(), by_id.get(container.pod_sandbox_id.as_str())?.uid.clone()))
            })
            .collect();
        let mut learned = 0;
        for container in &containers {
            let Some(pod) = by_id.get(container.pod_sandbox_id.as_str()) else { continue };
            let identity = match self.identity(pod, container) {
                Ok(identity) if pretends(pod).is_none() && !identity.devices.is_empty() => identity,
                _ => continue,
            };
            let gpus: Result<Vec<GpuId>, _> =
                list(container.annotations.get(GPUS_ANNOTATION)).iter().map(|id| id.parse()).collect();
            match gpus {
                Ok(gpus) if !gpus.is_empty() => match self.shared.learn(&identity, &gpus) {
                    Ok(true) => learned += 1,
                    Ok(false) => {}
                    Err(error) => self.log(format!("Container {} runs against the ledger: {error}", identity.name)),
                },
                _ if identity.devices.iter().any(|id| is_slot(id)) => self.log(format!(
                    "Container {} of pod {} runs without the GPUs of its devices {}: it was created while the runtime did \
                     not ask this agent; delete the pod",
                    identity.name,
                    identity.pod,
                    identity.devices.join(",")
                )),
                _ => {}
            }
        }
        if learned > 0 {
            self.shared.log.write(format!("Learned the GPUs of {learned} containers from the runtime"));
        }
    }

    fn create_container(&self, pod: PodSandbox, container: Container) -> Result<ContainerAdjustment, String> {
        if let Some(key) = pretends(&pod) {
            return Err(format!(
                "pod {}/{}: annotation {key} is the node agent's own: remove it from the pod",
                pod.namespace, pod.name
            ));
        }
        self.sandboxes().insert(pod.uid.clone(), pod.id.clone());
        let identity = self.identity(&pod, &container).map_err(|error| {
            format!("pod {}/{}, container {}: {error}", pod.namespace, pod.name, container.name)
        })?;
        if identity.devices.is_empty() && identity.annotations.is_empty() {
            return Ok(ContainerAdjustment::default());
        }
        // Before it has anything: the pod may be newer than what the API server has told.
        self.shared.containers().insert(container.id.clone(), pod.uid);
        let adjustment = Handle(Arc::clone(&self.shared)).create_container(&identity).map_err(|error| {
            // Of a container that is refused nothing more is told.
            self.shared.containers().remove(&container.id);
            error.to_string()
        })?;
        if adjustment.gpus.is_empty() {
            return Ok(ContainerAdjustment::default());
        }
        let gpus: Vec<&str> = adjustment.gpus.iter().map(GpuId::as_str).collect();
        Ok(ContainerAdjustment {
            annotations: BTreeMap::from([(GPUS_ANNOTATION.to_owned(), gpus.join(","))]),
            cdi_devices: adjustment
                .cdi_devices
                .iter()
                .map(|device| CdiDevice { name: device.to_string() })
                .collect(),
            ..ContainerAdjustment::default()
        })
    }

    fn stop_container(&self, _pod: PodSandbox, container: Container) {
        self.shared.containers().remove(&container.id);
    }

    fn remove_container(&self, _pod: PodSandbox, container: Container) {
        self.shared.containers().remove(&container.id);
    }

    fn stop_pod(&self, pod: PodSandbox) {
        self.ended(&pod);
    }

    fn remove_pod(&self, pod: PodSandbox) {
        self.ended(&pod);
    }

    fn shutdown(&self) {
        self.shared.log.write("The container runtime is about to end");
    }
}

/// Whether a pod carries what only a container may: a runtime that passes annotations of pods on to their containers would let
/// whoever writes a pod choose its GPUs.
fn pretends(pod: &PodSandbox) -> Option<&String> {
    pod.annotations.keys().find(|key| key.starts_with(DEVICES_ANNOTATION) || *key == GPUS_ANNOTATION)
}

fn list(value: Option<&String>) -> Vec<String> {
    value
        .into_iter()
        .flat_map(|value| value.split(','))
        .filter(|id| !id.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The sandboxes of pods that have not ended, and the newest of each pod by its UID. A runtime also tells of sandboxes that have been
/// stopped and not removed yet; those have no process any more and no container that runs.
fn live<'a>(
    pods: &'a [PodSandbox],
    containers: &[Container],
) -> (Vec<&'a PodSandbox>, BTreeMap<String, String>) {
    let busy: BTreeSet<&str> = containers.iter().map(|container| container.pod_sandbox_id.as_str()).collect();
    // Runtimes of earlier days do not tell processes.
    let tells = pods.iter().any(|pod| pod.pid != 0);
    let live: Vec<&PodSandbox> =
        pods.iter().filter(|pod| pod.pid != 0 || !tells || busy.contains(pod.id.as_str())).collect();
    let mut newest: BTreeMap<String, String> = BTreeMap::new();
    for pod in &live {
        let known = newest.entry(pod.uid.clone()).or_insert_with(|| pod.id.clone());
        if !busy.contains(known.as_str()) {
            known.clone_from(&pod.id);
        }
    }
    (live, newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(id: &str, uid: &str, pid: u32) -> PodSandbox {
        PodSandbox { id: id.to_owned(), uid: uid.to_owned(), pid, ..PodSandbox::default() }
    }

    fn of(sandbox: &str) -> Container {
        Container { pod_sandbox_id: sandbox.to_owned(), ..Container::default() }
    }

    #[test]
    fn stopped_sandboxes_are_not_live_where_the_runtime_tells_processes() {
        let pods = [pod("1", "a", 0), pod("2", "a", 7), pod("3", "b", 0), pod("4", "c", 0)];
        let ids = |(live, newest): (Vec<&PodSandbox>, BTreeMap<String, String>)| {
            let live: Vec<String> = live.into_iter().map(|pod| pod.id.clone()).collect();
            (
                live.join(","),
                newest.into_iter().map(|(uid, id)| format!("{uid}={id}")).collect::<Vec<_>>().join(","),
            )
        };
        assert_eq!(ids(live(&pods, &[of("4")])), ("2,4".into(), "a=2,c=4".into()));
        let old = pods.clone().map(|pod| PodSandbox { pid: 0, ..pod });
        assert_eq!(ids(live(&old, &[of("1")])), ("1,2,3,4".into(), "a=1,b=3,c=4".into()));
    }

    #[test]
    fn lists_are_read_as_they_are_written() {
        assert_eq!(list(Some(&"slot-3,slot-0".to_owned())), ["slot-3", "slot-0"]);
        assert!(list(Some(&String::new())).is_empty() && list(None).is_empty());
    }
}
