//! Evictions and the budgets that they go by.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use common::{get, ok, pod, send, send_as, server};
use gantry_apiserver::ApiServer;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

/// A pod that runs on a node, so that it takes its time to end.
async fn run(server: &ApiServer, name: &str) {
    let mut pod = pod(name);
    pod["metadata"]["labels"]["app"] = "web".into();
    pod["spec"]["nodeName"] = "n1".into();
    ok(server, "POST", PODS, pod).await;
    ok(server, "PATCH", &format!("{PODS}/{name}/status"), json!({"status": {"phase": "Running"}})).await;
}

async fn budget(server: &ApiServer, name: &str) {
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
    });
    ok(server, "POST", BUDGETS, budget).await;
}

/// What the disruption controller writes.
async fn allow(server: &ApiServer, name: &str, disruptions: u32) {
    let status = json!({
        "observedGeneration": 1, "disruptionsAllowed": disruptions, "desiredHealthy": 2,
        "currentHealthy": 2 + disruptions, "expectedPods": 3,
    });
    ok(server, "PATCH", &format!("{BUDGETS}/{name}/status"), json!({"status": status})).await;
}

async fn evict(server: &ApiServer, name: &str, options: Value) -> (u16, Value) {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"},
        "deleteOptions": options,
    });
    send(server, "POST", &format!("{PODS}/{name}/eviction"), eviction).await
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_spent_refuses_an_eviction() {
    let server = server();
    run(&server, "a").await;
    budget(&server, "web").await;

    let (code, status) = evict(&server, "a", Value::Null).await;
    assert_eq!((code, &status["details"]["retryAfterSeconds"]), (429, &json!(10)));
    let message = "The disruption budget web is still being processed by the server.";
    assert_eq!(status["details"]["causes"], json!([{"reason": "DisruptionBudget", "message": message}]));

    allow(&server, "web", 0).await;
    let (code, status) = evict(&server, "a", Value::Null).await;
    assert_eq!((code, &status["reason"]), (429, &json!("TooManyRequests")));
    assert_eq!(status["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
    let message = "The disruption budget web needs 2 healthy pods and has 2 currently";
    assert_eq!(status["details"]["causes"], json!([{"reason": "DisruptionBudget", "message": message}]));
    assert!(get(&server, &format!("{PODS}/a")).await.1["metadata"]["deletionTimestamp"].is_null());

    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}});
    let path = format!("{PODS}/a/eviction");
    let response = send_as(&server, "POST", &path, "application/json", eviction.to_string()).await;
    assert!(!response.headers().contains_key("retry-after"), "nobody knows when it will be possible");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_takes_one_disruption_from_the_budget() {
    let server = server();
    for name in ["a", "b"] {
        run(&server, name).await;
    }
    budget(&server, "web").await;
    allow(&server, "web", 1).await;
    let status = async || get(&server, &format!("{BUDGETS}/web")).await.1["status"].clone();

    assert_eq!(evict(&server, "a", json!({"dryRun": ["All"]})).await.0, 201);
    assert_eq!(status().await["disruptionsAllowed"], 1, "a dry run takes nothing");

    let (code, answer) = evict(&server, "a", Value::Null).await;
    assert_eq!((code, &answer["status"]), (201, &json!("Success")));
    let spent = status().await;
    assert_eq!(spent["disruptionsAllowed"], 0);
    assert_eq!(spent["disruptedPods"], json!({"a": "2026-01-01T00:00:00Z"}));
    let evicted = get(&server, &format!("{PODS}/a")).await.1;
    assert!(!evicted["metadata"]["deletionTimestamp"].is_null());
    let conditions = evicted["status"]["conditions"].as_array().unwrap();
    let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").unwrap();
    assert_eq!((&target["status"], &target["reason"]), (&json!("True"), &json!("EvictionByEvictionAPI")));

    assert_eq!(evict(&server, "a", Value::Null).await.0, 201, "it is on its way out already");
    assert_eq!(evict(&server, "b", Value::Null).await.0, 429);
    // Who does not run serves nobody.
    ok(&server, "PATCH", &format!("{PODS}/b/status"), json!({"status": {"phase": "Failed"}})).await;
    assert_eq!(evict(&server, "b", Value::Null).await.0, 201);
    assert_eq!(evict(&server, "nobody", Value::Null).await.0, 404);
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_two_budgets_cannot_be_evicted() {
    let server = server();
    run(&server, "a").await;
    for name in ["web", "web-too"] {
        budget(&server, name).await;
        allow(&server, name, 1).await;
    }
    let (code, status) = evict(&server, "a", Value::Null).await;
    assert_eq!((code, &status["reason"]), (500, &json!("InternalError")));
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains(
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        ),
        "{message}"
    );
    assert_eq!(get(&server, &format!("{BUDGETS}/web")).await.1["status"]["disruptionsAllowed"], 1);
}
