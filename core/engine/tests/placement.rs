//! What goes where, and what is said when nothing fits.

mod common;

use std::sync::Arc;

use common::*;
use gantry_engine::{Decision, Event, Millis, Phase, PodChange};
use gantry_model::{
    ContainerKind, Fault, FaultKind, Group, Health, Link, LinkKind, NodeSelectorTerm, Request, Requirement,
    ResourceOrigin, Taint, TaintEffect, Test, Toleration, Topology,
};
use proptest::prelude::*;

#[test]
fn a_pod_gets_as_many_devices_as_it_asks_for() {
    let mut state = cluster([node("a", 8)]);
    submit(&mut state, [pod("p", 3)]);
    let bound = bindings(&mut state);
    assert_eq!(indices(&bound["p"], "main").len(), 3);
    assert_eq!(state.phase(&uid("p")), Some(Phase::Held));
    assert!(bindings(&mut state).is_empty(), "decided once");
}

#[test]
fn started_nodes_are_filled_before_empty_ones() {
    let mut state = cluster([node("a", 8), node("b", 8), node("c", 8)]);
    submit(&mut state, [pod("first", 2)]);
    let first = bindings(&mut state)["first"].node.clone();
    submit(&mut state, [pod("second", 4), pod("third", 2)]);
    let bound = bindings(&mut state);
    assert_eq!((&bound["second"].node, &bound["third"].node), (&first, &first));
}

#[test]
fn pods_without_gpus_leave_gpu_nodes_alone() {
    let mut state = cluster([node("gpu", 8), node("cpu", 0)]);
    submit(&mut state, [pod("web", 0)]);
    let bound = bindings(&mut state);
    assert_eq!(&*bound["web"].node, "cpu");
    assert!(bound["web"].containers.is_empty());
}

#[test]
fn small_pods_take_cheap_gpus_and_large_ones_valuable_ones() {
    let mut cheap = node("z-cheap", 4);
    let mut dear = node("a-dear", 4);
    for (index, gpu) in cheap.gpus.iter_mut().enumerate() {
        gpu.memory_mib = 15_360;
        dear.gpus[index].memory_mib = 143_771;
    }
    let mut state = cluster([dear.clone(), cheap.clone()]);
    submit(&mut state, [pod("small", 1)]);
    assert_eq!(&*bindings(&mut state)["small"].node, "z-cheap");
    let mut state = cluster([cheap, dear]);
    submit(&mut state, [pod("large", 4)]);
    assert_eq!(&*bindings(&mut state)["large"].node, "a-dear");
}

#[test]
fn several_gpus_prefer_a_node_where_they_are_linked() {
    let mut pcie = node("a", 4);
    pcie.topology = Topology::from_fn(4, |_, _| Link { gb_per_s: 16, kind: LinkKind::System });
    let mut state = cluster([pcie, node("b", 8)]);
    submit(&mut state, [pod("train", 4)]);
    assert_eq!(&*bindings(&mut state)["train"].node, "b", "though a would be filled completely");
}

#[test]
fn what_kept_an_earlier_pod_waiting_is_not_told_of_the_next() {
    let mut state = cluster([node("a", 0)]);
    submit(&mut state, [pod("first", 1)]);
    assert!(complaints(&mut state, NOW)[0].1.contains("G1019"));
    state.apply(Event::NodeUpserted(node("a", 1)));
    assert!(bindings(&mut state).contains_key("first"));
    // Within the second in which the same shape is not explained again.
    submit(&mut state, [pod("next", 1)]);
    let told = complaints(&mut state, NOW);
    assert!(told[0].0 == "next" && told[0].1.contains("G1001"), "{told:?}");
}

#[test]
fn priority_goes_first_then_age() {
    let mut state = cluster([node("a", 1)]);
    let (old, young) = (pod("old", 1), pod("young", 1));
    let mut urgent = pod("urgent", 1);
    urgent.priority = 100;
    urgent.created_s = 99;
    submit(&mut state, [Request { created_s: 2, ..young }, Request { created_s: 1, ..old }, urgent]);
    assert_eq!(bindings(&mut state).into_keys().collect::<Vec<_>>(), ["urgent"]);
    state.apply(Event::PodGone { uid: uid("urgent") });
    assert_eq!(bindings(&mut state).into_keys().collect::<Vec<_>>(), ["old"]);
}

