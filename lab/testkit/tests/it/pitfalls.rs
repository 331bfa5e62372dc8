//! What users of GPU clusters trip over, as far as no example shows it.

use anyhow::ensure;
use gantry_cluster::NodeGroup;
use gantry_testkit::{Lab, eventually};
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A pod with one GPU whose program uses this much of its memory.
fn using(name: &str, memory: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"sim.gantry.dev/memory-used": memory}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": "model", "command": ["sleep", "infinity"],
                "resources": {"limits": {"nvidia.com/gpu": "1"}},
            }],
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_needs_more_memory_than_its_gpu_has_fails_and_says_so() {
    if crate::left_out_on_kubernetes(
        "a_program_that_needs_more_memory_than_its_gpu_has_fails_and_says_so",
        "programs are simulated by the embedded cluster",
    ) {
        return;
    }
    let lab = Lab::start_with(vec![NodeGroup {
        profile: "t4".to_owned(),
        gpus_per_node: 1,
        ..NodeGroup::default()
    }])
    .await
    .unwrap();
    let outcome = too_much_memory(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn too_much_memory(lab: &Lab) -> anyhow::Result<()> {
    lab.post(PODS, &using("greedy", "200Gi")).await?.ok()?;
    let failed = eventually("the pod fails", async || {
        let pod = lab.get(&format!("{PODS}/greedy")).await?;
        ensure!(pod["status"]["phase"] == "Failed", "{}", pod["status"]);
        Ok(pod)
    })
    .await?;
    let end = &failed["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(end["exitCode"] == 1 && end["reason"] == "Error", "{end}");
    let log = lab.text(&format!("{PODS}/greedy/log")).await?;
    ensure!(log.contains("CUDA error") && log.contains("204800 MiB") && log.contains("15360 MiB"), "{log:?}");
    // The GPU is whole: the next pod uses nearly all of it.
    lab.post(PODS, &using("modest", "15Gi")).await?.ok()?;
    eventually("the next pod runs", async || {
        let pod = lab.get(&format!("{PODS}/modest")).await?;
        ensure!(pod["status"]["phase"] == "Running", "{}", pod["status"]);
        Ok(())
    })
    .await?;
    let query = ["nvidia-smi", "--query-gpu=memory.used,memory.free", "--format=csv,noheader"];
    let memory = lab.exec("default", "modest", &query).await?;
    ensure!(memory == "15360 MiB, 0 MiB\n", "{memory:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_ready_takes_pods_on_every_node() {
    if crate::left_out_on_kubernetes(
        "a_cluster_that_is_ready_takes_pods_on_every_node",
        "eight nodes with kubelets are more than a small machine carries",
    ) {
        return;
    }
    let lab = Lab::start(&[("a100-80", 4), ("t4", 4)]).await.unwrap();
    let nodes = lab.list("/api/v1/nodes").await;
    lab.stop().await;
    for node in nodes.unwrap() {
        let taints = node["spec"]["taints"].as_array().map_or(0, Vec::len);
        assert_eq!(taints, 0, "{}: {}", node["metadata"]["name"], node["spec"]);
    }
}
