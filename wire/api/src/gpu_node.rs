//! `GpuNode`: what a node's agent reports about its GPUs. One object for each node, of the node's name.

use std::collections::{BTreeMap, BTreeSet};

use gantry_model::{Fault, FaultKind, Gpu, Health, Link, LinkKind, MAX_GPUS, Topology};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::{Error, GROUP, VERSION};

/// The GPUs of one node, as its agent reports them (`gantry.dev/v1alpha1`, cluster-scoped).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuNode {
    /// Always `gantry.dev/v1alpha1`.
    #[serde(default = "api_version")]
    pub api_version: String,
    /// Always `GpuNode`.
    #[serde(default = "kind")]
    pub kind: String,
    /// Its name is the node's.
    pub metadata: ObjectMeta,
    /// What the agent reports. Absent until its first report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<GpuNodeStatus>,
}

fn api_version() -> String {
    <GpuNode as k8s_openapi::Resource>::API_VERSION.to_owned()
}

fn kind() -> String {
    <GpuNode as k8s_openapi::Resource>::KIND.to_owned()
}

impl GpuNode {
    /// The report of the node `name`.
    pub fn new(name: &str, status: GpuNodeStatus) -> Self {
        Self {
            api_version: api_version(),
            kind: kind(),
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            status: Some(status),
        }
    }
}

impl k8s_openapi::Resource for GpuNode {
    const API_VERSION: &'static str = "gantry.dev/v1alpha1";
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "GpuNode";
    const VERSION: &'static str = VERSION;
    const URL_PATH_SEGMENT: &'static str = "gpunodes";
    type Scope = k8s_openapi::ClusterResourceScope;
}

impl k8s_openapi::Metadata for GpuNode {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What an agent reports. Built by [`GpuNodeStatus::from_model`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuNodeStatus {
    /// Version of the kernel driver, such as `580.95.05`.
    #[serde(default)]
    pub driver_version: String,
    /// Highest CUDA version that the driver serves, such as `13.0`.
    #[serde(default)]
    pub cuda_version: String,
    /// Who decides which GPU a container gets.
    #[serde(default)]
    pub mode: IdentityMode,
    /// Number of GPUs.
    #[serde(default)]
    pub gpu_count: u32,
    /// Number of GPUs that new work may use.
    #[serde(default)]
    pub healthy_gpu_count: u32,
    /// The GPUs by index.
    #[serde(default)]
    pub gpus: Vec<GpuStatus>,
    /// How they are connected; pairs of equal links stand together. A pair that is not named is connected through the CPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkGroup>,
    /// What the agent offers to the kubelet, by resource name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub allocatable: BTreeMap<String, u64>,
    /// Which container uses which GPUs, as seen on the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_use: Vec<ContainerGpus>,
    /// What else is true of the node, each type once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusCondition>,
}

/// Something that is true of a node or not, in the form of Kubernetes' conditions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusCondition {
    /// What it is about, such as [`CDI_FILES_CURRENT`].
    #[serde(rename = "type")]
    pub type_: String,
    /// `True` or `False`.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, and what to do, for people.
    pub message: String,
    /// When the agent saw it change, in RFC 3339; when the agent started, where it has not changed since.
    pub last_transition_time: String,
}

/// The condition that is `True` while the CDI files of a node describe its driver and its devices.
pub const CDI_FILES_CURRENT: &str = "CdiFilesCurrent";

/// Who decides which GPU a container gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum IdentityMode {
    /// The scheduler's assignment; the agent enforces it.
    #[default]
    Assignment,
    /// The kubelet; the scheduler follows what `inUse` reports.
    Kubelet,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuStatus {
    /// NVML's UUID.
    pub id: String,
    /// NVML's index, from 0.
    pub index: u32,
    /// The number in `/dev/nvidia<minor>`.
    pub minor: u32,
    /// NVML's product name.
    pub product: String,
    /// Total memory in MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u64,
    /// PCI address such as `00000000:07:00.0`.
    pub pci_bus_id: String,
    /// The NUMA node, where the machine says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// CUDA compute capability, such as `8.0`.
    pub compute_capability: String,
    /// Whether the hardware can be partitioned (MIG).
    #[serde(default)]
    pub mig_capable: bool,
    /// Whether new work may use it.
    pub health: GpuHealth,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultStatus>,
}

/// Whether new work may use a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names say it")]
pub enum GpuHealth {
    Healthy,
    Unhealthy,
}

/// What is wrong with a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FaultStatus {
    /// `Xid`, `Lost`, `DoubleBitEcc`, `RowRemapPending`, `ResetRequired`, `RebootRequired` or `FabricNotReady`.
    pub kind: String,
    /// The XID's number, for `Xid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    /// One sentence for an operator.
    pub message: String,
}

