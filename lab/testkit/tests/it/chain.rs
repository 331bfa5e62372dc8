//! The way of one GPU pod through the whole system, step by step, each step asserted: from the driver on the node to the freed GPU.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use gantry_testkit::{Lab, eventually};
use serde_json::{Value, json};

use crate::faults::{assigned_to_pod, phase, pod, text};

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODE: &str = "a100-80-1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_pod_goes_all_the_way() {
    let lab = Lab::start(&[("a100-80", 1)]).await.unwrap();
    let outcome = chain(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn chain(lab: &Lab) -> anyhow::Result<()> {
    let report = format!("/apis/gantry.dev/v1alpha1/gpunodes/{NODE}");
    let node_path = format!("/api/v1/nodes/{NODE}");

    // 1, 2: the node has a driver, and an agent that reads it and says who decides about devices.
    let gpus = eventually("the agent reports eight healthy GPUs", async || {
        let status = lab.get(&report).await?["status"].take();
        ensure!(status["healthyGpuCount"] == 8, "{status}");
        ensure!(text(&status, "/driverVersion").contains('.'), "{}", status["driverVersion"]);
        ensure!(status["mode"] == "Assignment", "devices are chosen by {}", status["mode"]);
        ids(&status["gpus"])
    })
    .await?;

    // 3: the kubelet offers them, and labels tell what they are.
    let node = eventually("the node has labels and capacity", async || {
        let node = lab.get(&node_path).await?;
        ensure!(node["metadata"]["labels"]["nvidia.com/gpu.count"] == "8", "{}", node["metadata"]["labels"]);
        Ok(node)
    })
    .await?;
    for field in ["capacity", "allocatable"] {
        ensure!(node["status"][field]["nvidia.com/gpu"] == "8", "{field}: {}", node["status"][field]);
    }
    ensure!(node["metadata"]["labels"]["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB");

    // 4: a pod asks in its limits; the request follows.
    let created = lab.post(PODS, &pod("first", 2)).await?.ok()?;
    let requests = &created["spec"]["containers"][0]["resources"]["requests"];
    ensure!(requests["nvidia.com/gpu"] == "2", "requests: {requests}");

    // 5: the scheduler binds it with an assignment; a pod that fits on no node waits and is told why.
    let first = running(lab, "first").await?;
    ensure!(first["spec"]["nodeName"] == NODE, "runs on {}", first["spec"]["nodeName"]);
    let assigned = assigned_to_pod(&first)?;
    ensure!(assigned.len() == 2 && assigned.is_subset(&gpus), "assigned {assigned:?}");
    lab.post(PODS, &pod("everything", 8)).await?.ok()?;
    eventually("a pod of eight GPUs waits for the two", async || {
        let pod = lab.get(&format!("{PODS}/everything")).await?;
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let refused = conditions.iter().find(|condition| condition["reason"] == "Unschedulable");
        let message = text(refused.context("not refused")?, "/message");
        ensure!(message.contains("G1001 insufficient-gpu"), "{message}");
        Ok(())
    })
    .await?;

    // 6: the kubelet asked the agent, and the agent knows whose they are.
    eventually("the agent reports the owner", async || {
        let status = lab.get(&report).await?["status"].take();
        let owner = &status["inUse"][0];
        ensure!(owner["pod"] == "first" && owner["container"] == "main", "{}", status["inUse"]);
        let used: BTreeSet<String> = serde_json::from_value(owner["gpus"].clone())?;
        ensure!(used == assigned, "{used:?} instead of {assigned:?}");
        Ok(())
    })
    .await?;

    // 7: the container has its device files and the driver's libraries, and no other card's.
    let devices = lab.exec("default", "first", &["ls", "/dev"]).await?;
    let status = lab.get(&report).await?["status"].take();
    let minors = status["gpus"].as_array().context("gpus")?.iter();
    let expected: BTreeSet<String> = minors
        .filter(|gpu| assigned.contains(text(gpu, "/id")))
        .map(|gpu| format!("nvidia{}", gpu["minor"]))
        .collect();
    let numbered = |name: &&str| {
        name.strip_prefix("nvidia")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let present: BTreeSet<String> = devices.split_whitespace().filter(numbered).map(str::to_owned).collect();
    ensure!(present == expected, "/dev has {present:?} instead of {expected:?}");
    ensure!(devices.split_whitespace().any(|name| name == "nvidiactl"), "no nvidiactl in {devices}");
    let variables = lab.exec("default", "first", &["env"]).await?;
    ensure!(variables.contains("NVIDIA_VISIBLE_DEVICES=void"), "{variables}");
    let libraries = lab.exec("default", "first", &["ls", "/usr/lib/x86_64-linux-gnu"]).await?;
    for library in ["libnvidia-ml.so.1", "libcuda.so.1"] {
        ensure!(libraries.contains(library), "no {library} in {libraries}");
    }

    // 8: a program in the container sees these GPUs alone; one in a pod without GPUs sees none.
    let listed = lab.exec("default", "first", &["nvidia-smi", "-L"]).await?;
    let uuid = |line: &str| Some(line.split_once("UUID: ")?.1.trim_end_matches(')').to_owned());
    let seen: BTreeSet<String> = listed.lines().filter_map(uuid).collect();
    ensure!(seen == assigned, "sees {seen:?} instead of {assigned:?}");
    let mut without = pod("without", 0);
    without["spec"]["containers"][0]["resources"] = json!({});
    lab.post(PODS, &without).await?.ok()?;
    running(lab, "without").await?;
    let devices = lab.exec("default", "without", &["ls", "/dev"]).await?;
    ensure!(!devices.contains("nvidia"), "a pod without GPUs has {devices}");

    // 9: the pod goes, and the next one gets what it had.
    lab.send("DELETE", &format!("{PODS}/first"), None).await?.ok()?;
    let everything = running(lab, "everything").await?;
    ensure!(assigned_to_pod(&everything)? == gpus);
    Ok(())
}

fn ids(gpus: &Value) -> anyhow::Result<BTreeSet<String>> {
    let gpus = gpus.as_array().context("no list of GPUs")?;
    Ok(gpus.iter().map(|gpu| text(gpu, "/id").to_owned()).collect())
}

async fn running(lab: &Lab, name: &str) -> anyhow::Result<Value> {
    eventually(&format!("pod {name} runs"), async || {
        let pod = lab.get(&format!("{PODS}/{name}")).await?;
        ensure!(phase(&pod) == "Running", "{}", pod["status"]);
        Ok(pod)
    })
    .await
}
