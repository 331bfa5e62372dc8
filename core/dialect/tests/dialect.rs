//! Pods as people write them.
#![allow(clippy::unwrap_used, reason = "tests")]

use gantry_dialect::{advice, parse, parse_bound, parse_node};
use gantry_model::{Reason, SharingVocabulary, TaintEffect, Test};
use proptest::prelude::*;
use serde_json::{Value, json};

fn with_resources(resources: &Value) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "ml", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": resources}]},
    })
}

fn refusal(resources: &Value) -> String {
    parse(&with_resources(resources)).unwrap_err().to_string()
}

#[test]
fn a_limit_is_enough() {
    let request = parse(&with_resources(&json!({
        "limits": {"nvidia.com/gpu": 2, "memory": "8Gi", "cpu": "4"},
        "requests": {"memory": "4Gi", "cpu": "1500m"},
    })))
    .unwrap();
    assert_eq!((request.gpus, request.containers[0].gpus), (2, 2));
    assert_eq!((request.total.cpu_milli, request.total.memory_bytes, request.total.pods), (1500, 4 << 30, 1));
    assert!(request.total.extended.is_empty(), "GPUs are devices, not an amount");
    assert_eq!((&*request.pod.namespace, request.created_s), ("ml", 1_767_225_600));
    assert_eq!(&*request.scheduler_name, "default-scheduler");
}

#[test]
fn the_rules_of_extended_resources_are_kubernetes_rules() {
    for (resources, expected) in [
        (
            json!({"requests": {"nvidia.com/gpu": 1}}),
            "G2001 limit-missing: spec.containers[0].resources.limits[nvidia.com/gpu]: required: an extended resource \
             needs a limit, and its request defaults to it",
        ),
        (
            json!({"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": "2"}}),
            "G2002 request-differs-from-limit: spec.containers[0].resources.requests[nvidia.com/gpu]: invalid value \
             \"1\": must equal the limit \"2\"; leave the request out",
        ),
        (
            json!({"limits": {"nvidia.com/gpu": "0.5"}}),
            "G2003 not-an-integer: spec.containers[0].resources.limits[nvidia.com/gpu]: invalid value \"500m\": must be \
             an integer",
        ),
        (
            json!({"limits": {"nvidia.com/gpu": -1}}),
            "G2004 amount-out-of-range: spec.containers[0].resources.limits[nvidia.com/gpu]: invalid value \"-1\": must \
             be an amount from 0 that can be counted",
        ),
        (
            json!({"limits": {"nvidia.com/gpu": "8G"}}),
            "G2004 amount-out-of-range: spec.containers[0].resources.limits[nvidia.com/gpu]: invalid value \"8G\": must \
             be an amount from 0 that can be counted",
        ),
    ] {
        assert_eq!(refusal(&resources), expected);
    }
    assert!(refusal(&json!({"limits": {"nvidia.com/gpu": "one"}})).starts_with("G2005 invalid-field"));
    assert!(refusal(&json!({"limits": ["nvidia.com/gpu"]})).starts_with("G2005 invalid-field"));
    let equal = json!({"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": 1}});
    assert_eq!(parse(&with_resources(&equal)).unwrap().gpus, 1);
}

#[test]
fn init_containers_and_sidecars_are_counted_as_kubernetes_counts_them() {
    let container =
        |gpus: u32| json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": gpus}}});
    let mut sidecar = container(1);
    sidecar["restartPolicy"] = "Always".into();
    let pod = json!({"spec": {
        "initContainers": [container(2), sidecar, container(4)],
        "containers": [container(1), container(2)],
    }});
    let request = parse(&pod).unwrap();
    assert_eq!(
        (request.gpus, request.total.cpu_milli),
        (5, 5000),
        "an init container of 4 beside a sidecar of 1"
    );
}