/// Pairs of GPUs that are connected in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkGroup {
    /// As in `nvidia-smi topo -m`: `SYS`, `NODE`, `PHB`, `PXB`, `PIX`, or `NV` and the number of lanes.
    pub kind: String,
    /// Bandwidth in GB/s, both directions together.
    pub gb_per_second: u32,
    /// Pairs of indices, lower first, such as `0-1`.
    pub pairs: Vec<String>,
}

/// The GPUs that a container uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerGpus {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// Ids of the GPUs.
    pub gpus: Vec<String>,
}

impl GpuNodeStatus {
    /// Describes `gpus`, which must be in the order of `topology`; everything else is left empty.
    pub fn from_model(gpus: &[Gpu], topology: &Topology) -> Self {
        let healthy = gpus.iter().filter(|gpu| gpu.health.is_healthy()).count();
        Self {
            gpu_count: u32::try_from(gpus.len()).unwrap_or(u32::MAX),
            healthy_gpu_count: u32::try_from(healthy).unwrap_or(u32::MAX),
            gpus: gpus.iter().map(GpuStatus::from_model).collect(),
            links: links_from_model(topology),
            ..Self::default()
        }
    }

    /// The GPUs and their connections. `node` is the object's name, for errors.
    ///
    /// # Errors
    /// The first field that breaks a rule: at most [`MAX_GPUS`] of them, indices count from 0 in order, ids are unique, pairs name
    /// GPUs, no link is beyond [`Link::MAX_GB_PER_S`].
    pub fn to_model(&self, node: &str) -> Result<(Vec<Gpu>, Topology), Error> {
        if self.gpus.len() > MAX_GPUS {
            return Err(Error::GpuNode {
                node: node.to_owned(),
                field: "status.gpus".to_owned(),
                value: format!("{} GPUs", self.gpus.len()),
                rule: "must be at most 64",
            });
        }
        let mut seen = BTreeSet::new();
        let mut gpus = Vec::with_capacity(self.gpus.len());
        for (position, gpu) in self.gpus.iter().enumerate() {
            let refuse = |field: &str, value: String, rule| Error::GpuNode {
                node: node.to_owned(),
                field: format!("status.gpus[{position}].{field}"),
                value,
                rule,
            };
            if usize::try_from(gpu.index).ok() != Some(position) {
                return Err(refuse("index", gpu.index.to_string(), "GPUs must be listed by index, from 0"));
            }
            if !seen.insert(&gpu.id) {
                return Err(refuse("id", gpu.id.clone(), "must be unique on the node"));
            }
            gpus.push(gpu.to_model(&refuse)?);
        }
        let topology = links_to_model(&self.links, gpus.len(), node)?;
        Ok((gpus, topology))
    }
}

impl GpuStatus {
    fn from_model(gpu: &Gpu) -> Self {
        let (major, minor) = gpu.compute_capability;
        let (health, fault) = match &gpu.health {
            Health::Healthy => (GpuHealth::Healthy, None),
            Health::Unhealthy(fault) => (GpuHealth::Unhealthy, Some(FaultStatus::from_model(fault))),
        };
        Self {
            id: gpu.id.to_string(),
            index: gpu.index,
            minor: gpu.minor,
            product: gpu.product.to_string(),
            memory_mib: gpu.memory_mib,
            pci_bus_id: gpu.pci_bus_id.clone(),
            numa_node: gpu.numa_node,
            compute_capability: format!("{major}.{minor}"),
            mig_capable: gpu.mig_capable,
            health,
            fault,
        }
    }

