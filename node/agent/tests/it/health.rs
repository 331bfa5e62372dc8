//! A card that fails, as people see it, and its way back.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_agent::{ContainerIdentity, HealthOptions, Options};
use gantry_model::{FaultKind, PodKey};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::reports::{Cluster, Shared, cluster, options, until};
use crate::{Node, start};

fn condition(cluster: &Cluster) -> Option<Value> {
    let list = cluster.node.as_ref()?["status"]["conditions"].as_array()?.clone();
    list.into_iter().find(|condition| condition["type"] == "GpusHealthy")
}

async fn is(cluster: &Shared, status: &str) -> Value {
    until(cluster, |c| condition(c).filter(|condition| condition["status"] == status)).await
}

fn events(cluster: &Shared) -> Vec<String> {
    let text = |event: &Value| {
        let part =
            |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        format!("{} {}", part("/involvedObject/kind"), part("/reason"))
    };
    cluster.lock().unwrap().events.iter().map(text).collect()
}

#[tokio::test(start_paused = true)]
async fn a_fault_is_told_to_everybody_whom_it_concerns_and_the_card_returns_by_itself() {
    let (node, cluster) = (Node::new("a100-80", 2), cluster());
    let agent = start(options(&node, &cluster));
    let well = is(&cluster, "True").await;
    assert_eq!(
        (&well["reason"], &well["message"]),
        (&json!("EveryGpuHealthy"), &json!("2 of 2 GPUs may be used"))
    );
    let container = ContainerIdentity {
        pod: PodKey { namespace: "team".into(), name: "train".into(), uid: "u".into() },
        annotations: BTreeMap::new(),
        name: "main".into(),
        devices: vec!["slot-1".into()],
    };
    let gpu = agent.handle.create_container(&container).unwrap().gpus[0].clone();
    let index = agent.handle.gpus().iter().position(|known| known.id == gpu).unwrap();
    let begin = Instant::now();
    node.gpus.fault(index, FaultKind::Xid(94)).unwrap();
    let sick = is(&cluster, "False").await;
    let message = sick["message"].as_str().unwrap();
    assert!(
        message.starts_with(&format!(
            "GPU {index} ({gpu}): the driver reported XID 94 (contained memory error)"
        )),
        "{message}"
    );
    assert_eq!(sick["reason"], "GpuUnhealthy");
    until(&cluster, |c| (c.events.len() == 2).then_some(())).await;
    assert_eq!(events(&cluster), ["Node GpuUnhealthy", "Pod GpuFailed"]);
    is(&cluster, "True").await;
    assert!(begin.elapsed() >= Duration::from_secs(30), "it must be quiet first");
    until(&cluster, |c| (c.events.len() == 3).then_some(())).await;
    assert_eq!(events(&cluster)[2], "Node GpuHealthy");
    assert!(agent.handle.gpus().iter().all(|gpu| gpu.health.is_healthy()));
    assert!(agent.handle.in_use().len() == 1, "who had it keeps it");
    sleep(Duration::from_hours(1)).await;
    assert_eq!(events(&cluster).len(), 3);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_offers_no_bad_card_again_and_tells_nothing_twice() {
    let (node, cluster) = (Node::new("t4", 2), cluster());
    let options = || options(&node, &cluster);
    let clock = options().clock;
    let options = || Options { clock: clock.clone(), ..options() };
    let agent = start(options());
    is(&cluster, "True").await;
    node.gpus.fault(0, FaultKind::Xid(109)).unwrap();
    // The simulated card says that it is well: an application may have caused it. The catalogue asks for a reset.
    is(&cluster, "False").await;
    until(&cluster, |c| (c.events.len() == 1).then_some(())).await;
    agent.kill().await;
    let agent = start(options());
    assert!(!agent.handle.gpus()[0].health.is_healthy(), "at once, before anything is read again");
    sleep(Duration::from_hours(6)).await;
    assert!(!agent.handle.gpus()[0].health.is_healthy(), "nobody reset it");
    assert_eq!(events(&cluster), ["Node GpuUnhealthy"]);
    node.gpus.recover(0).unwrap();
    is(&cluster, "True").await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_on_which_no_card_is_fit_is_tainted_where_that_is_configured() {
    let (node, cluster) = (Node::new("t4", 2), cluster());
    let other = json!({ "key": "mine", "effect": "NoExecute" });
    cluster.lock().unwrap().node.as_mut().unwrap()["spec"] = json!({ "taints": [other] });
    let health = HealthOptions { taint: true, ..HealthOptions::default() };
    let agent = start(Options { health, ..options(&node, &cluster) });
    let taints = |c: &Cluster| c.node.as_ref().unwrap()["spec"]["taints"].clone();
    node.gpus.lose(0).unwrap();
    is(&cluster, "False").await;
    assert_eq!(taints(&cluster.lock().unwrap()), json!([other]), "one is fit");
    node.gpus.lose(1).unwrap();
    let both = json!([other, { "key": "nvidia.com/gpu-unhealthy", "effect": "NoSchedule" }]);
    until(&cluster, |c| (taints(c) == both).then_some(())).await;
    assert_eq!(condition(&cluster.lock().unwrap()).unwrap()["reason"], "NoGpuHealthy");
    node.gpus.recover(1).unwrap();
    until(&cluster, |c| (taints(c) == json!([other])).then_some(())).await;
    agent.stop().await;
}
