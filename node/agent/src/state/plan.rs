//! Which device is offered under which name and how often: a function of configuration and cards. The rules are those of NVIDIA's
//! device plugin; unlike its released builds, names by model and `devices` of a share are honoured.

use std::fmt;
use std::sync::Arc;

use gantry_model::{Gpu, GpuId};
use gantry_nvidia_config::{
    Config, DeviceRef, MigStrategy, ResourceName, ResourceRule, SharedDevices, SharedResource, SharingKind,
};

/// How devices are to be offered.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// By card, then partition.
    pub(crate) entries: Vec<Entry>,
    /// What an operator should know: parts of the configuration that mean nothing on this node.
    pub(crate) notes: Vec<String>,
}

/// One device and the resource that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) resource: Arc<str>,
    /// The card, or the partition.
    pub(crate) device: GpuId,
    /// Shares; `None` for a device that one container has alone.
    pub(crate) replicas: Option<u32>,
}

/// Why a configuration does not fit the cards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misfit {
    #[error(
        "flags.migStrategy: single: GPU {with} is in MIG mode and GPU {without} is not; change one of them, or use mixed"
    )]
    PartlyMig { with: u32, without: u32 },
    #[error(
        "flags.migStrategy: single: GPU {0} is in MIG mode and has no partitions; create them, or switch MIG mode off"
    )]
    NoPartitions(u32),
    #[error(
        "flags.migStrategy: single: partitions {first} and {other} are of two kinds, {first_profile} and {other_profile}; make them alike, or use mixed"
    )]
    Profiles { first: Place, first_profile: Arc<str>, other: Place, other_profile: Arc<str> },
    #[error("sharing.mps: {resource} has partitions, and MPS cannot share them; use timeSlicing")]
    MpsOnPartitions { resource: Arc<str> },
    #[error(
        "sharing: {resource}: devices: invalid value {wanted}: the node has {there} of them; write a smaller number, or all"
    )]
    Count { resource: ResourceName, wanted: u32, there: usize },
    #[error(
        "sharing: {resource}: devices: invalid value {device:?}: {resource} has no such device on this node; {there}"
    )]
    Device { resource: ResourceName, device: String, there: String },
    #[error(
        "partition profile {profile:?} makes no name of a resource: {rule}; give it a name under resources.mig"
    )]
    Profile { profile: Arc<str>, rule: &'static str },
}

/// A device as device lists name it: `0`, or `0:1` for a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) gpu: u32,
    pub(crate) partition: Option<u32>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partition {
            None => write!(f, "{}", self.gpu),
            Some(partition) => write!(f, "{}:{partition}", self.gpu),
        }
    }
}

/// A device before it is shared.
struct Candidate<'a> {
    resource: Arc<str>,
    device: &'a GpuId,
    place: Place,
}

/// Decides how the cards of a node are offered. `primary` is the resource of whole GPUs that no rule names.
pub(crate) fn plan(config: &Config, primary: &str, gpus: &[Gpu]) -> Result<Plan, Misfit> {
    let mut notes = Vec::new();
    let candidates = candidates(config, primary, gpus, &mut notes)?;
    let mut replicas: Vec<Option<(&SharedResource, u32)>> = vec![None; candidates.len()];
    for shared in config.sharing.iter().flat_map(|sharing| &sharing.resources) {
        let of: Vec<usize> =
            (0..candidates.len()).filter(|i| *candidates[*i].resource == *shared.name.as_str()).collect();
        if of.is_empty() {
            notes.push(format!("sharing: {}: this node has none, so nothing of it is shared", shared.name));
            continue;
        }
        let is_mps = config.sharing.as_ref().is_some_and(|sharing| sharing.kind == SharingKind::Mps);
        if is_mps && of.iter().any(|i| candidates[*i].place.partition.is_some()) {
            return Err(Misfit::MpsOnPartitions { resource: Arc::clone(&candidates[of[0]].resource) });
        }
        for i in shared_devices(shared, &candidates, &of)? {
            replicas[i] = Some((shared, shared.replicas));
        }
    }
    let entries = candidates
        .into_iter()
        .zip(replicas)
        .map(|(candidate, shared)| Entry {
            resource: match shared {
                Some((shared, _)) => shared.offered_as().as_str().into(),
                None => candidate.resource,
            },
            device: candidate.device.clone(),
            replicas: shared.map(|(_, replicas)| replicas),
        })
        .collect();
    Ok(Plan { entries, notes })
}

