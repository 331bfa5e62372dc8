//! What the server cannot take is refused with a text that says what to change; nothing of it stays, and the server goes on.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use gantry_testkit::{Lab, eventually};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A request that must be refused.
struct Case {
    name: &'static str,
    method: &'static str,
    path: String,
    content_type: &'static str,
    body: Vec<u8>,
    status: u16,
    /// What the message must contain. Kubernetes' own says less.
    says: &'static [&'static str],
    /// Where Kubernetes answers otherwise: its status, 0 for an answer that does not end; and why ours is another.
    real: Option<(u16, &'static str)>,
}

impl Case {
    fn post(
        name: &'static str,
        path: &str,
        body: impl Into<Vec<u8>>,
        status: u16,
        says: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            method: "POST",
            path: path.to_owned(),
            content_type: JSON,
            body: body.into(),
            status,
            says,
            real: None,
        }
    }

    fn really(mut self, status: u16, why: &'static str) -> Self {
        self.real = Some((status, why));
        self
    }

    fn typed(mut self, content_type: &'static str) -> Self {
        self.content_type = content_type;
        self
    }

    fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }
}

fn pod_with(resources: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
    })
}

fn gpu(limit: Value) -> Vec<u8> {
    pod_with(json!({"limits": {"nvidia.com/gpu": limit}})).to_string().into()
}

async fn raw(
    lab: &Lab,
    method: &str,
    path: &str,
    content_type: &str,
    body: Vec<u8>,
) -> anyhow::Result<(u16, Value)> {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("Content-Type", content_type)
        .body(kube::client::Body::from(body))?;
    let answer = async {
        let response = lab.client().send(request).await?;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    };
    tokio::time::timeout(PATIENCE, answer).await.context("the answer does not end")?
}

