//! Laws of the ledger, whatever happens in whatever order.

mod common;

use std::collections::btree_map::Entry::Vacant;
use std::collections::{BTreeMap, BTreeSet};

use common::*;
use gantry_engine::{Decision, Event, Millis, Phase, State};
use gantry_model::{Assignment, Fault, FaultKind, Group, Health, PodKey, Request};
use proptest::prelude::*;

const NODES: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Step {
    Submit {
        pod: usize,
        gpus: u32,
        group: Option<Group>,
    },
    Decide,
    /// What becomes of the oldest binding that is under way.
    Outcome {
        success: bool,
        watched: bool,
    },
    Delete {
        pod: usize,
    },
    /// The pod has a place that this scheduler did not choose, whether it waited or had another; the node may not be known.
    Bind {
        pod: usize,
        place: Place,
    },
    /// The pod's author asks for another amount, which goes with another assignment if the pod is bound.
    Resize {
        pod: usize,
        gpus: u32,
        first: u32,
    },
    /// The pod's author edits the annotations that name its group.
    Regroup {
        pod: usize,
        group: Option<Group>,
    },
    /// The node says which devices a bound pod uses.
    Report {
        pod: usize,
        first: u32,
    },
    Node {
        node: usize,
        gpus: u32,
    },
    RemoveNode {
        node: usize,
    },
    Health {
        node: usize,
        gpu: u32,
        healthy: bool,
    },
    /// Everything that the API server knows is sent again.
    Replay,
    /// The scheduler starts anew with what the API server knows.
    Restart,
}

/// A node, and the position of the first GPU on it.
#[derive(Debug, Clone, Copy)]
struct Place {
    node: usize,
    first: u32,
}

fn group() -> impl Strategy<Value = Option<Group>> {
    let some = (0_usize..2, 1_u32..4)
        .prop_map(|(index, min_members)| Group { name: ["d/g", "d/h"][index].into(), min_members });
    prop::option::of(some)
}

fn step() -> impl Strategy<Value = Step> {
    let place = || (0_usize..3, 0_u32..8).prop_map(|(node, first)| Place { node, first });
    prop_oneof![
        6 => (0_usize..24, 0_u32..5, group()).prop_map(|(pod, gpus, group)| Step::Submit { pod, gpus, group }),
        6 => Just(Step::Decide),
        6 => (any::<bool>(), any::<bool>()).prop_map(|(success, watched)| Step::Outcome { success, watched }),
        3 => (0_usize..24).prop_map(|pod| Step::Delete { pod }),
        2 => (0_usize..24, place()).prop_map(|(pod, place)| Step::Bind { pod, place }),
        2 => (0_usize..24, 0_u32..5, 0_u32..8).prop_map(|(pod, gpus, first)| Step::Resize { pod, gpus, first }),
        2 => (0_usize..24, group()).prop_map(|(pod, group)| Step::Regroup { pod, group }),
        2 => (0_usize..24, 0_u32..8).prop_map(|(pod, first)| Step::Report { pod, first }),
        3 => (0_usize..3, prop::sample::select(vec![0_u32, 2, 4, 8]))
            .prop_map(|(node, gpus)| Step::Node { node, gpus }),
        1 => (0_usize..3).prop_map(|node| Step::RemoveNode { node }),
        2 => (0_usize..3, 0_u32..8, any::<bool>())
            .prop_map(|(node, gpu, healthy)| Step::Health { node, gpu, healthy }),
        1 => Just(Step::Replay),
        1 => Just(Step::Restart),
    ]
}

/// A pod as the API server would know it.
struct Entry {
    request: Request,
    assignment: Option<Assignment>,
    /// What its node has reported.
    reported: Option<Assignment>,
}

