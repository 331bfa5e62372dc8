//! Benchmarks of a whole cluster: `cargo xtask bench [NAME] [-o json]`.
//!
//! Each prints its figures beside a baseline. Where the baseline is a rival way of doing the same, both are measured in this
//! run, on this machine; where it is a promise of the project, it says `target`.
#![expect(clippy::print_stdout, reason = "a command-line tool speaks through it")]

mod agent;
mod fill;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures::TryStreamExt as _;
use gantry_apiserver::{ApiServer, Options};
use gantry_kit::{RandomIds, SystemClock};
use gantry_testkit::Lab;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

/// As in the `gantry` binary, whose speed is measured.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One figure.
struct Figure {
    name: &'static str,
    value: f64,
    unit: &'static str,
    /// What it is compared with.
    baseline: f64,
    /// What the baseline is.
    against: &'static str,
}

/// A benchmark's name and what runs it.
type Bench = (&'static str, fn() -> futures::future::BoxFuture<'static, anyhow::Result<Vec<Figure>>>);

const BENCHES: &[Bench] = &[
    ("up", || Box::pin(up())),
    ("fill", || Box::pin(fill::fill())),
    ("list", || Box::pin(list())),
    ("agent", || Box::pin(agent::agent())),
];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut json = false;
    let mut wanted = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-o" => json = arguments.next().as_deref() == Some("json"),
            name => wanted = Some(name.to_owned()),
        }
    }
    if let Some(name) = &wanted
        && !BENCHES.iter().any(|(known, _)| known == name)
    {
        let known: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
        bail!("no benchmark {name}: use one of {}", known.join(", "));
    }
    for (name, run) in BENCHES {
        if wanted.as_ref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        for figure in run().await.with_context(|| format!("benchmark {name}"))? {
            let ratio = figure.value / figure.baseline;
            if json {
                let line = json!({
                    "name": figure.name, "value": figure.value, "unit": figure.unit,
                    "baseline": figure.baseline, "against": figure.against, "ratio": ratio,
                });
                println!("{line}");
            } else {
                println!(
                    "{:<28} {:>12.1} {:<8} {:>12.1} {} (ratio {ratio:.2})",
                    figure.name, figure.value, figure.unit, figure.baseline, figure.against
                );
            }
        }
    }
    Ok(())
}

/// From nothing to a cluster with a running GPU pod.
async fn up() -> anyhow::Result<Vec<Figure>> {
    let start = Instant::now();
    let lab = Lab::start(&[("a100-80", 2), ("h100", 1), ("rtx3090", 1), ("t4", 1)]).await?;
    let ready = start.elapsed();
    lab.post("/api/v1/namespaces/default/pods", &pod("first", 1)).await?.ok()?;
    gantry_testkit::eventually("the first pod runs", async || {
        let pod = lab.get("/api/v1/namespaces/default/pods/first").await?;
        ensure!(pod["status"]["phase"] == "Running");
        Ok(())
    })
    .await?;
    let running = start.elapsed();
    lab.stop().await;
    Ok(vec![
        Figure { name: "up/ready", value: seconds(ready), unit: "s", baseline: 1.0, against: "target" },
        Figure { name: "up/first-pod", value: seconds(running), unit: "s", baseline: 3.0, against: "target" },
    ])
}

const LISTED_PODS: usize = 10_000;

/// A list of 10,000 pods as kubectl asks for it, and the same bytes parsed once.
async fn list() -> anyhow::Result<Vec<Figure>> {
    let server = ApiServer::new(Options::new(Arc::new(SystemClock), Arc::new(RandomIds::default())))?;
    let client = server.client();
    create_all(&client, (0..LISTED_PODS).map(|index| pod(&format!("pod-{index}"), 1))).await?;
    let start = Instant::now();
    let bytes = request_bytes(&client, "GET", "/api/v1/pods", "application/json", &Value::Null).await?;
    let listed = start.elapsed();
    let start = Instant::now();
    let parsed: Value = serde_json::from_slice(&bytes)?;
    let parse = start.elapsed();
    ensure!(parsed["items"].as_array().is_some_and(|items| items.len() == LISTED_PODS), "a short list");
    Ok(vec![
        Figure {
            name: "list/10k",
            value: seconds(listed) * 1e3,
            unit: "ms",
            baseline: seconds(parse) * 1e3,
            against: "parsing the answer",
        },
        Figure {
            name: "list/10k",
            value: seconds(listed) * 1e3,
            unit: "ms",
            baseline: 300.0,
            against: "target",
        },
    ])
}

fn pod(name: &str, gpus: u32) -> Value {
    let mut limits = json!({"cpu": "100m", "memory": "128Mi"});
    if gpus > 0 {
        limits["nvidia.com/gpu"] = gpus.to_string().into();
    }
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "app", "resources": {"limits": limits}}]},
    })
}

async fn create_all(client: &Client, pods: impl Iterator<Item = Value>) -> anyhow::Result<()> {
    futures::stream::iter(pods.map(anyhow::Ok))
        .try_for_each_concurrent(64, async |pod| {
            request(client, "POST", "/api/v1/namespaces/default/pods", "application/json", &pod).await
        })
        .await
}

async fn request(
    client: &Client,
    method: &str,
    path: &str,
    content: &str,
    body: &Value,
) -> anyhow::Result<()> {
    request_bytes(client, method, path, content, body).await.map(drop)
}

async fn request_bytes(
    client: &Client,
    method: &str,
    path: &str,
    content: &str,
    body: &Value,
) -> anyhow::Result<Vec<u8>> {
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body)? };
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", content)
        .body(kube::client::Body::from(body))?;
    let response = client.send(request).await?;
    let status = response.status();
    let bytes = http_body_util::BodyExt::collect(response.into_body()).await?.to_bytes().to_vec();
    ensure!(status.is_success(), "{method} {path}: {status}: {}", String::from_utf8_lossy(&bytes));
    Ok(bytes)
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// The process's resident memory, from the kernel.
fn resident_mib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS line")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().context("read VmRSS")?;
    Ok(kib / 1024.0)
}
