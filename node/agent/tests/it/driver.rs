//! The driver and the CDI files under a running agent.

use std::fs;
use std::sync::{Arc, Mutex};

use gantry_agent::{IdentityMode, Options};
use gantry_cdi::Cache;
use gantry_driver::install_simulated;
use gantry_gpu::{DriverInfo, Error, EventSink, GpuBackend, GpuSample, Inventory, SimGpus, Subscription};

use crate::kubelet::Kubelet;
use crate::{Node, Running, start};

/// GPUs whose driver can be replaced.
#[derive(Debug)]
struct Upgradable {
    gpus: Arc<SimGpus>,
    version: Mutex<String>,
}

impl GpuBackend for Upgradable {
    fn driver(&self) -> Result<DriverInfo, Error> {
        Ok(DriverInfo { driver_version: self.version.lock().unwrap().clone(), cuda_version: (12, 4) })
    }

    fn inventory(&self) -> Result<Inventory, Error> {
        self.gpus.inventory()
    }

    fn sample(&self) -> Result<Vec<GpuSample>, Error> {
        self.gpus.sample()
    }

    fn subscribe(&self, sink: EventSink) -> Subscription {
        self.gpus.subscribe(sink)
    }

    fn machine(&self) -> Option<String> {
        self.gpus.machine()
    }
}

fn options(node: &Node) -> (Options, Arc<Upgradable>) {
    let backend = Arc::new(Upgradable { gpus: node.gpus.clone(), version: Mutex::new("550.54.15".into()) });
    (Options { backend: backend.clone(), ..node.options(IdentityMode::Kubelet) }, backend)
}

/// Waits for a line of log that contains a text.
async fn logged(agent: &Running, text: &str) {
    let mut changed = agent.handle.logs_changed();
    while !agent.log().iter().any(|line| line.contains(text)) {
        changed.changed().await.unwrap();
    }
}

fn describes(node: &Node, version: &str) -> bool {
    let cache = Cache::load(&[node.root.path().join("cdi")]);
    let names: Vec<_> = cache.devices().cloned().collect();
    let edits = cache.edits(&names[..1.min(names.len())]).unwrap();
    edits.mounts.iter().any(|mount| mount.container_path.ends_with(&format!("libcuda.so.{version}")))
}

#[tokio::test]
async fn no_device_is_offered_before_the_driver_is_there() {
    let node = Node::new("t4", 2);
    fs::remove_dir_all(node.root.path().join("driver")).unwrap();
    let _kubelet = Kubelet::start(&node.plugins());
    let agent = start(options(&node).0);
    logged(&agent, "Could not bring the CDI files up to date: no NVIDIA driver below").await;
    assert_eq!(*agent.handle.registrations().borrow(), 0);
    assert!(agent.handle.machine().is_none() && agent.handle.cdi_error().is_some());
    install_simulated(&node.root.path().join("driver"), "550.54.15").unwrap();
    agent.registered(1).await;
    assert!(describes(&node, "550.54.15"));
    assert!(agent.handle.machine().is_some() && agent.handle.cdi_error().is_none());
    agent.stop().await;
}

#[tokio::test]
async fn a_driver_that_is_upgraded_under_running_pods_is_described_anew() {
    let node = Node::new("t4", 2);
    let _kubelet = Kubelet::start(&node.plugins());
    let (options, backend) = options(&node);
    let agent = start(options);
    agent.registered(1).await;
    assert!(describes(&node, "550.54.15"));
    // As an installer does: the new libraries come beside the old ones, then the module is loaded, then the old ones go.
    "570.86.15".clone_into(&mut backend.version.lock().unwrap());
    install_simulated(&node.root.path().join("driver"), "570.86.15").unwrap();
    logged(&agent, "driver 570.86.15").await;
    assert!(describes(&node, "570.86.15") && !describes(&node, "550.54.15"));
    assert_eq!(agent.handle.machine().unwrap().driver.version.as_str(), "570.86.15");
    assert_eq!(*agent.handle.registrations().borrow(), 1, "no device went away");
    agent.stop().await;
}

#[tokio::test]
async fn cdi_files_that_somebody_removes_come_back() {
    let node = Node::new("t4", 1);
    let _kubelet = Kubelet::start(&node.plugins());
    let agent = start(options(&node).0);
    agent.registered(1).await;
    let file = node.root.path().join("cdi/k8s.device-plugin.nvidia.com-gpu.json");
    fs::remove_file(&file).unwrap();
    let count = || agent.log().iter().filter(|line| line.starts_with("CDI files in ")).count();
    let mut changed = agent.handle.logs_changed();
    while count() < 2 {
        changed.changed().await.unwrap();
    }
    assert!(file.exists());
    agent.stop().await;
}

#[tokio::test]
async fn a_cdi_folder_that_cannot_be_written_holds_devices_back_and_is_tried_again() {
    let node = Node::new("t4", 1);
    let _kubelet = Kubelet::start(&node.plugins());
    fs::write(node.root.path().join("cdi"), "").unwrap();
    let agent = start(options(&node).0);
    logged(&agent, "Could not bring the CDI files up to date: create").await;
    assert_eq!(*agent.handle.registrations().borrow(), 0);
    fs::remove_file(node.root.path().join("cdi")).unwrap();
    agent.registered(1).await;
    assert!(describes(&node, "550.54.15"));
    agent.stop().await;
}
