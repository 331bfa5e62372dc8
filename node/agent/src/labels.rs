//! The labels by which workloads choose nodes: those of NVIDIA's GPU Feature Discovery, byte for byte where all GPUs of the
//! node are alike, and a few of our own.
//!
//! Source of names and rules: `NVIDIA/k8s-device-plugin` v0.20.0, `internal/lm`. Where that program picks one of several models by
//! the order of a Go map, the GPU of the lowest index speaks here.

use std::collections::BTreeMap;

use gantry_gpu::{DriverInfo, GpuDetails, Vgpu};
use gantry_model::{Gpu, GpuId, LinkKind, Partition, Topology};
use gantry_nvidia_config::{Config, MigStrategy, SharingKind};

/// What every label of NVIDIA's begins with.
pub(crate) const NVIDIA_PREFIX: &str = "nvidia.com/";

/// The resource of whole GPUs, and of partitions with [`MigStrategy::Single`].
const GPU: &str = "nvidia.com/gpu";

/// What labels for each model begin with: `gantry.dev/gpu.NVIDIA-L4.count`. NVIDIA's labels can tell of one model only.
const MODEL_PREFIX: &str = "gantry.dev/gpu.";

/// The label that tells how the GPUs of a node are connected: `nvlink` and the generation where NVLink joins every pair,
/// else `pcie`. Not one of NVIDIA's: clusters have set it by hand.
const TOPOLOGY_LABEL: &str = "gpu-topology";

/// The most characters of a label's value, and of a key's part after the prefix.
const MAX_LENGTH: usize = 63;

/// PCI classes and what NVIDIA calls them.
const MODES: [(u32, &str); 2] = [(0x03_0000, "graphics"), (0x03_0200, "compute")];

/// Generations of NVLink, by the lowest compute capability of the GPUs that have it; for drivers that do not tell.
const NVLINK: [((u32, u32), u32); 5] = [((10, 0), 5), ((9, 0), 4), ((8, 0), 3), ((7, 0), 2), ((6, 0), 1)];

/// All that labels are made of.
#[derive(Debug, Clone, Copy)]
pub struct LabelInput<'a> {
    /// The GPUs by index, with their partitions; those that are lost with what was known of them.
    pub gpus: &'a [Gpu],
    /// How they are connected, by position.
    pub topology: &'a Topology,
    /// The driver.
    pub driver: &'a DriverInfo,
    /// The machine's product name.
    pub machine: Option<&'a str>,
    /// Further properties by GPU.
    pub details: &'a BTreeMap<GpuId, GpuDetails>,
    /// The virtual GPU, in a guest that has one.
    pub vgpu: Option<&'a Vgpu>,
    /// When feature discovery started, in seconds since 1970; `None` leaves the label out.
    pub timestamp: Option<i64>,
    /// How the GPUs are offered.
    pub offer: &'a Offer,
}

/// How GPUs are offered to pods, as far as labels tell it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// How partitions are offered.
    pub mig: MigStrategy,
    /// What lets several containers use one device; `None` where nothing does.
    pub sharing: Option<SharingKind>,
    /// The shared resources by name, such as `nvidia.com/gpu` or `nvidia.com/mig-1g.5gb`.
    pub shared: BTreeMap<String, Replicas>,
}

impl From<&Config> for Offer {
    fn from(config: &Config) -> Self {
        let sharing = config.sharing.as_ref();
        Self {
            mig: config.mig_strategy,
            sharing: sharing.map(|sharing| sharing.kind),
            shared: sharing
                .into_iter()
                .flat_map(|sharing| &sharing.resources)
                .map(|shared| {
                    let replicas = Replicas { count: shared.replicas, renamed: shared.rename.is_some() };
                    (shared.name.to_string(), replicas)
                })
                .collect(),
        }
    }
}

/// How often each device of a shared resource is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicas {
    /// So often, 2 or more.
    pub count: u32,
    /// Whether the shares have a resource name of their own, such as `nvidia.com/gpu.shared`.
    pub renamed: bool,
}

type Labels = BTreeMap<String, String>;

