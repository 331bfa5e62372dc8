//! A whole cluster in this process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_agent::FolderWatch;
use gantry_apiserver::{ApiServer, NodeBackend};
use gantry_gpu::{Profile, SimGpus};
use gantry_kit::{CancellationToken, SharedClock, SharedIds, Tasks};
use gantry_model::FaultKind;
use gantry_workloads::EventRecorder;
use k8s_openapi::api::core::v1::Taint;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::Value;

use crate::control::{CONTROLLERS, Control};
use crate::kubelet::{AGENT_DAEMON_SET, Hub, KUBELET_VERSION, Kubelet, daemon_set};
use crate::machine::{Machine, Plate, Shared};
use crate::remote::Backend;
use crate::{Error, node_lifecycle};

/// How long [`Cluster::ready`] waits.
const PATIENCE: Duration = Duration::from_mins(2);

/// Nodes that are alike.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeGroup {
    /// The model of their GPUs, such as `a100-80`. Unused where there are none.
    pub profile: String,
    /// How many nodes.
    pub count: u32,
    /// GPUs of each node, 0 to 16.
    pub gpus_per_node: u32,
    /// Their names are this, a hyphen and a number from 1; the profile if empty.
    pub name_prefix: String,
    /// Labels besides those that every node has.
    pub labels: BTreeMap<String, String>,
    /// Taints that they register with.
    pub taints: Vec<Taint>,
}

impl Default for NodeGroup {
    /// One node with eight A100 of 80 GB.
    fn default() -> Self {
        Self {
            profile: "a100-80".to_owned(),
            count: 1,
            gpus_per_node: 8,
            name_prefix: String::new(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
        }
    }
}

/// The names of each group's nodes: numbers go on where groups have the same prefix.
pub fn node_names(groups: &[NodeGroup]) -> impl Iterator<Item = impl Iterator<Item = String>> {
    let mut last: BTreeMap<&str, u32> = BTreeMap::new();
    groups.iter().map(move |group| {
        let prefix = if group.name_prefix.is_empty() { &group.profile } else { &group.name_prefix };
        let last = last.entry(prefix).or_default();
        let before = *last;
        *last = before.saturating_add(group.count);
        (before..*last).map(move |number| format!("{prefix}-{}", number + 1))
    })
}

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Its nodes.
    pub nodes: Vec<NodeGroup>,
    /// A folder for Unix sockets and CDI files; a short path, for a socket's has room for 107 bytes.
    pub dir: PathBuf,
    /// Where the cluster is kept across runs; `None` keeps it in memory.
    pub state_dir: Option<PathBuf>,
    /// Where time stamps come from.
    pub clock: SharedClock,
    /// Where UIDs and generated names come from.
    pub ids: SharedIds,
}

/// A node as the cluster keeps it. Cheap to clone.
#[derive(Clone)]
struct Node {
    machine: Arc<Machine>,
    /// The running kubelet; `None` while the node is off. Held while one is stopped or started: there are never two.
    kubelet: Arc<tokio::sync::Mutex<Option<Tasks>>>,
}

/// A running cluster: API server, controllers, scheduler, and nodes with the real agent.
pub struct Cluster {
    api: ApiServer,
    client: Client,
    backend: Arc<Backend>,
    nodes: Mutex<BTreeMap<String, Node>>,
    control: Control,
    cancel: CancellationToken,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("nodes", &self.nodes().keys()).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Starts everything; the API server answers when this returns, [`Self::ready`] waits for the nodes.
    ///
    /// # Errors
    /// If an option cannot be met, a folder cannot be used, or the kept state cannot be read. Nothing runs then.
    pub async fn start(options: ClusterOptions, cancel: CancellationToken) -> Result<Self, Error> {
        let cancel = cancel.child_token();
        let stop_on_error = cancel.clone().drop_guard();
        let ClusterOptions { nodes, dir, state_dir, clock, ids } = options;
        let plates = plates(&nodes, &dir, state_dir.as_deref())?;
        std::fs::create_dir_all(&dir).map_err(Error::file("create", &dir))?;
        raise_file_limit(plates.len());

        let mut server = gantry_apiserver::Options::new(Arc::clone(&clock), Arc::clone(&ids));
        KUBELET_VERSION.clone_into(&mut server.version);
        server.state_dir = state_dir.as_ref().map(|state| state.join("api"));
        let api = ApiServer::new(server)?;
        let backend = Arc::new(Backend::default());
        api.set_node_backend(backend.clone());
        let client = api.client();
        for definition in gantry_api::crds() {
            apply(&client, definition).await?;
        }

        let shared_tasks = Tasks::new(cancel.clone());
        let kubelets = api.component_client("kubelet");
        let (recorder, recording) =
            EventRecorder::new(kubelets.clone(), Arc::clone(&clock), Arc::clone(&ids));
        shared_tasks.spawn_until_cancelled(recording);
        let control = Control::start(&api, &clock, &ids, &cancel)?;
        node_lifecycle::start(
            api.component_client(CONTROLLERS),
            Arc::clone(&clock),
            recorder.clone(),
            &shared_tasks,
        );
        let shared = Shared {
            hub: Hub::start(kubelets.clone(), &shared_tasks),
            folder_watch: plates
                .iter()
                .any(|plate| plate.gpu_count > 0)
                .then(FolderWatch::new)
                .and_then(Result::ok),
            client: kubelets,
            clock,
            ids,
            recorder,
        };
        let cluster = Self { api, client, backend, nodes: Mutex::default(), control, cancel };
        for plate in plates {
            let name = plate.name.clone();
            let machine = Machine::new(plate, shared.clone());
            cluster.nodes().insert(name.clone(), Node { machine, kubelet: Arc::default() });
            cluster.start_node(&name).await?;
        }
        apply(&cluster.client, daemon_set()).await?;
        stop_on_error.disarm();
        Ok(cluster)
    }

