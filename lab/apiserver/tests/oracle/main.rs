//! The same requests to this server and to a real kube-apiserver, and what differs between the answers.
//!
//! `GANTRY_ORACLE_KUBECONFIG` names the kubeconfig of a cluster that may be written to (`gantry-kubernetes up` makes one). Without it the
//! requests are sent to this server alone, twice, which proves that the answers are normalised enough to be compared.
//! With `BLESS=1` the differences that are on purpose are written into `docs/compat.md`, with their reasons.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs, reason = "tests; what is skipped says so")]

mod differences;
mod normal;
mod requests;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use gantry_apiserver::{ApiServer, Options};
use gantry_kit::{RandomIds, SystemClock};
use http_body_util::BodyExt;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use self::differences::{ANY_ORDER, DIFFERENCES};
use self::requests::{Step, steps};

/// What a server answered to a step.
struct Answer {
    code: u16,
    warnings: Vec<String>,
    body: Value,
}

/// Values of earlier answers that later requests refer to.
#[derive(Default)]
struct Memory {
    revision: String,
    uid: String,
    continue_token: String,
}

impl Memory {
    fn fill(&self, text: &str, namespace: &str) -> String {
        text.replace("{ns}", namespace)
            .replace("{rv}", &self.revision)
            .replace("{uid}", &self.uid)
            .replace("{continue}", &self.continue_token)
    }

    fn learn(&mut self, body: &Value) {
        let metadata = &body["metadata"];
        for (field, slot) in [
            ("resourceVersion", &mut self.revision),
            ("uid", &mut self.uid),
            ("continue", &mut self.continue_token),
        ] {
            if let Some(text) = metadata[field].as_str() {
                text.clone_into(slot);
            }
        }
    }
}

async fn send(client: &Client, step: &Step, memory: &Memory, namespace: &str) -> Answer {
    let body = memory.fill(&step.body, namespace);
    let request = http::Request::builder()
        .method(step.method)
        .uri(memory.fill(step.path, namespace))
        .header("content-type", step.content_type)
        .header("accept", "application/json")
        .header("user-agent", "oracle/1.0")
        .body(kube::client::Body::from(body.into_bytes()))
        .unwrap();
    let response = client.send(request).await.unwrap();
    let code = response.status().as_u16();
    let warnings = response
        .headers()
        .get_all("warning")
        .iter()
        .filter_map(|value| value.to_str().ok().map(str::to_owned))
        .collect();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| {
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let lines: Result<Vec<Value>, _> = lines.map(serde_json::from_slice).collect();
        lines.map_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into(), Value::Array)
    });
    Answer { code, warnings, body }
}

/// Sends all steps within a namespace of their own; the answers in a form that can be compared.
async fn run(client: &Client, namespace: &str) -> Vec<Value> {
    let mut memory = Memory::default();
    let mut answers = Vec::new();
    for step in steps() {
        let answer = send(client, &step, &memory, namespace).await;
        memory.learn(&answer.body);
        if step.name.starts_with("setup") {
            assert!(answer.code < 300, "{}: {} {}", step.name, answer.code, answer.body);
            // What Kubernetes' controllers do to a new namespace or definition takes a moment.
            tokio::time::sleep(std::time::Duration::from_millis(step.pause_ms)).await;
        }
        answers.push(json!({
            "code": answer.code,
            "warnings": answer.warnings,
            "body": normal::form(answer.body, namespace),
        }));
    }
    let clean_up = [
        "/api/v1/namespaces/{ns}",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.oracle.example.com",
    ];
    for path in clean_up {
        let step = Step::new("clean up", "DELETE", path, "application/json", String::new());
        send(client, &step, &memory, namespace).await;
    }
    answers
}

fn embedded() -> Client {
    let options = Options::new(std::sync::Arc::new(SystemClock), std::sync::Arc::new(RandomIds::default()));
    ApiServer::new(options).unwrap().client()
}

async fn real() -> Option<Client> {
    let path = std::env::var_os("GANTRY_ORACLE_KUBECONFIG")?;
    gantry_kit::install_crypto();
    let kubeconfig = Kubeconfig::read_from(path).unwrap();
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Some(Client::try_from(config).unwrap())
}

/// The places where two values differ: JSON pointer, ours, theirs.
fn differences(path: &str, ours: &Value, theirs: &Value, out: &mut Vec<(String, Value, Value)>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let (a, b) = (a.get(name).unwrap_or(&Value::Null), b.get(name).unwrap_or(&Value::Null));
                differences(&format!("{path}/{name}"), a, b, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{index}"), a, b, out);
            }
        }
        (a, b) if a == b => {}
        (a, b) => out.push((path.to_owned(), a.clone(), b.clone())),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn this_server_answers_as_kubernetes_does() {
    let namespace = format!("oracle-{}", std::process::id());
    let ours = run(&embedded(), &namespace).await;
    let Some(real) = real().await else {
        eprintln!("skipped: no GANTRY_ORACLE_KUBECONFIG: answers are compared with those of a second run");
        let again = run(&embedded(), &format!("{namespace}-again")).await;
        for ((step, first), second) in steps().iter().zip(&ours).zip(&again) {
            assert_eq!(first, second, "{} has answers that cannot be compared", step.name);
        }
        return;
    };
    let theirs = run(&real, &namespace).await;
    let mut problems = String::new();
    let mut met = BTreeSet::new();
    for ((step, ours), theirs) in steps().iter().zip(&ours).zip(&theirs) {
        let mut found = Vec::new();
        differences("", ours, theirs, &mut found);
        for (path, ours, theirs) in found {
            let known = DIFFERENCES.iter().position(|known| known.covers(step.name, &path));
            match known {
                Some(index) => {
                    met.insert(index);
                }
                None => {
                    let _ =
                        writeln!(problems, "{} {path}\n    ours   {ours}\n    theirs {theirs}", step.name);
                }
            }
        }
    }
    if let Some(path) = std::env::var_os("ORACLE_OUT") {
        std::fs::write(path, &problems).unwrap();
    }
    for (index, known) in DIFFERENCES.iter().enumerate() {
        if !met.contains(&index) && known.why != ANY_ORDER {
            let _ = writeln!(problems, "no longer different: {} {}", known.steps, known.path);
        }
    }
    assert!(problems.is_empty(), "{problems}");
}

#[test]
fn the_differences_are_in_the_documentation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compat.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let before = page.find(differences::HEADING).map_or(page.as_str(), |at| &page[..at]);
    let wanted = format!("{}\n\n{}", before.trim_end(), differences::section());
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
        return;
    }
    assert_eq!(page, wanted, "docs/compat.md: BLESS=1 cargo test -p gantry-apiserver --test oracle");
}
