//! The gRPC service that the kubelet calls, one for each resource.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use gantry_kit::CancellationToken;
use gantry_nri::State as Nri;
use gantry_proto::deviceplugin as api;
use gantry_proto::deviceplugin::device_plugin_server::DevicePlugin;
use gantry_shim::devices_annotation;
use tokio::time::timeout;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use crate::handle::Shared;
use crate::response::response;
use crate::{Error, IdentityMode};

/// How long `PreStartContainer` waits for the container runtime. The kubelet waits 30 s.
const PRE_START: Duration = Duration::from_secs(25);

pub(crate) struct Plugin {
    shared: Arc<Shared>,
    resource: Arc<str>,
    /// What was registered, which is what is answered.
    options: api::DevicePluginOptions,
    /// Ends the streams.
    stop: CancellationToken,
}

/// What the kubelet has to call. With assignments it makes no difference which slots it chooses, so it need not ask where there are
/// none but slots. Where the runtime has to ask before a container is created, the kubelet asks first whether it will.
pub(crate) fn options(shared: &Shared, resource: &str) -> api::DevicePluginOptions {
    let state = shared.state();
    api::DevicePluginOptions {
        pre_start_required: shared.choice.nri,
        // What is registered cannot follow a mode that changes.
        get_preferred_allocation_available: shared.choice.auto
            || state.mode == IdentityMode::Kubelet
            || !state.has_slots_alone(resource),
    }
}

impl Plugin {
    pub(crate) fn new(
        shared: Arc<Shared>,
        resource: Arc<str>,
        options: api::DevicePluginOptions,
        stop: CancellationToken,
    ) -> Self {
        Self { shared, resource, options, stop }
    }

    /// Waits until the container runtime asks the agent: without, a container would be created without what its slots stand for.
    async fn hold(&self, devices: &[String]) -> Result<(), Error> {
        let mut nri = self.shared.nri.subscribe();
        let _ = self.stop.run_until_cancelled(timeout(PRE_START, nri.wait_for(Nri::is_connected))).await;
        let why = match &*self.shared.nri.borrow() {
            Nri::Connected { .. } => return Ok(()),
            Nri::Away { since, why } => format!("since {since:.0}: {why}"),
        };
        let error = Error::NotAsked { devices: devices.join(","), why };
        self.shared.log.write(format!("Held up a container: {error}"));
        Err(error)
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        Ok(Response::new(self.options))
    }

    /// The whole list at once and after every change. Each stream has a receiver of its own, so none takes another's news;
    /// a slow reader skips lists that are out of date, never the newest.
    async fn list_and_watch(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let resource = Arc::clone(&self.resource);
        let mut told: Option<Vec<api::Device>> = None;
        let lists = WatchStream::new(self.shared.devices.subscribe())
            .filter_map(move |lists| {
                let devices = lists.get(&resource).cloned().unwrap_or_default();
                // Another resource has changed.
                let news = told.as_ref() != Some(&devices);
                if news {
                    told = Some(devices.clone());
                }
                std::future::ready(news.then_some(Ok(api::ListAndWatchResponse { devices })))
            })
            .take_until(self.stop.clone().cancelled_owned());
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<api::PreferredAllocationResponse>, Status> {
        let mut state = self.shared.state();
        let answer = |container: api::ContainerPreferredAllocationRequest| {
            let (available, must) = (container.available_device_i_ds, container.must_include_device_i_ds);
            let device_i_ds =
                state.preferred(&self.resource, &available, &must, container.allocation_size)?;
            Ok(api::ContainerPreferredAllocationResponse { device_i_ds })
        };
        let requests = request.into_inner().container_requests;
        let container_responses = requests.into_iter().map(answer).collect::<Result<_, crate::Error>>()?;
        Ok(Response::new(api::PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<api::AllocateRequest>,
    ) -> Result<Response<api::AllocateResponse>, Status> {
        let state = self.shared.state();
        let host = Shared::host(state.config());
        let answer = |container: api::ContainerAllocateRequest| -> Result<_, crate::Error> {
            let parts = state.allocate(&self.resource, &container.devices_ids)?;
            // Which GPU a slot means is decided when the container is created; only then is it injected.
            let mut answer = match &parts[..] {
                [] => api::ContainerAllocateResponse::default(),
                parts => response(state.config(), &self.resource, parts, &host)?,
            };
            let key = devices_annotation(&self.resource);
            answer.annotations.insert(key, container.devices_ids.join(","));
            Ok(answer)
        };
        let requests = request.into_inner().container_requests;
        let container_responses = requests.into_iter().map(answer).collect::<Result<_, crate::Error>>()?;
        self.shared.allocated.notify_one();
        Ok(Response::new(api::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        let devices = request.into_inner().devices_ids;
        let slots = self.shared.state().pre_start(&devices)?;
        if slots && self.options.pre_start_required {
            self.hold(&devices).await?;
        }
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}
