//! Pods of a group are placed together or not at all.

mod common;

use common::{cluster, node, pod, submit, uid};
use gantry_engine::{Decision, Event, Millis, Phase, State};
use gantry_model::{Group, Request};
use proptest::prelude::*;

const NOW: Millis = Millis(0);

fn member(group: &str, index: u32, gpus: u32, min_members: u32) -> Request {
    let group = Group { name: format!("default/{group}").into(), min_members };
    Request { group: Some(group.clone()), ..pod(&format!("{}-{index}", &group.name[8..]), gpus) }
}

fn gang(group: &str, members: u32, gpus: u32) -> impl Iterator<Item = Request> {
    (0..members).map(move |index| member(group, index, gpus, members))
}

fn bound(state: &mut State, now: Millis) -> Vec<String> {
    let binds = state.decide(now).into_iter().filter_map(|decision| match decision {
        Decision::Bind { pod, .. } => Some(pod.name.to_string()),
        Decision::Unschedulable { .. } => None,
    });
    binds.collect()
}

#[test]
fn a_group_that_fits_is_bound_in_one_decision() {
    let mut state = cluster([node("a", 4), node("b", 4)]);
    submit(&mut state, gang("g", 8, 1));
    assert_eq!(bound(&mut state, NOW).len(), 8);
}

#[test]
fn a_group_that_does_not_fit_holds_nothing() {
    let mut state = cluster([node("a", 4), node("b", 3)]);
    submit(&mut state, gang("g", 8, 1));
    submit(&mut state, [pod("single", 4)]);
    // What seven of eight were proposed goes to the pod that comes after them.
    assert_eq!(bound(&mut state, NOW), ["single"]);
    assert_eq!(state.phase(&uid("g-0")), Some(Phase::Waiting));
    assert_eq!(state.claims().len(), 4);
}

#[test]
fn a_group_waits_for_its_last_pod() {
    let mut state = cluster([node("a", 8)]);
    submit(&mut state, gang("g", 8, 1).take(7));
    assert!(bound(&mut state, NOW).is_empty());
    submit(&mut state, [member("g", 7, 1, 8)]);
    assert_eq!(bound(&mut state, NOW).len(), 8);
}

#[test]
fn a_group_is_tried_again_when_something_is_freed() {
    let mut state = cluster([node("a", 8)]);
    submit(&mut state, [pod("before", 1)]);
    assert_eq!(bound(&mut state, NOW), ["before"]);
    submit(&mut state, gang("g", 8, 1));
    assert!(bound(&mut state, NOW).is_empty());
    state.apply(Event::PodGone { uid: uid("before") });
    assert_eq!(bound(&mut state, NOW).len(), 8);
}

#[test]
fn members_beyond_the_minimum_start_one_by_one() {
    let mut state = cluster([node("a", 2)]);
    submit(&mut state, (0..3).map(|index| member("g", index, 1, 2)));
    assert_eq!(bound(&mut state, NOW), ["g-0", "g-1"]);
    state.apply(Event::PodGone { uid: uid("g-0") });
    assert_eq!(bound(&mut state, NOW), ["g-2"]);
}

#[test]
fn two_groups_that_fit_only_one_by_one_do_not_block_each_other() {
    let mut state = cluster([node("a", 8)]);
    submit(&mut state, gang("g", 6, 1).chain(gang("h", 6, 1)));
    assert_eq!(bound(&mut state, NOW).len(), 6);
}

/// Pods of all groups by turns: `g-0`, `h-0`, `g-1`, `h-1` …
fn interleaved(groups: &[Vec<Request>]) -> Vec<Request> {
    let longest = groups.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|i| groups.iter().filter_map(move |group| group.get(i).cloned())).collect()
}

#[test]
fn groups_whose_pods_wait_by_turns_do_not_starve_each_other() {
    let mut state = cluster([node("a", 8)]);
    submit(&mut state, interleaved(&[gang("g", 6, 1).collect(), gang("h", 6, 1).collect()]));
    let first = bound(&mut state, NOW);
    assert!(first.len() == 6 && first.iter().all(|name| name.starts_with("g-")), "{first:?}");
    for name in first {
        state.apply(Event::PodGone { uid: uid(&name) });
    }
    let second = bound(&mut state, NOW);
    assert!(second.len() == 6 && second.iter().all(|name| name.starts_with("h-")), "{second:?}");
}