/// The labels of a node. Without GPUs there is nothing to say.
pub fn feature_labels(input: &LabelInput<'_>) -> BTreeMap<String, String> {
    // A card that does not answer and was never seen has no properties to tell.
    let gpus: Vec<&Gpu> = input.gpus.iter().filter(|gpu| gpu.memory_mib > 0).collect();
    let mut labels = Labels::new();
    // GPUs that are offered whole speak before those in MIG mode, as with NVIDIA's program.
    let Some(gpu) = gpus.iter().find(|gpu| gpu.partitions.is_none()).or(gpus.first()).copied() else {
        return labels;
    };
    versions(&mut labels, input.driver);
    whole(&mut labels, input.offer, &gpus, gpu);
    partitions(&mut labels, input.offer, &gpus);
    let any_partitions = gpus.iter().any(|gpu| gpu.partitions.is_some());
    for (key, value) in [
        ("gpu.machine", sanitise(input.machine.unwrap_or("unknown"))),
        ("gpu.mode", mode(&gpus, input.details).to_owned()),
        ("gpu.present", "true".to_owned()),
        ("mig.capable", gpus.iter().any(|gpu| gpu.mig_capable).to_string()),
        ("mps.capable", (input.offer.sharing == Some(SharingKind::Mps) && !any_partitions).to_string()),
        ("vgpu.present", input.vgpu.is_some().to_string()),
    ] {
        labels.insert(format!("{NVIDIA_PREFIX}{key}"), value);
    }
    let host = |part: fn(&Vgpu) -> Option<&String>| input.vgpu.and_then(part).map(|text| sanitise(text));
    for (key, value) in [
        ("gfd.timestamp", input.timestamp.map(|seconds| seconds.to_string())),
        ("gpu.clique", clique(input.details)),
        ("vgpu.host-driver-version", host(|vgpu| vgpu.host_driver_version.as_ref())),
        ("vgpu.host-driver-branch", host(|vgpu| vgpu.host_driver_branch.as_ref())),
    ] {
        if let Some(value) = value {
            labels.insert(format!("{NVIDIA_PREFIX}{key}"), value);
        }
    }
    labels.insert(TOPOLOGY_LABEL.to_owned(), connection(gpu, input));
    models(&mut labels, &gpus);
    labels
}

fn versions(labels: &mut Labels, driver: &DriverInfo) {
    let (cuda_major, cuda_minor) = driver.cuda_version;
    let full = sanitise(&driver.driver_version);
    let mut parts = full.split('.');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let (major, minor, revision) = (part(), part(), part());
    let (cuda_major, cuda_minor) = (cuda_major.to_string(), cuda_minor.to_string());
    for (key, value) in [
        ("driver.major", major.clone()),
        ("driver.minor", minor.clone()),
        ("driver.rev", revision.clone()),
        ("driver-version.major", major),
        ("driver-version.minor", minor),
        ("driver-version.revision", revision),
        ("runtime-version.full", format!("{cuda_major}.{cuda_minor}")),
        ("runtime.major", cuda_major.clone()),
        ("runtime.minor", cuda_minor.clone()),
        ("runtime-version.major", cuda_major),
        ("runtime-version.minor", cuda_minor),
        ("driver-version.full", full.clone()),
    ] {
        labels.insert(format!("{NVIDIA_PREFIX}cuda.{key}"), value);
    }
}

/// What GPUs are as wholes: `gpu` speaks for those of its model.
fn whole(labels: &mut Labels, offer: &Offer, gpus: &[&Gpu], gpu: &Gpu) {
    let alike = gpus.iter().filter(|other| other.product == gpu.product).count();
    // A GPU in MIG mode is not offered as a whole, whatever its resource's shares.
    let shares = gpu.partitions.is_none().then(|| Shares::of(offer, GPU));
    resource(labels, GPU, &[&gpu.product], alike, shares);
    let (major, minor) = gpu.compute_capability;
    let mut set = |suffix: &str, value: String| labels.insert(format!("{GPU}.{suffix}"), value);
    set("memory", gpu.memory_mib.to_string());
    if major > 0 {
        set("compute.major", major.to_string());
        set("compute.minor", minor.to_string());
        set("family", family(major, minor).to_owned());
    }
}

