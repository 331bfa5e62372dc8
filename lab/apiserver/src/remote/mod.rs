//! What the API server asks of a node: logs, and streams into a running container.
//!
//! ```text
//!   kubectl exec ──WebSocket or SPDY──▶ exec_response ──ExecRequest──▶ NodeBackend (a kubelet)
//!                                            ▲                             │
//!                                            └── Session: stdin ▶ stdout, stderr, exit ◀┘
//! ```
//!
//! The server turns the wire protocol into a [`Session`] of channels and back; it knows nothing of containers.

mod exec;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod spdy;
mod streams;
mod websocket;

use std::fmt;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::exec::{attach_response, exec_response, log_response, port_forward_response};

/// The containers behind the API server: one implementation answers for all nodes.
pub trait NodeBackend: fmt::Debug + Send + Sync + 'static {
    /// A container's log, in pieces of any size. A stream that follows ends when the container does.
    fn logs(&self, request: LogRequest) -> BoxFuture<'_, Result<BoxStream<'static, Bytes>, NodeError>>;

    /// Starts a process in a running container.
    fn exec(&self, request: ExecRequest) -> BoxFuture<'_, Result<Session, NodeError>>;

    /// Joins the streams of a container's main process.
    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Session, NodeError>>;

    /// Connects to a TCP port inside a pod.
    fn port_forward(&self, request: PortForwardRequest) -> BoxFuture<'_, Result<Connection, NodeError>>;
}

/// The container that a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodTarget {
    /// `spec.nodeName`.
    pub node: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's `metadata.uid`.
    pub uid: String,
    /// A container of the pod, of any kind (init, ordinary, ephemeral). The server has chosen it if the user
    /// did not.
    pub container: String,
}

/// `GET …/pods/NAME/log` with its query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRequest {
    /// Whose log.
    pub target: PodTarget,
    /// Whether to wait for more after the last line.
    pub follow: bool,
    /// The run before the last restart instead of the present one.
    pub previous: bool,
    /// Prefix every line with its time in RFC 3339 with nanoseconds, and a blank.
    pub timestamps: bool,
    /// Only this many lines from the end.
    pub tail_lines: Option<u64>,
    /// Only lines written at this time or later.
    pub since: Option<Timestamp>,
    /// At most this many bytes, cut in the middle of a line if need be.
    pub limit_bytes: Option<u64>,
}

/// `…/pods/NAME/exec` with its query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// Where the process runs.
    pub target: PodTarget,
    /// The program and its arguments; no shell takes part.
    pub command: Vec<String>,
    /// Which streams are wanted.
    pub streams: Streams,
}

/// `…/pods/NAME/attach` with its query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachRequest {
    /// Whose main process.
    pub target: PodTarget,
    /// Which streams are wanted.
    pub streams: Streams,
}

/// `…/pods/NAME/portforward`: one connection to one port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortForwardRequest {
    /// The pod; its `container` is empty, for all containers share one network.
    pub target: PodTarget,
    /// The TCP port.
    pub port: u16,
}

/// Which of the standard streams a client wants to be connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streams {
    /// Input for the process.
    pub stdin: bool,
    /// Its standard output.
    pub stdout: bool,
    /// Its standard error; never together with `tty`, which joins both in standard output.
    pub stderr: bool,
    /// A terminal: the process may ask for its size, and `\n` becomes `\r\n`.
    pub tty: bool,
}

/// A running process as seen from outside. Dropping the session asks the process to end.
#[derive(Debug)]
pub struct Session {
    /// Standard input; dropping it is the end of input.
    pub stdin: mpsc::Sender<Bytes>,
    /// Standard output until it is closed.
    pub stdout: mpsc::Receiver<Bytes>,
    /// Standard error until it is closed.
    pub stderr: mpsc::Receiver<Bytes>,
    /// Changes of the terminal's size; the first is its initial size.
    pub resize: mpsc::Sender<TerminalSize>,
    /// How it ended. A sender that is dropped without a word counts as a failure of the node.
    pub exit: oneshot::Receiver<Exit>,
}

/// A TCP connection into a pod. Each side ends its half by dropping it.
#[derive(Debug)]
pub struct Connection {
    /// Towards the pod.
    pub to_pod: mpsc::Sender<Bytes>,
    /// From the pod.
    pub from_pod: mpsc::Receiver<Bytes>,
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Lines.
    pub height: u16,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// It could not be started or was cut off, with the runtime's explanation.
    Failed(String),
}

/// Why a node did not do what was asked. The texts are those of a kubelet, which users search for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The node is gone or does not answer.
    #[error("error dialing backend: node \"{node}\" does not answer")]
    Unreachable {
        /// `spec.nodeName`.
        node: String,
    },
    /// The node does not have the pod (yet).
    #[error("pod \"{namespace}/{pod}\" not found on the node")]
    NoPod {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        pod: String,
    },
    /// The container has not been started.
    #[error("container \"{container}\" in pod \"{pod}\" is waiting to start: {reason}")]
    Waiting {
        /// The container's name.
        container: String,
        /// The pod's name.
        pod: String,
        /// `ContainerCreating`, `ImagePullBackOff`, … as in its status.
        reason: String,
    },
    /// There is no earlier run of the container.
    #[error("previous terminated container \"{container}\" in pod \"{pod}\" not found")]
    NoPrevious {
        /// The container's name.
        container: String,
        /// The pod's name.
        pod: String,
    },
    /// No process can be started because the container does not run.
    #[error("container not found (\"{container}\")")]
    NotRunning {
        /// The container's name.
        container: String,
    },
    /// Nothing listens on the port.
    #[error("failed to connect to localhost:{port} inside the pod: connection refused")]
    Refused {
        /// The TCP port.
        port: u16,
    },
    /// The node does not offer this.
    #[error("the simulated node does not support {operation}")]
    Unsupported {
        /// As in `port-forward`.
        operation: &'static str,
    },
}
