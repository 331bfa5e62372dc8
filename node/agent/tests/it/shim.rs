//! What gantry-runtime is told.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use gantry_agent::{IdentityMode, ShimOptions, serve_shim};
use gantry_api::{ASSIGNMENT_ANNOTATION, encode_assignment};
use gantry_gpu::GpuBackend as _;
use gantry_kit::CancellationToken;
use gantry_model::{Assignment, GpuId};
use gantry_shim::{Answer, Pod, Request};
use http::Response;
use kube::client::Body;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::Node;

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

/// An API server that knows one pod, with this assignment.
fn api(name: &'static str, gpu: &GpuId) -> kube::Client {
    let containers = BTreeMap::from([("main".into(), vec![gpu.clone()])]);
    let text = encode_assignment(&Assignment { node: "node-1".into(), containers });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "ml",
        "uid": format!("uid-{name}"), "annotations": { ASSIGNMENT_ANNOTATION: text } } });
    let service = tower::service_fn(move |request: http::Request<Body>| {
        assert_eq!(request.uri().path(), "/api/v1/pods");
        let query = request.uri().query().unwrap_or_default().to_owned();
        assert!(query.contains("spec.nodeName%3Dnode-1"), "{query}");
        let body = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": "1" }, "items": [pod] });
        async move {
            if query.contains("watch=true") {
                // Nothing ever changes.
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
    let options = |client| ShimOptions { socket: socket.clone(), client };
    let serving = tokio::spawn(serve_shim(options(None), agent.handle.clone(), cancel.clone()));
    while !socket.exists() {
        tokio::task::yield_now().await;
    }
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let third = Answer::Devices(vec![format!("k8s.device-plugin.nvidia.com/gpu={}", gpus[3])]);
    for _ in 0..2 {
        assert_eq!(ask(&socket, &request("a", "slot-0", &[&gpus[3]])).await, third, "and the same again");
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
    // With an API server, its word counts, and a pod that it does not know is none.
    let cancel = CancellationToken::new();
    let serving =
        tokio::spawn(serve_shim(options(Some(api("c", &gpus[2]))), agent.handle.clone(), cancel.clone()));
    while !socket.exists() {
        tokio::task::yield_now().await;
    }
    let second = Answer::Devices(vec![format!("k8s.device-plugin.nvidia.com/gpu={}", gpus[2])]);
    assert_eq!(ask(&socket, &request("c", "slot-2", &[])).await, second);
    let unknown = "pod ml/d: the API server knows none with UID uid-d on this node".to_owned();
    assert_eq!(ask(&socket, &request("d", "slot-1", &[&gpus[1]])).await, Answer::Refused(unknown));
    let owners: Vec<String> = agent.handle.in_use().into_iter().map(|owner| owner.pod).collect();
    assert_eq!(owners, ["c"], "the list does not have the pod that had the third one: it has ended");
    cancel.cancel();
    serving.await.unwrap().unwrap();
    agent.stop().await;
}
