//! Resources by configuration: shares, partitions, names, and another configuration while pods run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use gantry_agent::{ConfigSource, ContainerIdentity, IdentityMode, Options};
use gantry_gpu::{DriverInfo, Error, EventSink, GpuBackend, GpuSample, Inventory, SimGpus, Subscription};
use gantry_model::{FaultKind, Health, Partition, PartitionAttributes, PodKey};
use gantry_proto::deviceplugin as api;
use tonic::Code;

use crate::kubelet::{Kubelet, Resource};
use crate::{GPU, Node, Running, start};

pub(crate) const SHARED: &str = "nvidia.com/gpu.shared";

pub(crate) const RENAMED: &str =
    "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}";

/// The cards of a simulated node, of which the first is in MIG mode with two small partitions and a larger one.
#[derive(Debug)]
struct Partitioned(Arc<SimGpus>);

impl GpuBackend for Partitioned {
    fn driver(&self) -> Result<DriverInfo, Error> {
        self.0.driver()
    }

    fn inventory(&self) -> Result<Inventory, Error> {
        let mut inventory = self.0.inventory()?;
        let profiles = ["1g.5gb", "1g.5gb", "3g.20gb"];
        let partition = |(index, profile): (u32, &str)| Partition {
            id: format!("MIG-00000000-0000-4000-8000-{index:012}").parse().unwrap(),
            index,
            profile: profile.into(),
            gpu_instance: index + 1,
            compute_instance: 0,
            start: index,
            size: 1,
            memory_mib: 4864,
            attributes: PartitionAttributes::default(),
            health: Health::Healthy,
        };
        inventory.gpus[0].partitions = Some((0..).zip(profiles).map(partition).collect());
        Ok(inventory)
    }

    fn sample(&self) -> Result<Vec<GpuSample>, Error> {
        self.0.sample()
    }

    fn subscribe(&self, sink: EventSink) -> Subscription {
        self.0.subscribe(sink)
    }

    fn machine(&self) -> Option<String> {
        self.0.machine()
    }
}

/// The folder of a node's configurations.
fn folder(node: &Node) -> PathBuf {
    node.root.path().join("configs")
}

/// Puts a configuration in place, as a mounted ConfigMap changes.
pub(crate) fn configure(node: &Node, name: &str, text: &str) {
    std::fs::create_dir_all(folder(node)).unwrap();
    let temporary = node.root.path().join("config.new");
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(temporary, folder(node).join(name)).unwrap();
}

pub(crate) fn options(node: &Node, identity: IdentityMode) -> Options {
    let config = ConfigSource { folder: Some(folder(node)), ..ConfigSource::default() };
    Options { config, ..node.options(identity) }
}

fn one(resource: &str, agent: &Running, kubelet_ids: &Resource) -> String {
    let used: BTreeSet<String> = agent.handle.in_use().into_iter().flat_map(|used| used.gpus).collect();
    let free = |id: &&String| !used.iter().any(|gpu| id.starts_with(gpu.as_str()));
    kubelet_ids.devices.keys().find(free).unwrap_or_else(|| panic!("{resource} is used up")).clone()
}

fn container(pod: &str, device: &str) -> ContainerIdentity {
    ContainerIdentity {
        pod: PodKey { namespace: "default".into(), name: pod.into(), uid: format!("uid-{pod}").into() },
        annotations: BTreeMap::new(),
        name: "main".into(),
        devices: vec![device.to_owned()],
    }
}

fn allocate(ids: &[String]) -> api::AllocateRequest {
    let devices_ids = ids.to_vec();
    api::AllocateRequest { container_requests: vec![api::ContainerAllocateRequest { devices_ids }] }
}

