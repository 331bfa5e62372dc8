//! A plugin against a runtime double, over real Unix sockets.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gantry_kit::{CancellationToken, SystemClock};
use gantry_nri::double::Runtime;
use gantry_nri::{
    CdiDevice, Connection, Container, ContainerAdjustment, Event, Events, Handle, Options, Plugin,
    PodSandbox, State,
};
use gantry_proto::nri as api;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Writes down what it is told, and answers by the container's name.
#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    fn write(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }

    fn told(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Plugin for Recorder {
    fn events(&self) -> Events {
        Events::of(&[Event::CreateContainer, Event::StopPodSandbox, Event::RemovePodSandbox])
    }

    fn synchronize(&self, pods: Vec<PodSandbox>, containers: Vec<Container>) {
        let names = |names: Vec<String>| names.join(",");
        let pods = names(pods.into_iter().map(|pod| pod.uid).collect());
        let containers = names(containers.into_iter().map(|container| container.name).collect());
        self.write(format!("synchronize [{pods}] [{containers}]"));
    }

    fn create_container(&self, pod: PodSandbox, container: Container) -> Result<ContainerAdjustment, String> {
        self.write(format!("create {}/{}", pod.uid, container.name));
        match container.name.as_str() {
            "refused" => Err("pod a, container refused: 2 GPUs are wanted and 1 is free".to_owned()),
            "panic" => panic!("a bug"),
            "slow" => {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "a plugin that blocks, on a thread of its own"
                )]
                std::thread::sleep(Duration::from_millis(100));
                Ok(ContainerAdjustment::default())
            }
            name => Ok(ContainerAdjustment {
                // As large as the question was.
                cdi_devices: container.env.into_iter().map(|name| CdiDevice { name }).collect(),
                annotations: [("for".to_owned(), name.to_owned())].into(),
                ..ContainerAdjustment::default()
            }),
        }
    }

    fn stop_pod(&self, pod: PodSandbox) {
        self.write(format!("stop {}", pod.uid));
    }

    fn remove_pod(&self, pod: PodSandbox) {
        self.write(format!("remove {}", pod.uid));
    }

    fn shutdown(&self) {
        self.write("shutdown".to_owned());
    }
}

struct Running {
    plugin: Arc<Recorder>,
    handle: Handle,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn options(socket: PathBuf) -> Options {
    Options { socket, name: "gantry".into(), index: "10".into(), clock: Arc::new(SystemClock) }
}

fn start(socket: PathBuf) -> Running {
    let plugin = Arc::new(Recorder::default());
    let (connection, handle) = Connection::new(options(socket), Arc::clone(&plugin)).unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(connection.run(stop.clone()));
    Running { plugin, handle, stop, task }
}

/// On a thread of its own, which it may block.
fn start_apart(socket: PathBuf) -> Running {
    let plugin = Arc::new(Recorder::default());
    let (connection, handle) = Connection::new(options(socket), Arc::clone(&plugin)).unwrap();
    let stop = CancellationToken::new();
    let running = connection.run(stop.clone());
    let task = tokio::task::spawn_blocking(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(running);
    });
    Running { plugin, handle, stop, task }
}

impl Running {
    async fn connected(&self) -> State {
        self.handle.state().wait_for(State::is_connected).await.unwrap().clone()
    }

    /// Waits until the plugin is away for a cause that has these words.
    async fn away(&self, words: &str) -> String {
        let is = |state: &State| matches!(state, State::Away { why, .. } if why.contains(words));
        match self.handle.state().wait_for(is).await.unwrap().clone() {
            State::Away { why, .. } => why,
            State::Connected { .. } => unreachable!(),
        }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
        assert!(
            matches!(&*self.handle.state().borrow(), State::Away { why, .. } if why == "the plugin has ended")
        );
    }
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nri.sock");
    (folder, socket)
}

fn pod(uid: &str) -> PodSandbox {
    PodSandbox { uid: uid.to_owned(), ..PodSandbox::default() }
}

fn container(name: &str) -> Container {
    Container { name: name.to_owned(), ..Container::default() }
}

