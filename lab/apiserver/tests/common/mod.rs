//! What the tests share: a server in virtual time, and requests as curl would make them.
#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub, reason = "tests; each uses a part")]

use std::sync::Arc;

use bytes::Bytes;
use gantry_apiserver::{ApiServer, Options};
use gantry_kit::{SeededIds, VirtualClock};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tower::ServiceExt;

pub fn options() -> Options {
    options_of(1)
}

fn options_of(seed: u64) -> Options {
    let clock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
    Options::new(clock, Arc::new(SeededIds::new(seed)))
}

/// A server whose identifiers follow from `seed`.
pub fn server_of(seed: u64) -> ApiServer {
    ApiServer::new(options_of(seed)).unwrap()
}

pub fn server() -> ApiServer {
    ApiServer::new(options()).unwrap()
}

/// A request with the given content type; the answer's body is read whole.
pub async fn send_as(
    server: &ApiServer,
    method: &str,
    path: &str,
    content_type: &str,
    body: impl Into<Bytes>,
) -> Response<Value> {
    let request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).unwrap())
        .uri(path)
        .header("content-type", content_type)
        .body(Full::new(body.into()))
        .unwrap();
    let (parts, body) = server.admin_service().oneshot(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

/// A request; a `PATCH` is a merge patch.
pub async fn send(server: &ApiServer, method: &str, path: &str, body: Value) -> (u16, Value) {
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let response = send_as(server, method, path, content_type, body).await;
    (response.status().as_u16(), response.into_body())
}

pub async fn get(server: &ApiServer, path: &str) -> (u16, Value) {
    send(server, "GET", path, Value::Null).await
}

/// Sends what must succeed.
pub async fn ok(server: &ApiServer, method: &str, path: &str, body: Value) -> Value {
    let (code, answer) = send(server, method, path, body).await;
    assert!(code < 300, "{method} {path}: {code} {answer}");
    answer
}

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "busybox:1.36"}]},
    })
}
