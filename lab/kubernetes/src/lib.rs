//! Real Kubernetes on one machine, for tests: nothing of it is simulated but the GPUs.
//!
//! ```text
//!   go/v1.37/, go/v1.34/ ──go build──▶ ~/.cache/gantry/kubernetes/bin     one program of many names, runc, shim, plugins
//!                                              │
//!   gantry-kubernetes up ──▶ supervisor ──┬─▶ control (pid 1 = `init`): etcd, kube-apiserver, kube-controller-manager, …
//!      cluster.json, kubeconfig ◀─────────┤      │ bridge
//!                 127.0.0.1:port ─────────┴─▶ node-1, node-2, …: containerd, kubelet, kube-proxy
//! ```
//!
//! A node is a set of namespaces: mounts, network, processes, IPC, host name, control groups. It sees the machine's files, writes to
//! none of them, and has device files, networks and control groups of its own. **The life of everything hangs on the supervisor**: when it ends,
//! however it ends, the kernel ends the nodes with all that runs and is mounted in them. What is left then, control groups and a folder, the
//! next start removes.

mod api;
mod build;
mod cache;
mod cgroups;
mod cluster;
mod control;
mod forward;
mod images;
mod init;
mod machine;
mod pki;
mod plan;
mod registry;

pub mod command;

/// Helm, built unless it is there.
///
/// # Errors
/// Where it cannot be built.
pub fn helm() -> anyhow::Result<std::path::PathBuf> {
    build::Artefacts::helm(&Cache::of_user()?)
}

pub use build::{VERSIONS, Version};
pub use cache::Cache;
pub use cluster::{CONTROL, Cluster, NodeOptions, Options, built};
pub use plan::Program;

/// Waits; nothing here runs on an asynchronous runtime.
#[expect(
    clippy::disallowed_methods,
    reason = "blocks a thread of its own, and what is waited for is in the kernel"
)]
pub(crate) fn pause(milliseconds: u64) {
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
}
