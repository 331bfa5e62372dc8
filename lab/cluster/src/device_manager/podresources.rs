//! The podresources service (v1): which container has which device.

use gantry_proto::podresources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use gantry_proto::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse,
    NumaNode, PodResources, TopologyInfo,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::sockets::listen;
use super::{DeviceManager, PodRequest, State};
use crate::Error;

/// Serves until the kubelet stops.
pub(super) fn serve(manager: DeviceManager) -> Result<(), Error> {
    let path = manager.0.options.pod_resources_socket();
    let listener = listen(&path)?;
    let tasks = manager.0.tasks.clone();
    let stopped = tasks.token().clone().cancelled_owned();
    tasks.spawn(async move {
        let served = Server::builder()
            .add_service(PodResourcesListerServer::new(Service(manager)))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped)
            .await;
        if let Err(error) = served {
            tracing::warn!(%error, "the podresources service ended");
        }
    });
    Ok(())
}

struct Service(DeviceManager);

#[tonic::async_trait]
impl PodResourcesLister for Service {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let state = self.0.state();
        let pod_resources = state.pods.values().map(|pod| state.pod_resources(pod)).collect();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let state = self.0.state();
        let devices = state
            .resources
            .iter()
            .flat_map(|(resource, known)| {
                known.devices.iter().map(move |(id, device)| (resource, id, device))
            })
            .filter(|(_, _, device)| device.healthy)
            .map(|(resource, id, device)| ContainerDevices {
                resource_name: resource.clone(),
                device_ids: vec![id.clone()],
                topology: topology(&device.numa),
            })
            .collect();
        Ok(Response::new(AllocatableResourcesResponse { devices, ..Default::default() }))
    }

    async fn get(
        &self,
        request: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        let request = request.into_inner();
        let state = self.0.state();
        let pod = state
            .pods
            .values()
            .find(|pod| pod.namespace == request.pod_namespace && pod.name == request.pod_name)
            .ok_or_else(|| {
                Status::not_found(format!(
                    "pod {} in namespace {} not found",
                    request.pod_name, request.pod_namespace
                ))
            })?;
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(state.pod_resources(pod)) }))
    }
}

impl State {
    fn pod_resources(&self, pod: &PodRequest) -> PodResources {
        let entries = self.assigned.get(&pod.uid);
        let containers = pod
            .containers
            .iter()
            .map(|container| ContainerResources {
                name: container.name.clone(),
                devices: entries
                    .into_iter()
                    .flatten()
                    .filter(|((name, _), _)| *name == container.name)
                    .flat_map(|((_, resource), assigned)| assigned.ids.iter().map(move |id| (resource, id)))
                    .map(|(resource, id)| ContainerDevices {
                        resource_name: resource.clone(),
                        device_ids: vec![id.clone()],
                        topology: self
                            .resources
                            .get(resource)
                            .and_then(|known| known.devices.get(id))
                            .and_then(|device| topology(&device.numa)),
                    })
                    .collect(),
                ..Default::default()
            })
            .collect();
        PodResources {
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            containers,
            ..Default::default()
        }
    }
}

fn topology(numa: &[i64]) -> Option<TopologyInfo> {
    (!numa.is_empty()).then(|| TopologyInfo { nodes: numa.iter().map(|id| NumaNode { id: *id }).collect() })
}
