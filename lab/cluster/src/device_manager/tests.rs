//! The device manager against a plugin double over real sockets.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures::Stream;
use gantry_kit::{CancellationToken, Tasks};
use gantry_proto::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use gantry_proto::deviceplugin::registration_client::RegistrationClient;
use gantry_proto::deviceplugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest, VERSION,
};
use gantry_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use gantry_proto::podresources::{GetPodResourcesRequest, ListPodResourcesRequest};
use tokio::sync::watch;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use super::*;

const GPU: &str = "nvidia.com/gpu";

/// A plugin whose devices are what the test says, which prefers the last devices and records what it is asked.
#[derive(Clone)]
struct Double {
    devices: watch::Sender<Vec<(&'static str, bool)>>,
    allocated: Arc<Mutex<Vec<Vec<String>>>>,
    refuse: Arc<Mutex<Option<Status>>>,
    /// Makes `Allocate` tell that it was called and never answer.
    hang: Arc<Mutex<Option<Arc<tokio::sync::Notify>>>>,
    alive: CancellationToken,
}

#[tonic::async_trait]
impl DevicePlugin for Double {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let stream = WatchStream::new(self.devices.subscribe()).map(|devices| {
            let devices = devices
                .into_iter()
                .map(|(id, healthy)| Device {
                    id: id.to_owned(),
                    health: if healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
                    topology: None,
                })
                .collect();
            Ok(ListAndWatchResponse { devices })
        });
        let alive = self.alive.clone().cancelled_owned();
        Ok(Response::new(Box::pin(futures::StreamExt::take_until(stream, alive))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let request = request.into_inner().container_requests.remove(0);
        let size = usize::try_from(request.allocation_size).unwrap();
        let mut ids = request.must_include_device_i_ds.clone();
        let rest = request
            .available_device_i_ds
            .into_iter()
            .rev()
            .filter(|id| !request.must_include_device_i_ds.contains(id));
        ids.extend(rest);
        ids.truncate(size);
        let answer = ContainerPreferredAllocationResponse { device_i_ds: ids };
        Ok(Response::new(PreferredAllocationResponse { container_responses: vec![answer] }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        if let Some(status) = self.refuse.lock().unwrap().take() {
            return Err(status);
        }
        let hang = self.hang.lock().unwrap().take();
        if let Some(called) = hang {
            called.notify_one();
            return std::future::pending().await;
        }
        let ids = request.into_inner().container_requests.remove(0).devices_ids;
        self.allocated.lock().unwrap().push(ids.clone());
        let cdi_devices =
            ids.into_iter().map(|id| CdiDevice { name: format!("nvidia.com/gpu={id}") }).collect();
        let answer = ContainerAllocateResponse { cdi_devices, ..Default::default() };
        Ok(Response::new(AllocateResponse { container_responses: vec![answer] }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

struct Node {
    folder: tempfile::TempDir,
    manager: DeviceManager,
    kubelet: Tasks,
    double: Double,
}

fn options(root: &Path) -> DeviceManagerOptions {
    DeviceManagerOptions { root: root.to_owned(), state: root.join("state") }
}

impl Node {
    async fn start(devices: &[(&'static str, bool)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kubelet = Tasks::default();
        let manager = DeviceManager::start(options(folder.path()), kubelet.clone()).unwrap();
        let double = Double {
            devices: watch::Sender::new(devices.to_vec()),
            allocated: Arc::default(),
            refuse: Arc::default(),
            hang: Arc::default(),
            alive: CancellationToken::new(),
        };
        let mut node = Self { folder, manager, kubelet, double };
        node.plug().await;
        node.wait(devices.len(), devices.iter().filter(|(_, healthy)| *healthy).count()).await;
        node
    }

    /// Starts the next kubelet, after the one before was stopped.
    fn start_kubelet(&mut self) {
        self.kubelet = Tasks::default();
        self.manager = DeviceManager::start(options(self.folder.path()), self.kubelet.clone()).unwrap();
    }

    fn socket(&self) -> PathBuf {
        options(self.folder.path()).plugins_dir().join("double.sock")
    }

    async fn plug(&mut self) {
        self.plug_from(&tokio::runtime::Handle::current()).await;
    }

    /// Starts the plugin as a process that is `runtime`, and registers it.
    async fn plug_from(&mut self, runtime: &tokio::runtime::Handle) {
        self.double.alive = CancellationToken::new();
        let _ = std::fs::remove_file(self.socket());
        let listener = {
            let _process = runtime.enter();
            tokio::net::UnixListener::bind(self.socket()).unwrap()
        };
        let (double, cancel) = (self.double.clone(), self.double.alive.clone().cancelled_owned());
        runtime.spawn(async move {
            Server::builder()
                .add_service(DevicePluginServer::new(double))
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), cancel)
                .await
                .unwrap();
        });
        let kubelet = options(self.folder.path()).plugins_dir().join("kubelet.sock");
        let channel =
            Endpoint::from_shared(format!("unix://{}", kubelet.display())).unwrap().connect().await.unwrap();
        RegistrationClient::new(channel)
            .register(RegisterRequest {
                version: VERSION.to_owned(),
                endpoint: "double.sock".to_owned(),
                resource_name: GPU.to_owned(),
                options: Some(DevicePluginOptions {
                    pre_start_required: false,
                    get_preferred_allocation_available: true,
                }),
            })
            .await
            .unwrap();
    }

    async fn wait(&self, capacity: usize, allocatable: usize) {
        let mut changes = self.manager.changes();
        while self.manager.counts().get(GPU) != Some(&Count { capacity, allocatable }) {
            changes.changed().await.unwrap();
        }
    }

    fn ids(&self, uid: &str, container: &str) -> Vec<String> {
        self.manager.container(uid, container).ids.remove(GPU).unwrap_or_default()
    }
}

fn pod(uid: &str, containers: &[(&str, ContainerKind, u64)]) -> PodRequest {
    PodRequest {
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        name: format!("pod-{uid}"),
        containers: containers
            .iter()
            .map(|(name, kind, count)| ContainerRequest {
                name: (*name).to_owned(),
                kind: *kind,
                devices: if *count == 0 {
                    BTreeMap::new()
                } else {
                    BTreeMap::from([(GPU.to_owned(), *count)])
                },
            })
            .collect(),
    }
}

const FOUR: &[(&str, bool)] = &[("GPU-a", true), ("GPU-b", true), ("GPU-c", true), ("GPU-d", true)];

#[tokio::test]
async fn a_pod_gets_the_preferred_devices_and_gives_them_back() {
    let node = Node::start(FOUR).await;
    node.manager.admit(&pod("1", &[("c", ContainerKind::App, 2)])).await.unwrap();
    assert_eq!(node.ids("1", "c"), ["GPU-c", "GPU-d"]);
    assert_eq!(node.manager.container("1", "c").cdi, ["nvidia.com/gpu=GPU-c", "nvidia.com/gpu=GPU-d"]);
    node.manager.release("1");
    node.manager.admit(&pod("2", &[("c", ContainerKind::App, 4)])).await.unwrap();
    assert_eq!(node.ids("2", "c").len(), 4);
}

#[tokio::test]
async fn a_rejected_pod_is_told_in_the_kubelets_words_and_keeps_nothing() {
    let node = Node::start(&FOUR[..1]).await;
    let error = node.manager.admit(&pod("1", &[("c", ContainerKind::App, 2)])).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "requested number of devices unavailable for nvidia.com/gpu. Requested: 2, Available: 1"
    );
    // The first container of this pod would fit; nothing of it stays.
    let two = pod("2", &[("a", ContainerKind::App, 1), ("b", ContainerKind::App, 1)]);
    assert!(node.manager.admit(&two).await.is_err());
    node.manager.admit(&pod("3", &[("c", ContainerKind::App, 1)])).await.unwrap();

    node.manager.release("3");
    *node.double.refuse.lock().unwrap() = Some(Status::unknown("no such device"));
    let error = node.manager.admit(&pod("4", &[("c", ContainerKind::App, 1)])).await.unwrap_err();
    assert_eq!(error.to_string(), "rpc error: code = Unknown desc = no such device");
    node.manager.admit(&pod("5", &[("c", ContainerKind::App, 1)])).await.unwrap();

    node.double.devices.send_replace(vec![("GPU-a", false)]);
    node.wait(1, 0).await;
    let error = node.manager.admit(&pod("6", &[("c", ContainerKind::App, 1)])).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
    );
}

#[tokio::test]
async fn devices_of_init_containers_are_used_again_and_those_of_sidecars_are_not() {
    let node = Node::start(FOUR).await;
    let request = pod(
        "1",
        &[
            ("init", ContainerKind::Init, 2),
            ("side", ContainerKind::Sidecar, 1),
            ("a", ContainerKind::App, 1),
            ("b", ContainerKind::App, 2),
        ],
    );
    node.manager.admit(&request).await.unwrap();
    let (init, side, a, b) =
        (node.ids("1", "init"), node.ids("1", "side"), node.ids("1", "a"), node.ids("1", "b"));
    assert!(init.contains(&side[0]), "the sidecar takes over one of the init container's: {init:?} {side:?}");
    let mut running: Vec<_> = [side, a, b].concat();
    running.sort();
    running.dedup();
    assert_eq!(running.len(), 4, "running containers share no device");
}

#[tokio::test]
async fn health_changes_move_allocatable_and_not_capacity() {
    let node = Node::start(FOUR).await;
    node.double.devices.send_replace(vec![
        ("GPU-a", true),
        ("GPU-b", false),
        ("GPU-c", true),
        ("GPU-d", true),
    ]);
    node.wait(4, 3).await;
    node.double.devices.send_replace(FOUR.to_vec());
    node.wait(4, 4).await;
}

#[tokio::test]
async fn a_vanished_plugin_takes_its_devices_along_and_brings_them_back() {
    let mut node = Node::start(FOUR).await;
    node.double.alive.cancel();
    node.wait(4, 0).await;
    assert!(node.manager.admit(&pod("1", &[("c", ContainerKind::App, 1)])).await.is_err());
    node.plug().await;
    node.wait(4, 4).await;
    tokio::time::pause();
    node.double.alive.cancel();
    node.wait(4, 0).await;
    tokio::time::advance(ENDPOINT_GRACE).await;
    node.wait(0, 0).await;
}

#[tokio::test]
async fn a_plugin_that_dies_within_allocate_leaves_nothing_held() {
    let mut node = Node::start(FOUR).await;
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    node.double.alive.cancel();
    node.wait(4, 0).await;
    node.plug_from(process.handle()).await;
    node.wait(4, 4).await;
    let called = Arc::new(tokio::sync::Notify::new());
    *node.double.hang.lock().unwrap() = Some(Arc::clone(&called));
    let manager = node.manager.clone();
    let admitted =
        tokio::spawn(async move { manager.admit(&pod("1", &[("c", ContainerKind::App, 3)])).await });
    called.notified().await;
    process.shutdown_background();
    let error = admitted.await.unwrap().unwrap_err();
    assert!(matches!(error, AdmissionError::Rpc { .. }), "{error}");
    node.wait(4, 0).await;
    node.plug().await;
    node.wait(4, 4).await;
    node.manager.admit(&pod("2", &[("c", ContainerKind::App, 4)])).await.unwrap();
}

#[tokio::test]
async fn a_damaged_checkpoint_is_set_aside_and_the_kubelet_starts() {
    let mut node = Node::start(FOUR).await;
    node.manager.admit(&pod("1", &[("c", ContainerKind::App, 2)])).await.unwrap();
    node.kubelet.stop().await;
    let file = options(node.folder.path()).checkpoint();
    std::fs::write(&file, "{\"Data\":").unwrap();

    node.start_kubelet();
    assert!(file.with_extension("corrupt").exists());
    node.plug().await;
    node.wait(4, 4).await;
    node.manager.admit(&pod("1", &[("c", ContainerKind::App, 2)])).await.unwrap();
}

#[tokio::test]
async fn pods_keep_their_devices_across_a_kubelet_restart() {
    let mut node = Node::start(FOUR).await;
    let request = pod("1", &[("c", ContainerKind::App, 2)]);
    node.manager.admit(&request).await.unwrap();
    let before = node.manager.container("1", "c");
    node.kubelet.stop().await;

    node.start_kubelet();
    assert!(!node.socket().exists(), "a restart deletes the plugins' sockets");
    assert_eq!(node.manager.counts()[GPU], Count { capacity: 0, allocatable: 0 });
    node.manager.admit(&request).await.unwrap();
    assert_eq!(node.manager.container("1", "c"), before);
    node.plug().await;
    node.wait(4, 4).await;
    let error = node.manager.admit(&pod("2", &[("c", ContainerKind::App, 3)])).await.unwrap_err();
    assert!(error.to_string().ends_with("Requested: 3, Available: 2"), "{error}");
    node.manager.retain(&BTreeSet::new());
    node.manager.admit(&pod("2", &[("c", ContainerKind::App, 3)])).await.unwrap();
}

#[tokio::test]
async fn podresources_tells_which_container_has_which_device() {
    let node = Node::start(FOUR).await;
    node.manager
        .admit(&pod("1", &[("c", ContainerKind::App, 1), ("d", ContainerKind::App, 0)]))
        .await
        .unwrap();
    let socket = options(node.folder.path()).pod_resources_socket();
    let channel =
        Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap().connect().await.unwrap();
    let mut client = PodResourcesListerClient::new(channel);
    let listed = client.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].containers[0].devices[0].device_ids, ["GPU-d"]);
    assert!(listed[0].containers[1].devices.is_empty());
    let missing = GetPodResourcesRequest { pod_name: "none".to_owned(), pod_namespace: "default".to_owned() };
    assert_eq!(client.get(missing).await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn a_socket_path_that_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("x".repeat(90));
    let error = DeviceManager::start(options(&deep), Tasks::default()).unwrap_err();
    assert!(error.to_string().contains("too long for a Unix socket: at most 107"), "{error}");
}
