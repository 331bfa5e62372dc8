//! One connection to the runtime, without the socket.

use std::time::Duration;

use gantry_proto::nri::{
    self as api, PLUGIN_CONNECTION, PLUGIN_SERVICE, RUNTIME_CONNECTION, RUNTIME_SERVICE,
};
use gantry_proto::ttrpc::{Request, Response};
use prost::Message as _;
use tokio::time::Instant;

use crate::frame::Demultiplexer;
use crate::ttrpc::{self, Assembler, DATA, Message, REQUEST, RESPONSE, code};
use crate::{Error, Plugin};

/// The version of NRI that this was written from, which runtimes log.
const NRI_VERSION: &str = "v0.12.3";

/// How long the runtime waits for the answer to the registration.
const REGISTRATION: Duration = Duration::from_secs(5);

/// The stream of the registration, the only call that a plugin makes.
const REGISTER_STREAM: u32 = 1;

/// The most that Synchronize may tell in all its parts, in bytes: thousands of pods.
const LONGEST_SNAPSHOT: usize = 64 << 20;

/// The runtime, as it introduces itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// Such as `containerd`.
    pub runtime: String,
    /// Such as `v2.4.2`.
    pub version: String,
    /// How long the runtime waits for an answer. Zero where it does not say so.
    pub request_timeout: Duration,
}

/// The protocol of one connection. Bytes go in, in pieces of any size, and bytes come out.
#[derive(Debug, Default)]
pub struct Session {
    demultiplexer: Demultiplexer,
    /// What the runtime asks.
    plugin: Assembler,
    /// What the runtime answers.
    runtime: Assembler,
    /// The newest stream of the runtime's.
    last_stream: u32,
    registered: bool,
    peer: Option<Peer>,
    /// What Synchronize has told so far.
    snapshot: api::SynchronizeRequest,
    /// Its size in bytes.
    snapshot_size: usize,
    synchronized: bool,
}

impl Session {
    /// A connection's beginning, and what has to be sent first.
    pub fn start(name: &str, index: &str) -> (Self, Vec<u8>) {
        let register = api::RegisterPluginRequest {
            plugin_name: name.to_owned(),
            plugin_idx: index.to_owned(),
            nri_version: NRI_VERSION.to_owned(),
        };
        let request = Request {
            service: RUNTIME_SERVICE.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: register.encode_to_vec(),
            timeout_nano: i64::try_from(REGISTRATION.as_nanos()).unwrap_or(i64::MAX),
            metadata: Vec::new(),
        };
        let mut out = Vec::new();
        ttrpc::write(&mut out, RUNTIME_CONNECTION, REGISTER_STREAM, REQUEST, &request.encode_to_vec());
        (Self::default(), out)
    }

    /// The runtime, once it has accepted and synchronised the plugin.
    pub fn connected(&self) -> Option<&Peer> {
        self.peer.as_ref().filter(|_| self.registered && self.synchronized)
    }