#[test]
fn containers_share_the_set_as_the_kubelet_does() {
    use ContainerKind::{App, Init, Sidecar};
    let mut state = cluster([node("a", 8)]);
    let list = [("log", Sidecar, 1), ("warm", Init, 2), ("main", App, 3), ("aux", App, 1)];
    submit(&mut state, [containers("p", &list)]);
    let bound = &bindings(&mut state)["p"];
    let [log, warm, main, aux] = ["log", "warm", "main", "aux"].map(|name| indices(bound, name));
    assert_eq!([log.len(), warm.len(), main.len(), aux.len()], [1, 2, 3, 1]);
    let mut together = [log.clone(), main, aux].concat();
    together.sort_unstable();
    together.dedup();
    assert_eq!(together.len(), 5, "containers that run together share nothing");
    assert!(warm.iter().all(|gpu| !log.contains(gpu) && together.contains(gpu)), "an init container reuses");
    assert_eq!(bound.gpus().len(), 5);
}

#[test]
fn counted_nodes_take_pods_without_choosing_devices() {
    let mut plain = node("a", 0);
    plain.allocatable_gpus = 2;
    let mut state = cluster([plain]);
    submit(&mut state, [pod("p", 1), pod("q", 1), pod("r", 1)]);
    let bound = bindings(&mut state);
    assert_eq!(bound.len(), 2);
    assert!(bound.values().all(|assignment| assignment.containers.is_empty()));
}

#[test]
fn devices_of_unknown_use_are_not_given_away_until_they_are_reported() {
    let mut state = cluster([node("a", 4)]);
    let foreign = Request { node_name: Some("a".into()), ..pod("foreign", 1) };
    state.apply(Event::PodBound { request: foreign, assignment: None });
    submit(&mut state, [pod("p", 1)]);
    let told = complaints(&mut state, NOW);
    assert!(told[0].1.contains("G1013 gpu-use-unknown"), "{told:?}");
    let assignment = gantry_model::Assignment {
        node: "a".into(),
        containers: [("main".into(), vec!["GPU-a-0".parse().expect("an id")])].into(),
    };
    state.apply(Event::DevicesReported { uid: uid("foreign"), assignment });
    assert_ne!(indices(&bindings(&mut state)["p"], "main"), [0]);
}

#[test]
fn an_unhealthy_gpu_is_not_given_and_comes_back() {
    let mut state = cluster([node("a", 1)]);
    let fault = Fault { kind: FaultKind::Xid(79), message: "fell off the bus".into() };
    let health =
        |health| Event::GpuHealthChanged { node: "a".into(), gpu: "GPU-a-0".parse().expect("an id"), health };
    state.apply(health(Health::Unhealthy(fault)));
    submit(&mut state, [pod("p", 1)]);
    let told = complaints(&mut state, NOW);
    assert!(told[0].1.contains("G1012 gpu-unhealthy"), "{told:?}");
    state.apply(health(Health::Healthy));
    assert_eq!(bindings(&mut state).len(), 1);
}

#[test]
fn selectors_taints_and_cordons_are_obeyed() {
    let mut tainted = node("tainted", 1);
    tainted.taints =
        vec![Taint { key: "nvidia.com/gpu".into(), value: "".into(), effect: TaintEffect::NoSchedule }];
    let mut cordoned = node("cordoned", 1);
    cordoned.unschedulable = true;
    let mut labelled = node("labelled", 1);
    labelled.labels.insert("tier".into(), "gold".into());
    let mut state = cluster([tainted, cordoned, labelled]);
    let mut gold = pod("gold", 1);
    gold.constraints.node_selector = [("tier".into(), "gold".into())].into();
    let mut tolerant = pod("tolerant", 1);
    tolerant.tolerations = vec![Toleration { key: Some("nvidia.com/gpu".into()), value: None, effect: None }];
    submit(&mut state, [gold, tolerant, pod("plain", 1)]);
    let bound = bindings(&mut state);
    assert_eq!(&*bound["gold"].node, "labelled");
    assert_eq!(&*bound["tolerant"].node, "tainted");
    assert!(!bound.contains_key("plain"));
}