/// Product, count and shares of a resource. Without `shares` it is not offered.
fn resource(labels: &mut Labels, name: &str, product: &[&str], count: usize, shares: Option<Shares>) {
    let marked = shares.as_ref().is_some_and(|shares| shares.count > 1 && !shares.renamed);
    let (model, rest) = product.split_first().expect("invariant: a product has a model");
    let suffix = rest
        .iter()
        .copied()
        .chain(marked.then_some("SHARED"))
        .fold(String::new(), |suffix, part| suffix + "-" + part);
    let room = MAX_LENGTH.saturating_sub(suffix.len());
    for (key, value) in [
        ("product", format!("{}{suffix}", cut(&words(model), room))),
        ("count", count.to_string()),
        ("replicas", shares.as_ref().map_or(0, |shares| shares.count).to_string()),
        ("sharing-strategy", shares.map_or("none", |shares| shares.strategy).to_owned()),
    ] {
        labels.insert(format!("{name}.{key}"), value);
    }
}

struct Shares {
    count: u32,
    renamed: bool,
    strategy: &'static str,
}

impl Shares {
    fn of(offer: &Offer, resource: &str) -> Self {
        match (offer.sharing, offer.shared.get(resource)) {
            (Some(kind), Some(replicas)) if replicas.count > 1 => Self {
                count: replicas.count,
                renamed: replicas.renamed,
                strategy: match kind {
                    SharingKind::TimeSlicing => "time-slicing",
                    SharingKind::Mps => "mps",
                },
            },
            _ => Self { count: 1, renamed: false, strategy: "none" },
        }
    }
}

fn partitions(labels: &mut Labels, offer: &Offer, gpus: &[&Gpu]) {
    match offer.mig {
        MigStrategy::None => {}
        MigStrategy::Single => {
            labels.insert(format!("{NVIDIA_PREFIX}mig.strategy"), "single".to_owned());
            single(labels, offer, gpus);
        }
        MigStrategy::Mixed => {
            labels.insert(format!("{NVIDIA_PREFIX}mig.strategy"), "mixed".to_owned());
            for (profile, (gpu, partition, count)) in profiles(gpus) {
                profile_labels(
                    labels,
                    offer,
                    &format!("{NVIDIA_PREFIX}mig-{profile}"),
                    gpu,
                    partition,
                    count,
                );
            }
        }
    }
}

/// All partitions as `nvidia.com/gpu`. What breaks the rules of the strategy is labelled as invalid; without a GPU in
/// MIG mode there is nothing to offer in another way.
fn single(labels: &mut Labels, offer: &Offer, gpus: &[&Gpu]) {
    let Some(first) = gpus.iter().find(|gpu| gpu.partitions.is_some()) else {
        return;
    };
    let full =
        gpus.iter().all(|gpu| gpu.partitions.as_ref().is_some_and(|partitions| !partitions.is_empty()));
    let mut profiles = profiles(gpus).into_values();
    match (full, profiles.next(), profiles.next()) {
        (true, Some((gpu, partition, count)), None) => {
            profile_labels(labels, offer, GPU, gpu, partition, count);
        }
        _ => {
            resource(labels, GPU, &[&first.product, "MIG", "INVALID"], 0, None);
            labels.insert(format!("{GPU}.sharing-strategy"), String::new());
            labels.insert(format!("{GPU}.memory"), "0".to_owned());
        }
    }
}

/// The profiles of a node by name, each with its first partition, the GPU of that, and how many there are.
fn profiles<'a>(gpus: &[&'a Gpu]) -> BTreeMap<String, (&'a Gpu, &'a Partition, usize)> {
    let mut profiles = BTreeMap::new();
    for gpu in gpus {
        for partition in gpu.partitions.iter().flatten() {
            // Resource names cannot have a plus.
            let name = partition.profile.replace('+', ".");
            profiles.entry(name).or_insert((*gpu, partition, 0)).2 += 1;
        }
    }
    profiles
}

fn profile_labels(
    labels: &mut Labels,
    offer: &Offer,
    name: &str,
    gpu: &Gpu,
    partition: &Partition,
    count: usize,
) {
    let profile = partition.profile.replace('+', ".");
    resource(labels, name, &[&gpu.product, "MIG", &profile], count, Some(Shares::of(offer, name)));
    let attributes = partition.attributes;
    for (key, value) in [
        ("memory", partition.memory_mib),
        ("multiprocessors", attributes.multiprocessors.into()),
        ("slices.gi", attributes.gpu_instance_slices.into()),
        ("slices.ci", attributes.compute_instance_slices.into()),
        ("engines.copy", attributes.copy_engines.into()),
        ("engines.decoder", attributes.decoders.into()),
        ("engines.encoder", attributes.encoders.into()),
        ("engines.jpeg", attributes.jpeg_engines.into()),
        ("engines.ofa", attributes.ofa_engines.into()),
    ] {
        labels.insert(format!("{name}.{key}"), value.to_string());
    }
}

