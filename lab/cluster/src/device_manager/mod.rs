//! The kubelet's device manager: the client side of the device plugin protocol (v1beta1).
//!
//! ```text
//!   plugin ── Register ──▶ kubelet.sock ──▶ endpoint (one a resource) ── ListAndWatch ──▶ plugin's socket
//!                                               │ devices and their health
//!                                               ▼
//!   admit(pod) ── GetPreferredAllocation, Allocate ──▶ assigned devices ──▶ checkpoint, podresources, runtime
//! ```
//!
//! It follows the kubelet's own (`pkg/kubelet/cm/devicemanager`) in what a plugin or a user can observe: a vanished plugin
//! makes all its devices unhealthy at once and takes the resource away after five minutes; devices of ordinary init
//! containers are used again by the pod's other containers; a pod that cannot be served is rejected for good.

mod checkpoint;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod plugin;
mod podresources;
mod registration;
mod sockets;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_kit::Tasks;
use gantry_proto::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, DevicePluginOptions, PreStartContainerRequest,
    PreferredAllocationRequest,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Error;
use checkpoint::{Checkpoint, Entry};
use plugin::{Device, Plugin};

/// How long a resource stays in the node's capacity after its plugin went away.
const ENDPOINT_GRACE: Duration = Duration::from_mins(5);

/// How long the kubelet waits for `PreStartContainer`.
const PRE_START_TIMEOUT: Duration = Duration::from_secs(30);

/// How the kubelet counts a container when it hands out devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerKind {
    /// Runs to its end before the next; its devices are used again by later containers of the pod.
    Init,
    /// An init container with `restartPolicy: Always`: runs beside the others and keeps its devices.
    Sidecar,
    /// One of `spec.containers`.
    App,
}

/// What one container asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRequest {
    /// The container's name.
    pub name: String,
    /// Its kind.
    pub kind: ContainerKind,
    /// How many devices of which extended resource, from its limits.
    pub devices: BTreeMap<String, u64>,
}

/// What a pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRequest {
    /// The pod's UID.
    pub uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// Init containers in order, then the others in order.
    pub containers: Vec<ContainerRequest>,
}

/// Why a pod is rejected, in the kubelet's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmissionError {
    /// Fewer devices are free than are asked for.
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable {
        /// The resource.
        resource: String,
        /// How many are needed.
        requested: u64,
        /// How many healthy ones are free.
        available: usize,
    },
    /// No plugin has registered the resource since the kubelet started.
    #[error("cannot allocate unregistered device {resource}")]
    Unregistered {
        /// The resource.
        resource: String,
    },
    /// The plugin is there but no device is healthy.
    #[error("no healthy devices present; cannot allocate unhealthy devices {resource}")]
    NoneHealthy {
        /// The resource.
        resource: String,
    },
    /// The devices that the pod has from before are not all fit any more.
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
    )]
    NoLongerHealthy {
        /// The resource.
        resource: String,
    },
    /// A container's request differs from what it was given before.
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} from {had} to {wants}"
    )]
    Changed {
        /// The pod's UID.
        pod: String,
        /// The container.
        container: String,
        /// The resource.
        resource: String,
        /// How many it has.
        had: usize,
        /// How many it asks for now.
        wants: u64,
    },
    /// The plugin refused or could not be reached.
    #[error("rpc error: code = {code} desc = {message}")]
    Rpc {
        /// The gRPC code as Go prints it, such as `Unavailable`.
        code: String,
        /// The plugin's text.
        message: String,
    },
    /// The plugin answered with nothing for the container.
    #[error("no containers return in allocation response")]
    EmptyResponse,
    /// The plugin's socket is gone.
    #[error("unknown Device Plugin {resource}")]
    UnknownPlugin {
        /// The resource.
        resource: String,
    },
}

impl From<tonic::Status> for AdmissionError {
    fn from(status: tonic::Status) -> Self {
        Self::Rpc { code: format!("{:?}", status.code()), message: status.message().to_owned() }
    }
}

