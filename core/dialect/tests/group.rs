//! Which group a pod is placed with.

use serde_json::{Value, json};

fn pod(annotations: &Value) -> Value {
    json!({
        "metadata": {"namespace": "n", "name": "p", "annotations": annotations},
        "spec": {"containers": [{"name": "c"}]},
    })
}

#[test]
fn both_of_volcanos_annotations_name_a_group() {
    for key in ["scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"] {
        let pod = pod(&json!({key: "g", "scheduling.volcano.sh/group-min-member": "8"}));
        let group = gantry_dialect::parse(&pod).unwrap().group.unwrap();
        assert_eq!((&*group.name, group.min_members), ("n/g", 8));
    }
    assert_eq!(
        gantry_dialect::parse(&pod(&json!({"scheduling.k8s.io/group-name": ""}))).unwrap().group,
        None
    );
}

#[test]
fn a_minimum_that_is_no_number_is_refused() {
    let pod =
        pod(&json!({"scheduling.k8s.io/group-name": "g", "scheduling.volcano.sh/group-min-member": "all"}));
    let refusal = gantry_dialect::parse(&pod).unwrap_err().to_string();
    assert!(refusal.contains("metadata.annotations[scheduling.volcano.sh/group-min-member]"), "{refusal}");
    assert!(refusal.contains("must be a whole number of pods"), "{refusal}");
}

#[test]
fn what_a_bound_pod_holds_is_not_hidden_by_what_is_written_beside_it() {
    let mut pod =
        pod(&json!({"scheduling.k8s.io/group-name": "g", "scheduling.volcano.sh/group-min-member": "all"}));
    pod["spec"]["nodeName"] = "n".into();
    pod["spec"]["tolerations"] = json!([{"operator": "Perhaps"}]);
    pod["spec"]["affinity"] = json!("none");
    let bound = gantry_dialect::parse_bound(&pod).unwrap();
    assert_eq!((bound.group, bound.tolerations.len(), bound.node_name.as_deref()), (None, 0, Some("n")));
    pod["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] = "2".into();
    let group = gantry_dialect::parse_bound(&pod).unwrap().group.unwrap();
    assert_eq!((&*group.name, group.min_members), ("n/g", 2));
}
