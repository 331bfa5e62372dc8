//! A configuration that holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::{At, Pattern, ResourceName};

/// Everything that can be configured, with defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// How partitions are offered.
    pub mig_strategy: MigStrategy,
    /// Whether a program ends when the driver cannot be used, instead of waiting.
    pub fail_on_init_error: bool,
    /// Where the MPS control daemon keeps its files, on the host.
    pub mps_root: Option<PathBuf>,
    /// Where the driver is installed, on the host.
    pub driver_root: PathBuf,
    /// Where device files are, on the host; as the driver's if it was not set.
    pub dev_root: PathBuf,
    /// Whether containers with a GPU get GDRCopy.
    pub gdrcopy: bool,
    /// Whether containers with a GPU get GPUDirect Storage.
    pub gds: bool,
    /// Whether containers with a GPU get Mellanox OFED.
    pub mofed: bool,
    /// Whether labels go into a NodeFeature object instead of a file.
    pub use_node_feature_api: bool,
    /// How devices are found.
    pub discovery: DiscoveryStrategy,
    /// The device plugin's own settings.
    pub plugin: Plugin,
    /// GPU Feature Discovery's own settings.
    pub gfd: Gfd,
    /// Names of resources by model.
    pub resources: Resources,
    /// What is shared, and how; `None` where nothing is.
    pub sharing: Option<Sharing>,
    /// IMEX channels.
    pub imex: Imex,
    /// The kubelet's socket where it was set; `Some(None)` if it was set to nothing, which means not to register.
    pub kubelet_socket: Option<Option<PathBuf>>,
    /// Which XIDs are looked at.
    pub health_checks: HealthChecks,
    /// What was set and changes nothing.
    pub notices: Vec<Notice>,
    /// What was set, by flag.
    pub(crate) given: BTreeMap<&'static str, String>,
}

/// Something that was set and changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Where it was set.
    pub at: At,
    /// Why it changes nothing.
    pub why: &'static str,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: changes nothing: {}; leave it out", self.at, self.why)
    }
}

/// How partitions (MIG devices) are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MigStrategy {
    /// Not at all: a GPU in MIG mode is offered as a whole.
    #[default]
    None,
    /// As `nvidia.com/gpu`; all GPUs must have partitions, of one profile.
    Single,
    /// Each profile as a resource of its own.
    Mixed,
}

/// How devices are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiscoveryStrategy {
    /// Whatever works.
    #[default]
    Auto,
    /// By the driver's management library.
    Nvml,
    /// As on Jetson boards.
    Tegra,
    /// Devices that are passed through to virtual machines; for feature discovery alone.
    Vfio,
}

/// The device plugin's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// Whether device files are handed to the kubelet too.
    pub pass_device_specs: bool,
    /// How the container runtime is told the devices. Never empty.
    pub device_list_strategies: BTreeSet<DeviceListStrategy>,
    /// By what it is told them.
    pub device_id_strategy: DeviceIdStrategy,
    /// What the keys of CDI annotations begin with; `cdi.k8s.io/`.
    pub cdi_annotation_prefix: String,
    /// The program that NVIDIA's CDI files name as a hook. Gantry's have no hooks.
    pub ctk_path: PathBuf,
    /// Where the driver's root is mounted in the plugin's container.
    pub container_driver_root: PathBuf,
    /// Which devices are preferred for shares and partitions.
    pub allocation_policy: AllocationPolicy,
    /// Features of NVIDIA's generator of CDI files. Gantry's has none of them.
    pub cdi_feature_flags: Vec<String>,
    /// Hooks that NVIDIA's generator is to leave out. Gantry's files have none.
    pub cdi_disable_hooks: Vec<String>,
}

/// How the container runtime is told the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceListStrategy {
    /// In the environment: `NVIDIA_VISIBLE_DEVICES`.
    Envvar,
    /// By mounts below `/var/run/nvidia-container-devices`.
    VolumeMounts,
    /// By annotations of the container.
    CdiAnnotations,
    /// By the CRI's field for CDI devices.
    CdiCri,
}

