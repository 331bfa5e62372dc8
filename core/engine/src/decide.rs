//! One round of decisions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use gantry_model::{Assignment, ContainerKind, GpuId, Reason, Request};

use crate::device_set::{GpuMask, bits};
use crate::explain::{self, Refusals};
use crate::ledger::{Ledger, NodeId, PodId};
use crate::shape::{Report, Scores};
use crate::state::{Decision, Millis, NodeChange, Phase, QueueKey, ShapeId, State};

/// Shapes whose scores are kept. Each costs about 24 bytes a node.
const MAX_SCORES: usize = 256;
/// Reasons of a shape are worked out at most this often, because every change in the cluster may change them.
const REPORT_EVERY_MS: u64 = 1000;

/// Whose turn it is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// The first pod of a shape that waits.
    Shape(ShapeId),
    /// All pods of a group that wait, by shape.
    Group(Arc<str>, Vec<ShapeId>),
}

impl State {
    /// Decides about all waiting pods. Whatever is decided is held at once: asking again decides nothing twice.
    pub fn decide(&mut self, now: Millis) -> Vec<Decision> {
        self.decisions += 1;
        while let Some((due, id)) = self.deferred.first().copied().filter(|(due, _)| *due <= now) {
            self.deferred.remove(&(due, id));
            self.pod_mut(id).not_before = None;
            self.enqueue(id);
        }
        let mut decisions = Vec::new();
        self.forget_shortfalls();
        let mut blocked = self.round(&mut decisions);
        let waits_for_group = |shape: &ShapeId| self.shortfall_of(*shape).is_some();
        blocked.extend(self.active.iter().copied().filter(waits_for_group));
        self.next_report = None;
        for shape in blocked {
            self.report(shape, now, &mut decisions);
        }
        self.trim_log();
        decisions
    }

    /// Gives every pod that may have one a place, and every group, in the order of the queue; a group's turn is that of its
    /// first pod. Gives the shapes that fit nowhere.
    fn round(&mut self, decisions: &mut Vec<Decision>) -> BTreeSet<ShapeId> {
        let mut turns = BinaryHeap::new();
        let mut groups: BTreeMap<Arc<str>, (QueueKey, Vec<ShapeId>)> = BTreeMap::new();
        for shape in self.active.iter().copied().filter(|shape| self.shortfall_of(*shape).is_none()) {
            let Some(key) = self.first_waiting(shape) else { continue };
            match self.shapes[shape].as_ref().and_then(|state| state.shape.group.clone()) {
                None => turns.push(Reverse((key, Turn::Shape(shape)))),
                Some(name) => {
                    let (first, shapes) = groups.entry(name).or_insert((key, Vec::new()));
                    *first = key.min(*first);
                    shapes.push(shape);
                }
            }
        }
        turns.extend(
            groups.into_iter().map(|(name, (key, shapes))| Reverse((key, Turn::Group(name, shapes)))),
        );
        let mut blocked = BTreeSet::new();
        while let Some(Reverse((key, turn))) = turns.pop() {
            match turn {
                Turn::Group(name, shapes) => self.group_turn(&name, &shapes, &mut blocked, decisions),
                Turn::Shape(shape) => {
                    let Some((pod, assignment)) = self.propose_first(key, shape) else {
                        blocked.insert(shape);
                        continue;
                    };
                    decisions.push(self.hold(pod, assignment));
                    turns.extend(self.first_waiting(shape).map(|key| Reverse((key, Turn::Shape(shape)))));
                }
            }
        }
        blocked
    }

    /// Tries all pods of a group, one after the other and with nobody between them: groups whose pods stand in the queue by
    /// turns would else take from each other what both need.
    fn group_turn(
        &mut self,
        name: &Arc<str>,
        shapes: &[ShapeId],
        blocked: &mut BTreeSet<ShapeId>,
        decisions: &mut Vec<Decision>,
    ) {
        let turn = |state: &Self, shape| state.first_waiting(shape).map(|key| Reverse((key, shape)));
        let mut turns: BinaryHeap<_> = shapes.iter().filter_map(|shape| turn(self, *shape)).collect();
        let mut proposed = Vec::new();
        while let Some(Reverse((key, shape))) = turns.pop() {
            match self.propose_first(key, shape) {
                None => {
                    blocked.insert(shape);
                }
                Some(proposal) => {
                    proposed.push(proposal);
                    turns.extend(turn(self, shape));
                }
            }
        }
        if !proposed.is_empty() {
            self.settle(name, proposed, decisions);
        }
    }

