//! The cluster as the engine knows it, and what it decides.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use gantry_model::{Assignment, GpuId, Health, Node, PodKey, Reason, Request};

use crate::explain::{self, Explanation, Gist, Refusals};
use crate::gang::Shortfall;
use crate::ledger::{Ledger, NodeId, Place, PodId};
use crate::shape::{Shape, ShapeState};

/// Milliseconds on the caller's clock, which never goes backwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Millis(pub u64);

impl Millis {
    /// This much later.
    pub fn after(self, milliseconds: u64) -> Self {
        Self(self.0.saturating_add(milliseconds))
    }
}

/// What happened in the cluster. Every event may come again, and late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A node is there, or has changed.
    NodeUpserted(Node),
    /// A node is gone. Pods placed on it keep what they hold until they are gone too.
    NodeRemoved {
        /// Its name.
        name: Arc<str>,
    },
    /// A GPU has become healthy or unhealthy.
    GpuHealthChanged {
        /// The node.
        node: Arc<str>,
        /// The GPU.
        gpu: GpuId,
        /// Its health now.
        health: Health,
    },
    /// A pod waits for a node, or has changed while it does.
    PodPending(Request),
    /// A pod has a node (`node_name`), whoever chose it.
    PodBound {
        /// What it asks for.
        request: Request,
        /// Its devices, where they are known.
        assignment: Option<Assignment>,
    },
    /// A node has reported which devices a bound pod uses. Counts more than what its annotation says.
    DevicesReported {
        /// The pod's UID.
        uid: Arc<str>,
        /// What it uses.
        assignment: Assignment,
    },
    /// A pod is deleted or has ended: it holds nothing any more.
    PodGone {
        /// The pod's UID.
        uid: Arc<str>,
    },
    /// A pod that waits is not to be placed as it is written now. One that has been decided keeps what it holds.
    PodWithdrawn {
        /// The pod's UID.
        uid: Arc<str>,
    },
    /// A decision is being written to the API server.
    BindStarted {
        /// The pod's UID.
        uid: Arc<str>,
    },
    /// The API server has accepted the binding.
    BindSucceeded {
        /// The pod's UID.
        uid: Arc<str>,
    },
    /// The API server has refused the binding.
    BindFailed {
        /// The pod's UID.
        uid: Arc<str>,
        /// What it said.
        message: String,
        /// When, for the time of the next attempt.
        now: Millis,
    },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Bind the pod; its devices are held for it until the outcome is told.
    Bind {
        /// The pod.
        pod: PodKey,
        /// Node and devices. Without devices where the pod asks for none, or the node's are only counted.
        assignment: Assignment,
    },
    /// Tell the pod's owner why it waits. Decided once for each change of the reasons' codes.
    Unschedulable {
        /// The pod.
        pod: PodKey,
        /// Why.
        refusals: Arc<Refusals>,
    },
}

/// How far a pod has come. A pod that is released is forgotten, or waits again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Not to be scheduled before its gates are gone.
    Gated,
    /// Waits for a node.
    Waiting,
    /// Chosen for a node within a decision that is not complete.
    Proposed,
    /// Decided; its node and devices are held.
    Held,
    /// The binding is being written.
    Binding,
    /// Has its node.
    Bound,
}

/// Order of waiting pods: priority, age, arrival.
pub(crate) type QueueKey = (Reverse<i32>, i64, u64, PodId);
pub(crate) type ShapeId = usize;

#[derive(Debug)]
pub(crate) struct Pod {
    pub(crate) request: Arc<Request>,
    pub(crate) arrival: u64,
    pub(crate) phase: Phase,
    pub(crate) shape: Option<ShapeId>,
    pub(crate) place: Option<Place>,
    pub(crate) devices_reported: bool,
    /// Not tried again before then, after a failed binding.
    pub(crate) not_before: Option<Millis>,
    pub(crate) failures: u32,
    pub(crate) bind_error: Option<String>,
    /// What its owner was told last of why it waits.
    pub(crate) told: Option<Gist>,
}

/// What has become of a node since its slot was looked at last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeChange {
    /// Less is free than before.
    Taken,
    /// More may be free than before.
    Freed,
    /// The node itself has changed.
    Node,
}

