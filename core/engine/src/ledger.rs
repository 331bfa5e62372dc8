//! Who has what: the amounts and devices that pods hold on each node.
//!
//! The ledger is a sum over pods: what a node has left is always its own amounts less those of the pods that are placed on it,
//! so that it can be rebuilt from pods alone, in any order. A device may be claimed by two pods only if the cluster says so
//! (somebody else bound them); it is free again when the last claim is gone, and is never given to a third.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gantry_model::{Assignment, MAX_GPUS, Node, Request, Resources};

use crate::device_set::{DeviceSets, GpuMask};

/// Where a node stands in [`Ledger::slots`]. Slots are used again after a node and all its pods are gone.
pub(crate) type NodeId = usize;
/// Where a pod stands in the state's list.
pub(crate) type PodId = usize;

/// A node and what is taken of it.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) name: Arc<str>,
    /// `None` while pods are placed on a node that does not (yet, or any more) exist.
    pub(crate) node: Option<Node>,
    pub(crate) used: Used,
    pub(crate) used_gpus: u64,
    /// Pods whose GPUs are not known by id.
    pub(crate) unknown: BTreeSet<PodId>,
    pub(crate) pods: BTreeSet<PodId>,
    /// Claims by position of the GPU. More than one only if the cluster says so.
    claims: Vec<u32>,
    claimed: GpuMask,
    healthy: GpuMask,
    /// Index of the tables for this kind of node; `None` where GPUs are only counted.
    pub(crate) sets: Option<usize>,
    /// An order of GPU models by what they are worth; zero without GPUs.
    pub(crate) worth: i64,
}

/// Sums over pods. Wider than the amounts, so that adding up never overflows.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) cpu_milli: u128,
    pub(crate) memory_bytes: u128,
    pub(crate) ephemeral_bytes: u128,
    pub(crate) pods: u128,
    pub(crate) extended: BTreeMap<Arc<str>, u128>,
}

impl Used {
    fn change(&mut self, by: &Resources, op: fn(u128, u128) -> u128) {
        self.cpu_milli = op(self.cpu_milli, by.cpu_milli.into());
        self.memory_bytes = op(self.memory_bytes, by.memory_bytes.into());
        self.ephemeral_bytes = op(self.ephemeral_bytes, by.ephemeral_bytes.into());
        self.pods = op(self.pods, by.pods.into());
        for (name, amount) in &by.extended {
            let sum = self.extended.entry(name.clone()).or_default();
            *sum = op(*sum, (*amount).into());
            if *sum == 0 {
                self.extended.remove(name);
            }
        }
    }
}

/// GPUs that a node can give to a new pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreeGpus {
    /// How many.
    pub(crate) count: u32,
    /// Which may be chosen from; zero where GPUs are only counted.
    pub(crate) mask: GpuMask,
}

impl Slot {
    /// Amount left of one resource; negative amounts count as none.
    fn left(total: u64, used: u128) -> u64 {
        u64::try_from(u128::from(total).saturating_sub(used)).unwrap_or(0)
    }

    /// What pods have left on the node, GPUs apart.
    pub(crate) fn free(&self, node: &Node) -> Resources {
        let total = &node.allocatable;
        let used = |name: &Arc<str>| self.used.extended.get(name).copied().unwrap_or(0);
        Resources {
            cpu_milli: Self::left(total.cpu_milli, self.used.cpu_milli),
            memory_bytes: Self::left(total.memory_bytes, self.used.memory_bytes),
            ephemeral_bytes: Self::left(total.ephemeral_bytes, self.used.ephemeral_bytes),
            pods: Self::left(total.pods, self.used.pods),
            extended: total
                .extended
                .iter()
                .map(|(name, t)| (name.clone(), Self::left(*t, used(name))))
                .collect(),
        }
    }

    /// Whether all amounts of `request` fit, GPUs apart. An amount of zero fits everywhere, even on an overcommitted node.
    pub(crate) fn has_room(&self, node: &Node, request: &Resources) -> bool {
        let fits =
            |asked: u64, used: u128, total: u64| asked == 0 || used + u128::from(asked) <= u128::from(total);
        let (used, total) = (&self.used, &node.allocatable);
        fits(request.cpu_milli, used.cpu_milli, total.cpu_milli)
            && fits(request.memory_bytes, used.memory_bytes, total.memory_bytes)
            && fits(request.ephemeral_bytes, used.ephemeral_bytes, total.ephemeral_bytes)
            && fits(request.pods, used.pods, total.pods)
            && request.extended.iter().all(|(name, asked)| {
                fits(*asked, used.extended.get(name).copied().unwrap_or(0), total.extended_amount(name))
            })
    }

    /// The GPUs that a new pod may get.
    pub(crate) fn free_gpus(&self, node: &Node) -> FreeGpus {
        // An unhealthy GPU is not among the allocatable ones: what a pod still has of them takes none of the others away.
        let apart = u64::from((self.claimed & !self.healthy).count_ones());
        let counted = self.used_gpus.saturating_sub(apart);
        let by_count = u64::from(node.allocatable_gpus).saturating_sub(counted);
        let by_count = u32::try_from(by_count).unwrap_or(u32::MAX);
        if self.sets.is_none() {
            return FreeGpus { count: by_count, mask: 0 };
        }
        // Which GPUs a pod of unknown devices uses, nobody knows: none can be given away.
        let mask = if self.unknown.is_empty() { self.healthy & !self.claimed } else { 0 };
        FreeGpus { count: by_count.min(mask.count_ones()), mask }
    }

