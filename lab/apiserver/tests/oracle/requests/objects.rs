//! Objects come, change and go.

use serde_json::{Value, json};

use super::{
    DEPLOYMENTS, MAPS, PODS, SERVICES, Step, THINGS, config_map, delete, get, pod, post, put, thing,
    whole_deployment,
};

pub(super) fn steps() -> Vec<Step> {
    let map = |data: Value, metadata: Value| {
        let mut map = config_map("one", data);
        for (field, value) in metadata.as_object().cloned().unwrap_or_default() {
            map["metadata"][field] = value;
        }
        map
    };
    vec![
        post("create a ConfigMap", MAPS, config_map("one", json!({"a": "1"}))),
        get("get it", "/api/v1/namespaces/{ns}/configmaps/one"),
        post("create it again", MAPS, config_map("one", json!({}))),
        put(
            "update it",
            "/api/v1/namespaces/{ns}/configmaps/one",
            map(json!({"a": "2"}), json!({"labels": {"l": "1"}})),
        ),
        put(
            "update without effect",
            "/api/v1/namespaces/{ns}/configmaps/one",
            map(json!({"a": "2"}), json!({"labels": {"l": "1"}})),
        ),
        put(
            "update from an old revision",
            "/api/v1/namespaces/{ns}/configmaps/one",
            map(json!({"a": "3"}), json!({"resourceVersion": "1"})),
        ),
        put(
            "update of another uid",
            "/api/v1/namespaces/{ns}/configmaps/one",
            map(json!({"a": "3"}), json!({"uid": "nope"})),
        ),
        put(
            "update under another name",
            "/api/v1/namespaces/{ns}/configmaps/two",
            map(json!({"a": "3"}), json!({})),
        ),
        put("update of nothing", "/api/v1/namespaces/{ns}/configmaps/none", config_map("none", json!({}))),
        put(
            "update of another namespace",
            "/api/v1/namespaces/{ns}/configmaps/one",
            map(json!({}), json!({"namespace": "default"})),
        ),
        put(
            "update of another kind",
            "/api/v1/namespaces/{ns}/configmaps/one",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}),
        ),
        delete(
            "delete from an old revision",
            "/api/v1/namespaces/{ns}/configmaps/one",
            json!({"preconditions": {"resourceVersion": "1"}}),
        ),
        delete(
            "delete another uid",
            "/api/v1/namespaces/{ns}/configmaps/one",
            json!({"preconditions": {"uid": "nope"}}),
        ),
        delete(
            "delete, bad propagation",
            "/api/v1/namespaces/{ns}/configmaps/one",
            json!({"propagationPolicy": "Sideways"}),
        ),
        delete(
            "delete, two policies",
            "/api/v1/namespaces/{ns}/configmaps/one",
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
        ),
        delete("delete, dry", "/api/v1/namespaces/{ns}/configmaps/one?dryRun=All", Value::Null),
        delete(
            "delete it",
            "/api/v1/namespaces/{ns}/configmaps/one",
            json!({"propagationPolicy": "Background"}),
        ),
        delete("delete it again", "/api/v1/namespaces/{ns}/configmaps/one", Value::Null),
        get("get what is gone", "/api/v1/namespaces/{ns}/configmaps/one"),
        post("create with a revision", MAPS, map(json!({}), json!({"resourceVersion": "5"}))),
        post(
            "create in an absent namespace",
            "/api/v1/namespaces/oracle-absent/configmaps",
            config_map("one", json!({})),
        ),
        post("create without a name", MAPS, json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}})),
        post("create, dry", "/api/v1/namespaces/{ns}/configmaps?dryRun=All", config_map("dry", json!({}))),
        post(
            "create, bad dry run",
            "/api/v1/namespaces/{ns}/configmaps?dryRun=Some",
            config_map("dry", json!({})),
        ),
        post(
            "create with finalizers",
            MAPS,
            json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "finalizers": ["example.com/keep"]}}),
        ),
        delete("delete what has finalizers", "/api/v1/namespaces/{ns}/configmaps/kept", Value::Null),
        put(
            "end the last finalizer",
            "/api/v1/namespaces/{ns}/configmaps/kept",
            config_map("kept", json!({})),
        ),
        get("it is gone", "/api/v1/namespaces/{ns}/configmaps/kept"),
        post(
            "create a Pod",
            PODS,
            pod(
                "p",
                json!({
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}],
            "tolerations": [{"key": "k", "operator": "Exists"}]}),
            ),
        ),
        put(
            "change a Pod's containers",
            "/api/v1/namespaces/{ns}/pods/p",
            pod("p", json!({"containers": [{"name": "d", "image": "i"}]})),
        ),
        post(
            "create a Service",
            SERVICES,
            json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}, {"name": "x", "port": 81, "targetPort": "http"}]}}),
        ),
        post(
            "create a good Service",
            SERVICES,
            json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}}),
        ),
        post("create a Deployment", DEPLOYMENTS, whole_deployment("web")),
        get("get its scale", "/apis/apps/v1/namespaces/{ns}/deployments/web/scale"),
        post(
            "create a Thing",
            THINGS,
            thing("t", json!({"image": "i:1", "options": {"a": "1"}, "free": {"x": {"y": [1]}}})),
        ),
        put(
            "update a Thing without its revision",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/t",
            thing("t", json!({"image": "i:2"})),
        ),
        put("update a Thing's status", "/apis/oracle.example.com/v1/namespaces/{ns}/things/t/status", {
            let mut thing = thing("t", json!({"image": "i:9"}));
            thing["metadata"]["resourceVersion"] = "{rv}".into();
            thing["status"] = json!({"ready": true, "replicas": 1});
            thing
        }),
        get("get a Thing's scale", "/apis/oracle.example.com/v1/namespaces/{ns}/things/t/scale"),
    ]
}
