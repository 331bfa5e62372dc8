//! Nodes and containers for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_api::{ASSIGNMENT_ANNOTATION, IdentityMode, encode_assignment};
use gantry_gpu::{GpuBackend as _, Profile, SimGpus};
use gantry_model::{Assignment, GpuId, PodKey};
use gantry_nvidia_config::Config;

use super::State;
use crate::ContainerIdentity;

/// A node of cards in bridged pairs, and their ids.
pub(crate) fn node(count: usize) -> (State, Vec<GpuId>) {
    node_in(IdentityMode::Assignment, count)
}

pub(crate) fn node_in(mode: IdentityMode, count: usize) -> (State, Vec<GpuId>) {
    let sim = SimGpus::new(Profile::named("rtx3090").expect("known"), count, "node-1", 7).expect("count");
    let mut state = empty("node-1", mode);
    state.refresh(sim.inventory().expect("simulated"));
    let ids = state.gpus().iter().map(|gpu| gpu.id.clone()).collect();
    (state, ids)
}

/// A node without GPUs, as NVIDIA's defaults have it.
pub(crate) fn empty(node: &str, mode: IdentityMode) -> State {
    State::new(node.into(), mode, "nvidia.com/gpu".into(), config("version: v1"))
}

pub(crate) fn config(text: &str) -> Arc<Config> {
    Arc::new(Config::load(&BTreeMap::new(), &BTreeMap::new(), Some(text)).expect("valid"))
}

pub(crate) fn pod(name: &str) -> PodKey {
    PodKey { namespace: "default".into(), name: name.into(), uid: format!("uid-{name}").into() }
}

/// A container of pod `name` with these devices and, where given, this assignment on node `node-1`.
pub(crate) fn container(
    name: &str,
    container: &str,
    devices: &[&str],
    assignment: Option<&[(&str, Vec<GpuId>)]>,
) -> ContainerIdentity {
    let annotations = assignment.map(|containers| {
        let containers = containers.iter().map(|(name, gpus)| ((*name).into(), gpus.clone())).collect();
        let text = encode_assignment(&Assignment { node: "node-1".into(), containers });
        BTreeMap::from([(ASSIGNMENT_ANNOTATION.to_owned(), text)])
    });
    ContainerIdentity {
        pod: pod(name),
        annotations: annotations.unwrap_or_default(),
        name: container.to_owned(),
        devices: devices.iter().map(|id| (*id).to_owned()).collect(),
    }
}
