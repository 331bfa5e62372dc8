//! The agent against a kubelet double, over real Unix sockets.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod driver;
mod health;
mod kubelet;
mod labels;
mod nri;
mod plugin;
mod reports;
mod sharing;
mod shim;

use std::path::PathBuf;
use std::sync::Arc;

use gantry_agent::{
    Agent, ConfigSource, FeatureOptions, FolderWatch, Handle, HealthOptions, Identity, Options,
};
use gantry_gpu::{Profile, SimGpus};
use gantry_kit::{CancellationToken, VirtualClock};
use tempfile::TempDir;
use tokio::task::JoinHandle;

pub(crate) const GPU: &str = "nvidia.com/gpu";

/// A node's file system and GPUs, which outlive its agent and its kubelet.
pub(crate) struct Node {
    pub(crate) root: TempDir,
    pub(crate) gpus: Arc<SimGpus>,
}

pub(crate) struct Running {
    pub(crate) handle: Handle,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Node {
    pub(crate) fn new(profile: &str, count: usize) -> Self {
        let gpus = SimGpus::new(Profile::named(profile).unwrap(), count, "node-1", 7).unwrap();
        let root = tempfile::tempdir().unwrap();
        gpus.install_driver(&root.path().join("driver")).unwrap();
        std::fs::create_dir(root.path().join("plugins")).unwrap();
        Self { root, gpus }
    }

    pub(crate) fn plugins(&self) -> PathBuf {
        self.root.path().join("plugins")
    }

    pub(crate) fn options(&self, identity: impl Into<Identity>) -> Options {
        let at = |name| self.root.path().join(name);
        Options {
            node_name: "node-1".into(),
            backend: self.gpus.clone(),
            identity: identity.into(),
            nri: None,
            pod_resources: None,
            kubelet_pods: None,
            resource: GPU.into(),
            config: ConfigSource::default(),
            kubelet_dir: self.plugins(),
            cdi_dir: at("cdi"),
            driver_root: at("driver").into(),
            devices: None,
            state_dir: at("state"),
            client: None,
            clock: Arc::new(VirtualClock::new(jiff::Timestamp::UNIX_EPOCH)),
            watch: Some(FolderWatch::new().unwrap()),
            features: FeatureOptions::default(),
            health: HealthOptions::default(),
        }
    }

    pub(crate) fn start(&self, identity: impl Into<Identity>) -> Running {
        start(self.options(identity))
    }
}

pub(crate) fn start(options: Options) -> Running {
    let (agent, handle) = Agent::new(options).unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(agent.run(stop.clone()));
    Running { handle, stop, task }
}

impl Running {
    pub(crate) async fn registered(&self, times: u64) {
        self.handle.registrations().wait_for(|count| *count >= times).await.unwrap();
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// Ends at once, as a process that is killed.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.handle.logs(0).0.into_iter().map(|line| line.text).collect()
    }
}
