//! Patches of the three older kinds.

use serde_json::json;

use super::{MAPS, Step, config_map, get, json_patch, merge, post, strategic};

const MAP: &str = "/api/v1/namespaces/{ns}/configmaps/patched";
const WEB: &str = "/apis/apps/v1/namespaces/{ns}/deployments/web";
const THING: &str = "/apis/oracle.example.com/v1/namespaces/{ns}/things/t";

pub(super) fn steps() -> Vec<Step> {
    let template = |spec: serde_json::Value| json!({"spec": {"template": {"spec": spec}}});
    vec![
        post(
            "create what is patched",
            MAPS,
            config_map("patched", json!({"a": "1", "b": "2", "x/y": "3", "t~": "4"})),
        ),
        merge("merge", MAP, json!({"data": {"a": "9", "c": "5"}, "metadata": {"labels": {"l": "1"}}})),
        merge(
            "merge, null removes",
            MAP,
            json!({"data": {"b": null, "none": null}, "metadata": {"labels": null}}),
        ),
        merge("merge, null for a required object", WEB, json!({"spec": {"selector": null}})),
        merge("merge, wrong type", MAP, json!({"data": {"a": 1}})),
        merge("merge, not an object", MAP, json!([1])),
        merge("merge, unknown field", MAP, json!({"extra": 1})),
        merge(
            "merge, unknown field, strict",
            "/api/v1/namespaces/{ns}/configmaps/patched?fieldValidation=Strict",
            json!({"extra": 1}),
        ),
        merge(
            "merge, unknown field, ignored",
            "/api/v1/namespaces/{ns}/configmaps/patched?fieldValidation=Ignore",
            json!({"extra": 1}),
        ),
        merge(
            "merge from an old revision",
            MAP,
            json!({"metadata": {"resourceVersion": "1"}, "data": {"q": "1"}}),
        ),
        merge("merge, another name", MAP, json!({"metadata": {"name": "other"}})),
        merge("merge of nothing", "/api/v1/namespaces/{ns}/configmaps/none", json!({})),
        merge("merge with force", "/api/v1/namespaces/{ns}/configmaps/patched?force=true", json!({})),
        json_patch(
            "JSON patch, escapes",
            MAP,
            json!([
            {"op": "replace", "path": "/data/x~1y", "value": "33"}, {"op": "test", "path": "/data/t~0", "value": "4"},
            {"op": "copy", "from": "/data/a", "path": "/data/copy"}, {"op": "move", "from": "/data/c", "path": "/data/moved"}]),
        ),
        json_patch(
            "JSON patch, test fails",
            MAP,
            json!([
            {"op": "replace", "path": "/data/a", "value": "no"}, {"op": "test", "path": "/data/a", "value": "1"}]),
        ),
        json_patch("JSON patch, no such path", MAP, json!([{"op": "remove", "path": "/data/none"}])),
        json_patch(
            "JSON patch, replace of nothing",
            MAP,
            json!([{"op": "replace", "path": "/data/none", "value": "1"}]),
        ),
        json_patch(
            "JSON patch, add below nothing",
            MAP,
            json!([{"op": "add", "path": "/none/none", "value": "1"}]),
        ),
        json_patch("JSON patch, unknown operation", MAP, json!([{"op": "burn", "path": "/data/a"}])),
        json_patch("JSON patch, not a list", MAP, json!({"op": "remove", "path": "/data/a"})),
        json_patch(
            "JSON patch, append",
            WEB,
            json!([
            {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "c"}]),
        ),
        json_patch(
            "JSON patch, index out of bounds",
            WEB,
            json!([{"op": "remove", "path": "/spec/template/spec/containers/7"}]),
        ),
        strategic(
            "strategic, by name",
            WEB,
            template(json!({"containers": [{"name": "side", "image": "s:2"}]})),
        ),
        strategic(
            "strategic, a new item",
            WEB,
            template(json!({"containers": [{"name": "third", "image": "t"}]})),
        ),
        strategic(
            "strategic, delete an item",
            WEB,
            template(json!({"containers": [{"name": "third", "$patch": "delete"}]})),
        ),
        strategic(
            "strategic, delete an item of an item",
            WEB,
            template(json!({"containers": [
            {"name": "main", "env": [{"name": "A", "$patch": "delete"}]}]})),
        ),
        strategic(
            "strategic, replace a list",
            WEB,
            template(json!({"containers": [{"name": "main", "env": [
            {"$patch": "replace"}, {"name": "C", "value": "3"}]}]})),
        ),
        strategic(
            "strategic, replace an object",
            WEB,
            json!({"spec": {"strategy": {"$patch": "replace", "type": "Recreate"}}}),
        ),
        strategic(
            "strategic, retain keys",
            WEB,
            json!({"spec": {"strategy": {"$retainKeys": ["type", "rollingUpdate"], "type": "RollingUpdate"}}}),
        ),
        strategic(
            "strategic, order",
            WEB,
            template(json!({
            "$setElementOrder/containers": [{"name": "side"}, {"name": "main"}], "containers": [{"name": "main", "image": "i:2"}]})),
        ),
        strategic(
            "strategic, ports of the same number",
            WEB,
            template(json!({"containers": [{"name": "main", "ports": [
            {"containerPort": 80, "protocol": "UDP"}]}]})),
        ),
        strategic(
            "strategic, an item without its key",
            WEB,
            template(json!({"containers": [{"image": "x"}]})),
        ),
        strategic("strategic, unknown directive", WEB, json!({"spec": {"$patch": "burn"}})),
        strategic(
            "strategic, finalizers are a set",
            WEB,
            json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}}),
        ),
        strategic(
            "strategic, delete from a set",
            WEB,
            json!({"metadata": {
            "$deleteFromPrimitiveList/finalizers": ["example.com/a", "example.com/b"]}}),
        ),
        strategic("strategic, of a Thing", THING, json!({"spec": {"image": "x"}})),
        merge("merge of a Thing", THING, json!({"spec": {"replicas": 2, "options": {"a": null, "b": "2"}}})),
        merge(
            "merge of a Thing, invalid",
            THING,
            json!({"spec": {"replicas": 99, "mode": "Odd", "tags": ["a", "a"]}}),
        ),
        merge("merge of a Thing, a rule", THING, json!({"spec": {"replicas": 10}})),
        merge("merge of a Thing, unknown field", THING, json!({"spec": {"extra": 1}})),
        merge(
            "merge of a Thing's status",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/t/status",
            json!({
            "status": {"ready": false}, "spec": {"replicas": 7}}),
        ),
        merge(
            "scale a Thing",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/t/scale",
            json!({"spec": {"replicas": 3}}),
        ),
        merge(
            "scale below zero",
            "/apis/apps/v1/namespaces/{ns}/deployments/web/scale",
            json!({"spec": {"replicas": -1}}),
        ),
        get("what became of the Deployment", WEB),
        get("what became of the Thing", THING),
        get("what became of the ConfigMap", MAP),
    ]
}
