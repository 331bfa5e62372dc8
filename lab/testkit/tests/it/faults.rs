//! Whatever is killed, restarted or broken, at whatever moment: no GPU has two owners, and none is lost.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail, ensure};
use gantry_model::FaultKind;
use gantry_testkit::{Lab, eventually};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

pub(crate) fn pod(name: &str, gpus: u32) -> Value {
    pod_of(name, json!({"containers": [container("main", gpus)]}))
}

fn pod_of(name: &str, mut spec: Value) -> Value {
    spec["terminationGracePeriodSeconds"] = json!(1);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn container(name: &str, gpus: u32) -> Value {
    json!({
        "name": name, "image": "registry.example.com/job:v1", "command": ["sleep", "infinity"],
        "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
    })
}

pub(crate) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn name(pod: &Value) -> &str {
    text(pod, "/metadata/name")
}

pub(crate) fn phase(pod: &Value) -> &str {
    text(pod, "/status/phase")
}

pub(crate) async fn create(lab: &Lab, pod: &Value) -> anyhow::Result<()> {
    lab.post(PODS, pod).await?.ok().map(drop)
}

pub(crate) async fn delete(lab: &Lab, pod: &str) -> anyhow::Result<()> {
    lab.send("DELETE", &format!("{PODS}/{pod}"), None).await?.ok().map(drop)
}

pub(crate) async fn gone(lab: &Lab, pod: &str) -> anyhow::Result<()> {
    eventually(&format!("pod {pod} is gone"), async || {
        let answer = lab.send("GET", &format!("{PODS}/{pod}"), None).await?;
        ensure!(answer.status == 404, "{}", answer.body["status"]);
        Ok(())
    })
    .await
}

pub(crate) async fn running(lab: &Lab, pod: &str) -> anyhow::Result<Value> {
    eventually(&format!("pod {pod} runs"), async || {
        let pod = lab.get(&format!("{PODS}/{pod}")).await?;
        ensure!(phase(&pod) == "Running", "{}", pod["status"]);
        Ok(pod)
    })
    .await
}

/// Waits until the pod is found to fit nowhere for this reason. It may have another on the way there.
async fn refused(lab: &Lab, pod: &str, reason: &str) -> anyhow::Result<()> {
    eventually(&format!("pod {pod} waits because of {reason:?}"), async || {
        let pod = lab.get(&format!("{PODS}/{pod}")).await?;
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let unschedulable = conditions.iter().find(|condition| condition["reason"] == "Unschedulable");
        let message = text(unschedulable.context("not refused")?, "/message");
        ensure!(message.contains(reason), "{message}");
        Ok(())
    })
    .await
}

/// The GPUs of each of the pod's containers, as its annotation says.
fn assigned(pod: &Value) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let annotation = text(pod, "/metadata/annotations/gantry.dev~1assignment");
    if annotation.is_empty() {
        return Ok(BTreeMap::new());
    }
    let value: Value = serde_json::from_str(annotation)?;
    Ok(serde_json::from_value(value["containers"].clone())?)
}

pub(crate) fn assigned_to_pod(pod: &Value) -> anyhow::Result<BTreeSet<String>> {
    Ok(assigned(pod)?.into_values().flatten().collect())
}

/// The GPUs that the pod's only container asks for.
fn asked(pod: &Value) -> anyhow::Result<usize> {
    Ok(text(pod, "/spec/containers/0/resources/limits/nvidia.com~1gpu").parse()?)
}

/// What `nvidia-smi -L` lists inside a container.
pub(crate) async fn visible(lab: &Lab, pod: &str, container: &str) -> anyhow::Result<BTreeSet<String>> {
    let output = lab.exec_in("default", pod, Some(container), &["nvidia-smi", "-L"]).await?;
    // A container without GPUs has no such program; every other silence is a failure of the way there.
    let absent = output.stderr.contains("executable file not found");
    ensure!(
        absent || !output.stdout.trim().is_empty(),
        "exec in {pod}: {:?} {:?}",
        output.code,
        output.stderr
    );
    let uuid = |line: &str| Some(line.split_once("UUID: ")?.1.trim_end_matches(')').to_owned());
    Ok(output.stdout.lines().filter_map(uuid).collect())
}