impl Entry {
    fn events(&self) -> Vec<Event> {
        let Some(assignment) = &self.assignment else { return vec![Event::PodPending(self.request.clone())] };
        let uid = &self.request.pod.uid;
        let report = |assignment: &Assignment| Event::DevicesReported {
            uid: uid.clone(),
            assignment: assignment.clone(),
        };
        [bound(&self.request, assignment)].into_iter().chain(self.reported.as_ref().map(report)).collect()
    }

    /// The devices that count: what the node has reported, unless that is too little.
    fn devices(&self) -> Option<&Assignment> {
        let enough = |report: &&Assignment| report.gpus().len() >= self.request.gpus as usize;
        let counts = self.reported.as_ref().filter(enough).or(self.assignment.as_ref());
        counts.filter(|_| self.request.gpus > 0)
    }
}

/// What the API server would know.
#[derive(Default)]
struct Server {
    nodes: BTreeMap<&'static str, gantry_model::Node>,
    pods: BTreeMap<String, Entry>,
}

impl Server {
    fn events(&self) -> Vec<Event> {
        let nodes = self.nodes.values().cloned().map(Event::NodeUpserted);
        nodes.chain(self.pods.values().flat_map(Entry::events)).collect()
    }

    fn claims(&self) -> BTreeMap<(std::sync::Arc<str>, gantry_model::GpuId), BTreeSet<PodKey>> {
        let mut claims: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for entry in self.pods.values() {
            for (assignment, gpu) in
                entry.devices().into_iter().flat_map(|a| a.gpus().into_iter().map(move |gpu| (a, gpu)))
            {
                let owners = claims.entry((assignment.node.clone(), gpu.clone())).or_default();
                owners.insert(entry.request.pod.clone());
            }
        }
        claims
    }

    /// Members of a group that have a place or are getting one, and how many must have.
    fn standing(&self, group: &Group, under_way: &[(Request, Assignment)]) -> (u32, u32) {
        let is_placed = |entry: &Entry| {
            entry.assignment.is_some()
                || under_way.iter().any(|(request, _)| request.pod == entry.request.pod)
        };
        let (mut placed, mut least) = (0, 0);
        for entry in self.pods.values() {
            if let Some(known) = entry.request.group.as_ref().filter(|known| known.name == group.name) {
                placed += u32::from(is_placed(entry));
                least = least.max(known.min_members);
            }
        }
        (placed, least)
    }
}

/// This many GPUs of a node, from one position on.
fn devices(node: &str, first: u32, count: u32) -> Assignment {
    let ids = (0..count).map(|i| format!("GPU-{node}-{}", (first + i) % 8).parse().expect("an id"));
    Assignment { node: node.into(), containers: [("main".into(), ids.collect())].into() }
}

fn bound(request: &Request, assignment: &Assignment) -> Event {
    let request = Request { node_name: Some(assignment.node.clone()), ..request.clone() };
    Event::PodBound { request, assignment: Some(assignment.clone()) }
}

