//! Why a pod waits, in data.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use gantry_model::{Node, PodKey, Reason, Request, Requirement, Resources, Taint};

use crate::ledger::{Ledger, Slot};
use crate::shape::{Obstacle, Shape};
use crate::state::Phase;

/// One reason, and the nodes that it holds for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason; numbers are those of the node that comes nearest.
    pub reason: Reason,
    /// The number of nodes for which this is the first reason.
    pub nodes: u32,
}

/// Why a pod waits, node by node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusals {
    /// All nodes of the cluster.
    pub nodes: u32,
    /// The nodes that would take the pod: it waits for its group, or for its turn.
    pub fitting: u32,
    /// The reasons, by code. Every node that does not fit is counted once.
    pub list: Vec<Refusal>,
    /// The smallest change of the pod after which it would start now; none where it fits as it is.
    pub nearest: Option<Nearest>,
}

/// A node that would take the pod if the pod were changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nearest {
    /// The node.
    pub node: Arc<str>,
    /// What would have to change, all of it.
    pub changes: Vec<PodChange>,
}

/// A change of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodChange {
    /// Ask for at most this many GPUs.
    Gpus(u32),
    /// Request at most this much CPU, in thousandths of a core.
    CpuMilli(u64),
    /// Request at most this much host memory, in bytes.
    MemoryBytes(u64),
    /// Request at most this much ephemeral storage, in bytes.
    EphemeralBytes(u64),
    /// Ask for at most this much of an extended resource.
    Resource(Arc<str>, u64),
    /// Tolerate this taint.
    Tolerate(Taint),
    /// Do without this requirement on labels.
    Without(Requirement),
}

impl fmt::Display for PodChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpus(count) => write!(f, "nvidia.com/gpu: {count}"),
            Self::CpuMilli(milli) => write!(f, "cpu: {milli}m"),
            Self::MemoryBytes(bytes) => write!(f, "memory: {}Mi", bytes >> 20),
            Self::EphemeralBytes(bytes) => write!(f, "ephemeral-storage: {}Mi", bytes >> 20),
            Self::Resource(name, amount) => write!(f, "{name}: {amount}"),
            Self::Tolerate(taint) => write!(f, "a toleration for {taint}"),
            Self::Without(requirement) => write!(f, "no requirement {requirement}"),
        }
    }
}

impl Refusals {
    /// The codes of all reasons.
    pub fn codes(&self) -> Vec<&'static str> {
        let mut codes: Vec<_> = self.list.iter().map(|refusal| refusal.reason.entry().code).collect();
        codes.dedup();
        codes
    }

    /// What must change for a pod to be told again: the codes, and whether all pods of its group exist.
    pub(crate) fn gist(&self) -> Gist {
        let is_partial = |refusal: &Refusal| match &refusal.reason {
            Reason::GangIncomplete { min_members, members, .. } => members < min_members,
            _ => false,
        };
        (self.codes(), self.list.iter().any(is_partial))
    }

    /// The same for another pod of the same shape, which may ask for the resource that nobody offers in another field.
    pub(crate) fn for_pod(self: &Arc<Self>, request: &Request) -> Arc<Self> {
        for (position, refusal) in self.list.iter().enumerate() {
            if let Reason::ResourceNotOffered { resource, .. } = &refusal.reason {
                let reason = not_offered(request, resource, request.total.extended_amount(resource));
                if reason != refusal.reason {
                    let mut own = Self::clone(self);
                    own.list[position].reason = reason;
                    return Arc::new(own);
                }
            }
        }
        self.clone()
    }
}