/// Fails if two pods that may have processes hold the same GPU.
pub(crate) fn no_gpu_has_two_owners(pods: &[Value]) -> anyhow::Result<()> {
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !matches!(phase(pod), "Succeeded" | "Failed")) {
        for gpu in assigned_to_pod(pod)? {
            if let Some(other) = owners.insert(gpu.clone(), name(pod)) {
                bail!("{gpu} belongs to {other} and to {}", name(pod));
            }
        }
    }
    Ok(())
}

/// Fails unless every GPU of `nodes` can be given away: a pod with eight GPUs runs on each.
async fn every_gpu_is_assignable(lab: &Lab, nodes: usize) -> anyhow::Result<()> {
    for pod in lab.list(PODS).await? {
        // One that is on its way out may be gone by the time that the request arrives.
        if pod["metadata"]["deletionTimestamp"].is_null() {
            delete(lab, name(&pod)).await?;
        }
    }
    let mut seen = BTreeSet::new();
    for i in 0..nodes {
        create(lab, &pod(&format!("whole-{i}"), 8)).await?;
    }
    for i in 0..nodes {
        let name = format!("whole-{i}");
        eventually(&format!("pod {name} runs"), async || {
            let now = lab.get(&format!("{PODS}/{name}")).await?;
            if now["status"]["reason"] == "UnexpectedAdmissionError" {
                // It came while the device plugin was away.
                delete(lab, &name).await?;
                create(lab, &pod(&name, 8)).await?;
            }
            ensure!(phase(&now) == "Running", "{}", now["status"]);
            Ok(())
        })
        .await?;
        let what = format!("pod {name} can be entered");
        seen.extend(eventually(&what, async || visible(lab, &name, "main").await).await?);
    }
    ensure!(seen.len() == 8 * nodes, "only {} GPUs are seen", seen.len());
    Ok(())
}

/// Allocatable and capacity of `nvidia.com/gpu`.
async fn offered(lab: &Lab, node: &str) -> anyhow::Result<(String, String)> {
    let node = lab.get(&format!("/api/v1/nodes/{node}")).await?;
    let count = |part: &str| text(&node["status"], &format!("/{part}/nvidia.com~1gpu")).to_owned();
    Ok((count("allocatable"), count("capacity")))
}

