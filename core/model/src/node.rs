//! A node as the scheduler sees it.

use std::sync::Arc;

use crate::{Gpu, Labels, Resources, Taint, Topology};

/// A node: what Kubernetes says about it (its `Node` object) and what the node agent says (its `GpuNode`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The name of the `Node` object.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned (`spec.unschedulable`).
    pub unschedulable: bool,
    /// Whether its condition `Ready` is true.
    pub ready: bool,
    /// What its kubelet offers to pods, GPUs apart.
    pub allocatable: Resources,
    /// How many whole GPUs its kubelet offers (`nvidia.com/gpu` in `status.allocatable`).
    pub allocatable_gpus: u32,
    /// Its GPUs by index. Empty where no agent has reported them: then GPUs are only counted.
    pub gpus: Vec<Gpu>,
    /// How its GPUs are connected, by position in `gpus`.
    pub topology: Topology,
}
