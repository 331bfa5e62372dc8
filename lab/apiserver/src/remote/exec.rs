//! `exec`, `attach`, `portforward` and `log` as HTTP: from a request to an upgraded connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use http::header::{
    CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::request::Parts;
use http::{Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::Map;
use tokio::sync::mpsc;

use super::streams::{ErrorStyle, Input, Output, PENDING, run_connection, run_session};
use super::{
    AttachRequest, Connection, ExecRequest, LogRequest, NodeBackend, NodeError, PodTarget,
    PortForwardRequest, Session, Streams, spdy, websocket,
};
use crate::Status;
use crate::http::{Body, full, response, stream};

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";
const V3: &str = "v3.channel.k8s.io";
const V2: &str = "v2.channel.k8s.io";
const V1: &str = "channel.k8s.io";

const SPDY: &str = "SPDY/3.1";
/// Where SPDY clients offer subprotocols.
const SPDY_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// How many ports one connection may forward: two channels each, named by a byte.
const MAX_PORTS: usize = 128;

impl From<NodeError> for Status {
    fn from(error: NodeError) -> Self {
        let (code, reason) = match &error {
            NodeError::NoPod { .. } => (404, "NotFound"),
            NodeError::Waiting { .. } | NodeError::NoPrevious { .. } => (400, "BadRequest"),
            NodeError::Unreachable { .. } | NodeError::NotRunning { .. } | NodeError::Refused { .. } => {
                return Self::internal(error);
            }
            NodeError::Unsupported { .. } => (501, "NotImplemented"),
        };
        Self { code, reason, message: error.to_string(), details: Map::new() }
    }
}

/// `GET …/log`: the log as a body that grows while it is sent.
pub(crate) async fn log_response(
    backend: &dyn NodeBackend,
    request: LogRequest,
) -> Result<Response<Body>, Status> {
    let log = backend.logs(request).await?;
    Ok(response(200, "text/plain", stream(log)))
}

/// `…/exec`: starts the process, then answers 101 and carries its streams in the background.
pub(crate) async fn exec_response(
    parts: &mut Parts,
    backend: &dyn NodeBackend,
    request: ExecRequest,
) -> Result<Response<Body>, Status> {
    let upgrade = Upgrade::of(parts, SESSION)?;
    let streams = request.streams;
    let session = backend.exec(request).await?;
    Ok(upgrade.serve_session(session, streams))
}

/// `…/attach`: as [`exec_response`], with the container's main process.
pub(crate) async fn attach_response(
    parts: &mut Parts,
    backend: &dyn NodeBackend,
    request: AttachRequest,
) -> Result<Response<Body>, Status> {
    let upgrade = Upgrade::of(parts, SESSION)?;
    let streams = request.streams;
    let session = backend.attach(request).await?;
    Ok(upgrade.serve_session(session, streams))
}

/// `…/portforward`. Over a WebSocket the query `ports=80,443` names the ports and all are connected before the
/// answer; over SPDY the client names them as it connects.
pub(crate) async fn port_forward_response(
    parts: &mut Parts,
    backend: Arc<dyn NodeBackend>,
    target: PodTarget,
    ports: &[u16],
) -> Result<Response<Body>, Status> {
    let upgrade = Upgrade::of(parts, PORT_FORWARD)?;
    if let Wire::Spdy = upgrade.wire {
        return Ok(upgrade.serve(move |io| spdy::forward(io, backend, target)));
    }
    if ports.is_empty() || ports.len() > MAX_PORTS {
        return Err(Status::bad_request(format!("ports: {} given, must be 1 to {MAX_PORTS}", ports.len())));
    }
    let mut connections = Vec::new();
    for port in ports {
        let request = PortForwardRequest { target: target.clone(), port: *port };
        connections.push((*port, backend.port_forward(request).await?));
    }
    Ok(upgrade.serve(move |io| async move {
        let (input, inputs) = mpsc::channel(PENDING);
        let (output, outputs) = mpsc::channel(PENDING);
        tokio::join!(websocket::drive(io, false, input, outputs), run_ports(connections, inputs, output));
    }))
}

/// The subprotocols of a request, best first, over each wire.
#[derive(Debug, Clone, Copy)]
struct Protocols {
    websocket: &'static [&'static str],
    spdy: &'static [&'static str],
}