#[test]
fn what_is_preferred_comes_before_packing() {
    let mut far = node("z", 8);
    far.labels.insert("zone".into(), "z".into());
    let mut state = cluster([node("a", 1), far]);
    let mut request = pod("p", 1);
    let term = |key: &str| NodeSelectorTerm {
        labels: vec![Requirement { key: key.into(), test: Test::Exists }],
        name: vec![],
    };
    request.constraints.preferred = vec![(5, term("zone"))];
    submit(&mut state, [request]);
    assert_eq!(&*bindings(&mut state)["p"].node, "z");
}

#[test]
fn reasons_carry_the_numbers_and_the_nearest_fit() {
    let mut state = cluster([node("a", 4), node("b", 8), node("c", 0)]);
    submit(&mut state, [pod("use", 6)]);
    assert_eq!(&*bindings(&mut state)["use"].node, "b");
    submit(&mut state, [pod("big", 8)]);
    assert_eq!(
        complaints(&mut state, NOW),
        [(
            "big".to_owned(),
            "0/3 nodes are available: 3 × G1001 insufficient-gpu: asks for 8 GPUs on one node, and the most that one \
             has free is 4; nvidia.com/gpu: 4 would fit now. Would start now on a with nvidia.com/gpu: 4"
                .to_owned()
        )]
    );
    submit(&mut state, [pod("behind", 8)]);
    let explanation = state.explain(&uid("behind")).expect("known");
    assert_eq!((explanation.ahead, explanation.first_ahead), (1, vec![key("big")]));
}

#[test]
fn a_label_that_nobody_has_is_answered_with_what_nodes_have() {
    let mut labelled = node("a", 1);
    labelled.labels.insert("gpu-topology".into(), "nvlink3".into());
    let mut state = cluster([labelled]);
    let mut request = pod("p", 1);
    request.constraints.node_selector = [("gpu-topology".into(), "nvlink4".into())].into();
    submit(&mut state, [request]);
    assert_eq!(
        complaints(&mut state, NOW)[0].1,
        "0/1 nodes are available: 1 × G1008 node-selector-mismatch: requires gpu-topology=nvlink4, and nodes have \
         gpu-topology with nvlink3. Would start now on a with no requirement gpu-topology=nvlink4"
    );
}

#[test]
fn a_reason_is_told_once_until_it_changes() {
    let mut state = cluster([node("a", 2)]);
    submit(&mut state, [pod("use", 1), pod("p", 2)]);
    assert_eq!(complaints(&mut state, NOW).len(), 1);
    assert_eq!(complaints(&mut state, Millis(10_000)), []);
    // Another number is the same reason; another kind of reason is told.
    let mut smaller = node("a", 2);
    smaller.unschedulable = true;
    state.apply(Event::NodeUpserted(smaller));
    let told = complaints(&mut state, Millis(20_000));
    assert!(told.len() == 1 && told[0].1.contains("G1010"), "{told:?}");
}

#[test]
fn a_failed_binding_is_released_and_tried_again_later() {
    let mut state = cluster([node("a", 1)]);
    submit(&mut state, [pod("p", 1)]);
    assert_eq!(bindings(&mut state).len(), 1);
    state.apply(Event::BindStarted { uid: uid("p") });
    state.apply(Event::BindFailed { uid: uid("p"), message: "conflict".into(), now: NOW });
    assert_eq!((state.phase(&uid("p")), state.claims().len()), (Some(Phase::Waiting), 0));
    assert!(state.decide(Millis(999)).is_empty());
    assert_eq!(state.next_wakeup(), Some(Millis(1000)));
    let reason = state.explain(&uid("p")).and_then(|e| e.reason).map(|reason| reason.to_string());
    assert_eq!(
        reason.as_deref(),
        Some("G1017 bind-failed: binding failed and will be tried again: conflict")
    );
    assert_eq!(state.decide(Millis(1000)).len(), 1);
}

