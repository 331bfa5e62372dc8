//! The requests. Each builds on those before it.

mod apply;
mod objects;
mod patches;
mod reads;
mod refusals;

use serde_json::{Value, json};

/// One request. `{ns}` is the namespace of the run; `{rv}`, `{uid}` and `{continue}` are of the newest answer that had them.
pub(crate) struct Step {
    /// Names it in what is reported; unique. What begins with `setup` must succeed.
    pub(crate) name: &'static str,
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) body: String,
    /// How long to wait after it, in milliseconds.
    pub(crate) pause_ms: u64,
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

const PODS: &str = "/api/v1/namespaces/{ns}/pods";
const MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";
const SERVICES: &str = "/api/v1/namespaces/{ns}/services";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/{ns}/deployments";
const THINGS: &str = "/apis/oracle.example.com/v1/namespaces/{ns}/things";

impl Step {
    pub(crate) fn new(
        name: &'static str,
        method: &'static str,
        path: &'static str,
        content_type: &'static str,
        body: String,
    ) -> Self {
        Self { name, method, path, content_type, body, pause_ms: 0 }
    }
}

fn get(name: &'static str, path: &'static str) -> Step {
    Step::new(name, "GET", path, JSON, String::new())
}

fn post(name: &'static str, path: &'static str, body: Value) -> Step {
    Step::new(name, "POST", path, JSON, body.to_string())
}

fn put(name: &'static str, path: &'static str, body: Value) -> Step {
    Step::new(name, "PUT", path, JSON, body.to_string())
}

fn delete(name: &'static str, path: &'static str, body: Value) -> Step {
    Step::new(name, "DELETE", path, JSON, if body.is_null() { String::new() } else { body.to_string() })
}

fn merge(name: &'static str, path: &'static str, body: Value) -> Step {
    Step::new(name, "PATCH", path, MERGE, body.to_string())
}

fn strategic(name: &'static str, path: &'static str, body: Value) -> Step {
    Step::new(name, "PATCH", path, STRATEGIC, body.to_string())
}

fn json_patch(name: &'static str, path: &'static str, body: Value) -> Step {
    Step::new(name, "PATCH", path, JSON_PATCH, body.to_string())
}

fn apply(name: &'static str, path: &'static str, body: Value) -> Step {
    Step::new(name, "PATCH", path, APPLY, body.to_string())
}

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// A deployment without pods, so that no node has a say.
fn deployment(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})
}

fn whole_deployment(name: &str) -> Value {
    deployment(
        name,
        json!({
            "replicas": 0, "paused": true, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [
                {"name": "main", "image": "i:1", "args": ["a", "b"], "ports": [{"containerPort": 80}],
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                {"name": "side", "image": "s:1"},
            ]}},
        }),
    )
}

/// A pod that no scheduler takes, without what admission adds.
fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"schedulerName": "nobody", "automountServiceAccountToken": false},
    });
    for (field, value) in spec.as_object().cloned().unwrap_or_default() {
        pod["spec"][field] = value;
    }
    pod
}

fn thing(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "oracle.example.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec})
}

/// All of them in order.
pub(crate) fn steps() -> Vec<Step> {
    let mut steps = setup();
    steps.extend(objects::steps());
    steps.extend(patches::steps());
    steps.extend(apply::steps());
    steps.extend(reads::steps());
    steps.extend(refusals::steps());
    steps
}

fn setup() -> Vec<Step> {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.oracle.example.com"},
        "spec": {
            "group": "oracle.example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["image"], "properties": {
                        "image": {"type": "string", "minLength": 1, "pattern": "^[a-z:0-9]+$"},
                        "replicas": {"type": "integer", "minimum": 0, "maximum": 10, "default": 1},
                        "mode": {"type": "string", "enum": ["Fast", "Slow"]},
                        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "maxItems": 3},
                        "args": {"type": "array", "items": {"type": "string"}},
                        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
                            "items": {"type": "object", "required": ["port"], "properties": {
                                "port": {"type": "integer"}, "name": {"type": "string"}}}},
                        "options": {"type": "object", "additionalProperties": {"type": "string"}},
                        "exact": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
                        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        "size": {"x-kubernetes-int-or-string": true},
                    }, "x-kubernetes-validations": [{"rule": "self.replicas < 10", "message": "too many"}]},
                    "status": {"type": "object", "properties": {
                        "replicas": {"type": "integer"}, "ready": {"type": "boolean"}}},
                }}},
            }],
        },
    });
    vec![
        Step {
            pause_ms: 500,
            ..post(
                "setup: namespace",
                "/api/v1/namespaces",
                json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "{ns}"}}),
            )
        },
        Step {
            pause_ms: 2000,
            ..post("setup: definition", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        },
    ]
}
