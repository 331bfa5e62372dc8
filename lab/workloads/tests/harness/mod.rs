//! A cluster for tests: the embedded API server, the controllers, and a kubelet and scheduler of a few lines, all
//! in virtual time.
#![allow(missing_docs, unreachable_pub, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use gantry_apiserver::{ApiServer, Options as ServerOptions};
use gantry_kit::{CancellationToken, Clock as _, SeededIds, VirtualClock};
use gantry_workloads::{Options, Workloads};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{
    DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::Request;
use kube::{Api, Client};
use serde_json::{Value, json};

/// The longest that a test waits for a state, in virtual time.
const PATIENCE: Duration = Duration::from_hours(72);

/// How long the pods of a test run before they end; without it they run for ever.
pub const SECONDS: &str = "test/seconds";
/// The exit code with which they end.
pub const EXIT: &str = "test/exit";
/// Present on pods that never become ready.
pub const UNREADY: &str = "test/unready";

pub struct Cluster {
    pub client: Client,
    clock: Arc<VirtualClock>,

    cancel: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Cluster {
    /// A cluster with these nodes that starts at New Year 2026.
    pub async fn start(nodes: &[&str]) -> Self {
        Self::with_history(nodes, 8192).await
    }

    /// A cluster whose server remembers so many changes of each kind.
    pub async fn with_history(nodes: &[&str], history: usize) -> Self {
        let clock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let ids = Arc::new(SeededIds::new(1));
        let options = ServerOptions { history, ..ServerOptions::new(clock.clone(), ids) };
        let server = ApiServer::new(options).unwrap();
        let client = server.client();
        tokio::spawn(kubelet(client.clone(), clock.clone()));
        let mut cluster = Self { client, clock, cancel: CancellationToken::new() };
        cluster.restart();
        for node in nodes {
            cluster.add_node(node).await;
        }
        cluster
    }

    /// Kills the controllers, if they run, and starts new ones.
    pub fn restart(&mut self) {
        self.cancel.cancel();
        self.cancel = CancellationToken::new();
        let ids = Arc::new(SeededIds::new(2));
        let options = Options::new(self.clock.clone(), ids);
        tokio::spawn(Workloads::new(self.client.clone(), options).run(self.cancel.clone()));
    }

    pub async fn add_node(&self, name: &str) {
        self.create(
            "/api/v1/nodes",
            json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            }),
        )
        .await;
    }

    pub async fn create(&self, path: &str, object: Value) -> Value {
        let body = serde_json::to_vec(&object).unwrap();
        let request = Request::new(path).create(&PostParams::default(), body).unwrap();
        self.client.request(request).await.unwrap()
    }

    /// Creates an object of the namespace `default`, by its kind.
    pub async fn apply(&self, object: Value) -> Value {
        let path = collection(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        self.create(&path, object).await
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
        let (collection, name) = path.rsplit_once('/').unwrap();
        let request = Request::new(collection).get(name, &kube::api::GetParams::default()).unwrap();
        match self.client.request(request).await {
            Ok(object) => Some(object),
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    pub async fn patch(&self, path: &str, patch: Value) -> Value {
        let (collection, name) = path.rsplit_once('/').unwrap();
        let patch = Patch::Merge(&patch);
        let request = Request::new(collection).patch(name, &PatchParams::default(), &patch).unwrap();
        self.client.request(request).await.unwrap()
    }

    pub async fn delete(&self, path: &str) {
        let (collection, name) = path.rsplit_once('/').unwrap();
        let request = Request::new(collection).delete(name, &DeleteParams::background()).unwrap();
        self.client.request_status::<Value>(request).await.unwrap();
    }

    pub async fn list(&self, path: &str) -> Vec<Value> {
        let request = Request::new(path).list(&ListParams::default()).unwrap();
        let list: Value = self.client.request(request).await.unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// The pods in `default` that are not on their way out, by name.
    pub async fn pods(&self) -> Vec<Value> {
        let pods = self.list("/api/v1/namespaces/default/pods").await;
        pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect()
    }

    /// Waits until the object is there and fulfils the test.
    pub async fn until(&self, path: &str, test: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut last = None;
        while tokio::time::Instant::now() < deadline {
            last = self.get(path).await;
            if let Some(object) = last.as_ref().filter(|object| test(object)) {
                return object.clone();
            }
            // Coarser the longer it takes, so that a day is not a million requests.
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{path} did not get there: {}", serde_json::to_string_pretty(&last).unwrap())
    }

    /// Waits until the pods in `default` fulfil the test.
    pub async fn until_pods(&self, test: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        for _ in 0..10_000 {
            let pods = self.pods().await;
            if test(&pods) {
                return pods;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("pods did not get there: {:?}", names(&self.pods().await))
    }

    pub async fn sleep(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    /// Reasons of the events about an object, with their counts.
    pub async fn reasons(&self, name: &str) -> Vec<String> {
        let events = self.list("/api/v1/namespaces/default/events").await;
        let mut reasons: Vec<String> = events
            .iter()
            .filter(|event| event["involvedObject"]["name"] == name)
            .map(|event| event["reason"].as_str().unwrap().to_owned())
            .collect();
        reasons.sort();
        reasons.dedup();
        reasons
    }
}

pub fn collection(api_version: &str, kind: &str) -> String {
    let root = if api_version.contains('/') { "/apis" } else { "/api" };
    let plural = format!("{}s", kind.to_lowercase());
    format!("{root}/{api_version}/namespaces/default/{plural}")
}

pub fn names(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect()
}

pub fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// A pod template whose pods carry these labels and annotations.
pub fn template(app: &str, image: &str, annotations: Value) -> Value {
    json!({
        "metadata": {"labels": {"app": app}, "annotations": annotations},
        "spec": {"containers": [
            {"name": "main", "image": image, "ports": [{"name": "web", "containerPort": 8080}]},
        ]},
    })
}

/// Binds pods, runs them, and lets them go.
async fn kubelet(client: Client, clock: Arc<VirtualClock>) {
    let pods: Api<Pod> = Api::all(client.clone());
    let mut version = "0".to_owned();
    let mut next_ip = 0_u32;
    loop {
        let Ok(events) = pods.watch(&WatchParams::default(), &version).await else {
            tokio::time::sleep(Duration::from_secs(1)).await;
            continue;
        };
        let mut events = events.boxed();
        while let Ok(Some(event)) = events.try_next().await {
            let pod = match event {
                WatchEvent::Added(pod) | WatchEvent::Modified(pod) => pod,
                WatchEvent::Deleted(pod) => {
                    version = pod.metadata.resource_version.unwrap();
                    continue;
                }
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(_) => break,
            };
            version = pod.metadata.resource_version.clone().unwrap();
            let pod = serde_json::to_value(&pod).unwrap();
            next_ip += 1;
            let ip = format!("10.{}.{}.{}", next_ip >> 16, (next_ip >> 8) & 255, next_ip & 255);
            handle(&client, &clock, &pod, &ip).await;
        }
    }
}

async fn handle(client: &Client, clock: &Arc<VirtualClock>, pod: &Value, ip: &str) {
    let metadata = &pod["metadata"];
    let (namespace, name) = (metadata["namespace"].as_str().unwrap(), metadata["name"].as_str().unwrap());
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &pod_resource());
    if !metadata["deletionTimestamp"].is_null() {
        if metadata["deletionGracePeriodSeconds"] != 0 {
            let _ = pods.delete(name, &DeleteParams::default().grace_period(0)).await;
        }
        return;
    }
    let phase = pod["status"]["phase"].as_str().unwrap_or("Pending");
    if pod["spec"]["nodeName"].is_null() {
        if let Some(node) = place(client, pod).await {
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": namespace},
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            });
            let body = serde_json::to_vec(&binding).unwrap();
            let path = format!("/api/v1/namespaces/{namespace}/pods");
            let request =
                Request::new(path).create_subresource("binding", name, &PostParams::default(), body).unwrap();
            client.request_text(request).await.unwrap();
        }
    } else if phase == "Pending" {
        let now = clock.now().to_string();
        let ready = metadata["annotations"][UNREADY].is_null();
        let status = json!({
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "startTime": now,
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" },
                            "lastTransitionTime": now}],
        });
        set_status(&pods, name, status).await;
        if let Some(seconds) = metadata["annotations"][SECONDS].as_str() {
            let seconds = Duration::from_secs(seconds.parse().unwrap());
            let code: i64 = metadata["annotations"][EXIT].as_str().map_or(0, |code| code.parse().unwrap());
            let (name, clock) = (name.to_owned(), clock.clone());
            tokio::spawn(async move {
                tokio::time::sleep(seconds).await;
                let now = clock.now().to_string();
                let status = json!({
                    "phase": if code == 0 { "Succeeded" } else { "Failed" },
                    "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}],
                    "containerStatuses": [{
                        "name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
                        "state": {"terminated": {"exitCode": code, "finishedAt": now}},
                    }],
                });
                set_status(&pods, &name, status).await;
            });
        }
    }
}

fn pod_resource() -> kube::api::ApiResource {
    kube::api::ApiResource::erase::<Pod>(&())
}

async fn set_status(pods: &Api<DynamicObject>, name: &str, status: Value) {
    let patch = json!({"status": status});
    match pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => {}
        // It was deleted meanwhile.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(error) => panic!("status of {name}: {error}"),
    }
}

/// The node that the pod's affinity names, or the first.
async fn place(client: &Client, pod: &Value) -> Option<String> {
    let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    if let Some(node) = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"][0].as_str() {
        return Some(node.to_owned());
    }
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await.unwrap();
    nodes.items.into_iter().find_map(|node| node.metadata.name)
}
