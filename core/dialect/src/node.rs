//! Nodes.

use gantry_apimachinery::FieldPath;
use gantry_model::{Node, Reason, Resources, Taint, TaintEffect, Topology};
use serde_json::Value;

use crate::fields::{enter, flag, invalid, labels, list, object, quantity, text};

/// Reads a `Node` object. GPUs and their topology are left empty: Kubernetes knows only how many there are.
///
/// # Errors
/// The first field that is not what Kubernetes' API makes it.
pub fn parse_node(node: &Value) -> Result<Node, Reason> {
    let (metadata, spec, status) = (&node["metadata"], &node["spec"], &node["status"]);
    let [at_metadata, at_spec, at_status] = ["metadata", "spec", "status"].map(FieldPath::new);
    let name = text(metadata, "name", &at_metadata)?.filter(|name| !name.is_empty());
    let name =
        name.ok_or_else(|| invalid(&at_metadata.child("name"), &metadata["name"], "a node needs a name"))?;
    let mut allocatable = Resources::default();
    let mut allocatable_gpus = 0;
    let at_allocatable = at_status.child("allocatable");
    for (resource, amount) in object(status, "allocatable", &at_status)?.into_iter().flatten() {
        let path = at_allocatable.key(resource);
        enter(&mut allocatable, &mut allocatable_gpus, resource, &quantity(amount, &path)?, &path)?;
    }
    let mut taints = Vec::new();
    for (index, taint) in list(spec, "taints", &at_spec)?.iter().enumerate() {
        let path = at_spec.child("taints").index(index);
        let effect = text(taint, "effect", &path)?.and_then(TaintEffect::parse);
        taints.push(Taint {
            key: text(taint, "key", &path)?.unwrap_or_default().into(),
            value: text(taint, "value", &path)?.unwrap_or_default().into(),
            effect: effect.ok_or_else(|| {
                let rule = "must be NoSchedule, PreferNoSchedule or NoExecute";
                invalid(&path.child("effect"), &taint["effect"], rule)
            })?,
        });
    }
    let conditions = list(status, "conditions", &at_status)?;
    Ok(Node {
        name: name.into(),
        labels: labels(metadata, "labels", &at_metadata)?,
        taints,
        unschedulable: flag(spec, "unschedulable", &at_spec)?,
        ready: conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True"),
        allocatable,
        allocatable_gpus,
        gpus: Vec::new(),
        topology: Topology::default(),
    })
}