/// Nodes, pods, and who holds what. Fed by [`State::apply`], asked by [`State::decide`].
#[derive(Debug, Default)]
pub struct State {
    pub(crate) ledger: Ledger,
    pub(crate) pods: Vec<Option<Pod>>,
    pub(crate) vacant: Vec<PodId>,
    pub(crate) by_uid: HashMap<Arc<str>, PodId>,
    pub(crate) shapes: Vec<Option<ShapeState>>,
    pub(crate) vacant_shapes: Vec<ShapeId>,
    pub(crate) by_shape: HashMap<Arc<Shape>, ShapeId>,
    /// Shapes with waiting pods.
    pub(crate) active: BTreeSet<ShapeId>,
    /// Members of each group, whatever their phase.
    pub(crate) groups: BTreeMap<Arc<str>, BTreeSet<PodId>>,
    /// Groups that could not be placed, until something changes that could help them.
    pub(crate) shortfalls: BTreeMap<Arc<str>, Shortfall>,
    /// Changes so far that can help a pod that waits: something freed, a node changed, a member joined.
    pub(crate) chances: u64,
    /// Pods whose next attempt is later.
    pub(crate) deferred: BTreeSet<(Millis, PodId)>,
    /// Changes of nodes; the first of them is number `log_start`.
    pub(crate) log: Vec<(NodeId, NodeChange)>,
    pub(crate) log_start: u64,
    pub(crate) arrivals: u64,
    pub(crate) decisions: u64,
    /// When reasons that may be out of date are worked out again.
    pub(crate) next_report: Option<Millis>,
}

/// Shapes without waiting pods that are remembered.
const MAX_IDLE_SHAPES: usize = 1024;
/// Delay before a failed binding is tried again: doubled with each failure, from the first to the second.
const RETRY_MS: (u64, u64) = (1000, 60_000);

