//! Figures rather than behaviour: `cargo test --release -p gantry-apiserver --test throughput -- --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "tests")]

mod common;

use std::time::Instant;

use serde_json::json;

const PODS: usize = 10_000;

#[tokio::test]
#[ignore = "prints figures of this machine; asserts nothing about them"]
async fn pods_through_create_bind_and_status() {
    let server = common::server();
    let started = Instant::now();
    let base = "/api/v1/namespaces/default/pods";
    for i in 0..PODS {
        let name = format!("pod-{i}");
        common::ok(&server, "POST", base, common::pod(&name)).await;
        let binding = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}});
        common::ok(&server, "POST", &format!("{base}/{name}/binding"), binding).await;
        let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}});
        common::ok(&server, "PATCH", &format!("{base}/{name}/status"), status).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{:.0} pods/s through create, bind and status", PODS as f64 / seconds);
    for round in ["first", "second"] {
        let started = Instant::now();
        let list = common::get(&server, "/api/v1/pods").await.1;
        assert_eq!(list["items"].as_array().unwrap().len(), PODS);
        println!("{round} list of {PODS} pods, parsed: {} ms", started.elapsed().as_millis());
    }
}
