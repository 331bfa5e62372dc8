//! Every manifest under `examples/` reaches the state that its first comment promises: one test for each, on a cluster of its
//! own. A file that no test covers fails a test too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context as _, ensure};
use gantry_cluster::NodeGroup;
use gantry_model::FaultKind;
use gantry_testkit::{Lab, eventually};
use serde_json::{Value, json};

/// The cases: name, nodes as profile, number and GPUs of each, and the examples that it is about.
macro_rules! cases {
    ($($name:ident: $nodes:expr, [$($file:literal),+];)*) => {
        mod case {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::run(&$nodes, &[$($file),+], async |case| super::$name(case).await).await;
            })*
        }

        /// Every file that a case covers.
        const COVERED: &[&str] = &[$($($file),+),*];
    };
}

cases! {
    one_gpu_is_seen_alone_and_passed_on: [("t4", 1, 1)], ["torch-gpu-pod.yaml"];
    fields_beside_limits_are_refused_or_dropped_with_a_word: [("t4", 1, 1)], ["as-written/torch-gpu-pod.yaml"];
    replicas_have_a_gpu_each: [("a100-80", 1, 8)], ["gpu-app-deployment.yaml"];
    a_model_is_served: [("a100-80", 1, 4)], ["ai-model-deployment.yaml", "ai-model-service.yaml"];
    four_gpus_are_joined: [("a100-80", 2, 8)], ["multi-gpu-deployment.yaml"];
    autoscalers_report_that_there_are_no_metrics: [("a100-80", 1, 8)],
        ["gpu-app-hpa.yaml", "ai-model-hpa.yaml", "low-utilization-hpa.yaml", "variants/gpu-app-hpa.yaml",
         "gpu-app-deployment.yaml", "ai-model-deployment.yaml", "multi-gpu-deployment.yaml"];
    affinity_finds_a_model_without_the_vendors_name: [("rtx3090", 1, 2), ("a100-80", 1, 2)], ["a100-affinity-pod.yaml"];
    a_label_tells_the_kind_of_link: [("a100-80", 1, 8), ("h100", 1, 8)], ["nvlink-topology-pod.yaml"];
    nvidias_plugin_runs_and_is_told_that_it_is_not_needed: [("a100-80", 1, 2), ("t4", 1, 2)],
        ["nvidia-device-plugin-daemonset.yaml"];
    shares_and_partitions_wait_with_an_explanation: [("a100-40", 1, 1)],
        ["mig-pod.yaml", "gpumem-pod.yaml", "gpu-memory-and-core-pods.yaml"];
    host_memory_is_told_from_the_gpus: [("t4", 1, 1)], ["host-memory-pod.yaml"];
    devices_set_by_hand_change_nothing: [("a100-80", 1, 2)], ["visible-devices-pod.yaml"];
    time_slicing_is_not_honoured: [("t4", 1, 2)], ["time-slicing-config.yaml"];
    a_gang_starts_together: [("a100-80", 2, 8)], ["volcano-job.yaml"];
    a_gang_waits_as_a_whole_until_there_is_room: [("a100-80", 1, 8)], ["volcano-job.yaml"];
    a_monitoring_script_can_parse_what_it_asks_for: [("a100-80", 1, 4)], ["gpu_usage.py", "multi-gpu-deployment.yaml"];
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn example(name: &str) -> PathBuf {
    root().join(name)
}

/// Runs a case on a cluster of its own.
async fn run(
    nodes: &[(&str, u32, u32)],
    files: &'static [&'static str],
    check: impl AsyncFnOnce(&Case) -> anyhow::Result<()>,
) {
    if files.contains(&"a100-affinity-pod.yaml")
        && crate::left_out_on_kubernetes(
            files[0],
            "the kubelet checks node affinity itself, and knows no model without its vendor's name",
        )
    {
        return;
    }
    let groups = nodes.iter().map(|&(profile, count, gpus_per_node)| NodeGroup {
        profile: profile.to_owned(),
        count,
        gpus_per_node,
        ..NodeGroup::default()
    });
    let lab = Lab::start_with(groups.collect()).await.unwrap();
    let case = Case { lab, files, used: Mutex::default() };
    let outcome = check(&case).await.with_context(|| format!("examples: {}", files.join(", ")));
    case.lab.stop().await;
    outcome.unwrap();
    let used = case.used.into_inner().unwrap();
    for file in files {
        assert!(used.contains(*file), "the case lists examples/{file} and does not use it");
    }
}

