//! Fills clusters and prints decisions per second: `cargo run --release -p gantry-engine --example fill`.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement prints, and reads the clock"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use gantry_engine::{Decision, Event, Millis, State};
use gantry_model::{
    ContainerKind, ContainerRequest, Gpu, Health, Link, LinkKind, Node, NodeConstraints, PodKey, Request,
    Resources, Topology,
};

fn node(number: usize) -> Node {
    let name: Arc<str> = format!("node-{number:05}").into();
    let gpu = |index: u32| Gpu {
        id: format!("GPU-{number:05}-{index}").parse().expect("a valid id"),
        index,
        minor: index,
        product: "NVIDIA A100-SXM4-80GB".into(),
        memory_mib: 81_920,
        pci_bus_id: String::new(),
        numa_node: Some(index / 4),
        compute_capability: (8, 0),
        mig_capable: true,
        partitions: None,
        health: Health::Healthy,
    };
    Node {
        labels: BTreeMap::from([("kubernetes.io/hostname".into(), name.clone())]),
        name,
        taints: Vec::new(),
        unschedulable: false,
        ready: true,
        allocatable: Resources {
            cpu_milli: 128_000,
            memory_bytes: 1 << 40,
            ephemeral_bytes: 1 << 41,
            pods: 110,
            extended: BTreeMap::new(),
        },
        allocatable_gpus: 8,
        gpus: (0..8).map(gpu).collect(),
        topology: Topology::from_fn(8, |_, _| Link { gb_per_s: 600, kind: LinkKind::NvLink(12) }),
    }
}

/// Pods of 1, 1, 1, 2, 1, 1, 4, 1 GPUs …, in 16 shapes.
fn pod(number: usize) -> Request {
    let gpus = [1, 1, 1, 2, 1, 1, 4, 1][number % 8];
    let name: Arc<str> = format!("pod-{number:06}").into();
    Request {
        pod: PodKey { namespace: "default".into(), uid: name.clone(), name },
        scheduler_name: "gantry-scheduler".into(),
        priority: 0,
        created_s: i64::try_from(number / 1000).expect("small"),
        containers: vec![ContainerRequest { name: "main".into(), kind: ContainerKind::App, gpus }],
        gpus,
        total: Resources {
            cpu_milli: 1000 * (1 + number as u64 % 2),
            memory_bytes: 4 << 30,
            ephemeral_bytes: 0,
            pods: 1,
            extended: BTreeMap::new(),
        },
        constraints: NodeConstraints::default(),
        tolerations: Vec::new(),
        node_name: None,
        gates: Vec::new(),
        group: None,
        origins: BTreeMap::new(),
    }
}

fn main() {
    for (nodes, pods) in [(1_000, 10_000), (10_000, 60_000)] {
        let mut state = State::new();
        for number in 0..nodes {
            state.apply(Event::NodeUpserted(node(number)));
        }
        for number in 0..pods {
            state.apply(Event::PodPending(pod(number)));
        }
        let start = Instant::now();
        let decisions = state.decide(Millis(0));
        let seconds = start.elapsed().as_secs_f64();
        let bound = decisions.iter().filter(|decision| matches!(decision, Decision::Bind { .. })).count();
        println!(
            "{nodes} nodes, {pods} pods: {bound} bound, {} told to wait, {:.0} decisions/s ({seconds:.3} s)",
            decisions.len() - bound,
            decisions.len() as f64 / seconds
        );
    }
}
