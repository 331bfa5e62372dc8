//! Who may do what, through the API.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::sync::Arc;

use gantry_apiserver::{ApiServer, Options, User};
use gantry_kit::{SeededIds, VirtualClock};
use http::Request;
use http_body_util::{BodyExt, Full};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use tower::ServiceExt;

fn server() -> ApiServer {
    let clock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
    ApiServer::new(Options::new(clock, Arc::new(SeededIds::new(1)))).unwrap()
}

/// What the network would get: the code and the body.
async fn get(server: &ApiServer, path: &str, headers: &[(&str, &str)]) -> (u16, Value) {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = server.service().oneshot(request.body(Full::default()).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

#[tokio::test(start_paused = true)]
async fn strangers_see_health_and_version_and_nothing_else() {
    let server = server();
    for (path, code) in [("/healthz", 200), ("/version", 200), ("/apis", 403), ("/api/v1/namespaces", 403)] {
        assert_eq!(get(&server, path, &[]).await.0, code, "{path}");
    }
    assert_eq!(get(&server, "/version", &[("authorization", "Bearer no")]).await.0, 401);
}

#[tokio::test(start_paused = true)]
async fn a_binding_lets_a_token_read_a_namespace() {
    let server = server();
    server.add_token("secret", User::new("ann", &[]));
    let bearer = [("authorization", "Bearer secret")];
    let path = "/api/v1/namespaces/default/configmaps";
    let (code, status) = get(&server, path, &bearer).await;
    assert_eq!(code, 403);
    assert_eq!(
        status["message"],
        "configmaps is forbidden: User \"ann\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    let bindings: Api<RoleBinding> = Api::default_namespaced(server.client());
    let binding = json!({
        "metadata": {"name": "readers"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}],
        "roleRef": {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "view"},
    });
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    assert_eq!(get(&server, path, &bearer).await.0, 200);
    assert_eq!(get(&server, "/api/v1/namespaces/default/secrets", &bearer).await.0, 403);
    assert_eq!(get(&server, path, &[bearer[0], ("impersonate-user", "bob")]).await.0, 403);
}

#[tokio::test(start_paused = true)]
async fn reviews_tell_users_what_they_may_do() {
    let server = server();
    let ask = |client: kube::Client| async move {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {},
            "spec": {"resourceAttributes": {"verb": "delete", "resource": "nodes"}},
        });
        let api: Api<SelfSubjectAccessReview> = Api::all(client);
        let review = serde_json::from_value(review).unwrap();
        api.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
    };
    assert!(ask(server.client()).await);
    assert!(!ask(server.client_as("ann", &[])).await);
}

#[tokio::test(start_paused = true)]
async fn a_service_account_gets_a_token_that_identifies_it() {
    let server = server();
    let accounts: Api<ServiceAccount> = Api::default_namespaced(server.client());
    let account = serde_json::from_value(json!({"metadata": {"name": "bot"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let request: TokenRequest =
        serde_json::from_value(json!({"metadata": {}, "spec": {"audiences": []}})).unwrap();
    let answer = accounts.create_token_request("bot", &PostParams::default(), &request).await.unwrap();
    let token = answer.status.unwrap().token;
    let (code, status) =
        get(&server, "/api/v1/nodes", &[("authorization", &format!("Bearer {token}"))]).await;
    assert_eq!(code, 403);
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("User \"system:serviceaccount:default:bot\" cannot list"), "{message}");
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client_as("ann", &[]));
    assert!(maps.list(&ListParams::default()).await.is_err());
}
