//! The GPUs of a cluster and who has them.

use std::collections::BTreeMap;

use gantry_api::{ASSIGNMENT_ANNOTATION, GpuHealth, GpuStatus, decode_assignment};
use serde::Serialize;

use crate::snapshot::is_active;
use crate::{Error, Snapshot};

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuView {
    /// NVML's UUID.
    pub id: String,
    /// The node that it is in.
    pub node: String,
    /// NVML's index on that node.
    pub index: u32,
    /// NVML's product name.
    pub product: String,
    /// Total memory in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// PCI address.
    pub pci_bus_id: String,
    /// NUMA node, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// CUDA compute capability.
    pub compute_capability: String,
    /// Whether new work may use it.
    pub healthy: bool,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Version of the node's driver.
    pub driver_version: String,
    /// Its links to the node's other GPUs, by index: kind as in `nvidia-smi topo -m`.
    pub links: BTreeMap<u32, String>,
    /// Who has it.
    pub pods: Vec<OwnerView>,
}

/// A container that has a GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OwnerView {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The container's name.
    pub container: String,
}

impl Snapshot {
    /// Every GPU, by node and index.
    ///
    /// Owners are what assignments say of pods that have not ended, and what node agents see in use; where both
    /// speak of a container they say the same, or the agent would have refused it.
    pub fn gpus(&self) -> Vec<GpuView> {
        let owners = self.owners();
        let mut gpus = Vec::new();
        for node in &self.gpu_nodes {
            let Some(status) = &node.status else { continue };
            let name = node.metadata.name.clone().unwrap_or_default();
            for gpu in &status.gpus {
                gpus.push(GpuView {
                    id: gpu.id.clone(),
                    node: name.clone(),
                    index: gpu.index,
                    product: gpu.product.clone(),
                    memory_mib: gpu.memory_mib,
                    pci_bus_id: gpu.pci_bus_id.clone(),
                    numa_node: gpu.numa_node,
                    compute_capability: gpu.compute_capability.clone(),
                    healthy: gpu.health == GpuHealth::Healthy,
                    fault: fault(gpu),
                    driver_version: status.driver_version.clone(),
                    links: links(status, gpu.index),
                    pods: owners.get(gpu.id.as_str()).cloned().unwrap_or_default(),
                });
            }
        }
        gpus.sort_by(|a, b| (&a.node, a.index).cmp(&(&b.node, b.index)));
        gpus
    }

    /// The one GPU that a person means: a UUID, a part of it, or `NODE/INDEX`.
    ///
    /// # Errors
    /// Where no GPU fits, or several do.
    pub fn gpu(&self, text: &str) -> Result<GpuView, Error> {
        let mut fitting: Vec<GpuView> = self.gpus();
        if let Some((node, index)) = text.rsplit_once('/') {
            fitting.retain(|gpu| gpu.node == node && gpu.index.to_string() == index);
        } else {
            fitting.retain(|gpu| gpu.id.contains(text));
        }
        match fitting.len() {
            0 => Err(Error::NoGpu { text: text.to_owned() }),
            1 => Ok(fitting.remove(0)),
            count => Err(Error::ManyGpus {
                text: text.to_owned(),
                count,
                first: format!("{}/{}", fitting[0].node, fitting[0].index),
            }),
        }
    }

    fn owners(&self) -> BTreeMap<String, Vec<OwnerView>> {
        let mut owners: BTreeMap<String, Vec<OwnerView>> = BTreeMap::new();
        let mut add = |gpu: &str, owner: OwnerView| {
            let list = owners.entry(gpu.to_owned()).or_default();
            if !list.contains(&owner) {
                list.push(owner);
            }
        };
        for pod in self.pods.iter().filter(|pod| is_active(pod)) {
            let Some(text) = pod.metadata.annotations.as_ref().and_then(|all| all.get(ASSIGNMENT_ANNOTATION))
            else {
                continue;
            };
            // An annotation that somebody else damaged owns nothing; the agent's report below still does.
            let Ok(assignment) = decode_assignment(text) else { continue };
            for (container, gpus) in &assignment.containers {
                for gpu in gpus {
                    add(
                        gpu.as_str(),
                        OwnerView {
                            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
                            name: pod.metadata.name.clone().unwrap_or_default(),
                            container: container.to_string(),
                        },
                    );
                }
            }
        }
        for status in self.gpu_nodes.iter().filter_map(|node| node.status.as_ref()) {
            for user in &status.in_use {
                for gpu in &user.gpus {
                    add(
                        gpu,
                        OwnerView {
                            namespace: user.namespace.clone(),
                            name: user.pod.clone(),
                            container: user.container.clone(),
                        },
                    );
                }
            }
        }
        for list in owners.values_mut() {
            list.sort();
        }
        owners
    }
}

