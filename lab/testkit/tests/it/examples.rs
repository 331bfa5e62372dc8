//! Every manifest under `examples/` reaches the state that its first comment promises.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use gantry_testkit::{Lab, eventually};
use serde_json::{Value, json};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name)
}

/// What a test asks of the cluster after a manifest was applied.
struct Case<'a> {
    lab: &'a Lab,
}

impl Case<'_> {
    async fn apply(&self, name: &str) -> anyhow::Result<()> {
        self.lab.apply(&example(name)).await.with_context(|| format!("apply examples/{name}"))
    }

    async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.lab.delete(&example(name)).await.with_context(|| format!("delete examples/{name}"))
    }

    /// The pods with a label, once `count` of them are ready.
    async fn ready_pods(&self, selector: &str, count: usize) -> anyhow::Result<Vec<Value>> {
        eventually(&format!("{count} ready pods with {selector}"), async || {
            let pods = self.lab.list(&format!("/api/v1/pods?labelSelector={selector}")).await?;
            let ready = pods.iter().filter(|pod| is_true(pod, "Ready")).count();
            ensure!(ready == count && pods.len() == count, "{ready} of {} pods are ready", pods.len());
            Ok(pods)
        })
        .await
    }

    async fn running_pod(&self, name: &str) -> anyhow::Result<Value> {
        eventually(&format!("pod {name} runs"), async || {
            let pod = self.lab.get(&format!("/api/v1/namespaces/default/pods/{name}")).await?;
            ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]);
            Ok(pod)
        })
        .await
    }

    /// Waits until the pod is refused, and gives the text.
    async fn refusal(&self, name: &str) -> anyhow::Result<String> {
        eventually(&format!("pod {name} is refused"), async || {
            let pod = self.lab.get(&format!("/api/v1/namespaces/default/pods/{name}")).await?;
            let condition = condition(&pod, "PodScheduled").context("no condition PodScheduled")?;
            ensure!(condition["reason"] == "Unschedulable", "{condition}");
            Ok(condition["message"].as_str().unwrap_or_default().to_owned())
        })
        .await
    }

    async fn event(&self, object: &str, text: &str) -> anyhow::Result<()> {
        eventually(&format!("an Event on {object} that says {text:?}"), async || {
            let events = self.lab.list("/api/v1/events").await?;
            let messages: Vec<&str> = events
                .iter()
                .filter(|event| {
                    event["involvedObject"]["name"].as_str().is_some_and(|name| name.starts_with(object))
                })
                .filter_map(|event| event["message"].as_str())
                .collect();
            ensure!(messages.iter().any(|message| message.contains(text)), "{messages:?}");
            Ok(())
        })
        .await
    }

    /// The UUIDs that `nvidia-smi -L` prints in the first container of a pod.
    async fn visible(&self, pod: &Value) -> anyhow::Result<BTreeSet<String>> {
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        let output = self.lab.exec("default", name, &["nvidia-smi", "-L"]).await?;
        Ok(output
            .lines()
            .filter_map(|line| {
                line.split_once("UUID: ").map(|(_, rest)| rest.trim_end_matches(')').to_owned())
            })
            .collect())
    }

    /// Checks that the pod's containers see the devices of its assignment and no other; gives them.
    async fn sees_its_own(&self, pod: &Value, count: usize) -> anyhow::Result<BTreeSet<String>> {
        let assignment =
            pod["metadata"]["annotations"]["gantry.dev/assignment"].as_str().context("an assignment")?;
        let visible = self.visible(pod).await?;
        ensure!(visible.len() == count, "sees {visible:?} instead of {count}");
        for gpu in &visible {
            ensure!(assignment.contains(gpu.as_str()), "sees {gpu}, which is not in {assignment}");
        }
        Ok(visible)
    }
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_reaches_its_state() {
    let lab = Lab::start(&[("a100-80", 2), ("h100", 1), ("rtx3090", 2)]).await.unwrap();
    let case = Case { lab: &lab };
    let outcome = all(&case).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn all(case: &Case<'_>) -> anyhow::Result<()> {
    // One GPU, and no other is visible.
    case.apply("torch-gpu-pod.yaml").await?;
    let torch = case.running_pod("torch-gpu-pod").await?;
    let mut taken = case.sees_its_own(&torch, 1).await?;
    ensure!(
        torch["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == "1",
        "no default request"
    );
    case.event("torch-gpu-pod", "assigned").await?;

    // Two replicas with a GPU each, and nobody else's.
    case.apply("gpu-app-deployment.yaml").await?;
    for pod in case.ready_pods("app=gpu-app", 2).await? {
        for gpu in case.sees_its_own(&pod, 1).await? {
            ensure!(taken.insert(gpu.clone()), "{gpu} has two owners");
        }
    }

    // A service in front of a model.
    case.apply("ai-model-deployment.yaml").await?;
    case.apply("ai-model-service.yaml").await?;
    case.ready_pods("app=ai-model", 2).await?;
    eventually("two endpoints on port 8000", async || {
        let slices = case
            .lab
            .list("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io/service-name=ai-model-service")
            .await?;
        let endpoints: usize = slices.iter().filter_map(|slice| slice["endpoints"].as_array()).map(Vec::len).sum();
        ensure!(endpoints == 2, "{endpoints} endpoints");
        ensure!(slices[0]["ports"][0]["port"] == 8000, "{}", slices[0]["ports"]);
        Ok(())
    })
    .await?;

    // Four GPUs that are joined by NVLink, on one node.
    case.apply("multi-gpu-deployment.yaml").await?;
    let multi = case.ready_pods("app=multi-gpu", 1).await?.remove(0);
    case.sees_its_own(&multi, 4).await?;
    let topology = case
        .lab
        .exec("default", multi["metadata"]["name"].as_str().context("a name")?, &["nvidia-smi", "topo", "-m"])
        .await?;
    ensure!(topology.contains("NV"), "no NVLink in:\n{topology}");

    // Autoscalers apply, and say that there are no metrics yet.
    for name in ["gpu-app-hpa", "ai-model-hpa"] {
        case.apply(&format!("{name}.yaml")).await?;
        eventually(&format!("{name} tells that there are no metrics"), async || {
            let hpa = case
                .lab
                .get(&format!("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/{name}"))
                .await?;
            let active = condition(&hpa, "ScalingActive").context("no condition ScalingActive")?;
            ensure!(active["status"] == "False" && active["reason"] == "FailedGetResourceMetric", "{active}");
            ensure!(
                active["message"].as_str().is_some_and(|text| text.contains("nvidia.com/gpu")),
                "{active}"
            );
            Ok(())
        })
        .await?;
    }

    // Affinity to a model, written without the vendor's name in front.
    case.apply("a100-affinity-pod.yaml").await?;
    let training = case.running_pod("a100-training").await?;
    let node = training["spec"]["nodeName"].as_str().context("a node")?;
    ensure!(node.contains("a100"), "runs on {node}");

    // Affinity to a kind of link.
    case.apply("nvlink-topology-pod.yaml").await?;
    let nvlink = case.running_pod("nvlink-training").await?;
    let node = nvlink["spec"]["nodeName"].as_str().context("a node")?;
    ensure!(node.contains("h100"), "runs on {node}");

    // NVIDIA's own plugin runs, and is told that it is not needed.
    case.apply("nvidia-device-plugin-daemonset.yaml").await?;
    case.ready_pods("name=nvidia-device-plugin-ds", 5).await?;
    case.event("nvidia-device-plugin-daemonset", "already serves nvidia.com/gpu").await?;

    // What no node offers yet waits with an explanation that names it.
    for (file, pod, resource) in [
        ("mig-pod.yaml", "mig-inference", "nvidia.com/mig-1g.5gb"),
        ("gpumem-pod.yaml", "gpumem-inference", "nvidia.com/gpumem"),
    ] {
        case.apply(file).await?;
        let text = case.refusal(pod).await?;
        ensure!(text.contains(resource), "{pod}: {text}");
        case.event(pod, resource).await?;
    }
    case.apply("time-slicing-config.yaml").await?;

    // Deleting a pod frees its GPU for the next.
    case.delete("torch-gpu-pod.yaml").await?;
    eventually("the pod is gone", async || {
        let pod = case.lab.get("/api/v1/namespaces/default/pods/torch-gpu-pod").await;
        ensure!(pod.is_err(), "still there");
        Ok(())
    })
    .await?;
    case.apply("torch-gpu-pod.yaml").await?;
    case.running_pod("torch-gpu-pod").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_beside_limits_are_refused_or_dropped_with_a_word() {
    let lab = Lab::start(&[("a100-80", 1)]).await.unwrap();
    let text = std::fs::read_to_string(example("as-written/torch-gpu-pod.yaml")).unwrap();
    let pod: Value = serde_saphyr::from_str(&text).unwrap();
    let path = "/api/v1/namespaces/default/pods";

    let strict = lab.post(&format!("{path}?fieldValidation=Strict"), &pod).await.unwrap();
    assert_eq!(strict.status, 400, "{}", strict.body);
    let message = strict.body["message"].as_str().unwrap();
    assert!(message.contains(r#"unknown field "spec.containers[0].resources.cpu""#), "{message}");
    assert!(message.contains("spec.containers[0].resources.limits.cpu"), "no fix in: {message}");

    let warn = lab.post(&format!("{path}?fieldValidation=Warn"), &pod).await.unwrap();
    assert_eq!(warn.status, 201, "{}", warn.body);
    assert!(warn.warnings.iter().any(|text| text.contains("resources.memory")), "{:?}", warn.warnings);
    assert_eq!(warn.body["spec"]["containers"][0]["resources"]["cpu"], json!(null));
    lab.stop().await;
}