async fn offers(lab: &Lab, node: &str, allocatable: &str, capacity: &str) -> anyhow::Result<()> {
    eventually(&format!("{node} offers {allocatable} of {capacity} GPUs"), async || {
        let now = offered(lab, node).await?;
        ensure!(now == (allocatable.to_owned(), capacity.to_owned()), "{now:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_fails_is_offered_to_nobody_until_it_is_mended() {
    let lab = Lab::start(&[("a100-80", 1)]).await.unwrap();
    let outcome = fail_and_mend(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn fail_and_mend(lab: &Lab) -> anyhow::Result<()> {
    const NODE: &str = "a100-80-1";
    let report = "/apis/gantry.dev/v1alpha1/gpunodes/a100-80-1";
    offers(lab, NODE, "8", "8").await?;
    create(lab, &pod("user", 2)).await?;
    let user = running(lab, "user").await?;
    let mine = visible(lab, "user", "main").await?;
    ensure!(mine == assigned_to_pod(&user)? && mine.len() == 2, "{mine:?}");
    let gpus = lab.get(report).await?["status"]["gpus"].as_array().cloned().context("gpus")?;
    let index_of = |used: bool| {
        gpus.iter().position(|gpu| mine.contains(text(gpu, "/id")) == used).context("no such GPU")
    };
    // A GPU in use, then a free one as well.
    let (used, free) = (index_of(true)?, index_of(false)?);
    for (fault, left) in [(FaultKind::Xid(79), "7"), (FaultKind::DoubleBitEcc, "6")] {
        lab.fault(NODE, if left == "7" { used } else { free }, fault)?;
        offers(lab, NODE, left, "8").await?;
    }
    eventually("the report names both faults", async || {
        let status = lab.get(report).await?["status"].take();
        for index in [used, free] {
            let gpu = &status["gpus"][index];
            ensure!(gpu["health"] == "Unhealthy" && gpu["fault"]["message"].is_string(), "{gpu}");
        }
        ensure!(status["healthyGpuCount"] == 6 && status["gpuCount"] == 8, "{}", status["healthyGpuCount"]);
        Ok(())
    })
    .await?;
    // Who had it keeps it; of the others, five are free and whole.
    create(lab, &pod("six", 6)).await?;
    refused(lab, "six", "G1012 gpu-unhealthy: asks for 6 GPUs").await?;
    create(lab, &pod("five", 5)).await?;
    running(lab, "five").await?;
    let five = visible(lab, "five", "main").await?;
    let bad = text(&gpus[free], "/id");
    ensure!(five.len() == 5 && !five.contains(bad) && five.is_disjoint(&mine), "{five:?}");
    ensure!(phase(&running(lab, "user").await?) == "Running", "the user of a failed GPU ended");
    // A restart of all that knows of it changes nothing.
    lab.restart_kubelet(NODE).await?;
    lab.restart_agent(NODE)?;
    lab.restart_scheduler().await?;
    create(lab, &pod("one", 1)).await?;
    refused(lab, "one", "G1012 gpu-unhealthy: asks for 1 GPU").await?;
    lab.recover(NODE, free)?;
    running(lab, "one").await?;
    ensure!(visible(lab, "one", "main").await? == BTreeSet::from([bad.to_owned()]), "not the mended one");
    lab.recover(NODE, used)?;
    offers(lab, NODE, "8", "8").await?;
    delete(lab, "five").await?;
    delete(lab, "one").await?;
    running(lab, "six").await?;
    every_gpu_is_assignable(lab, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_is_seen_on_the_node_and_by_the_pod_and_its_end_as_well() {
    let lab = Lab::start(&[("a100-80", 1)]).await.unwrap();
    let outcome = fault_is_told(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn fault_is_told(lab: &Lab) -> anyhow::Result<()> {
    const NODE: &str = "a100-80-1";
    let condition = async |status: &str| {
        eventually(&format!("GpusHealthy is {status}"), async || {
            let node = lab.get(&format!("/api/v1/nodes/{NODE}")).await?;
            let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            ensure!(
                all.iter().any(|known| known["type"] == "Ready"),
                "the kubelet's conditions are gone: {all:?}"
            );
            let found =
                all.into_iter().find(|known| known["type"] == "GpusHealthy").context("no such condition")?;
            ensure!(found["status"] == status, "{found}");
            Ok(found)
        })
        .await
    };
    let event = async |namespace: &str, reason: &str| {
        eventually(&format!("an Event {reason}"), async || {
            let events = lab.list(&format!("/api/v1/namespaces/{namespace}/events")).await?;
            events.into_iter().find(|event| event["reason"] == reason).context("no such Event")
        })
        .await
    };
    condition("True").await?;
    create(lab, &pod("user", 8)).await?;
    running(lab, "user").await?;
    lab.fault(NODE, 5, FaultKind::Xid(79))?;
    let sick = condition("False").await?;
    let message = text(&sick, "/message");
    ensure!(
        message.starts_with("GPU 5 (") && message.contains("XID 79") && message.contains("reboot"),
        "{message}"
    );
    event("default", "GpuUnhealthy").await?;
    let told = event("default", "GpuFailed").await?;
    ensure!(text(&told, "/involvedObject/name") == "user", "{told}");
    lab.recover(NODE, 5)?;
    if Lab::on_kubernetes() {
        // NVML never takes back what it told: after this XID a card is trusted again when the machine was rebooted.
        lab.stop_node(NODE).await?;
        lab.start_node(NODE).await?;
    }
    condition("True").await?;
    event("default", "GpuHealthy").await?;
    Ok(())
}

/// Numbers that look random and are the same in every run.
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or_default() % limit
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_at_any_moment_neither_double_nor_lose_a_gpu() {
    if crate::left_out_on_kubernetes(
        "restarts_at_any_moment_neither_double_nor_lose_a_gpu",
        "agents are no pods there; stress is its test",
    ) {
        return;
    }
    let lab = Lab::start(&[("a100-80", 2)]).await.unwrap();
    let mut outcome = Ok(());
    for seed in 1..=3 {
        outcome = churn(&lab, seed).await.with_context(|| format!("seed {seed}"));
        if outcome.is_err() {
            break;
        }
    }
    lab.stop().await;
    outcome.unwrap();
}

/// Ends a node's agent. A process that is killed again and again is started ever later; a deleted pod is replaced at once.
async fn end_agent(lab: &Lab, draws: &mut Draws) -> anyhow::Result<()> {
    let agents = "/api/v1/namespaces/kube-system/pods";
    let all = lab.list(&format!("{agents}?labelSelector=app.kubernetes.io/name=gantry-nvidia-agent")).await?;
    if all.is_empty() {
        return Ok(());
    }
    let agent = &all[draws.below(all.len())];
    let restarts = agent.pointer("/status/containerStatuses/0/restartCount").and_then(Value::as_u64);
    if draws.below(2) == 0 && restarts == Some(0) {
        lab.restart_agent(text(agent, "/spec/nodeName"))?;
    } else {
        // It may be on its way already.
        lab.send("DELETE", &format!("{agents}/{}?gracePeriodSeconds=0", name(agent)), None).await?;
    }
    Ok(())
}

async fn churn(lab: &Lab, seed: u64) -> anyhow::Result<()> {
    let mut draws = Draws(seed);
    let mut alive: Vec<String> = Vec::new();
    for step in 0..120 {
        match draws.below(10) {
            0..=4 => {
                let name = format!("p{seed}-{step}");
                let gpus = 1 + u32::try_from(draws.below(4))?;
                create(lab, &pod(&name, gpus)).await?;
                alive.push(name);
            }
            5..=6 if !alive.is_empty() => {
                let victim = alive.swap_remove(draws.below(alive.len()));
                delete(lab, &victim).await?;
            }
            7 => lab.restart_kubelet(["a100-80-1", "a100-80-2"][draws.below(2)]).await?,
            8 => end_agent(lab, &mut draws).await?,
            _ => lab.restart_scheduler().await?,
        }
        for _ in 0..draws.below(40) {
            tokio::task::yield_now().await;
        }
        no_gpu_has_two_owners(&lab.list(PODS).await?).with_context(|| format!("step {step}"))?;
    }
    let pods = eventually("every pod runs or waits for GPUs that are taken", async || {
        let pods = lab.list(PODS).await?;
        no_gpu_has_two_owners(&pods)?;
        let mut free = BTreeMap::from([("a100-80-1", 8), ("a100-80-2", 8)]);
        for pod in &pods {
            ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "{} still ends", name(pod));
            ensure!(is_settled(pod), "{}: {}", name(pod), pod["status"]);
            if let Some(free) = free.get_mut(text(pod, "/spec/nodeName")).filter(|_| phase(pod) == "Running")
            {
                *free -= asked(pod)?;
            }
        }
        let most = free.values().copied().max().unwrap_or_default();
        for pod in pods.iter().filter(|pod| phase(pod) == "Pending") {
            ensure!(asked(pod)? > most, "{} waits though {most} GPUs are free: {}", name(pod), pod["status"]);
        }
        Ok(pods)
    })
    .await?;
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| phase(pod) == "Running") {
        let inside = visible(lab, name(pod), "main").await?;
        ensure!(inside == assigned_to_pod(pod)?, "{} sees {inside:?}, its assignment is another", name(pod));
        for gpu in inside {
            if let Some(other) = seen.insert(gpu.clone(), name(pod).to_owned()) {
                bail!("{gpu} is seen in {other} and in {}", name(pod));
            }
        }
    }
    every_gpu_is_assignable(lab, 2).await?;
    for i in 0..2 {
        delete(lab, &format!("whole-{i}")).await?;
        gone(lab, &format!("whole-{i}")).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_node_that_went_silent_start_elsewhere_and_the_node_comes_back_empty() {
    let lab = Lab::start(&[("a100-80", 2)]).await.unwrap();
    let outcome = silent_node(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn silent_node(lab: &Lab) -> anyhow::Result<()> {
    let tolerate =
        |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1});
    let spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [container("main", 4)],
        "tolerations": [tolerate("node.kubernetes.io/not-ready"), tolerate("node.kubernetes.io/unreachable")],
    });
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "d"}},
            "template": {"metadata": {"labels": {"app": "d"}}, "spec": spec},
        },
    });
    lab.post("/apis/apps/v1/namespaces/default/deployments", &deployment).await?.ok()?;
    let replica = async |not_on: &str| {
        eventually(&format!("the replica runs, not on {not_on:?}"), async || {
            let pods = lab.list(&format!("{PODS}?labelSelector=app=d")).await?;
            let found = pods.iter().find(|pod| {
                phase(pod) == "Running"
                    && pod["metadata"]["deletionTimestamp"].is_null()
                    && text(pod, "/spec/nodeName") != not_on
            });
            found.cloned().with_context(|| format!("{} pods", pods.len()))
        })
        .await
    };
    let first = replica("").await?;
    let lost = text(&first, "/spec/nodeName").to_owned();
    lab.stop_node(&lost).await?;
    eventually("the node is unreachable", async || {
        let node = lab.get(&format!("/api/v1/nodes/{lost}")).await?;
        ensure!(
            node["spec"]["taints"].to_string().contains("node.kubernetes.io/unreachable"),
            "{}",
            node["spec"]
        );
        let ready = node["status"]["conditions"]
            .as_array()
            .and_then(|all| all.iter().find(|condition| condition["type"] == "Ready").cloned());
        ensure!(ready.as_ref().is_some_and(|ready| ready["status"] == "Unknown"), "{ready:?}");
        Ok(())
    })
    .await?;
    let second = replica(&lost).await?;
    ensure!(assigned_to_pod(&second)?.is_disjoint(&assigned_to_pod(&first)?), "the GPUs of the lost node");
    lab.start_node(&lost).await?;
    eventually("the node is back", async || {
        let node = lab.get(&format!("/api/v1/nodes/{lost}")).await?;
        ensure!(!node["spec"]["taints"].to_string().contains("unreachable"), "{}", node["spec"]);
        ensure!(node["status"]["conditions"].to_string().contains("KubeletReady"), "{}", node["status"]);
        Ok(())
    })
    .await?;
    offers(lab, &lost, "8", "8").await?;
    gone(lab, name(&first)).await?;
    let deployments = "/apis/apps/v1/namespaces/default/deployments/d";
    lab.send("DELETE", deployments, None).await?.ok()?;
    gone(lab, name(&second)).await?;
    every_gpu_is_assignable(lab, 2).await
}

/// Whether nothing more happens to the pod: it runs, fits nowhere, or came to a kubelet while that had no device plugin, which
/// rejects it as Kubernetes' does.
pub(crate) fn is_settled(pod: &Value) -> bool {
    let waits = pod["status"]["conditions"].to_string().contains("Unschedulable");
    phase(pod) == "Running" || waits || pod["status"]["reason"] == "UnexpectedAdmissionError"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_odd_shapes_share_a_node_without_sharing_a_gpu() {
    let lab = Lab::start(&[("a100-80", 1)]).await.unwrap();
    let outcome = odd_shapes(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn odd_shapes(lab: &Lab) -> anyhow::Result<()> {
    let mut init = container("init", 2);
    init["command"] = json!(["true"]);
    let mut sidecar = container("sidecar", 1);
    sidecar["restartPolicy"] = json!("Always");
    for (pod, containers) in [
        (pod("none", 0), vec![("main", 0)]),
        (
            pod_of("with-init", json!({"initContainers": [init], "containers": [container("main", 1)]})),
            vec![("main", 1)],
        ),
        (
            pod_of(
                "with-sidecar",
                json!({"initContainers": [sidecar], "containers": [container("main", 1)]}),
            ),
            vec![("sidecar", 1), ("main", 1)],
        ),
        (
            pod_of("two", json!({"containers": [container("a", 1), container("b", 1)]})),
            vec![("a", 1), ("b", 1)],
        ),
    ] {
        create(lab, &pod).await?;
        let running = running(lab, name(&pod)).await?;
        let assignment = assigned(&running)?;
        let mut seen = BTreeSet::new();
        for (container, count) in containers {
            let gpus = visible(lab, name(&pod), container).await?;
            ensure!(gpus.len() == count, "{}/{container} sees {gpus:?}", name(&pod));
            ensure!(gpus == assignment.get(container).cloned().unwrap_or_default(), "{assignment:?}");
            for gpu in gpus {
                ensure!(seen.insert(gpu.clone()), "{gpu} is in two containers of {}", name(&pod));
            }
        }
    }
    // Past the scheduler: the kubelet chooses among what is free, and the scheduler learns of it.
    let mut direct = pod("direct", 1);
    direct["spec"]["nodeName"] = json!("a100-80-1");
    create(lab, &direct).await?;
    running(lab, "direct").await?;
    let mut foreign = pod("foreign", 1);
    foreign["spec"]["schedulerName"] = json!("somebody-else");
    create(lab, &foreign).await?;
    create(lab, &pod("too-large", 9)).await?;
    refused(lab, "too-large", "G1001 insufficient-gpu: asks for 9 GPUs").await?;
    let waiting = lab.get(&format!("{PODS}/foreign")).await?;
    ensure!(waiting["spec"]["nodeName"].is_null() && waiting["status"]["conditions"].is_null(), "{waiting}");
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "foreign"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "a100-80-1"},
    });
    lab.post(&format!("{PODS}/foreign/binding"), &binding).await?.ok()?;
    running(lab, "foreign").await?;
    create(lab, &pod("last", 1)).await?;
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    running(lab, "with-init").await?;
    let held = assigned_to_pod(&lab.get(&format!("{PODS}/with-init")).await?)?;
    let all = [
        ("with-init", "main"),
        ("with-sidecar", "sidecar"),
        ("with-sidecar", "main"),
        ("two", "a"),
        ("two", "b"),
        ("direct", "main"),
        ("foreign", "main"),
    ];
    for (pod, container) in all {
        let gpus = visible(lab, pod, container).await?;
        ensure!(gpus.len() == 1, "{pod}/{container} sees {gpus:?}");
        for gpu in gpus {
            if let Some(other) = seen.insert(gpu.clone(), pod.to_owned()) {
                bail!("{gpu} is seen in {other} and in {pod}");
            }
        }
    }
    // Seven are in containers. The eighth was the init container's alone and is kept for it: Kubernetes counts a pod at its peak for as
    // long as the pod lives, because its init containers may run again.
    ensure!(held.len() == 2, "{held:?}");
    refused(lab, "last", "G1001 insufficient-gpu: asks for 1 GPU").await?;
    delete(lab, "with-init").await?;
    let last = running(lab, "last").await?;
    ensure!(assigned_to_pod(&last)?.is_subset(&held), "not one of those that came free");
    every_gpu_is_assignable(lab, 1).await
}
