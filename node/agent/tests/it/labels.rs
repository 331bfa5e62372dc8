//! Labels on their way: who owns them, where they go, and what a driver that is away changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use gantry_agent::{ConfigSource, FeatureOptions, LabelSink, Options};
use gantry_gpu::{
    DriverInfo, Error, EventSink, GpuBackend, GpuDetails, GpuSample, Inventory, SimGpus, Subscription,
};
use gantry_model::{GpuId, Topology};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::reports::{Cluster, Shared, cluster, options, until};
use crate::{Node, start};

/// A driver that can be away, or say that there is no card.
#[derive(Debug)]
struct Driver {
    cards: Arc<SimGpus>,
    fails: AtomicBool,
    empty: AtomicBool,
    /// How often it was asked.
    looks: AtomicUsize,
}

impl GpuBackend for Driver {
    fn driver(&self) -> Result<DriverInfo, Error> {
        self.cards.driver()
    }

    fn inventory(&self) -> Result<Inventory, Error> {
        self.looks.fetch_add(1, Ordering::Relaxed);
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::Aborted);
        }
        if self.empty.load(Ordering::Relaxed) {
            return Ok(Inventory { gpus: Vec::new(), topology: Topology::default(), failed: Vec::new() });
        }
        self.cards.inventory()
    }

    fn sample(&self) -> Result<Vec<GpuSample>, Error> {
        self.cards.sample()
    }

    fn subscribe(&self, sink: EventSink) -> Subscription {
        self.cards.subscribe(sink)
    }

    fn machine(&self) -> Option<String> {
        self.cards.machine()
    }

    fn details(&self) -> Result<BTreeMap<GpuId, GpuDetails>, Error> {
        self.cards.details()
    }
}

fn label(cluster: &Cluster, key: &str) -> Option<String> {
    cluster.node.as_ref()?["metadata"]["labels"][key].as_str().map(str::to_owned)
}

async fn labelled(cluster: &Shared) -> String {
    until(cluster, |c| label(c, "nvidia.com/gpu.product")).await
}

fn set(cluster: &Shared, pointer: &str, key: &str, value: Value) {
    let mut cluster = cluster.lock().unwrap();
    let object = cluster.node.as_mut().unwrap().pointer_mut(pointer).unwrap().as_object_mut().unwrap();
    match value {
        Value::Null => object.remove(key),
        value => object.insert(key.to_owned(), value),
    };
}