    fn nodes(&self) -> MutexGuard<'_, BTreeMap<String, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API server, for listeners and clients of other users.
    pub fn api(&self) -> &ApiServer {
        &self.api
    }

    /// A client in this process that may do everything.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What answers for the containers of all nodes, for whoever enters one without a network.
    pub fn node_backend(&self) -> Arc<dyn NodeBackend> {
        self.backend.clone()
    }

    /// The names of all nodes, sorted.
    pub fn node_names(&self) -> Vec<String> {
        self.nodes().keys().cloned().collect()
    }

    /// Completes once every node that is on is Ready and offers all its GPUs.
    ///
    /// # Errors
    /// If that takes two minutes.
    pub async fn ready(&self) -> Result<(), Error> {
        let nodes: Vec<Node> = self.nodes().values().cloned().collect();
        let mut machines = Vec::new();
        for node in nodes {
            if node.kubelet.lock().await.is_some() {
                machines.push(node.machine);
            }
        }
        let all = async {
            for machine in &machines {
                // The sender lives in the machine.
                let _ = machine.ready.subscribe().wait_for(|ready| *ready).await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.map_err(|_| Error::NotReady {
            nodes: machines
                .iter()
                .filter(|machine| !*machine.ready.borrow())
                .map(|machine| machine.plate.name.clone())
                .collect(),
        })
    }

    /// Makes a GPU fail, by its index on the node.
    ///
    /// # Errors
    /// If there is no such node or GPU.
    pub fn fault(&self, node: &str, index: usize, kind: FaultKind) -> Result<(), Error> {
        Ok(self.gpus(node)?.fault(index, kind)?)
    }

    /// Mends a GPU, whatever it had.
    ///
    /// # Errors
    /// If there is no such node or GPU.
    pub fn recover(&self, node: &str, index: usize) -> Result<(), Error> {
        Ok(self.gpus(node)?.recover(index)?)
    }

    /// The simulated GPUs of a node.
    ///
    /// # Errors
    /// If there is no such node, or it has no GPUs.
    pub fn gpus(&self, node: &str) -> Result<Arc<SimGpus>, Error> {
        let machine = self.node(node)?.machine;
        machine.plate.gpus.clone().ok_or_else(|| Error::NoGpus { node: node.to_owned() })
    }

    fn node(&self, name: &str) -> Result<Node, Error> {
        self.nodes().get(name).cloned().ok_or_else(|| Error::NoSuchNode { node: name.to_owned() })
    }

    /// Switches a node off at once: no process ends in good order and nobody tells the API server.
    ///
    /// # Errors
    /// If there is no such node. One that is off stays off.
    pub async fn stop_node(&self, node: &str) -> Result<(), Error> {
        let Node { machine, kubelet } = self.node(node)?;
        let mut kubelet = kubelet.lock().await;
        if let Some(running) = kubelet.take() {
            running.token().cancel();
            machine.power_off();
            self.backend.set(node, None);
            running.stop().await;
        }
        Ok(())
    }

    /// Switches a node on again.
    ///
    /// # Errors
    /// If there is no such node, or its folder cannot be used. One that is on stays on.
    pub async fn start_node(&self, node: &str) -> Result<(), Error> {
        let Node { machine, kubelet } = self.node(node)?;
        let mut kubelet = kubelet.lock().await;
        if kubelet.is_none() {
            self.backend.set(node, Some(Arc::clone(&machine)));
            *kubelet = Some(self.start_kubelet(machine)?);
        }
        Ok(())
    }

    /// Restarts a node's kubelet; its containers go on.
    ///
    /// # Errors
    /// If there is no such node, or its folder cannot be used. One that is off stays off.
    pub async fn restart_kubelet(&self, node: &str) -> Result<(), Error> {
        let Node { machine, kubelet } = self.node(node)?;
        let mut kubelet = kubelet.lock().await;
        if let Some(running) = kubelet.take() {
            running.stop().await;
            *kubelet = Some(self.start_kubelet(machine)?);
        }
        Ok(())
    }

    fn start_kubelet(&self, machine: Arc<Machine>) -> Result<Tasks, Error> {
        let tasks = Tasks::new(self.cancel.child_token());
        Kubelet::start(machine, tasks.clone())?;
        Ok(tasks)
    }

    /// Kills the node agent's process; its kubelet starts it again.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn restart_agent(&self, node: &str) -> Result<(), Error> {
        let machine = self.node(node)?.machine;
        let sandboxes: Vec<_> = machine.sandboxes().values().cloned().collect();
        for sandbox in sandboxes.iter().filter(|sandbox| {
            sandbox.namespace == "kube-system" && sandbox.name.starts_with(AGENT_DAEMON_SET)
        }) {
            sandbox.stop_all();
        }
        Ok(())
    }

    /// Stops the scheduler and starts it anew; what it knows it reads from the API server again.
    ///
    /// # Errors
    /// If it cannot be set up.
    pub async fn restart_scheduler(&self) -> Result<(), Error> {
        self.control.restart_scheduler().await
    }

    /// Stops everything, and waits for what writes to the nodes' folders. The state that is kept is complete at any time.
    pub async fn shutdown(&self) {
        self.cancel.cancel();
        self.power_off();
        let nodes: Vec<Node> = self.nodes().values().cloned().collect();
        for node in nodes {
            if let Some(kubelet) = node.kubelet.lock().await.take() {
                kubelet.stop().await;
            }
        }
        self.control.stopped().await;
    }
}

impl Cluster {
    /// Ends every process, and the API server's hold on the machines, which hold clients of it.
    fn power_off(&self) {
        for (name, node) in self.nodes().iter() {
            node.machine.power_off();
            self.backend.set(name, None);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.power_off();
    }
}

fn plates(
    groups: &[NodeGroup],
    dir: &std::path::Path,
    state_dir: Option<&std::path::Path>,
) -> Result<Vec<Plate>, Error> {
    let mut plates: Vec<Plate> = Vec::new();
    for (group, names) in groups.iter().zip(node_names(groups)) {
        let profile = if group.gpus_per_node > 0 { Some(Profile::named(&group.profile)?) } else { None };
        for name in names {
            let index = u32::try_from(plates.len()).unwrap_or(u32::MAX);
            let gpus = match profile {
                Some(profile) => Some(SimGpus::new(profile, group.gpus_per_node as usize, &name, 0)?),
                None => None,
            };
            let run_dir = dir.join(index.to_string());
            plates.push(Plate {
                index,
                labels: group.labels.clone(),
                taints: group.taints.clone(),
                gpus,
                gpu_count: group.gpus_per_node,
                state_dir: state_dir
                    .map_or_else(|| run_dir.join("state"), |state| state.join("nodes").join(&name)),
                drivers_dir: dir.join("drivers"),
                run_dir,
                name,
            });
        }
    }
    Ok(plates)
}

/// Sockets and connections of a node with its kubelet and agent, generously.
const FILES_PER_NODE: u64 = 12;

/// Raises this process's limit of open files, usually 1,024, to what the nodes need, as far as the system lets it.
fn raise_file_limit(nodes: usize) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let needed = 1_024 + FILES_PER_NODE * nodes as u64;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < needed
        && setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard).is_err()
    {
        tracing::warn!(
            soft,
            needed,
            "the limit of open files cannot be raised; a node may not get its sockets"
        );
    }
}

/// Creates an object, or brings the one that is there in line.
async fn apply(client: &Client, object: Value) -> Result<(), kube::Error> {
    let object: DynamicObject = serde_json::from_value(object).map_err(kube::Error::SerdeError)?;
    let types = object.types.clone().unwrap_or_default();
    let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
    let resource = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, &types.kind));
    let api: Api<DynamicObject> = match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let name = object.metadata.name.clone().unwrap_or_default();
            api.patch(&name, &PatchParams::default(), &Patch::Merge(&object)).await.map(drop)
        }
        result => result.map(drop),
    }
}

#[cfg(test)]
mod tests;
