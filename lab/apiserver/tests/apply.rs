//! Server-side apply and the owners of fields, through requests.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{get, ok, send, send_as, server};
use gantry_apiserver::ApiServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tower::ServiceExt;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn deployment(spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
}

fn whole_deployment(image: &str) -> Value {
    deployment(json!({
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "main", "image": image, "ports": [{"containerPort": 80}]}]},
        },
    }))
}

async fn apply(server: &ApiServer, path: &str, query: &str, body: &Value) -> (u16, Value) {
    let path = format!("{path}?{query}");
    let answer = send_as(server, "PATCH", &path, "application/apply-patch+yaml", body.to_string()).await;
    (answer.status().as_u16(), answer.into_body())
}

/// Manager, operation, subresource and fields of each entry.
fn owners(object: &Value) -> Vec<(String, Value)> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    entries
        .into_iter()
        .map(|entry| {
            let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
            (
                format!("{} {} {}", text("manager"), text("operation"), text("subresource")),
                entry["fieldsV1"].clone(),
            )
        })
        .collect()
}

fn names(object: &Value) -> Vec<String> {
    owners(object).into_iter().map(|(owner, _)| owner.trim_end().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_apply_creates_then_merges_and_removes_what_is_no_longer_applied() {
    let server = server();
    let path = format!("{DEPLOYMENTS}/web");
    let (code, created) = apply(&server, &path, "fieldManager=a", &whole_deployment("i:1")).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["spec"]["replicas"], 1, "defaults are filled in");
    assert_eq!(
        owners(&created),
        [(
            "a Apply ".to_owned(),
            json!({"f:spec": {
                "f:selector": {},
                "f:template": {"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {"f:containers": {
                    "k:{\"name\":\"main\"}": {
                        ".": {}, "f:image": {}, "f:name": {},
                        "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                    },
                }}},
            }})
        )],
        "and nobody's"
    );
    let other = deployment(json!({"template": {"spec": {"containers": [{"name": "side", "image": "s"}]}}}));
    let (code, both) = apply(&server, &path, "fieldManager=b", &other).await;
    assert_eq!(code, 200, "{both}");
    assert_eq!(both["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 2);
    let (_, again) = apply(&server, &path, "fieldManager=b", &other).await;
    assert_eq!(again["metadata"]["resourceVersion"], both["metadata"]["resourceVersion"], "nothing changed");
    let (_, without) = apply(&server, &path, "fieldManager=b", &deployment(json!({"replicas": 1}))).await;
    assert_eq!(without["spec"]["template"]["spec"]["containers"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_names_owner_and_field_and_force_takes_it() {
    let server = server();
    let path = format!("{DEPLOYMENTS}/web");
    ok(&server, "POST", &format!("{DEPLOYMENTS}?fieldManager=kubectl-create"), whole_deployment("i:1")).await;
    let scaled = deployment(json!({"replicas": 3}));
    let (code, refused) = apply(&server, &path, "fieldManager=kubectl", &scaled).await;
    assert_eq!(
        (code, refused),
        (
            409,
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 409, "reason": "Conflict",
                "message": "Apply failed with 1 conflict: conflict with \"kubectl-create\" using apps/v1: .spec.replicas",
                "details": {"causes": [{
                    "reason": "FieldManagerConflict", "field": ".spec.replicas",
                    "message": "conflict with \"kubectl-create\" using apps/v1",
                }]},
            })
        )
    );
    let (code, taken) = apply(&server, &path, "fieldManager=kubectl&force=true", &scaled).await;
    assert_eq!((code, &taken["spec"]["replicas"]), (200, &json!(3)));
    assert_eq!(names(&taken), ["kubectl Apply", "kubectl-create Update"]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_applied_is_refused_in_kubernetes_words() {
    let server = server();
    let path = format!("{DEPLOYMENTS}/web");
    let mut managed = deployment(json!({}));
    managed["metadata"]["managedFields"] = json!([]);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}});
    let nameless = "x".repeat(129);
    for (query, body, code, message) in [
        (
            "",
            deployment(json!({})),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (
            &*format!("fieldManager={nameless}"),
            deployment(json!({})),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: may not be more than 128 bytes",
        ),
        ("fieldManager=a", managed, 400, "metadata.managedFields must be nil"),
        ("fieldManager=a", pod, 400, "invalid object type: /v1, Kind=Pod"),
        (
            "fieldManager=a",
            deployment(json!({"replica": 1})),
            500,
            "failed to create typed patch object (/web; apps/v1, Kind=Deployment): .spec.replica: field not declared in schema",
        ),
    ] {
        let (answered, status) = apply(&server, &path, query, &body).await;
        assert_eq!((answered, status["message"].as_str().unwrap()), (code, message));
    }
    ok(&server, "POST", DEPLOYMENTS, whole_deployment("i:1")).await;
    let (code, status) = send(&server, "PATCH", &format!("{path}?force=true"), json!({})).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn every_write_tells_who_made_it() {
    let server = server();
    let request = Request::post(DEPLOYMENTS)
        .header("user-agent", "kubectl/v1.33.0 (linux/amd64) kubernetes/abc")
        .header("content-type", "application/json")
        .body(Full::from(whole_deployment("i:1").to_string()))
        .unwrap();
    let answer = server.admin_service().oneshot(request).await.unwrap();
    let created: Value =
        serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let fields = &owners(&created)[0];
    assert_eq!(fields.0, "kubectl Update ");
    assert_eq!(
        fields.1["f:spec"]["f:template"]["f:spec"]["f:containers"]["k:{\"name\":\"main\"}"],
        json!({
            ".": {}, "f:image": {}, "f:imagePullPolicy": {}, "f:name": {}, "f:resources": {},
            "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}},
            "f:terminationMessagePath": {}, "f:terminationMessagePolicy": {},
        })
    );
    assert_eq!(fields.1.get("f:metadata"), None, "what the server sets is nobody's");

    let path = format!("{DEPLOYMENTS}/web");
    ok(&server, "PATCH", &format!("{path}?fieldManager=p"), json!({"spec": {"paused": true}})).await;
    ok(&server, "PATCH", &format!("{path}/status?fieldManager=s"), json!({"status": {"replicas": 2}})).await;
    let scale = json!({"spec": {"replicas": 5}});
    ok(&server, "PATCH", &format!("{path}/scale?fieldManager=kubectl"), scale).await;
    let object = get(&server, &path).await.1;
    let mut found = owners(&object);
    found.retain(|(owner, _)| owner != "kubectl Update ");
    assert_eq!(
        found,
        [
            ("kubectl Update scale".to_owned(), json!({"f:spec": {"f:replicas": {}}})),
            ("p Update ".to_owned(), json!({"f:spec": {"f:paused": {}}})),
            ("s Update status".to_owned(), json!({"f:status": {"f:replicas": {}}})),
        ]
    );
    let (_, status) = apply(&server, &path, "fieldManager=x", &deployment(json!({"replicas": 1}))).await;
    assert_eq!(
        status["message"],
        "Apply failed with 1 conflict: conflict with \"kubectl\" with subresource \"scale\" using apps/v1: .spec.replicas"
    );
}

#[tokio::test(start_paused = true)]
async fn owners_can_be_forgotten_and_come_back_as_before_first_apply() {
    let server = server();
    let map = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
    let path = format!("{MAPS}/m");
    ok(&server, "POST", MAPS, map(json!({"a": "1"}))).await;
    // A client that knows nothing of owners sends none, and they stay.
    let mut object = get(&server, &path).await.1;
    object["metadata"].as_object_mut().unwrap().remove("managedFields");
    object["data"]["b"] = "2".into();
    let kept = ok(&server, "PUT", &format!("{path}?fieldManager=u"), object).await;
    assert_eq!(names(&kept), ["u Update", "unknown Update"]);
    for reset in [json!([]), json!([{}])] {
        let forgotten = ok(&server, "PATCH", &path, json!({"metadata": {"managedFields": reset}})).await;
        assert_eq!(owners(&forgotten), []);
        let changed = ok(&server, "PATCH", &path, json!({"data": {"c": "3"}})).await;
        assert_eq!(owners(&changed), [], "an object that nobody tracks stays so");
        let (_, applied) = apply(&server, &path, "fieldManager=a", &map(json!({"a": "1"}))).await;
        assert_eq!(names(&applied), ["a Apply", "before-first-apply Update"]);
    }
    // As a client that takes over an older manager's fields does.
    let patch = json!([
        {"op": "test", "path": "/metadata/managedFields/1/manager", "value": "before-first-apply"},
        {"op": "remove", "path": "/metadata/managedFields/1"},
    ]);
    let answer = send_as(&server, "PATCH", &path, "application/json-patch+json", patch.to_string()).await;
    assert_eq!(names(answer.body()), ["a Apply"], "{:?}", answer.body());
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_applies_nothing() {
    let server = server();
    let path = format!("{DEPLOYMENTS}/web");
    let (code, shown) = apply(&server, &path, "fieldManager=a&dryRun=All", &whole_deployment("i:1")).await;
    assert_eq!((code, names(&shown)), (201, vec!["a Apply".to_owned()]));
    assert_eq!(get(&server, &path).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn owners_are_in_lists_watches_and_metadata_and_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        || gantry_apiserver::Options { state_dir: Some(folder.path().to_owned()), ..common::options() };
    let server = ApiServer::new(options()).unwrap();
    let path = format!("{MAPS}/m");
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}});
    apply(&server, &path, "fieldManager=a", &map).await;
    assert_eq!(names(&get(&server, MAPS).await.1["items"][0]), ["a Apply"]);
    drop(server);
    let server = ApiServer::new(options()).unwrap();
    assert_eq!(names(&get(&server, &path).await.1), ["a Apply"]);
    // A component's client is not shown them, and does not lose them.
    let maps: Api<ConfigMap> = Api::default_namespaced(server.component_client("kubelet"));
    assert_eq!(maps.get("m").await.unwrap().metadata.managed_fields, None);
    let mut object = maps.get("m").await.unwrap();
    object.data.as_mut().unwrap().insert("b".into(), "2".into());
    maps.replace("m", &kube::api::PostParams::default(), &object).await.unwrap();
    assert_eq!(names(&get(&server, &path).await.1), ["a Apply", "kubelet Update"]);
    // The way of kube-rs.
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    let params = PatchParams::apply("mine").force();
    let applied = maps.patch("m", &params, &Patch::Apply(map)).await.unwrap();
    let managers: Vec<_> =
        applied.metadata.managed_fields.unwrap().into_iter().map(|m| m.manager.unwrap()).collect();
    assert_eq!(managers, ["mine", "a", "kubelet"]);
}

#[tokio::test(start_paused = true)]
async fn custom_resources_are_applied_by_their_schema_in_every_version() {
    let server = server();
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "size": {"type": "integer"},
            "steps": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string"}, "run": {"type": "string"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    }}});
    let version = |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema, "subresources": {"status": {}}});
    ok(
        &server,
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "flows.example.com"},
            "spec": {
                "group": "example.com", "scope": "Namespaced", "names": {"plural": "flows", "kind": "Flow"},
                "versions": [version("v1", true), version("v2", false)],
            },
        }),
    )
    .await;
    let flow = |version: &str, spec: Value| json!({"apiVersion": format!("example.com/{version}"), "kind": "Flow", "metadata": {"name": "f"}, "spec": spec});
    let path = |version: &str| format!("/apis/example.com/{version}/namespaces/default/flows/f");
    let (code, created) = apply(
        &server,
        &path("v1"),
        "fieldManager=a",
        &flow(
            "v1",
            json!({
                "size": 1, "steps": [{"name": "one", "run": "x"}], "free": {"deep": {"down": [1]}},
            }),
        ),
    )
    .await;
    assert_eq!(code, 201, "{created}");
    let (_, both) = apply(
        &server,
        &path("v2"),
        "fieldManager=b",
        &flow(
            "v2",
            json!({
                "steps": [{"name": "two", "run": "y"}], "free": {"deep": {"other": 1}},
            }),
        ),
    )
    .await;
    assert_eq!(both["spec"]["steps"].as_array().unwrap().len(), 2);
    assert_eq!(both["spec"]["free"], json!({"deep": {"down": [1], "other": 1}}));
    // The same applier in another version is the same applier.
    let (code, moved) = apply(&server, &path("v2"), "fieldManager=a", &flow("v2", json!({"size": 2}))).await;
    assert_eq!(code, 200, "{moved}");
    assert_eq!(
        moved["spec"],
        json!({"size": 2, "steps": [{"name": "two", "run": "y"}], "free": {"deep": {"other": 1}}})
    );
    let (_, refused) = apply(&server, &path("v1"), "fieldManager=c", &flow("v1", json!({"size": 3}))).await;
    assert_eq!(refused["message"], "Apply failed with 1 conflict: conflict with \"a\": .spec.size");
    let mut status = flow("v1", json!({"size": 9}));
    status["status"] = json!({"ready": true});
    let (code, applied) = apply(&server, &format!("{}/status", path("v1")), "fieldManager=s", &status).await;
    assert_eq!((code, &applied["spec"]["size"], &applied["status"]["ready"]), (200, &json!(2), &json!(true)));
    let own = owners(&applied).into_iter().find(|(owner, _)| owner == "s Apply status").unwrap();
    assert_eq!(own.1, json!({"f:status": {"f:ready": {}}}));
}
