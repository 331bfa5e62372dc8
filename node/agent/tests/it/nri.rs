//! Identity by NRI, with a runtime double; the kubelet's choice where no runtime asks, with a podresources double.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use gantry_agent::{Identity, IdentityMode, Options};
use gantry_api::{ASSIGNMENT_ANNOTATION, encode_assignment};
use gantry_gpu::GpuBackend as _;
use gantry_model::{Assignment, GpuId};
use gantry_nri::double::{Plugin, Runtime};
use gantry_nri::{Container, ContainerState, PodSandbox};
use gantry_proto::deviceplugin as api;
use gantry_proto::nri;
use gantry_proto::podresources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use gantry_proto::podresources::{self, ListPodResourcesResponse, PodResources};
use gantry_shim::GPUS_ANNOTATION;
use http::{Request, Response};
use kube::client::Body;
use serde_json::json;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Code;

use crate::kubelet::Kubelet;
use crate::{GPU, Node, Running, start};

const DEVICES: &str = "gantry.dev/devices.nvidia.com_gpu";

fn ids(node: &Node) -> Vec<GpuId> {
    node.gpus.inventory().unwrap().gpus.into_iter().map(|gpu| gpu.id).collect()
}

fn socket(node: &Node) -> PathBuf {
    node.root.path().join("nri.sock")
}

fn options(node: &Node, identity: Identity) -> Options {
    Options { nri: Some(socket(node)), ..node.options(identity) }
}

fn assigned(gpus: &[GpuId]) -> String {
    let containers = BTreeMap::from([("main".into(), gpus.to_vec())]);
    encode_assignment(&Assignment { node: "node-1".into(), containers })
}

/// A pod with one container, named after it, for which GPUs were assigned.
fn pod(name: &str, gpus: &[GpuId]) -> PodSandbox {
    let annotations = match gpus {
        [] => BTreeMap::new(),
        gpus => BTreeMap::from([(ASSIGNMENT_ANNOTATION.to_owned(), assigned(gpus))]),
    };
    PodSandbox {
        id: format!("sandbox-{name}"),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        namespace: "default".to_owned(),
        annotations,
        pid: 7,
        ..PodSandbox::default()
    }
}

/// A container of a pod, with the annotations that a kubelet makes of an answer to Allocate.
fn container(pod: &PodSandbox, annotations: impl IntoIterator<Item = (String, String)>) -> Container {
    Container {
        id: format!("container-{}", pod.name),
        pod_sandbox_id: pod.id.clone(),
        name: "main".to_owned(),
        state: ContainerState::ContainerRunning as i32,
        annotations: annotations.into_iter().collect(),
        ..Container::default()
    }
}

fn granted(devices: &[&str]) -> [(String, String); 1] {
    [(DEVICES.to_owned(), devices.join(","))]
}

async fn connected(agent: &Running, wanted: bool) {
    agent.handle.nri().wait_for(|state| state.is_connected() == wanted).await.unwrap();
}

async fn allocate(kubelet: &Kubelet, devices: &[&str]) -> api::ContainerAllocateResponse {
    let devices_ids = devices.iter().map(|id| (*id).to_owned()).collect();
    let container_requests = vec![api::ContainerAllocateRequest { devices_ids }];
    let mut plugin = kubelet.plugin("nvidia-gpu.sock").await;
    let answer = plugin.allocate(api::AllocateRequest { container_requests }).await.unwrap();
    answer.into_inner().container_responses.remove(0)
}

async fn pre_start(kubelet: &Kubelet, devices: &[&str]) -> Result<(), tonic::Status> {
    let devices_ids = devices.iter().map(|id| (*id).to_owned()).collect();
    let mut plugin = kubelet.plugin("nvidia-gpu.sock").await;
    plugin.pre_start_container(api::PreStartContainerRequest { devices_ids }).await.map(drop)
}

/// A container of each pod with one slot, as it runs then.
async fn create(runtime: &mut Plugin, pods: &[PodSandbox]) -> Vec<Container> {
    let mut containers = Vec::new();
    for (index, pod) in pods.iter().enumerate() {
        let mut container = container(pod, granted(&[&format!("slot-{index}")]));
        let adjust = runtime.create(pod, &container).await.unwrap().unwrap();
        container.annotations.extend(adjust.annotations);
        containers.push(container);
    }
    containers
}

