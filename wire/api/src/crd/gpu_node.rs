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
            "conditions": list("What else is true of the node.", condition(), &["type"]),
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
                    "kind": choice("Kind of fault.", &["Xid", "Lost", "DoubleBitEcc", "RowRemapPending", "ResetRequired", "RebootRequired", "FabricNotReady"]),
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

fn condition() -> Value {
    object(
        "Something that is true of the node or not.",
        &["type", "status", "reason", "message", "lastTransitionTime"],
        json!({
            "type": string("What it is about: CdiFilesCurrent."),
            "status": choice("Whether it is true.", &["True", "False"]),
            "reason": string("Why, in one word."),
            "message": string("Why, and what to do."),
            "lastTransitionTime": string("When the agent saw it change, or started."),
        }),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use gantry_apimachinery::{FieldPath, Schema};
    use serde_json::{Value, json};

    use crate::{
        CDI_FILES_CURRENT, ContainerGpus, FaultStatus, GpuHealth, GpuNode, GpuNodeStatus, GpuStatus,
        IdentityMode, LinkGroup, StatusCondition,
    };

    /// An object with every field that there is.
    fn full() -> Value {
        let fault = FaultStatus { kind: "Xid".into(), xid: Some(79), message: "fell off the bus".into() };
        let gpu = GpuStatus {
            id: "GPU-0".into(),
            index: 0,
            minor: 0,
            product: "NVIDIA T4".into(),
            memory_mib: 15_360,
            pci_bus_id: "00000000:01:00.0".into(),
            numa_node: Some(0),
            compute_capability: "7.5".into(),
            mig_capable: false,
            health: GpuHealth::Unhealthy,
            fault: Some(fault),
        };
        let in_use = ContainerGpus {
            namespace: "default".into(),
            pod: "p".into(),
            container: "c".into(),
            gpus: vec!["GPU-0".into()],
        };
        let status = GpuNodeStatus {
            driver_version: "580.65.06".into(),
            cuda_version: "13.0".into(),
            mode: IdentityMode::Assignment,
            gpu_count: 1,
            healthy_gpu_count: 0,
            gpus: vec![gpu],
            links: vec![LinkGroup { kind: "SYS".into(), gb_per_second: 1, pairs: vec!["0-1".into()] }],
            allocatable: [("nvidia.com/gpu".to_owned(), 1)].into(),
            in_use: vec![in_use],
            conditions: vec![StatusCondition {
                type_: CDI_FILES_CURRENT.into(),
                status: "False".into(),
                reason: "CannotWrite".into(),
                message: "no space left".into(),
                last_transition_time: "2026-01-01T00:00:00Z".into(),
            }],
        };
        serde_json::to_value(GpuNode::new("n", status)).unwrap()
    }

    /// The paths of all fields of a value; lists count as their first item.
    fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Array(items) => fields(&items[0], path, found),
            Value::Object(object) if path != ".allocatable" => {
                for (name, value) in object {
                    let path = format!("{path}.{name}");
                    fields(value, &path, found);
                    found.insert(path);
                }
            }
            _ => {}
        }
    }

    /// The paths of all fields that a schema names.
    fn properties(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        if let Some(items) = schema.get("items") {
            properties(items, path, found);
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            properties(property, &path, found);
            found.insert(path);
        }
    }

    #[test]
    fn the_crd_keeps_and_accepts_every_field_of_the_status() {
        let schema = Schema::compile(&super::schema(), &FieldPath::new("schema")).unwrap();
        let mut object = full();
        assert_eq!(schema.prune(&mut object), Vec::<String>::new());
        assert_eq!(object, full());
        assert_eq!(schema.validate(&object, None), []);
        object["status"]["gpus"][0]["colour"] = json!("green");
        assert_eq!(schema.prune(&mut object), ["status.gpus[0].colour"], "what is not named is dropped");
    }

    #[test]
    fn the_crd_names_nothing_that_the_status_does_not_have() {
        let (mut ours, mut named) = (BTreeSet::new(), BTreeSet::new());
        fields(&full()["status"], "", &mut ours);
        properties(&super::status(), "", &mut named);
        assert_eq!(ours, named);
    }
}
