//! What the agent writes to the API server, against a double that merges patches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gantry_agent::{ContainerIdentity, IdentityMode, Options};
use gantry_api::{ASSIGNMENT_ANNOTATION, GpuNode, GpuNodeStatus, encode_assignment};
use gantry_gpu::GpuBackend as _;
use gantry_model::{Assignment, FaultKind, GpuId, PodKey};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{Node, start};

const NODE_FEATURES: &str = "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gantry/nodefeatures";
const NODE_FEATURE: &str =
    "/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gantry/nodefeatures/nvidia-features-for-node-1";

/// An API server with one node, and the pods that are put into it.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) node: Option<Value>,
    has_crd: bool,
    pub(crate) events: Vec<Value>,
    pub(crate) has_nfd: bool,
    /// Whether this account may not touch a `NodeFeature`.
    pub(crate) refuses_nfd: bool,
    pub(crate) node_feature: Option<Value>,
    pub(crate) gpu_node: Option<Value>,
    pods: Vec<Value>,
    /// Method and path of every request that changes something.
    pub(crate) writes: Vec<String>,
    fails: bool,
}

pub(crate) type Shared = Arc<Mutex<Cluster>>;

pub(crate) fn cluster() -> Shared {
    let node = json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": "node-1", "uid": "node-uid", "labels": { "mine": "1" } } });
    Arc::new(Mutex::new(Cluster { node: Some(node), has_crd: true, ..Cluster::default() }))
}

fn client(cluster: &Shared) -> kube::Client {
    let cluster = Arc::clone(cluster);
    let service = tower::service_fn(move |request: Request<Body>| {
        let cluster = Arc::clone(&cluster);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = cluster.lock().unwrap().answer(head.method.as_str(), head.uri.path(), &body);
            let text = serde_json::to_vec(&answer).unwrap();
            Ok::<_, kube::Error>(Response::builder().status(code).body(Body::from(text)).unwrap())
        }
    });
    kube::Client::new(service, "default")
}

impl Cluster {
    fn answer(&mut self, method: &str, path: &str, body: &Value) -> (StatusCode, Value) {
        let status = |code: StatusCode| {
            let value = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": format!("{path}: {code}"), "reason": "Test", "code": code.as_u16() });
            (code, value)
        };
        if self.fails {
            return status(StatusCode::INTERNAL_SERVER_ERROR);
        }
        if self.refuses_nfd && path.starts_with(NODE_FEATURES) {
            return status(StatusCode::FORBIDDEN);
        }
        if method != "GET" {
            self.writes.push(format!("{method} {path}"));
        }
        let patch = |object: &mut Option<Value>| match object {
            Some(object) => {
                json_patch::merge(object, body);
                (StatusCode::OK, object.clone())
            }
            None => status(StatusCode::NOT_FOUND),
        };
        match (method, path) {
            ("GET", "/api/v1/pods") => {
                let list =
                    json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": self.pods });
                (StatusCode::OK, list)
            }
            ("GET", "/api/v1/nodes/node-1") => match &self.node {
                Some(node) => (StatusCode::OK, node.clone()),
                None => status(StatusCode::NOT_FOUND),
            },
            ("PATCH", "/api/v1/nodes/node-1") => patch(&mut self.node),
            ("PATCH", "/api/v1/nodes/node-1/status") => {
                let Some(node) = &mut self.node else { return status(StatusCode::NOT_FOUND) };
                // A strategic merge: conditions are known by their type.
                let entry = &body["status"]["conditions"][0];
                let mut list = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
                list.retain(|known| known["type"] != entry["type"]);
                list.extend((entry["$patch"] != "delete").then(|| entry.clone()));
                node["status"]["conditions"] = list.into();
                (StatusCode::OK, node.clone())
            }
            ("POST", path) if path.ends_with("/events") => {
                let name = &body["metadata"]["name"];
                if name.is_string() && self.events.iter().any(|event| event["metadata"]["name"] == *name) {
                    return status(StatusCode::CONFLICT);
                }
                self.events.push(body.clone());
                (StatusCode::CREATED, body.clone())
            }
            ("GET", NODE_FEATURE) if self.node_feature.is_some() => {
                (StatusCode::OK, self.node_feature.clone().unwrap())
            }
            ("POST", NODE_FEATURES) if self.has_nfd => {
                self.node_feature = Some(body.clone());
                (StatusCode::CREATED, body.clone())
            }
            ("DELETE", NODE_FEATURE) if self.node_feature.is_some() => {
                (StatusCode::OK, self.node_feature.take().unwrap())
            }
            ("PUT", NODE_FEATURE) => {
                self.node_feature = Some(body.clone());
                (StatusCode::OK, body.clone())
            }
            ("PATCH", "/apis/gantry.dev/v1alpha1/gpunodes/node-1/status") if self.has_crd => {
                patch(&mut self.gpu_node)
            }
            ("POST", "/apis/gantry.dev/v1alpha1/gpunodes") if self.has_crd => {
                assert!(body.get("status").is_none());
                self.gpu_node = Some(body.clone());
                (StatusCode::CREATED, body.clone())
            }
            _ => status(StatusCode::NOT_FOUND),
        }
    }