#[tokio::test(start_paused = true)]
async fn labels_outlive_a_driver_that_is_away_and_go_when_the_cards_are_gone_for_good() {
    let (node, cluster) = (Node::new("a100-80", 2), cluster());
    let driver = Arc::new(Driver {
        cards: node.gpus.clone(),
        fails: AtomicBool::new(false),
        empty: AtomicBool::new(false),
        looks: AtomicUsize::new(0),
    });
    let agent = start(Options { backend: driver.clone(), ..options(&node, &cluster) });
    labelled(&cluster).await;
    driver.fails.store(true, Ordering::Relaxed);
    sleep(Duration::from_hours(1)).await;
    assert!(label(&cluster.lock().unwrap(), "nvidia.com/gpu.count").is_some(), "the driver is away");
    driver.fails.store(false, Ordering::Relaxed);
    driver.empty.store(true, Ordering::Relaxed);
    until(&cluster, |c| label(c, "nvidia.com/gpu.count").is_none().then_some(())).await;
    let log = agent.log();
    assert!(log.iter().any(|line| line.contains("looking again before that is believed")), "{log:?}");
    {
        let cluster = cluster.lock().unwrap();
        let metadata = &cluster.node.as_ref().unwrap()["metadata"];
        assert_eq!(metadata["labels"], json!({ "mine": "1" }));
        assert!(metadata["annotations"].get("gantry.dev/labels").is_none(), "{metadata}");
    }
    driver.empty.store(false, Ordering::Relaxed);
    assert_eq!(labelled(&cluster).await, "NVIDIA-A100-SXM4-80GB");
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_life_wrote_goes_and_what_others_wrote_stays() {
    let (node, cluster) = (Node::new("t4", 1), cluster());
    set(
        &cluster,
        "/metadata",
        "labels",
        json!({ "mine": "1", "nvidia.com/mig.strategy": "mixed", "nvidia.com/gpu.mode": "display" }),
    );
    set(&cluster, "/metadata", "annotations", json!({ "gantry.dev/labels": "nvidia.com/mig.strategy" }));
    let agent = start(options(&node, &cluster));
    labelled(&cluster).await;
    {
        let cluster = cluster.lock().unwrap();
        assert_eq!(label(&cluster, "nvidia.com/mig.strategy"), None);
        assert_eq!(label(&cluster, "nvidia.com/gpu.mode").as_deref(), Some("display"));
        assert_eq!(label(&cluster, "mine").as_deref(), Some("1"));
    }
    let log = agent.log();
    let told = "Label nvidia.com/gpu.mode=display of the node was set by somebody else and is left alone; it would be \"compute\"";
    assert_eq!(log.iter().filter(|line| *line == told).count(), 1, "{log:?}");
    // Whoever removes one of ours gets it back; whoever changes nothing causes no write.
    set(&cluster, "/metadata/labels", "nvidia.com/gpu.count", Value::Null);
    sleep(Duration::from_mins(6)).await;
    assert_eq!(label(&cluster.lock().unwrap(), "nvidia.com/gpu.count").as_deref(), Some("1"));
    let writes =
        |c: &Shared| c.lock().unwrap().writes.iter().filter(|w| *w == "PATCH /api/v1/nodes/node-1").count();
    let before = writes(&cluster);
    sleep(Duration::from_hours(1)).await;
    assert_eq!(writes(&cluster), before);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn labels_are_the_first_thing_that_is_written_and_oneshot_writes_them_once() {
    let (node, cluster) = (Node::new("t4", 1), cluster());
    let features = FeatureOptions { oneshot: true, timestamp: false, ..FeatureOptions::default() };
    let agent = start(Options { features, ..options(&node, &cluster) });
    until(&cluster, Cluster::status).await;
    assert_eq!(cluster.lock().unwrap().writes[0], "PATCH /api/v1/nodes/node-1");
    assert_eq!(label(&cluster.lock().unwrap(), "nvidia.com/gfd.timestamp"), None);
    set(&cluster, "/metadata/labels", "nvidia.com/gpu.count", Value::Null);
    sleep(Duration::from_hours(1)).await;
    assert_eq!(label(&cluster.lock().unwrap(), "nvidia.com/gpu.count"), None);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_feature_discovery_is_given_nvidias_labels_where_it_is_installed() {
    let (node, cluster) = (Node::new("t4", 1), cluster());
    let sink = LabelSink::NodeFeature;
    let features = FeatureOptions { sink, namespace: "gantry".into(), ..FeatureOptions::default() };
    let options = || Options { features: features.clone(), ..options(&node, &cluster) };
    let agent = start(options());
    assert_eq!(labelled(&cluster).await, "Tesla-T4", "without it, onto the node");
    agent.stop().await;
    cluster.lock().unwrap().has_nfd = true;
    let agent = start(options());
    let feature = until(&cluster, |c| c.node_feature.clone()).await;
    assert_eq!(feature["metadata"]["name"], "nvidia-features-for-node-1");
    assert_eq!(feature["metadata"]["labels"], json!({ "nfd.node.kubernetes.io/node-name": "node-1" }));
    assert_eq!(feature["spec"]["features"], json!({ "flags": {}, "attributes": {}, "instances": {} }));
    let labels = feature["spec"]["labels"].as_object().unwrap();
    assert!(labels.keys().all(|key| key.starts_with("nvidia.com/")), "{labels:?}");
    assert_eq!(labels["nvidia.com/gpu.product"], "Tesla-T4");
    until(&cluster, |c| {
        (!c.node.as_ref()?["metadata"]["annotations"]["gantry.dev/labels"].as_str()?.contains("nvidia.com/"))
            .then_some(())
    })
    .await;
    assert_eq!(
        label(&cluster.lock().unwrap(), "gpu-topology").as_deref(),
        Some("pcie"),
        "not a label of NVIDIA's"
    );
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn labels_that_cannot_go_where_they_should_keep_nothing_else_back() {
    let (node, cluster) = (Node::new("t4", 1), cluster());
    cluster.lock().unwrap().refuses_nfd = true;
    configure(&node, "{useNodeFeatureAPI: true}");
    let features = FeatureOptions { namespace: "gantry".into(), ..FeatureOptions::default() };
    let agent = start(Options { config: configured(&node), features, ..options(&node, &cluster) });
    assert_eq!(labelled(&cluster).await, "Tesla-T4", "onto the node");
    let line = "No NodeFeature can be written to gantry, because this account may not: labels are written onto the node; allow it get, create, update and delete of nodefeatures.nfd.k8s-sigs.io, or leave useNodeFeatureAPI out";
    assert!(agent.log().iter().any(|said| said == line), "{:?}", agent.log());
    agent.stop().await;
    cluster.lock().unwrap().gpu_node = None;
    configure(&node, "{gfd: {outputFile: /dev/null/gfd}}");
    let agent = start(Options { config: configured(&node), ..options(&node, &cluster) });
    until(&cluster, Cluster::status).await;
    agent.stop().await;
}

/// A configuration file, replaced as a whole.
fn configure(node: &Node, flags: &str) {
    let path = node.root.path().join("config.yaml");
    std::fs::write(path.with_extension("new"), format!("version: v1\nflags: {flags}\n")).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
}

fn configured(node: &Node) -> ConfigSource {
    ConfigSource { file: Some(node.root.path().join("config.yaml")), ..ConfigSource::default() }
}

#[tokio::test(start_paused = true)]
async fn a_configuration_says_where_labels_go_and_where_they_were_they_are_removed() {
    let (node, cluster) = (Node::new("t4", 1), cluster());
    cluster.lock().unwrap().has_nfd = true;
    let labels = node.root.path().join("gfd");
    configure(&node, "{useNodeFeatureAPI: true}");
    let features = FeatureOptions { namespace: "gantry".into(), ..FeatureOptions::default() };
    let agent = start(Options { config: configured(&node), features, ..options(&node, &cluster) });
    let feature = until(&cluster, |c| c.node_feature.clone()).await;
    let labels_of = |feature: &Value| feature["spec"]["labels"].as_object().unwrap().clone();
    assert!(labels_of(&feature).contains_key("nvidia.com/gfd.timestamp"));
    assert_eq!(feature["metadata"]["ownerReferences"][0]["uid"], "node-uid", "it goes with the node");
    configure(&node, "{useNodeFeatureAPI: true, gfd: {noTimestamp: true}}");
    until(&cluster, |c| {
        let labels = labels_of(c.node_feature.as_ref()?);
        (!labels.contains_key("nvidia.com/gfd.timestamp")).then_some(())
    })
    .await;
    configure(&node, &format!("{{useNodeFeatureAPI: false, gfd: {{outputFile: {}}}}}", labels.display()));
    until(&cluster, |c| c.node_feature.is_none().then_some(())).await;
    let text = std::fs::read_to_string(&labels).unwrap();
    assert!(text.lines().any(|line| line == "nvidia.com/gpu.product=Tesla-T4"), "{text}");
    configure(&node, "{}");
    assert_eq!(labelled(&cluster).await, "Tesla-T4");
    while labels.exists() {
        sleep(Duration::from_millis(50)).await;
    }
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_configuration_says_how_often_gpus_are_read_and_where_the_machines_name_is() {
    let (node, cluster) = (Node::new("t4", 1), cluster());
    let driver = Arc::new(Driver {
        cards: node.gpus.clone(),
        fails: AtomicBool::new(false),
        empty: AtomicBool::new(false),
        looks: AtomicUsize::new(0),
    });
    let name = node.root.path().join("product_name");
    std::fs::write(&name, "  My Box (9)\n").unwrap();
    configure(&node, &format!("{{gfd: {{sleepInterval: infinite, machineTypeFile: {}}}}}", name.display()));
    let config = configured(&node);
    let agent = start(Options { backend: driver.clone(), config, ..options(&node, &cluster) });
    assert_eq!(until(&cluster, |c| label(c, "nvidia.com/gpu.machine")).await, "My-Box-9");
    let before = driver.looks.load(Ordering::Relaxed);
    sleep(Duration::from_hours(1)).await;
    assert_eq!(driver.looks.load(Ordering::Relaxed), before, "never");
    configure(&node, "{gfd: {sleepInterval: 10s, machineTypeFile: /no/such/file}}");
    assert_eq!(
        until(&cluster, |c| label(c, "nvidia.com/gpu.machine").filter(|name| name != "My-Box-9")).await,
        "unknown"
    );
    let line = "Configuration: could not read the machine's name from /no/such/file: No such file or directory (os error 2); the label nvidia.com/gpu.machine says unknown";
    assert!(agent.log().iter().any(|said| said == line), "{:?}", agent.log());
    let before = driver.looks.load(Ordering::Relaxed);
    sleep(Duration::from_mins(10)).await;
    assert!(driver.looks.load(Ordering::Relaxed) >= before + 50, "every ten seconds");
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_file_of_labels_needs_no_api_server() {
    let node = Node::new("t4", 1);
    let path = node.root.path().join("features.d/gfd");
    let features = FeatureOptions { sink: LabelSink::File(path.clone()), ..FeatureOptions::default() };
    let agent = start(Options { features, ..node.options(gantry_agent::IdentityMode::Assignment) });
    let text = loop {
        match std::fs::read_to_string(&path) {
            Ok(text) => break text,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    };
    assert!(text.lines().any(|line| line == "nvidia.com/gpu.product=Tesla-T4"), "{text}");
    assert!(text.lines().all(|line| line.starts_with("nvidia.com/")), "{text}");
    agent.stop().await;
}
