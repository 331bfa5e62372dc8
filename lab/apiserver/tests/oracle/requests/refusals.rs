//! What is refused, and in which words.

use serde_json::{Value, json};

use super::{DEPLOYMENTS, MAPS, PODS, SERVICES, Step, THINGS, deployment, pod, post, thing};

pub(super) fn steps() -> Vec<Step> {
    let container = |fields: Value| {
        let mut container = json!({"name": "c", "image": "i"});
        for (field, value) in fields.as_object().cloned().unwrap_or_default() {
            container[field] = value;
        }
        json!({"containers": [container]})
    };
    let named = |name: &str, metadata: Value| {
        let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        for (field, value) in metadata.as_object().cloned().unwrap_or_default() {
            map["metadata"][field] = value;
        }
        map
    };
    let service = |spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "bad"}, "spec": spec});
    vec![
        post("bad name", MAPS, named("Bad_Name", json!({}))),
        post("bad label key", MAPS, named("bad", json!({"labels": {"a b": "c"}}))),
        post("bad label value", MAPS, named("bad", json!({"labels": {"a": "b c"}}))),
        post("bad annotation key", MAPS, named("bad", json!({"annotations": {"a b": "c"}}))),
        post(
            "bad owner",
            MAPS,
            named(
                "bad",
                json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "", "uid": ""}]}),
            ),
        ),
        post("bad finalizer", MAPS, named("bad", json!({"finalizers": ["a b"]}))),
        post(
            "bad key of data",
            MAPS,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bad"}, "data": {"a b": "1"}}),
        ),
        Step::new("no JSON", "POST", MAPS, super::JSON, "{".to_owned()),
        Step::new("no object", "POST", MAPS, super::JSON, "[]".to_owned()),
        Step::new("nothing", "POST", MAPS, super::JSON, String::new()),
        Step::new("unknown media type", "POST", MAPS, "text/plain", "{}".to_owned()),
        Step::new(
            "unknown patch type",
            "PATCH",
            "/api/v1/namespaces/{ns}/configmaps/l1",
            super::JSON,
            "{}".to_owned(),
        ),
        Step::new(
            "duplicate field",
            "POST",
            MAPS,
            super::JSON,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dup"},"data":{"a":"1","a":"2"}}"#
                .to_owned(),
        ),
        Step::new(
            "duplicate field, strict",
            "POST",
            "/api/v1/namespaces/{ns}/configmaps?fieldValidation=Strict",
            super::JSON,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dup2"},"data":{"a":"1","a":"2"}}"#
                .to_owned(),
        ),
        post(
            "unknown field",
            "/api/v1/namespaces/{ns}/pods?dryRun=All",
            pod("w", container(json!({"gpu": 1}))),
        ),
        post(
            "unknown field, strict",
            "/api/v1/namespaces/{ns}/pods?fieldValidation=Strict",
            pod("w", container(json!({"gpu": 1}))),
        ),
        post(
            "unknown field validation",
            "/api/v1/namespaces/{ns}/pods?fieldValidation=Loud",
            pod("w", container(json!({}))),
        ),
        post("wrong type", PODS, pod("w", container(json!({"image": 1})))),
        post(
            "wrong type of a quantity",
            PODS,
            pod("w", container(json!({"resources": {"limits": {"cpu": "lots"}}}))),
        ),
        post("pod without containers", PODS, pod("w", json!({}))),
        post("container without an image", PODS, pod("w", json!({"containers": [{"name": "c"}]}))),
        post(
            "containers of one name",
            PODS,
            pod("w", json!({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]})),
        ),
        post(
            "container of a bad name",
            PODS,
            pod("w", json!({"containers": [{"name": "C_1", "image": "i"}]})),
        ),
        post("bad port", PODS, pod("w", container(json!({"ports": [{"containerPort": 0}]})))),
        post("bad environment", PODS, pod("w", container(json!({"env": [{"name": "", "value": "x"}]})))),
        post(
            "request above limit",
            PODS,
            pod("w", container(json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}))),
        ),
        post(
            "fraction of a GPU",
            PODS,
            pod("w", container(json!({"resources": {"limits": {"nvidia.com/gpu": "0.5"}}}))),
        ),
        post(
            "GPU requested without a limit",
            PODS,
            pod("w", container(json!({"resources": {"requests": {"nvidia.com/gpu": "1"}}}))),
        ),
        post("negative quantity", PODS, pod("w", container(json!({"resources": {"limits": {"cpu": "-1"}}})))),
        post(
            "unknown resource name",
            PODS,
            pod("w", container(json!({"resources": {"limits": {"gpu": "1"}}}))),
        ),
        post(
            "bad restart policy",
            PODS,
            pod("w", json!({"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Sometimes"})),
        ),
        post(
            "mount of no volume",
            PODS,
            pod("w", container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}))),
        ),
        post(
            "bad toleration",
            PODS,
            pod(
                "w",
                json!({"containers": [{"name": "c", "image": "i"}], "tolerations": [{"key": "k", "operator": "Odd"}]}),
            ),
        ),
        post(
            "bad node selector",
            PODS,
            pod("w", json!({"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"a": "b c"}})),
        ),
        post(
            "unknown priority class",
            PODS,
            pod("w", json!({"containers": [{"name": "c", "image": "i"}], "priorityClassName": "none"})),
        ),
        post(
            "deployment without a selector",
            DEPLOYMENTS,
            deployment(
                "bad",
                json!({
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}),
            ),
        ),
        post(
            "deployment whose selector misses",
            DEPLOYMENTS,
            deployment(
                "bad",
                json!({
            "selector": {"matchLabels": {"x": "y"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}),
            ),
        ),
        post(
            "deployment with negative replicas",
            DEPLOYMENTS,
            deployment(
                "bad",
                json!({
            "replicas": -1, "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}),
            ),
        ),
        post("service without ports", SERVICES, service(json!({"selector": {"a": "b"}}))),
        post("service of a bad type", SERVICES, service(json!({"type": "Odd", "ports": [{"port": 80}]}))),
        post("service with a bad port", SERVICES, service(json!({"ports": [{"port": 0}]}))),
        post(
            "service with equal ports",
            SERVICES,
            service(json!({"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 80}]})),
        ),
        post("thing without what is required", THINGS, thing("bad", json!({}))),
        post("thing of wrong types", THINGS, thing("bad", json!({"image": 1, "replicas": "x", "tags": "a"}))),
        post(
            "thing out of bounds",
            THINGS,
            thing("bad", json!({"image": "NO", "replicas": -1, "mode": "Odd", "tags": ["a", "b", "c", "d"]})),
        ),
        post(
            "thing with duplicates",
            THINGS,
            thing("bad", json!({"image": "i", "tags": ["a", "a"], "ports": [{"port": 1}, {"port": 1}]})),
        ),
        post(
            "thing with an unknown field, strict",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things?fieldValidation=Strict",
            thing("bad", json!({"image": "i", "extra": 1})),
        ),
        post(
            "thing with an unknown field",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things?dryRun=All",
            thing("bad", json!({"image": "i", "extra": 1})),
        ),
        Step::new("a method that is not there", "PUT", MAPS, super::JSON, "{}".to_owned()),
    ]
}
