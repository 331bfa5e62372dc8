//! The scheduler against the embedded API server, in virtual time.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use gantry_api::{ASSIGNMENT_ANNOTATION, ContainerGpus, GpuNode, GpuNodeStatus, crds, decode_assignment};
use gantry_apiserver::{ApiServer, Options as ServerOptions};
use gantry_engine::Phase;
use gantry_kit::{CancellationToken, SeededIds, SharedClock, SharedIds, VirtualClock};
use gantry_model::{Gpu, Health, Link, LinkKind, Topology};
use gantry_scheduler::{Handle, Options, Scheduler};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

struct Cluster {
    client: Client,
    clock: SharedClock,
    ids: SharedIds,
}

impl Cluster {
    fn new() -> Self {
        let clock: SharedClock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let ids: SharedIds = Arc::new(SeededIds::new(7));
        let client = ApiServer::new(ServerOptions::new(clock.clone(), ids.clone())).unwrap().client();
        Self { client, clock, ids }
    }

    async fn with_crd() -> Self {
        let cluster = Self::new();
        let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
        let ours = crds().into_iter().find(|crd| crd["spec"]["names"]["kind"] == "GpuNode").unwrap();
        definitions.create(&PostParams::default(), &serde_json::from_value(ours).unwrap()).await.unwrap();
        cluster
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn node(&self, name: &str, gpus: u32) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = json!({ "metadata": { "name": name } });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        let status = json!({ "status": {
            "allocatable": { "cpu": "16", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": gpus.to_string() },
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    async fn report(&self, name: &str, gpus: u32, in_use: Vec<ContainerGpus>) {
        let gpu = |index: u32| Gpu {
            id: format!("GPU-{name}-{index}").parse().unwrap(),
            index,
            minor: index,
            product: "NVIDIA A100-SXM4-80GB".into(),
            memory_mib: 81_920,
            pci_bus_id: format!("00000000:{index:02x}:00.0"),
            numa_node: Some(0),
            compute_capability: (8, 0),
            mig_capable: true,
            partitions: None,
            health: Health::Healthy,
        };
        let gpus: Vec<_> = (0..gpus).map(gpu).collect();
        let topology =
            Topology::from_fn(gpus.len(), |_, _| Link { gb_per_s: 600, kind: LinkKind::NvLink(12) });
        let status = GpuNodeStatus { in_use, ..GpuNodeStatus::from_model(&gpus, &topology) };
        let reports: Api<GpuNode> = Api::all(self.client.clone());
        let report = GpuNode::new(name, status);
        if reports.get_opt(name).await.unwrap().is_none() {
            reports.create(&PostParams::default(), &report).await.unwrap();
        }
        let status = json!({ "status": report.status });
        reports.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    async fn pod(&self, name: &str, gpus: u32) {
        self.pod_with(name, json!({ "limits": { "nvidia.com/gpu": gpus, "cpu": "1", "memory": "1Gi" } }))
            .await;
    }

    async fn pod_with(&self, name: &str, resources: Value) {
        let pod = json!({
            "metadata": { "name": name },
            "spec": { "containers": [{ "name": "main", "image": "x", "resources": resources }] },
        });
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    /// Starts a scheduler; it ends with the token.
    fn schedule(&self) -> (Handle, CancellationToken) {
        self.schedule_through(self.client.clone())
    }

    fn schedule_through(&self, client: Client) -> (Handle, CancellationToken) {
        let options = Options::new(client, self.clock.clone(), self.ids.clone());
        let (scheduler, handle) = Scheduler::new(options).unwrap();
        let cancel = CancellationToken::new();
        tokio::spawn(scheduler.run(cancel.clone()));
        (handle, cancel)
    }

    /// The pod's node and devices, once it has a node.
    async fn bound(&self, name: &str) -> (String, Vec<String>) {
        for _ in 0..600 {
            let pod = self.pods().get(name).await.unwrap();
            if let Some(node) = pod.spec.as_ref().unwrap().node_name.clone() {
                let annotation = pod.annotations().get(ASSIGNMENT_ANNOTATION);
                let gpus = annotation.map(|text| decode_assignment(text).unwrap());
                let gpus = gpus.iter().flat_map(|a| a.gpus()).map(ToString::to_string).collect();
                return (node, gpus);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{name} was not bound within a minute");
    }

    /// Status and message of the pod's condition `PodScheduled`.
    async fn scheduled(&self, name: &str) -> (String, Option<String>) {
        let conditions = self.pods().get(name).await.unwrap().status.unwrap().conditions.unwrap();
        let condition = conditions.into_iter().find(|c| c.type_ == "PodScheduled").unwrap();
        (condition.status, condition.message)
    }

    async fn events(&self) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let list = events.list(&ListParams::default()).await.unwrap();
        let text = |event: &Event| {
            let pod = event.involved_object.name.as_deref().unwrap_or_default();
            format!(
                "{pod} {} {}",
                event.reason.as_deref().unwrap_or(""),
                event.message.as_deref().unwrap_or("")
            )
        };
        let mut texts: Vec<_> = list.items.iter().map(text).collect();
        texts.sort();
        texts
    }
}

/// What happens to a binding on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// It arrives, and the answer is lost.
    AnswerLost,
    /// It does not arrive.
    Refused,
    /// It arrives, and nobody can be asked about it for a while.
    Silence,
}

/// A client for which every `every`th binding meets the fault.
fn faulty(client: Client, fault: Fault, every: usize) -> Client {
    let (bindings, silent) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, bindings, silent) = (client.clone(), bindings.clone(), silent.clone());
        async move {
            let path = request.uri().path().to_owned();
            let answer = |code: u16| {
                let status =
                    json!({ "kind": "Status", "status": "Failure", "code": code, "message": "injected" });
                http::Response::builder()
                    .status(code)
                    .body(Body::from(status.to_string().into_bytes()))
                    .unwrap()
            };
            let is_read = request.method() == http::Method::GET && path.contains("/pods/");
            if is_read && silent.load(Ordering::SeqCst) > 0 {
                silent.fetch_sub(1, Ordering::SeqCst);
                return Ok(answer(503));
            }
            if !path.ends_with("/binding") || !bindings.fetch_add(1, Ordering::SeqCst).is_multiple_of(every) {
                return client.send(request).await;
            }
            if fault != Fault::Refused {
                client.send(request).await?;
            }
            if fault == Fault::Silence {
                silent.store(3, Ordering::SeqCst);
            }
            Ok::<_, kube::Error>(answer(500))
        }
    });
    Client::new(service, "default")
}

/// A client whose first write of a condition waits for a permit.
fn slow_to_tell(client: Client, permits: Arc<Semaphore>) -> Client {
    let writes = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, permits, writes) = (client.clone(), permits.clone(), writes.clone());
        async move {
            let is_condition =
                request.method() == http::Method::PATCH && request.uri().path().ends_with("/status");
            if is_condition && writes.fetch_add(1, Ordering::SeqCst) == 0 {
                permits.acquire().await.unwrap().forget();
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

async fn settle() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_with_its_devices_in_the_binding() {
    let cluster = Cluster::with_crd().await;
    cluster.node("a", 4).await;
    cluster.report("a", 4, vec![]).await;
    let (handle, _guard) = cluster.schedule();
    cluster.pod("p", 2).await;
    let (node, gpus) = cluster.bound("p").await;
    assert_eq!((node.as_str(), gpus.len()), ("a", 2));
    settle().await;
    let events = cluster.events().await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].starts_with("p Scheduled Successfully assigned default/p to a with GPU-a-"),
        "{events:?}"
    );
    let explanation = handle.explain("default", "p").await.unwrap().unwrap();
    assert_eq!((explanation.phase, explanation.node.as_deref()), (Phase::Bound, Some("a")));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_is_told_why_once_and_starts_when_there_is_room() {
    let cluster = Cluster::with_crd().await;
    cluster.node("a", 2).await;
    cluster.report("a", 2, vec![]).await;
    let (handle, _guard) = cluster.schedule();
    cluster.pod("first", 2).await;
    cluster.bound("first").await;
    cluster.pod("second", 1).await;
    settle().await;
    settle().await;
    let told: Vec<_> =
        cluster.events().await.into_iter().filter(|e| e.contains("FailedScheduling")).collect();
    assert_eq!(
        told,
        [
            "second FailedScheduling 0/1 nodes are available: 1 × G1001 insufficient-gpu: asks for 1 GPU on one node, and \
          the most that one has free is 0"
        ]
    );
    let pod = cluster.pods().get("second").await.unwrap();
    let conditions = pod.status.unwrap().conditions.unwrap();
    let condition = conditions.iter().find(|c| c.type_ == "PodScheduled").unwrap();
    assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("False", Some("Unschedulable")));
    let explanation = handle.explain("default", "second").await.unwrap().unwrap();
    assert_eq!(explanation.refusals.unwrap().codes(), ["G1001"]);
    cluster.pods().delete("first", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(cluster.bound("second").await.0, "a");
}

#[tokio::test(start_paused = true)]
async fn a_late_condition_does_not_unschedule_a_bound_pod() {
    let cluster = Cluster::with_crd().await;
    cluster.node("a", 1).await;
    cluster.report("a", 1, vec![]).await;
    let permits = Arc::new(Semaphore::new(0));
    let (_, _guard) = cluster.schedule_through(slow_to_tell(cluster.client.clone(), permits.clone()));
    cluster.pod("first", 1).await;
    cluster.bound("first").await;
    cluster.pod("second", 1).await;
    settle().await;
    cluster.pods().delete("first", &DeleteParams::default().grace_period(0)).await.unwrap();
    cluster.bound("second").await;
    permits.add_permits(1);
    settle().await;
    assert_eq!(cluster.scheduled("second").await, ("True".to_owned(), None));
}

#[tokio::test(start_paused = true)]
async fn the_last_reason_is_the_one_that_stays() {
    let cluster = Cluster::with_crd().await;
    cluster.node("a", 1).await;
    cluster.report("a", 1, vec![]).await;
    let permits = Arc::new(Semaphore::new(0));
    let (_, _guard) = cluster.schedule_through(slow_to_tell(cluster.client.clone(), permits.clone()));
    cluster.pod("p", 2).await;
    settle().await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let cordon = json!({ "spec": { "unschedulable": true } });
    nodes.patch("a", &PatchParams::default(), &Patch::Merge(cordon)).await.unwrap();
    settle().await;
    permits.add_permits(1);
    settle().await;
    let (status, message) = cluster.scheduled("p").await;
    let message = message.unwrap_or_default();
    assert!(status == "False" && message.contains("G1010 node-cordoned"), "{status} {message}");
}

#[tokio::test(start_paused = true)]
async fn a_bound_pod_that_is_edited_keeps_its_devices() {
    let cluster = Cluster::with_crd().await;
    cluster.node("a", 1).await;
    cluster.report("a", 1, vec![]).await;
    let (handle, guard) = cluster.schedule();
    cluster.pod("p", 1).await;
    cluster.bound("p").await;
    let edit = json!({ "metadata": { "annotations": {
        "scheduling.k8s.io/group-name": "g", "scheduling.volcano.sh/group-min-member": "all",
    } } });
    cluster.pods().patch("p", &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();
    cluster.pod("q", 1).await;
    settle().await;
    assert_eq!(handle.explain("default", "q").await.unwrap().unwrap().phase, Phase::Waiting);
    // The next scheduler finds it edited.
    guard.cancel();
    let (handle, _guard) = cluster.schedule();
    settle().await;
    assert_eq!(handle.explain("default", "p").await.unwrap().unwrap().phase, Phase::Bound);
    assert_eq!(handle.explain("default", "q").await.unwrap().unwrap().phase, Phase::Waiting);
}

#[tokio::test(start_paused = true)]
async fn a_restart_at_any_moment_gives_no_device_twice() {
    for moment in 0..12 {
        let cluster = Cluster::with_crd().await;
        for node in ["a", "b"] {
            cluster.node(node, 4).await;
            cluster.report(node, 4, vec![]).await;
        }
        let (_, cancel) = cluster.schedule();
        for pod in 0..4 {
            cluster.pod(&format!("p{pod}"), 1).await;
        }
        for _ in 0..moment {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
        let (_, _guard) = cluster.schedule();
        for pod in 4..8 {
            cluster.pod(&format!("p{pod}"), 1).await;
        }
        let mut owned = BTreeSet::new();
        for pod in 0..8 {
            let (_, gpus) = cluster.bound(&format!("p{pod}")).await;
            assert!(owned.insert(gpus.clone()), "moment {moment}: {gpus:?} twice");
        }
        assert_eq!(owned.len(), 8);
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_becomes_of_a_binding_no_device_is_given_twice() {
    for fault in [Fault::AnswerLost, Fault::Refused, Fault::Silence] {
        let cluster = Cluster::with_crd().await;
        cluster.node("a", 8).await;
        cluster.report("a", 8, vec![]).await;
        let (handle, _guard) = cluster.schedule_through(faulty(cluster.client.clone(), fault, 2));
        for pod in 0..8 {
            cluster.pod(&format!("p{pod}"), 1).await;
        }
        let mut owned = BTreeSet::new();
        for pod in 0..8 {
            let (_, gpus) = cluster.bound(&format!("p{pod}")).await;
            assert!(owned.insert(gpus.clone()), "{fault:?}: {gpus:?} twice");
        }
        assert_eq!(owned.len(), 8, "{fault:?}");
        settle().await;
        for pod in 0..8 {
            let explanation = handle.explain("default", &format!("p{pod}")).await.unwrap().unwrap();
            assert_eq!(explanation.phase, Phase::Bound, "{fault:?}");
        }
        let failed =
            cluster.events().await.iter().filter(|event| event.contains("G1017 bind-failed")).count();
        assert_eq!(failed > 0, fault == Fault::Refused, "{fault:?}: told only where it failed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_read_is_refused_by_reason() {
    let cluster = Cluster::with_crd().await;
    let (handle, _guard) = cluster.schedule();
    let pod = json!({
        "metadata": { "name": "p", "annotations": {
            "scheduling.k8s.io/group-name": "g", "scheduling.volcano.sh/group-min-member": "all",
        } },
        "spec": { "containers": [{ "name": "main", "image": "x" }] },
    });
    cluster.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    settle().await;
    settle().await;
    let events = cluster.events().await;
    assert!(
        events.len() == 1 && events[0].starts_with("p FailedScheduling G2005 invalid-field"),
        "{events:?}"
    );
    let reason = handle.explain("default", "p").await.unwrap().unwrap().reason.unwrap();
    assert_eq!(reason.entry().code, "G2005");
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_name_that_was_used_before_is_another_pod() {
    let cluster = Cluster::with_crd().await;
    cluster.node("a", 1).await;
    cluster.report("a", 1, vec![]).await;
    let (_, _guard) = cluster.schedule();
    for _ in 0..3 {
        cluster.pod("p", 1).await;
        assert_eq!(cluster.bound("p").await.1, ["GPU-a-0"]);
        cluster.pods().delete("p", &DeleteParams::default().grace_period(0)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreign_pod_keeps_its_node_closed_until_its_devices_are_reported() {
    let cluster = Cluster::with_crd().await;
    cluster.node("a", 4).await;
    cluster.report("a", 4, vec![]).await;
    let foreign = json!({
        "metadata": { "name": "foreign" },
        "spec": { "nodeName": "a", "containers": [
            { "name": "main", "image": "x", "resources": { "limits": { "nvidia.com/gpu": 1, "cpu": "1", "memory": "1Gi" } } },
        ] },
    });
    cluster.pods().create(&PostParams::default(), &serde_json::from_value(foreign).unwrap()).await.unwrap();
    let (_, _guard) = cluster.schedule();
    cluster.pod("p", 3).await;
    settle().await;
    assert!(cluster.events().await.iter().any(|event| event.contains("G1013 gpu-use-unknown")));
    let in_use = ContainerGpus {
        namespace: "default".into(),
        pod: "foreign".into(),
        container: "main".into(),
        gpus: vec!["GPU-a-2".into()],
    };
    cluster.report("a", 4, vec![in_use]).await;
    let (_, gpus) = cluster.bound("p").await;
    assert_eq!(gpus, ["GPU-a-0", "GPU-a-1", "GPU-a-3"]);
}

#[tokio::test(start_paused = true)]
async fn without_agents_gpus_are_counted_and_the_kubelet_chooses() {
    let cluster = Cluster::new();
    cluster.node("plain", 2).await;
    let (_, _guard) = cluster.schedule();
    cluster.pod("p", 1).await;
    cluster.pod("q", 2).await;
    let (node, gpus) = cluster.bound("p").await;
    assert_eq!((node.as_str(), gpus.len()), ("plain", 0));
    settle().await;
    assert!(cluster.pods().get("q").await.unwrap().spec.unwrap().node_name.is_none(), "only one is left");
}

#[tokio::test(start_paused = true)]
async fn advice_is_given_once_in_a_pods_life() {
    let cluster = Cluster::with_crd().await;
    let (_, cancel) = cluster.schedule();
    cluster.pod_with("p", json!({ "limits": { "nvidia.com/gpu": 1, "memory": "8Gi" } })).await;
    settle().await;
    cancel.cancel();
    let (_, _guard) = cluster.schedule();
    settle().await;
    let advice: Vec<_> = cluster.events().await.into_iter().filter(|e| e.contains("G4001")).collect();
    assert_eq!(advice.len(), 1, "{advice:?}");
    assert!(advice[0].starts_with("p MemoryIsHostMemory G4001 memory-is-host-memory: "), "{advice:?}");
}

#[tokio::test(start_paused = true)]
async fn pods_of_other_schedulers_are_left_alone() {
    let cluster = Cluster::with_crd().await;
    cluster.node("a", 0).await;
    let (handle, _guard) = cluster.schedule();
    let pod = json!({
        "metadata": { "name": "p" },
        "spec": { "schedulerName": "other", "containers": [{ "name": "main", "image": "x" }] },
    });
    cluster.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    settle().await;
    assert!(cluster.pods().get("p").await.unwrap().spec.unwrap().node_name.is_none());
    assert_eq!(handle.explain("default", "p").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_handle_of_a_scheduler_that_has_ended_says_so() {
    let cluster = Cluster::new();
    let (handle, cancel) = cluster.schedule();
    cancel.cancel();
    settle().await;
    assert_eq!(handle.explain("default", "p").await, Err(gantry_scheduler::Error::Ended));
}

#[test]
fn the_same_run_leaves_the_same_cluster() {
    let run = || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let cluster = Cluster::with_crd().await;
            let (_, _guard) = cluster.schedule();
            for node in ["a", "b", "c"] {
                cluster.node(node, 4).await;
                cluster.report(node, 4, vec![]).await;
            }
            for pod in 0..20 {
                cluster.pod(&format!("p{pod}"), 1 + pod % 3).await;
            }
            settle().await;
            let pods = cluster.pods().list(&ListParams::default()).await.unwrap();
            let events: Api<Event> = Api::all(cluster.client.clone());
            let events = events.list(&ListParams::default()).await.unwrap();
            (serde_json::to_string(&pods.items).unwrap(), serde_json::to_string(&events.items).unwrap())
        })
    };
    let (first, second) = (run(), run());
    assert!(first.0.contains("gantry.dev/assignment"));
    assert_eq!(first, second);
}
