//! An embedded Kubernetes API server as a tower::Service.

mod remote;

pub use remote::{
    AttachRequest, Connection, ExecRequest, Exit, LogRequest, NodeBackend, NodeError, PodTarget,
    PortForwardRequest, Session, Streams, TerminalSize,
};