#[test]
fn gated_pods_wait_for_their_gates() {
    let mut state = cluster([node("a", 1)]);
    let gated = Request { gates: vec!["quota".into()], ..pod("p", 1) };
    submit(&mut state, [gated]);
    assert_eq!((state.decide(NOW).len(), state.phase(&uid("p"))), (0, Some(Phase::Gated)));
    submit(&mut state, [pod("p", 1)]);
    assert_eq!(bindings(&mut state).len(), 1);
}

#[test]
fn a_resource_that_no_node_offers_is_named() {
    let mut state = cluster([node("a", 1)]);
    let mut request = pod("p", 0);
    request.total.extended.insert("nvidia.com/gpumem".into(), 10_240);
    submit(&mut state, [request]);
    let told = complaints(&mut state, NOW);
    assert!(told[0].1.starts_with("0/1 nodes are available: 1 × G1007 resource-not-offered:"), "{told:?}");
}

#[test]
fn an_empty_cluster_says_so() {
    let mut state = cluster([]);
    submit(&mut state, [pod("p", 1)]);
    assert_eq!(
        complaints(&mut state, NOW)[0].1,
        "0/0 nodes are available: G1015 no-nodes: the cluster has no node"
    );
    state.apply(Event::NodeUpserted(node("a", 1)));
    assert_eq!(bindings(&mut state).len(), 1);
}

#[test]
fn a_pod_that_asks_for_gpus_where_nobody_offers_any_is_told_where_to_look() {
    let mut state = cluster([node("a", 0), node("b", 0)]);
    submit(&mut state, [pod("p", 2)]);
    assert_eq!(
        complaints(&mut state, NOW)[0].1,
        "0/2 nodes are available: 2 × G1019 gpu-not-offered: asks for 2 GPUs, and no node offers nvidia.com/gpu: no \
         node agent or device plugin has registered any; see `kubectl get pods -n kube-system | grep nvidia`"
    );
    let mut faulty = node("c", 2);
    faulty.allocatable_gpus = 0;
    for gpu in &mut faulty.gpus {
        gpu.health = Health::Unhealthy(Fault { kind: FaultKind::Lost, message: "lost".into() });
    }
    state.apply(Event::NodeUpserted(faulty));
    let told = complaints(&mut state, Millis(10_000));
    assert!(told[0].1.contains("G1012 gpu-unhealthy"), "{told:?}");
}

#[test]
fn nodes_that_fit_are_counted_as_available() {
    let mut state = cluster([node("a", 4), node("b", 4), node("c", 0)]);
    let group = Some(Group { name: "d/g".into(), min_members: 9 });
    submit(&mut state, (0..9).map(|i| Request { group: group.clone(), ..pod(&format!("g-{i}"), 1) }));
    let told = complaints(&mut state, NOW);
    let expected = "2/3 nodes are available: G1018 gang-incomplete: group d/g needs 9 pods together, and 8 fit now; \
                    1 × G1001 insufficient-gpu: ";
    assert!(told.len() == 9 && told.iter().all(|(_, text)| text.starts_with(expected)), "{told:?}");
    assert!(!told[0].1.contains("Would start now"), "{told:?}");
}

#[test]
fn every_pod_is_told_its_own_field() {
    let mut state = cluster([node("a", 1)]);
    let request = |name: &str, field: &str| {
        let mut request = pod(name, 0);
        request.total.extended.insert("example.com/fpga".into(), 1);
        let origin = ResourceOrigin { field: field.into(), vocabulary: None };
        request.origins.insert("example.com/fpga".into(), origin);
        request
    };
    submit(&mut state, [request("p", "containers[0]"), request("q", "containers[1]")]);
    let told = complaints(&mut state, NOW);
    for (position, field) in ["containers[0]: ", "containers[1]: "].iter().enumerate() {
        assert!(told[position].1.contains(field), "{told:?}");
    }
}

