//! What a pod asks for, and what it got.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::{GpuId, NodeConstraints, Resources, Toleration};

/// Which pod. Two pods of one name, one after the other, differ in their UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
}

impl fmt::Display for PodKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How a container takes part in its pod's life, which decides who may use its GPUs after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// Runs to its end before the next starts; its GPUs are used again by later containers.
    Init,
    /// An init container with `restartPolicy: Always`: stays beside all later containers.
    Sidecar,
    /// A container of `spec.containers`.
    App,
}

/// What one container asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerRequest {
    /// The container's name.
    pub name: Arc<str>,
    /// Its kind.
    pub kind: ContainerKind,
    /// Whole GPUs.
    pub gpus: u32,
}

/// A way of asking for part of a GPU that this release knows by name but does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SharingVocabulary {
    /// An amount of GPU memory: `nvidia.com/gpumem`, `nvidia.com/gpu-memory`, `volcano.sh/vgpu-memory`.
    Memory,
    /// A percentage of GPU memory: `nvidia.com/gpumem-percentage`, `volcano.sh/vgpu-memory-percentage`.
    MemoryPercent,
    /// A share of compute: `nvidia.com/gpucores`, `nvidia.com/gpu-core`, `volcano.sh/vgpu-cores`.
    Compute,
    /// A number of shares: `volcano.sh/vgpu-number`.
    Shares,
    /// A number of turns on a GPU that its users have one after the other: `nvidia.com/gpu.shared`.
    TimeSlices,
    /// A MIG profile: `nvidia.com/mig-1g.5gb`.
    Partition,
}

/// Where an extended resource stands in the pod and, for names of GPU sharing, what it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceOrigin {
    /// The field, such as `spec.containers[0].resources.limits[nvidia.com/gpumem]`.
    pub field: String,
    /// What the name means, where it is one of GPU sharing.
    pub vocabulary: Option<SharingVocabulary>,
}

/// Pods that are placed together or not at all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// The group's namespace and name, separated by `/`.
    pub name: Arc<str>,
    /// Pods of the group that must have a place before any is bound.
    pub min_members: u32,
}

/// What a pod asks for, whatever vocabulary it was written in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Which pod asks.
    pub pod: PodKey,
    /// Who is asked (`spec.schedulerName`).
    pub scheduler_name: Arc<str>,
    /// `spec.priority`; higher goes first.
    pub priority: i32,
    /// When the pod was created, in seconds since 1970; earlier goes first among equals.
    pub created_s: i64,
    /// What each container asks for, init containers first, in the pod's order.
    pub containers: Vec<ContainerRequest>,
    /// The whole GPUs that the pod holds at once at most.
    pub gpus: u32,
    /// Everything else that the pod holds at once at most, as Kubernetes counts it; `pods` is 1.
    pub total: Resources,
    /// Where it wants to run.
    pub constraints: NodeConstraints,
    /// Which taints it accepts.
    pub tolerations: Vec<Toleration>,
    /// The node that the pod names itself, or is bound to (`spec.nodeName`).
    pub node_name: Option<Arc<str>>,
    /// Names of gates that still keep it from being scheduled.
    pub gates: Vec<Arc<str>>,
    /// The group that it belongs to, if any.
    pub group: Option<Group>,
    /// Where the pod names each extended resource of `total`.
    pub origins: BTreeMap<Arc<str>, ResourceOrigin>,
}

impl Request {
    /// The whole GPUs that `containers` hold at once at most, counted as Kubernetes counts resources:
    /// init containers run one after the other beside the sidecars before them, apps beside all sidecars.
    /// `None` on overflow.
    pub fn gpus_at_once(containers: &[ContainerRequest]) -> Option<u32> {
        let (mut sidecars, mut apps, mut peak) = (0_u32, 0_u32, 0_u32);
        for container in containers {
            match container.kind {
                ContainerKind::Init => peak = peak.max(sidecars.checked_add(container.gpus)?),
                ContainerKind::Sidecar => {
                    sidecars = sidecars.checked_add(container.gpus)?;
                    peak = peak.max(sidecars);
                }
                ContainerKind::App => apps = apps.checked_add(container.gpus)?,
            }
        }
        Some(peak.max(sidecars.checked_add(apps)?))
    }
}

/// The devices that were chosen for a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Assignment {
    /// The node.
    pub node: Arc<str>,
    /// The GPUs of each container that has any, in the order in which the container sees them.
    /// An init container's GPUs may also be an app container's, which starts after it has ended.
    pub containers: BTreeMap<Arc<str>, Vec<GpuId>>,
}

impl Assignment {
    /// Every GPU of the pod, once.
    pub fn gpus(&self) -> BTreeSet<&GpuId> {
        self.containers.values().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_as_kubernetes_counts_resources() {
        use ContainerKind::{App, Init, Sidecar};
        let count = |list: &[(ContainerKind, u32)]| {
            let containers: Vec<_> =
                list.iter().map(|&(kind, gpus)| ContainerRequest { name: "c".into(), kind, gpus }).collect();
            Request::gpus_at_once(&containers)
        };
        assert_eq!(count(&[]), Some(0));
        assert_eq!(count(&[(App, 1), (App, 2)]), Some(3));
        assert_eq!(count(&[(Init, 4), (Init, 2), (App, 1)]), Some(4));
        assert_eq!(count(&[(Sidecar, 1), (Init, 4), (App, 2)]), Some(5));
        assert_eq!(count(&[(Init, 2), (Sidecar, 1), (App, 2)]), Some(3));
        assert_eq!(count(&[(App, u32::MAX), (App, 1)]), None);
    }
}