pub(crate) type Gist = (Vec<&'static str>, bool);

/// As the message of a pod's condition: `0/5 nodes are available: 3 × G1001 …`.
impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} nodes are available", self.fitting, self.nodes)?;
        for (position, Refusal { reason, nodes }) in self.list.iter().enumerate() {
            let separator = if position == 0 { ": " } else { "; " };
            if *nodes > 0 {
                write!(f, "{separator}{nodes} × {reason}")?;
            } else {
                write!(f, "{separator}{reason}")?;
            }
        }
        if let Some(Nearest { node, changes }) = &self.nearest {
            let changes: Vec<_> = changes.iter().map(PodChange::to_string).collect();
            write!(f, ". Would start now on {node} with {}", changes.join(" and "))?;
        }
        Ok(())
    }
}

/// Where a pod stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The pod.
    pub pod: PodKey,
    /// How far it has come.
    pub phase: Phase,
    /// The node that it is placed on, if it is.
    pub node: Option<Arc<str>>,
    /// A reason that holds whatever the nodes have: gates, a failed binding.
    pub reason: Option<Reason>,
    /// Why no node takes it, if it waits for one. Empty `list`: it fits, and its turn has not come.
    pub refusals: Option<Refusals>,
    /// Waiting pods with GPUs that go first.
    pub ahead: usize,
    /// The first few of them.
    pub first_ahead: Vec<PodKey>,
}

/// Everything that keeps a pod from one node, in the order in which it is looked at.
fn obstacles(shape: &Shape, slot: &Slot, node: &Node) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let unmet = shape.constraints.unmet(&node.name, &node.labels);
    let mismatch = |requirement| Reason::NodeSelectorMismatch { requirement, offered: Vec::new() };
    reasons.extend(unmet.requirements.into_iter().map(mismatch));
    if unmet.has_only_empty_terms {
        reasons.push(Reason::NodeAffinityEmpty {});
    }
    reasons.extend(shape.untolerated(node).map(|obstacle| match obstacle {
        Obstacle::Cordoned => Reason::NodeCordoned {},
        Obstacle::NotReady => Reason::NodeNotReady {},
        Obstacle::Taint(taint) => Reason::UntoleratedTaint { taint: taint.clone() },
    }));
    let free = slot.free_gpus(node);
    if free.count < shape.gpus {
        let (requested, unhealthy) = (shape.gpus, slot.unhealthy_free());
        reasons.push(
            if slot.sets.is_some() && !slot.unknown.is_empty() && node.allocatable_gpus >= requested {
                Reason::GpuUseUnknown {}
            } else if free.count + unhealthy >= requested {
                Reason::GpuUnhealthy { requested, unhealthy }
            } else {
                Reason::InsufficientGpu {
                    requested,
                    most_free: free.count,
                    most_at_all: node.allocatable_gpus,
                }
            },
        );
    }
    let (asked, left) = (&shape.total, slot.free(node));
    let short = |asked: u64, left: u64| asked > 0 && asked > left;
    if short(asked.cpu_milli, left.cpu_milli) {
        let (requested_milli, most_free_milli) = (asked.cpu_milli, left.cpu_milli);
        reasons.push(Reason::InsufficientCpu { requested_milli, most_free_milli });
    }
    if short(asked.memory_bytes, left.memory_bytes) {
        let (requested_bytes, most_free_bytes) = (asked.memory_bytes, left.memory_bytes);
        reasons.push(Reason::InsufficientMemory { requested_bytes, most_free_bytes });
    }
    if short(asked.ephemeral_bytes, left.ephemeral_bytes) {
        let (requested_bytes, most_free_bytes) = (asked.ephemeral_bytes, left.ephemeral_bytes);
        reasons.push(Reason::InsufficientEphemeralStorage { requested_bytes, most_free_bytes });
    }
    if short(asked.pods, left.pods) {
        reasons.push(Reason::TooManyPods { most_at_all: node.allocatable.pods });
    }
    for (resource, amount) in &asked.extended {
        if short(*amount, left.extended_amount(resource)) {
            let (resource, requested) = (resource.clone(), *amount);
            let most_free = left.extended_amount(&resource);
            reasons.push(Reason::InsufficientResource { resource, requested, most_free });
        }
    }
    reasons
}

