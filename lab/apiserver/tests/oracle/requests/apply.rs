//! Server-side apply and the owners of fields.

use serde_json::{Value, json};

use super::{
    Step, apply, config_map, delete, deployment, get, json_patch, merge, post, put, thing, whole_deployment,
};

pub(super) fn steps() -> Vec<Step> {
    let one = |spec: Value| deployment("applied", spec);
    let container = |container: Value| one(json!({"template": {"spec": {"containers": [container]}}}));
    let mut with_managed = config_map("am", json!({}));
    with_managed["metadata"]["managedFields"] = json!([]);
    let mut last = whole_deployment("client");
    let text = last.to_string();
    last["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": text});
    let mut again = whole_deployment("client");
    again["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2".into();
    let mut status = thing("at", json!({"image": "x:9"}));
    status["status"] = json!({"ready": true});
    vec![
        apply(
            "apply without a manager",
            "/api/v1/namespaces/{ns}/configmaps/am",
            config_map("am", json!({})),
        ),
        apply(
            "apply with managedFields",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a",
            with_managed,
        ),
        apply(
            "apply of another kind",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a",
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "am"}}),
        ),
        apply(
            "apply of no kind",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a",
            json!({"metadata": {"name": "am"}}),
        ),
        apply(
            "apply under another name",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a",
            config_map("other", json!({})),
        ),
        apply(
            "apply with a control character",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a%07",
            config_map("am", json!({})),
        ),
        Step::new(
            "apply what is no YAML",
            "PATCH",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a",
            super::APPLY,
            "a: [".to_owned(),
        ),
        apply(
            "apply creates",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a",
            config_map("am", json!({"a": "1"})),
        ),
        apply(
            "apply again",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a",
            config_map("am", json!({"a": "1"})),
        ),
        apply(
            "apply beside",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=b",
            config_map("am", json!({"b": "2"})),
        ),
        apply(
            "apply the same",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=c",
            config_map("am", json!({"a": "1"})),
        ),
        apply(
            "apply another value",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=d",
            config_map("am", json!({"a": "9", "b": "9"})),
        ),
        apply(
            "apply another value, forced",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=d&force=true",
            config_map("am", json!({"a": "9"})),
        ),
        apply(
            "apply less",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=b",
            config_map("am", json!({})),
        ),
        apply("apply from an old revision", "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=d", {
            let mut map = config_map("am", json!({"a": "8"}));
            map["metadata"]["resourceVersion"] = "1".into();
            map
        }),
        apply("apply creates with a uid", "/api/v1/namespaces/{ns}/configmaps/an?fieldManager=d", {
            let mut map = config_map("an", json!({}));
            map["metadata"]["uid"] = "nope".into();
            map
        }),
        apply(
            "apply, dry",
            "/api/v1/namespaces/{ns}/configmaps/ad?fieldManager=a&dryRun=All",
            config_map("ad", json!({"a": "1"})),
        ),
        merge(
            "update after apply",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=u",
            json!({"data": {"a": "7", "z": "1"}}),
        ),
        merge(
            "forget all owners",
            "/api/v1/namespaces/{ns}/configmaps/am",
            json!({"metadata": {"managedFields": [{}]}}),
        ),
        merge(
            "update of what nobody owns",
            "/api/v1/namespaces/{ns}/configmaps/am",
            json!({"data": {"y": "1"}}),
        ),
        apply(
            "first apply to what nobody owns",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a",
            config_map("am", json!({"y": "2"})),
        ),
        apply(
            "first apply to what nobody owns, forced",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=a&force=true",
            config_map("am", json!({"y": "2"})),
        ),
        json_patch(
            "remove an owner",
            "/api/v1/namespaces/{ns}/configmaps/am",
            json!([{"op": "remove", "path": "/metadata/managedFields/1"}]),
        ),
        merge(
            "owners that cannot be read",
            "/api/v1/namespaces/{ns}/configmaps/am",
            json!({"metadata": {"managedFields": [{"manager": "m", "operation": "Odd"}]}}),
        ),
        put(
            "update without owners",
            "/api/v1/namespaces/{ns}/configmaps/am?fieldManager=v",
            config_map("am", json!({"y": "2", "v": "1"})),
        ),
        post(
            "create a Deployment to apply to",
            "/apis/apps/v1/namespaces/{ns}/deployments?fieldManager=creator",
            whole_deployment("applied"),
        ),
        apply(
            "apply an image",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=a",
            container(json!({"name": "main", "image": "i:2"})),
        ),
        apply(
            "apply an image, forced",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=a&force=true",
            container(json!({"name": "main", "image": "i:2"})),
        ),
        apply(
            "apply ports of one number",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=a",
            container(json!({
            "name": "main", "image": "i:2", "ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}]})),
        ),
        apply(
            "apply a container and volumes",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=b",
            one(json!({"template": {"spec": {
            "containers": [{"name": "third", "image": "t", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "resources": {"limits": {"cpu": "1"}}, "securityContext": {"privileged": false}}],
            "volumes": [{"name": "v", "emptyDir": {}}], "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "k", "operator": "Exists"}]}}})),
        ),
        apply(
            "apply without them",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=b",
            one(json!({"template": {"metadata": {"labels": {"extra": "1"}}}})),
        ),
        apply(
            "apply duplicates",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=b",
            one(json!({"template": {"spec": {"containers": [
            {"name": "x", "image": "x"}, {"name": "x", "image": "y"}]}}})),
        ),
        apply(
            "apply without a key",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=b",
            container(json!({"image": "x"})),
        ),
        apply(
            "apply an unknown field",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=b",
            one(json!({"replica": 1})),
        ),
        apply(
            "apply wrong types",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=b",
            one(json!({"replicas": "1", "paused": "no", "template": {"spec": {"dnsPolicy": 1}}})),
        ),
        apply(
            "apply an invalid value",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=b",
            one(json!({"progressDeadlineSeconds": -1})),
        ),
        apply(
            "apply null",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=n",
            one(json!({"minReadySeconds": null})),
        ),
        apply(
            "apply replicas",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=b&force=true",
            one(json!({"replicas": 0})),
        ),
        merge(
            "scale what is applied",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied/scale?fieldManager=scaler",
            json!({"spec": {"replicas": 1}}),
        ),
        apply(
            "apply against the scaler",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied?fieldManager=b",
            one(json!({"replicas": 0})),
        ),
        apply(
            "apply a Scale",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied/scale?fieldManager=sa",
            json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "applied", "namespace": "{ns}"}, "spec": {"replicas": 0}}),
        ),
        apply(
            "apply a Scale, forced",
            "/apis/apps/v1/namespaces/{ns}/deployments/applied/scale?fieldManager=sa&force=true",
            json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "applied", "namespace": "{ns}"}, "spec": {"replicas": 0}}),
        ),
        get("owners of the Deployment", "/apis/apps/v1/namespaces/{ns}/deployments/applied"),
        post(
            "create as kubectl apply does",
            "/apis/apps/v1/namespaces/{ns}/deployments?fieldManager=kubectl-client-side-apply",
            last,
        ),
        apply(
            "apply as kubectl on the server",
            "/apis/apps/v1/namespaces/{ns}/deployments/client?fieldManager=kubectl",
            again.clone(),
        ),
        apply(
            "apply as somebody else",
            "/apis/apps/v1/namespaces/{ns}/deployments/client?fieldManager=argo",
            whole_deployment("client"),
        ),
        apply(
            "apply a Service",
            "/api/v1/namespaces/{ns}/services/asvc?fieldManager=a",
            json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "asvc"},
            "spec": {"selector": {"a": "b"}, "ports": [{"name": "x", "port": 80}, {"name": "y", "port": 80, "protocol": "UDP"}]}}),
        ),
        apply(
            "apply a Service with fewer ports",
            "/api/v1/namespaces/{ns}/services/asvc?fieldManager=a",
            json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "asvc"},
            "spec": {"selector": {"c": "d"}, "ports": [{"name": "y", "port": 80, "protocol": "UDP"}]}}),
        ),
        apply(
            "apply a Thing",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/at?fieldManager=a",
            thing(
                "at",
                json!({
            "image": "x:1", "tags": ["p", "q"], "args": ["1"], "ports": [{"port": 1, "name": "one"}, {"port": 2}],
            "options": {"a": "1"}, "exact": {"e": "1"}, "free": {"deep": {"down": [1]}}, "size": "5%"}),
            ),
        ),
        apply(
            "apply a Thing beside",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/at?fieldManager=b",
            thing(
                "at",
                json!({
            "tags": ["q", "r"], "ports": [{"port": 3}], "options": {"b": "1"}, "free": {"deep": {"other": {"x": 1}}}}),
            ),
        ),
        apply(
            "apply to what is atomic",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/at?fieldManager=b",
            thing(
                "at",
                json!({
            "args": ["2"], "exact": {"f": "1"}, "free": {"deep": {"down": [2]}}, "size": 5}),
            ),
        ),
        apply(
            "apply less of a Thing",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/at?fieldManager=a",
            thing("at", json!({"image": "x:1", "ports": [{"port": 2}]})),
        ),
        apply(
            "apply an empty Thing",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/at?fieldManager=b",
            thing("at", json!({})),
        ),
        apply(
            "apply a Thing's unknown field",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/at?fieldManager=b",
            thing("at", json!({"extra": 1})),
        ),
        apply(
            "apply a Thing's wrong value",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/at?fieldManager=b",
            thing("at", json!({"mode": "Odd", "replicas": 99})),
        ),
        apply(
            "apply a Thing's status",
            "/apis/oracle.example.com/v1/namespaces/{ns}/things/at/status?fieldManager=s",
            status,
        ),
        get("owners of the Thing", "/apis/oracle.example.com/v1/namespaces/{ns}/things/at"),
        delete("delete what was applied", "/api/v1/namespaces/{ns}/configmaps/am", Value::Null),
    ]
}