#[test]
fn an_affinity_without_requirements_is_called_empty() {
    let mut state = cluster([node("a", 1)]);
    let mut request = pod("p", 1);
    request.constraints.required = Some(vec![NodeSelectorTerm::default()]);
    submit(&mut state, [request]);
    assert_eq!(
        complaints(&mut state, NOW)[0].1,
        "0/1 nodes are available: 1 × G1020 node-affinity-empty: requires a node selector term without any \
         requirement, and such a term matches no node"
    );
}

/// The pod as its author would change it when told what keeps it from starting.
fn changed(mut request: Request, changes: &[PodChange]) -> Request {
    for change in changes {
        match change {
            PodChange::Gpus(count) => {
                request.containers[0].gpus = *count;
                request.gpus = *count;
            }
            PodChange::CpuMilli(milli) => request.total.cpu_milli = *milli,
            PodChange::Tolerate(Taint { key, value, effect }) => request.tolerations.push(Toleration {
                key: Some(key.clone()),
                value: Some(value.clone()),
                effect: Some(*effect),
            }),
            PodChange::Without(unwanted) => {
                let constraints = &mut request.constraints;
                let asked = |key: &Arc<str>, value: &Arc<str>| Requirement {
                    key: key.clone(),
                    test: Test::In([value.clone()].into()),
                };
                constraints.node_selector.retain(|key, value| asked(key, value) != *unwanted);
                let mut terms = constraints.required.take().unwrap_or_default();
                terms.iter_mut().for_each(|term| term.labels.retain(|known| known != unwanted));
                terms.retain(|term| !term.labels.is_empty());
                constraints.required = (!terms.is_empty()).then_some(terms);
            }
            other => panic!("{other} is not asked for here"),
        }
    }
    request
}

proptest! {
    #[test]
    fn a_pod_that_is_changed_as_it_was_told_starts(
        nodes in prop::collection::vec((0_u32..5, 0_usize..4, 0_usize..4, 1_u64..4), 1..4),
        gpus in 0_u32..6,
        cores in 1_u64..5,
        selector in prop::collection::btree_map(0_usize..3, 0_usize..2, 0..3),
        terms in prop::collection::vec(prop::collection::vec((0_usize..3, any::<bool>()), 0..4), 0..4),
    ) {
        let names: Vec<Arc<str>> = ["x", "y", "z"].map(Into::into).into();
        let nodes = nodes.iter().enumerate().map(|(index, (gpus, taints, labels, cores))| {
            let mut node = node(&format!("n{index}"), *gpus);
            node.allocatable.cpu_milli = cores * 1000;
            node.labels.extend(names.iter().take(*labels).map(|name| (name.clone(), "1".into())));
            let taint = |key: &Arc<str>| Taint { key: key.clone(), value: "".into(), effect: TaintEffect::NoSchedule };
            node.taints = names.iter().take(*taints).map(taint).collect();
            node
        });
        let mut state = cluster(nodes);
        let mut request = pod("p", gpus);
        request.total.cpu_milli = cores * 1000;
        request.constraints.node_selector =
            selector.iter().map(|(name, value)| (names[*name].clone(), value.to_string().into())).collect();
        let term = |requirements: &Vec<(usize, bool)>| NodeSelectorTerm {
            labels: requirements
                .iter()
                .map(|(name, exists)| Requirement {
                    key: names[*name].clone(),
                    test: if *exists { Test::Exists } else { Test::DoesNotExist },
                })
                .collect(),
            name: vec![],
        };
        request.constraints.required = (!terms.is_empty()).then(|| terms.iter().map(term).collect());
        submit(&mut state, [request.clone()]);
        for decision in state.decide(NOW) {
            let Decision::Unschedulable { refusals, .. } = decision else { continue };
            if let Some(nearest) = &refusals.nearest {
                submit(&mut state, [changed(request.clone(), &nearest.changes)]);
                prop_assert_eq!(bindings(&mut state).len(), 1, "{}", refusals);
            }
        }
    }
}
