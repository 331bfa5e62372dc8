//! The plugin's side of the Node Resource Interface: a container runtime (containerd, CRI-O) tells of each container that it
//! creates, and does with it what the answer says.
//!
//! ```text
//!   nri.sock ──bytes──▶ demultiplexer ─┬─1─▶ ttrpc messages ──requests──▶ Session ──▶ Plugin
//!            ◀─frames───────────────── │ ◀─────────────responses─────────────┘
//!                                      └─2─▶ ttrpc messages ──response to RegisterPlugin
//! ```
//!
//! The plugin dials. One socket carries two connections, one for each direction: on the first the runtime calls the plugin, on the
//! second the plugin calls the runtime. A connection begins with `RegisterPlugin`, `Configure` and `Synchronize`, which tells
//! the pods and containers that exist; from then on the runtime asks, and waits two seconds for each answer, so a plugin answers from
//! memory. **A runtime that loses its plugin, or does not get an answer in time, creates the container without it**: whoever must
//! not miss one has to stop the kubelet before that, and to look at what `Synchronize` says.
//!
//! [`Session`] holds the protocol and does no I/O: bytes go in, in pieces of any size, and bytes come out. [`Connection`] carries
//! them, and dials again for as long as it runs.
//!
//! Source of the formats: `containerd/nri` v0.12 and `containerd/ttrpc` v1.2.

mod connection;
#[cfg(feature = "double")]
pub mod double;
mod error;
mod frame;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod plugin;
mod session;
mod ttrpc;

pub use connection::{Connection, Handle, Options, State};
pub use error::Error;
pub use gantry_proto::nri::{
    CdiDevice, Container, ContainerAdjustment, ContainerState, Event, KeyValue, Mount, PodSandbox, SOCKET,
};
pub use plugin::{Events, Plugin};
pub use session::{Peer, Session};