#[test]
fn a_group_that_can_never_start_leaves_room_for_the_next() {
    let mut state = cluster([node("a", 8)]);
    submit(&mut state, interleaved(&[gang("g", 4, 3).collect(), gang("h", 2, 4).collect()]));
    assert_eq!(bound(&mut state, NOW), ["h-0", "h-1"]);
}

proptest! {
    /// Members of a group are alike here, so that what fits does not depend on the order in which they are tried.
    #[test]
    fn a_group_that_fits_on_what_is_free_is_placed(
        nodes in prop::collection::vec(0_u32..9, 1..4),
        sizes in prop::collection::vec((1_u32..9, 0_u32..5), 1..6),
        singles in prop::collection::vec(1_u32..5, 0..4),
    ) {
        let nodes: Vec<_> = nodes.iter().enumerate().map(|(i, gpus)| node(&format!("n{i}"), *gpus)).collect();
        let groups: Vec<Vec<Request>> =
            sizes.iter().enumerate().map(|(i, (members, gpus))| gang(&format!("g{i}"), *members, *gpus).collect()).collect();
        let mut state = cluster(nodes.clone());
        submit(&mut state, interleaved(&groups));
        submit(&mut state, singles.iter().enumerate().map(|(i, gpus)| pod(&format!("single-{i}"), *gpus)));
        let mut places = Vec::new();
        for decision in state.decide(NOW) {
            if let Decision::Bind { pod: key, assignment } = decision {
                places.push((key, assignment));
            }
        }
        let placed = |request: &Request| places.iter().find(|(key, _)| *key == request.pod);
        for group in &groups {
            if group.iter().all(|request| placed(request).is_some()) {
                continue;
            }
            prop_assert!(group.iter().all(|request| placed(request).is_none()), "a part of a group is placed");
            // Alone beside what was placed, it does not fit either.
            let mut alone = cluster(nodes.clone());
            let all = groups.iter().flatten().cloned();
            let all = all.chain(singles.iter().enumerate().map(|(i, gpus)| pod(&format!("single-{i}"), *gpus)));
            for request in all {
                if let Some((_, assignment)) = placed(&request) {
                    let request = Request { node_name: Some(assignment.node.clone()), ..request };
                    alone.apply(Event::PodBound { request, assignment: Some(assignment.clone()) });
                }
            }
            submit(&mut alone, group.iter().cloned());
            prop_assert_eq!(bound(&mut alone, NOW), Vec::<String>::new());
        }
    }
}

#[test]
fn the_reason_names_the_group_and_what_fits() {
    let mut state = cluster([node("a", 4)]);
    submit(&mut state, gang("g", 8, 1));
    let told = state.decide(NOW).into_iter().find_map(|decision| match decision {
        Decision::Unschedulable { refusals, .. } => Some(refusals.to_string()),
        Decision::Bind { .. } => None,
    });
    let told = told.expect("the group is told why it waits");
    let expected = "G1018 gang-incomplete: group default/g needs 8 pods together, and 4 fit now";
    assert!(told.contains(expected), "{told}");
}

#[test]
fn pods_of_a_group_that_come_one_by_one_are_told_how_many_there_are() {
    let mut state = cluster([node("a", 4)]);
    let mut told = Vec::new();
    for request in gang("g", 3, 2) {
        submit(&mut state, [request]);
        for decision in state.decide(NOW) {
            if let Decision::Unschedulable { pod, refusals } = decision {
                told.push(format!("{} {}", pod.name, refusals.list[0].reason.message()));
            }
        }
    }
    let expected = [
        "g-0 group default/g needs 3 pods together, and 1 exist",
        "g-1 group default/g needs 3 pods together, and 2 exist",
        // Now that all exist, it is another reason for everybody.
        "g-0 group default/g needs 3 pods together, and 2 fit now",
        "g-1 group default/g needs 3 pods together, and 2 fit now",
        "g-2 group default/g needs 3 pods together, and 2 fit now",
    ];
    assert_eq!(told, expected);
}