    /// Proposes the place that suits the shape best to its first pod, whose key is given; `None` where it fits nowhere.
    fn propose_first(&mut self, key: QueueKey, shape: ShapeId) -> Option<(PodId, Assignment)> {
        let node = self.best_node(shape)?;
        let (_, _, _, pod) = key;
        Some((pod, self.propose(pod, node)?))
    }

    /// Makes a proposal firm.
    pub(crate) fn hold(&mut self, pod: PodId, assignment: Assignment) -> Decision {
        self.pod_mut(pod).phase = Phase::Held;
        Decision::Bind { pod: self.pod(pod).request.pod.clone(), assignment }
    }

    /// The node on which the shape fits best now, looking only at nodes that have changed since it was asked last.
    fn best_node(&mut self, id: ShapeId) -> Option<NodeId> {
        let end = self.log_end();
        let decisions = self.decisions;
        let state = self.shapes[id].as_mut().expect("invariant: active shapes are there");
        let Ledger { slots, sets, .. } = &mut self.ledger;
        let changes_since = state
            .seen
            .checked_sub(self.log_start)
            .and_then(|from| self.log.get(usize::try_from(from).ok()?..));
        let shape = state.shape.clone();
        match (changes_since, &mut state.scores) {
            (Some(changes), Some(scores)) => {
                for (node, change) in changes {
                    // What does not fit does not begin to fit because something was taken.
                    if *change != NodeChange::Taken || scores.tree.has(*node) {
                        scores.update(&shape, *node, *change == NodeChange::Node, slots, sets);
                    }
                }
            }
            (Some(changes), None) if state.blocked => {
                let fits = |(node, change): &(NodeId, NodeChange)| {
                    let slot = &slots[*node];
                    let node = slot.node.as_ref().filter(|_| *change != NodeChange::Taken)?;
                    shape.score(shape.preference(node)?, slot, node, sets)
                };
                if changes.iter().find_map(fits).is_some() {
                    state.scores = Some(Scores::new(&shape, slots, sets));
                }
            }
            _ => state.scores = Some(Scores::new(&shape, slots, sets)),
        }
        state.seen = end;
        state.last_used = decisions;
        let best = state.scores.as_ref().and_then(|scores| scores.tree.best());
        state.blocked = best.is_none();
        self.limit_scores(id);
        best
    }

    /// Drops the scores that were used longest ago where there are too many.
    fn limit_scores(&mut self, keep: ShapeId) {
        let kept = || {
            let with_id = self.shapes.iter().enumerate();
            with_id.filter_map(|(id, state)| {
                state.as_ref().filter(|state| state.scores.is_some()).map(|s| (id, s))
            })
        };
        if self.shapes.len() - self.vacant_shapes.len() > MAX_SCORES && kept().count() > MAX_SCORES {
            let oldest = kept().filter(|(id, _)| *id != keep).min_by_key(|(_, state)| state.last_used);
            if let Some((id, _)) = oldest {
                self.shape_mut(id).scores = None;
            }
        }
    }

    /// Gives a pod its place on a node: chooses the devices and takes everything, to be held or released.
    fn propose(&mut self, id: PodId, node: NodeId) -> Option<Assignment> {
        let request = self.pod(id).request.clone();
        let slot = &self.ledger.slots[node];
        let mut assignment = Assignment { node: slot.name.clone(), containers: BTreeMap::new() };
        let mut known = true;
        if request.gpus > 0 {
            match slot.sets {
                None => known = false,
                Some(sets) => {
                    let free = slot.free_gpus(slot.node.as_ref()?).mask;
                    let set = self.ledger.sets[sets].device_set(free, 0, request.gpus)?;
                    assignment.containers = self.divide(&request, node, sets, set)?;
                }
            }
        }
        self.unqueue(id);
        self.pod_mut(id).phase = Phase::Proposed;
        self.occupy(id, &assignment.node, known.then(|| assignment.clone()));
        Some(assignment)
    }

