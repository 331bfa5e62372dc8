//! What gantry-runtime is told.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use gantry_agent::{IdentityMode, Options, serve_shim};
use gantry_api::{ASSIGNMENT_ANNOTATION, encode_assignment};
use gantry_gpu::GpuBackend as _;
use gantry_kit::CancellationToken;
use gantry_model::{Assignment, GpuId};
use gantry_shim::{Answer, Image, Pod, Request};
use http::Response;
use kube::client::Body;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::{Node, start};

fn request(pod: &str, slot: &str, gpus: &[&GpuId]) -> Request {
    let containers = BTreeMap::from([("main".into(), gpus.iter().map(|id| (*id).clone()).collect())]);
    let text = encode_assignment(&Assignment { node: "node-1".into(), containers });
    let annotations = if gpus.is_empty() {
        BTreeMap::new()
    } else {
        BTreeMap::from([(ASSIGNMENT_ANNOTATION.to_owned(), text)])
    };
    let pod = Pod { namespace: "ml".into(), name: pod.into(), uid: format!("uid-{pod}") };
    Request::new(pod, "main".into(), vec![slot.into()], annotations)
}

async fn say(socket: &Path, bytes: &[u8]) -> Answer {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut line = Vec::new();
    stream.read_to_end(&mut line).await.unwrap();
    Answer::decode(&line).unwrap()
}

async fn ask(socket: &Path, request: &Request) -> Answer {
    say(socket, &request.encode().unwrap()).await
}

/// The devices of an answer, and the files that come with them.
fn granted(answer: Answer) -> (Vec<String>, Vec<String>) {
    let Answer::Edits(devices, edits) = answer else { panic!("{answer:?}") };
    (devices, edits.mounts.into_iter().map(|mount| mount.container_path).collect())
}

fn device(gpu: &GpuId) -> Vec<String> {
    vec![format!("k8s.device-plugin.nvidia.com/gpu={gpu}")]
}

/// An API server that knows one pod, with this assignment.
fn api(name: &'static str, gpu: &GpuId) -> kube::Client {
    let containers = BTreeMap::from([("main".into(), vec![gpu.clone()])]);
    let text = encode_assignment(&Assignment { node: "node-1".into(), containers });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "ml",
        "uid": format!("uid-{name}"), "annotations": { ASSIGNMENT_ANNOTATION: text } } });
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let pods = request.uri().path() == "/api/v1/pods";
        let query = request.uri().query().unwrap_or_default().to_owned();
        assert!(!pods || query.contains("spec.nodeName%3Dnode-1"), "{query}");
        let body = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": "1" }, "items": [pod] });
        async move {
            if !pods || query.contains("watch=true") {
                // Nothing ever changes, and nothing else is answered.
                return std::future::pending().await;
            }
            let response = Response::builder().body(Body::from(serde_json::to_vec(&body).unwrap()));
            Ok::<_, std::convert::Infallible>(response.unwrap())
        }
    });
    kube::Client::new(service, "default")
}