/// What the pod would have to change to overcome a reason; `None` where it cannot.
fn change_for(reason: &Reason) -> Option<PodChange> {
    match reason {
        Reason::InsufficientGpu { most_free, .. } => (*most_free > 0).then_some(PodChange::Gpus(*most_free)),
        Reason::InsufficientCpu { most_free_milli, .. } => {
            (*most_free_milli > 0).then_some(PodChange::CpuMilli(*most_free_milli))
        }
        Reason::InsufficientMemory { most_free_bytes, .. } => {
            (most_free_bytes >> 20 > 0).then_some(PodChange::MemoryBytes(*most_free_bytes))
        }
        Reason::InsufficientEphemeralStorage { most_free_bytes, .. } => {
            (most_free_bytes >> 20 > 0).then_some(PodChange::EphemeralBytes(*most_free_bytes))
        }
        Reason::InsufficientResource { resource, most_free, .. } => {
            Some(PodChange::Resource(resource.clone(), *most_free))
        }
        Reason::UntoleratedTaint { taint } => Some(PodChange::Tolerate(taint.clone())),
        Reason::NodeSelectorMismatch { requirement, .. } => Some(PodChange::Without(requirement.clone())),
        _ => None,
    }
}

/// How much a change takes from the pod, so that the least can be proposed: first the number of changes, then those of
/// amounts before those of constraints, then the smaller loss.
fn loss(shape: &Shape, changes: &[PodChange]) -> (usize, usize, u64) {
    let part = |asked: u64, left: u64| (asked - left.min(asked)).saturating_mul(1000) / asked.max(1);
    let mut constraints = 0;
    let mut lost = 0;
    for change in changes {
        lost += match change {
            PodChange::Gpus(left) => part(shape.gpus.into(), (*left).into()),
            PodChange::CpuMilli(left) => part(shape.total.cpu_milli, *left),
            PodChange::MemoryBytes(left) => part(shape.total.memory_bytes, *left),
            PodChange::EphemeralBytes(left) => part(shape.total.ephemeral_bytes, *left),
            PodChange::Resource(name, left) => part(shape.total.extended_amount(name), *left),
            PodChange::Tolerate(_) | PodChange::Without(_) => {
                constraints += 1;
                0
            }
        };
    }
    (changes.len(), constraints, lost)
}