    fn to_model(&self, refuse: &impl Fn(&str, String, &'static str) -> Error) -> Result<Gpu, Error> {
        let id = self
            .id
            .parse()
            .map_err(|_| refuse("id", self.id.clone(), "must be 1 to 63 letters, digits or '-'"))?;
        let capability = self
            .compute_capability
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let health = match (self.health, &self.fault) {
            (GpuHealth::Healthy, _) => Health::Healthy,
            (GpuHealth::Unhealthy, Some(fault)) => Health::Unhealthy(fault.to_model(refuse)?),
            (GpuHealth::Unhealthy, None) => {
                return Err(refuse("fault", String::new(), "an unhealthy GPU must have a fault"));
            }
        };
        Ok(Gpu {
            id,
            index: self.index,
            minor: self.minor,
            product: self.product.as_str().into(),
            memory_mib: self.memory_mib,
            pci_bus_id: self.pci_bus_id.clone(),
            numa_node: self.numa_node,
            compute_capability: capability.ok_or_else(|| {
                refuse("computeCapability", self.compute_capability.clone(), "must be two numbers as in 8.0")
            })?,
            mig_capable: self.mig_capable,
            partitions: None,
            health,
        })
    }
}

/// Kinds of fault without a number.
const FAULT_NAMES: [(&str, FaultKind); 6] = [
    ("Lost", FaultKind::Lost),
    ("DoubleBitEcc", FaultKind::DoubleBitEcc),
    ("RowRemapPending", FaultKind::RowRemapPending),
    ("ResetRequired", FaultKind::ResetRequired),
    ("RebootRequired", FaultKind::RebootRequired),
    ("FabricNotReady", FaultKind::FabricNotReady),
];

impl FaultStatus {
    /// Describes a fault.
    pub fn from_model(fault: &Fault) -> Self {
        let (kind, xid) = match fault.kind {
            FaultKind::Xid(number) => ("Xid", Some(number)),
            kind => {
                (FAULT_NAMES.iter().find(|(_, known)| *known == kind).map_or("", |(name, _)| *name), None)
            }
        };
        Self { kind: kind.to_owned(), xid, message: fault.message.clone() }
    }

    /// The kind of fault; `None` for one that this release does not know.
    pub fn kind(&self) -> Option<FaultKind> {
        match (self.kind.as_str(), self.xid) {
            ("Xid", Some(number)) => Some(FaultKind::Xid(number)),
            (name, None) => FAULT_NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind),
            _ => None,
        }
    }

    fn to_model(&self, refuse: &impl Fn(&str, String, &'static str) -> Error) -> Result<Fault, Error> {
        let rule = "must be Xid (with xid), Lost, DoubleBitEcc, RowRemapPending, ResetRequired, RebootRequired or FabricNotReady (without)";
        let kind = self.kind().ok_or_else(|| refuse("fault.kind", self.kind.clone(), rule))?;
        Ok(Fault { kind, message: self.message.clone() })
    }
}

/// The names of `nvidia-smi topo -m` other than NVLink's.
const LINK_NAMES: [(&str, LinkKind); 5] = [
    ("SYS", LinkKind::System),
    ("NODE", LinkKind::Node),
    ("PHB", LinkKind::HostBridge),
    ("PXB", LinkKind::MultiSwitch),
    ("PIX", LinkKind::SingleSwitch),
];

fn link_name(kind: LinkKind) -> String {
    match (kind, LINK_NAMES.iter().find(|(_, known)| *known == kind)) {
        (LinkKind::NvLink(lanes), _) => format!("NV{lanes}"),
        (_, Some((name, _))) => (*name).to_owned(),
        (_, None) => unreachable!("invariant: every kind but NVLink is in the table"),
    }
}

fn link_kind(name: &str) -> Option<LinkKind> {
    match name.strip_prefix("NV") {
        Some(lanes) => lanes.parse().ok().map(LinkKind::NvLink),
        None => LINK_NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind),
    }
}

fn links_from_model(topology: &Topology) -> Vec<LinkGroup> {
    let mut groups: BTreeMap<Link, Vec<String>> = BTreeMap::new();
    for a in 0..topology.len() {
        for b in a + 1..topology.len() {
            if let Some(link) = topology.link(a, b) {
                groups.entry(link).or_default().push(format!("{a}-{b}"));
            }
        }
    }
    // The fastest first: that is what a reader looks for.
    let by_speed = groups.into_iter().rev();
    by_speed
        .map(|(link, pairs)| LinkGroup { kind: link_name(link.kind), gb_per_second: link.gb_per_s, pairs })
        .collect()
}