fn restart(server: &Server) -> State {
    let mut state = State::new();
    for event in server.events() {
        state.apply(event);
    }
    state
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_device_is_never_handed_to_two_owners(steps in prop::collection::vec(step(), 1..120)) {
        let mut server = Server::default();
        let mut state = State::new();
        let mut under_way: Vec<(Request, Assignment)> = Vec::new();
        let mut incarnation = 0;
        let mut now = Millis(0);
        for step in steps {
            now = now.after(500);
            match step {
                Step::Submit { pod: index, gpus, group } => {
                    let name = format!("p{index}");
                    if let Vacant(vacant) = server.pods.entry(name.clone()) {
                        incarnation += 1;
                        let mut request = pod(&name, gpus);
                        request.pod.uid = format!("{name}-{incarnation}").into();
                        request.priority = i32::try_from(index % 3).expect("small");
                        request.group = group;
                        vacant.insert(Entry { request: request.clone(), assignment: None, reported: None });
                        state.apply(Event::PodPending(request));
                    }
                }
                Step::Decide => {
                    let mut owned: BTreeSet<_> = server.claims().into_keys().collect();
                    // A binding that somebody else has forestalled will be refused.
                    let open = |pod: &PodKey| server.pods[&*pod.name].assignment.is_none();
                    for (_, assignment) in under_way.iter().filter(|(request, _)| open(&request.pod)) {
                        owned.extend(assignment.gpus().into_iter().map(|gpu| (assignment.node.clone(), gpu.clone())));
                    }
                    let before = under_way.len();
                    for decision in state.decide(now) {
                        let Decision::Bind { pod, assignment } = decision else { continue };
                        let Entry { request, assignment: known, .. } = &server.pods[&*pod.name];
                        prop_assert!(known.is_none(), "{pod} is bound already");
                        prop_assert_eq!(&request.pod, &pod);
                        let node = &server.nodes[&*assignment.node];
                        for gpu in assignment.gpus() {
                            let owner = (assignment.node.clone(), gpu.clone());
                            prop_assert!(owned.insert(owner), "{} has two owners", gpu);
                            let known = node.gpus.iter().find(|known| known.id == *gpu);
                            prop_assert!(known.is_some_and(|gpu| gpu.health.is_healthy()));
                        }
                        prop_assert_eq!(assignment.gpus().len(), request.gpus as usize);
                        state.apply(Event::BindStarted { uid: pod.uid.clone() });
                        under_way.push((request.clone(), assignment));
                    }
                    for (request, _) in &under_way[before..] {
                        if let Some(group) = &request.group {
                            let (placed, least) = server.standing(group, &under_way);
                            prop_assert!(placed >= least, "{placed} of {least} pods of {}", group.name);
                        }
                    }
                }
                Step::Outcome { success, watched } => {
                    if !under_way.is_empty() {
                        let (request, assignment) = under_way.remove(0);
                        let uid = request.pod.uid.clone();
                        let current = server.pods.get_mut(&*request.pod.name).filter(|e| e.request.pod == request.pod);
                        match current {
                            Some(entry) if success && entry.assignment.is_none() => {
                                entry.assignment = Some(assignment.clone());
                                if watched {
                                    state.apply(bound(&request, &assignment));
                                }
                                state.apply(Event::BindSucceeded { uid });
                            }
                            _ => state.apply(Event::BindFailed { uid, message: "refused".into(), now }),
                        }
                    }
                }
                Step::Delete { pod } => {
                    if let Some(Entry { request, .. }) = server.pods.remove(&format!("p{pod}")) {
                        state.apply(Event::PodGone { uid: request.pod.uid.clone() });
                        under_way.retain(|(other, _)| other.pod != request.pod);
                    }
                }
                Step::Bind { pod, place } => {
                    if let Some(entry) = server.pods.get_mut(&format!("p{pod}")) {
                        let assignment = devices(NODES[place.node], place.first, entry.request.gpus);
                        entry.reported = entry.reported.take().filter(|report| report.node == assignment.node);
                        entry.assignment = Some(assignment);
                        entry.events().drain(..1).for_each(|event| state.apply(event));
                    }
                }
                Step::Resize { pod, gpus, first } => {
                    let is_free = |entry: &&mut Entry| under_way.iter().all(|(r, _)| r.pod != entry.request.pod);
                    if let Some(entry) = server.pods.get_mut(&format!("p{pod}")).filter(is_free) {
                        let group = entry.request.group.take();
                        let (key, priority) = (entry.request.pod.clone(), entry.request.priority);
                        entry.request = Request { pod: key, priority, group, ..common::pod("", gpus) };
                        entry.assignment = entry.assignment.take().map(|a| devices(&a.node, first, gpus));
                        // A report that is too little now was forgotten, and comes again only with the node.
                        entry.reported = entry.reported.take().filter(|a| a.gpus().len() >= gpus as usize);
                        entry.events().drain(..1).for_each(|event| state.apply(event));
                    }
                }
                Step::Regroup { pod, group } => {
                    let is_free = |entry: &&mut Entry| under_way.iter().all(|(r, _)| r.pod != entry.request.pod);
                    if let Some(entry) = server.pods.get_mut(&format!("p{pod}")).filter(is_free) {
                        entry.request.group = group;
                        entry.events().drain(..1).for_each(|event| state.apply(event));
                    }
                }
                Step::Report { pod, first } => {
                    let entry = server.pods.get_mut(&format!("p{pod}"));
                    if let Some(entry) = entry.filter(|entry| entry.assignment.is_some()) {
                        let node = entry.assignment.as_ref().map_or("a".into(), |a| a.node.clone());
                        entry.reported = Some(devices(&node, first, entry.request.gpus));
                        entry.events().drain(1..).for_each(|event| state.apply(event));
                    }
                }
                Step::Node { node: index, gpus } => {
                    server.nodes.insert(NODES[index], node(NODES[index], gpus));
                    state.apply(Event::NodeUpserted(node(NODES[index], gpus)));
                }
                Step::RemoveNode { node } => {
                    server.nodes.remove(NODES[node]);
                    state.apply(Event::NodeRemoved { name: NODES[node].into() });
                }
                Step::Health { node, gpu, healthy } => {
                    let fault = Fault { kind: FaultKind::Lost, message: "lost".into() };
                    let health = if healthy { Health::Healthy } else { Health::Unhealthy(fault) };
                    let id = format!("GPU-{}-{gpu}", NODES[node]).parse().expect("an id");
                    let known = server.nodes.get_mut(NODES[node]);
                    if let Some(known) = known.and_then(|node| node.gpus.iter_mut().find(|gpu| gpu.id == id)) {
                        known.health = health.clone();
                    }
                    state.apply(Event::GpuHealthChanged { node: NODES[node].into(), gpu: id, health });
                }
                Step::Replay => {
                    for event in server.events().into_iter().rev() {
                        state.apply(event);
                    }
                }
                Step::Restart => {
                    // What was under way is lost or done; here it is lost, as if the process died before it wrote.
                    under_way.clear();
                    state = restart(&server);
                }
            }
        }
        // Whatever was under way fails: what remains is exactly what the API server knows.
        for (request, _) in under_way {
            state.apply(Event::BindFailed { uid: request.pod.uid, message: "refused".into(), now });
        }
        prop_assert_eq!(state.claims(), server.claims());
        let mut fresh = restart(&server);
        prop_assert_eq!(fresh.claims(), server.claims());
        // Both ledgers have the same room: filled with single GPUs, they take the same number on every node.
        let later = now.after(1_000_000);
        let filler = |state: &mut State| {
            for Entry { request, assignment, .. } in server.pods.values() {
                if assignment.is_none() {
                    state.apply(Event::PodGone { uid: request.pod.uid.clone() });
                }
            }
            submit(state, (0..30).map(|i| pod(&format!("fill-{i:02}"), 1)));
            let mut nodes: BTreeMap<_, usize> = BTreeMap::new();
            for decision in state.decide(later) {
                if let Decision::Bind { assignment, .. } = decision {
                    *nodes.entry(assignment.node).or_default() += 1;
                }
            }
            nodes
        };
        prop_assert_eq!(filler(&mut state), filler(&mut fresh));
    }
}

