//! Kubelets against the embedded API server: in virtual time where no socket is needed.

use std::time::Duration;

use futures::StreamExt as _;
use gantry_apiserver::{ApiServer, ExecRequest, Exit, LogRequest, NodeBackend as _, PodTarget, Streams};
use gantry_gpu::{Profile, SimGpus};
use gantry_kit::{CancellationToken, SeededIds, SharedClock, SystemClock, VirtualClock};
use gantry_model::FaultKind;
use gantry_workloads::EventRecorder;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent, Node};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use super::*;
use crate::machine::{Plate, Shared};
use crate::node_lifecycle;
use crate::remote::Backend;

struct Lab {
    client: Client,
    backend: Arc<Backend>,
    machine: Arc<Machine>,
    kubelet: Tasks,
    cancel: CancellationToken,
    _folder: tempfile::TempDir,
    _api: ApiServer,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Lab {
    async fn virtual_time() -> Self {
        Self::new(Arc::new(VirtualClock::new(Timestamp::from_second(1_800_000_000).unwrap())), 0).await
    }

    async fn with_gpus(count: u32) -> Self {
        let lab = Self::new(Arc::new(SystemClock), count).await;
        let agent = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "gantry-nvidia-agent-x", "namespace": "kube-system"},
            "spec": daemon_set()["spec"]["template"]["spec"],
        });
        lab.create(agent).await;
        lab.machine.ready.subscribe().wait_for(|ready| *ready).await.unwrap();
        lab
    }

    async fn new(clock: SharedClock, gpu_count: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let ids = Arc::new(SeededIds::new(1));
        let api = ApiServer::new(gantry_apiserver::Options::new(clock.clone(), ids.clone())).unwrap();
        let client = api.client();
        let cancel = CancellationToken::new();
        let backend = Arc::new(Backend::default());
        let tasks = Tasks::new(cancel.clone());
        let (recorder, recording) = EventRecorder::new(client.clone(), clock.clone(), ids.clone());
        tasks.spawn_until_cancelled(recording);
        let shared = Shared {
            client: client.clone(),
            clock: clock.clone(),
            ids,
            hub: Hub::start(client.clone(), &tasks),
            recorder: recorder.clone(),
            folder_watch: None,
        };
        let gpus = (gpu_count > 0).then(|| {
            SimGpus::new(Profile::named("a100-80").unwrap(), gpu_count as usize, "node", 0).unwrap()
        });
        let plate = Plate {
            name: "node".to_owned(),
            index: 0,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            gpus,
            gpu_count,
            drivers_dir: folder.path().join("drivers"),
            run_dir: folder.path().join("0"),
            state_dir: folder.path().join("s"),
        };
        let machine = Machine::new(plate, shared);
        backend.set("node", Some(machine.clone()));
        node_lifecycle::start(client.clone(), clock, recorder, &tasks);
        let kubelet = Tasks::new(cancel.child_token());
        Kubelet::start(machine.clone(), kubelet.clone()).unwrap();
        if gpu_count == 0 {
            machine.ready.subscribe().wait_for(|ready| *ready).await.unwrap();
        }
        Self { client, backend, machine, kubelet, cancel, _folder: folder, _api: api }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    async fn create(&self, mut pod: Value) -> Pod {
        pod["spec"]["nodeName"] = "node".into();
        pod["apiVersion"] = "v1".into();
        pod["kind"] = "Pod".into();
        let namespace = pod["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        let pod: Pod = serde_json::from_value(pod).unwrap();
        Api::namespaced(self.client.clone(), &namespace).create(&PostParams::default(), &pod).await.unwrap()
    }

    async fn run(&self, name: &str, container: Value) -> Pod {
        let mut container = container;
        container["name"] = "c".into();
        container["image"] = "i".into();
        self.create(json!({"metadata": {"name": name}, "spec": {"containers": [container]}})).await
    }

    /// Waits until the pod satisfies `test`.
    async fn wait(&self, name: &str, test: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..20_000 {
            let pod = serde_json::to_value(self.pods().get(name).await.unwrap()).unwrap();
            if test(&pod) {
                return pod;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!(
            "{name} stays {:#}",
            serde_json::to_value(self.pods().get(name).await.unwrap()).unwrap()["status"]
        );
    }

    async fn running(&self, name: &str) -> Value {
        self.wait(name, |pod| pod["status"]["phase"] == "Running").await
    }

    async fn gone(&self, name: &str) {
        for _ in 0..20_000 {
            if self.pods().get_opt(name).await.unwrap().is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{name} does not go");
    }

    async fn target(&self, name: &str) -> PodTarget {
        PodTarget {
            node: "node".to_owned(),
            namespace: "default".to_owned(),
            pod: name.to_owned(),
            uid: self.pods().get(name).await.unwrap().uid().unwrap(),
            container: "c".to_owned(),
        }
    }

    async fn exec(&self, name: &str, command: &[&str]) -> (i32, String, String) {
        let request = ExecRequest {
            target: self.target(name).await,
            command: command.iter().map(|arg| (*arg).to_owned()).collect(),
            streams: Streams { stdout: true, stderr: true, ..Streams::default() },
        };
        let mut session = self.backend.exec(request).await.unwrap();
        let (mut out, mut error) = (Vec::new(), Vec::new());
        while let Some(piece) = session.stdout.recv().await {
            out.extend_from_slice(&piece);
        }
        while let Some(piece) = session.stderr.recv().await {
            error.extend_from_slice(&piece);
        }
        let Exit::Code(code) = session.exit.await.unwrap() else { panic!("the node failed") };
        (code, String::from_utf8(out).unwrap(), String::from_utf8(error).unwrap())
    }

    async fn logs(&self, name: &str, change: impl FnOnce(&mut LogRequest)) -> String {
        let mut request = LogRequest {
            target: self.target(name).await,
            follow: false,
            previous: false,
            timestamps: false,
            tail_lines: None,
            since: None,
            limit_bytes: None,
        };
        change(&mut request);
        let pieces: Vec<bytes::Bytes> = self.backend.logs(request).await.unwrap().collect().await;
        String::from_utf8(pieces.concat()).unwrap()
    }

    async fn allocatable(&self, expected: &str) {
        for _ in 0..1_000 {
            let node = Api::<Node>::all(self.client.clone()).get("node").await.unwrap();
            let quantity = node.status.unwrap().allocatable.unwrap().remove("nvidia.com/gpu");
            if quantity.is_some_and(|quantity| quantity.0 == expected) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("allocatable does not become {expected}");
    }
}

fn gpus(count: u32) -> Value {
    json!({"resources": {"limits": {"nvidia.com/gpu": count.to_string()}, "requests": {"nvidia.com/gpu": count.to_string()}}})
}

#[tokio::test(start_paused = true)]
async fn a_pod_runs_answers_and_is_deleted() {
    let lab = Lab::virtual_time().await;
    lab.run("p", json!({"command": ["sh", "-c", "echo one; echo two; sleep infinity"], "env": [{"name": "A", "value": "b"}], "resources": {"requests": {"cpu": "0"}}})).await;
    let pod = lab.running("p").await;
    let status = &pod["status"]["containerStatuses"][0];
    assert_eq!((&status["ready"], &status["restartCount"]), (&json!(true), &json!(0)));
    assert_eq!(pod["status"]["podIP"], "10.128.0.2");
    assert_eq!(pod["status"]["qosClass"], "BestEffort", "what the API server said stays");
    assert_eq!(lab.exec("p", &["printenv", "A"]).await, (0, "b\n".to_owned(), String::new()));
    let (code, _, error) = lab.exec("p", &["nvidia-smi"]).await;
    assert_eq!(code, 127);
    assert!(error.contains("executable file not found in $PATH"), "{error}");
    assert_eq!(lab.logs("p", |_| {}).await, "one\ntwo\n");
    assert_eq!(lab.logs("p", |request| request.tail_lines = Some(1)).await, "two\n");
    assert!(lab.logs("p", |request| request.timestamps = true).await.starts_with("2027-01-15T08:00:0"));
    lab.pods().delete("p", &DeleteParams::default()).await.unwrap();
    lab.gone("p").await;
    let events = Api::<CoreEvent>::namespaced(lab.client.clone(), "default")
        .list(&ListParams::default())
        .await
        .unwrap();
    let reasons: Vec<String> = events.items.into_iter().filter_map(|event| event.reason).collect();
    for reason in ["Pulled", "Created", "Started", "Killing"] {
        assert!(reasons.iter().any(|known| known == reason), "{reason} in {reasons:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_starts_costs_one_write_of_its_status() {
    let lab = Lab::virtual_time().await;
    let created = lab.run("p", json!({"command": ["sleep", "infinity"]})).await;
    let version = created.resource_version().unwrap();
    lab.running("p").await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let changes = lab.pods().watch(&WatchParams::default().timeout(1), &version).await.unwrap();
    let changes: Vec<_> = changes.collect().await;
    assert_eq!(changes.len(), 1, "{changes:#?}");
}

#[tokio::test(start_paused = true)]
async fn following_a_log_ends_with_its_container() {
    let lab = Lab::virtual_time().await;
    lab.create(json!({
        "metadata": {"name": "p"},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "i", "command": ["sh", "-c", "echo a; sleep 60; echo b"]},
        ]},
    }))
    .await;
    lab.running("p").await;
    assert_eq!(lab.logs("p", |request| request.follow = true).await, "a\nb\n");
    lab.wait("p", |pod| pod["status"]["phase"] == "Succeeded").await;
}

#[tokio::test(start_paused = true)]
async fn a_program_that_is_not_simulated_says_so_and_ends_as_annotated() {
    let lab = Lab::virtual_time().await;
    lab.create(json!({
        "metadata": {
            "name": "p",
            "annotations": {"sim.gantry.dev/duration": "2h", "sim.gantry.dev/exit-code": "3", "sim.gantry.dev/speed": "x"},
        },
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "c", "image": "pytorch/pytorch:2.4", "command": ["python", "-c", "import torch"]},
        ]},
    }))
    .await;
    lab.running("p").await;
    let log = lab.logs("p", |_| {}).await;
    for text in [
        "simulated, not run: image pytorch/pytorch:2.4",
        "import torch",
        "GPUs of this container: none",
        "7200s",
    ] {
        assert!(log.contains(text), "{text}: {log}");
    }
    tokio::time::sleep(Duration::from_hours(2)).await;
    let pod = lab.wait("p", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    let events = Api::<CoreEvent>::namespaced(lab.client.clone(), "default")
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(events.items.iter().any(|event| event.reason.as_deref() == Some("InvalidSimulation")));
}

#[tokio::test(start_paused = true)]
async fn a_crashing_container_backs_off() {
    let lab = Lab::virtual_time().await;
    lab.run("p", json!({"command": ["false"]})).await;
    let pod = lab
        .wait("p", |pod| {
            pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        })
        .await;
    let status = &pod["status"]["containerStatuses"][0];
    assert_eq!(status["restartCount"], 1);
    assert_eq!(status["lastState"]["terminated"]["exitCode"], 1);
    assert!(
        status["state"]["waiting"]["message"]
            .as_str()
            .unwrap()
            .starts_with("back-off 10s restarting failed container=c")
    );
    // 10 + 20 + 40 seconds later it has been started three times more.
    tokio::time::sleep(Duration::from_secs(75)).await;
    assert_eq!(lab.wait("p", |_| true).await["status"]["containerStatuses"][0]["restartCount"], 4);
}

#[tokio::test(start_paused = true)]
async fn init_containers_run_first_and_sidecars_beside() {
    let lab = Lab::virtual_time().await;
    lab.create(json!({
        "metadata": {"name": "p"},
        "spec": {
            "restartPolicy": "Never",
            "initContainers": [
                {"name": "one", "image": "i", "command": ["sleep", "5"]},
                {"name": "side", "image": "i", "restartPolicy": "Always"},
            ],
            "containers": [{"name": "c", "image": "i", "command": ["sleep", "100"]}],
        },
    }))
    .await;
    let pod =
        lab.wait("p", |pod| pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object()).await;
    assert_eq!(pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
    let pod = lab.running("p").await;
    assert_eq!(pod["status"]["initContainerStatuses"][1]["ready"], true);
    let pod = lab.wait("p", |pod| pod["status"]["phase"] == "Succeeded").await;
    assert_eq!(pod["status"]["initContainerStatuses"][1]["state"]["terminated"]["exitCode"], 143);
}

#[tokio::test(start_paused = true)]
async fn a_missing_config_map_holds_the_container_up() {
    let lab = Lab::virtual_time().await;
    let env = json!([{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}]);
    lab.run("p", json!({"command": ["sleep", "infinity"], "env": env})).await;
    let pod = lab.wait("p", |pod| !pod["status"]["containerStatuses"].is_null()).await;
    let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["reason"], "CreateContainerConfigError");
    assert_eq!(waiting["message"], "configmap \"cm\" not found");
    let config: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "cm"}, "data": {"k": "v"}})).unwrap();
    Api::namespaced(lab.client.clone(), "default").create(&PostParams::default(), &config).await.unwrap();
    lab.running("p").await;
    assert_eq!(lab.exec("p", &["printenv", "K"]).await.1, "v\n");
}

