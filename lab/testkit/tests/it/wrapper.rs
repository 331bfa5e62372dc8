//! Nodes whose container runtime has no NRI: `gantry-runtime` stands between it and runc.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use gantry_testkit::{Lab, eventually};
use serde_json::{Value, json};

use crate::faults::{assigned_to_pod, create, delete, gone, pod, running, text, visible};

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODE: &str = "a100-80-1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_without_nri_brings_the_gpus_of_the_assignment() {
    if crate::left_out_on_embedded(
        "a_runtime_without_nri_brings_the_gpus_of_the_assignment",
        "it has no OCI runtime",
    ) {
        return;
    }
    let lab = Lab::start_with_the_runtime_wrapper(&[("a100-80", 1)]).await.unwrap();
    let outcome = wrapped(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

/// A pod of the runtime class, with these variables.
fn of_class(name: &str, gpus: u32, variables: &[(&str, &str)]) -> Value {
    let mut pod = pod(name, gpus);
    pod["spec"]["runtimeClassName"] = json!("nvidia");
    let container = &mut pod["spec"]["containers"][0];
    container["env"] = variables.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    if gpus == 0 {
        container["resources"] = json!({});
    }
    pod
}

async fn devices(lab: &Lab, pod: &str) -> anyhow::Result<BTreeSet<String>> {
    let listed = lab.exec("default", pod, &["ls", "/dev"]).await?;
    Ok(listed.split_whitespace().filter(|name| name.starts_with("nvidia")).map(str::to_owned).collect())
}

async fn wrapped(lab: &Lab) -> anyhow::Result<()> {
    let report = eventually("the agent reports its node", async || {
        let report = lab.get(&format!("/apis/gantry.dev/v1alpha1/gpunodes/{NODE}")).await?;
        ensure!(report["status"]["gpus"].as_array().is_some_and(|gpus| gpus.len() == 8), "{report}");
        Ok(report)
    })
    .await?;
    ensure!(report["status"]["mode"] == "Assignment", "devices are chosen by {}", report["status"]["mode"]);

    // The scheduler's choice, and nothing else.
    create(lab, &of_class("two", 2, &[])).await?;
    let assigned = assigned_to_pod(&running(lab, "two").await?)?;
    ensure!(assigned.len() == 2, "assigned {assigned:?}");
    let seen = visible(lab, "two", "main").await?;
    ensure!(seen == assigned, "sees {seen:?} instead of {assigned:?}");
    let found = devices(lab, "two").await?;
    let gpus = report["status"]["gpus"].as_array().context("gpus")?.iter();
    let expected: BTreeSet<String> = gpus
        .filter(|gpu| assigned.contains(text(gpu, "/id")))
        .map(|gpu| format!("nvidia{}", gpu["minor"]))
        .collect();
    let cards: BTreeSet<String> =
        found.iter().filter(|name| name.ends_with(|c: char| c.is_ascii_digit())).cloned().collect();
    ensure!(cards == expected && found.contains("nvidiactl"), "/dev has {found:?} instead of {expected:?}");

    // Every image can set the variable.
    create(lab, &of_class("greedy", 0, &[("NVIDIA_VISIBLE_DEVICES", "all")])).await?;
    running(lab, "greedy").await?;
    let found = devices(lab, "greedy").await?;
    ensure!(found.is_empty(), "an unprivileged pod without GPUs has {found:?}");

    // What the image asks for of the driver, and what it requires.
    create(lab, &of_class("utility", 1, &[("NVIDIA_DRIVER_CAPABILITIES", "utility")])).await?;
    running(lab, "utility").await?;
    // Where the image has its C library.
    let libraries = lab.exec("default", "utility", &["ls", "-R", "/lib", "/lib64"]).await?;
    ensure!(libraries.contains("libnvidia-ml.so.1") && !libraries.contains("libcuda.so"), "{libraries}");
    create(lab, &of_class("future", 1, &[("NVIDIA_REQUIRE_CUDA", "cuda>=99.0")])).await?;
    eventually("a pod that requires another driver is refused", async || {
        let future = lab.get(&format!("{PODS}/future")).await?;
        let message = text(&future, "/status/containerStatuses/0/state/waiting/message");
        ensure!(
            message.contains(
                "unsatisfied requirement NVIDIA_REQUIRE_CUDA=\"cuda>=99.0\": this node has driver="
            ) && message.contains("set NVIDIA_DISABLE_REQUIRE=true"),
            "{message:?}"
        );
        Ok(())
    })
    .await?;

    // Whoever knows better may switch the check off.
    let insists = [("NVIDIA_REQUIRE_CUDA", "cuda>=99.0"), ("NVIDIA_DISABLE_REQUIRE", "true")];
    create(lab, &of_class("insists", 1, &insists)).await?;
    running(lab, "insists").await?;

    // What has ended is free again.
    for name in ["two", "utility", "future", "insists"] {
        delete(lab, name).await?;
        gone(lab, name).await?;
    }
    create(lab, &of_class("everything", 8, &[])).await?;
    running(lab, "everything").await?;
    let seen = visible(lab, "everything", "main").await?;
    ensure!(seen.len() == 8, "sees {seen:?}");
    Ok(())
}