#[test]
fn names_of_sharing_are_recognised_and_stay_extended_resources() {
    for (name, meaning) in [
        ("nvidia.com/gpumem", SharingVocabulary::Memory),
        ("nvidia.com/gpu-memory", SharingVocabulary::Memory),
        ("nvidia.com/gpumem-percentage", SharingVocabulary::MemoryPercent),
        ("nvidia.com/gpucores", SharingVocabulary::Compute),
        ("nvidia.com/gpu-core", SharingVocabulary::Compute),
        ("volcano.sh/vgpu-number", SharingVocabulary::Shares),
        ("nvidia.com/gpu.shared", SharingVocabulary::TimeSlices),
        ("nvidia.com/mig-1g.5gb", SharingVocabulary::Partition),
    ] {
        let request = parse(&with_resources(&json!({"limits": {name: 3}}))).unwrap();
        let origin = &request.origins[name];
        assert_eq!((request.gpus, request.total.extended[name], origin.vocabulary), (0, 3, Some(meaning)));
        assert_eq!(origin.field, format!("spec.containers[0].resources.limits[{name}]"));
    }
    let other = parse(&with_resources(&json!({"limits": {"example.com/fpga": 1}}))).unwrap();
    assert_eq!(other.origins["example.com/fpga"].vocabulary, None);
}

#[test]
fn constraints_are_read_in_full() {
    let pod = json!({"spec": {
        "nodeSelector": {"gpu-topology": "nvlink4"},
        "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "In", "values": ["A", "B"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
            ]},
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 7, "preference": {"matchExpressions": [{"key": "n", "operator": "Gt", "values": ["3"]}]}},
            ],
        }},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "k", "value": "v"},
        ],
        "schedulingGates": [{"name": "g"}],
        "priority": -5, "nodeName": "n", "schedulerName": "gantry-scheduler",
    }});
    let request = parse(&pod).unwrap();
    let required = request.constraints.required.unwrap();
    assert_eq!((required.len(), required[1].name.len()), (2, 1));
    assert_eq!(request.constraints.preferred[0].0, 7);
    assert_eq!(request.constraints.preferred[0].1.labels[0].test, Test::Gt(3));
    assert_eq!(request.tolerations[0].effect, Some(TaintEffect::NoSchedule));
    assert_eq!(request.tolerations[1].value.as_deref(), Some("v"));
    assert_eq!((request.priority, request.node_name.as_deref(), request.gates.len()), (-5, Some("n"), 1));
}

#[test]
fn a_broken_constraint_is_refused_by_field() {
    for (spec, field) in [
        (json!({"nodeSelector": {"a": 1}}), "spec.nodeSelector[a]"),
        (json!({"nodeSelector": "a"}), "spec.nodeSelector"),
        (json!({"tolerations": [{"operator": "Equal"}]}), "spec.tolerations[0].operator"),
        (json!({"tolerations": [{"key": "k", "effect": "Never"}]}), "spec.tolerations[0].effect"),
        (json!({"priority": 1_u64 << 40}), "spec.priority"),
        (json!({"containers": {}}), "spec.containers"),
        (
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Near"}]}]}}}}),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]\
             .matchExpressions[0].operator",
        ),
    ] {
        match parse(&json!({ "spec": spec })) {
            Err(Reason::InvalidField { field: found, .. }) => assert_eq!(found, field),
            other => panic!("{spec}: {other:?}"),
        }
    }
}

#[test]
fn a_node_is_read_without_its_gpus() {
    let node = parse_node(&json!({
        "metadata": {"name": "gpu-0", "labels": {"zone": "a"}},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}], "unschedulable": true},
        "status": {
            "allocatable": {"cpu": "63500m", "memory": "250Gi", "pods": "110", "nvidia.com/gpu": "8", "hugepages-2Mi": "0"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }))
    .unwrap();
    assert_eq!((node.allocatable_gpus, node.gpus.len(), node.allocatable.cpu_milli), (8, 0, 63_500));
    assert!(node.ready && node.unschedulable);
    assert_eq!(node.taints[0].to_string(), "nvidia.com/gpu:NoSchedule");
    assert!(parse_node(&json!({})).is_err());
}