/// Why pods of this shape wait now. `request` tells the fields for messages.
pub(crate) fn refusals(shape: &Shape, request: &Request, ledger: &Ledger) -> Refusals {
    let nodes = || {
        ledger.by_name.values().filter_map(|id| {
            let slot = &ledger.slots[*id];
            slot.node.as_ref().map(|node| (slot, node))
        })
    };
    let count = u32::try_from(nodes().count()).unwrap_or(u32::MAX);
    if count == 0 {
        return everywhere(Reason::NoNodes {}, 0);
    }
    if shape.gpus > 0 && nodes().all(|(_, node)| node.allocatable_gpus == 0 && node.gpus.is_empty()) {
        return everywhere(Reason::GpuNotOffered { requested: shape.gpus }, count);
    }
    let offered = nodes().fold(Resources::default(), |sum, (_, node)| sum.max(&node.allocatable));
    let missing =
        shape.total.extended.iter().find(|(name, asked)| **asked > 0 && offered.extended_amount(name) == 0);
    if let Some((name, asked)) = missing {
        return everywhere(not_offered(request, name, *asked), count);
    }
    let mut merged: BTreeMap<(&'static str, String), (Reason, u32)> = BTreeMap::new();
    let mut nearest: Option<((usize, usize, u64), Nearest)> = None;
    let mut fitting = 0;
    for (slot, node) in nodes() {
        let reasons = obstacles(shape, slot, node);
        let Some(first) = reasons.first() else {
            fitting += 1;
            continue;
        };
        let entry = merged.entry((first.entry().code, kind(first))).or_insert_with(|| (first.clone(), 0));
        entry.1 += 1;
        keep_nearest(&mut entry.0, first);
        if let Some(changes) = reasons.iter().map(change_for).collect::<Option<Vec<_>>>() {
            let loss = loss(shape, &changes);
            if nearest.as_ref().is_none_or(|(least, _)| loss < *least) {
                nearest = Some((loss, Nearest { node: node.name.clone(), changes }));
            }
        }
    }
    let mut list: Vec<_> = merged.into_values().map(|(reason, nodes)| Refusal { reason, nodes }).collect();
    for refusal in &mut list {
        if let Reason::NodeSelectorMismatch { requirement, offered } = &mut refusal.reason {
            let is_name = &*requirement.key == "metadata.name";
            let value = |node: &Node| {
                if is_name { Some(node.name.clone()) } else { node.labels.get(&requirement.key).cloned() }
            };
            let mut values: Vec<_> = nodes().filter_map(|(_, node)| value(node)).collect();
            values.sort_unstable();
            values.dedup();
            values.truncate(5);
            *offered = values;
        }
    }
    let nearest = nearest.filter(|_| fitting == 0).map(|(_, nearest)| nearest);
    Refusals { nodes: count, fitting, list, nearest }
}

/// One reason that holds whatever the node is.
fn everywhere(reason: Reason, nodes: u32) -> Refusals {
    Refusals { nodes, fitting: 0, list: vec![Refusal { reason, nodes }], nearest: None }
}

fn not_offered(request: &Request, resource: &Arc<str>, asked: u64) -> Reason {
    let origin = request.origins.get(resource);
    Reason::ResourceNotOffered {
        resource: resource.clone(),
        field: origin.map_or_else(|| format!("resources.limits[{resource}] = {asked}"), |o| o.field.clone()),
        vocabulary: origin.and_then(|origin| origin.vocabulary),
    }
}

/// What distinguishes two occurrences of one code from another.
fn kind(reason: &Reason) -> String {
    match reason {
        Reason::UntoleratedTaint { taint } => taint.to_string(),
        Reason::NodeSelectorMismatch { requirement, .. } => requirement.to_string(),
        Reason::InsufficientResource { resource, .. } => resource.to_string(),
        _ => String::new(),
    }
}

/// Lets `kept` carry the numbers of the node that comes nearest.
fn keep_nearest(kept: &mut Reason, other: &Reason) {
    let raise = |kept: &mut u64, other: u64| *kept = (*kept).max(other);
    match (kept, other) {
        (
            Reason::InsufficientGpu { most_free, most_at_all, .. },
            Reason::InsufficientGpu { most_free: free, most_at_all: at_all, .. },
        ) => {
            *most_free = (*most_free).max(*free);
            *most_at_all = (*most_at_all).max(*at_all);
        }
        (Reason::GpuUnhealthy { unhealthy, .. }, Reason::GpuUnhealthy { unhealthy: other, .. }) => {
            *unhealthy = (*unhealthy).max(*other);
        }
        (
            Reason::InsufficientCpu { most_free_milli, .. },
            Reason::InsufficientCpu { most_free_milli: other, .. },
        ) => raise(most_free_milli, *other),
        (
            Reason::InsufficientMemory { most_free_bytes, .. },
            Reason::InsufficientMemory { most_free_bytes: other, .. },
        )
        | (
            Reason::InsufficientEphemeralStorage { most_free_bytes, .. },
            Reason::InsufficientEphemeralStorage { most_free_bytes: other, .. },
        ) => raise(most_free_bytes, *other),
        (
            Reason::InsufficientResource { most_free, .. },
            Reason::InsufficientResource { most_free: other, .. },
        ) => {
            raise(most_free, *other);
        }
        (Reason::TooManyPods { most_at_all }, Reason::TooManyPods { most_at_all: other }) => {
            raise(most_at_all, *other);
        }
        _ => {}
    }
}