#[tokio::test]
async fn a_container_gets_the_gpus_of_its_assignment_and_no_other_pods() {
    let node = Node::new("h100", 4);
    let agent = node.start(IdentityMode::Assignment);
    let gpus: Vec<GpuId> = node.gpus.inventory().unwrap().gpus.into_iter().map(|gpu| gpu.id).collect();
    let socket = node.root.path().join("run/agent.sock");
    let cancel = CancellationToken::new();
    let serving = tokio::spawn(serve_shim(socket.clone(), agent.handle.clone(), cancel.clone()));
    while !socket.exists() {
        tokio::task::yield_now().await;
    }
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    while agent.handle.machine().is_none() {
        tokio::task::yield_now().await;
    }
    for _ in 0..2 {
        let answer = ask(&socket, &request("a", "slot-0", &[&gpus[3]])).await;
        assert_eq!(granted(answer).0, device(&gpus[3]), "and the same again");
    }
    let Answer::Refused(text) = ask(&socket, &request("b", "slot-1", &[&gpus[3]])).await else {
        panic!("two owners");
    };
    assert!(text.contains("belongs to pod ml/a"), "{text}");
    let Answer::Refused(text) = say(&socket, b"{}\n").await else { panic!("accepted") };
    assert_eq!(text, "not a message: missing field `v` at line 1 column 2");
    cancel.cancel();
    serving.await.unwrap().unwrap();
    assert!(!socket.exists());
    agent.stop().await;
    // With an API server, its word counts, and a pod that it does not know is none.
    let cancel = CancellationToken::new();
    let client = Some(api("c", &gpus[2]));
    let kubelet_pods = Some(node.root.path().to_owned());
    let agent = start(Options { client, kubelet_pods, ..node.options(IdentityMode::Assignment) });
    let serving = tokio::spawn(serve_shim(socket.clone(), agent.handle.clone(), cancel.clone()));
    while !socket.exists() {
        tokio::task::yield_now().await;
    }
    assert_eq!(granted(ask(&socket, &request("c", "slot-2", &[])).await).0, device(&gpus[2]));
    let unknown = "pod ml/d: the API server knows none with UID uid-d on this node".to_owned();
    assert_eq!(ask(&socket, &request("d", "slot-1", &[&gpus[1]])).await, Answer::Refused(unknown));
    let owners: Vec<String> = agent.handle.in_use().into_iter().map(|owner| owner.pod).collect();
    assert_eq!(owners, ["c"], "the list does not have the pod that had the third one: it has ended");
    cancel.cancel();
    serving.await.unwrap().unwrap();
    agent.stop().await;
}

#[tokio::test]
async fn a_container_gets_the_parts_of_the_driver_that_it_asks_for_once_its_requirements_are_met() {
    let node = Node::new("h100", 1);
    let agent = node.start(IdentityMode::Assignment);
    let gpu = node.gpus.inventory().unwrap().gpus.swap_remove(0).id;
    let socket = node.root.path().join("agent.sock");
    let cancel = CancellationToken::new();
    let serving = tokio::spawn(serve_shim(socket.clone(), agent.handle.clone(), cancel.clone()));
    while !socket.exists() || agent.handle.machine().is_none() {
        tokio::task::yield_now().await;
    }
    let with = |variables: &[&str]| {
        let mut request = request("a", "slot-0", &[&gpu]);
        request.env = variables.iter().map(|variable| (*variable).to_owned()).collect();
        request
    };
    let mut utility = with(&["NVIDIA_DRIVER_CAPABILITIES=utility"]);
    utility.image = Some(Image { library_folder: "/usr/lib64".into(), library_folder_32: None, musl: false });
    let (devices, files) = granted(ask(&socket, &utility).await);
    assert_eq!(devices, device(&gpu));
    let has = |name: &str| files.iter().any(|file| file == &format!("/usr/lib64/{name}"));
    assert!(has("libnvidia-ml.so.1") && !has("libcuda.so.1"), "{files:?}");
    let (_, files) = granted(ask(&socket, &with(&[])).await);
    assert!(files.iter().any(|file| file.ends_with("/libcuda.so.1")), "{files:?}");

    let refused = async |request: &Request| match ask(&socket, request).await {
        Answer::Refused(text) => text,
        answer => panic!("{answer:?}"),
    };
    let future = "NVIDIA_REQUIRE_CUDA=cuda>=99.0";
    let text = refused(&with(&[future])).await;
    assert!(
        text.starts_with("unsatisfied requirement NVIDIA_REQUIRE_CUDA=\"cuda>=99.0\": this node has driver="),
        "{text}"
    );
    granted(ask(&socket, &with(&[future, "NVIDIA_DISABLE_REQUIRE=true"])).await);
    let mut limited = with(&["NVIDIA_DRIVER_CAPABILITIES=utility,video"]);
    limited.supported_capabilities = Some("utility,compute".into());
    let text = refused(&limited).await;
    assert!(text.starts_with("NVIDIA_DRIVER_CAPABILITIES: video is not to be had"), "{text}");
    cancel.cancel();
    serving.await.unwrap().unwrap();
    agent.stop().await;
}
