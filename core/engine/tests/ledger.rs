//! Laws of the ledger, whatever happens in whatever order.

mod common;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use common::*;
use gantry_engine::{Decision, Event, Millis, Phase, State};
use gantry_model::{Assignment, Fault, FaultKind, Health, PodKey, Request};
use proptest::prelude::*;

const NODES: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Step {
    Submit {
        pod: usize,
        gpus: u32,
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

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0_usize..24, 0_u32..5).prop_map(|(pod, gpus)| Step::Submit { pod, gpus }),
        6 => Just(Step::Decide),
        6 => (any::<bool>(), any::<bool>()).prop_map(|(success, watched)| Step::Outcome { success, watched }),
        3 => (0_usize..24).prop_map(|pod| Step::Delete { pod }),
        3 => (0_usize..3, prop::sample::select(vec![0_u32, 2, 4, 8]))
            .prop_map(|(node, gpus)| Step::Node { node, gpus }),
        1 => (0_usize..3).prop_map(|node| Step::RemoveNode { node }),
        2 => (0_usize..3, 0_u32..8, any::<bool>())
            .prop_map(|(node, gpu, healthy)| Step::Health { node, gpu, healthy }),
        1 => Just(Step::Replay),
        1 => Just(Step::Restart),
    ]
}

/// What the API server would know.
#[derive(Default)]
struct Server {
    nodes: BTreeMap<&'static str, gantry_model::Node>,
    pods: BTreeMap<String, (Request, Option<Assignment>)>,
}

impl Server {
    fn events(&self) -> Vec<Event> {
        let nodes = self.nodes.values().cloned().map(Event::NodeUpserted);
        let pods = self.pods.values().map(|(request, assignment)| match assignment {
            None => Event::PodPending(request.clone()),
            Some(assignment) => bound(request, assignment),
        });
        nodes.chain(pods).collect()
    }

    fn claims(&self) -> BTreeMap<(std::sync::Arc<str>, gantry_model::GpuId), BTreeSet<PodKey>> {
        let mut claims: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (request, assignment) in self.pods.values() {
            if let Some(assignment) = assignment {
                for gpu in assignment.gpus() {
                    let owners = claims.entry((assignment.node.clone(), gpu.clone())).or_default();
                    owners.insert(request.pod.clone());
                }
            }
        }
        claims
    }
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
                Step::Submit { pod: index, gpus } => {
                    let name = format!("p{index}");
                    if let Entry::Vacant(vacant) = server.pods.entry(name.clone()) {
                        incarnation += 1;
                        let mut request = pod(&name, gpus);
                        request.pod.uid = format!("{name}-{incarnation}").into();
                        request.priority = i32::try_from(index % 3).expect("small");
                        vacant.insert((request.clone(), None));
                        state.apply(Event::PodPending(request));
                    }
                }
                Step::Decide => {
                    let mut owned: BTreeSet<_> = server.claims().into_keys().collect();
                    for (_, assignment) in &under_way {
                        owned.extend(assignment.gpus().into_iter().map(|gpu| (assignment.node.clone(), gpu.clone())));
                    }
                    for decision in state.decide(now) {
                        let Decision::Bind { pod, assignment } = decision else { continue };
                        let (request, known) = &server.pods[&*pod.name];
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
                }
                Step::Outcome { success, watched } => {
                    if !under_way.is_empty() {
                        let (request, assignment) = under_way.remove(0);
                        let uid = request.pod.uid.clone();
                        let current = server.pods.get_mut(&*request.pod.name).filter(|(r, _)| r.pod == request.pod);
                        match current {
                            Some(entry) if success => {
                                entry.1 = Some(assignment.clone());
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
                    if let Some((request, _)) = server.pods.remove(&format!("p{pod}")) {
                        state.apply(Event::PodGone { uid: request.pod.uid.clone() });
                        under_way.retain(|(other, _)| other.pod != request.pod);
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
            for (request, assignment) in server.pods.values() {
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