#[tokio::test(start_paused = true)]
async fn probes_decide_over_readiness_and_restarts() {
    let lab = Lab::virtual_time().await;
    let probe = |command: &str, delay: u32| json!({"exec": {"command": ["sh", "-c", command]}, "initialDelaySeconds": delay, "periodSeconds": 1, "failureThreshold": 2});
    lab.run("slow", json!({"command": ["sleep", "infinity"], "readinessProbe": probe("true", 30)})).await;
    let pod = lab.running("slow").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["ready"], false);
    let ready = |pod: &Value| {
        pod["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .any(|c| c["type"] == "Ready" && c["status"] == "True")
    };
    lab.wait("slow", ready).await;
    lab.run("sick", json!({"command": ["sleep", "infinity"], "livenessProbe": probe("false", 5)})).await;
    let pod = lab.wait("sick", |pod| pod["status"]["containerStatuses"][0]["restartCount"] == 1).await;
    assert_eq!(pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 143);
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_tainted_and_its_pods_are_evicted() {
    let lab = Lab::virtual_time().await;
    lab.run("p", json!({"command": ["sleep", "infinity"]})).await;
    lab.running("p").await;
    lab.kubelet.stop().await;
    lab.machine.power_off();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let nodes = Api::<Node>::all(lab.client.clone());
    let node = serde_json::to_value(nodes.get("node").await.unwrap()).unwrap();
    let ready = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().unwrap().clone();
        conditions.into_iter().find(|condition| condition["type"] == "Ready").unwrap()["status"].clone()
    };
    assert_eq!(ready(&node), "Unknown");
    let keys: Vec<&Value> =
        node["spec"]["taints"].as_array().unwrap().iter().map(|taint| &taint["key"]).collect();
    assert_eq!(keys, ["node.kubernetes.io/unreachable"; 2]);
    assert!(lab.pods().get("p").await.unwrap().metadata.deletion_timestamp.is_none());
    tokio::time::sleep(Duration::from_secs(310)).await;
    assert!(lab.pods().get("p").await.unwrap().metadata.deletion_timestamp.is_some());

    Kubelet::start(lab.machine.clone(), Tasks::new(lab.cancel.child_token())).unwrap();
    lab.gone("p").await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    let node = serde_json::to_value(nodes.get("node").await.unwrap()).unwrap();
    assert_eq!(ready(&node), "True");
    assert!(node["spec"]["taints"].as_array().is_none_or(Vec::is_empty), "{}", node["spec"]["taints"]);
}