    /// Number of GPUs that are unhealthy and not in use.
    pub(crate) fn unhealthy_free(&self) -> u32 {
        (self.all() & !self.healthy & !self.claimed).count_ones()
    }

    fn all(&self) -> GpuMask {
        (0..self.claims.len()).fold(0, |mask, i| mask | 1 << i)
    }

    fn position(&self, gpu: &gantry_model::GpuId) -> Option<usize> {
        self.node.as_ref()?.gpus.iter().take(MAX_GPUS).position(|known| known.id == *gpu)
    }

    fn claim(&mut self, assignment: &Assignment, change: fn(u32) -> u32) {
        for gpu in assignment.gpus() {
            // A GPU that the node does not report (any more) cannot be given to anybody.
            if let Some(position) = self.position(gpu) {
                self.claims[position] = change(self.claims[position]);
                let bit = 1 << position;
                self.claimed =
                    if self.claims[position] > 0 { self.claimed | bit } else { self.claimed & !bit };
            }
        }
    }
}

/// What a placed pod holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: NodeId,
    /// `None` where the pod has GPUs and it is not known which.
    pub(crate) assignment: Option<Assignment>,
}

/// All nodes, and what is taken of them.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) slots: Vec<Slot>,
    pub(crate) by_name: BTreeMap<Arc<str>, NodeId>,
    pub(crate) sets: Vec<DeviceSets>,
    vacant: Vec<NodeId>,
}

impl Ledger {
    /// The slot of this name, made where there is none.
    pub(crate) fn slot_id(&mut self, name: &Arc<str>) -> NodeId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let slot = Slot { name: name.clone(), ..Slot::default() };
        let id = if let Some(id) = self.vacant.pop() {
            self.slots[id] = slot;
            id
        } else {
            self.slots.push(slot);
            self.slots.len() - 1
        };
        self.by_name.insert(name.clone(), id);
        id
    }

    /// Sets what is known of a node. `places` are the assignments of the pods on it.
    pub(crate) fn set_node(
        &mut self,
        node: Option<Node>,
        id: NodeId,
        places: &[(PodId, Option<Assignment>)],
    ) {
        let sets = node.as_ref().filter(|node| !node.gpus.is_empty()).map(|node| self.sets_for(node));
        let slot = &mut self.slots[id];
        let gpus = node.as_ref().map_or(&[][..], |node| &node.gpus[..node.gpus.len().min(MAX_GPUS)]);
        slot.claims = vec![0; gpus.len()];
        slot.claimed = 0;
        slot.healthy = (0..gpus.len()).filter(|i| gpus[*i].health.is_healthy()).fold(0, |m, i| m | 1 << i);
        slot.worth = gpus.iter().map(worth).max().unwrap_or(0);
        slot.sets = sets;
        slot.node = node;
        for (_, assignment) in places {
            if let Some(assignment) = assignment {
                slot.claim(assignment, |claims| claims + 1);
            }
        }
        self.drop_if_empty(id);
    }

    fn sets_for(&mut self, node: &Node) -> usize {
        let known = self.sets.iter().position(|sets| sets.describes(&node.topology, &node.gpus));
        known.unwrap_or_else(|| {
            self.sets.push(DeviceSets::new(&node.topology, &node.gpus));
            self.sets.len() - 1
        })
    }

    /// Enters what `pod` holds.
    pub(crate) fn occupy(&mut self, pod: PodId, request: &Request, place: &Place) {
        let slot = &mut self.slots[place.node];
        slot.pods.insert(pod);
        slot.used.change(&request.total, |sum, amount| sum + amount);
        slot.used_gpus += u64::from(request.gpus);
        match &place.assignment {
            Some(assignment) => slot.claim(assignment, |claims| claims + 1),
            None => {
                slot.unknown.insert(pod);
            }
        }
    }

    /// Takes out what `pod` holds; the exact inverse of [`Ledger::occupy`].
    pub(crate) fn vacate(&mut self, pod: PodId, request: &Request, place: &Place) {
        let slot = &mut self.slots[place.node];
        slot.pods.remove(&pod);
        slot.used.change(&request.total, |sum, amount| sum - amount);
        slot.used_gpus -= u64::from(request.gpus);
        match &place.assignment {
            Some(assignment) => slot.claim(assignment, |claims| claims - 1),
            None => {
                slot.unknown.remove(&pod);
            }
        }
        self.drop_if_empty(place.node);
    }

    fn drop_if_empty(&mut self, id: NodeId) {
        let slot = &self.slots[id];
        if slot.node.is_none() && slot.pods.is_empty() && self.by_name.remove(&slot.name).is_some() {
            self.vacant.push(id);
        }
    }
}

/// An order of GPU models by what they are worth to jobs that need much: memory first, then generation.
fn worth(gpu: &gantry_model::Gpu) -> i64 {
    let (major, minor) = gpu.compute_capability;
    let gib = i64::try_from(gpu.memory_mib >> 10).unwrap_or(i64::MAX).min(511);
    (gib << 7 | i64::from(major.min(12) * 10 + minor.min(7))).max(1)
}