fn codes(container: &Value, volumes: &Value) -> Vec<&'static str> {
    let pod = json!({"spec": {"containers": [container], "volumes": volumes}});
    advice(&pod).iter().map(|advice| advice.entry().code).collect()
}

#[test]
fn advice_is_given_where_an_author_is_mistaken_and_only_there() {
    let gpu = |more: Value| {
        let mut limits = json!({"nvidia.com/gpu": 1});
        limits.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"name": "c", "resources": {"limits": limits}})
    };
    let whole = || gpu(json!({"cpu": "4", "memory": "8Gi"}));
    let with = |field: &str, value: Value| {
        let mut container = whole();
        container[field] = value;
        container
    };
    let env = |name: &str, value: &str| with("env", json!([{"name": name, "value": value}]));
    for (container, volumes, expected) in [
        (whole(), json!([]), vec![]),
        (gpu(json!({"memory": "8Gi"})), json!([]), vec!["G4001"]),
        (gpu(json!({})), json!([]), vec!["G4005"]),
        (json!({"image": "nvcr.io/nvidia/k8s-device-plugin:v0.14.0"}), json!([]), vec!["G4002"]),
        (json!({"image": "registry:5000/nvidia/k8s-device-plugin@sha256:0"}), json!([]), vec!["G4002"]),
        (json!({"image": "example.com/k8s-device-plugin-tests:v1"}), json!([]), vec![]),
        (env("CUDA_VISIBLE_DEVICES", "0,1"), json!([]), vec!["G4003"]),
        (env("NVIDIA_VISIBLE_DEVICES", "all"), json!([]), vec!["G4003"]),
        (env("NVIDIA_VISIBLE_DEVICES", "void"), json!([]), vec![]),
        (with("securityContext", json!({"privileged": true})), json!([]), vec!["G4004"]),
        (whole(), json!([{"hostPath": {"path": "/dev"}}]), vec!["G4004"]),
        (json!({}), json!([{"hostPath": {"path": "/dev/nvidia0"}}]), vec!["G4004"]),
        (json!({}), json!([{"hostPath": {"path": "/dev"}}]), vec![]),
    ] {
        assert_eq!(codes(&container, &volumes), expected, "{container} {volumes}");
    }
    let pod = json!({"spec": {"containers": [gpu(json!({"memory": "8Gi"}))]}});
    let text = advice(&pod)[0].to_string();
    let field = "nvidia.com/gpumem (MiB) is the field for a part of it, which this release does not serve";
    assert!(text.contains("8Gi is host memory") && text.contains(field), "{text}");
}

/// Any JSON, with the words of pods in it so that it gets far.
fn anything() -> impl Strategy<Value = Value> {
    const WORDS: [&str; 22] = [
        "metadata",
        "spec",
        "name",
        "containers",
        "initContainers",
        "resources",
        "limits",
        "requests",
        "nvidia.com/gpu",
        "cpu",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
        "matchExpressions",
        "key",
        "operator",
        "values",
        "tolerations",
        "status",
        "allocatable",
        "creationTimestamp",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[-0-9a-zA-Z.:]{0,12}".prop_map(Value::from),
        prop::sample::select(vec!["In", "Exists", "1", "8Gi", "9999-99-99T99:99:99Z"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 96, 6, |inner| {
        let word = prop::sample::select(&WORDS[..]).prop_map(str::to_owned);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(word, inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_json_panics(value in anything()) {
        let _ = (parse(&value), parse_node(&value), advice(&value));
        let pod = json!({
            "metadata": {"annotations": value.clone()},
            "spec": {"containers": [value.clone()], "affinity": value.clone(), "tolerations": [value]},
        });
        // Whatever is good enough for a pod that waits is good enough for one that has its node.
        prop_assert!(parse(&pod).is_err() || parse_bound(&pod).is_ok());
    }
}