#[test]
fn a_device_that_the_cluster_gave_twice_stays_taken_until_both_are_gone() {
    let mut state = cluster([node("a", 1)]);
    let assignment = Assignment {
        node: "a".into(),
        containers: [("main".into(), vec!["GPU-a-0".parse().expect("an id")])].into(),
    };
    for name in ["p", "q"] {
        state.apply(bound(&pod(name, 1), &assignment));
    }
    assert_eq!(state.claims().values().map(BTreeSet::len).collect::<Vec<_>>(), [2]);
    submit(&mut state, [pod("r", 1)]);
    state.apply(Event::PodGone { uid: uid("p") });
    assert!(bindings(&mut state).is_empty());
    state.apply(Event::PodGone { uid: uid("q") });
    assert_eq!(bindings(&mut state).len(), 1);
}

#[test]
fn a_late_watch_event_does_not_undo_a_binding() {
    let mut state = cluster([node("a", 1)]);
    submit(&mut state, [pod("p", 1)]);
    let assignment = bindings(&mut state).remove("p").expect("decided");
    state.apply(Event::BindStarted { uid: uid("p") });
    state.apply(Event::BindSucceeded { uid: uid("p") });
    submit(&mut state, [pod("p", 1)]);
    assert_eq!(state.phase(&uid("p")), Some(Phase::Bound));
    state.apply(Event::BindFailed { uid: uid("p"), message: "late".into(), now: NOW });
    assert_eq!(state.claims().len(), assignment.gpus().len());
}

