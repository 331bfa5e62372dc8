//! An embedded Kubernetes API server as a `tower::Service`.
//!
//! Objects are JSON values from end to end. A kind is a row in a table with optional hook functions, never a
//! handler; custom resources become rows when their definition is created. Nothing here knows any particular
//! custom resource, reads the wall clock or draws randomness: with a virtual clock and seeded ids a whole
//! cluster's history is a pure function of what its clients do.
//!
//! ```text
//!   kube::Client ──────────┐
//!   TLS / Unix listener ───┴▶ ApiService ─▶ path, user, content type ─▶ verbs ─▶ admission ─▶ store ─▶ disk
//!                                                │                        ▲                     │
//!                                                ▼                        │                     ▼
//!                                       discovery, OpenAPI            registry, hooks        watches
//! ```
//!
//! It simulates a control plane faithfully enough for kubectl, kube-rs and controllers; it is not for production.

mod admission;
mod auth;
mod controllers;
mod crd;
mod discovery;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hooks;
mod http;
mod json;
mod kubeconfig;
mod listen;
mod openapi;
mod openapi_v2;
pub mod pki;
mod printers;
mod registry;
mod remote;
mod server;
mod status;
mod store;
mod user;
mod verbs;
mod webhook;

pub use error::Error;
pub use gantry_apimachinery::{ResourceName, Status};
pub use http::{ApiService, Body};
pub use kubeconfig::remove_from_kubeconfig;
pub use remote::{
    AttachRequest, Connection, ExecRequest, Exit, LogRequest, NodeBackend, NodeError, PodTarget,
    PortForwardRequest, Session, Streams, TerminalSize,
};
pub use server::{ApiServer, Options};
pub use user::User;
pub use webhook::WebhookServices;