fn links_to_model(groups: &[LinkGroup], size: usize, node: &str) -> Result<Topology, Error> {
    let mut links: BTreeMap<(usize, usize), Link> = BTreeMap::new();
    for (position, group) in groups.iter().enumerate() {
        let refuse = |field: &str, value: &str, rule| Error::GpuNode {
            node: node.to_owned(),
            field: format!("status.links[{position}].{field}"),
            value: value.to_owned(),
            rule,
        };
        let kind = link_kind(&group.kind).ok_or_else(|| {
            refuse("kind", &group.kind, "must be SYS, NODE, PHB, PXB, PIX, or NV and a number from 0 to 255")
        })?;
        if group.gb_per_second > Link::MAX_GB_PER_S {
            return Err(refuse("gbPerSecond", &group.gb_per_second.to_string(), "must be at most 100000"));
        }
        for pair in &group.pairs {
            let parsed = pair.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let (a, b): (usize, usize) = parsed.filter(|(a, b)| a < b && *b < size).ok_or_else(|| {
                refuse("pairs", pair, "must be two indices of GPUs of the node, lower first, as in 0-1")
            })?;
            if links.insert((a, b), Link { gb_per_s: group.gb_per_second, kind }).is_some() {
                return Err(refuse("pairs", pair, "must be named once"));
            }
        }
    }
    let unknown = Link { gb_per_s: 0, kind: LinkKind::System };
    Ok(Topology::from_fn(size, |a, b| links.get(&(a, b)).copied().unwrap_or(unknown)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, health: Health) -> Gpu {
        Gpu {
            id: format!("GPU-{index}").parse().unwrap(),
            index,
            minor: index,
            product: "NVIDIA A100-SXM4-80GB".into(),
            memory_mib: 81920,
            pci_bus_id: format!("00000000:0{index}:00.0"),
            numa_node: Some(index / 2),
            compute_capability: (8, 0),
            mig_capable: true,
            partitions: None,
            health,
        }
    }

    fn model() -> (Vec<Gpu>, Topology) {
        let fault = Fault { kind: FaultKind::Xid(79), message: "fell off the bus".to_owned() };
        let gpus = vec![gpu(0, Health::Healthy), gpu(1, Health::Unhealthy(fault)), gpu(2, Health::Healthy)];
        let topology = Topology::from_fn(3, |a, b| match (a, b) {
            (0, 1) => Link { gb_per_s: 600, kind: LinkKind::NvLink(12) },
            _ => Link { gb_per_s: 64, kind: LinkKind::HostBridge },
        });
        (gpus, topology)
    }

    #[test]
    fn a_report_survives_the_round_trip_through_json() {
        let (gpus, topology) = model();
        let node = GpuNode::new("gpu-0", GpuNodeStatus::from_model(&gpus, &topology));
        let json = serde_json::to_string(&node).unwrap();
        let back: GpuNode = serde_json::from_str(&json).unwrap();
        assert_eq!(back, node);
        let status = back.status.unwrap();
        assert_eq!((status.gpu_count, status.healthy_gpu_count), (3, 2));
        assert_eq!(status.links[0].pairs, ["0-1"], "the fastest link comes first");
        assert_eq!(status.to_model("gpu-0").unwrap(), (gpus, topology));
    }

    #[test]
    fn a_broken_report_is_refused_by_field() {
        let (gpus, topology) = model();
        let good = GpuNodeStatus::from_model(&gpus, &topology);
        let error = |change: &dyn Fn(&mut GpuNodeStatus)| {
            let mut status = good.clone();
            change(&mut status);
            status.to_model("gpu-0").unwrap_err().to_string()
        };
        for (message, expected) in [
            (
                error(&|s| s.gpus[1].index = 0),
                "GpuNode gpu-0: status.gpus[1].index: invalid value \"0\": GPUs must be listed by index, from 0",
            ),
            (
                error(&|s| s.gpus[2].id = "GPU-0".to_owned()),
                "GpuNode gpu-0: status.gpus[2].id: invalid value \"GPU-0\": must be unique on the node",
            ),
            (
                error(&|s| s.gpus[0].compute_capability = "eight".to_owned()),
                "GpuNode gpu-0: status.gpus[0].computeCapability: invalid value \"eight\": must be two numbers as in 8.0",
            ),
            (
                error(&|s| s.links[1].pairs.push("0-7".to_owned())),
                "GpuNode gpu-0: status.links[1].pairs: invalid value \"0-7\": must be two indices of GPUs of the \
                 node, lower first, as in 0-1",
            ),
            (
                error(&|s| s.links[0].kind = "NV900".to_owned()),
                "GpuNode gpu-0: status.links[0].kind: invalid value \"NV900\": must be SYS, NODE, PHB, PXB, PIX, \
                 or NV and a number from 0 to 255",
            ),
            (
                error(&|s| s.links[0].gb_per_second = 100_001),
                "GpuNode gpu-0: status.links[0].gbPerSecond: invalid value \"100001\": must be at most 100000",
            ),
            (
                error(&|s| s.gpus.resize(65, s.gpus[0].clone())),
                "GpuNode gpu-0: status.gpus: invalid value \"65 GPUs\": must be at most 64",
            ),
        ] {
            assert_eq!(message, expected);
        }
        // The rules' texts name the numbers that hold.
        assert_eq!((MAX_GPUS, Link::MAX_GB_PER_S), (64, 100_000));
    }
}
