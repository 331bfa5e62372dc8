//! Short ways to say nodes, pods and events.
#![allow(dead_code, reason = "each test program uses its own part")]

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_engine::{Decision, Event, Millis, State};
use gantry_model::{
    Assignment, ContainerKind, ContainerRequest, Gpu, Health, Link, LinkKind, Node, NodeConstraints, PodKey,
    Request, Resources, Topology,
};

pub(crate) const NOW: Millis = Millis(0);

pub(crate) fn resources(cpu_milli: u64, pods: u64) -> Resources {
    Resources {
        cpu_milli,
        memory_bytes: cpu_milli << 20,
        ephemeral_bytes: 1 << 40,
        pods,
        extended: BTreeMap::new(),
    }
}

pub(crate) fn gpu(node: &str, index: u32, memory_mib: u64) -> Gpu {
    Gpu {
        id: format!("GPU-{node}-{index}").parse().expect("a valid id"),
        index,
        minor: index,
        product: "NVIDIA Test".into(),
        memory_mib,
        pci_bus_id: format!("00000000:{index:02x}:00.0"),
        numa_node: Some(index / 4),
        compute_capability: (8, 0),
        mig_capable: false,
        partitions: None,
        health: Health::Healthy,
    }
}

/// A node with 64 cores and GPUs that are all linked alike.
pub(crate) fn node(name: &str, gpus: u32) -> Node {
    Node {
        name: name.into(),
        labels: BTreeMap::from([("kubernetes.io/hostname".into(), name.into())]),
        taints: Vec::new(),
        unschedulable: false,
        ready: true,
        allocatable: resources(64_000, 110),
        allocatable_gpus: gpus,
        gpus: (0..gpus).map(|index| gpu(name, index, 81_920)).collect(),
        topology: Topology::from_fn(gpus as usize, |_, _| Link { gb_per_s: 600, kind: LinkKind::NvLink(12) }),
    }
}

pub(crate) fn key(name: &str) -> PodKey {
    PodKey { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}").into() }
}

pub(crate) fn uid(name: &str) -> Arc<str> {
    key(name).uid
}

/// A pod of one container with this many GPUs and one core.
pub(crate) fn pod(name: &str, gpus: u32) -> Request {
    containers(name, &[("main", ContainerKind::App, gpus)])
}

pub(crate) fn containers(name: &str, list: &[(&str, ContainerKind, u32)]) -> Request {
    let containers: Vec<_> = list
        .iter()
        .map(|(name, kind, gpus)| ContainerRequest { name: (*name).into(), kind: *kind, gpus: *gpus })
        .collect();
    Request {
        pod: key(name),
        scheduler_name: "gantry-scheduler".into(),
        priority: 0,
        created_s: 0,
        gpus: Request::gpus_at_once(&containers).expect("few"),
        containers,
        total: Resources { ephemeral_bytes: 1 << 30, ..resources(1000, 1) },
        constraints: NodeConstraints::default(),
        tolerations: Vec::new(),
        node_name: None,
        gates: Vec::new(),
        group: None,
        origins: BTreeMap::new(),
    }
}

pub(crate) fn cluster(nodes: impl IntoIterator<Item = Node>) -> State {
    let mut state = State::new();
    for node in nodes {
        state.apply(Event::NodeUpserted(node));
    }
    state
}

pub(crate) fn submit(state: &mut State, pods: impl IntoIterator<Item = Request>) {
    for pod in pods {
        state.apply(Event::PodPending(pod));
    }
}

/// Bindings that are decided now, by pod name.
pub(crate) fn bindings(state: &mut State) -> BTreeMap<String, Assignment> {
    let decisions = state.decide(NOW);
    let bind = decisions.into_iter().filter_map(|decision| match decision {
        Decision::Bind { pod, assignment } => Some((pod.name.to_string(), assignment)),
        Decision::Unschedulable { .. } => None,
    });
    bind.collect()
}

/// Why pods wait, as it is told now: pod and text.
pub(crate) fn complaints(state: &mut State, now: Millis) -> Vec<(String, String)> {
    let decisions = state.decide(now);
    let tell = decisions.into_iter().filter_map(|decision| match decision {
        Decision::Unschedulable { pod, refusals } => Some((pod.name.to_string(), refusals.to_string())),
        Decision::Bind { .. } => None,
    });
    tell.collect()
}

/// `GPU-node-3` is 3.
pub(crate) fn indices(assignment: &Assignment, container: &str) -> Vec<u32> {
    let gpus = assignment.containers.get(container).into_iter().flatten();
    gpus.map(|gpu| gpu.as_str().rsplit('-').next().and_then(|n| n.parse().ok()).expect("an index")).collect()
}