async fn refusal(runtime: &mut Plugin, pod: &PodSandbox, container: &Container) -> String {
    runtime.create(pod, container).await.unwrap().unwrap_err().message
}

fn cdi(gpu: &GpuId) -> String {
    format!("k8s.device-plugin.nvidia.com/gpu={gpu}")
}

#[tokio::test]
async fn a_container_gets_the_gpus_of_its_pods_assignment_and_no_other_does() {
    let node = Node::new("a100-80", 4);
    let gpus = ids(&node);
    let kubelet = Kubelet::start(&node.plugins());
    let runtime = Runtime::bind(&socket(&node)).unwrap();
    let agent = start(options(&node, Identity::Assignment));
    kubelet.devices(GPU, 4, 4).await;
    let mut runtime = runtime.join(&[], &[]).await.unwrap();
    connected(&agent, true).await;

    let answer = allocate(&kubelet, &["slot-1", "slot-0"]).await;
    assert!(answer.cdi_devices.is_empty() && answer.envs.is_empty(), "a slot is not a GPU yet");
    assert_eq!(answer.annotations[DEVICES], "slot-1,slot-0");
    pre_start(&kubelet, &["slot-1", "slot-0"]).await.unwrap();
    let train = pod("train", &[gpus[2].clone(), gpus[3].clone()]);
    let adjust = runtime.create(&train, &container(&train, answer.annotations)).await.unwrap().unwrap();
    let names: Vec<String> = adjust.cdi_devices.into_iter().map(|device| device.name).collect();
    assert_eq!(names, [cdi(&gpus[2]), cdi(&gpus[3])]);
    assert_eq!(adjust.annotations[GPUS_ANNOTATION], format!("{},{}", gpus[2], gpus[3]));

    let plain = pod("plain", &[]);
    let adjust = runtime.create(&plain, &container(&plain, [])).await.unwrap().unwrap();
    assert_eq!(adjust, nri::ContainerAdjustment::default());

    let thief = pod("thief", &[gpus[3].clone()]);
    assert_eq!(
        refusal(&mut runtime, &thief, &container(&thief, granted(&["slot-2"]))).await,
        format!(
            "pod default/thief (uid uid-thief): {} belongs to pod default/train (uid uid-train) until that pod is gone",
            gpus[3]
        )
    );
    let without = refusal(&mut runtime, &thief, &container(&thief, [])).await;
    assert!(without.ends_with("1 GPUs are assigned and the kubelet granted 0 devices"), "{without}");
    // A variable of the pod's own grants nothing, and an annotation of its own is refused.
    let sly = Container { env: vec!["GANTRY_SLOTS=slot-2".into()], ..container(&plain, []) };
    assert!(runtime.create(&plain, &sly).await.unwrap().unwrap().cdi_devices.is_empty());
    let mut slyer = pod("sly", &[]);
    slyer.annotations.insert(DEVICES.to_owned(), "slot-2".to_owned());
    assert_eq!(
        refusal(&mut runtime, &slyer, &container(&slyer, granted(&["slot-2"]))).await,
        "pod default/sly: annotation gantry.dev/devices.nvidia.com_gpu is the node agent's own: remove it from the pod"
    );
    let broken = container(&plain, granted(&["slot-2", "slot-2"]));
    assert_eq!(
        refusal(&mut runtime, &plain, &broken).await,
        "pod default/plain, container main: annotation gantry.dev/devices.nvidia.com_gpu: slot-2 stands there twice: a device is \
         granted once"
    );
    // A pod of another scheduler gets what is free.
    let other = pod("other", &[]);
    let adjust = runtime.create(&other, &container(&other, granted(&["slot-2"]))).await.unwrap().unwrap();
    assert_eq!(adjust.annotations[GPUS_ANNOTATION], gpus[0].as_str());

    let stop = |sandbox: &PodSandbox| nri::StopPodSandboxRequest { pod: Some(sandbox.clone()) };
    let earlier = PodSandbox { id: "an earlier one".into(), ..train.clone() };
    for (sandbox, left) in [(&earlier, 3), (&train, 1)] {
        runtime
            .call::<_, nri::StopPodSandboxResponse>("StopPodSandbox", &stop(sandbox))
            .await
            .unwrap()
            .unwrap();
        let held: usize = agent.handle.in_use().iter().map(|used| used.gpus.len()).sum();
        assert_eq!(held, left);
    }
    runtime.create(&thief, &container(&thief, granted(&["slot-0"]))).await.unwrap().unwrap();
    agent.stop().await;
}

