//! What placement looks at, so that pods that ask for the same share the work of finding a node.

use std::collections::BTreeSet;
use std::sync::Arc;

use gantry_model::{
    ContainerKind, Node, NodeConstraints, Request, Resources, Taint, TaintEffect, Toleration,
};

use crate::device_set::DeviceSets;
use crate::ledger::{NodeId, Slot};
use crate::state::QueueKey;
use crate::tree::MaxTree;

/// Every part of a request that decides where a pod fits and how well. Two pods of one shape are interchangeable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) total: Resources,
    pub(crate) gpus: u32,
    /// GPUs by container: how the set is divided.
    pub(crate) containers: Vec<(ContainerKind, u32)>,
    pub(crate) constraints: NodeConstraints,
    pub(crate) tolerations: Vec<Toleration>,
    /// The group of its pods: groups are decided one by one.
    pub(crate) group: Option<Arc<str>>,
}

impl Shape {
    pub(crate) fn of(request: &Request) -> Self {
        let with_gpus = request.containers.iter().filter(|container| container.gpus > 0);
        Self {
            total: request.total.clone(),
            gpus: request.gpus,
            containers: with_gpus.map(|container| (container.kind, container.gpus)).collect(),
            constraints: request.constraints.clone(),
            tolerations: request.tolerations.clone(),
            group: request.group.as_ref().map(|group| group.name.clone()),
        }
    }

    fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }

    /// The taints that keep the pod away. A node that is cordoned or not ready counts as tainted with what Kubernetes' node
    /// controller puts on it, whether or not it has done so yet.
    pub(crate) fn untolerated<'a>(&self, node: &'a Node) -> impl Iterator<Item = Obstacle<'a>> {
        let stands = |is_so: bool, key: &str| {
            let taint = || Taint { key: key.into(), value: "".into(), effect: TaintEffect::NoSchedule };
            is_so && !self.tolerates(&taint())
        };
        let (cordoned, unready) = (stands(node.unschedulable, UNSCHEDULABLE), stands(!node.ready, NOT_READY));
        // What is said of the node already need not be said again of the taint that says the same.
        let says_more = move |taint: &&Taint| match &*taint.key {
            UNSCHEDULABLE => !cordoned,
            NOT_READY => !unready,
            _ => true,
        };
        let hard = node.taints.iter().filter(|taint| taint.effect != TaintEffect::PreferNoSchedule);
        let taints = hard.filter(|taint| !self.tolerates(taint)).filter(says_more).map(Obstacle::Taint);
        let cordoned = cordoned.then_some(Obstacle::Cordoned);
        cordoned.into_iter().chain(unready.then_some(Obstacle::NotReady)).chain(taints)
    }

    /// How much the pod wants this node for what the node is, not for what is free on it; `None` where it may not run at all.
    pub(crate) fn preference(&self, node: &Node) -> Option<i32> {
        if !self.constraints.matches(&node.name, &node.labels) || self.untolerated(node).next().is_some() {
            return None;
        }
        let soft = node.taints.iter().filter(|taint| taint.effect == TaintEffect::PreferNoSchedule);
        let shunned = soft.filter(|taint| !self.tolerates(taint)).count();
        let preferred = self.constraints.preference(&node.name, &node.labels);
        // A taint weighs as much as the strongest single preference.
        let shunned = i32::try_from(shunned).unwrap_or(i32::MAX).saturating_mul(100);
        Some(
            i32::try_from(preferred)
                .unwrap_or(i32::MAX)
                .saturating_sub(shunned)
                .clamp(-PREFERENCE_RANGE, PREFERENCE_RANGE),
        )
    }

    /// How well the pod fits on a node, whose [`Shape::preference`] is given; higher is better, `None` where it does not fit.
    ///
    /// In this order: what the pod prefers; for several GPUs, how they are connected; fewest GPUs left over, so that whole
    /// nodes stay whole; cheap GPUs for pods with at most one, valuable ones for others; least CPU and memory left over.
    pub(crate) fn score(
        &self,
        preference: i32,
        slot: &Slot,
        node: &Node,
        sets: &mut [DeviceSets],
    ) -> Option<i64> {
        if !slot.has_room(node, &self.total) {
            return None;
        }
        let free = slot.free_gpus(node);
        if free.count < self.gpus {
            return None;
        }
        let connection = match slot.sets {
            Some(index) if self.gpus >= 2 => {
                let set = sets[index].device_set(free.mask, 0, self.gpus)?;
                connection_class(sets[index].ring_gb_per_s(set))
            }
            _ => 0,
        };
        let left_over = i64::from((free.count - self.gpus).min(63));
        let worth = if self.gpus >= 2 { slot.worth } else { (1 << 16) - 1 - slot.worth };
        let mut score = i64::from(preference + PREFERENCE_RANGE);
        for (bits, value) in
            [(2, connection), (6, 63 - left_over), (16, worth), (10, self.tightness(slot, node))]
        {
            debug_assert!((0..1 << bits).contains(&value), "{value} needs more than {bits} bits");
            score = score << bits | value;
        }
        Some(score)
    }

    /// The larger used part of CPU and memory after the pod is placed, in 1/1023.
    fn tightness(&self, slot: &Slot, node: &Node) -> i64 {
        let part = |used: u128, asked: u64, total: u64| {
            let after = (used + u128::from(asked)).min(total.into());
            if total == 0 { 0 } else { i64::try_from(after * 1023 / u128::from(total)).unwrap_or(1023) }
        };
        let cpu = part(slot.used.cpu_milli, self.total.cpu_milli, node.allocatable.cpu_milli);
        let memory = part(slot.used.memory_bytes, self.total.memory_bytes, node.allocatable.memory_bytes);
        cpu.max(memory)
    }
}