/// What the runtime must do for a container's devices: the answers of all its plugins together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerDevices {
    /// The device IDs by resource, sorted.
    pub ids: BTreeMap<String, Vec<String>>,
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Annotations for the runtime.
    pub annotations: BTreeMap<String, String>,
    /// Mounts as (container path, host path, read only).
    pub mounts: Vec<(String, String, bool)>,
    /// Device files as (container path, host path, permissions).
    pub devices: Vec<(String, String, String)>,
    /// CDI device names.
    pub cdi: Vec<String>,
}

/// How many devices of a resource the node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Healthy or not.
    pub capacity: usize,
    /// Healthy.
    pub allocatable: usize,
}

/// Where the device manager keeps its files.
#[derive(Debug, Clone)]
pub struct DeviceManagerOptions {
    /// The kubelet's root folder, `/var/lib/kubelet` on a real node. Sockets are made in `device-plugins/` and
    /// `pod-resources/` below it.
    pub root: PathBuf,
    /// The folder of the checkpoint; unlike the sockets it must outlive the process for pods to keep their devices.
    pub state: PathBuf,
}

impl DeviceManagerOptions {
    /// The folder that plugins put their sockets into.
    pub fn plugins_dir(&self) -> PathBuf {
        self.root.join("device-plugins")
    }

    /// The podresources socket.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.root.join("pod-resources").join("kubelet.sock")
    }

    fn checkpoint(&self) -> PathBuf {
        self.state.join("kubelet_internal_checkpoint")
    }
}

/// A running device manager. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DeviceManager(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: DeviceManagerOptions,
    state: Mutex<State>,
    /// The kubelet admits one pod after the other.
    admission: tokio::sync::Mutex<()>,
    changed: watch::Sender<u64>,
    /// Held while the checkpoint is made and written, or an earlier state could replace a later one.
    saving: Mutex<()>,
    tasks: Tasks,
}

#[derive(Debug, Default)]
struct State {
    resources: BTreeMap<String, Resource>,
    assigned: BTreeMap<String, BTreeMap<(String, String), Assigned>>,
    pods: BTreeMap<String, PodRequest>,
}

/// One resource and its plugin.
#[derive(Debug)]
struct Resource {
    /// Tells endpoints of one resource apart: a plugin that registers again replaces the one before.
    generation: u64,
    devices: BTreeMap<String, Device>,
    plugin: Option<Plugin>,
    options: DevicePluginOptions,
    /// Since when the plugin is gone.
    stopped: Option<Instant>,
}

/// What one container has of one resource.
#[derive(Debug, Clone)]
struct Assigned {
    ids: BTreeSet<String>,
    response: ContainerAllocateResponse,
}

impl DeviceManager {
    /// Reads the checkpoint, removes what sockets are left in the plugin folder (which tells running plugins to register
    /// again) and serves until `tasks` is stopped. A manager that worked in these folders before must have been stopped.
    pub fn start(options: DeviceManagerOptions, tasks: Tasks) -> Result<Self, Error> {
        let plugins = options.plugins_dir();
        std::fs::create_dir_all(&plugins).map_err(Error::file("create", &plugins))?;
        sockets::remove_all(&plugins)?;
        std::fs::create_dir_all(&options.state).map_err(Error::file("create", &options.state))?;
        let mut state = State::default();
        match Checkpoint::load(&options.checkpoint()) {
            Ok(checkpoint) => state.restore(checkpoint.unwrap_or_default()),
            // What it knew is found out again: the pods are admitted anew, and the agent knows who has which GPU.
            Err(error @ Error::Checkpoint { .. }) => {
                tracing::warn!(%error, "the device manager's checkpoint is set aside");
                let (from, to) = (options.checkpoint(), options.checkpoint().with_extension("corrupt"));
                std::fs::rename(&from, &to).map_err(Error::file("rename", &from))?;
            }
            Err(error) => return Err(error),
        }
        let inner = Arc::new(Inner {
            options,
            state: Mutex::new(state),
            admission: tokio::sync::Mutex::default(),
            changed: watch::Sender::new(0),
            saving: Mutex::default(),
            tasks,
        });
        let manager = Self(inner);
        podresources::serve(manager.clone())?;
        registration::serve(manager.clone())?;
        Ok(manager)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.0.changed.send_modify(|count| *count += 1);
    }

