//! The gRPC service that the kubelet calls, one for each resource.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use gantry_kit::CancellationToken;
use gantry_proto::deviceplugin as api;
use gantry_proto::deviceplugin::device_plugin_server::DevicePlugin;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use crate::IdentityMode;
use crate::handle::Shared;
use crate::response::response;

pub(crate) struct Plugin {
    shared: Arc<Shared>,
    resource: Arc<str>,
    /// What was registered, which is what is answered.
    options: api::DevicePluginOptions,
    /// Ends the streams.
    stop: CancellationToken,
}

/// What the kubelet has to call. With assignments it makes no difference which slots it chooses, so it need not ask where there are
/// none but slots.
pub(crate) fn options(shared: &Shared, resource: &str) -> api::DevicePluginOptions {
    let state = shared.state();
    api::DevicePluginOptions {
        pre_start_required: false,
        get_preferred_allocation_available: state.mode == IdentityMode::Kubelet
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
            if parts.is_empty() {
                return Ok(api::ContainerAllocateResponse::default());
            }
            response(state.config(), &self.resource, &parts, &host)
        };
        let requests = request.into_inner().container_requests;
        let container_responses = requests.into_iter().map(answer).collect::<Result<_, crate::Error>>()?;
        Ok(Response::new(api::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        // Never asked for by our options; answered for a kubelet that asks nevertheless.
        self.shared.state().allocate(&self.resource, &request.into_inner().devices_ids)?;
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}
