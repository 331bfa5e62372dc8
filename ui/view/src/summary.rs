//! A cluster in a handful of numbers.

use kube::Client;
use serde::Serialize;

use crate::snapshot::phase;
use crate::{Error, Snapshot};

/// How a cluster is, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Nodes.
    pub nodes: usize,
    /// Nodes whose condition Ready is True.
    pub nodes_ready: usize,
    /// GPUs that agents report.
    pub gpus: usize,
    /// GPUs that a container has.
    pub gpus_assigned: usize,
    /// GPUs that new work may not use.
    pub gpus_unhealthy: usize,
    /// Pods in phase Running.
    pub pods_running: usize,
    /// Pods in phase Pending.
    pub pods_pending: usize,
    /// Pods in phase Failed.
    pub pods_failed: usize,
}

impl Summary {
    /// Looks at the cluster.
    ///
    /// # Errors
    /// Where the cluster does not answer.
    pub async fn load(client: &Client) -> Result<Self, Error> {
        Ok(Snapshot::load(client).await?.summary())
    }
}

impl Snapshot {
    /// The snapshot in numbers.
    pub fn summary(&self) -> Summary {
        let gpus = self.gpus();
        let ready = self.nodes.iter().filter(|node| {
            node.status
                .as_ref()
                .and_then(|status| status.conditions.as_ref())
                .is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
        });
        let in_phase = |wanted: &str| self.pods.iter().filter(|pod| phase(pod) == wanted).count();
        Summary {
            nodes: self.nodes.len(),
            nodes_ready: ready.count(),
            gpus: gpus.len(),
            gpus_assigned: gpus.iter().filter(|gpu| !gpu.pods.is_empty()).count(),
            gpus_unhealthy: gpus.iter().filter(|gpu| !gpu.healthy).count(),
            pods_running: in_phase("Running"),
            pods_pending: in_phase("Pending"),
            pods_failed: in_phase("Failed"),
        }
    }
}
