//! Pods of a group are placed together or not at all.

mod common;

use common::{cluster, node, pod, submit, uid};
use gantry_engine::{Decision, Event, Millis, Phase, State};
use gantry_model::{Group, Request};

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
