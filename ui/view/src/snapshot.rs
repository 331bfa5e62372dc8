//! What the cluster is at one moment.

use gantry_api::GpuNode;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client};

use crate::Error;

/// Nodes, their GPUs, and pods, as listed at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// The nodes, by name.
    pub nodes: Vec<Node>,
    /// What the node agents report, by name.
    pub gpu_nodes: Vec<GpuNode>,
    /// All pods.
    pub pods: Vec<Pod>,
}

impl Snapshot {
    /// Lists what interfaces need, three requests at once.
    ///
    /// # Errors
    /// Where the cluster does not answer. A cluster without the `GpuNode` resource is one without GPUs.
    pub async fn load(client: &Client) -> Result<Self, Error> {
        // `resourceVersion=0` would be cheaper for the server; a person who looks wants the newest.
        let parameters = ListParams::default();
        let nodes = Api::<Node>::all(client.clone());
        let gpu_nodes = Api::<GpuNode>::all(client.clone());
        let pods = Api::<Pod>::all(client.clone());
        let (nodes, gpu_nodes, pods) =
            futures::join!(nodes.list(&parameters), gpu_nodes.list(&parameters), pods.list(&parameters));
        let failed = |what| move |source| Error::List { what, source: Box::new(source) };
        let gpu_nodes = match gpu_nodes {
            Ok(list) => list.items,
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => return Err(failed("gpunodes")(error)),
        };
        Ok(Self {
            nodes: nodes.map_err(failed("nodes"))?.items,
            gpu_nodes,
            pods: pods.map_err(failed("pods"))?.items,
        })
    }
}

/// Whether a pod still holds what it was given.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !matches!(phase(pod), "Succeeded" | "Failed")
}

/// The pod's phase, `Pending` before anybody reported one.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}