impl State {
    /// An empty cluster.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in what happened. Events that are known already change nothing.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::NodeUpserted(node) => {
                let id = self.ledger.slot_id(&node.name);
                if self.ledger.slots[id].node.as_ref() != Some(&node) {
                    self.set_node(id, Some(node));
                }
            }
            Event::NodeRemoved { name } => {
                if let Some(id) = self.ledger.by_name.get(&name).copied() {
                    self.set_node(id, None);
                }
            }
            Event::GpuHealthChanged { node, gpu, health } => {
                let id = self.ledger.by_name.get(&node).copied();
                let known = id.and_then(|id| Some((id, self.ledger.slots[id].node.clone()?)));
                if let Some((id, mut node)) = known
                    && let Some(known) = node.gpus.iter_mut().find(|known| known.id == gpu)
                    && known.health != health
                {
                    known.health = health;
                    self.set_node(id, Some(node));
                }
            }
            Event::PodPending(request) => self.pod_pending(request),
            Event::PodBound { request, assignment } => self.pod_bound(request, assignment),
            Event::DevicesReported { uid, assignment } => self.devices_reported(&uid, assignment),
            Event::PodGone { uid } => self.forget_pod(&uid),
            Event::PodWithdrawn { uid } => {
                if matches!(self.phase(&uid), Some(Phase::Gated | Phase::Waiting)) {
                    self.forget_pod(&uid);
                }
            }
            Event::BindStarted { uid } => self.advance(&uid, &[Phase::Held], Phase::Binding),
            Event::BindSucceeded { uid } => self.advance(&uid, &[Phase::Held, Phase::Binding], Phase::Bound),
            Event::BindFailed { uid, message, now } => self.bind_failed(&uid, message, now),
        }
    }

    /// When [`State::decide`] will have something to say although nothing happens before.
    pub fn next_wakeup(&self) -> Option<Millis> {
        let retry = self.deferred.first().map(|(due, _)| *due);
        retry.into_iter().chain(self.next_report).min()
    }

    /// How far a pod has come; `None` for a pod that is not known (any more).
    pub fn phase(&self, uid: &str) -> Option<Phase> {
        self.by_uid.get(uid).map(|id| self.pod(*id).phase)
    }

    /// Every claim on a GPU by node and id, with the pods that claim it. More than one pod stands there only if the cluster
    /// says so: somebody else gave a device twice.
    pub fn claims(&self) -> BTreeMap<(Arc<str>, GpuId), BTreeSet<PodKey>> {
        let mut claims: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for pod in self.pods.iter().flatten() {
            let assignment = pod.place.as_ref().and_then(|place| place.assignment.as_ref());
            for (assignment, gpu) in
                assignment.iter().flat_map(|a| a.gpus().into_iter().map(move |gpu| (a, gpu)))
            {
                let key = (assignment.node.clone(), gpu.clone());
                claims.entry(key).or_default().insert(pod.request.pod.clone());
            }
        }
        claims
    }

    /// Where a pod stands and why; `None` for a pod that is not known.
    pub fn explain(&self, uid: &str) -> Option<Explanation> {
        let id = *self.by_uid.get(uid)?;
        let pod = self.pod(id);
        let request = &pod.request;
        let node = pod.place.as_ref().map(|place| self.ledger.slots[place.node].name.clone());
        let mut explanation = Explanation {
            pod: request.pod.clone(),
            phase: pod.phase,
            node,
            reason: None,
            refusals: None,
            ahead: 0,
            first_ahead: Vec::new(),
        };
        match pod.phase {
            Phase::Gated => {
                explanation.reason = Some(Reason::SchedulingGated { gates: request.gates.clone() });
            }
            Phase::Waiting => {
                let message = pod.bind_error.clone().filter(|_| pod.not_before.is_some());
                explanation.reason = message.map(|message| Reason::BindFailed { message });
                let mut refusals = explain::refusals(&Shape::of(request), request, &self.ledger);
                self.add_gang_reason(request, &mut refusals);
                explanation.refusals = Some(refusals);
                let key = queue_key(id, pod);
                let mut ahead: Vec<_> = self
                    .active
                    .iter()
                    .filter_map(|shape| self.shapes[*shape].as_ref())
                    .filter(|state| state.shape.gpus > 0)
                    .flat_map(|state| state.waiting.range(..key))
                    .collect();
                explanation.ahead = ahead.len();
                ahead.sort_unstable();
                explanation.first_ahead =
                    ahead.iter().take(3).map(|(_, _, _, id)| self.pod(*id).request.pod.clone()).collect();
            }
            Phase::Bound => {
                let place = pod.place.as_ref().filter(|place| self.ledger.slots[place.node].node.is_none());
                explanation.reason = place
                    .map(|place| Reason::NodeNotFound { node: self.ledger.slots[place.node].name.clone() });
            }
            Phase::Proposed | Phase::Held | Phase::Binding => {}
        }
        Some(explanation)
    }

    pub(crate) fn pod(&self, id: PodId) -> &Pod {
        self.pods[id].as_ref().expect("invariant: ids in the indices name pods that are there")
    }

    pub(crate) fn pod_mut(&mut self, id: PodId) -> &mut Pod {
        self.pods[id].as_mut().expect("invariant: ids in the indices name pods that are there")
    }

    pub(crate) fn shape_mut(&mut self, id: ShapeId) -> &mut ShapeState {
        self.shapes[id].as_mut().expect("invariant: ids in the indices name shapes that are there")
    }

    fn set_node(&mut self, id: NodeId, node: Option<Node>) {
        let places: Vec<_> = self.ledger.slots[id]
            .pods
            .iter()
            .map(|pod| (*pod, self.pod(*pod).place.as_ref().and_then(|place| place.assignment.clone())))
            .collect();
        self.ledger.set_node(node, id, &places);
        self.chances += 1;
        self.log.push((id, NodeChange::Node));
    }

    fn add_pod(&mut self, request: Request, phase: Phase) -> PodId {
        let uid = request.pod.uid.clone();
        let pod = Pod {
            request: Arc::new(request),
            arrival: self.arrivals,
            phase,
            shape: None,
            place: None,
            devices_reported: false,
            not_before: None,
            failures: 0,
            bind_error: None,
            told: None,
        };
        self.arrivals += 1;
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.pods.push(None);
            self.pods.len() - 1
        });
        self.pods[id] = Some(pod);
        self.by_uid.insert(uid, id);
        self.join_group(id);
        id
    }

    fn forget_pod(&mut self, uid: &Arc<str>) {
        let Some(id) = self.by_uid.remove(uid) else { return };
        self.unqueue(id);
        self.release(id);
        self.leave_group(id);
        self.pods[id] = None;
        self.vacant.push(id);
    }

    fn pod_pending(&mut self, request: Request) {
        let phase = if request.gates.is_empty() { Phase::Waiting } else { Phase::Gated };
        let id = match self.by_uid.get(&request.pod.uid).copied() {
            None => self.add_pod(request, phase),
            Some(id) => {
                let pod = self.pod(id);
                // Once decided, a pod waits no more: what says so is older than the decision.
                if !matches!(pod.phase, Phase::Gated | Phase::Waiting) || *pod.request == request {
                    return;
                }
                self.unqueue(id);
                self.set_request(id, request);
                let pod = self.pod_mut(id);
                pod.phase = phase;
                pod.not_before = None;
                id
            }
        };
        if phase == Phase::Waiting {
            self.enqueue(id);
        }
    }

    fn pod_bound(&mut self, request: Request, assignment: Option<Assignment>) {
        let Some(name) = request.node_name.clone() else { return self.pod_pending(request) };
        let assignment = usable(&request, &name, assignment);
        let Some(id) = self.by_uid.get(&request.pod.uid).copied() else {
            let id = self.add_pod(request, Phase::Bound);
            return self.occupy(id, &name, assignment);
        };
        let pod = self.pod(id);
        let known = pod.place.as_ref().filter(|place| self.ledger.slots[place.node].name == name);
        let kept = known.and_then(|known| usable(&request, &name, known.assignment.clone()));
        let reported = kept.is_some() && pod.devices_reported;
        // What the node has reported, and what was decided before, is not forgotten for want of an annotation.
        let assignment = if reported || assignment.is_none() { kept } else { assignment };
        let stays = known.is_some_and(|known| known.assignment == assignment)
            && pod.request.total == request.total
            && pod.request.gpus == request.gpus;
        if stays {
            self.set_request(id, request);
        } else {
            self.unqueue(id);
            self.release(id);
            self.set_request(id, request);
            self.occupy(id, &name, assignment);
        }
        let pod = self.pod_mut(id);
        pod.phase = Phase::Bound;
        pod.devices_reported = reported;
    }

    fn devices_reported(&mut self, uid: &Arc<str>, assignment: Assignment) {
        let Some(id) = self.by_uid.get(uid).copied() else { return };
        let pod = self.pod(id);
        let Some(place) = pod.place.as_ref().filter(|_| matches!(pod.phase, Phase::Binding | Phase::Bound))
        else {
            return;
        };
        let name = self.ledger.slots[place.node].name.clone();
        let Some(assignment) = usable(&pod.request, &name, Some(assignment)) else { return };
        if place.assignment.as_ref() != Some(&assignment) {
            self.release(id);
            self.occupy(id, &name, Some(assignment));
        }
        self.pod_mut(id).devices_reported = true;
    }

    /// Replaces what a pod asks for. Its place and its turn are reckoned by that: it has neither, or they stay as they are.
    fn set_request(&mut self, id: PodId, request: Request) {
        let regroups = self.pod(id).request.group != request.group;
        if regroups {
            self.leave_group(id);
        }
        self.pod_mut(id).request = Arc::new(request);
        if regroups {
            self.join_group(id);
        }
    }

    fn advance(&mut self, uid: &Arc<str>, from: &[Phase], to: Phase) {
        if let Some(id) = self.by_uid.get(uid).copied() {
            let pod = self.pod_mut(id);
            if from.contains(&pod.phase) {
                pod.phase = to;
            }
        }
    }

    fn bind_failed(&mut self, uid: &Arc<str>, message: String, now: Millis) {
        let Some(id) = self.by_uid.get(uid).copied() else { return };
        // If the pod was seen bound, the failure was of a second attempt: the cluster is right.
        if !matches!(self.pod(id).phase, Phase::Held | Phase::Binding) {
            return;
        }
        self.release(id);
        let pod = self.pod_mut(id);
        let (first, last) = RETRY_MS;
        let due = now.after(first.saturating_mul(1 << pod.failures.min(16)).min(last));
        pod.failures += 1;
        pod.bind_error = Some(message);
        pod.phase = Phase::Waiting;
        pod.not_before = Some(due);
        self.deferred.insert((due, id));
    }

    pub(crate) fn enqueue(&mut self, id: PodId) {
        let shape = self.intern(&self.pod(id).request.clone());
        let pod = self.pod_mut(id);
        pod.shape = Some(shape);
        let key = queue_key(id, pod);
        let state = self.shape_mut(shape);
        state.waiting.insert(key);
        state.needs_report = true;
        self.active.insert(shape);
    }

    /// Takes a pod out of every queue.
    pub(crate) fn unqueue(&mut self, id: PodId) {
        let pod = self.pod_mut(id);
        let due = pod.not_before.take();
        let shape = pod.shape.take();
        let key = queue_key(id, pod);
        if let Some(due) = due {
            self.deferred.remove(&(due, id));
        }
        if let Some(shape) = shape {
            let state = self.shape_mut(shape);
            state.waiting.remove(&key);
            if state.waiting.is_empty() {
                // What stood in the way of these says nothing of the next.
                state.report = None;
                self.active.remove(&shape);
            }
        }
    }

    /// Lets a pod that holds nothing hold this. The node is named rather than given by its slot: a slot is used again once
    /// nothing holds it, so that none that was looked up before a release may be used after it.
    pub(crate) fn occupy(&mut self, id: PodId, node: &Arc<str>, assignment: Option<Assignment>) {
        let place = Place { node: self.ledger.slot_id(node), assignment };
        let request = self.pod(id).request.clone();
        self.ledger.occupy(id, &request, &place);
        self.log.push((place.node, NodeChange::Taken));
        let before = self.pod_mut(id).place.replace(place);
        debug_assert!(before.is_none(), "a pod holds one place at a time");
    }

    /// Gives back what a pod holds.
    pub(crate) fn release(&mut self, id: PodId) {
        let pod = self.pod_mut(id);
        pod.devices_reported = false;
        let Some(place) = pod.place.take() else { return };
        let request = pod.request.clone();
        self.ledger.vacate(id, &request, &place);
        self.chances += 1;
        self.log.push((place.node, NodeChange::Freed));
    }

    fn intern(&mut self, request: &Request) -> ShapeId {
        let shape = Shape::of(request);
        if let Some(id) = self.by_shape.get(&shape) {
            return *id;
        }
        if self.by_shape.len() - self.active.len() > MAX_IDLE_SHAPES {
            self.forget_idle_shapes();
        }
        let shape = Arc::new(shape);
        let state = ShapeState {
            shape: shape.clone(),
            waiting: BTreeSet::new(),
            scores: None,
            seen: 0,
            blocked: false,
            last_used: 0,
            report: None,
            needs_report: false,
        };
        let id = self.vacant_shapes.pop().unwrap_or_else(|| {
            self.shapes.push(None);
            self.shapes.len() - 1
        });
        self.shapes[id] = Some(state);
        self.by_shape.insert(shape, id);
        id
    }

    fn forget_idle_shapes(&mut self) {
        for id in 0..self.shapes.len() {
            if self.shapes[id].is_some() && !self.active.contains(&id) {
                let state = self.shapes[id].take().expect("invariant: it was there one line above");
                self.by_shape.remove(&state.shape);
                self.vacant_shapes.push(id);
            }
        }
    }

    pub(crate) fn log_end(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }
}

fn queue_key(id: PodId, pod: &Pod) -> QueueKey {
    (Reverse(pod.request.priority), pod.request.created_s, pod.arrival, id)
}

/// An assignment that can be entered: for this node, with as many GPUs as the pod asks for. `None`: devices unknown.
fn usable(request: &Request, node: &Arc<str>, assignment: Option<Assignment>) -> Option<Assignment> {
    if request.gpus == 0 {
        return Some(Assignment { node: node.clone(), containers: BTreeMap::new() });
    }
    assignment.filter(|a| a.node == *node && a.gpus().len() as u64 >= u64::from(request.gpus))
}