#[tokio::test]
async fn each_profile_is_a_resource_with_a_socket_of_its_own() {
    let node = Node::new("a100-40", 2);
    configure(&node, "default", "version: v1\nflags: {migStrategy: mixed}");
    let kubelet = Kubelet::start(&node.plugins());
    let backend = Arc::new(Partitioned(Arc::clone(&node.gpus)));
    let agent = start(Options { backend, ..options(&node, IdentityMode::Assignment) });
    let small = kubelet.devices("nvidia.com/mig-1g.5gb", 2, 2).await;
    let large = kubelet.devices("nvidia.com/mig-3g.20gb", 1, 1).await;
    let whole = kubelet.devices(GPU, 1, 1).await;
    assert_eq!(small.endpoint, "nvidia-mig-1g.5gb.sock");
    assert_eq!(large.endpoint, "nvidia-mig-3g.20gb.sock");
    assert_eq!(whole.devices.keys().collect::<Vec<_>>(), ["slot-0"]);
    assert_eq!((small.asks_preference, whole.asks_preference), (true, false));
    assert!(small.numa.len() == 2 && whole.numa.is_empty());
    let mut plugin = kubelet.plugin(&small.endpoint).await;
    let id = small.devices.keys().next().unwrap().clone();
    let answer = plugin.allocate(allocate(std::slice::from_ref(&id))).await.unwrap().into_inner();
    let names: Vec<_> = answer.container_responses[0].cdi_devices.iter().map(|d| d.name.clone()).collect();
    assert_eq!(names, [format!("k8s.device-plugin.nvidia.com/gpu={id}")]);
    let adjustment = agent.handle.create_container(&container("a", &id)).unwrap();
    assert_eq!((adjustment.gpus[0].as_str(), adjustment.cdi_devices.len()), (id.as_str(), 0));
    // A device of one resource is none of another.
    let error = plugin.allocate(allocate(&["slot-0".to_owned()])).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    let error = plugin.allocate(allocate(&[])).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::InvalidArgument, "an allocation of no device of nvidia.com/mig-1g.5gb: name at least one")
    );
    node.gpus.fault(0, FaultKind::Xid(79)).unwrap();
    kubelet.devices("nvidia.com/mig-1g.5gb", 2, 0).await;
    kubelet.devices("nvidia.com/mig-3g.20gb", 1, 0).await;
    assert_eq!(kubelet.devices(GPU, 1, 1).await.lists, 1, "the other card has no news");
    agent.stop().await;
    let left: Vec<_> =
        std::fs::read_dir(node.plugins()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["kubelet.sock"], "every socket goes along");
}

#[tokio::test]
async fn another_configuration_while_pods_run_takes_no_healthy_device_away() {
    for mode in [IdentityMode::Kubelet, IdentityMode::Assignment] {
        let node = Node::new("t4", 4);
        configure(&node, "default", "version: v1");
        let kubelet = Kubelet::start(&node.plugins());
        let agent = start(options(&node, mode));
        let whole = kubelet.devices(GPU, 4, 4).await;
        for pod in ["a", "b"] {
            let resource = kubelet.devices(GPU, 4, 4).await;
            let ids: Vec<String> = resource.devices.keys().cloned().collect();
            let id = &ids[usize::from(pod == "b")];
            agent.handle.create_container(&container(pod, id)).unwrap();
        }
        configure(&node, "default", RENAMED);
        let shared = kubelet.devices(SHARED, 8, 8).await;
        let kept = kubelet.devices(GPU, 2, 2).await;
        assert_eq!(kept.registrations, 1, "a resource whose devices stay keeps its registration");
        assert!(kept.devices.keys().all(|id| whole.devices.contains_key(id)), "under their ids");
        let share = one(SHARED, &agent, &shared);
        agent.handle.create_container(&container("c", &share)).unwrap();
        agent.handle.remove_pod("uid-a");
        kubelet.devices(SHARED, 12, 12).await;
        kubelet.devices(GPU, 1, 1).await;

        configure(&node, "default", "version: v1");
        let left = kubelet.devices(SHARED, 1, 1).await;
        assert_eq!(left.devices.keys().collect::<Vec<_>>(), [&share]);
        let back = kubelet.devices(GPU, 3, 3).await;
        agent.handle.remove_pod("uid-b");
        agent.handle.remove_pod("uid-c");
        let back_again = kubelet.devices(GPU, 4, 4).await;
        let gone = kubelet.devices(SHARED, 0, 0).await;
        assert_eq!(back_again.devices.keys().collect::<Vec<_>>(), whole.devices.keys().collect::<Vec<_>>());
        assert_eq!((back.registrations, gone.registrations), (1, 1));
        assert!(back_again.lowest >= 1 && left.lowest >= 1, "no list passed through none");
        agent.stop().await;
    }
}

