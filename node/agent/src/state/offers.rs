//! What the kubelet is offered: the ids of each resource, what they mean, and checks of what it asks for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use gantry_api::IdentityMode;
use gantry_model::{Gpu, GpuId, Partition};
use gantry_proto::deviceplugin::{Device, HEALTHY, NumaNode, TopologyInfo, UNHEALTHY};

use super::{Held, Position, State};
use crate::Error;

/// What the ids of slots begin with.
const SLOT: &str = "slot-";

/// What stands between a device and the number of a share.
const SHARE: &str = "::";

/// The device lists by resource.
pub(crate) type Lists = BTreeMap<Arc<str>, Vec<Device>>;

/// One id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) id: String,
    pub(super) resource: Arc<str>,
    pub(super) gpu: usize,
    pub(super) partition: Option<usize>,
    pub(super) replica: Option<u32>,
    /// The slot, where the id is one.
    pub(super) slot: Option<usize>,
}

impl Unit {
    pub(super) fn position(&self) -> Position {
        Position { gpu: self.gpu, partition: self.partition }
    }
}

/// Every id.
#[derive(Debug, Default)]
pub(super) struct Offers {
    /// Slots first, then by card, partition and share.
    units: Vec<Unit>,
    by_id: HashMap<String, usize>,
}

impl Offers {
    pub(super) fn units(&self) -> impl Iterator<Item = &Unit> {
        self.units.iter()
    }

    pub(super) fn of<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a Unit> {
        self.units.iter().filter(move |unit| *unit.resource == *resource)
    }

    pub(super) fn at(&self, index: usize) -> &Unit {
        &self.units[index]
    }

    /// The position of an id that is offered.
    pub(super) fn index(&self, id: &str) -> usize {
        self.by_id.get(id).copied().unwrap_or_default()
    }

    pub(super) fn get(&self, id: &str) -> Option<&Unit> {
        self.by_id.get(id).map(|at| &self.units[*at])
    }
}

/// A device that a container is to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) partition: Option<&'a Partition>,
    /// Whether others may have it too.
    pub(crate) is_shared: bool,
}

impl Part<'_> {
    /// The UUID.
    pub(crate) fn id(&self) -> &GpuId {
        self.partition.map_or(&self.gpu.id, |partition| &partition.id)
    }
}

impl State {
    /// Makes the offers anew. Slots keep their GPUs in the given order; GPUs that are new among the slots fill gaps in index order.
    pub(super) fn rebuild(&mut self, order: &[Option<GpuId>]) {
        let wanted = self.wanted();
        // As long as somebody has a GPU it is offered as it was granted: the kubelet counts by ids, and a second id would be a second GPU.
        let granted = self.granted_ids();
        let is_slot = |held: &Held| {
            let as_slot = match granted.get(held) {
                Some(id) => gantry_shim::is_slot(id),
                None => self.mode == IdentityMode::Assignment,
            };
            as_slot && held.replica.is_none() && held.resource == self.primary
        };
        let position = |id: &GpuId| self.gpus.iter().position(|gpu| gpu.id == *id);
        let mut rest: BTreeSet<usize> =
            wanted.iter().filter(|held| is_slot(held)).filter_map(|held| position(&held.device)).collect();
        let mut slots: Vec<Option<usize>> = order
            .iter()
            .map(|id| id.as_ref().and_then(position).filter(|position| rest.remove(position)))
            .collect();
        let mut rest = rest.into_iter();
        for slot in &mut slots {
            *slot = slot.or_else(|| rest.next());
        }
        slots.extend(rest.map(Some));
        while slots.last() == Some(&None) {
            slots.pop();
        }
        let mut units: Vec<Unit> = slots
            .iter()
            .enumerate()
            .filter_map(|(slot, gpu)| {
                Some(Unit {
                    id: format!("{SLOT}{slot}"),
                    resource: Arc::clone(&self.primary),
                    gpu: (*gpu)?,
                    partition: None,
                    replica: None,
                    slot: Some(slot),
                })
            })
            .collect();
        for held in &wanted {
            let Some(Position { gpu, partition }) = self.position(&held.device) else {
                continue;
            };
            // Of a partition with the card's name for a slot there is none.
            if partition.is_none() && is_slot(held) {
                continue;
            }
            let resource = Arc::clone(&held.resource);
            let id = match held.replica {
                None => held.device.to_string(),
                Some(replica) => format!("{}{SHARE}{replica}", held.device),
            };
            units.push(Unit { id, resource, gpu, partition, replica: held.replica, slot: None });
        }
        let by_id = units.iter().enumerate().map(|(at, unit)| (unit.id.clone(), at)).collect();
        self.slots = slots;
        self.offers = Offers { units, by_id };
    }

    /// Under which id everything that is held was granted, as far as that is known.
    fn granted_ids(&self) -> BTreeMap<&Held, &String> {
        let containers = self.pods.values().flat_map(|pod| pod.containers.values());
        containers.flat_map(|container| container.held.iter().zip(&container.devices)).collect()
    }