#[tokio::test]
async fn a_plugin_registers_is_configured_and_answers() {
    let (_folder, socket) = folder();
    let runtime = Runtime::bind(&socket).unwrap();
    let plugin = start(socket);
    let mut peer = runtime.accept().await.unwrap();
    let registered = peer.register().await.unwrap();
    assert_eq!((registered.plugin_name.as_str(), registered.plugin_idx.as_str()), ("gantry", "10"));
    assert_eq!(peer.configure().await.unwrap(), 0b1110, "stop and remove of pods, creation of containers");
    assert!(!plugin.handle.state().borrow().is_connected(), "not before it knows what exists");
    peer.synchronize(&[pod("a")], &[], usize::MAX).await.unwrap();
    let expected = State::Connected { runtime: "containerd".into(), version: "v2.4.2".into() };
    assert_eq!(plugin.connected().await, expected);

    let adjust = peer.create(&pod("a"), &container("main")).await.unwrap().unwrap();
    assert_eq!(adjust.annotations["for"], "main");
    let refusal = peer.create(&pod("a"), &container("refused")).await.unwrap().unwrap_err();
    assert_eq!(
        (refusal.code, refusal.message.as_str()),
        (9, "pod a, container refused: 2 GPUs are wanted and 1 is free")
    );
    let unknown = peer.call::<_, api::Empty>("RunPodSandbox", &api::Empty {}).await.unwrap().unwrap_err();
    assert_eq!((unknown.code, unknown.message.as_str()), (12, "method RunPodSandbox"));
    let stop = api::StopPodSandboxRequest { pod: Some(pod("a")) };
    peer.call::<_, api::StopPodSandboxResponse>("StopPodSandbox", &stop).await.unwrap().unwrap();
    let old =
        api::StateChangeEvent { event: Event::RemovePodSandbox as i32, pod: Some(pod("a")), container: None };
    peer.call::<_, api::Empty>("StateChange", &old).await.unwrap().unwrap();
    peer.call::<_, api::Empty>("Shutdown", &api::Empty {}).await.unwrap().unwrap();
    let told = plugin.plugin.told();
    let expected =
        ["synchronize [a] []", "create a/main", "create a/refused", "stop a", "remove a", "shutdown"];
    assert_eq!(told, expected);
    plugin.stop().await;
    peer.closed().await.unwrap();
}

#[tokio::test]
async fn what_exists_may_come_in_parts_and_be_large() {
    let (_folder, socket) = folder();
    let runtime = Runtime::bind(&socket).unwrap();
    let plugin = start(socket);
    let mut peer = runtime.accept().await.unwrap();
    peer.register().await.unwrap();
    peer.configure().await.unwrap();
    let pods: Vec<PodSandbox> = (0..5).map(|number| pod(&format!("p{number}"))).collect();
    let env = vec!["x".repeat(700_000)];
    let containers: Vec<Container> =
        (0..3).map(|number| Container { env: env.clone(), ..container(&format!("c{number}")) }).collect();
    peer.synchronize(&pods, &containers, 2).await.unwrap();
    plugin.connected().await;
    assert_eq!(plugin.plugin.told(), ["synchronize [p0,p1,p2,p3,p4] [c0,c1,c2]"], "told once, of all");
    let large = Container { env: (0..2_000).map(|n| format!("{n:>20}")).collect(), ..container("main") };
    let adjust = peer.create(&pod("a"), &large).await.unwrap().unwrap();
    assert_eq!(adjust.cdi_devices.len(), 2_000, "an answer of many frames");
    assert_eq!(adjust.cdi_devices[1_999].name, large.env[1_999]);
    plugin.stop().await;
}

#[tokio::test]
async fn a_runtime_that_is_late_restarts_or_refuses_is_dialled_for_ever() {
    let (_folder, socket) = folder();
    let plugin = start(socket.clone());
    plugin.away("No such file or directory").await;
    std::fs::write(&socket, "").unwrap();
    plugin.away("Connection refused").await;
    let mut since = Vec::new();
    for round in 0..3 {
        let runtime = Runtime::bind(&socket).unwrap();
        if round == 1 {
            let mut peer = runtime.accept().await.unwrap();
            peer.refuse(2, "external plugins are disabled").await.unwrap();
            let why = plugin.away("refuses").await;
            assert_eq!(why, "the runtime refuses the plugin: external plugins are disabled (code 2)");
        }
        let mut peer = runtime.join(&[pod(&format!("p{round}"))], &[]).await.unwrap();
        plugin.connected().await;
        peer.create(&pod("a"), &container("main")).await.unwrap().unwrap();
        drop((peer, runtime));
        plugin.away("dial").await;
        if let State::Away { since: at, .. } = &*plugin.handle.state().borrow() {
            since.push(*at);
        }
    }
    assert!(since.is_sorted() && since.len() == 3);
    let told: Vec<_> =
        plugin.plugin.told().into_iter().filter(|line| line.starts_with("synchronize")).collect();
    assert_eq!(told, ["synchronize [p0] []", "synchronize [p1] []", "synchronize [p2] []"]);
    plugin.stop().await;
}