    /// A channel whose value changes whenever [`Self::counts`] may.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// What the node has of every resource that was registered since the kubelet started, including those that went
    /// away since (zero).
    pub fn counts(&self) -> BTreeMap<String, Count> {
        let now = Instant::now();
        let state = self.state();
        state
            .resources
            .iter()
            .map(|(name, resource)| {
                let expired =
                    resource.stopped.is_some_and(|since| now.duration_since(since) >= ENDPOINT_GRACE);
                let devices = if expired { 0 } else { resource.devices.len() };
                let healthy = resource.devices.values().filter(|device| device.healthy).count();
                (name.clone(), Count { capacity: devices, allocatable: if expired { 0 } else { healthy } })
            })
            .collect()
    }

    /// The devices of one container, once its pod was admitted.
    pub fn container(&self, pod_uid: &str, container: &str) -> ContainerDevices {
        let state = self.state();
        let mut merged = ContainerDevices::default();
        let Some(entries) = state.assigned.get(pod_uid) else { return merged };
        for ((_, resource), assigned) in entries.iter().filter(|((name, _), _)| name == container) {
            merged.ids.insert(resource.clone(), assigned.ids.iter().cloned().collect());
            let response = &assigned.response;
            merged.envs.extend(response.envs.clone());
            merged.annotations.extend(response.annotations.clone());
            for mount in &response.mounts {
                merged.mounts.push((mount.container_path.clone(), mount.host_path.clone(), mount.read_only));
            }
            for device in &response.devices {
                merged.devices.push((
                    device.container_path.clone(),
                    device.host_path.clone(),
                    device.permissions.clone(),
                ));
            }
            merged.cdi.extend(response.cdi_devices.iter().map(|device| device.name.clone()));
        }
        merged
    }

    /// Gives a pod its devices, or rejects it with nothing kept. A pod that was admitted before (kubelet restart) keeps
    /// what the checkpoint says.
    pub async fn admit(&self, pod: &PodRequest) -> Result<(), AdmissionError> {
        let _turn = self.0.admission.lock().await;
        let known = self.state().assigned.contains_key(&pod.uid);
        self.state().pods.insert(pod.uid.clone(), pod.clone());
        let result = self.admit_containers(pod).await;
        if result.is_err() {
            let mut state = self.state();
            state.pods.remove(&pod.uid);
            if !known {
                state.assigned.remove(&pod.uid);
            }
        }
        if pod.containers.iter().any(|container| !container.devices.is_empty()) {
            self.save();
        }
        result
    }

    async fn admit_containers(&self, pod: &PodRequest) -> Result<(), AdmissionError> {
        let mut reusable: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for container in &pod.containers {
            for (resource, count) in &container.devices {
                // Not a plugin's resource as far as this kubelet knows: whoever placed the pod answers for it.
                if !self.state().is_device_resource(resource) {
                    continue;
                }
                let reuse = reusable.entry(resource.clone()).or_default();
                self.assign(pod, container, resource, *count, reuse).await?;
                let state = self.state();
                let key = (container.name.clone(), resource.clone());
                let ids = state.assigned.get(&pod.uid).and_then(|entries| entries.get(&key));
                let ids = ids.map(|assigned| assigned.ids.clone()).unwrap_or_default();
                match container.kind {
                    ContainerKind::Init => reuse.extend(ids),
                    // What a running container holds is not there for the next one.
                    ContainerKind::Sidecar | ContainerKind::App => reuse.retain(|id| !ids.contains(id)),
                }
            }
        }
        Ok(())
    }