    /// What is to be offered: what is held, as it is held, and of the plan what does not contradict that.
    fn wanted(&self) -> Vec<Held> {
        let mut held: BTreeMap<Position, BTreeSet<Held>> = BTreeMap::new();
        for hold in self.holds() {
            if let Some(position) = self.position(&hold.device) {
                held.entry(position).or_default().insert(hold.clone());
            }
        }
        let mut wanted: BTreeMap<(Position, Option<u32>), Held> = BTreeMap::new();
        for entry in &self.plan.entries {
            let Some(position) = self.position(&entry.device) else {
                continue;
            };
            let related = held
                .range(Position { gpu: position.gpu, partition: None }..)
                .take_while(|(other, _)| other.gpu == position.gpu)
                .filter(|(other, _)| {
                    other.partition.is_none() || position.partition.is_none() || **other == position
                });
            let related: Vec<&Held> = related.flat_map(|(_, holds)| holds).collect();
            let shares: Vec<Option<u32>> = match entry.replicas {
                None => vec![None],
                Some(count) => (0..count).map(Some).collect(),
            };
            for replica in shares {
                let unit =
                    Held { resource: Arc::clone(&entry.resource), device: entry.device.clone(), replica };
                if related.iter().all(|hold| **hold == unit || compatible(hold, &unit)) {
                    wanted.insert((position, replica), unit);
                }
            }
        }
        for (position, holds) in held {
            for hold in holds {
                wanted.insert((position, hold.replica), hold);
            }
        }
        wanted.into_values().collect()
    }

    /// Every device list.
    pub(crate) fn lists(&self) -> Lists {
        let mut lists = Lists::new();
        for unit in self.offers.units() {
            lists.entry(Arc::clone(&unit.resource)).or_default().push(self.listed(unit));
        }
        lists
    }

    /// What the kubelet is told of one resource.
    #[cfg(test)]
    pub(crate) fn devices(&self) -> Vec<Device> {
        self.offers.of(&self.primary).map(|unit| self.listed(unit)).collect()
    }

    fn listed(&self, unit: &Unit) -> Device {
        // The NUMA node of a slot is not known before its GPU is, and a guess would mislead the topology manager.
        let numa = self.gpus[unit.gpu].numa_node.filter(|_| unit.slot.is_none());
        let healthy = self.fault(unit.position()).is_none();
        Device {
            id: unit.id.clone(),
            health: if healthy { HEALTHY } else { UNHEALTHY }.to_owned(),
            topology: numa.map(|node| TopologyInfo { nodes: vec![NumaNode { id: i64::from(node) }] }),
        }
    }

    pub(super) fn unit(&self, resource: &str, id: &str) -> Result<&Unit, Error> {
        let found = self.offers.get(id).filter(|unit| *unit.resource == *resource);
        found.ok_or_else(|| Error::UnknownDevice {
            id: id.chars().take(80).collect(),
            offered: self.offered(resource),
        })
    }

    pub(super) fn offered(&self, resource: &str) -> String {
        let mut units = self.offers.of(resource);
        let (first, last) = (units.next(), self.offers.of(resource).last());
        match (first, last) {
            (Some(first), Some(last)) if first.id != last.id => {
                format!(
                    "{} devices as {resource}, {} to {}",
                    2 + units.count().saturating_sub(1),
                    first.id,
                    last.id
                )
            }
            (Some(first), _) => format!("{} as {resource}", first.id),
            (None, _) => format!("no device as {resource}"),
        }
    }

    /// Whether all ids of a resource are slots.
    pub(crate) fn has_slots_alone(&self, resource: &str) -> bool {
        self.offers.of(resource).all(|unit| unit.slot.is_some())
    }

    /// Checks devices that the kubelet wants to hand to one container: all of them, or none. What they mean, each once, in its order;
    /// slots mean nothing yet.
    pub(crate) fn allocate(&self, resource: &str, ids: &[String]) -> Result<Vec<Part<'_>>, Error> {
        if ids.is_empty() {
            return Err(Error::NothingAsked { resource: resource.to_owned() });
        }
        let mut units: Vec<&Unit> = Vec::with_capacity(ids.len());
        for id in ids {
            let unit = self.unit(resource, id)?;
            if let Some(fault) = self.fault(unit.position()) {
                return Err(Error::UnhealthyDevice {
                    id: id.clone(),
                    gpu: self.device_id(unit.position()).clone(),
                    fault: fault.clone(),
                });
            }
            units.push(unit);
        }
        let fails =
            self.config.sharing.as_ref().is_some_and(|sharing| sharing.fail_requests_greater_than_one);
        if fails && ids.len() > 1 && units.iter().any(|unit| unit.replica.is_some()) {
            return Err(Error::OneShare { resource: resource.to_owned(), asked: ids.len() });
        }
        let mut parts: Vec<Part<'_>> = Vec::with_capacity(units.len());
        for unit in units.into_iter().filter(|unit| unit.slot.is_none()) {
            let gpu = &self.gpus[unit.gpu];
            let partition = unit.partition.and_then(|at| gpu.partitions.as_ref()?.get(at));
            let part = Part { gpu, partition, is_shared: unit.replica.is_some() };
            if !parts.iter().any(|known| known.id() == part.id()) {
                parts.push(part);
            }
        }
        Ok(parts)
    }
}

/// Whether two that are on one card can be with two owners: two shares of one device, or two partitions.
pub(super) fn compatible(a: &Held, b: &Held) -> bool {
    if a.device == b.device {
        matches!((a.replica, b.replica), (Some(a), Some(b)) if a != b)
    } else {
        // Two cards, or two partitions of one; a card and its own partition are told apart by the caller.
        false
    }
}

/// What an id means that is not offered now: a device, and a share of it.
pub(super) fn split(id: &str) -> Option<(GpuId, Option<u32>)> {
    match id.split_once(SHARE) {
        None => Some((id.parse().ok()?, None)),
        Some((device, share)) => {
            let plain = share.bytes().all(|byte| byte.is_ascii_digit());
            Some((device.parse().ok()?, Some(share.parse().ok().filter(|_| plain)?)))
        }
    }
}