/// How long a refusal may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    let valid = pod_with(json!({}));
    let nested = |depth: usize, open: &str, close: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"bad"}},"data":{}{}}}"#,
            open.repeat(depth),
            close.repeat(depth)
        )
    };
    let mut annotated = valid.clone();
    annotated["metadata"]["annotations"] = json!({"a": "x".repeat(1 << 20)});
    let mut crowd = valid.clone();
    crowd["spec"]["containers"] =
        (0..5_000).map(|_| json!({"name": "same", "image": "i"})).collect::<Vec<_>>().into();
    let mut unknown = valid.clone();
    unknown["spec"]["containers"][0]["gpus"] = json!(1);
    let mut misplaced = valid.clone();
    misplaced["spec"]["containers"][0]["resources"] = json!({"cpu": "1"});
    let mut text_for_number = valid.clone();
    text_for_number["spec"]["containers"][0]["ports"] = json!([{"containerPort": "eighty"}]);
    let mut list_for_map = valid.clone();
    list_for_map["metadata"]["labels"] = json!(["a"]);
    let mut wide_name = valid.clone();
    wide_name["metadata"]["name"] = json!("Not_A_Name");
    let mut endless_name = valid.clone();
    endless_name["metadata"]["name"] = json!("a".repeat(100_000));
    let mut elsewhere = valid.clone();
    elsewhere["metadata"]["namespace"] = json!("other");
    let strict = format!("{PODS}?fieldValidation=Strict");
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    vec![
        Case::post("empty body", PODS, "", 400, &["JSON"]),
        Case::post("empty YAML", PODS, "", 400, &[]).typed(YAML)
            .really(422, "takes nothing for an object without fields"),
        Case::post("half an object", PODS, r#"{"apiVersion":"v1","kind":"Pod""#, 400, &["JSON", "line 1"]),
        Case::post("two objects", PODS, "{}{}", 400, &["JSON"]),
        Case::post("a list", PODS, "[]", 400, &[]),
        Case::post("a number", PODS, "7", 400, &[]),
        Case::post("null", PODS, "null", 400, &[])
            .really(422, "takes null for an object without fields"),
        Case::post("no JSON at all", PODS, "apiVersion: v1", 400, &["JSON"]),
        Case::post("invalid UTF-8", PODS, b"{\"kind\":\"\xff\xfe\"}".to_vec(), 400, &["JSON"]),
        Case::post("invalid UTF-8 in YAML", PODS, b"kind: \xff\xfe".to_vec(), 400, &["YAML"]).typed(YAML),
        Case::post("malformed YAML", PODS, "kind: [Pod", 400, &["YAML", "line"]).typed(YAML),
        Case::post("a YAML bomb", PODS, yaml_bomb(), 400, &["YAML"]).typed(YAML),
        Case::post("deep YAML", PODS, "[".repeat(10_000), 400, &["YAML"]).typed(YAML),
        Case::post("broken protobuf", PODS, b"k8s\0\xff\xff\xff\xff".to_vec(), 400, &[])
            .typed("application/vnd.kubernetes.protobuf"),
        Case::post("wrong content type", PODS, valid.to_string(), 415, &["application/json"]).typed("text/plain"),
        Case::post("deep objects", "/api/v1/namespaces/default/configmaps", nested(10_000, r#"{"a":"#, "}"), 400, &[
            "recursion",
        ]),
        Case::post("deep lists", "/api/v1/namespaces/default/configmaps", nested(10_000, "[", "]"), 400, &[
            "recursion",
        ]),
        Case::post("another kind", PODS, r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"bad"}}"#, 400, &[
            "Service", "Pod",
        ]),
        Case::post("another version", PODS, r#"{"apiVersion":"v9","kind":"Pod","metadata":{"name":"bad"}}"#, 400, &[
            "v9",
        ]),
        Case::post("an unknown resource", "/api/v1/namespaces/default/gpus", valid.to_string(), 404, &[]),
        Case::post("a missing namespace", "/api/v1/namespaces/nowhere/pods", valid.to_string(), 404, &["nowhere"]),
        Case::post("another namespace than the path", PODS, elsewhere.to_string(), 400, &["namespace"]),
        Case::post("more than the limit", PODS, vec![b' '; (3 << 20) + 1], 413, &["limit"]),
        Case::post("1 MiB of annotations", PODS, annotated.to_string(), 422, &["metadata.annotations", "262144"]),
        Case::post("a name that is none", PODS, wide_name.to_string(), 422, &["metadata.name", "Not_A_Name"]),
        Case::post("an endless name", PODS, endless_name.to_string(), 422, &["metadata.name", "253"]),
        Case::post("labels as a list", PODS, list_for_map.to_string(), 400, &["metadata.labels"]),
        Case::post("a word for a number", PODS, text_for_number.to_string(), 400, &["containerPort"]),
        Case::post("5,000 containers of one name", PODS, crowd.to_string(), 422, &["Duplicate value"]),
        Case::post("no containers", PODS, r#"{"metadata":{"name":"bad"},"spec":{}}"#, 422, &["spec.containers"]),
        Case::post("an unknown field", &strict, unknown.to_string(), 400, &["spec.containers[0].gpus"]),
        Case::post("a misplaced field", &strict, misplaced.to_string(), 400, &["spec.containers[0].resources.cpu"]),
        Case::post("a field twice", &strict, r#"{"metadata":{"name":"bad","name":"bad"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#, 400, &[
            "metadata.name",
        ]),
        Case::post("negative GPUs", PODS, gpu(json!("-1")), 422, &["nvidia.com/gpu", "-1", "greater than or equal to 0"]),
        Case::post("negative GPUs as a number", PODS, gpu(json!(-1)), 422, &["nvidia.com/gpu", "-1"]),
        Case::post("half a GPU", PODS, gpu(json!("500m")), 422, &["nvidia.com/gpu", "must be an integer"]),
        Case::post("half a GPU as a number", PODS, gpu(json!(0.5)), 422, &["nvidia.com/gpu", "must be an integer"]),
        Case::post("a word of GPUs", PODS, gpu(json!("many")), 400, &["limits.nvidia.com/gpu", "quantities must match"]),
        Case::post("true GPUs", PODS, gpu(json!(true)), 400, &["limits", "resource.Quantity"]),
        Case::post("more GPUs than a quantity holds", PODS, gpu(json!("1e30")), 400, &["limits.nvidia.com/gpu", "1e30", "9223372036854775807"])
            .really(201, "cuts the number off in silence"),
        Case::post("more GPUs than a number holds", PODS, gpu(json!(1e30)), 400, &["limits.nvidia.com/gpu", "9223372036854775807"])
            .really(409, "would cut it off too, and has the pod of the line above"),
        Case::post("a precondition of another type", &format!("{PODS}/good"), r#"{"preconditions":{"uid":5}}"#, 400, &["preconditions.uid"]).method("DELETE"),
        Case::post("an unknown dry run of a deletion", &format!("{PODS}/good"), r#"{"dryRun":["Some"]}"#, 422, &["dryRun", "Some"]).method("DELETE"),
        Case::post("an eviction of another pod", &format!("{PODS}/good/eviction"), r#"{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"good"},"deleteOptions":{"preconditions":{"uid":"1"}}}"#, 409, &["the UID in the precondition (1) does not match the UID in record"]),
        Case::post("an empty quantity", PODS, gpu(json!("")), 400, &[]),
        Case::post("a request without a limit", PODS, pod_with(json!({"requests": {"nvidia.com/gpu": 1}})).to_string(), 422, &[
            "spec.containers[0].resources.limits", "Limit must be set for non overcommitable resources",
        ]),
        Case::post("a request that is not the limit", PODS, pod_with(json!({"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}})).to_string(), 422, &[
            "must be equal to nvidia.com/gpu limit of 2",
        ]),
        Case::post("memory above the limit", PODS, pod_with(json!({"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}})).to_string(), 422, &[
            "must be less than or equal to memory limit of 1Gi",
        ]),
        Case::post("a bad template", deployments, json!({
            "metadata": {"name": "bad"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{
                    "name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1.5"}},
                }]}},
            },
        }).to_string(), 422, &["spec.template.spec.containers[0].resources.limits[nvidia.com/gpu]", "must be an integer"]),
        Case::post("a template for others", deployments, json!({
            "metadata": {"name": "bad"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "c"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        }).to_string(), 422, &["spec.template.metadata.labels", "selector"]),
        Case::post("negative replicas", deployments, json!({
            "metadata": {"name": "bad"},
            "spec": {
                "replicas": -1,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        }).to_string(), 422, &["spec.replicas", "-1"]),
        Case::post("endless replicas", deployments, r#"{"metadata":{"name":"bad"},"spec":{"replicas":99999999999}}"#, 400, &[
            "spec.replicas",
        ]),
        Case::post("a broken JSON patch", &format!("{PODS}/good"), r#"[{"op":"remove","path":"/nowhere"}]"#, 422, &["/nowhere"])
            .method("PATCH").typed("application/json-patch+json"),
        Case::post("a JSON patch that is none", &format!("{PODS}/good"), r#"{"op":"remove"}"#, 400, &[])
            .method("PATCH").typed("application/json-patch+json"),
        Case::post("a half-good JSON patch", &format!("{PODS}/good"), r#"[{"op":"add","path":"/metadata/labels","value":{"half":"done"}},{"op":"test","path":"/kind","value":"Job"}]"#, 422, &[])
            .method("PATCH").typed("application/json-patch+json"),
        Case::post("a merge patch of a list", &format!("{PODS}/good"), "[1]", 400, &[])
            .method("PATCH").typed("application/merge-patch+json"),
        Case::post("a deep merge patch", &format!("{PODS}/good"), nested(10_000, r#"{"a":"#, "}"), 400, &["recursion"])
            .method("PATCH").typed("application/merge-patch+json"),
        Case::post("a patch of no known type", &format!("{PODS}/good"), "{}", 415, &["application/merge-patch+json"])
            .method("PATCH"),
        Case::post("a patch that breaks a rule", &format!("{PODS}/good"), r#"{"metadata":{"labels":{"half":"done","bad label":"x"}}}"#, 422, &["metadata.labels", "bad label"])
            .method("PATCH").typed("application/merge-patch+json"),
        Case::post("a change of what is settled", &format!("{PODS}/good"), r#"{"metadata":{"labels":{"half":"done"}},"spec":{"nodeName":"b"}}"#, 422, &["spec"])
            .method("PATCH").typed("application/strategic-merge-patch+json"),
        Case::post("a stale update", &format!("{PODS}/good"), r#"{"metadata":{"resourceVersion":"1","labels":{"half":"done"}}}"#, 409, &["the object has been modified"])
            .method("PATCH").typed("application/merge-patch+json"),
        Case::post("a revision that is none", &format!("{PODS}/good"), r#"{"metadata":{"resourceVersion":"x"}}"#, 409, &[])
            .method("PATCH").typed("application/merge-patch+json").really(500, "takes a bad request for its own fault"),
        Case::post("another UID", &format!("{PODS}/good"), r#"{"preconditions":{"uid":"11111111-1111-1111-1111-111111111111"}}"#, 409, &["does not match the UID in record"])
            .method("DELETE"),
        Case::post("a binding to nowhere", &format!("{PODS}/good/binding"), r#"{"apiVersion":"v1","kind":"Binding","metadata":{"name":"good"}}"#, 422, &["target"])
            .really(500, "takes a bad request for its own fault"),
        Case::post("a selector that is none", &format!("{PODS}?labelSelector=a%20in%20("), "", 400, &["unable to parse requirement"])
            .method("GET"),
        Case::post("a field that cannot be selected by", &format!("{PODS}?fieldSelector=spec.x=1"), "", 400, &["spec.x"])
            .method("GET"),
        Case::post("a limit that is none", &format!("{PODS}?limit=-1"), "", 400, &["-1"]).method("GET")
            .really(200, "takes it for no limit"),
        Case::post("a token of somebody else", &format!("{PODS}?continue=AAAA"), "", 400, &["continue"]).method("GET"),
        Case::post("a watch from the future", &format!("{PODS}?watch=1&resourceVersion=999999999"), "", 504, &["Too large resource version"])
            .method("GET").really(0, "waits for that revision"),
        Case::post("an unknown strictness", &format!("{PODS}?fieldValidation=Loud"), valid.to_string(), 422, &["fieldValidation", "Loud"]),
        Case::post("an unknown dry run", &format!("{PODS}?dryRun=Some"), valid.to_string(), 422, &["dryRun", "Some"]),
    ]
}

/// Nine layers of nine references each.
fn yaml_bomb() -> String {
    let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for layer in 1..10 {
        let below = vec![format!("*a{}", layer - 1); 9].join(",");
        let _ = writeln!(text, "a{layer}: &a{layer} [{below}]");
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_taken_is_refused_by_name_and_leaves_no_trace() {
    let lab = Lab::start(&[("t4", 1)]).await.unwrap();
    let mut good = pod_with(json!({}));
    good["metadata"]["name"] = json!("good");
    lab.post(PODS, &good).await.unwrap().ok().unwrap();
    let mut faults = Vec::new();
    for case in cases() {
        let answer = raw(&lab, case.method, &case.path, case.content_type, case.body).await;
        let expected = match case.real {
            Some((0, _)) if Lab::on_kubernetes() && answer.is_err() => continue,
            Some((status, _)) if Lab::on_kubernetes() => status,
            _ => case.status,
        };
        let (status, body) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                faults.push(format!("{}: no answer: {error:#}", case.name));
                continue;
            }
        };
        let message = body["message"].as_str().unwrap_or_default();
        let mut silent: Vec<_> = case.says.iter().filter(|text| !message.contains(**text)).collect();
        if Lab::on_kubernetes() {
            silent.clear();
        }
        let refused = expected < 300 || (body["kind"] == "Status" && !message.is_empty());
        if status != expected || !refused || !silent.is_empty() {
            let shown: String = body.to_string().chars().take(400).collect();
            faults.push(format!("{}: {status} instead of {expected}, misses {silent:?}: {shown}", case.name));
        }
    }
    let good = lab.get(&format!("{PODS}/good")).await.unwrap();
    if !good["metadata"]["deletionTimestamp"].is_null() || good["status"].to_string().contains("Disruption") {
        faults.push(format!("the good pod was touched: {good}"));
    }
    for path in
        [PODS, "/apis/apps/v1/namespaces/default/deployments", "/api/v1/namespaces/default/configmaps"]
    {
        for object in lab.list(path).await.unwrap() {
            // Kubernetes takes one that it should not.
            if (object["metadata"]["name"] == "bad" && !Lab::on_kubernetes())
                || object["metadata"]["labels"]["half"] == "done"
            {
                faults.push(format!("{path}: something stayed: {}", object["metadata"]));
            }
        }
    }
    lab.stop().await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quantities_at_the_edge_are_taken_and_never_wrap() {
    let lab = Lab::start(&[("t4", 1)]).await.unwrap();
    let outcome = edges(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn edges(lab: &Lab) -> anyhow::Result<()> {
    let huge = "9223372036854775807";
    for (name, resources) in [
        ("huge-gpus", json!({"limits": {"nvidia.com/gpu": huge}})),
        ("huger-gpus", json!({"limits": {"nvidia.com/gpu": "8E"}})),
        ("huge-memory", json!({"requests": {"memory": "7Ei"}})),
        ("huge-cpu", json!({"requests": {"cpu": "9223372036854775807"}})),
        ("ten-million-gpus", json!({"limits": {"nvidia.com/gpu": 10_000_000}})),
    ] {
        let mut pod = pod_with(resources.clone());
        pod["metadata"]["name"] = json!(name);
        let twice = pod["spec"]["containers"][0].clone();
        let second = json!({"name": "d", "image": "i", "resources": twice["resources"]});
        pod["spec"]["containers"].as_array_mut().context("containers")?.push(second);
        let answer = lab.post(PODS, &pod).await?;
        ensure!(answer.status == 201, "{name}: {answer:?}");
        eventually(&format!("{name} waits and its condition says why"), async || {
            let pod = lab.get(&format!("{PODS}/{name}")).await?;
            let condition = &pod["status"]["conditions"][0];
            ensure!(condition["reason"] == "Unschedulable", "{}", pod["status"]);
            ensure!(condition["message"].as_str().is_some_and(|text| !text.is_empty()), "{condition}");
            ensure!(pod["spec"]["nodeName"].is_null(), "it was bound");
            Ok(())
        })
        .await?;
    }
    // They hold nothing: the node's eight GPUs are there for others.
    let mut pod = pod_with(json!({"limits": {"nvidia.com/gpu": "8000m"}}));
    pod["metadata"]["name"] = json!("all");
    let made = lab.post(PODS, &pod).await?.ok()?;
    ensure!(made["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8", "{made}");
    eventually("a pod with all GPUs runs", async || {
        let pod = lab.get(&format!("{PODS}/all")).await?;
        ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_a_forgotten_revision_is_told_to_list_again() {
    if crate::left_out_on_kubernetes(
        "a_watch_from_a_forgotten_revision_is_told_to_list_again",
        "etcd forgets a revision after five minutes at the earliest",
    ) {
        return;
    }
    let lab = Lab::start(&[("t4", 1)]).await.unwrap();
    let outcome = forgotten(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn forgotten(lab: &Lab) -> anyhow::Result<()> {
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    lab.post(MAPS, &json!({"metadata": {"name": "m"}})).await?.ok()?;
    let lab = Arc::new(lab);
    let mut forgotten = false;
    // The server keeps a bounded history; writing until it forgets does not depend on how long that is.
    for round in 0..400 {
        let patches = (0..500).map(|i| {
            let lab = lab.clone();
            async move {
                let body = json!({"data": {"n": format!("{round}-{i}")}}).to_string().into_bytes();
                raw(&lab, "PATCH", &format!("{MAPS}/m"), "application/merge-patch+json", body).await
            }
        });
        for patched in futures::future::join_all(patches).await {
            ensure!(patched?.0 == 200, "a patch was refused");
        }
        let watch = format!("{MAPS}?watch=1&resourceVersion=1&timeoutSeconds=1&limit=1");
        let request = http::Request::get(watch).body(kube::client::Body::empty())?;
        // Only what comes first: a watch that is allowed would go on.
        let mut body = lab.client().send(request).await?.into_body();
        let frame = body.frame().await.context("a watch from the past without an event")??;
        let data = frame.into_data().ok().context("the first frame of a watch is data")?;
        let line = data.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let event: Value = serde_json::from_slice(line)?;
        forgotten = event["type"] == "ERROR";
        if forgotten {
            let status = &event["object"];
            ensure!(status["reason"] == "Expired" && status["code"] == 410, "{event}");
            break;
        }
    }
    ensure!(forgotten, "the whole history is kept");
    let list = lab.get(MAPS).await?;
    let now = list["metadata"]["resourceVersion"].as_str().context("a revision")?;
    let request = http::Request::get(format!("{MAPS}?watch=1&resourceVersion={now}"))
        .body(kube::client::Body::empty())?;
    ensure!(lab.client().send(request).await?.status() == 200, "a watch from now on is refused");
    Ok(())
}

fn webhook(url: &str, ca: &str, policy: &str, label: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": label},
        "webhooks": [{
            "name": format!("{label}.example.com"),
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "objectSelector": {"matchLabels": {"case": label}},
            "clientConfig": {"url": url, "caBundle": ca},
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 1, "failurePolicy": policy,
        }],
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_webhook_blocks_only_what_it_guards_and_only_if_it_must() {
    if crate::left_out_on_kubernetes(
        "a_broken_webhook_blocks_only_what_it_guards_and_only_if_it_must",
        "its API server does not reach the listeners of this process",
    ) {
        return;
    }
    let lab = Lab::start(&[("t4", 1)]).await.unwrap();
    let outcome = broken_webhooks(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn broken_webhooks(lab: &Lab) -> anyhow::Result<()> {
    const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    // The server's own TLS endpoint is a webhook whose certificate nobody vouched for.
    let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(lab.kubeconfig())?)?;
    let cluster = &config["clusters"][0]["cluster"];
    let url = cluster["server"].as_str().context("a server")?;
    let its_ca = cluster["certificate-authority-data"].as_str().context("a CA")?;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let silent_url = format!("https://127.0.0.1:{}", silent.local_addr()?.port());
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let closed_url = format!("https://127.0.0.1:{}", closed.local_addr()?.port());
    drop(closed);
    for (case, url, ca, says) in [
        ("untrusted", url, "", "certificate"),
        ("no-review", url, its_ca, "failed calling webhook"),
        ("timeout", &silent_url, its_ca, "context deadline exceeded"),
        ("refused", &closed_url, its_ca, "refused"),
    ] {
        for policy in ["Fail", "Ignore"] {
            let label = format!("{case}-{}", policy.to_lowercase());
            lab.post(HOOKS, &webhook(url, ca, policy, &label)).await?.ok().context(label.clone())?;
            let map = json!({"metadata": {"name": label, "labels": {"case": label}}});
            let answer = lab.post(MAPS, &map).await?;
            let exists = lab.send("GET", &format!("{MAPS}/{label}"), None).await?.status == 200;
            if policy == "Ignore" {
                ensure!(answer.status == 201 && exists, "{label}: {answer:?}");
                continue;
            }
            let message = answer.body["message"].as_str().unwrap_or_default();
            ensure!(answer.status == 500 && !exists, "{label}: {answer:?}");
            ensure!(
                message.contains(says) && message.contains(&format!("{label}.example.com")),
                "{label}: {message}"
            );
        }
    }
    // What the webhooks do not select is not held up.
    lab.post(MAPS, &json!({"metadata": {"name": "free"}})).await?.ok()?;
    // A bundle that is none, and a URL without TLS, are refused when the webhook is made.
    for (label, url, ca, field) in [
        ("bad-ca", "https://localhost", "bm90IGEgY2VydGlmaWNhdGU=", "caBundle"),
        ("no-tls", "http://localhost", "", "url"),
        ("no-policy", "https://localhost", "", "failurePolicy"),
    ] {
        let policy = if label == "no-policy" { "Perhaps" } else { "Fail" };
        let answer = lab.post(HOOKS, &webhook(url, ca, policy, label)).await?;
        let message = answer.body["message"].as_str().unwrap_or_default();
        ensure!(matches!(answer.status, 400 | 422) && message.contains(field), "{label}: {answer:?}");
    }
    Ok(())
}