#[tokio::test]
async fn a_broken_configuration_leaves_the_last_good_one_in_force_and_is_named() {
    let node = Node::new("t4", 2);
    configure(&node, "default", RENAMED);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = start(options(&node, IdentityMode::Kubelet));
    let before = kubelet.devices(SHARED, 8, 8).await;
    let broken = RENAMED.replace("replicas: 4", "replicas: 1");
    configure(&node, "default", &broken);
    let fault = "configuration default: sharing.timeSlicing.resources[0].replicas (line 2): invalid value \"1\": must be 2 or more; to give each device to one container alone, remove the entry";
    agent.handle.config_fault().wait_for(|found| found.as_deref() == Some(fault)).await.unwrap();
    let line = format!("Configuration refused, the last good one stays in force: {fault}");
    assert!(agent.log().contains(&line), "{:?}", agent.log());
    agent.kill().await;
    kubelet.until(|known| !known[SHARED].connected).await;
    // A start with the broken file is a start with what was good.
    let agent = start(options(&node, IdentityMode::Kubelet));
    let after = kubelet.devices(SHARED, 8, 8).await;
    assert_eq!(after.devices, before.devices, "the same ids");
    agent.handle.config_fault().wait_for(|found| found.as_deref() == Some(fault)).await.unwrap();
    // What fits no card of the node is as broken.
    let few = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 3}]}}";
    configure(&node, "default", few);
    let fault = "configuration default: sharing: nvidia.com/gpu: devices: invalid value 3: the node has 2 of them; write a smaller number, or all";
    agent.handle.config_fault().wait_for(|found| found.as_deref() == Some(fault)).await.unwrap();
    configure(&node, "default", &RENAMED.replace("replicas: 4", "replicas: 5"));
    let mended = kubelet.devices(SHARED, 10, 10).await;
    agent.handle.config_fault().wait_for(Option::is_none).await.unwrap();
    assert!(mended.lowest >= 8);
    agent.stop().await;
}

#[tokio::test]
async fn what_of_a_configuration_changes_nothing_or_nothing_yet_is_told_once() {
    let node = Node::new("t4", 1);
    configure(&node, "only", "version: v1\nflags: {plugin: {nvidiaCTKPath: /a}}");
    let _kubelet = Kubelet::start(&node.plugins());
    let agent = start(options(&node, IdentityMode::Assignment));
    agent.registered(1).await;
    configure(&node, "only", "version: v1\nflags: {nvidiaDriverRoot: /b, plugin: {nvidiaCTKPath: /a}}");
    let waits = "Configuration: flags.nvidiaDriverRoot: is read when the agent starts; delete the agent's pod on this node to use the new value";
    let mut lines = agent.handle.logs_changed();
    while !agent.log().iter().any(|line| line == waits) {
        lines.changed().await.unwrap();
    }
    let nothing = "Configuration: flags.plugin.nvidiaCTKPath (line 2): changes nothing: no program runs in containers by Gantry's CDI files; leave it out";
    assert_eq!(agent.log().iter().filter(|line| *line == nothing).count(), 1, "{:?}", agent.log());
    agent.stop().await;
}