/// The product name of an architecture, by compute capability. Blackwell has two: 10 for data centres, 12 for workstations.
fn family(major: u32, minor: u32) -> &'static str {
    match (major, minor) {
        (1, _) => "tesla",
        (2, _) => "fermi",
        (3, _) => "kepler",
        (5, _) => "maxwell",
        (6, _) => "pascal",
        (7, 0..5) => "volta",
        (7, _) => "turing",
        (8, 0..9) => "ampere",
        (8, _) => "ada-lovelace",
        (9, _) => "hopper",
        (10 | 12, _) => "blackwell",
        (13, _) => "rubin",
        _ => "undefined",
    }
}

/// What the GPUs' PCI class says they are made for. Where they differ, or one does not tell, that is not known.
fn mode(gpus: &[&Gpu], details: &BTreeMap<GpuId, GpuDetails>) -> &'static str {
    let mut classes = gpus.iter().map(|gpu| details.get(&gpu.id).and_then(|details| details.pci_class));
    let first = classes.next().flatten();
    if classes.any(|class| class != first) {
        return "unknown";
    }
    MODES.iter().find(|(class, _)| Some(*class) == first).map_or("unknown", |(_, mode)| mode)
}

/// The NVLink domain and the part of it that the GPUs are in, if they are all in the same.
fn clique(details: &BTreeMap<GpuId, GpuDetails>) -> Option<String> {
    let attached = details.values().filter_map(|details| details.fabric.as_ref());
    // A fabric without a UUID ends at the machine.
    let mut names = attached
        .filter(|fabric| fabric.state.is_ready() && fabric.cluster != [0; 16])
        .map(|fabric| format!("{}.{}", fabric.cluster_uuid(), fabric.clique));
    let first = names.next()?;
    names.all(|name| name == first).then_some(first)
}

fn connection(gpu: &Gpu, input: &LabelInput<'_>) -> String {
    let topology = input.topology;
    let size = topology.len();
    let mut links = (0..size).flat_map(|a| (a + 1..size).map(move |b| (a, b)));
    let joined =
        links.all(|(a, b)| topology.link(a, b).is_some_and(|link| matches!(link.kind, LinkKind::NvLink(_))));
    let told = input.details.values().filter_map(|details| details.nvlink_generation).min();
    let usual =
        || NVLINK.iter().find(|(lowest, _)| gpu.compute_capability >= *lowest).map(|(_, number)| *number);
    match told.or_else(usual) {
        Some(generation) if joined && size > 1 => format!("nvlink{generation}"),
        _ => "pcie".to_owned(),
    }
}

/// How many GPUs of each model there are, and their memory in MiB.
fn models(labels: &mut Labels, gpus: &[&Gpu]) {
    let mut models: BTreeMap<String, (usize, u64)> = BTreeMap::new();
    for gpu in gpus {
        let room = MAX_LENGTH - "gpu.".len() - ".memory".len();
        models.entry(cut(&words(&gpu.product), room)).or_insert((0, gpu.memory_mib)).0 += 1;
    }
    for (model, (count, memory_mib)) in models {
        labels.insert(format!("{MODEL_PREFIX}{model}.count"), count.to_string());
        labels.insert(format!("{MODEL_PREFIX}{model}.memory"), memory_mib.to_string());
    }
}

/// Labels as a file has them: a line `key=value` for each.
pub(crate) fn lines(labels: &BTreeMap<String, String>) -> String {
    labels.iter().fold(String::new(), |text, (key, value)| text + key + "=" + value + "\n")
}

/// Drops what a label's value cannot hold, and joins words with `-`.
fn words(name: &str) -> String {
    let allowed: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ')).collect();
    allowed.split_whitespace().collect::<Vec<_>>().join("-")
}

/// At most so many characters, beginning and ending with a letter or digit as a label's value must.
fn cut(words: &str, room: usize) -> String {
    let is_edge = |c: char| !c.is_ascii_alphanumeric();
    let cut: String = words.trim_start_matches(is_edge).chars().take(room).collect();
    cut.trim_end_matches(is_edge).to_owned()
}

/// Makes a label's value of a name.
fn sanitise(name: &str) -> String {
    cut(&words(name), MAX_LENGTH)
}

#[cfg(test)]
mod tests;