#[test]
fn every_file_among_the_examples_has_a_case() {
    let mut found = BTreeSet::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    let covered: BTreeSet<String> = COVERED.iter().map(|file| (*file).to_owned()).collect();
    let uncovered: Vec<_> = found.difference(&covered).collect();
    assert!(uncovered.is_empty(), "no case covers {uncovered:?}: add one to `cases!`");
}

/// What a test asks of the cluster after a manifest was applied.
struct Case {
    lab: Lab,
    /// What the test says that it covers.
    files: &'static [&'static str],
    /// What it has read.
    used: Mutex<BTreeSet<String>>,
}

impl Case {
    /// The path of an example, which then counts as covered.
    fn file(&self, name: &str) -> PathBuf {
        assert!(self.files.contains(&name), "this case does not list examples/{name}");
        self.used.lock().unwrap().insert(name.to_owned());
        example(name)
    }

    async fn apply(&self, name: &str) -> anyhow::Result<()> {
        self.lab.apply(&self.file(name)).await.with_context(|| format!("apply examples/{name}"))
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

    async fn pods(&self) -> anyhow::Result<Vec<Value>> {
        self.lab.list("/api/v1/namespaces/default/pods").await
    }

    async fn gone(&self, name: &str) -> anyhow::Result<()> {
        eventually(&format!("pod {name} is gone"), async || {
            let pod = self.lab.get(&format!("/api/v1/namespaces/default/pods/{name}")).await;
            ensure!(pod.is_err(), "still there");
            Ok(())
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

    /// Waits for an Event of type `kind` on the object, or on one whose name begins so, with a message that contains `text`.
    async fn event(&self, object: &str, kind: &str, text: &str) -> anyhow::Result<()> {
        eventually(&format!("an Event on {object} that says {text:?}"), async || {
            let events = self.lab.list("/api/v1/events").await?;
            let messages: Vec<&str> = events
                .iter()
                .filter(|event| {
                    event["type"] == kind
                        && event["involvedObject"]["name"]
                            .as_str()
                            .is_some_and(|name| name.starts_with(object))
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

async fn one_gpu_is_seen_alone_and_passed_on(case: &Case) -> anyhow::Result<()> {
    case.apply("torch-gpu-pod.yaml").await?;
    let torch = case.running_pod("torch-gpu-pod").await?;
    let gpu = case.sees_its_own(&torch, 1).await?;
    let resources = &torch["spec"]["containers"][0]["resources"];
    ensure!(
        resources["requests"]["nvidia.com/gpu"] == "1",
        "the request does not follow the limit: {resources}"
    );
    case.event("torch-gpu-pod", "Normal", "assigned").await?;
    // The only GPU is taken: the next pod waits for it, and gets it.
    let mut next = torch.clone();
    next["metadata"] = json!({"name": "next"});
    next["spec"]["nodeName"].take();
    next["status"].take();
    case.lab.post("/api/v1/namespaces/default/pods", &next).await?.ok()?;
    let why = case.refusal("next").await?;
    ensure!(why.contains("G1001 insufficient-gpu"), "{why}");
    case.delete("torch-gpu-pod.yaml").await?;
    case.gone("torch-gpu-pod").await?;
    let next = case.running_pod("next").await?;
    ensure!(case.sees_its_own(&next, 1).await? == gpu, "another GPU");
    Ok(())
}

async fn replicas_have_a_gpu_each(case: &Case) -> anyhow::Result<()> {
    case.apply("gpu-app-deployment.yaml").await?;
    let mut taken = BTreeSet::new();
    for pod in case.ready_pods("app=gpu-app", 2).await? {
        for gpu in case.sees_its_own(&pod, 1).await? {
            ensure!(taken.insert(gpu.clone()), "{gpu} has two owners");
        }
    }
    Ok(())
}

async fn a_model_is_served(case: &Case) -> anyhow::Result<()> {
    case.apply("ai-model-deployment.yaml").await?;
    case.apply("ai-model-service.yaml").await?;
    for pod in case.ready_pods("app=ai-model", 2).await? {
        case.sees_its_own(&pod, 1).await?;
        let name = pod["metadata"]["name"].as_str().context("a name")?;
        let path = case.lab.exec("default", name, &["printenv", "MODEL_PATH"]).await?;
        ensure!(path == "/models/llama-7b\n", "{path:?}");
    }
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
    // Nobody gives the service an address from outside, and it does not pretend to have one.
    let service = case.lab.get("/api/v1/namespaces/default/services/ai-model-service").await?;
    ensure!(service["spec"]["type"] == "LoadBalancer", "{}", service["spec"]);
    ensure!(service["status"]["loadBalancer"]["ingress"].is_null(), "{}", service["status"]);
    Ok(())
}

async fn four_gpus_are_joined(case: &Case) -> anyhow::Result<()> {
    case.apply("multi-gpu-deployment.yaml").await?;
    let pod = case.ready_pods("app=multi-gpu", 1).await?.remove(0);
    case.sees_its_own(&pod, 4).await?;
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let topology = case.lab.exec("default", name, &["nvidia-smi", "topo", "-m"]).await?;
    let rows: Vec<&str> = topology.lines().filter(|line| line.starts_with("GPU")).collect();
    ensure!(rows.len() == 4, "{topology}");
    for row in rows {
        ensure!(row.matches("NV12").count() == 3, "not joined to all others: {row:?}");
    }
    Ok(())
}

async fn autoscalers_report_that_there_are_no_metrics(case: &Case) -> anyhow::Result<()> {
    for deployment in ["gpu-app-deployment.yaml", "ai-model-deployment.yaml", "multi-gpu-deployment.yaml"] {
        case.apply(deployment).await?;
    }
    let autoscalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let replicas = [("gpu-app-hpa", 1, 10, 2), ("ai-model-hpa", 2, 8, 2), ("low-utilization-hpa", 1, 5, 1)];
    for (name, least, most, now) in replicas {
        case.apply(&format!("{name}.yaml")).await?;
        no_metrics(case, &format!("{autoscalers}/{name}"), (least, most), now).await?;
    }
    // Applied over the first, the variant leaves one metric.
    let text = std::fs::read_to_string(case.file("variants/gpu-app-hpa.yaml"))?;
    let variant: Value = serde_saphyr::from_str(&text)?;
    let path = format!("{autoscalers}/gpu-app-hpa");
    case.lab.send("PUT", &path, Some(&variant)).await?.ok()?;
    let metrics = case.lab.get(&path).await?["spec"]["metrics"].take();
    ensure!(metrics.as_array().is_some_and(|metrics| metrics.len() == 1), "{metrics}");
    no_metrics(case, &path, (1, 10), 2).await
}

/// Waits until an autoscaler says that it has no metrics, and has left its target as it is.
async fn no_metrics(case: &Case, path: &str, bounds: (u32, u32), replicas: u32) -> anyhow::Result<()> {
    eventually(&format!("{path} tells that there are no metrics"), async || {
        let hpa = case.lab.get(path).await?;
        ensure!(
            (json!(bounds.0), json!(bounds.1))
                == (hpa["spec"]["minReplicas"].clone(), hpa["spec"]["maxReplicas"].clone()),
            "{}",
            hpa["spec"]
        );
        let able = condition(&hpa, "AbleToScale").context("no condition AbleToScale")?;
        ensure!(able["status"] == "True", "{able}");
        let active = condition(&hpa, "ScalingActive").context("no condition ScalingActive")?;
        ensure!(active["status"] == "False" && active["reason"] == "FailedGetResourceMetric", "{active}");
        ensure!(active["message"].as_str().is_some_and(|text| text.contains("nvidia.com/gpu")), "{active}");
        ensure!(hpa["status"]["currentReplicas"] == replicas, "{}", hpa["status"]);
        Ok(())
    })
    .await
}

async fn affinity_finds_a_model_without_the_vendors_name(case: &Case) -> anyhow::Result<()> {
    case.apply("a100-affinity-pod.yaml").await?;
    let pod = case.running_pod("a100-training").await?;
    ensure!(pod["spec"]["nodeName"] == "a100-80-1", "runs on {}", pod["spec"]["nodeName"]);
    case.sees_its_own(&pod, 1).await.map(drop)
}

async fn a_label_tells_the_kind_of_link(case: &Case) -> anyhow::Result<()> {
    case.apply("nvlink-topology-pod.yaml").await?;
    let pod = case.running_pod("nvlink-training").await?;
    ensure!(pod["spec"]["nodeName"] == "h100-1", "runs on {}", pod["spec"]["nodeName"]);
    case.sees_its_own(&pod, 4).await.map(drop)
}

async fn nvidias_plugin_runs_and_is_told_that_it_is_not_needed(case: &Case) -> anyhow::Result<()> {
    case.apply("nvidia-device-plugin-daemonset.yaml").await?;
    case.ready_pods("name=nvidia-device-plugin-ds", 2).await?;
    case.event("nvidia-device-plugin-daemonset", "Warning", "already serves nvidia.com/gpu").await?;
    // Its GPUs are offered once, not twice.
    let node = case.lab.get("/api/v1/nodes/t4-1").await?;
    ensure!(node["status"]["allocatable"]["nvidia.com/gpu"] == "2", "{}", node["status"]["allocatable"]);
    Ok(())
}

async fn shares_and_partitions_wait_with_an_explanation(case: &Case) -> anyhow::Result<()> {
    for file in ["mig-pod.yaml", "gpumem-pod.yaml", "gpu-memory-and-core-pods.yaml"] {
        case.apply(file).await?;
    }
    for (pod, resource) in [
        ("mig-inference", "nvidia.com/mig-1g.5gb"),
        ("gpumem-inference", "nvidia.com/gpumem"),
        ("gpu-memory", "nvidia.com/gpu-memory"),
        ("gpu-core", "nvidia.com/gpu-core"),
    ] {
        let text = case.refusal(pod).await?;
        let expected = format!(
            "G1007 resource-not-offered: spec.containers[0].resources.limits[{resource}]: no node offers {resource}"
        );
        ensure!(text.contains(&expected), "{pod}: {text}");
        case.event(pod, "Warning", &expected).await?;
    }
    Ok(())
}

async fn host_memory_is_told_from_the_gpus(case: &Case) -> anyhow::Result<()> {
    case.apply("host-memory-pod.yaml").await?;
    let pod = case.running_pod("host-memory").await?;
    case.event(
        "host-memory",
        "Warning",
        "G4001 memory-is-host-memory: spec.containers[0].resources.limits.memory",
    )
    .await?;
    case.event("host-memory", "Warning", "nvidia.com/gpumem").await?;
    // The GPU comes with all of its memory, whatever the limit says.
    case.sees_its_own(&pod, 1).await?;
    let query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader"];
    let memory = case.lab.exec("default", "host-memory", &query).await?;
    ensure!(memory == "15360 MiB\n", "{memory:?}");
    Ok(())
}

async fn devices_set_by_hand_change_nothing(case: &Case) -> anyhow::Result<()> {
    case.apply("visible-devices-pod.yaml").await?;
    let pod = case.running_pod("visible-devices").await?;
    case.event("visible-devices", "Warning", "G4003 devices-set-by-hand: spec.containers[0].env[0]").await?;
    case.sees_its_own(&pod, 1).await.map(drop)
}

async fn time_slicing_is_not_honoured(case: &Case) -> anyhow::Result<()> {
    case.apply("time-slicing-config.yaml").await?;
    case.lab.get("/api/v1/namespaces/kube-system/configmaps/time-slicing-config").await?;
    // Three pods for two GPUs: two have one each, the third waits as it would without the configuration.
    for name in ["one", "two", "three"] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "main", "image": "app", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        });
        case.lab.post("/api/v1/namespaces/default/pods", &pod).await?.ok()?;
    }
    let gpus = [case.running_pod("one").await?, case.running_pod("two").await?];
    ensure!(
        case.sees_its_own(&gpus[0], 1).await?.is_disjoint(&case.sees_its_own(&gpus[1], 1).await?),
        "shared"
    );
    let why = case.refusal("three").await?;
    ensure!(why.contains("G1001 insufficient-gpu"), "{why}");
    let node = case.lab.get("/api/v1/nodes/t4-1").await?;
    ensure!(node["status"]["allocatable"]["nvidia.com/gpu"] == "2", "{}", node["status"]["allocatable"]);
    ensure!(
        node["metadata"]["labels"]["nvidia.com/gpu.sharing-strategy"] == "none",
        "{}",
        node["metadata"]["labels"]
    );
    Ok(())
}

/// The phase of the example's Volcano Job.
async fn gang_phase(case: &Case) -> anyhow::Result<Value> {
    let job = case.lab.get("/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs/gang-training").await?;
    Ok(job["status"]["state"]["phase"].clone())
}

/// Waits until all eight run with a GPU each that no other has.
async fn gang_runs(case: &Case) -> anyhow::Result<()> {
    eventually("all eight run", async || {
        let running = case.pods().await?.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
        ensure!(running == 8, "{running} run");
        let phase = gang_phase(case).await?;
        ensure!(phase == "Running", "the job is {phase}");
        Ok(())
    })
    .await?;
    let mut gpus = BTreeSet::new();
    for pod in case.pods().await? {
        gpus.extend(case.sees_its_own(&pod, 1).await?);
    }
    ensure!(gpus.len() == 8, "eight pods see {} GPUs", gpus.len());
    Ok(())
}

async fn a_gang_starts_together(case: &Case) -> anyhow::Result<()> {
    case.apply("volcano-job.yaml").await?;
    gang_runs(case).await
}

async fn a_gang_waits_as_a_whole_until_there_is_room(case: &Case) -> anyhow::Result<()> {
    // Seven GPUs for eight pods.
    case.lab.fault("a100-80-1", 3, FaultKind::DoubleBitEcc)?;
    eventually("seven GPUs are offered", async || {
        let node = case.lab.get("/api/v1/nodes/a100-80-1").await?;
        ensure!(node["status"]["allocatable"]["nvidia.com/gpu"] == "7", "{}", node["status"]["allocatable"]);
        Ok(())
    })
    .await?;
    case.apply("volcano-job.yaml").await?;
    eventually("every pod tells that the group does not fit", async || {
        let pods = case.pods().await?;
        ensure!(pods.len() == 8, "{} pods", pods.len());
        for pod in &pods {
            ensure!(pod["spec"]["nodeName"].is_null(), "one is bound to {}", pod["spec"]["nodeName"]);
            let condition = condition(pod, "PodScheduled").context("no condition PodScheduled")?;
            let message = condition["message"].as_str().unwrap_or_default();
            ensure!(message.contains("G1018 gang-incomplete"), "{condition}");
        }
        let phase = gang_phase(case).await?;
        ensure!(phase == "Pending", "the job is {phase}");
        Ok(())
    })
    .await?;
    case.lab.recover("a100-80-1", 3)?;
    gang_runs(case).await
}

async fn a_monitoring_script_can_parse_what_it_asks_for(case: &Case) -> anyhow::Result<()> {
    let script = std::fs::read_to_string(case.file("gpu_usage.py"))?;
    let line =
        script.lines().find_map(|line| line.trim().strip_prefix("query = ")).context("the command line")?;
    let command: Vec<String> = serde_json::from_str(line).context("a list of strings")?;
    case.apply("multi-gpu-deployment.yaml").await?;
    let pod = case.ready_pods("app=multi-gpu", 1).await?.remove(0);
    let name = pod["metadata"]["name"].as_str().context("a name")?;
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let output = case.lab.exec("default", name, &words).await?;
    // As the script does it: lines, a comma and a blank, whole numbers.
    let mut gpus = Vec::new();
    for line in output.trim().lines() {
        let numbers: Vec<u64> =
            line.split(", ").map(str::parse).collect::<Result<_, _>>().with_context(|| line.to_owned())?;
        gpus.push(numbers);
    }
    ensure!(gpus == vec![vec![0, 0, 81_920]; 4], "{gpus:?}");
    Ok(())
}

async fn fields_beside_limits_are_refused_or_dropped_with_a_word(case: &Case) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(case.file("as-written/torch-gpu-pod.yaml"))?;
    let pod: Value = serde_saphyr::from_str(&text)?;
    let path = "/api/v1/namespaces/default/pods";

    let strict = case.lab.post(&format!("{path}?fieldValidation=Strict"), &pod).await?;
    ensure!(strict.status == 400, "{}", strict.body);
    let message = strict.body["message"].as_str().unwrap_or_default();
    for field in ["cpu", "memory"] {
        let mut expected = format!("unknown field \"spec.containers[0].resources.{field}\"");
        if !Lab::on_kubernetes() {
            expected = format!("{expected} (did you mean \"spec.containers[0].resources.limits.{field}\"?)");
        }
        ensure!(message.contains(&expected), "no {expected} in: {message}");
    }

    let warn = case.lab.post(&format!("{path}?fieldValidation=Warn"), &pod).await?;
    ensure!(warn.status == 201, "{}", warn.body);
    ensure!(warn.warnings.iter().any(|text| text.contains("resources.memory")), "{:?}", warn.warnings);
    let resources = &warn.body["spec"]["containers"][0]["resources"];
    ensure!(resources["cpu"].is_null() && resources["memory"].is_null(), "{resources}");
    let pod = case.running_pod("torch-gpu-pod").await?;
    case.sees_its_own(&pod, 1).await.map(drop)
}
