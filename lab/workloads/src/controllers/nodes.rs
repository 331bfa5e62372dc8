//! Whether a node is one that a pod template may run on: node selector, required node affinity, taints.

use serde_json::Value;

use crate::json::Fields as _;

/// Whether the node fulfils the template's node selector and required node affinity.
pub(crate) fn fits(spec: &Value, node: &Value) -> bool {
    let selector = spec.at("/nodeSelector").as_object();
    let selected = selector
        .into_iter()
        .flatten()
        .all(|(key, value)| node.label(key).is_some() && node.label(key) == value.as_str());
    let required = spec.at("/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution");
    selected
        && (required.is_null() || required.list("/nodeSelectorTerms").iter().any(|term| matches(term, node)))
}

fn matches(term: &Value, node: &Value) -> bool {
    let (labels, fields) = (term.list("/matchExpressions"), term.list("/matchFields"));
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|requirement| accepts(requirement, node.label(requirement.text("/key"))))
        && fields.iter().all(|requirement| {
            requirement.text("/key") == "metadata.name" && accepts(requirement, Some(node.name()))
        })
}

fn accepts(requirement: &Value, value: Option<&str>) -> bool {
    let values = requirement.list("/values");
    let is_listed = value.is_some_and(|value| values.iter().any(|v| v.as_str() == Some(value)));
    let numbers = || {
        let bound: i64 = values.first()?.as_str()?.parse().ok()?;
        Some((value?.parse::<i64>().ok()?, bound))
    };
    match requirement.text("/operator") {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(number, bound)| number > bound),
        "Lt" => numbers().is_some_and(|(number, bound)| number < bound),
        _ => false,
    }
}

/// The effects of the node's taints that the tolerations do not tolerate.
pub(crate) fn untolerated<'a>(node: &'a Value, tolerations: &'a [Value]) -> impl Iterator<Item = &'a str> {
    let taints = node.list("/spec/taints").iter();
    taints.filter(|taint| !tolerations.iter().any(|t| tolerates(t, taint))).map(|taint| taint.text("/effect"))
}

fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let (effect, key) = (toleration.text("/effect"), toleration.text("/key"));
    let exists = toleration.text("/operator") == "Exists";
    (effect.is_empty() || effect == taint.text("/effect"))
        && (if key.is_empty() { exists } else { key == taint.text("/key") })
        && (exists || toleration.text("/value") == taint.text("/value"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_affinity_and_taints_are_read_as_the_scheduler_reads_them() {
        let node = json!({
            "metadata": {"name": "n1", "labels": {"gpu": "a100", "count": "8"}},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        });
        let affinity = |term: Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [term]}}}})
        };
        let expression = |key: &str, operator: &str, values: Value| {
            affinity(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        for (spec, expect) in [
            (json!({}), true),
            (json!({"nodeSelector": {"gpu": "a100"}}), true),
            (json!({"nodeSelector": {"gpu": "h100"}}), false),
            (expression("gpu", "In", json!(["a100", "h100"])), true),
            (expression("gpu", "NotIn", json!(["a100"])), false),
            (expression("zone", "DoesNotExist", json!([])), true),
            (expression("count", "Gt", json!(["4"])), true),
            (expression("count", "Lt", json!(["4"])), false),
            (affinity(json!({})), false),
            (
                affinity(
                    json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}),
                ),
                true,
            ),
        ] {
            assert_eq!(fits(&spec, &node), expect, "{spec}");
        }
        let effects = |tolerations: Value| {
            let tolerations = tolerations.as_array().cloned().unwrap_or_default();
            untolerated(&node, &tolerations).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(effects(json!([])), ["NoSchedule"]);
        assert!(effects(json!([{"operator": "Exists"}])).is_empty());
        assert!(
            effects(json!([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]))
                .is_empty()
        );
        assert_eq!(effects(json!([{"key": "nvidia.com/gpu", "value": "x"}])), ["NoSchedule"]);
    }
}
