//! A cluster whose wall clock jumps. What measures how long something takes goes by a clock that cannot, so nothing may
//! come of it.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use gantry_cluster::{Cluster, ClusterOptions, NodeGroup};
use gantry_kit::{CancellationToken, Clock as _, ManualClock, SeededIds};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

const DAY: SignedDuration = SignedDuration::from_hours(24);
/// What a node controller and an eviction take together, and time to spare.
const LONG: Duration = Duration::from_mins(20);

/// Lets the clock go on with tokio's time, a second a step, however often it is set in between.
fn tick(clock: Arc<ManualClock>) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            jump(&clock, SignedDuration::from_secs(1));
        }
    });
}

fn jump(clock: &ManualClock, by: SignedDuration) {
    clock.set(clock.now().checked_add(by).unwrap());
}

async fn create<K>(client: &Client, object: Value)
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::default_namespaced(client.clone());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// The UIDs of the pods in `default` that run.
async fn running(client: &Client) -> Vec<String> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let mut uids: Vec<String> = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter(|pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running"))
        .filter_map(|pod| pod.uid())
        .collect();
    uids.sort();
    uids
}

async fn until_running(client: &Client, count: usize) -> Vec<String> {
    for _ in 0..10_000 {
        let uids = running(client).await;
        if uids.len() == count {
            return uids;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("{count} pods must run: {:?}", running(client).await)
}

async fn jobs(client: &Client) -> Vec<String> {
    let jobs: Api<Job> = Api::default_namespaced(client.clone());
    jobs.list(&ListParams::default()).await.unwrap().iter().map(kube::ResourceExt::name_any).collect()
}

/// Every node reports and is, and has been all along, ready and without taints.
async fn assert_nodes_are_well(client: &Client, now: Timestamp) {
    for node in Api::<Node>::all(client.clone()).list(&ListParams::default()).await.unwrap() {
        let conditions = node.status.clone().unwrap().conditions.unwrap();
        assert!(conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"), "{node:?}");
        assert_eq!(node.spec.clone().unwrap().taints.unwrap_or_default(), [], "{}", node.name_any());
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
        let renewed = leases.get(&node.name_any()).await.unwrap().spec.unwrap().renew_time.unwrap().0;
        assert!(now.duration_since(renewed).abs() < SignedDuration::from_mins(1), "{renewed} at {now}");
    }
    for event in Api::<Event>::all(client.clone()).list(&ListParams::default()).await.unwrap() {
        let reason = event.reason.unwrap_or_default();
        assert!(!["NodeNotReady", "TaintManagerEviction"].contains(&reason.as_str()), "{:?}", event.message);
    }
}

async fn replicas_events(client: &Client) -> i32 {
    let events: Api<Event> = Api::default_namespaced(client.clone());
    let events = events.list(&ListParams::default()).await.unwrap();
    events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("ScalingReplicaSet"))
        .filter_map(|event| event.count)
        .sum()
}

async fn scale(client: &Client, replicas: u32) {
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
}

fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {
        "restartPolicy": if app == "web" { "Always" } else { "Never" },
        "containers": [{"name": "main", "image": "busybox:1.36", "command": ["sleep", "infinity"]}],
    }})
}

#[tokio::test(start_paused = true)]
async fn a_day_that_the_clock_skips_and_takes_back_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new("2026-01-01T00:10:00Z".parse().unwrap()));
    tick(clock.clone());
    let cancel = CancellationToken::new();
    let nodes = NodeGroup { count: 2, gpus_per_node: 0, name_prefix: "n".to_owned(), ..NodeGroup::default() };
    let options = ClusterOptions {
        nodes: vec![nodes],
        dir: folder.path().to_owned(),
        state_dir: None,
        clock: clock.clone(),
        ids: Arc::new(SeededIds::new(1)),
    };
    let cluster = Cluster::start(options, cancel.clone()).await.unwrap();
    cluster.ready().await.unwrap();
    let client = cluster.client();
    create::<Deployment>(
        &client,
        json!({"metadata": {"name": "web"}, "spec": {
            "replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template("web"),
        }}),
    )
    .await;
    create::<Job>(&client, json!({"metadata": {"name": "train"}, "spec": {"template": template("train")}}))
        .await;
    create::<CronJob>(
        &client,
        json!({"metadata": {"name": "report"}, "spec": {
            "schedule": "0 * * * *", "jobTemplate": {"spec": {"template": template("report")}},
        }}),
    )
    .await;
    let first = until_running(&client, 4).await;
    assert_eq!(jobs(&client).await, ["train"]);

    jump(&clock, DAY);
    tokio::time::sleep(LONG).await;
    assert_nodes_are_well(&client, clock.now()).await;
    assert_eq!(running(&client).await, first, "nothing is evicted or started again");
    assert!(jobs(&client).await.len() <= 2, "a gap of a day is made up for once: {:?}", jobs(&client).await);
    // Past the next full hour.
    tokio::time::sleep(Duration::from_mins(45)).await;
    let names = jobs(&client).await;
    assert_eq!(names.len(), 2, "{names:?}");
    let second = until_running(&client, 5).await;

    jump(&clock, -DAY);
    tokio::time::sleep(LONG).await;
    assert_nodes_are_well(&client, clock.now()).await;
    assert_eq!(running(&client).await, second);
    assert_eq!(jobs(&client).await, names, "no job is made twice");

    let events = replicas_events(&client).await;
    scale(&client, 4).await;
    until_running(&client, 6).await;
    for _ in 0..100 {
        if replicas_events(&client).await > events {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(replicas_events(&client).await > events, "events are still written");
    cancel.cancel();
}