#[tokio::test]
async fn bytes_that_are_no_frames_end_the_connection_and_nothing_else() {
    let (_folder, socket) = folder();
    let runtime = Runtime::bind(&socket).unwrap();
    let plugin = start(socket);
    let cases: [(&[u8], &str); 4] = [
        (b"\0\0\0\0\0\0\0\x01x", "a frame for connection 0, which is reserved"),
        (
            b"\0\0\0\x01\x7f\xff\xff\xff",
            "a frame of 2147483647 bytes on connection 1: at most 4194314 are allowed",
        ),
        (
            b"\0\0\0\x01\0\0\0\x0a\xff\xff\xff\xff\0\0\0\x09\x01\0",
            "a message of 4294967295 bytes in stream 9: at most 4194304 are allowed",
        ),
        (
            b"\0\0\0\x02\0\0\0\x0b\0\0\0\x01\0\0\0\x01\x02\0\xff",
            "the runtime's answer to RegisterPlugin: failed to decode Protobuf message: invalid varint",
        ),
    ];
    for (bytes, text) in cases {
        let mut peer = runtime.accept().await.unwrap();
        peer.raw(bytes).await.unwrap();
        assert_eq!(plugin.away(text).await, text);
        peer.closed().await.unwrap();
    }
    for cut in [3, 8, 12] {
        let mut peer = runtime.join(&[], &[]).await.unwrap();
        plugin.connected().await;
        let create = b"\0\0\0\x01\0\0\0\x20\0\0\0\x16\0\0\0\x99\x01\0";
        peer.raw(&create[..cut]).await.unwrap();
        drop(peer);
        plugin.away("in the middle of a message").await;
    }
    runtime.join(&[], &[]).await.unwrap();
    plugin.stop().await;
}

#[tokio::test]
async fn a_runtime_that_reads_late_gets_every_answer_in_order() {
    let (_folder, socket) = folder();
    let runtime = Runtime::bind(&socket).unwrap();
    let plugin = start(socket);
    let mut peer = runtime.join(&[], &[]).await.unwrap();
    // The answers are more than a socket holds, so the plugin has to wait for the reader.
    let env = vec!["x".repeat(30_000)];
    let mut streams = Vec::new();
    for number in 0..5 {
        let create = api::CreateContainerRequest {
            pod: Some(pod("a")),
            container: Some(Container { env: env.clone(), ..container(&format!("c{number}")) }),
        };
        streams.push(peer.ask("CreateContainer", &create).await.unwrap());
    }
    for stream in streams {
        let (answered, kind, payload) = peer.message(0).await.unwrap();
        assert_eq!((answered, kind), (stream, 2));
        assert!(payload.len() > 30_000);
    }
    plugin.stop().await;
}

#[tokio::test]
async fn an_answer_after_the_deadline_costs_the_connection_and_the_next_one_tells_what_exists() {
    let (_folder, socket) = folder();
    let runtime = Runtime::bind(&socket).unwrap();
    let plugin = start_apart(socket);
    let mut peer = runtime.join(&[], &[]).await.unwrap();
    plugin.connected().await;
    peer.patience(Duration::from_millis(1));
    let error = peer.create(&pod("a"), &container("slow")).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    // The runtime closes the plugin's connection then, and has created the container.
    drop(peer);
    plugin.handle.state().wait_for(|state| !state.is_connected()).await.unwrap();
    let mut peer = runtime.join(&[pod("a")], &[container("slow")]).await.unwrap();
    plugin.connected().await;
    peer.create(&pod("b"), &container("main")).await.unwrap().unwrap();
    assert_eq!(plugin.plugin.told()[2], "synchronize [a] [slow]");
    plugin.stop().await;
}

#[tokio::test]
async fn a_plugin_that_panics_is_connected_again() {
    let (_folder, socket) = folder();
    let runtime = Runtime::bind(&socket).unwrap();
    let plugin = start(socket);
    let mut peer = runtime.join(&[], &[]).await.unwrap();
    plugin.connected().await;
    peer.create(&pod("a"), &container("panic")).await.unwrap_err();
    plugin.away("the plugin panicked: a bug").await;
    runtime.join(&[], &[]).await.unwrap();
    plugin.connected().await;
    plugin.stop().await;
}

#[test]
fn names_that_no_runtime_registers_are_refused() {
    let refusal = |name: &str, index: &str| {
        let options = Options { name: name.into(), index: index.into(), ..options("/nri.sock".into()) };
        Connection::new(options, Arc::new(Recorder::default())).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(refusal("gantry-2.x_y", "00"), Ok(()));
    for (name, index, text) in [
        ("", "10", "plugin name \"\": use letters, digits, '-', '_' and '.'"),
        ("a b", "10", "plugin name \"a b\": use letters, digits, '-', '_' and '.'"),
        ("gantry", "1", "plugin index \"1\": use two digits, as in 10"),
        ("gantry", "1x", "plugin index \"1x\": use two digits, as in 10"),
        ("gantry", "100", "plugin index \"100\": use two digits, as in 10"),
    ] {
        assert_eq!(refusal(name, index), Err(text.to_owned()));
    }
}
