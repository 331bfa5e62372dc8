//! Groups of pods that are placed together or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use gantry_model::{Assignment, Group, Reason, Request};

use crate::explain::{Refusal, Refusals};
use crate::ledger::PodId;
use crate::state::{Decision, Phase, ShapeId, State};

/// How far a group came when it was tried last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shortfall {
    /// Members that had a place, or would have had one.
    placed: u32,
    /// [`State::chances`] at that time: without another the outcome is the same.
    chances: u64,
}

impl State {
    pub(crate) fn join_group(&mut self, id: PodId) {
        if let Some(Group { name, .. }) = self.pod(id).request.group.clone() {
            self.groups.entry(name).or_default().insert(id);
            self.chances += 1;
        }
    }

    pub(crate) fn leave_group(&mut self, id: PodId) {
        let Some(Group { name, .. }) = self.pod(id).request.group.clone() else { return };
        self.chances += 1;
        if let Some(members) = self.groups.get_mut(&name) {
            members.remove(&id);
            if members.is_empty() {
                self.groups.remove(&name);
                self.shortfalls.remove(&name);
            }
        }
    }

    /// Lets groups be tried again for which something has changed.
    pub(crate) fn forget_shortfalls(&mut self) {
        let chances = self.chances;
        self.shortfalls.retain(|_, shortfall| shortfall.chances == chances);
        // Trying a group of which not all that must exist do would be in vain.
        // Only groups with pods that wait are looked at: those that run are many, and have nothing to be told.
        let waiting: BTreeSet<Arc<str>> = self
            .active
            .iter()
            .filter_map(|shape| self.shapes[*shape].as_ref()?.shape.group.clone())
            .filter(|name| !self.shortfalls.contains_key(name))
            .collect();
        let short: Vec<_> = waiting
            .into_iter()
            .map(|name| {
                let standing = self.standing(&name);
                (name, standing)
            })
            .filter(|(_, standing)| standing.members < standing.min_members)
            .collect();
        for (name, standing) in short {
            self.shortfalls.insert(name, Shortfall { placed: standing.placed, chances });
        }
    }

    /// Why the shape's pods are not to be tried now, if they are of a group that came too short.
    pub(crate) fn shortfall_of(&self, shape: ShapeId) -> Option<Shortfall> {
        let group = self.shapes[shape].as_ref()?.shape.group.as_ref()?;
        self.shortfalls.get(group).copied()
    }

    /// Holds what was proposed to pods of a group if the group is complete with it, and takes it back otherwise.
    pub(crate) fn settle(
        &mut self,
        name: &Arc<str>,
        proposed: Vec<(PodId, Assignment)>,
        decisions: &mut Vec<Decision>,
    ) {
        let standing = self.standing(name);
        if standing.placed >= standing.min_members {
            for (pod, assignment) in proposed {
                decisions.push(self.hold(pod, assignment));
            }
            return;
        }
        let chances = self.chances;
        for (pod, _) in proposed {
            self.release(pod);
            self.pod_mut(pod).phase = Phase::Waiting;
            self.enqueue(pod);
        }
        // What was taken and given back within a decision is a chance for nobody.
        self.chances = chances;
        self.shortfalls.insert(name.clone(), Shortfall { placed: standing.placed, chances });
    }

    /// Puts the group's standing before the reasons of one of its pods.
    pub(crate) fn add_gang_reason(&self, request: &Request, refusals: &mut Refusals) {
        let Some(Group { name, .. }) = &request.group else { return };
        let standing = self.standing(name);
        let placed = self.shortfalls.get(name).map_or(standing.placed, |shortfall| shortfall.placed);
        if placed >= standing.min_members {
            return;
        }
        let Standing { members, min_members, .. } = standing;
        let reason = Reason::GangIncomplete { group: name.clone(), min_members, members, placed };
        refusals.list.insert(0, Refusal { reason, nodes: 0 });
        // A change of one pod does not help a group.
        refusals.nearest = None;
    }

    fn standing(&self, group: &str) -> Standing {
        let mut standing = Standing::default();
        for id in self.groups.get(group).into_iter().flatten() {
            let pod = self.pod(*id);
            standing.members += 1;
            standing.placed += u32::from(pod.phase >= Phase::Proposed);
            let least = pod.request.group.as_ref().map_or(0, |group| group.min_members);
            standing.min_members = standing.min_members.max(least);
        }
        standing
    }
}

/// A group in numbers.
#[derive(Debug, Default, Clone, Copy)]
struct Standing {
    members: u32,
    /// Members with a place, proposed ones included.
    placed: u32,
    min_members: u32,
}
