//! The CustomResourceDefinition of `GpuNode`.

use k8s_openapi::Resource as _;
use serde_json::{Value, json};

use super::{choice, column, count, list, object, string};
use crate::{GROUP, GpuNode, VERSION};

pub(super) fn crd() -> Value {
    let plural = GpuNode::URL_PATH_SEGMENT;
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": GpuNode::KIND,
                "listKind": format!("{}List", GpuNode::KIND),
                "plural": plural,
                "singular": "gpunode",
                "shortNames": ["gn"],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": [
                    column("GPUs", "integer", ".status.gpuCount", 0),
                    column("Healthy", "integer", ".status.healthyGpuCount", 0),
                    column("Product", "string", ".status.gpus[0].product", 0),
                    column("Driver", "string", ".status.driverVersion", 0),
                    column("CUDA", "string", ".status.cudaVersion", 1),
                    column("Mode", "string", ".status.mode", 1),
                    column("Age", "date", ".metadata.creationTimestamp", 0),
                ],
                "schema": { "openAPIV3Schema": schema() },
            }],
        },
    })
}

fn schema() -> Value {
    object(
        "The GPUs of one node, as its agent reports them. The name is the node's.",
        &[],
        json!({
            "apiVersion": string("Version of this representation of the object."),
            "kind": string("Kind of the object."),
            "metadata": { "type": "object" },
            "status": status(),
        }),
    )
}

fn status() -> Value {
    object(
        "What the agent reports.",
        &[],
        json!({
            "driverVersion": string("Version of the kernel driver."),
            "cudaVersion": string("Highest CUDA version that the driver serves."),
            "mode": choice(
                "Who decides which GPU a container gets: the scheduler's assignment, or the kubelet.",
                &["Assignment", "Kubelet"],
            ),
            "gpuCount": count("Number of GPUs."),
            "healthyGpuCount": count("Number of GPUs that new work may use."),
            "gpus": list("The GPUs by index.", gpu(), &["id"]),
            "links": list(
                "How the GPUs are connected. A pair that is not named is connected through the CPUs.",
                link(),
                &[],
            ),
            "allocatable": {
                "type": "object",
                "description": "What the agent offers to the kubelet, by resource name.",
                "additionalProperties": { "type": "integer", "format": "int64", "minimum": 0 },
            },
            "inUse": list("Which container uses which GPUs, as seen on the node.", in_use(), &[]),
        }),
    )
}

fn gpu() -> Value {
    let required =
        ["id", "index", "minor", "product", "memoryMiB", "pciBusId", "computeCapability", "health"];
    object(
        "One GPU.",
        &required,
        json!({
            "id": string("UUID of the GPU."),
            "index": count("Index on the node, from 0, in the order of the PCI bus."),
            "minor": count("The number in /dev/nvidia<minor>."),
            "product": string("Product name."),
            "memoryMiB": { "type": "integer", "format": "int64", "minimum": 0, "description": "Total memory in MiB." },
            "pciBusId": string("PCI address."),
            "numaNode": count("NUMA node, where the machine says so."),
            "computeCapability": string("CUDA compute capability, such as 8.0."),
            "migCapable": { "type": "boolean", "description": "Whether the hardware can be partitioned (MIG)." },
            "health": choice("Whether new work may use the GPU.", &["Healthy", "Unhealthy"]),
            "fault": object(
                "What is wrong with an unhealthy GPU.",
                &["kind", "message"],
                json!({
                    "kind": choice("Kind of fault.", &["Xid", "Lost", "DoubleBitEcc", "RowRemapPending"]),
                    "xid": count("Number of the XID error."),
                    "message": string("One sentence for an operator."),
                }),
            ),
        }),
    )
}

fn link() -> Value {
    object(
        "Pairs of GPUs that are connected in the same way.",
        &["kind", "gbPerSecond", "pairs"],
        json!({
            "kind": string("As in `nvidia-smi topo -m`: SYS, NODE, PHB, PXB, PIX, or NV and the number of lanes."),
            "gbPerSecond": count("Bandwidth in GB/s, both directions together."),
            "pairs": list("Pairs of indices, lower first, such as 0-1.", json!({ "type": "string" }), &[]),
        }),
    )
}

fn in_use() -> Value {
    object(
        "The GPUs that a container uses.",
        &["namespace", "pod", "container", "gpus"],
        json!({
            "namespace": string("Namespace of the pod."),
            "pod": string("Name of the pod."),
            "container": string("Name of the container."),
            "gpus": list("Ids of the GPUs.", json!({ "type": "string" }), &[]),
        }),
    )
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use crate::GpuNodeStatus;

    #[test]
    fn the_crd_names_every_field_of_the_status() {
        let status = serde_json::to_value(GpuNodeStatus {
            allocatable: [("nvidia.com/gpu".to_owned(), 1)].into(),
            links: vec![crate::LinkGroup { kind: "SYS".into(), gb_per_second: 1, pairs: vec![] }],
            in_use: vec![crate::ContainerGpus {
                namespace: String::new(),
                pod: String::new(),
                container: String::new(),
                gpus: vec![],
            }],
            ..GpuNodeStatus::default()
        })
        .unwrap();
        let fields: Vec<_> = status.as_object().unwrap().keys().collect();
        let schema = super::status();
        let properties: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
        assert_eq!(fields, properties);
    }
}