#[tokio::test]
async fn twenty_kubelets_one_after_the_other_find_every_resource() {
    let node = Node::new("a100-40", 8);
    let text = "version: v1\nresources: {gpus: [{pattern: \"*A100*\", name: a100}]}\nsharing: {timeSlicing: {resources: [{name: a100, rename: a100.shared, replicas: 2, devices: 4}]}}";
    configure(&node, "only", text);
    let agent = start(options(&node, IdentityMode::Kubelet));
    let mut first: Option<Vec<String>> = None;
    for round in 0..20 {
        let kubelet = Kubelet::start_refusing(&node.plugins(), round % 3);
        kubelet.devices("nvidia.com/a100", 4, 4).await;
        let shared = kubelet.devices("nvidia.com/a100.shared", 8, 8).await;
        let ids: Vec<String> = shared.devices.into_keys().collect();
        assert_eq!(first.get_or_insert_with(|| ids.clone()), &ids);
        kubelet.kill().await;
    }
    agent.stop().await;
}

#[tokio::test]
async fn two_programs_that_serve_one_resource_come_to_rest() {
    let node = Node::new("t4", 2);
    let kubelet = Kubelet::start(&node.plugins());
    let one = node.start(IdentityMode::Kubelet);
    kubelet.devices(GPU, 2, 2).await;
    let mut other = node.options(IdentityMode::Kubelet);
    other.state_dir = node.root.path().join("other");
    let two = start(other);
    one.registered(3).await;
    two.registered(3).await;
    let registrations = |agent: &Running| *agent.handle.registrations().borrow();
    // Each waits longer before it takes the socket back, so that a kubelet can serve pods in between.
    let lines =
        one.log().iter().filter(|line| line.contains("Another program serves 'nvidia.com/gpu'")).count();
    assert!(lines >= 1 && registrations(&one) < 30, "{:?}", one.log());
    two.stop().await;
    one.stop().await;
    let node = Node::new("t4", 2);
    let kubelet = Kubelet::start(&node.plugins());
    let one = node.start(IdentityMode::Kubelet);
    kubelet.devices(GPU, 2, 2).await;
    // A plugin that takes the socket once, as NVIDIA's does at its start, loses it again.
    let path = node.plugins().join("nvidia-gpu.sock");
    std::fs::remove_file(&path).unwrap();
    let _stranger = tokio::net::UnixListener::bind(&path).unwrap();
    one.registered(2).await;
    kubelet.devices(GPU, 2, 2).await;
    one.stop().await;
}

#[tokio::test]
async fn shares_of_one_container_are_of_distinct_cards() {
    let node = Node::new("t4", 3);
    configure(&node, "default", RENAMED);
    let kubelet = Kubelet::start(&node.plugins());
    let agent = start(options(&node, IdentityMode::Assignment));
    let shared = kubelet.devices(SHARED, 12, 12).await;
    let mut plugin = kubelet.plugin(&shared.endpoint).await;
    let request = api::PreferredAllocationRequest {
        container_requests: vec![api::ContainerPreferredAllocationRequest {
            available_device_i_ds: shared.devices.into_keys().collect(),
            must_include_device_i_ds: Vec::new(),
            allocation_size: 3,
        }],
    };
    let answer = plugin.get_preferred_allocation(request).await.unwrap().into_inner();
    let chosen = &answer.container_responses[0].device_i_ds;
    let cards: BTreeSet<&str> = chosen.iter().filter_map(|id| Some(id.split_once("::")?.0)).collect();
    assert_eq!(cards.len(), 3, "{chosen:?}");
    let answer = plugin.allocate(allocate(chosen)).await.unwrap().into_inner();
    assert_eq!(answer.container_responses[0].cdi_devices.len(), 3);
    agent.stop().await;
}

#[tokio::test]
async fn a_kubelet_with_another_root_folder_is_found_where_it_comes_late() {
    let node = Node::new("t4", 2);
    configure(&node, "default", RENAMED);
    let mut options = options(&node, IdentityMode::Kubelet);
    options.kubelet_dir = node.root.path().join("data/kubelet/device-plugins");
    let moved = options.kubelet_dir.clone();
    let agent = start(options);
    tokio::task::yield_now().await;
    let kubelet = Kubelet::start(&moved);
    kubelet.devices(SHARED, 8, 8).await;
    agent.stop().await;
}