/// By what a device is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceIdStrategy {
    /// Its UUID.
    #[default]
    Uuid,
    /// Its index: `0`, or `0:1` for a partition.
    Index,
}

/// Which devices are preferred for shares and partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AllocationPolicy {
    /// Those on the GPU with the most that is free.
    #[default]
    Distributed,
    /// Those on the GPU with the least that is free.
    Packed,
}

/// GPU Feature Discovery's own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gfd {
    /// Whether to write labels once and end.
    pub oneshot: bool,
    /// Whether to leave out the label with the time.
    pub no_timestamp: bool,
    /// How long to wait between passes; `None` for ever.
    pub sleep_interval: Option<Duration>,
    /// The file for labels; `None` for standard output.
    pub output_file: Option<PathBuf>,
    /// Where the machine's name is read.
    pub machine_type_file: PathBuf,
}

/// Names of resources by model or profile: the first rule that matches counts. What no rule matches has NVIDIA's name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    /// By product name, such as `*A100*`.
    pub gpus: Vec<ResourceRule>,
    /// By MIG profile, such as `1g.*`.
    pub mig: Vec<ResourceRule>,
}

/// A name for what matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRule {
    /// What it has to match.
    pub pattern: Pattern,
    /// The resource.
    pub name: ResourceName,
}

/// How GPUs are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharing {
    /// By what.
    pub kind: SharingKind,
    /// Whether requests for several shares are refused.
    pub fail_requests_greater_than_one: bool,
    /// Which resources, each once. Never empty.
    pub resources: Vec<SharedResource>,
}

/// What lets several containers use one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharingKind {
    /// They take turns.
    TimeSlicing,
    /// NVIDIA's Multi-Process Service.
    Mps,
}

impl SharingKind {
    /// As labels and files name it: `time-slicing`, `mps`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TimeSlicing => "time-slicing",
            Self::Mps => "mps",
        }
    }
}

/// A resource whose devices are offered several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedResource {
    /// The resource.
    pub name: ResourceName,
    /// The resource of the shares, where it has another name: `rename`, or `renameByDefault`.
    pub rename: Option<ResourceName>,
    /// Which devices of it are shared.
    pub devices: SharedDevices,
    /// How often each is offered, 2 or more.
    pub replicas: u32,
}

impl SharedResource {
    /// The resource under which the shares are offered.
    pub fn offered_as(&self) -> &ResourceName {
        self.rename.as_ref().unwrap_or(&self.name)
    }
}

/// Which devices of a resource are shared.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SharedDevices {
    /// All.
    #[default]
    All,
    /// So many, the first ones.
    Count(u32),
    /// These.
    List(Vec<DeviceRef>),
}

/// A device in a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceRef {
    /// A GPU by index.
    Gpu(u32),
    /// A partition by the index of its GPU and its own: `0:1`.
    Partition(u32, u32),
    /// `GPU-` or `MIG-` and a UUID.
    Uuid(String),
}

/// IMEX channels for every container with a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imex {
    /// Channel 0, or none.
    pub channel_ids: Vec<u32>,
    /// Whether a channel that the node does not have is an error.
    pub required: bool,
}

/// Which XIDs take a device out of service: `DP_DISABLE_HEALTHCHECKS` and `DP_ENABLE_HEALTHCHECKS`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HealthChecks {
    /// Whether XIDs are ignored unless they are enabled.
    pub all_disabled: bool,
    /// XIDs that are ignored, besides those that applications cause.
    pub disabled: BTreeSet<u32>,
    /// XIDs that are looked at whatever else is said. With NVIDIA's plugin `DP_DISABLE_HEALTHCHECKS=all` wins against them, although its
    /// documentation says otherwise.
    pub enabled: BTreeSet<u32>,
}

impl HealthChecks {
    /// Whether an XID is ignored; `by_default` says whether it is where nothing is configured.
    pub fn ignores(&self, xid: u32, by_default: bool) -> bool {
        !self.enabled.contains(&xid) && (by_default || self.all_disabled || self.disabled.contains(&xid))
    }
}