fn fault(gpu: &GpuStatus) -> Option<String> {
    let fault = gpu.fault.as_ref()?;
    Some(match fault.xid {
        Some(number) => format!("XID {number}: {}", fault.message),
        None => format!("{}: {}", fault.kind, fault.message),
    })
}

fn links(status: &gantry_api::GpuNodeStatus, index: u32) -> BTreeMap<u32, String> {
    let mut links: BTreeMap<u32, String> = status
        .gpus
        .iter()
        .filter(|gpu| gpu.index != index)
        // A pair that no group names is connected through the CPUs.
        .map(|gpu| (gpu.index, "SYS".to_owned()))
        .collect();
    for group in &status.links {
        for pair in &group.pairs {
            let Some((a, b)) = pair.split_once('-') else { continue };
            let (Ok(a), Ok(b)) = (a.parse::<u32>(), b.parse::<u32>()) else { continue };
            let other = if a == index { b } else { a };
            if (a == index || b == index) && links.contains_key(&other) {
                links.insert(other, group.kind.clone());
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use gantry_api::GpuNode;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn snapshot() -> Snapshot {
        let gpu = |index: u32| {
            json!({
                "id": format!("GPU-{index}a"), "index": index, "minor": index, "product": "NVIDIA L4",
                "memoryMiB": 23034, "pciBusId": "00000000:17:00.0", "computeCapability": "8.9", "health": "Healthy",
            })
        };
        let node: GpuNode = serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "status": {
                "driverVersion": "550.54.15",
                "gpus": [gpu(0), gpu(1), gpu(2)],
                "links": [{"kind": "PIX", "gbPerSecond": 64, "pairs": ["0-1"]}],
                "inUse": [{"namespace": "d", "pod": "other", "container": "c", "gpus": ["GPU-1a"]}],
            },
        }))
        .unwrap();
        let pod = |name: &str, phase: &str, gpu: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "d", "annotations": {
                    ASSIGNMENT_ANNOTATION: format!(r#"{{"v":1,"node":"n","containers":{{"c":["{gpu}"]}}}}"#),
                }},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        Snapshot {
            nodes: Vec::new(),
            gpu_nodes: vec![node],
            pods: vec![pod("one", "Running", "GPU-0a"), pod("ended", "Succeeded", "GPU-2a")],
        }
    }

    #[test]
    fn owners_come_from_assignments_and_from_agents_but_not_from_ended_pods() {
        let owners: Vec<Vec<String>> = snapshot()
            .gpus()
            .into_iter()
            .map(|gpu| gpu.pods.into_iter().map(|owner| owner.name).collect())
            .collect();
        assert_eq!(owners, [vec!["one".to_owned()], vec!["other".to_owned()], vec![]]);
    }

    #[test]
    fn a_gpu_is_found_by_part_of_its_id_or_by_place() {
        let snapshot = snapshot();
        assert_eq!(snapshot.gpu("n/2").unwrap().id, "GPU-2a");
        assert_eq!(snapshot.gpu("1a").unwrap().index, 1);
        assert!(matches!(snapshot.gpu("n/7"), Err(Error::NoGpu { .. })));
        assert!(matches!(snapshot.gpu("GPU"), Err(Error::ManyGpus { count: 3, .. })));
    }

    #[test]
    fn a_pair_that_is_not_named_is_connected_through_the_cpus() {
        let links = snapshot().gpus()[0].links.clone();
        assert_eq!(links, BTreeMap::from([(1, "PIX".to_owned()), (2, "SYS".to_owned())]));
    }
}