    async fn assign(
        &self,
        pod: &PodRequest,
        container: &ContainerRequest,
        resource: &str,
        count: u64,
        reuse: &BTreeSet<String>,
    ) -> Result<(), AdmissionError> {
        let Some(plan) = self.state().plan(pod, container, resource, count, reuse)? else { return Ok(()) };
        let mut chosen = plan.fixed.clone();
        let needed = usize::try_from(count).unwrap_or(usize::MAX);
        if chosen.len() < needed {
            if plan.options.get_preferred_allocation_available {
                let response = plan
                    .plugin
                    .client()
                    .get_preferred_allocation(PreferredAllocationRequest {
                        container_requests: vec![ContainerPreferredAllocationRequest {
                            available_device_i_ds: plan.available.union(&plan.fixed).cloned().collect(),
                            must_include_device_i_ds: plan.fixed.iter().cloned().collect(),
                            allocation_size: i32::try_from(count).unwrap_or(i32::MAX),
                        }],
                    })
                    .await?
                    .into_inner();
                // A plugin may answer with less, or with what is not free: the kubelet takes what it can use.
                let preferred =
                    response.container_responses.into_iter().next().unwrap_or_default().device_i_ds;
                chosen.extend(
                    preferred
                        .into_iter()
                        .filter(|id| plan.available.contains(id))
                        .take(needed - chosen.len()),
                );
            }
            let missing = needed - chosen.len();
            let rest: Vec<String> = plan.available.difference(&chosen).take(missing).cloned().collect();
            chosen.extend(rest);
        }
        let ids: Vec<String> = chosen.iter().cloned().collect();
        let response = plan
            .plugin
            .client()
            .allocate(AllocateRequest {
                container_requests: vec![ContainerAllocateRequest { devices_ids: ids }],
            })
            .await?
            .into_inner()
            .container_responses
            .into_iter()
            .next()
            .ok_or(AdmissionError::EmptyResponse)?;
        let key = (container.name.clone(), resource.to_owned());
        let assigned = Assigned { ids: chosen, response };
        self.state().assigned.entry(pod.uid.clone()).or_default().insert(key, assigned);
        Ok(())
    }

    /// Calls `PreStartContainer` where the plugin asked for it.
    pub async fn pre_start(&self, pod_uid: &str, container: &str) -> Result<(), AdmissionError> {
        let calls: Vec<(Plugin, Vec<String>)> = {
            let state = self.state();
            let entries = state.assigned.get(pod_uid).into_iter().flatten();
            entries
                .filter(|((name, _), _)| name == container)
                .filter_map(|((_, resource), assigned)| {
                    let resource =
                        state.resources.get(resource).filter(|known| known.options.pre_start_required)?;
                    Some((resource.plugin.clone()?, assigned.ids.iter().cloned().collect()))
                })
                .collect()
        };
        for (plugin, devices_ids) in calls {
            let request = PreStartContainerRequest { devices_ids };
            let mut client = plugin.client();
            tokio::time::timeout(PRE_START_TIMEOUT, client.pre_start_container(request))
                .await
                .map_err(|_| tonic::Status::deadline_exceeded("context deadline exceeded"))??;
        }
        Ok(())
    }

    /// Forgets a pod that has ended: its devices are free.
    pub fn release(&self, pod_uid: &str) {
        let freed = {
            let mut state = self.state();
            state.pods.remove(pod_uid);
            state.assigned.remove(pod_uid).is_some()
        };
        if freed {
            self.save();
        }
    }

    /// Forgets every pod that is not in `live`; what a kubelet does once it has seen all pods after its start.
    pub fn retain(&self, live: &BTreeSet<String>) {
        {
            let mut state = self.state();
            state.assigned.retain(|uid, _| live.contains(uid));
            state.pods.retain(|uid, _| live.contains(uid));
        }
        self.save();
    }

    fn save(&self) {
        let _one = self.0.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let checkpoint = self.state().checkpoint();
        let path = self.0.options.checkpoint();
        if let Err(error) = checkpoint.save(&path) {
            tracing::warn!(%error, path = %path.display(), "the device manager's checkpoint is not written");
        }
    }
}

/// What a resource's assignment to a container starts from.
struct Plan {
    plugin: Plugin,
    options: DevicePluginOptions,
    /// Devices that the container gets in any case.
    fixed: BTreeSet<String>,
    /// Healthy devices that nobody has.
    available: BTreeSet<String>,
}

impl State {
    /// Whether the kubelet counts devices for this resource: a plugin has registered it, or the checkpoint knows it.
    fn is_device_resource(&self, resource: &str) -> bool {
        self.resources.contains_key(resource)
            || self.assigned.values().flatten().any(|((_, known), _)| known == resource)
    }

