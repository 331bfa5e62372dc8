//! The gRPC service that the kubelet calls.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use gantry_kit::CancellationToken;
use gantry_proto::deviceplugin as api;
use gantry_proto::deviceplugin::device_plugin_server::DevicePlugin;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use crate::handle::Shared;
use crate::{IdentityMode, cdi};

/// What the kubelet has to call. With assignments it makes no difference which slots it chooses, so it need not ask.
pub(crate) fn options(mode: IdentityMode) -> api::DevicePluginOptions {
    api::DevicePluginOptions {
        pre_start_required: false,
        get_preferred_allocation_available: mode == IdentityMode::Kubelet,
    }
}

pub(crate) struct Plugin {
    shared: Arc<Shared>,
    /// Ends the streams.
    stop: CancellationToken,
}

impl Plugin {
    pub(crate) fn new(shared: Arc<Shared>, stop: CancellationToken) -> Self {
        Self { shared, stop }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<api::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        Ok(Response::new(options(self.shared.state().mode)))
    }

    /// The whole list at once and after every change. Each stream has a receiver of its own, so none takes another's news;
    /// a slow reader skips lists that are out of date, never the newest.
    async fn list_and_watch(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let lists = WatchStream::new(self.shared.devices.subscribe())
            .map(|devices| Ok(api::ListAndWatchResponse { devices: (*devices).clone() }))
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
            let device_i_ds = state.preferred(&available, &must, container.allocation_size)?;
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
        let answer = |container: api::ContainerAllocateRequest| -> Result<_, crate::Error> {
            let gpus = state.allocate(&container.devices_ids)?;
            let mut response = api::ContainerAllocateResponse::default();
            // Which GPU a slot means is decided when the container is created; only then is it injected.
            if state.mode == IdentityMode::Kubelet {
                for gpu in gpus {
                    let name = cdi::plugin_device(&gpu.id)?.to_string();
                    response.cdi_devices.push(api::CdiDevice { name });
                }
            }
            Ok(response)
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
        self.shared.state().allocate(&request.into_inner().devices_ids)?;
        Ok(Response::new(api::PreStartContainerResponse {}))
    }
}