const PREFERENCE_RANGE: i32 = 1 << 15;
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// NVLink, PCIe within one socket, slower. Finer differences are left to the choice within a node: they should not
/// pull a pod away from the node that it fills best.
fn connection_class(ring_gb_per_s: Option<u32>) -> i64 {
    match ring_gb_per_s {
        Some(150..) => 2,
        Some(20..150) => 1,
        _ => 0,
    }
}

/// What keeps a pod away from a node whatever is free there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle<'a> {
    Cordoned,
    NotReady,
    Taint(&'a Taint),
}

/// A shape in use, with what has been found out about it.
#[derive(Debug)]
pub(crate) struct ShapeState {
    pub(crate) shape: Arc<Shape>,
    /// Pods of this shape that wait for a node, in order.
    pub(crate) waiting: BTreeSet<QueueKey>,
    /// Scores by node, kept for the shapes that were used last.
    pub(crate) scores: Option<Scores>,
    /// Changes of nodes that have been looked at, counted from the first ever.
    pub(crate) seen: u64,
    /// Whether no node fitted when `seen` was set.
    pub(crate) blocked: bool,
    /// When the scores were last asked for, in decisions.
    pub(crate) last_used: u64,
    /// Why its pods wait, as last reported.
    pub(crate) report: Option<Report>,
    /// Whether a pod has joined since.
    pub(crate) needs_report: bool,
}

/// What was said about a shape whose pods wait.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) refusals: Arc<crate::Refusals>,
    pub(crate) at: crate::Millis,
    /// Changes of nodes at that time, as in [`ShapeState::seen`].
    pub(crate) seen: u64,
    /// [`crate::State::chances`] at that time, which also counts the pods that join a group.
    pub(crate) chances: u64,
}

/// Scores of one shape on all nodes.
#[derive(Debug)]
pub(crate) struct Scores {
    pub(crate) tree: MaxTree,
    /// [`Shape::preference`] by node: it changes only when the node itself does.
    pub(crate) preference: Vec<Option<i32>>,
}

impl Scores {
    pub(crate) fn new(shape: &Shape, slots: &[Slot], sets: &mut [DeviceSets]) -> Self {
        let preference: Vec<_> =
            slots.iter().map(|slot| slot.node.as_ref().and_then(|node| shape.preference(node))).collect();
        let score = |(slot, preference): (&Slot, &Option<i32>)| {
            shape.score((*preference)?, slot, slot.node.as_ref()?, sets)
        };
        let scores: Vec<_> = slots.iter().zip(&preference).map(score).collect();
        Self { tree: MaxTree::new(&scores), preference }
    }

    /// Takes in a change of one node. `itself`: the node's own properties may have changed, not only what is free.
    pub(crate) fn update(
        &mut self,
        shape: &Shape,
        id: NodeId,
        itself: bool,
        slots: &[Slot],
        sets: &mut [DeviceSets],
    ) {
        let slot = &slots[id];
        let node = slot.node.as_ref();
        if itself {
            if self.preference.len() <= id {
                self.preference.resize(id + 1, None);
            }
            self.preference[id] = node.and_then(|node| shape.preference(node));
        }
        let preference = self.preference.get(id).copied().flatten();
        let score =
            preference.zip(node).and_then(|(preference, node)| shape.score(preference, slot, node, sets));
        self.tree.set(id, score);
    }
}