    /// What an Event says.
    fn message(&self, index: usize) -> Option<String> {
        self.events.get(index)?["message"].as_str().map(str::to_owned)
    }

    /// How many writes there were of labels and of the `GpuNode`.
    fn reports(&self) -> usize {
        let other = |write: &&String| write.ends_with("/events") || write.ends_with("/nodes/node-1/status");
        self.writes.iter().filter(|write| !other(write)).count()
    }

    pub(crate) fn status(&self) -> Option<GpuNodeStatus> {
        serde_json::from_value::<GpuNode>(self.gpu_node.clone()?).unwrap().status
    }
}

pub(crate) async fn until<T>(cluster: &Shared, read: impl Fn(&Cluster) -> Option<T>) -> T {
    loop {
        if let Some(value) = read(&cluster.lock().unwrap()) {
            return value;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn options(node: &Node, cluster: &Shared) -> Options {
    Options { client: Some(client(cluster)), ..node.options(IdentityMode::Assignment) }
}

fn gpus(node: &Node) -> Vec<GpuId> {
    node.gpus.inventory().unwrap().gpus.into_iter().map(|gpu| gpu.id).collect()
}

#[tokio::test(start_paused = true)]
async fn labels_and_gpu_node_are_written_once_and_on_change_only() {
    let (node, cluster) = (Node::new("a100-80", 4), cluster());
    let agent = start(options(&node, &cluster));
    let status = until(&cluster, Cluster::status).await;
    assert_eq!((status.gpu_count, status.healthy_gpu_count, status.allocatable["nvidia.com/gpu"]), (4, 4, 4));
    assert_eq!((status.driver_version.as_str(), status.cuda_version.as_str()), ("550.54.15", "12.4"));
    assert_eq!(status.to_model("node-1").unwrap().0, node.gpus.inventory().unwrap().gpus);
    {
        let cluster = cluster.lock().unwrap();
        let labels = &cluster.node.as_ref().unwrap()["metadata"]["labels"];
        assert_eq!(labels["nvidia.com/gpu.product"], "NVIDIA-A100-SXM4-80GB");
        assert_eq!(labels["mine"], "1", "labels of others stay");
        let owner = &cluster.gpu_node.as_ref().unwrap()["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["uid"]), (&json!("Node"), &json!("node-uid")));
        assert_eq!(cluster.reports(), 4, "{:?}", cluster.writes);
    }
    node.gpus.fault(1, FaultKind::Xid(79)).unwrap();
    until(&cluster, |c| c.status().filter(|status| status.healthy_gpu_count == 3)).await;
    node.gpus.recover(1).unwrap();
    let status = until(&cluster, |c| c.status().filter(|status| status.healthy_gpu_count == 4)).await;
    assert!(status.gpus[1].fault.is_none());
    assert_eq!(cluster.lock().unwrap().reports(), 6);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cdi_files_that_cannot_be_written_are_seen_in_the_cluster_and_nothing_else_stops() {
    let (node, cluster) = (Node::new("t4", 2), cluster());
    let agent = start(options(&node, &cluster));
    let condition = |cluster: &Cluster| cluster.status()?.conditions.first().cloned();
    let told = until(&cluster, condition).await;
    assert_eq!((told.type_.as_str(), told.status.as_str()), ("CdiFilesCurrent", "True"));
    // In the place of a file that is not the device plugin's own.
    let file = node.root.path().join("cdi/nvidia.com-gpu.json");
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir_all(file.join("in-the-way")).unwrap();
    let told = until(&cluster, |c| condition(c).filter(|told| told.status == "False")).await;
    let folder = node.root.path().join("cdi");
    let folder = folder.display();
    assert_eq!(told.reason, "CannotWrite");
    assert_eq!(
        told.message,
        format!(
            "the CDI files could not be brought up to date: rename {folder}/nvidia.com-gpu.json: Is a directory (os error 21); devices stay in service as they were described before; to do: ls -la {folder} on the node; gantry agent --cdi-dir names another folder, from which the container runtime has to read, too"
        )
    );
    let event = until(&cluster, |c| c.events.first().cloned()).await;
    assert_eq!(
        (&event["reason"], &event["type"], &event["message"], &event["involvedObject"]["name"]),
        (&json!("CdiFilesNotCurrent"), &json!("Warning"), &json!(told.message), &json!("node-1"))
    );
    // It goes on serving: a fault is still told, and so it is once however often writing is tried again.
    node.gpus.fault(1, FaultKind::Xid(79)).unwrap();
    until(&cluster, |c| c.status().filter(|status| status.healthy_gpu_count == 1)).await;
    sleep(Duration::from_mins(5)).await;
    let about = |c: &Cluster, reason: &str| c.events.iter().filter(|event| event["reason"] == reason).count();
    assert_eq!(about(&cluster.lock().unwrap(), "CdiFilesNotCurrent"), 1);
    std::fs::remove_dir_all(&file).unwrap();
    until(&cluster, |c| condition(c).filter(|told| told.status == "True")).await;
    until(&cluster, |c| (about(c, "CdiFilesCurrent") == 1).then_some(())).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_uses_what_is_reported_and_forgotten() {
    let (node, cluster) = (Node::new("t4", 2), cluster());
    let agent = start(options(&node, &cluster));
    until(&cluster, Cluster::status).await;
    let pod = PodKey { namespace: "team".into(), name: "train".into(), uid: "u".into() };
    let request = ContainerIdentity {
        pod,
        annotations: BTreeMap::new(),
        name: "main".into(),
        devices: vec!["slot-1".into()],
    };
    agent.handle.create_container(&request).unwrap();
    let used = until(&cluster, |c| c.status().filter(|status| !status.in_use.is_empty())).await.in_use;
    assert_eq!(
        (used[0].namespace.as_str(), used[0].pod.as_str(), used[0].container.as_str()),
        ("team", "train", "main")
    );
    agent.handle.remove_pod("u");
    until(&cluster, |c| c.status().filter(|status| status.in_use.is_empty())).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cluster_without_the_crd_or_the_node_is_waited_for_with_one_line_of_log() {
    let (node, cluster) = (Node::new("t4", 1), cluster());
    let object = cluster.lock().unwrap().node.take();
    cluster.lock().unwrap().has_crd = false;
    let agent = start(options(&node, &cluster));
    sleep(Duration::from_mins(1)).await;
    cluster.lock().unwrap().node = object;
    until(&cluster, |c| c.node.as_ref()?["metadata"]["labels"].get("nvidia.com/gpu.count").map(|_| ())).await;
    sleep(Duration::from_mins(5)).await;
    let warnings: Vec<_> = agent.log().into_iter().filter(|line| line.contains("Could not report")).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[1]
            .contains("does not know the kind GpuNode; to see GPUs in it: gantry manifests --only crds")
    );
    cluster.lock().unwrap().has_crd = true;
    until(&cluster, Cluster::status).await;
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn owners_are_read_from_the_pods_when_the_checkpoint_is_gone() {
    let (node, cluster) = (Node::new("t4", 2), cluster());
    let ids = gpus(&node);
    let assigned = |gpu: &GpuId| {
        let containers = BTreeMap::from([("main".into(), vec![gpu.clone()])]);
        encode_assignment(&Assignment { node: "node-1".into(), containers })
    };
    let pod = |name: &str, phase: &str, annotation: String| {
        json!({ "metadata": { "namespace": "default", "name": name, "uid": format!("uid-{name}"),
                              "annotations": { ASSIGNMENT_ANNOTATION: annotation } },
                "spec": { "containers": [] }, "status": { "phase": phase } })
    };
    cluster.lock().unwrap().pods = vec![
        pod("done", "Succeeded", assigned(&ids[1])),
        pod("old", "Running", assigned(&ids[0])),
        pod("bad", "Running", "{".to_owned()),
    ];
    cluster.lock().unwrap().fails = true;
    let agent = start(options(&node, &cluster));
    sleep(Duration::from_secs(20)).await;
    cluster.lock().unwrap().fails = false;
    until(&cluster, |c| c.status().filter(|status| status.in_use.len() == 1)).await;
    let request = |gpu: &GpuId, slot: &str| ContainerIdentity {
        pod: PodKey { namespace: "default".into(), name: "new".into(), uid: "uid-new".into() },
        annotations: BTreeMap::from([(ASSIGNMENT_ANNOTATION.to_owned(), assigned(gpu))]),
        name: "main".into(),
        devices: vec![slot.to_owned()],
    };
    let error = agent.handle.create_container(&request(&ids[0], "slot-0")).unwrap_err().to_string();
    assert!(error.contains("belongs to pod default/old"), "{error}");
    agent.handle.create_container(&request(&ids[1], "slot-0")).unwrap();
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_went_while_no_agent_ran_are_freed_at_the_next_start() {
    let (node, cluster) = (Node::new("t4", 3), cluster());
    let container = |name: &str, slot: &str| ContainerIdentity {
        pod: PodKey { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}").into() },
        annotations: BTreeMap::new(),
        name: "main".into(),
        devices: vec![slot.to_owned()],
    };
    let agent = start(node.options(IdentityMode::Assignment));
    for (name, slot) in [("gone", "slot-0"), ("stays", "slot-1"), ("static", "slot-2")] {
        agent.handle.create_container(&container(name, slot)).unwrap();
    }
    agent.stop().await;
    let metadata = |uid: &str| json!({ "namespace": "default", "name": "x", "uid": uid });
    let mut mirror = metadata("another");
    mirror["annotations"] = json!({ "kubernetes.io/config.hash": "uid-static" });
    cluster.lock().unwrap().pods = [metadata("uid-stays"), mirror]
        .map(|metadata| json!({ "metadata": metadata, "spec": { "containers": [] }, "status": { "phase": "Running" } }))
        .to_vec();
    let agent = start(options(&node, &cluster));
    let used = until(&cluster, |c| c.status().map(|status| status.in_use)).await;
    assert_eq!(used.iter().map(|used| used.pod.as_str()).collect::<Vec<_>>(), ["static", "stays"]);
    agent.stop().await;
}

/// The watch of the double ends at once, so that the agent asks again.
#[tokio::test]
async fn the_nodes_label_chooses_the_configuration_and_a_bad_one_is_an_event() {
    use crate::kubelet::Kubelet;
    use crate::sharing::{RENAMED, SHARED, configure, options};
    let (node, cluster) = (Node::new("t4", 2), cluster());
    configure(&node, "whole", "version: v1");
    configure(&node, "shares", RENAMED);
    let key = "nvidia.com/device-plugin.config";
    let label = |value: &str| {
        let node = &mut cluster.lock().unwrap().node;
        node.as_mut().unwrap()["metadata"]["labels"][key] = json!(value);
    };
    label("shares");
    let kubelet = Kubelet::start(&node.plugins());
    let agent = start(Options { client: Some(client(&cluster)), ..options(&node, IdentityMode::Kubelet) });
    let shares = kubelet.devices(SHARED, 8, 8).await;
    assert!(!kubelet.until(|_| true).await.contains_key(crate::GPU), "whole GPUs were never offered");
    label("whole");
    kubelet.devices(crate::GPU, 2, 2).await;
    kubelet.devices(SHARED, 0, 0).await;
    label("shares");
    let again = kubelet.devices(SHARED, 8, 8).await;
    assert_eq!(shares.devices, again.devices);
    label("nonsense");
    let message = until(&cluster, |cluster| cluster.message(0)).await;
    assert_eq!(
        message,
        format!(
            "configurations in {}: the node's label nvidia.com/device-plugin.config names \"nonsense\", which does not exist; there are shares, whole",
            node.root.path().join("configs").display()
        )
    );
    kubelet.devices(SHARED, 8, 8).await;
    let labels =
        |cluster: &mut Cluster| cluster.node.as_mut()?["metadata"]["labels"].as_object_mut()?.remove(key);
    labels(&mut cluster.lock().unwrap()).unwrap();
    let message = until(&cluster, |cluster| cluster.message(1)).await;
    assert!(
        message.contains("the node has no label nvidia.com/device-plugin.config, no default is set"),
        "{message}"
    );
    kubelet.devices(SHARED, 8, 8).await;
    agent.stop().await;
}
