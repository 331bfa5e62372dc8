//! Definitions of custom resources and what they define.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{get, ok, send, send_as, server};
use gantry_apiserver::ApiServer;
use serde_json::{Value, json};

const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "shortNames": ["th"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {
                    "status": {},
                    "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"},
                },
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "spec": {"type": "object", "required": ["color"], "properties": {
                            "size": {"type": "integer", "default": 3, "minimum": 0},
                            "color": {"type": "string", "enum": ["red", "blue"]},
                        }},
                        "status": {"type": "object", "properties": {"size": {"type": "integer"}}},
                    },
                }},
            }],
        },
    })
}

fn thing(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": {"color": "red"}})
}

async fn with_things() -> ApiServer {
    let server = server();
    let created = ok(&server, "POST", DEFINITIONS, definition()).await;
    let conditions = created["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True"));
    server
}

#[tokio::test(start_paused = true)]
async fn objects_are_defaulted_pruned_and_checked() {
    let server = with_things().await;
    let mut object = thing("a");
    object["spec"]["typo"] = 1.into();
    let response = send_as(&server, "POST", THINGS, "application/json", object.to_string()).await;
    assert_eq!(response.headers()["warning"], r#"299 - "unknown field \"spec.typo\"""#);
    assert_eq!(response.body()["spec"], json!({"color": "red", "size": 3}));

    let (code, status) = send(&server, "POST", &format!("{THINGS}?fieldValidation=Strict"), object).await;
    assert_eq!(code, 400);
    assert_eq!(
        status["message"],
        "Thing in version \"v1\" cannot be handled as a Thing: strict decoding error: unknown field \"spec.typo\""
    );

    let mut object = thing("b");
    object["spec"] = json!({"color": "green", "size": -1});
    let (code, status) = send(&server, "POST", THINGS, object).await;
    assert_eq!((code, &status["reason"]), (422, &json!("Invalid")));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("spec.color: Unsupported value: \"green\""), "{message}");
    assert!(message.contains("spec.size: Invalid value: -1"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn status_and_scale_are_written_through_their_own_paths() {
    let server = with_things().await;
    ok(&server, "POST", THINGS, thing("a")).await;
    let path = format!("{THINGS}/a");
    let patched = ok(&server, "PATCH", &path, json!({"status": {"size": 9}, "spec": {"size": 5}})).await;
    assert_eq!((&patched["status"], &patched["metadata"]["generation"]), (&Value::Null, &json!(2)));
    let patched =
        ok(&server, "PATCH", &format!("{path}/status"), json!({"status": {"size": 9}, "spec": {"size": 7}}))
            .await;
    assert_eq!((&patched["status"]["size"], &patched["spec"]["size"]), (&json!(9), &json!(5)));
    assert_eq!(patched["metadata"]["generation"], 2, "a status is no desired state");

    let scale = ok(&server, "PATCH", &format!("{path}/scale"), json!({"spec": {"replicas": 11}})).await;
    assert_eq!((&scale["kind"], &scale["status"]["replicas"]), (&json!("Scale"), &json!(9)));
    assert_eq!(get(&server, &path).await.1["spec"]["size"], 11);
}

#[tokio::test(start_paused = true)]
async fn discovery_and_openapi_know_the_resource_while_it_is_defined() {
    let server = with_things().await;
    let list = get(&server, "/apis/example.com/v1").await.1;
    let names: Vec<&str> =
        list["resources"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["things", "things/status", "things/scale"]);
    let document = get(&server, "/openapi/v3/apis/example.com/v1").await.1;
    assert!(document["components"]["schemas"]["com.example.v1.Thing"]["properties"]["spec"].is_object());

    ok(&server, "POST", THINGS, thing("a")).await;
    ok(&server, "DELETE", &format!("{DEFINITIONS}/things.example.com"), Value::Null).await;
    assert_eq!(get(&server, "/apis/example.com/v1").await.0, 404);
    assert_eq!(get(&server, THINGS).await.0, 404);
    ok(&server, "POST", DEFINITIONS, definition()).await;
    assert_eq!(get(&server, THINGS).await.1["items"], json!([]), "the objects went with their definition");
}

#[tokio::test(start_paused = true)]
async fn a_definition_that_contradicts_itself_is_refused() {
    let server = server();
    let mut wrong = definition();
    wrong["metadata"]["name"] = "others.example.com".into();
    wrong["spec"]["versions"][0]["storage"] = false.into();
    let (code, status) = send(&server, "POST", DEFINITIONS, wrong).await;
    assert_eq!(code, 422);
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("must be spec.names.plural+\\\".\\\"+spec.group")
            || message.contains("must be spec.names.plural+\".\"+spec.group"),
        "{message}"
    );
    assert!(message.contains("must have exactly one version marked as storage version"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_second_definition_with_the_same_kind_is_kept_but_not_served() {
    let server = with_things().await;
    let mut second = definition();
    second["metadata"]["name"] = "items.example.com".into();
    second["spec"]["names"] = json!({"plural": "items", "singular": "item", "kind": "Thing"});
    let created = ok(&server, "POST", DEFINITIONS, second).await;
    let condition = created["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["type"] == "NamesAccepted")
        .unwrap();
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("KindConflict")));
    assert_eq!(get(&server, "/apis/example.com/v1/items").await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn definitions_are_served_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = common::options();
    options.state_dir = Some(dir.path().to_owned());
    let server = ApiServer::new(options.clone()).unwrap();
    ok(&server, "POST", DEFINITIONS, definition()).await;
    ok(&server, "POST", THINGS, thing("a")).await;
    drop(server);
    let server = ApiServer::new(options).unwrap();
    assert_eq!(get(&server, &format!("{THINGS}/a")).await.1["spec"]["size"], 3);
}

/// Things whose size never shrinks and stays below 10, and whose status never goes back.
async fn with_rules() -> ApiServer {
    let server = server();
    let mut definition = definition();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    schema["spec"]["x-kubernetes-validations"] = json!([
        {"rule": "self.size >= oldSelf.size", "message": "size must not shrink"},
        {"rule": "self.size < 10", "messageExpression": "'size is ' + string(self.size) + ', at most 9 are possible'"},
    ]);
    schema["status"]["x-kubernetes-validations"] = json!([
        {"rule": "!has(oldSelf.size) || self.size >= oldSelf.size", "message": "must not go back", "fieldPath": ".size"},
    ]);
    ok(&server, "POST", DEFINITIONS, definition).await;
    server
}

#[tokio::test(start_paused = true)]
async fn rules_of_a_definition_are_checked_when_an_object_is_made_and_changed() {
    let server = with_rules().await;
    let mut big = thing("big");
    big["spec"]["size"] = 11.into();
    let (code, status) = send(&server, "POST", THINGS, big).await;
    assert_eq!((code, &status["reason"]), (422, &json!("Invalid")));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("size is 11, at most 9 are possible"), "{message}");
    assert!(!message.contains("size must not shrink"), "there was no size before: {message}");

    let mut object = thing("a");
    object["spec"]["size"] = 5.into();
    ok(&server, "POST", THINGS, object).await;
    let path = format!("{THINGS}/a");
    ok(&server, "PATCH", &path, json!({"spec": {"size": 6}})).await;
    let (code, status) = send(&server, "PATCH", &path, json!({"spec": {"size": 4}})).await;
    assert_eq!(code, 422);
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(causes[0]["field"], "spec");
    let message = causes[0]["message"].as_str().unwrap();
    assert!(message.contains("size must not shrink"), "{message}");
    assert_eq!(get(&server, &path).await.1["spec"]["size"], 6);
}

#[tokio::test(start_paused = true)]
async fn rules_of_a_status_are_checked_through_its_own_path() {
    let server = with_rules().await;
    ok(&server, "POST", THINGS, thing("a")).await;
    let path = format!("{THINGS}/a/status");
    for size in [2, 3, 3] {
        ok(&server, "PATCH", &path, json!({"status": {"size": size}})).await;
    }
    let (code, status) =
        send(&server, "PATCH", &path, json!({"status": {"size": 1}, "spec": {"size": 1}})).await;
    assert_eq!(code, 422);
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.len(), 1, "a status write leaves the spec alone: {causes:?}");
    assert_eq!(causes[0]["field"], "status.size");
    let message = causes[0]["message"].as_str().unwrap();
    assert!(message.contains("must not go back"), "{message}");
    // Nor does a write of the object touch the status.
    let patched =
        ok(&server, "PATCH", &format!("{THINGS}/a"), json!({"status": {"size": 1}, "spec": {"size": 4}}))
            .await;
    assert_eq!((&patched["status"]["size"], &patched["spec"]["size"]), (&json!(3), &json!(4)));
}
