//! A kubelet double, written from the device plugin protocol: the registration server, and the client of each plugin.
//!
//! Like the kubelet it empties its folder at its start, dials an endpoint when that registers, keeps one ListAndWatch
//! stream for each plugin, and reports no healthy device once the stream has ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use gantry_proto::deviceplugin as api;
use gantry_proto::deviceplugin::device_plugin_client::DevicePluginClient;
use gantry_proto::deviceplugin::registration_server::{Registration, RegistrationServer};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// Devices of a resource by id, with their health; and how often it was registered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) registrations: usize,
    pub(crate) endpoint: String,
    pub(crate) connected: bool,
    pub(crate) devices: BTreeMap<String, String>,
    pub(crate) numa: BTreeMap<String, i64>,
    /// How many lists came.
    pub(crate) lists: usize,
    /// The fewest healthy devices of any list with devices, and of any that came after one, but for an empty list at the end.
    pub(crate) lowest: usize,
    /// Whether the plugin wants to be asked which devices it prefers.
    pub(crate) asks_preference: bool,
}

impl Resource {
    pub(crate) fn healthy(&self) -> usize {
        self.devices.values().filter(|health| *health == api::HEALTHY).count()
    }
}

pub(crate) type Resources = BTreeMap<String, Resource>;

#[derive(Debug)]
pub(crate) struct Kubelet {
    folder: PathBuf,
    resources: watch::Receiver<Resources>,
    tasks: JoinSet<()>,
}

#[derive(Debug)]
struct Server {
    folder: PathBuf,
    resources: Arc<watch::Sender<Resources>>,
    streams: Arc<Mutex<JoinSet<()>>>,
    /// Refuses this many registrations first.
    refusals: Mutex<usize>,
}

impl Kubelet {
    /// Starts in a folder, as after a boot or a restart.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_refusing(folder, 0)
    }

    pub(crate) fn start_refusing(folder: &Path, refusals: usize) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        for entry in std::fs::read_dir(folder).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let listener = UnixListener::bind(folder.join(api::KUBELET_SOCKET)).unwrap();
        let (sender, resources) = watch::channel(Resources::new());
        let server = Server {
            folder: folder.to_path_buf(),
            resources: Arc::new(sender),
            streams: Arc::default(),
            refusals: Mutex::new(refusals),
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            tonic::transport::Server::builder()
                .add_service(RegistrationServer::new(server))
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .unwrap();
        });
        Self { folder: folder.to_path_buf(), resources, tasks }
    }

    /// Ends at once, leaving its socket's file behind, as a kubelet that is killed.
    pub(crate) async fn kill(mut self) {
        self.tasks.shutdown().await;
    }

    /// Waits until the resources are as wanted.
    pub(crate) async fn until(&self, wanted: impl FnMut(&Resources) -> bool) -> Resources {
        self.resources.clone().wait_for(wanted).await.unwrap().clone()
    }

    /// Waits until a resource has this many devices, this many of them healthy.
    pub(crate) async fn devices(&self, resource: &str, all: usize, healthy: usize) -> Resource {
        let is = |resource: &Resource| {
            resource.connected && resource.devices.len() == all && resource.healthy() == healthy
        };
        self.until(|known| known.get(resource).is_some_and(is)).await.remove(resource).unwrap()
    }

    pub(crate) async fn plugin(&self, endpoint: &str) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(dial(self.folder.join(endpoint)).await.unwrap())
    }
}

async fn dial(path: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await
}

#[tonic::async_trait]
impl Registration for Server {
    async fn register(&self, request: Request<api::RegisterRequest>) -> Result<Response<api::Empty>, Status> {
        {
            let mut refusals = self.refusals.lock().unwrap();
            if *refusals > 0 {
                *refusals -= 1;
                return Err(Status::unavailable("the device manager is not ready"));
            }
        }
        let request = request.into_inner();
        if request.version != api::VERSION || request.endpoint.contains('/') {
            return Err(Status::invalid_argument("requested API version is not supported by kubelet"));
        }
        let resource = request.resource_name;
        self.resources.send_modify(|known| {
            let entry = known.entry(resource.clone()).or_default();
            entry.registrations += 1;
            entry.endpoint.clone_from(&request.endpoint);
        });
        let registered = request.options;
        let path = self.folder.join(&request.endpoint);
        let resources = Arc::clone(&self.resources);
        self.streams.lock().unwrap().spawn(async move {
            let mut client = DevicePluginClient::new(dial(path).await.unwrap());
            let options = client.get_device_plugin_options(api::Empty {}).await.unwrap().into_inner();
            assert_eq!(Some(options), registered, "what is registered and what is answered");
            resources.send_modify(|known| {
                known.get_mut(&resource).unwrap().asks_preference =
                    options.get_preferred_allocation_available;
            });
            let mut stream = client.list_and_watch(api::Empty {}).await.unwrap().into_inner();
            while let Ok(Some(list)) = stream.message().await {
                resources.send_modify(|known| {
                    let entry = known.get_mut(&resource).unwrap();
                    entry.connected = true;
                    entry.lists += 1;
                    entry.numa = list
                        .devices
                        .iter()
                        .filter_map(|d| Some((d.id.clone(), d.topology.as_ref()?.nodes.first()?.id)))
                        .collect();
                    // An empty list is final, or a fault that the next one brings to light.
                    let emptied = entry.lists > 1 && entry.devices.is_empty();
                    entry.devices = list.devices.into_iter().map(|d| (d.id, d.health)).collect();
                    if entry.lists == 1 {
                        entry.lowest = entry.healthy();
                    } else if emptied {
                        entry.lowest = 0;
                    } else if !entry.devices.is_empty() {
                        entry.lowest = entry.lowest.min(entry.healthy());
                    }
                });
            }
            resources.send_modify(|known| {
                let entry = known.get_mut(&resource).unwrap();
                entry.connected = false;
                entry.devices.values_mut().for_each(|health| api::UNHEALTHY.clone_into(health));
            });
        });
        Ok(Response::new(api::Empty {}))
    }
}