#[tokio::test]
async fn a_container_sees_exactly_its_gpus() {
    let lab = Lab::with_gpus(4).await;
    let mut container = gpus(2);
    container["command"] = json!(["sleep", "infinity"]);
    lab.run("two", container).await;
    lab.run("none", json!({"command": ["sleep", "infinity"]})).await;
    lab.running("two").await;
    lab.running("none").await;
    let (code, out, error) = lab.exec("two", &["nvidia-smi", "-L"]).await;
    assert_eq!((code, out.lines().count(), error.as_str()), (0, 2, ""));
    let (_, out, _) = lab.exec("two", &["ls", "/dev/nvidia*"]).await;
    assert_eq!(
        out.lines().filter(|line| line.trim_start_matches("/dev/nvidia").parse::<u32>().is_ok()).count(),
        2,
        "{out}"
    );
    assert_eq!(lab.exec("none", &["nvidia-smi"]).await.0, 127);

    let patch = json!({"metadata": {"annotations": {"sim.gantry.dev/utilization": "70", "sim.gantry.dev/memory-used": "10Gi"}}});
    lab.pods().patch("two", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let query = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits"];
    for _ in 0..500 {
        if lab.exec("two", &query).await.1 == "70, 10240\n70, 10240\n" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{}", lab.exec("two", &query).await.1);
}

#[tokio::test]
async fn gpus_that_are_not_there_are_not_given() {
    let lab = Lab::with_gpus(2).await;
    let mut container = gpus(2);
    container["command"] = json!(["sleep", "infinity"]);
    lab.run("first", container.clone()).await;
    lab.running("first").await;
    lab.run("second", container.clone()).await;
    let pod = lab.wait("second", |pod| pod["status"]["phase"] == "Failed").await;
    assert_eq!(pod["status"]["reason"], "UnexpectedAdmissionError");
    assert_eq!(
        pod["status"]["message"],
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. \
         Requested: 2, Available: 0, which is unexpected"
    );
    lab.pods().delete("first", &DeleteParams::default()).await.unwrap();
    lab.gone("first").await;
    lab.run("third", container).await;
    lab.running("third").await;
    lab.pods().delete("second", &DeleteParams::default()).await.unwrap();
    lab.gone("second").await;
}

#[tokio::test]
async fn a_fault_takes_a_gpu_away_and_its_return_brings_it_back() {
    let lab = Lab::with_gpus(2).await;
    lab.allocatable("2").await;
    let cards = lab.machine.plate.gpus.clone().unwrap();
    cards.fault(0, FaultKind::Xid(79)).unwrap();
    lab.allocatable("1").await;
    cards.recover(0).unwrap();
    lab.allocatable("2").await;
}

#[tokio::test]
async fn restarts_of_kubelet_and_agent_leave_pods_their_gpus() {
    let lab = Lab::with_gpus(2).await;
    let mut container = gpus(1);
    container["command"] = json!(["sleep", "infinity"]);
    lab.run("p", container.clone()).await;
    lab.running("p").await;
    let before = lab.exec("p", &["nvidia-smi", "-L"]).await;

    lab.kubelet.stop().await;
    lab.machine.ready.send_replace(false);
    Kubelet::start(lab.machine.clone(), Tasks::new(lab.cancel.child_token())).unwrap();
    lab.machine.ready.subscribe().wait_for(|ready| *ready).await.unwrap();
    lab.allocatable("2").await;
    assert_eq!(lab.exec("p", &["nvidia-smi", "-L"]).await, before);
    assert_eq!(lab.wait("p", |_| true).await["status"]["containerStatuses"][0]["restartCount"], 0);

    let sandboxes: Vec<_> = lab.machine.sandboxes().values().cloned().collect();
    let agent = sandboxes.iter().find(|sandbox| sandbox.namespace == "kube-system").unwrap();
    agent.stop_all();
    let mut changes = agent.changes();
    while agent.containers()["agent"].restarts == 0 || lab.machine.agent().is_none() {
        changes.changed().await.unwrap();
    }
    lab.machine.agent().unwrap().registrations().wait_for(|count| *count > 0).await.unwrap();
    lab.allocatable("2").await;
    lab.run("q", container).await;
    lab.running("q").await;
    assert_ne!(lab.exec("q", &["nvidia-smi", "-L"]).await.1, before.1);
}