const SESSION: Protocols = Protocols { websocket: &[V5, V4, V1], spdy: &[V4, V3, V2] };
const PORT_FORWARD: Protocols = Protocols { websocket: &[V4], spdy: &["portforward.k8s.io"] };

/// What the connection is going to speak.
#[derive(Debug)]
enum Wire {
    WebSocket { accept: String },
    Spdy,
}

/// A connection that is about to speak another protocol.
struct Upgrade {
    pending: OnUpgrade,
    wire: Wire,
    protocol: &'static str,
}

impl Upgrade {
    /// Checks the handshake; refuses with what the client can do about it.
    fn of(parts: &mut Parts, protocols: Protocols) -> Result<Self, Status> {
        let headers = &parts.headers;
        let (wire, supported, offered) = if websocket::is_requested(headers) {
            let accept = websocket::accept(headers).map_err(Status::bad_request)?;
            (Wire::WebSocket { accept }, protocols.websocket, SEC_WEBSOCKET_PROTOCOL)
        } else if websocket::has_token(headers, UPGRADE, SPDY) {
            (Wire::Spdy, protocols.spdy, SPDY_PROTOCOL)
        } else {
            return Err(Status::bad_request("Upgrade request required: over WebSocket or SPDY/3.1"));
        };
        let protocol = websocket::choose_protocol(headers, offered, supported).ok_or_else(|| {
            Status::bad_request(format!("unable to negotiate protocol: server supports {supported:?}"))
        })?;
        let pending = parts.extensions.remove::<OnUpgrade>().ok_or_else(|| {
            Status::bad_request("the connection cannot be upgraded: connect over the network, not in process")
        })?;
        Ok(Self { pending, wire, protocol })
    }

    fn serve_session(self, session: Session, streams: Streams) -> Response<Body> {
        let protocol = self.protocol;
        let is_spdy = matches!(self.wire, Wire::Spdy);
        let style = if matches!(protocol, V5 | V4) { ErrorStyle::Status } else { ErrorStyle::Text };
        self.serve(move |io| async move {
            let (input, inputs) = mpsc::channel(PENDING);
            let (output, outputs) = mpsc::channel(PENDING);
            let running = run_session(session, streams, style, inputs, output);
            if is_spdy {
                tokio::join!(spdy::drive(io, streams, input, outputs), running);
            } else {
                tokio::join!(websocket::drive(io, protocol == V5, input, outputs), running);
            }
        })
    }

    /// Answers 101; `run` gets the connection once it is handed over.
    fn serve<F>(self, run: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static) -> Response<Body>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Self { pending, wire, protocol } = self;
        tokio::spawn(async move {
            match pending.await {
                Ok(upgraded) => run(TokioIo::new(upgraded)).await,
                Err(error) => tracing::debug!(%error, "a connection was not upgraded"),
            }
        });
        let mut response = Response::new(full(Bytes::new()));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        match wire {
            Wire::WebSocket { accept } => {
                let accept = HeaderValue::from_str(&accept).expect("invariant: base64 is a header value");
                headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
                headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
                headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
            }
            Wire::Spdy => {
                headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
                headers.insert(SPDY_PROTOCOL, HeaderValue::from_static(protocol));
            }
        }
        response
    }
}