    /// `None` if the container has its devices already.
    fn plan(
        &self,
        pod: &PodRequest,
        container: &ContainerRequest,
        resource: &str,
        count: u64,
        reuse: &BTreeSet<String>,
    ) -> Result<Option<Plan>, AdmissionError> {
        let name = || resource.to_owned();
        let key = (container.name.clone(), name());
        if let Some(had) = self.assigned.get(&pod.uid).and_then(|entries| entries.get(&key)) {
            if had.ids.len() as u64 == count {
                return Ok(None);
            }
            return Err(AdmissionError::Changed {
                pod: pod.uid.clone(),
                container: container.name.clone(),
                resource: name(),
                had: had.ids.len(),
                wants: count,
            });
        }
        if count == 0 {
            return Ok(None);
        }
        let known =
            self.resources.get(resource).ok_or_else(|| AdmissionError::Unregistered { resource: name() })?;
        let healthy: BTreeSet<String> =
            known.devices.iter().filter(|(_, device)| device.healthy).map(|(id, _)| id.clone()).collect();
        if healthy.is_empty() {
            return Err(AdmissionError::NoneHealthy { resource: name() });
        }
        let fixed: BTreeSet<String> =
            reuse.iter().take(usize::try_from(count).unwrap_or(usize::MAX)).cloned().collect();
        if !fixed.is_subset(&healthy) {
            return Err(AdmissionError::NoLongerHealthy { resource: name() });
        }
        let used: BTreeSet<&String> = self
            .assigned
            .values()
            .flatten()
            .filter(|((_, used), _)| used == resource)
            .flat_map(|(_, assigned)| &assigned.ids)
            .collect();
        let available: BTreeSet<String> = healthy.into_iter().filter(|id| !used.contains(id)).collect();
        let needed = count - fixed.len() as u64;
        if (available.len() as u64) < needed {
            return Err(AdmissionError::Unavailable {
                resource: name(),
                requested: needed,
                available: available.len(),
            });
        }
        let plugin =
            known.plugin.clone().ok_or_else(|| AdmissionError::UnknownPlugin { resource: name() })?;
        Ok(Some(Plan { plugin, options: known.options, fixed, available }))
    }

    fn restore(&mut self, checkpoint: Checkpoint) {
        for entry in checkpoint.entries {
            let key = (entry.container, entry.resource);
            let assigned =
                Assigned { ids: entry.devices.into_values().flatten().collect(), response: entry.response };
            self.assigned.entry(entry.pod_uid).or_default().insert(key, assigned);
        }
        for resource in checkpoint.registered.into_keys() {
            // Capacity stays zero until the plugin registers again.
            let stopped = Resource {
                generation: 0,
                devices: BTreeMap::new(),
                plugin: None,
                options: DevicePluginOptions::default(),
                stopped: Some(Instant::now()),
            };
            self.resources.insert(resource, stopped);
        }
    }

    fn checkpoint(&self) -> Checkpoint {
        let mut entries = Vec::new();
        for (uid, containers) in &self.assigned {
            for ((container, resource), assigned) in containers {
                let known = self.resources.get(resource);
                let mut devices: BTreeMap<i64, Vec<String>> = BTreeMap::new();
                for id in &assigned.ids {
                    let numa =
                        known.and_then(|known| known.devices.get(id)).and_then(|device| device.numa.first());
                    devices.entry(numa.copied().unwrap_or(checkpoint::NO_NUMA)).or_default().push(id.clone());
                }
                entries.push(Entry {
                    pod_uid: uid.clone(),
                    container: container.clone(),
                    resource: resource.clone(),
                    devices,
                    response: assigned.response.clone(),
                });
            }
        }
        let registered = self
            .resources
            .iter()
            .map(|(name, resource)| {
                let healthy = resource.devices.iter().filter(|(_, device)| device.healthy);
                (name.clone(), healthy.map(|(id, _)| id.clone()).collect())
            })
            .collect();
        Checkpoint { entries, registered }
    }
}

#[cfg(test)]
mod tests;