#[tokio::test]
async fn of_two_pods_that_race_for_a_gpu_one_is_refused() {
    let node = Node::new("t4", 2);
    let gpus = ids(&node);
    let runtime = Runtime::bind(&socket(&node)).unwrap();
    let agent = start(options(&node, Identity::Assignment));
    let mut runtime = runtime.join(&[], &[]).await.unwrap();
    let mut streams = Vec::new();
    for (name, slot) in [("a", "slot-0"), ("b", "slot-1")] {
        let pod = pod(name, &[gpus[1].clone()]);
        let container = Some(container(&pod, granted(&[slot])));
        let request = nri::CreateContainerRequest { pod: Some(pod), container };
        streams.push(runtime.ask("CreateContainer", &request).await.unwrap());
    }
    for stream in streams {
        assert_eq!(runtime.message(0).await.unwrap().0, stream);
    }
    let used = agent.handle.in_use();
    assert_eq!(used.iter().map(|used| used.pod.as_str()).collect::<Vec<_>>(), ["a"]);
    assert!(agent.log().iter().any(|line| line.starts_with("Refused container main: pod default/b")));
    agent.stop().await;
}

#[tokio::test]
async fn nothing_starts_until_the_runtime_asks() {
    let node = Node::new("t4", 2);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = start(options(&node, Identity::Assignment));
    kubelet.devices(GPU, 2, 2).await;
    let plugin = kubelet.plugin("nvidia-gpu.sock").await.get_device_plugin_options(api::Empty {}).await;
    assert!(plugin.unwrap().into_inner().pre_start_required);
    let runtime = Runtime::bind(&socket(&node)).unwrap();
    let ask = pre_start(&kubelet, &["slot-0"]);
    let come = async {
        let plugin = runtime.join(&[], &[]).await.unwrap();
        connected(&agent, true).await;
        plugin
    };
    let (asked, _plugin) = tokio::join!(ask, come);
    asked.unwrap();
    let error = pre_start(&kubelet, &["slot-7"]).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_come_is_named_in_the_kubelets_error() {
    let node = Node::new("t4", 1);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = start(options(&node, Identity::Assignment));
    kubelet.devices(GPU, 1, 1).await;
    agent.handle.nri().wait_for(|state| format!("{state:?}").contains("dial")).await.unwrap();
    let error = pre_start(&kubelet, &["slot-0"]).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let (begin, rest) = error.message().split_once(" (since ").unwrap();
    assert_eq!(
        begin,
        "devices slot-0 cannot be used yet: the container runtime does not ask this agent which GPUs they stand for"
    );
    assert!(rest.contains("nri.sock: No such file or directory"), "{rest}");
    assert!(
        rest.ends_with(
            "enable NRI in the runtime (containerd: plugins.'io.containerd.nri.v1.nri'.disable = false), or run the agent \
             with the kubelet's choice of GPUs"
        ),
        "{rest}"
    );
    agent.stop().await;
}

#[tokio::test]
async fn a_runtime_that_restarts_tells_what_lives_and_goes_on_asking() {
    let node = Node::new("t4", 3);
    let gpus = ids(&node);
    let runtime = Runtime::bind(&socket(&node)).unwrap();
    let agent = start(options(&node, Identity::Assignment));
    let mut plugin = runtime.join(&[], &[]).await.unwrap();
    let pods = [pod("stays", &[gpus[1].clone()]), pod("goes", &[gpus[2].clone()])];
    let containers = create(&mut plugin, &pods).await;
    drop((plugin, runtime));
    connected(&agent, false).await;
    assert_eq!(agent.handle.in_use().len(), 2, "containers outlive their runtime");
    let runtime = Runtime::bind(&socket(&node)).unwrap();
    // The pod ended meanwhile: its sandbox is there and has no process.
    let ended = PodSandbox { pid: 0, ..pods[1].clone() };
    let mut plugin = runtime.join(&[pods[0].clone(), ended], &containers[..1]).await.unwrap();
    connected(&agent, true).await;
    assert_eq!(agent.handle.in_use().len(), 1);
    let next = pod("next", &[gpus[2].clone()]);
    plugin.create(&next, &container(&next, granted(&["slot-1"]))).await.unwrap().unwrap();
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_lost_its_checkpoint_learns_from_the_runtime_what_runs() {
    let node = Node::new("t4", 4);
    let gpus = ids(&node);
    let runtime = Runtime::bind(&socket(&node)).unwrap();
    let agent = start(options(&node, Identity::Assignment));
    let mut plugin = runtime.join(&[], &[]).await.unwrap();
    let a = pod("a", &[gpus[3].clone()]);
    let mut known = container(&a, granted(&["slot-0"]));
    known.annotations.extend(plugin.create(&a, &known).await.unwrap().unwrap().annotations);
    let before = agent.handle.in_use();
    agent.kill().await;
    drop(plugin);
    std::fs::remove_dir_all(node.root.path().join("state")).unwrap();

    let agent = start(options(&node, Identity::Assignment));
    let b = pod("b", &[gpus[0].clone()]);
    let missed = container(&b, granted(&["slot-1"]));
    let mut sly = pod("sly", &[]);
    sly.annotations.insert(GPUS_ANNOTATION.to_owned(), gpus[2].to_string());
    let claim = container(
        &sly,
        [(GPUS_ANNOTATION.to_owned(), gpus[2].to_string())].into_iter().chain(granted(&["slot-2"])),
    );
    let mut plugin = runtime.join(&[a, b, sly], &[known, missed, claim]).await.unwrap();
    connected(&agent, true).await;
    assert_eq!(agent.handle.in_use(), before);
    let log = agent.log();
    assert!(log.contains(&"Learned the GPUs of 1 containers from the runtime".to_owned()), "{log:?}");
    assert!(
        log.contains(
            &"Container main of pod default/b runs without the GPUs of its devices slot-1: it was created while the runtime did \
              not ask this agent; delete the pod"
                .to_owned()
        ),
        "{log:?}"
    );
    // The slot stands for the same GPU as before: the next pod that is granted another one cannot get it.
    let thief = pod("thief", &[gpus[3].clone()]);
    assert!(
        refusal(&mut plugin, &thief, &container(&thief, granted(&["slot-3"])))
            .await
            .contains("belongs to pod default/a")
    );
    agent.stop().await;
}

/// An API server with one pod of the node.
fn client(pod: serde_json::Value) -> kube::Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let pod = pod.clone();
        async move {
            if request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                return std::future::pending().await;
            }
            let list = match request.uri().path() {
                "/api/v1/pods" => json!({ "kind": "PodList", "apiVersion": "v1",
                    "metadata": { "resourceVersion": "1" }, "items": [pod] }),
                path => json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": path, "reason": "NotFound", "code": 404 }),
            };
            let code = if list["kind"] == "Status" { 404 } else { 200 };
            let body = Body::from(serde_json::to_vec(&list).unwrap());
            Ok::<_, kube::Error>(Response::builder().status(code).body(body).unwrap())
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test]
async fn an_assignment_that_the_sandbox_does_not_have_comes_from_the_api_server() {
    let node = Node::new("t4", 4);
    let gpus = ids(&node);
    let object = json!({ "metadata": { "namespace": "default", "name": "late", "uid": "uid-late",
        "annotations": { ASSIGNMENT_ANNOTATION: assigned(&[gpus[3].clone()]) } },
        "spec": { "containers": [] }, "status": { "phase": "Pending" } });
    let runtime = Runtime::bind(&socket(&node)).unwrap();
    let agent = start(Options { client: Some(client(object)), ..options(&node, Identity::Assignment) });
    let mut plugin = runtime.join(&[], &[]).await.unwrap();
    let late = pod("late", &[]);
    let create = container(&late, granted(&["slot-0"]));
    // The engine would take the first GPU; which it is until the pods are known.
    loop {
        let adjust = plugin.create(&late, &create).await.unwrap().unwrap();
        if adjust.annotations[GPUS_ANNOTATION] == gpus[3].as_str() {
            break;
        }
        agent.handle.remove_pod("uid-late");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    agent.stop().await;
}

/// containerd does not tell the end of a sandbox that it had before it restarted.
#[tokio::test]
async fn a_pod_that_ends_without_a_word_is_free_once_its_last_container_has_ended() {
    let node = Node::new("t4", 2);
    let gpus = ids(&node);
    let object = json!({ "metadata": { "namespace": "default", "name": "stays", "uid": "uid-stays" },
        "spec": { "containers": [] }, "status": { "phase": "Running" } });
    let runtime = Runtime::bind(&socket(&node)).unwrap();
    let agent = start(Options { client: Some(client(object)), ..options(&node, Identity::Assignment) });
    let pods = [pod("stays", &[gpus[0].clone()]), pod("goes", &[gpus[1].clone()])];
    let mut plugin = runtime.join(&[], &[]).await.unwrap();
    let containers = create(&mut plugin, &pods).await;
    drop((plugin, runtime));
    connected(&agent, false).await;
    let runtime = Runtime::bind(&socket(&node)).unwrap();
    let mut plugin = runtime.join(&pods, &containers).await.unwrap();
    connected(&agent, true).await;
    // The API server does not have the second pod, as after a deletion by force.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let owners = || agent.handle.in_use().into_iter().map(|owner| owner.pod).collect::<Vec<_>>();
    assert_eq!(owners(), ["goes", "stays"], "its container runs");
    for (pod, container) in pods.iter().zip(&containers) {
        let stop = nri::StopContainerRequest { pod: Some(pod.clone()), container: Some(container.clone()) };
        plugin.call::<_, nri::StopContainerResponse>("StopContainer", &stop).await.unwrap().unwrap();
    }
    while owners() != ["stays"] {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    agent.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_nri_the_kubelet_decides_and_a_runtime_that_comes_changes_what_is_free() {
    let node = Node::new("t4", 3);
    let gpus = ids(&node);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = start(options(&node, Identity::Auto));
    let offered = kubelet.devices(GPU, 3, 3).await;
    assert!(offered.devices.keys().all(|id| id.starts_with("GPU-")), "{:?}", offered.devices);
    assert_eq!(agent.handle.identity_mode(), IdentityMode::Kubelet);
    let answer = allocate(&kubelet, &[gpus[1].as_str()]).await;
    assert_eq!(answer.cdi_devices[0].name, cdi(&gpus[1]));
    pre_start(&kubelet, &[gpus[1].as_str()]).await.unwrap();
    let chosen = pod("chosen", &[]);
    let running = container(&chosen, answer.annotations);

    let runtime = Runtime::bind(&socket(&node)).unwrap();
    let mut plugin = runtime.join(&[], &[]).await.unwrap();
    let slots = |known: &crate::kubelet::Resources| known[GPU].devices.contains_key("slot-0");
    kubelet.until(slots).await;
    assert_eq!(agent.handle.identity_mode(), IdentityMode::Assignment);
    // A container that was granted a GPU keeps it when it is started again, and the kubelet goes on counting it under that id.
    let adjust = plugin.create(&chosen, &running).await.unwrap().unwrap();
    assert!(adjust.cdi_devices.is_empty(), "it came with the answer to Allocate");
    assert_eq!(adjust.annotations[GPUS_ANNOTATION], gpus[1].as_str());
    let offered = kubelet.until(|known| known[GPU].devices.contains_key(gpus[1].as_str())).await;
    assert_eq!(offered[GPU].devices.keys().collect::<Vec<_>>(), [gpus[1].as_str(), "slot-0", "slot-2"]);
    let thief = pod("thief", &[gpus[1].clone()]);
    assert!(
        refusal(&mut plugin, &thief, &container(&thief, granted(&["slot-0"])))
            .await
            .contains("default/chosen")
    );
    let slot = pod("slot", &[gpus[2].clone()]);
    plugin.create(&slot, &container(&slot, granted(&["slot-0"]))).await.unwrap().unwrap();

    // The runtime stays away: after a while the kubelet decides again, and what is held keeps its id.
    drop((plugin, runtime));
    kubelet.until(|known| known[GPU].devices.contains_key(gpus[0].as_str())).await;
    assert_eq!(agent.handle.identity_mode(), IdentityMode::Kubelet);
    let offered = kubelet.devices(GPU, 3, 3).await;
    assert_eq!(
        offered.devices.keys().collect::<Vec<_>>(),
        [gpus[0].as_str(), gpus[1].as_str(), "slot-0"]
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    );
    let error = pre_start(&kubelet, &["slot-0"]).await.unwrap_err();
    assert!(error.message().contains("delete the pod, or turn NRI on again"), "{}", error.message());
    let identity: Vec<String> =
        agent.log().into_iter().filter(|line| line.starts_with("Identity: ")).collect();
    let expected = [
        "Identity: the kubelet decides which GPU a container gets, because the container runtime does not ask through NRI",
        "Identity: the scheduler's assignment decides which GPU a container gets, because the container runtime asks through NRI",
        "Identity: the kubelet decides which GPU a container gets, because the container runtime does not ask through NRI",
    ];
    assert_eq!(identity, expected);
    // The next run begins as this one ended, without waiting.
    agent.stop().await;
    let agent = start(options(&node, Identity::Auto));
    assert_eq!(agent.handle.identity_mode(), IdentityMode::Kubelet);
    assert_eq!(agent.handle.in_use().len(), 2);
    agent.stop().await;
}

type Pods = Arc<Mutex<Vec<PodResources>>>;

struct Lister(Pods);

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: tonic::Request<podresources::ListPodResourcesRequest>,
    ) -> Result<tonic::Response<ListPodResourcesResponse>, tonic::Status> {
        Ok(tonic::Response::new(ListPodResourcesResponse { pod_resources: self.0.lock().unwrap().clone() }))
    }

    async fn get_allocatable_resources(
        &self,
        _: tonic::Request<podresources::AllocatableResourcesRequest>,
    ) -> Result<tonic::Response<podresources::AllocatableResourcesResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented(""))
    }

    async fn get(
        &self,
        _: tonic::Request<podresources::GetPodResourcesRequest>,
    ) -> Result<tonic::Response<podresources::GetPodResourcesResponse>, tonic::Status> {
        Err(tonic::Status::unimplemented(""))
    }
}

