//! Lists, selectors, pages and watches.

use serde_json::{Value, json};

use super::{MAPS, Step, get, merge, post};

pub(super) fn steps() -> Vec<Step> {
    let labelled = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}});
    vec![
        post("create l1", MAPS, labelled("l1", json!({"tier": "a", "n": "1"}))),
        post("create l2", MAPS, labelled("l2", json!({"tier": "b"}))),
        post("create l3", MAPS, labelled("l3", json!({"tier": "c", "n": "3"}))),
        get("select equal", "/api/v1/namespaces/{ns}/configmaps?labelSelector=tier%3Da"),
        get("select in", "/api/v1/namespaces/{ns}/configmaps?labelSelector=tier%20in%20(a,b)"),
        get(
            "select notin and exists",
            "/api/v1/namespaces/{ns}/configmaps?labelSelector=tier,tier%20notin%20(a)",
        ),
        get("select absent", "/api/v1/namespaces/{ns}/configmaps?labelSelector=tier,!n"),
        get("select greater", "/api/v1/namespaces/{ns}/configmaps?labelSelector=n%3E2"),
        get("malformed selector", "/api/v1/namespaces/{ns}/configmaps?labelSelector=tier%20in%20a"),
        get("malformed selector, operator", "/api/v1/namespaces/{ns}/configmaps?labelSelector=%3Da"),
        get("malformed selector, value", "/api/v1/namespaces/{ns}/configmaps?labelSelector=tier%3Da%21b"),
        get("malformed selector, key", "/api/v1/namespaces/{ns}/configmaps?labelSelector=-a%3Db"),
        get("select a name", "/api/v1/namespaces/{ns}/configmaps?fieldSelector=metadata.name%3Dl1"),
        get(
            "select not a name",
            "/api/v1/namespaces/{ns}/configmaps?fieldSelector=metadata.name%21%3Dl1&labelSelector=tier",
        ),
        get("select by an unknown field", "/api/v1/namespaces/{ns}/configmaps?fieldSelector=data.a%3D1"),
        get("malformed field selector", "/api/v1/namespaces/{ns}/configmaps?fieldSelector=metadata.name"),
        get(
            "select pods by field",
            "/api/v1/namespaces/{ns}/pods?fieldSelector=spec.nodeName%3Dnone,status.phase%3DPending",
        ),
        get(
            "select pods by an unknown field",
            "/api/v1/namespaces/{ns}/pods?fieldSelector=spec.hostname%3Dx",
        ),
        get("first page", "/api/v1/namespaces/{ns}/configmaps?labelSelector=tier&limit=2"),
        get(
            "second page",
            "/api/v1/namespaces/{ns}/configmaps?labelSelector=tier&limit=2&continue={continue}",
        ),
        get("bad continue", "/api/v1/namespaces/{ns}/configmaps?limit=2&continue=nonsense"),
        get("bad limit", "/api/v1/namespaces/{ns}/configmaps?limit=x"),
        get(
            "list at any revision",
            "/api/v1/namespaces/{ns}/configmaps?labelSelector=tier&resourceVersion=0",
        ),
        get("list at a bad revision", "/api/v1/namespaces/{ns}/configmaps?resourceVersion=abc"),
        get(
            "list at a match without revision",
            "/api/v1/namespaces/{ns}/configmaps?resourceVersionMatch=Exact",
        ),
        get(
            "list at an unknown match",
            "/api/v1/namespaces/{ns}/configmaps?resourceVersion=1&resourceVersionMatch=Odd",
        ),
        get("get at any revision", "/api/v1/namespaces/{ns}/configmaps/l1?resourceVersion=0"),
        get("get l1 for its revision", "/api/v1/namespaces/{ns}/configmaps/l1"),
        merge("change l1", "/api/v1/namespaces/{ns}/configmaps/l1", json!({"data": {"a": "1"}})),
        get(
            "watch from before the change",
            "/api/v1/namespaces/{ns}/configmaps?watch=true&timeoutSeconds=1&labelSelector=tier%3Da&resourceVersion=0",
        ),
        get(
            "watch at a bad revision",
            "/api/v1/namespaces/{ns}/configmaps?watch=true&timeoutSeconds=1&resourceVersion=abc",
        ),
        get(
            "watch a streaming list",
            "/api/v1/namespaces/{ns}/configmaps?watch=true&timeoutSeconds=1&labelSelector=tier&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        ),
        get(
            "watch a streaming list without a match",
            "/api/v1/namespaces/{ns}/configmaps?watch=true&timeoutSeconds=1&sendInitialEvents=true",
        ),
        get("unknown resource", "/api/v1/namespaces/{ns}/nothings"),
        get("unknown group", "/apis/none.example.com/v1/things"),
        get("unknown subresource", "/api/v1/namespaces/{ns}/configmaps/l1/status"),
    ]
}