    /// What the beginning still lacks.
    pub fn awaited(&self) -> &'static str {
        match (self.registered, &self.peer) {
            (false, _) => "answer to RegisterPlugin",
            (true, None) => "Configure",
            (true, Some(_)) => "Synchronize",
        }
    }

    /// Whether no message is under way.
    pub fn is_whole(&self) -> bool {
        self.demultiplexer.is_whole() && self.plugin.is_whole() && self.runtime.is_whole()
    }

    /// Takes in what the runtime has sent, asks the plugin, and appends what has to be sent to `out`.
    ///
    /// # Errors
    /// What makes the connection useless. Requests that cannot be served are answered instead.
    pub fn receive(&mut self, plugin: &dyn Plugin, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        while let Some((connection, piece)) = self.demultiplexer.next(&mut bytes)? {
            match connection {
                PLUGIN_CONNECTION => {
                    self.plugin.push(piece);
                    while let Some(message) = self.plugin.next()? {
                        self.asked(plugin, &message, out)?;
                    }
                }
                RUNTIME_CONNECTION => {
                    self.runtime.push(piece);
                    while let Some(message) = self.runtime.next()? {
                        self.answered(&message)?;
                    }
                }
                // Connections of a later version.
                _ => {}
            }
        }
        Ok(())
    }

    fn answered(&mut self, message: &Message) -> Result<(), Error> {
        if message.kind != RESPONSE || message.stream != REGISTER_STREAM || self.registered {
            return Ok(());
        }
        let response = Response::decode(message.payload.clone()).map_err(Error::Answer)?;
        match response.status {
            Some(status) if status.code != 0 => {
                Err(Error::Refused { code: status.code, message: status.message })
            }
            _ => {
                self.registered = true;
                Ok(())
            }
        }
    }

    fn asked(&mut self, plugin: &dyn Plugin, message: &Message, out: &mut Vec<u8>) -> Result<(), Error> {
        let stream = message.stream;
        let refuse = |text: &str| Err((code::INVALID_ARGUMENT, text.to_owned()));
        let answer = match message.kind {
            REQUEST if stream.is_multiple_of(2) => {
                refuse("StreamID must be odd for client initiated streams")
            }
            REQUEST if stream <= self.last_stream => refuse("StreamID cannot be re-used and must increment"),
            REQUEST => {
                self.last_stream = stream;
                match Request::decode(message.payload.clone()) {
                    Ok(request) => self.timed(plugin, &request)?,
                    Err(error) => Err((code::INVALID_ARGUMENT, format!("unmarshal request error: {error}"))),
                }
            }
            DATA => refuse("StreamID is no longer active"),
            // Kinds of a later version, as the protocol wants it.
            _ => return Ok(()),
        };
        ttrpc::respond(out, PLUGIN_CONNECTION, stream, answer);
        Ok(())
    }

    fn timed(&mut self, plugin: &dyn Plugin, request: &Request) -> Result<Answer, Error> {
        let begin = Instant::now();
        let answer = self.serve(plugin, request)?;
        let (took, patience) = (begin.elapsed(), request.timeout_nano);
        if patience > 0 && took.as_nanos() > u128::from(patience.unsigned_abs()) {
            tracing::error!(
                method = request.method,
                took_ms = took.as_millis(),
                patience_ms = patience / 1_000_000,
                "answered the runtime too late: it has gone on without the answer"
            );
        }
        Ok(answer)
    }

    fn serve(&mut self, plugin: &dyn Plugin, request: &Request) -> Result<Answer, Error> {
        if request.service != PLUGIN_SERVICE {
            return Ok(Err((code::UNIMPLEMENTED, format!("service {}", request.service))));
        }
        let payload = request.payload.as_slice();
        Ok(match request.method.as_str() {
            "Configure" => decoded(payload, |configure: api::ConfigureRequest| {
                self.peer = Some(Peer {
                    runtime: configure.runtime_name,
                    version: configure.runtime_version,
                    request_timeout: Duration::from_millis(configure.request_timeout.try_into().unwrap_or(0)),
                });
                Ok(api::ConfigureResponse { events: plugin.events().mask() })
            }),
            "Synchronize" => {
                self.snapshot_size += payload.len();
                if self.snapshot_size > LONGEST_SNAPSHOT {
                    return Err(Error::Snapshot { longest: LONGEST_SNAPSHOT });
                }
                decoded(payload, |part: api::SynchronizeRequest| Ok(self.synchronize(plugin, part)))
            }
            "CreateContainer" => decoded(payload, |create: api::CreateContainerRequest| {
                let (pod, container) = (create.pod.unwrap_or_default(), create.container.unwrap_or_default());
                let adjust = plugin.create_container(pod, container)?;
                Ok(api::CreateContainerResponse { adjust: Some(adjust) })
            }),
            "StopContainer" => decoded(payload, |stop: api::StopContainerRequest| {
                plugin.stop_container(stop.pod.unwrap_or_default(), stop.container.unwrap_or_default());
                Ok(api::StopContainerResponse {})
            }),
            "RemoveContainer" => decoded(payload, |remove: api::RemoveContainerRequest| {
                plugin.remove_container(remove.pod.unwrap_or_default(), remove.container.unwrap_or_default());
                Ok(api::RemoveContainerResponse {})
            }),
            "StopPodSandbox" => decoded(payload, |stop: api::StopPodSandboxRequest| {
                plugin.stop_pod(stop.pod.unwrap_or_default());
                Ok(api::StopPodSandboxResponse {})
            }),
            "RemovePodSandbox" => decoded(payload, |remove: api::RemovePodSandboxRequest| {
                plugin.remove_pod(remove.pod.unwrap_or_default());
                Ok(api::RemovePodSandboxResponse {})
            }),
            "StateChange" => decoded(payload, |change: api::StateChangeEvent| {
                let (event, pod) = (change.event(), change.pod.unwrap_or_default());
                match event {
                    api::Event::StopPodSandbox => plugin.stop_pod(pod),
                    api::Event::RemovePodSandbox => plugin.remove_pod(pod),
                    api::Event::RemoveContainer => {
                        plugin.remove_container(pod, change.container.unwrap_or_default());
                    }
                    _ => {}
                }
                Ok(api::Empty {})
            }),
            "Shutdown" => {
                plugin.shutdown();
                Ok(Vec::new())
            }
            method => Err((code::UNIMPLEMENTED, format!("method {method}"))),
        })
    }

    fn synchronize(
        &mut self,
        plugin: &dyn Plugin,
        part: api::SynchronizeRequest,
    ) -> api::SynchronizeResponse {
        self.snapshot.pods.extend(part.pods);
        self.snapshot.containers.extend(part.containers);
        if !part.more {
            let whole = std::mem::take(&mut self.snapshot);
            self.snapshot_size = 0;
            plugin.synchronize(whole.pods, whole.containers);
            self.synchronized = true;
        }
        api::SynchronizeResponse { more: part.more }
    }
}