/// A kubelet's podresources service.
fn serve(path: &Path, pods: Pods) {
    let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
    let server = tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(Lister(pods)));
    tokio::spawn(server.serve_with_incoming(listener));
}

fn listed(pod: &str, devices: &[(&str, &str)]) -> PodResources {
    let devices = devices.iter().map(|(resource, id)| podresources::ContainerDevices {
        resource_name: (*resource).to_owned(),
        device_ids: vec![(*id).to_owned()],
        topology: None,
    });
    let container = podresources::ContainerResources {
        name: "main".to_owned(),
        devices: devices.collect(),
        ..Default::default()
    };
    PodResources {
        name: pod.to_owned(),
        namespace: "default".to_owned(),
        containers: vec![container],
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_kubelet_decides_the_ledger_follows_what_it_lists() {
    let node = Node::new("t4", 3);
    let gpus = ids(&node);
    let kubelet = Kubelet::start(&node.plugins());
    let path = node.root.path().join("podresources.sock");
    let options = Options { pod_resources: Some(path.clone()), ..node.options(Identity::Kubelet) };
    let agent = start(options);
    kubelet.devices(GPU, 3, 3).await;
    let used = |wanted: Vec<(&'static str, Vec<String>)>| {
        let handle = agent.handle.clone();
        async move {
            loop {
                let used: Vec<_> = handle.in_use().into_iter().map(|used| (used.pod, used.gpus)).collect();
                let wanted = wanted.iter().map(|(pod, gpus)| ((*pod).to_owned(), gpus.clone()));
                if used == wanted.collect::<Vec<_>>() {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    };
    let pods = Pods::default();
    *pods.lock().unwrap() = vec![
        listed("a", &[(GPU, gpus[2].as_str()), ("other.com/nic", "nic-1")]),
        listed("b", &[("other.com/nic", "nic-0")]),
    ];
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    serve(&path, Arc::clone(&pods));
    used(vec![("a", vec![gpus[2].to_string()])]).await;
    allocate(&kubelet, &[gpus[0].as_str()]).await;
    pods.lock().unwrap().push(listed("c", &[(GPU, gpus[0].as_str())]));
    used(vec![("a", vec![gpus[2].to_string()]), ("c", vec![gpus[0].to_string()])]).await;
    pods.lock().unwrap().remove(0);
    used(vec![("c", vec![gpus[0].to_string()])]).await;
    // The kubelet contradicts itself: said once, and nobody gets a second owner.
    pods.lock().unwrap().push(listed("d", &[(GPU, gpus[0].as_str())]));
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    used(vec![("c", vec![gpus[0].to_string()])]).await;
    let said: Vec<String> = agent.log().into_iter().filter(|line| line.contains("odresources")).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with("Could not ask the kubelet who has which device: connect to "),
        "{}",
        said[0]
    );
    let contradiction = format!(
        "Podresources: the kubelet gave {} to pod default/d, and it belongs to pod default/c",
        gpus[0]
    );
    assert_eq!(said[1], contradiction);
    agent.stop().await;
}