fn candidates<'a>(
    config: &Config,
    primary: &str,
    gpus: &'a [Gpu],
    notes: &mut Vec<String>,
) -> Result<Vec<Candidate<'a>>, Misfit> {
    let strategy = config.mig_strategy;
    if strategy == MigStrategy::Single {
        uniform(gpus)?;
    }
    let mut candidates = Vec::new();
    for gpu in gpus {
        let partitions = gpu.partitions.as_deref().filter(|_| strategy != MigStrategy::None);
        let Some(partitions) = partitions else {
            let place = Place { gpu: gpu.index, partition: None };
            let name = named(&config.resources.gpus, &gpu.product).unwrap_or(primary);
            candidates.push(Candidate { resource: name.into(), device: &gpu.id, place });
            continue;
        };
        if partitions.is_empty() {
            notes.push(format!(
                "GPU {} is in MIG mode and has no partitions: nothing of it is offered",
                gpu.index
            ));
        }
        for partition in partitions {
            let rule = named(&config.resources.mig, &partition.profile);
            let resource: Arc<str> = match (rule, strategy) {
                (Some(name), _) => name.into(),
                (None, MigStrategy::Single) => primary.into(),
                // Several compute instances in one GPU instance: NVIDIA has no name for them.
                (None, _) if is_divided(&partition.profile) => {
                    notes.push(format!(
                        "Partition {} of GPU {} has the profile {}, for which there is no resource: name one under resources.mig",
                        partition.index, gpu.index, partition.profile
                    ));
                    continue;
                }
                (None, _) => match ResourceName::mig(&partition.profile) {
                    Ok(name) => name.as_str().into(),
                    Err(rule) => {
                        return Err(Misfit::Profile { profile: Arc::clone(&partition.profile), rule });
                    }
                },
            };
            let place = Place { gpu: gpu.index, partition: Some(partition.index) };
            candidates.push(Candidate { resource, device: &partition.id, place });
        }
    }
    Ok(candidates)
}

/// The name that the first matching rule gives.
fn named<'a>(rules: &'a [ResourceRule], model: &str) -> Option<&'a str> {
    rules.iter().find(|rule| rule.pattern.matches(model)).map(|rule| rule.name.as_str())
}

/// Whether a profile is a part of a GPU instance, as in `1c.3g.20gb`.
fn is_divided(profile: &str) -> bool {
    profile
        .split_once("c.")
        .is_some_and(|(slices, _)| !slices.is_empty() && slices.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What `migStrategy: single` asks of a node. One without any GPU in MIG mode is fine: whole clusters have one configuration.
fn uniform(gpus: &[Gpu]) -> Result<(), Misfit> {
    let Some(with) = gpus.iter().find(|gpu| gpu.partitions.is_some()) else {
        return Ok(());
    };
    if let Some(without) = gpus.iter().find(|gpu| gpu.partitions.is_none()) {
        return Err(Misfit::PartlyMig { with: with.index, without: without.index });
    }
    let mut first: Option<(Place, &Arc<str>)> = None;
    for gpu in gpus {
        let partitions = gpu.partitions.as_deref().unwrap_or_default();
        if partitions.is_empty() {
            return Err(Misfit::NoPartitions(gpu.index));
        }
        for partition in partitions {
            let place = Place { gpu: gpu.index, partition: Some(partition.index) };
            match first {
                None => first = Some((place, &partition.profile)),
                Some((known, profile)) if *profile != partition.profile => {
                    return Err(Misfit::Profiles {
                        first: known,
                        first_profile: Arc::clone(profile),
                        other: place,
                        other_profile: Arc::clone(&partition.profile),
                    });
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// Which of the devices `of` a resource are shared.
fn shared_devices(
    shared: &SharedResource,
    candidates: &[Candidate<'_>],
    of: &[usize],
) -> Result<Vec<usize>, Misfit> {
    match &shared.devices {
        SharedDevices::All => Ok(of.to_vec()),
        SharedDevices::Count(count) => {
            let wanted = usize::try_from(*count).unwrap_or(usize::MAX);
            if wanted > of.len() {
                let resource = shared.name.clone();
                return Err(Misfit::Count { resource, wanted: *count, there: of.len() });
            }
            Ok(of[..wanted].to_vec())
        }
        SharedDevices::List(list) => list
            .iter()
            .map(|device| {
                let is = |i: &&usize| {
                    let Candidate { place, device: id, .. } = &candidates[**i];
                    match device {
                        DeviceRef::Gpu(gpu) => (place.gpu, place.partition) == (*gpu, None),
                        DeviceRef::Partition(gpu, partition) => {
                            (place.gpu, place.partition) == (*gpu, Some(*partition))
                        }
                        DeviceRef::Uuid(uuid) => id.as_str() == uuid,
                    }
                };
                of.iter().find(is).copied().ok_or_else(|| Misfit::Device {
                    resource: shared.name.clone(),
                    device: match device {
                        DeviceRef::Gpu(gpu) => gpu.to_string(),
                        DeviceRef::Partition(gpu, partition) => format!("{gpu}:{partition}"),
                        DeviceRef::Uuid(uuid) => uuid.clone(),
                    },
                    there: there(candidates, of),
                })
            })
            .collect(),
    }
}

/// The places of a resource's devices, for an error.
fn there(candidates: &[Candidate<'_>], of: &[usize]) -> String {
    let places: Vec<String> = of.iter().take(16).map(|i| candidates[*i].place.to_string()).collect();
    let more = if of.len() > 16 { ", …" } else { "" };
    format!("it has {}{more}", places.join(", "))
}