    /// Divides a pod's GPUs among its containers, the best connected for the container that asks for most.
    fn divide(
        &mut self,
        request: &Request,
        node: NodeId,
        sets: usize,
        all: GpuMask,
    ) -> Option<BTreeMap<Arc<str>, Vec<GpuId>>> {
        let sets = &mut self.ledger.sets[sets];
        let mut masks: Vec<GpuMask> = vec![0; request.containers.len()];
        let mut rest = all;
        let mut together: Vec<usize> = (0..masks.len())
            .filter(|i| request.containers[*i].kind != ContainerKind::Init && request.containers[*i].gpus > 0)
            .collect();
        together.sort_by_key(|i| Reverse(request.containers[*i].gpus));
        for i in together {
            masks[i] = sets.device_set(rest, 0, request.containers[i].gpus)?;
            rest &= !masks[i];
        }
        // An init container runs before the apps and beside the sidecars that were started before it. It takes the
        // devices that nobody will use later, then those that apps will, as the kubelet's device manager does.
        let mut sidecars = 0;
        for (i, container) in request.containers.iter().enumerate() {
            match container.kind {
                ContainerKind::Sidecar => sidecars |= masks[i],
                ContainerKind::Init => masks[i] = sets.device_set(all & !sidecars, 0, container.gpus)?,
                ContainerKind::App => {}
            }
        }
        let gpus = &self.ledger.slots[node].node.as_ref()?.gpus;
        let ids =
            |mask: GpuMask| bits(mask).map(|bit| gpus[bit.trailing_zeros() as usize].id.clone()).collect();
        let containers = request.containers.iter().zip(masks).filter(|(_, mask)| *mask != 0);
        Some(containers.map(|(container, mask)| (container.name.clone(), ids(mask))).collect())
    }

    /// Says why a shape's pods wait, to those who were not told so yet.
    fn report(&mut self, id: ShapeId, now: Millis, decisions: &mut Vec<Decision>) {
        let Some((_, _, _, first)) = self.first_waiting(id) else { return };
        let report = self.current_report(id, &self.pod(first).request.clone(), now);
        let state = self.shape_mut(id);
        let is_known = |last: &Report| Arc::ptr_eq(&last.refusals, &report.refusals);
        if state.report.as_ref().is_some_and(is_known) && !state.needs_report {
            return;
        }
        let gist = report.refusals.gist();
        let waiting: Vec<_> = state.waiting.iter().map(|(_, _, _, pod)| *pod).collect();
        state.needs_report = false;
        for id in waiting {
            let pod = self.pod_mut(id);
            if pod.told.as_ref() != Some(&gist) {
                pod.told = Some(gist.clone());
                let refusals = report.refusals.for_pod(&pod.request);
                decisions.push(Decision::Unschedulable { pod: pod.request.pod.clone(), refusals });
            }
        }
        self.shape_mut(id).report = Some(report);
    }

    /// The last report where nothing has changed since, or too little time has passed; a new one otherwise.
    fn current_report(&mut self, id: ShapeId, request: &Request, now: Millis) -> Report {
        let (seen, chances) = (self.log_end(), self.chances);
        let state = self.shapes[id].as_ref().expect("invariant: blocked shapes are there");
        let is_group = request.group.is_some();
        if let Some(last) = state.report.clone() {
            if last.seen == seen && (!is_group || last.chances == chances) {
                return last;
            }
            let due = last.at.after(REPORT_EVERY_MS);
            if now < due {
                self.next_report = Some(self.next_report.map_or(due, |known| known.min(due)));
                if !is_group || !state.needs_report {
                    return last;
                }
                // How many pods of a group exist is known at no cost, and they come one after the other.
                let mut refusals = Refusals::clone(&last.refusals);
                refusals.list.retain(|refusal| !matches!(refusal.reason, Reason::GangIncomplete { .. }));
                self.add_gang_reason(request, &mut refusals);
                return Report { refusals: Arc::new(refusals), ..last };
            }
        }
        let mut refusals = explain::refusals(&state.shape, request, &self.ledger);
        self.add_gang_reason(request, &mut refusals);
        Report { refusals: Arc::new(refusals), at: now, seen, chances }
    }

    fn first_waiting(&self, shape: ShapeId) -> Option<QueueKey> {
        self.shapes[shape].as_ref()?.waiting.first().copied()
    }

    /// Forgets changes that cost more to read than to look at every node anew.
    fn trim_log(&mut self) {
        let limit = 4096.max(4 * self.ledger.slots.len());
        if self.log.len() > limit {
            let old = self.log.len() - limit / 2;
            self.log.drain(..old);
            self.log_start += old as u64;
        }
    }
}