/// Forwards ports: of the i-th, channel 2i carries data and 2i+1 errors. Both begin with the port number, two
/// bytes in little-endian order (`k8s.io/kubelet/pkg/cri/streaming/portforward`).
async fn run_ports(
    connections: Vec<(u16, Connection)>,
    mut inputs: mpsc::Receiver<Input>,
    outputs: mpsc::Sender<Output>,
) {
    let mut senders: BTreeMap<u8, mpsc::Sender<Bytes>> = BTreeMap::new();
    let mut running = tokio::task::JoinSet::new();
    for (channel, (port, connection)) in (0..=u8::MAX).step_by(2).zip(connections) {
        let hello = Bytes::copy_from_slice(&port.to_le_bytes());
        for channel in [channel, channel + 1] {
            let _ = outputs.send(Output::Data(channel, hello.clone())).await;
        }
        let (sender, receiver) = mpsc::channel(PENDING);
        senders.insert(channel, sender);
        let wrap = move |data: Option<Bytes>| {
            data.map_or(Output::Closed(channel), |data| Output::Data(channel, data))
        };
        running.spawn(run_connection(connection, receiver, outputs.clone(), wrap));
    }
    drop(outputs);
    let feeding = async {
        while let Some(input) = inputs.recv().await {
            match input {
                Input::Data(channel, data) if data.has_remaining() => {
                    if let Some(sender) = senders.get(&channel)
                        && sender.send(data).await.is_err()
                    {
                        senders.remove(&channel);
                    }
                }
                Input::Data(..) => {}
                Input::Closed(channel) => drop(senders.remove(&channel)),
            }
        }
    };
    tokio::select! {
        () = feeding => {}
        () = async { while running.join_next().await.is_some() {} } => {}
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::future::BoxFuture;
    use futures::stream::BoxStream;
    use http::Request;
    use hyper::body::Incoming;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::http::status_response;
    use crate::remote::spdy::tests::{Opener, client_data};
    use crate::remote::websocket::tests::masked;
    use crate::remote::{Exit, streams};

    /// Answers `cat`: what comes in goes out; the end of input is the end, with code 3.
    #[derive(Debug)]
    struct Cat;

    impl NodeBackend for Cat {
        fn logs(&self, request: LogRequest) -> BoxFuture<'_, Result<BoxStream<'static, Bytes>, NodeError>> {
            let pod = request.target.pod;
            let error = NodeError::Waiting { container: "c".into(), pod, reason: "ContainerCreating".into() };
            Box::pin(async { Err(error) })
        }

        fn exec(&self, _: ExecRequest) -> BoxFuture<'_, Result<Session, NodeError>> {
            let (session, mut process) = streams::session();
            tokio::spawn(async move {
                while let Some(data) = process.stdin.recv().await {
                    process.stdout.send(data).await.unwrap();
                }
                drop((process.stdout, process.stderr));
                process.exit.send(Exit::Code(3)).unwrap();
            });
            Box::pin(async { Ok(session) })
        }

        fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Session, NodeError>> {
            Box::pin(async { Err(NodeError::NotRunning { container: request.target.container }) })
        }

        fn port_forward(&self, request: PortForwardRequest) -> BoxFuture<'_, Result<Connection, NodeError>> {
            let (to_pod, mut received) = mpsc::channel::<Bytes>(4);
            let (send, from_pod) = mpsc::channel(4);
            tokio::spawn(async move {
                while let Some(data) = received.recv().await {
                    send.send([request.port.to_string().as_bytes(), &data].concat().into()).await.unwrap();
                }
            });
            Box::pin(async { Ok(Connection { to_pod, from_pod }) })
        }
    }

    fn target() -> PodTarget {
        PodTarget {
            node: "n".into(),
            namespace: "default".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: "c".into(),
        }
    }

    async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let (mut parts, _) = request.into_parts();
        let streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };
        let result = match parts.uri.path() {
            "/exec" => {
                let request = ExecRequest { target: target(), command: vec!["cat".into()], streams };
                exec_response(&mut parts, &Cat, request).await
            }
            "/attach" => attach_response(&mut parts, &Cat, AttachRequest { target: target(), streams }).await,
            _ => port_forward_response(&mut parts, Arc::new(Cat), target(), &[80, 443]).await,
        };
        Ok(result.unwrap_or_else(|status| status_response(&status)))
    }

    /// Sends a WebSocket handshake; returns the connection and the head of the answer.
    async fn shake_hands(path: &str, protocol: &str) -> (TcpStream, String) {
        ask(&format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        ))
        .await
    }

    async fn ask(head: &str) -> (TcpStream, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper::service::service_fn(answer);
            let builder = hyper::server::conn::http1::Builder::new();
            builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await.unwrap();
        });
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        (stream, String::from_utf8(answer).unwrap())
    }

    /// An unmasked frame that is not long.
    async fn frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
        let opcode = stream.read_u8().await.unwrap() & 0x0f;
        let length = match stream.read_u8().await.unwrap() {
            126 => stream.read_u16().await.unwrap().into(),
            short => usize::from(short),
        };
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.unwrap();
        (opcode, payload)
    }

    #[tokio::test]
    async fn exec_over_a_websocket_carries_streams_pings_and_the_exit_code() {
        let (mut stream, head) = shake_hands("/exec", "v5.channel.k8s.io, v4.channel.k8s.io").await;
        let head = head.to_lowercase();
        assert!(head.starts_with("http/1.1 101"), "{head}");
        assert!(head.contains("sec-websocket-protocol: v5.channel.k8s.io"), "{head}");
        assert!(head.contains(&"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".to_lowercase()));
        stream.write_all(&masked(true, 9, b"beat")).await.unwrap();
        assert_eq!(frame(&mut stream).await, (10, b"beat".to_vec()));
        stream.write_all(&masked(true, 2, b"\0hello")).await.unwrap();
        assert_eq!(frame(&mut stream).await, (2, b"\x01hello".to_vec()));
        stream.write_all(&masked(true, 2, &[255, 0])).await.unwrap();
        let (_, report) = frame(&mut stream).await;
        assert_eq!(report[0], 3);
        let status: Value = serde_json::from_slice(&report[1..]).unwrap();
        assert_eq!(status["details"]["causes"], json!([{"reason": "ExitCode", "message": "3"}]));
        assert_eq!(frame(&mut stream).await, (8, 1000_u16.to_be_bytes().to_vec()));
    }

    #[tokio::test]
    async fn ports_are_told_apart_by_channel() {
        let (mut stream, _) = shake_hands("/portforward", "v4.channel.k8s.io").await;
        for (channel, port) in [(0, 80_u16), (1, 80), (2, 443), (3, 443)] {
            let hello = [vec![channel], port.to_le_bytes().to_vec()].concat();
            assert_eq!(frame(&mut stream).await, (2, hello));
        }
        stream.write_all(&masked(true, 2, b"\x02x")).await.unwrap();
        assert_eq!(frame(&mut stream).await, (2, b"\x02443x".to_vec()));
    }

    #[tokio::test]
    async fn a_refused_session_is_a_status_and_no_upgrade() {
        let (mut stream, head) = shake_hands("/attach", "v5.channel.k8s.io").await;
        assert!(head.starts_with("HTTP/1.1 500"), "{head}");
        let mut body = vec![0; 4096];
        let n = stream.read(&mut body).await.unwrap();
        let status: Value = serde_json::from_slice(&body[..n]).unwrap();
        assert_eq!(status["message"], "Internal error occurred: container not found (\"c\")");
        let (_, head) = shake_hands("/exec", "v9.channel.k8s.io").await;
        assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    }

    #[tokio::test]
    async fn without_a_network_there_is_nothing_to_upgrade() {
        let request = Request::get("/exec")
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("Sec-WebSocket-Protocol", "v4.channel.k8s.io");
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let request = ExecRequest { target: target(), command: vec![], streams: Streams::default() };
        let status = exec_response(&mut parts, &Cat, request).await.unwrap_err();
        assert_eq!(status.code, 400);
        assert!(status.message.contains("not in process"));
    }

    #[tokio::test]
    async fn a_log_that_cannot_be_read_says_why() {
        let request = LogRequest {
            target: target(),
            follow: false,
            previous: false,
            timestamps: false,
            tail_lines: None,
            since: None,
            limit_bytes: None,
        };
        let backend: Arc<dyn NodeBackend> = Arc::new(Cat);
        let status = log_response(&*backend, request).await.unwrap_err();
        assert_eq!((status.code, status.reason), (400, "BadRequest"));
        assert_eq!(status.message, "container \"c\" in pod \"p\" is waiting to start: ContainerCreating");
    }

    /// The next SPDY frame: its first word, flags and payload.
    async fn spdy_frame(stream: &mut TcpStream) -> (u32, u8, Vec<u8>) {
        let word = stream.read_u32().await.unwrap();
        let rest = stream.read_u32().await.unwrap().to_be_bytes();
        let length = u32::from_be_bytes([0, rest[1], rest[2], rest[3]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        (word, rest[0], payload)
    }

    async fn spdy(path: &str, protocol: &str) -> (TcpStream, String) {
        ask(&format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: Upgrade\r\n\
             Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: {protocol}\r\n\r\n"
        ))
        .await
    }

    #[tokio::test]
    async fn exec_over_spdy_carries_streams_pings_and_the_exit_code() {
        let (mut stream, head) = spdy("/exec", "v4.channel.k8s.io").await;
        let head = head.to_lowercase();
        assert!(head.starts_with("http/1.1 101"), "{head}");
        assert!(head.contains("x-stream-protocol-version: v4.channel.k8s.io"), "{head}");
        let mut opener = Opener::new();
        for (id, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")] {
            stream.write_all(&opener.open(id, &[("streamType", kind)])).await.unwrap();
            let (word, _, payload) = spdy_frame(&mut stream).await;
            assert_eq!((word, &payload[..4]), (0x8003_0002, &id.to_be_bytes()[..]));
        }
        stream.write_all(b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x01").await.unwrap();
        assert_eq!(spdy_frame(&mut stream).await, (0x8003_0006, 0, vec![0, 0, 0, 1]));
        stream.write_all(&client_data(3, b"hello", false)).await.unwrap();
        assert_eq!(spdy_frame(&mut stream).await, (5, 0, b"hello".to_vec()));
        stream.write_all(&client_data(3, b"", true)).await.unwrap();
        let (word, _, report) = spdy_frame(&mut stream).await;
        let status: Value = serde_json::from_slice(&report).unwrap();
        assert_eq!((word, &status["reason"]), (1, &json!("NonZeroExitCode")));
        for id in [5, 7, 1] {
            assert_eq!(spdy_frame(&mut stream).await, (id, 1, vec![]));
        }
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn every_connection_of_a_port_forward_has_two_streams() {
        let (mut stream, _) = spdy("/portforward", "portforward.k8s.io").await;
        let mut opener = Opener::new();
        for (id, kind, port, request) in [
            (1, "error", "80", "0"),
            (3, "error", "443", "1"),
            (5, "data", "443", "1"),
            (7, "data", "80", "0"),
        ] {
            let headers = [("streamtype", kind), ("port", port), ("requestID", request)];
            stream.write_all(&opener.open(id, &headers)).await.unwrap();
            spdy_frame(&mut stream).await;
        }
        stream.write_all(&client_data(5, b"a", true)).await.unwrap();
        assert_eq!(spdy_frame(&mut stream).await, (5, 0, b"443a".to_vec()));
        assert_eq!(spdy_frame(&mut stream).await, (5, 1, vec![]));
        assert_eq!(spdy_frame(&mut stream).await, (3, 1, vec![]));
        stream.write_all(&client_data(7, b"b", false)).await.unwrap();
        assert_eq!(spdy_frame(&mut stream).await, (7, 0, b"80b".to_vec()));
    }
}
