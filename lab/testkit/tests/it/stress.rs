//! Five hundred pods on real nodes, bound by two schedulers, while every component is killed again and again. An independent
//! checker reads what each container really has, and holds it against the ledger and the kubelet's own view.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use gantry_testkit::{Lab, RealContainer, eventually};
use serde_json::{Value, json};

use crate::faults::{Draws, name, phase, pod, text};

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: [&str; 2] = ["a100-80-1", "a100-80-2"];
const MACHINES: [&str; 3] = ["control", "a100-80-1", "a100-80-2"];

/// How many pods are created, and how many may be there at a time.
const TOTAL: usize = 500;
const AT_A_TIME: usize = 20;
const PACE: Duration = Duration::from_millis(200);

/// What is killed: machine and program.
const COMPONENTS: [(&str, &str); 11] = [
    ("a100-80-1", "kubelet"),
    ("a100-80-2", "kubelet"),
    ("a100-80-1", "containerd"),
    ("a100-80-2", "containerd"),
    ("a100-80-1", "gantry-agent"),
    ("a100-80-2", "gantry-agent"),
    ("control", "gantry-scheduler"),
    ("control", "gantry-controllers"),
    ("control", "kube-scheduler"),
    ("control", "kube-controller-manager"),
    ("control", "kube-apiserver"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_gpu_is_doubled_or_lost_whatever_is_killed() {
    if crate::left_out_on_embedded(
        "no_gpu_is_doubled_or_lost_whatever_is_killed",
        "it has no processes to kill and no other scheduler",
    ) {
        return;
    }
    let lab = Lab::start_beside_the_stock_scheduler(&[("a100-80", 2)]).await.unwrap();
    let outcome = stress(&lab).await;
    if outcome.is_ok() || std::env::var_os("GANTRY_KEEP").is_none() {
        lab.stop().await;
    }
    outcome.unwrap();
}

async fn stress(lab: &Lab) -> anyhow::Result<()> {
    let seed = std::env::var("GANTRY_SEED").ok().map_or(Ok(7), |seed| seed.parse()).context("GANTRY_SEED")?;
    let mut draws = Draws(seed);
    let mut alive: Vec<String> = Vec::new();
    let mut killed = BTreeSet::new();
    for step in 0..TOTAL {
        // Slow enough that most pods get as far as to run.
        tokio::time::sleep(PACE).await;
        let pod_name = format!("p{step}");
        let mut pod = pod(&pod_name, [1, 1, 2, 4][draws.below(4)]);
        pod["spec"]["schedulerName"] = json!(["gantry-scheduler", "default-scheduler"][draws.below(2)]);
        if draws.below(4) == 0 {
            // Ends by itself.
            pod["spec"]["restartPolicy"] = json!("Never");
            pod["spec"]["containers"][0]["command"] = json!(["sleep", "3"]);
        }
        let sent = eventually("the API server answers", async || lab.post(PODS, &pod).await).await?;
        ensure!(sent.status == 201 || sent.status == 409, "{}", sent.body);
        alive.push(pod_name);
        while alive.len() > AT_A_TIME {
            let victim = alive.swap_remove(draws.below(alive.len()));
            eventually("the API server answers", async || {
                lab.send("DELETE", &format!("{PODS}/{victim}"), None).await.map(drop)
            })
            .await?;
        }
        if draws.below(8) == 0 {
            let (machine, program) = COMPONENTS[draws.below(COMPONENTS.len())];
            lab.kill_program(machine, program).with_context(|| format!("step {step}"))?;
            killed.insert(format!("{program} on {machine}"));
        }
        // The control plane's programs come back at once, for the test needs them; those of nodes stay away for some steps.
        for machine in MACHINES.into_iter().filter(|machine| *machine == "control" || draws.below(3) == 0) {
            for program in lab.revive(machine)? {
                let by_itself = !killed.remove(&format!("{program} on {machine}"));
                ensure!(
                    !by_itself || !program.starts_with("gantry"),
                    "step {step}: {program} on {machine} has ended"
                );
            }
        }
        for node in NODES {
            cards_have_one_owner(&lab.containers(node)?).with_context(|| format!("step {step}, {node}"))?;
        }
    }
    eventually("everything agrees", async || {
        // What was killed last may be away still.
        MACHINES.iter().try_for_each(|machine| lab.revive(machine).map(drop))?;
        agree(lab).await
    })
    .await?;
    for pod in alive {
        lab.send("DELETE", &format!("{PODS}/{pod}"), None).await?;
    }
    for number in 0..NODES.len() {
        lab.post(PODS, &self::pod(&format!("whole-{number}"), 8)).await?.ok()?;
    }
    eventually("every GPU can be had again", async || {
        let pods = lab.list(PODS).await?;
        let whole = pods.iter().filter(|pod| name(pod).starts_with("whole-"));
        for pod in whole {
            ensure!(phase(pod) == "Running", "{}: {}", name(pod), pod["status"]);
        }
        agree(lab).await
    })
    .await
}

fn cards_have_one_owner(containers: &[RealContainer]) -> anyhow::Result<()> {
    let mut owners: BTreeMap<u64, &str> = BTreeMap::new();
    for container in containers {
        for card in &container.cards {
            if let Some(other) = owners.insert(*card, &container.pod) {
                bail!("card {card} is in {other} and in {}", container.pod);
            }
        }
    }
    Ok(())
}

/// Compares four views of each node: what containers have, what the agent reports, what the kubelet has granted, what pods asked for.
async fn agree(lab: &Lab) -> anyhow::Result<()> {
    let pods = lab.list(PODS).await?;
    for node in NODES {
        let containers = lab.containers(node)?;
        cards_have_one_owner(&containers)?;
        let report = lab.get(&format!("/apis/gantry.dev/v1alpha1/gpunodes/{node}")).await?["status"].take();
        let gpus = report["gpus"].as_array().context("no GPUs reported")?;
        let minor = |id: &str| gpus.iter().find(|gpu| text(gpu, "/id") == id)?["minor"].as_u64();
        let mut ledger: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for entry in report["inUse"].as_array().map(Vec::as_slice).unwrap_or_default() {
            let key = format!(
                "{}/{}/{}",
                text(entry, "/namespace"),
                text(entry, "/pod"),
                text(entry, "/container")
            );
            let ids: Vec<String> = serde_json::from_value(entry["gpus"].clone())?;
            ledger.insert(key, ids.iter().filter_map(|id| minor(id)).collect());
        }
        let real: BTreeMap<String, BTreeSet<u64>> = containers
            .iter()
            .filter(|container| !container.cards.is_empty())
            .map(|container| (format!("{}/{}", container.pod, container.name), container.cards.clone()))
            .collect();
        ensure!(real == ledger, "{node}: containers have {real:?}, the ledger says {ledger:?}");
        let granted = lab.granted(node).await?;
        let here = |pod: &&Value| pod["spec"]["nodeName"] == node && phase(pod) == "Running";
        for pod in pods.iter().filter(here) {
            let key = format!("default/{}/main", name(pod));
            let asked: usize =
                text(pod, "/spec/containers/0/resources/limits/nvidia.com~1gpu").parse().unwrap_or(0);
            let (has, grant) = (real.get(&key).map(BTreeSet::len), granted.get(&key).map(BTreeSet::len));
            ensure!(
                has == Some(asked) && grant == Some(asked),
                "{key} asked for {asked}, has {has:?}, was granted {grant:?}"
            );
        }
    }
    Ok(())
}