#[test]
fn what_a_pod_holds_on_an_unknown_node_survives_a_change() {
    let mut state = State::new();
    state.apply(bound(&pod("p", 1), &devices("a", 0, 1)));
    state.apply(bound(&pod("p", 1), &devices("a", 1, 1)));
    state.apply(Event::NodeUpserted(node("b", 1)));
    state.apply(Event::NodeUpserted(node("a", 2)));
    submit(&mut state, [pod("q", 1), pod("r", 1), pod("s", 1)]);
    assert_eq!(bindings(&mut state).len(), 2, "one of three GPUs is taken");
    assert_eq!(state.claims().len(), 3);
    state.apply(Event::PodGone { uid: uid("p") });
    assert_eq!(bindings(&mut state).len(), 1);
}

#[test]
fn a_report_counts_more_than_every_later_annotation() {
    let mut state = cluster([node("a", 4)]);
    let request = pod("p", 1);
    state.apply(bound(&request, &devices("a", 0, 1)));
    let report = Event::DevicesReported { uid: uid("p"), assignment: devices("a", 3, 1) };
    state.apply(report);
    for first in [0, 1] {
        state.apply(bound(&request, &devices("a", first, 1)));
        let claimed: Vec<_> = state.claims().into_keys().map(|(_, gpu)| gpu.to_string()).collect();
        assert_eq!(claimed, ["GPU-a-3"]);
    }
}

#[test]
fn a_bound_pod_may_leave_its_group_and_join_another() {
    let group = |name: &str| Some(Group { name: name.into(), min_members: 2 });
    let mut state = cluster([node("a", 4)]);
    let member = |name: &str, group| Request { group, ..pod(name, 1) };
    for group in [group("d/g"), group("d/h"), None, group("d/g"), None] {
        state.apply(bound(&member("p", group), &devices("a", 0, 1)));
    }
    state.apply(Event::PodGone { uid: uid("p") });
    submit(&mut state, [pod("other", 1), member("q", group("d/g"))]);
    assert_eq!(bindings(&mut state).into_keys().collect::<Vec<_>>(), ["other"]);
    let refusals = state.explain(&uid("q")).and_then(|explanation| explanation.refusals).expect("it waits");
    assert!(refusals.to_string().contains("needs 2 pods together, and 1 exist"), "{refusals}");
}

#[test]
fn a_pod_that_can_no_longer_be_read_keeps_what_was_decided() {
    let mut state = cluster([node("a", 1)]);
    submit(&mut state, [pod("p", 1), pod("q", 1)]);
    assert_eq!(bindings(&mut state).into_keys().collect::<Vec<_>>(), ["p"]);
    for name in ["p", "q"] {
        state.apply(Event::PodWithdrawn { uid: uid(name) });
    }
    assert_eq!((state.phase(&uid("p")), state.phase(&uid("q"))), (Some(Phase::Held), None));
    assert_eq!(state.claims().len(), 1);
}