/// A message of the method, or a code of gRPC and words.
type Answer = Result<Vec<u8>, (i32, String)>;

fn decoded<Q, A>(payload: &[u8], serve: impl FnOnce(Q) -> Result<A, String>) -> Answer
where
    Q: prost::Message + Default,
    A: prost::Message,
{
    let request = Q::decode(payload)
        .map_err(|error| (code::INVALID_ARGUMENT, format!("unmarshal payload: {error}")))?;
    serve(request).map(|answer| answer.encode_to_vec()).map_err(|text| (code::FAILED_PRECONDITION, text))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::*;
    use crate::Events;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl Plugin for Recorder {
        fn events(&self) -> Events {
            Events::of(&[api::Event::CreateContainer, api::Event::StopPodSandbox])
        }

        fn synchronize(&self, pods: Vec<api::PodSandbox>, containers: Vec<api::Container>) {
            self.0.lock().unwrap().push(format!("{} pods, {} containers", pods.len(), containers.len()));
        }

        fn create_container(
            &self,
            pod: api::PodSandbox,
            container: api::Container,
        ) -> Result<api::ContainerAdjustment, String> {
            self.0.lock().unwrap().push(format!("create {} of {}", container.name, pod.uid));
            if container.name == "bad" {
                Err("not this one".to_owned())
            } else {
                Ok(api::ContainerAdjustment::default())
            }
        }

        fn stop_pod(&self, pod: api::PodSandbox) {
            self.0.lock().unwrap().push(format!("stop {}", pod.uid));
        }
    }

    fn request(service: &str, method: &str, payload: &impl prost::Message) -> Vec<u8> {
        let request = Request {
            service: service.to_owned(),
            method: method.to_owned(),
            payload: payload.encode_to_vec(),
            ..Request::default()
        };
        request.encode_to_vec()
    }

    fn pod(uid: &str) -> api::PodSandbox {
        api::PodSandbox { uid: uid.to_owned(), ..Default::default() }
    }

    /// Everything that a runtime says from the registration to the end of a pod.
    fn transcript() -> Vec<u8> {
        let mut bytes = Vec::new();
        ttrpc::respond(&mut bytes, RUNTIME_CONNECTION, 1, Ok(Vec::new()));
        // A connection that nobody here knows.
        ttrpc::write(&mut bytes, 7, 1, REQUEST, b"?");
        let configure = api::ConfigureRequest {
            runtime_name: "containerd".into(),
            runtime_version: "v2".into(),
            ..Default::default()
        };
        let part = |uid: &str, more| api::SynchronizeRequest {
            pods: vec![pod(uid)],
            containers: vec![api::Container::default()],
            more,
        };
        let create = |name: &str| api::CreateContainerRequest {
            pod: Some(pod("a")),
            container: Some(api::Container { name: name.to_owned(), ..Default::default() }),
        };
        let stop = api::StateChangeEvent {
            event: api::Event::StopPodSandbox as i32,
            pod: Some(pod("a")),
            container: None,
        };
        let requests = [
            request(PLUGIN_SERVICE, "Configure", &configure),
            request(PLUGIN_SERVICE, "Synchronize", &part("a", true)),
            request(PLUGIN_SERVICE, "Synchronize", &part("b", false)),
            request(PLUGIN_SERVICE, "CreateContainer", &create("main")),
            request(PLUGIN_SERVICE, "CreateContainer", &create("bad")),
            request(PLUGIN_SERVICE, "StateChange", &stop),
            request(PLUGIN_SERVICE, "Dance", &stop),
            request("x.Y", "CreateContainer", &stop),
            b"\xff".to_vec(),
        ];
        for (stream, request) in (1_u32..).step_by(2).zip(&requests) {
            ttrpc::write(&mut bytes, PLUGIN_CONNECTION, stream, REQUEST, request);
        }
        for (stream, kind) in [(4, REQUEST), (3, REQUEST), (5, DATA), (5, 9), (5, RESPONSE)] {
            ttrpc::write(&mut bytes, PLUGIN_CONNECTION, stream, kind, &requests[3]);
        }
        bytes
    }

    fn exchange(bytes: &[u8], sizes: &[usize]) -> (Vec<String>, Vec<u8>, Option<Peer>) {
        let plugin = Recorder::default();
        let (mut session, _) = Session::start("gantry", "10");
        let mut out = Vec::new();
        let mut rest = bytes;
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            session.receive(&plugin, piece, &mut out).unwrap();
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        assert!(session.is_whole());
        (plugin.0.into_inner().unwrap(), out, session.connected().cloned())
    }

    /// The statuses of the responses in what was sent.
    fn statuses(mut out: &[u8]) -> Vec<(u32, i32, String)> {
        let (mut frames, mut messages) = (Demultiplexer::default(), Assembler::default());
        let mut statuses = Vec::new();
        while let Some((connection, piece)) = frames.next(&mut out).unwrap() {
            assert_eq!(connection, PLUGIN_CONNECTION);
            messages.push(piece);
            while let Some(message) = messages.next().unwrap() {
                assert_eq!(message.kind, RESPONSE);
                let status = Response::decode(message.payload).unwrap().status.unwrap_or_default();
                statuses.push((message.stream, status.code, status.message));
            }
        }
        statuses
    }

    #[test]
    fn each_request_is_answered_in_its_stream_and_bad_ones_with_a_code() {
        let (asked, out, peer) = exchange(&transcript(), &[usize::MAX]);
        assert_eq!(asked, ["2 pods, 2 containers", "create main of a", "create bad of a", "stop a"]);
        assert_eq!(peer.map(|peer| (peer.runtime, peer.version)), Some(("containerd".into(), "v2".into())));
        let statuses = statuses(&out);
        let expected = [
            (9, 9, "not this one"),
            (13, 12, "method Dance"),
            (15, 12, "service x.Y"),
            (17, 3, "unmarshal request error: "),
            (4, 3, "StreamID must be odd for client initiated streams"),
            (3, 3, "StreamID cannot be re-used and must increment"),
            (5, 3, "StreamID is no longer active"),
        ];
        let refused: Vec<_> = statuses.iter().filter(|(_, code, _)| *code != 0).collect();
        assert_eq!(refused.len(), expected.len(), "{refused:?}");
        for ((stream, code, text), expected) in refused.into_iter().zip(expected) {
            assert_eq!((*stream, *code), (expected.0, expected.1));
            assert!(text.starts_with(expected.2), "{text}");
        }
        assert_eq!(statuses.len(), 12);
    }

    #[test]
    fn the_runtime_is_connected_once_it_has_said_all() {
        let bytes = transcript();
        let (mut session, first) = Session::start("gantry", "10");
        assert_eq!(first[..8], [0, 0, 0, 2, 0, 0, 0, u8::try_from(first.len() - 8).unwrap()]);
        let plugin = Recorder::default();
        let mut awaited = Vec::new();
        for byte in bytes {
            if awaited.last() != Some(&session.awaited()) && session.connected().is_none() {
                awaited.push(session.awaited());
            }
            session.receive(&plugin, &[byte], &mut Vec::new()).unwrap();
        }
        assert_eq!(awaited, ["answer to RegisterPlugin", "Configure", "Synchronize"]);
        assert!(session.connected().is_some());
    }

    #[test]
    fn a_refused_registration_and_a_snapshot_without_end_end_the_connection() {
        let plugin = Recorder::default();
        let (mut session, _) = Session::start("gantry", "10");
        let mut bytes = Vec::new();
        ttrpc::respond(&mut bytes, RUNTIME_CONNECTION, 1, Err((2, "plugin disabled".into())));
        let error = session.receive(&plugin, &bytes, &mut Vec::new()).unwrap_err().to_string();
        assert_eq!(error, "the runtime refuses the plugin: plugin disabled (code 2)");

        let (mut session, _) = Session::start("gantry", "10");
        let name = "x".repeat(3 << 20);
        let large = api::SynchronizeRequest {
            pods: vec![api::PodSandbox { name, ..Default::default() }],
            containers: Vec::new(),
            more: true,
        };
        let payload = request(PLUGIN_SERVICE, "Synchronize", &large);
        let ended = (1_u32..100).step_by(2).find_map(|stream| {
            let mut bytes = Vec::new();
            ttrpc::write(&mut bytes, PLUGIN_CONNECTION, stream, REQUEST, &payload);
            session.receive(&plugin, &bytes, &mut Vec::new()).err()
        });
        assert_eq!(ended.unwrap().to_string(), "Synchronize has more than 67108864 bytes");
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_asks_the_same_and_sends_the_same(
            sizes in proptest::collection::vec(1_usize..200, 1..20),
        ) {
            let bytes = transcript();
            prop_assert_eq!(exchange(&bytes, &sizes), exchange(&bytes, &[usize::MAX]));
        }
    }
}
