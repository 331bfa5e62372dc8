//! Shares, partitions and names: what is offered, and to whom.

use std::collections::BTreeSet;

use gantry_api::IdentityMode;
use gantry_gpu::{GpuBackend as _, Inventory, Profile, SimGpus};
use gantry_model::{Partition, PartitionAttributes};
use gantry_proto::deviceplugin::HEALTHY;

use super::fixture::{config, container, empty, node_in};
use super::*;

const SHARED: &str = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}";
const RENAMED: &str =
    "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}";

fn inventory(profile: &str, count: usize) -> Inventory {
    SimGpus::new(Profile::named(profile).unwrap(), count, "node-1", 7).unwrap().inventory().unwrap()
}

fn partition(gpu: usize, index: u32, profile: &str) -> Partition {
    Partition {
        id: format!("MIG-{gpu:08}-0000-4000-8000-{index:012}").parse().unwrap(),
        index,
        profile: profile.into(),
        gpu_instance: index + 1,
        compute_instance: 0,
        start: index,
        size: 1,
        memory_mib: 4864,
        attributes: PartitionAttributes::default(),
        health: Health::Healthy,
    }
}

/// A node of A100s, of which card `i` is in MIG mode with the profiles of entry `i`, if there are any.
fn mig_node(text: &str, cards: &[Option<&[&str]>]) -> State {
    let mut inventory = inventory("a100-40", cards.len());
    for (gpu, card) in cards.iter().enumerate() {
        inventory.gpus[gpu].partitions = card.map(|profiles| {
            profiles.iter().zip(0..).map(|(profile, index)| partition(gpu, index, profile)).collect()
        });
    }
    let mut state = empty("node-1", IdentityMode::Kubelet);
    state.config = config(text);
    state.refresh(inventory);
    state
}

/// Resources with the number of their devices and of the healthy ones.
fn counts(state: &State) -> Vec<(String, usize, usize)> {
    let healthy = |devices: &[gantry_proto::deviceplugin::Device]| {
        devices.iter().filter(|d| d.health == HEALTHY).count()
    };
    state.lists().iter().map(|(name, devices)| (name.to_string(), devices.len(), healthy(devices))).collect()
}

fn counted(list: &[(&str, usize, usize)]) -> Vec<(String, usize, usize)> {
    list.iter().map(|(name, all, healthy)| ((*name).to_owned(), *all, *healthy)).collect()
}

fn fault() -> Health {
    Health::Unhealthy(Fault { kind: FaultKind::Xid(79), message: "gone".into() })
}

fn ids(state: &State, resource: &str) -> Vec<String> {
    state.lists()[resource].iter().map(|device| device.id.clone()).collect()
}

#[test]
fn every_share_of_a_card_follows_the_card() {
    let (mut state, gpus) = node_in(IdentityMode::Kubelet, 2);
    state.configure(config(SHARED)).unwrap();
    assert_eq!(
        ids(&state, "nvidia.com/gpu")[..5],
        [
            format!("{}::0", gpus[0]),
            format!("{}::1", gpus[0]),
            format!("{}::2", gpus[0]),
            format!("{}::3", gpus[0]),
            format!("{}::0", gpus[1]),
        ]
    );
    let changed = state.set_health(&gpus[0], fault());
    assert_eq!(changed, Some(format!("{0}::0 to {0}::3", gpus[0])));
    assert_eq!(counts(&state), counted(&[("nvidia.com/gpu", 8, 4)]));
    let error = state.allocate("nvidia.com/gpu", &[format!("{}::2", gpus[0])]).unwrap_err().to_string();
    assert!(error.contains("is unhealthy: XID 79"), "{error}");
    state.set_health(&gpus[0], Health::Healthy);
    assert_eq!(counts(&state), counted(&[("nvidia.com/gpu", 8, 8)]));
}

#[test]
fn two_shares_of_one_card_are_one_device_and_a_limit_of_one_is_kept() {
    let (mut state, gpus) = node_in(IdentityMode::Kubelet, 2);
    state.configure(config(RENAMED)).unwrap();
    let shares = [format!("{}::3", gpus[1]), format!("{}::0", gpus[1])];
    let parts = state.allocate("nvidia.com/gpu.shared", &shares).unwrap();
    assert_eq!(parts.iter().map(Part::id).collect::<Vec<_>>(), [&gpus[1]]);
    let text =
        RENAMED.replace("renameByDefault: true", "renameByDefault: true, failRequestsGreaterThanOne: true");
    state.configure(config(&text)).unwrap();
    assert_eq!(
        state.allocate("nvidia.com/gpu.shared", &shares).unwrap_err().to_string(),
        "nvidia.com/gpu.shared: the maximum request size for shared resources is 1; found 2: ask for 1, or set sharing's failRequestsGreaterThanOne to false"
    );
    assert_eq!(state.allocate("nvidia.com/gpu.shared", &shares[..1]).unwrap().len(), 1);
}

#[test]
fn an_allocation_is_whole_or_not_at_all_and_never_of_nothing() {
    let (mut state, gpus) = node_in(IdentityMode::Kubelet, 2);
    state.configure(config(RENAMED)).unwrap();
    let good = format!("{}::0", gpus[0]);
    for bad in [
        gpus[0].to_string(),
        format!("{}::4", gpus[0]),
        format!("{}::00", gpus[0]),
        "GPU-x::0".into(),
        String::new(),
    ] {
        let error = state.allocate("nvidia.com/gpu.shared", &[good.clone(), bad.clone()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "unknown device {bad:?}: this plugin offers 8 devices as nvidia.com/gpu.shared, {0}::0 to {1}::3",
                gpus[0], gpus[1]
            )
        );
    }
    assert_eq!(
        state.allocate("nvidia.com/gpu.shared", &[]).unwrap_err().to_string(),
        "an allocation of no device of nvidia.com/gpu.shared: name at least one"
    );
    assert!(state.allocate("nvidia.com/gpu", &[good]).is_err(), "a device of another resource");
}

#[test]
fn partitions_are_offered_as_the_strategy_says() {
    let cards: &[Option<&[&str]>] = &[Some(&["1g.5gb", "1g.5gb+me", "3g.20gb"]), None, Some(&[])];
    let none = mig_node("version: v1", cards);
    assert_eq!(counts(&none), counted(&[("nvidia.com/gpu", 3, 3)]), "whole, MIG mode or not");
    let mut mixed = mig_node("version: v1\nflags: {migStrategy: mixed}", cards);
    let all = [
        ("nvidia.com/gpu", 1, 1),
        ("nvidia.com/mig-1g.5gb", 1, 1),
        ("nvidia.com/mig-1g.5gb.me", 1, 1),
        ("nvidia.com/mig-3g.20gb", 1, 1),
    ];
    assert_eq!(counts(&mixed), counted(&all));
    assert_eq!(mixed.notes(), ["GPU 2 is in MIG mode and has no partitions: nothing of it is offered"]);
    // A bad partition is itself bad; a bad card takes its partitions along, and nothing else.
    mixed.set_health(&partition(0, 1, "").id, fault());
    assert_eq!(counts(&mixed)[2], ("nvidia.com/mig-1g.5gb.me".to_owned(), 1, 0));
    assert_eq!(counts(&mixed)[1], ("nvidia.com/mig-1g.5gb".to_owned(), 1, 1));
    let card = mixed.gpus()[0].id.clone();
    mixed.set_health(&card, fault());
    assert_eq!(counts(&mixed).iter().map(|(_, _, healthy)| *healthy).collect::<Vec<_>>(), [1, 0, 0, 0]);
    let single =
        mig_node("version: v1\nflags: {migStrategy: single}", &[Some(&["1g.5gb"; 7]), Some(&["1g.5gb"; 7])]);
    assert_eq!(counts(&single), counted(&[("nvidia.com/gpu", 14, 14)]));
    let without = mig_node("version: v1\nflags: {migStrategy: single}", &[None, None]);
    assert_eq!(
        counts(&without),
        counted(&[("nvidia.com/gpu", 2, 2)]),
        "one configuration for a whole cluster"
    );
    let shared = "version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: mig-1g.5gb, replicas: 3}]}}";
    let shared = mig_node(shared, &[Some(&["1g.5gb", "1g.5gb"])]);
    assert_eq!(counts(&shared), counted(&[("nvidia.com/mig-1g.5gb.shared", 6, 6)]));
    assert_eq!(ids(&shared, "nvidia.com/mig-1g.5gb.shared")[4], format!("{}::1", partition(0, 1, "").id));
    let divided =
        mig_node("version: v1\nflags: {migStrategy: mixed}", &[Some(&["1c.3g.20gb", "1c.3g.20gb"])]);
    assert_eq!(counts(&divided), []);
    assert!(
        divided.notes()[0].contains("1c.3g.20gb, for which there is no resource"),
        "{:?}",
        divided.notes()
    );
}

/// A configuration, cards, and what is said.
type Case<'a> = (String, &'a [Option<&'a [&'a str]>], &'a str);

#[test]
fn what_does_not_fit_the_cards_is_said_and_changes_nothing() {
    let single = "version: v1\nflags: {migStrategy: single}";
    let shared = |devices: &str| {
        format!(
            "version: v1\nsharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 2, devices: {devices}}}]}}}}"
        )
    };
    let mps = "version: v1\nflags: {migStrategy: single, mpsRoot: /mps}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}";
    let cases: &[Case<'_>] = &[
        (
            single.into(),
            &[None, Some(&["1g.5gb"])],
            "flags.migStrategy: single: GPU 1 is in MIG mode and GPU 0 is not; change one of them, or use mixed",
        ),
        (
            single.into(),
            &[Some(&["1g.5gb"]), Some(&[])],
            "flags.migStrategy: single: GPU 1 is in MIG mode and has no partitions; create them, or switch MIG mode off",
        ),
        (
            single.into(),
            &[Some(&["1g.5gb"]), Some(&["1g.5gb", "2g.10gb"])],
            "flags.migStrategy: single: partitions 0:0 and 1:1 are of two kinds, 1g.5gb and 2g.10gb; make them alike, or use mixed",
        ),
        (
            mps.into(),
            &[Some(&["1g.5gb"])],
            "sharing.mps: nvidia.com/gpu has partitions, and MPS cannot share them; use timeSlicing",
        ),
        (
            shared("3"),
            &[None, None],
            "sharing: nvidia.com/gpu: devices: invalid value 3: the node has 2 of them; write a smaller number, or all",
        ),
        (
            shared("[0, 5]"),
            &[None, None],
            "sharing: nvidia.com/gpu: devices: invalid value \"5\": nvidia.com/gpu has no such device on this node; it has 0, 1",
        ),
    ];
    for (text, cards, message) in cases {
        let mut state = mig_node("version: v1", cards);
        let before = state.lists();
        assert_eq!(state.configure(config(text)).unwrap_err().to_string(), *message);
        assert_eq!(state.lists(), before);
        assert_eq!(mig_node(text, cards).misfit().map(ToString::to_string).as_deref(), Some(*message));
    }
}

#[test]
fn models_have_the_names_that_the_configuration_gives_them() {
    let mut mixed = inventory("a100-40", 2);
    mixed.gpus[1].product = "NVIDIA L4".into();
    let mut state = empty("node-1", IdentityMode::Kubelet);
    state.refresh(mixed);
    let text = "version: v1\nresources: {gpus: [{pattern: \"*A100*\", name: a100}, {pattern: \"*\", name: other}]}\nsharing: {timeSlicing: {resources: [{name: a100, rename: a100-shared, replicas: 2}, {name: h100, replicas: 2}]}}";
    state.configure(config(text)).unwrap();
    assert_eq!(counts(&state), counted(&[("nvidia.com/a100-shared", 2, 2), ("nvidia.com/other", 1, 1)]));
    assert_eq!(state.notes(), ["sharing: nvidia.com/h100: this node has none, so nothing of it is shared"]);
}

#[test]
fn some_devices_can_be_shared_and_the_others_not() {
    let (mut state, gpus) = node_in(IdentityMode::Kubelet, 3);
    let text = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.shared, replicas: 2, devices: [2, \"0\"]}]}}";
    state.configure(config(text)).unwrap();
    assert_eq!(counts(&state), counted(&[("nvidia.com/gpu", 1, 1), ("nvidia.com/gpu.shared", 4, 4)]));
    assert_eq!(ids(&state, "nvidia.com/gpu"), [gpus[1].to_string()]);
}

#[test]
fn a_gpu_that_is_held_whole_becomes_shares_when_it_is_free() {
    for mode in [IdentityMode::Kubelet, IdentityMode::Assignment] {
        let (mut state, gpus) = node_in(mode, 2);
        let whole = ids(&state, "nvidia.com/gpu");
        let held = state.create(&container("a", "main", &[&whole[0]], None)).unwrap();
        state.configure(config(RENAMED)).unwrap();
        assert_eq!(counts(&state), counted(&[("nvidia.com/gpu", 1, 1), ("nvidia.com/gpu.shared", 4, 4)]));
        assert_eq!(ids(&state, "nvidia.com/gpu")[0], whole[0], "under the id that the kubelet knows");
        let share = format!("{}::0", held[0]);
        assert!(state.allocate("nvidia.com/gpu.shared", std::slice::from_ref(&share)).is_err());
        let error = state.create(&container("b", "main", &[&share], None)).unwrap_err().to_string();
        assert!(error.contains("belongs to pod default/a"), "{error}");
        assert!(state.retain(|uid| uid != "uid-a"));
        assert_eq!(counts(&state), counted(&[("nvidia.com/gpu.shared", 8, 8)]));
        state.create(&container("b", "main", &[&share], None)).unwrap();
        let other = format!("{}::1", held[0]);
        state.create(&container("c", "main", &[&other], None)).unwrap();
        assert!(state.create(&container("d", "main", &[&other], None)).is_err(), "one share, one pod");

        // And back: of a card with shares in use nothing new is given, the other card is whole at once.
        state.configure(config("version: v1")).unwrap();
        assert_eq!(counts(&state), counted(&[("nvidia.com/gpu", 1, 1), ("nvidia.com/gpu.shared", 2, 2)]));
        state.retain(|uid| uid != "uid-b");
        assert_eq!(ids(&state, "nvidia.com/gpu.shared"), std::slice::from_ref(&other));
        state.retain(|_| false);
        assert_eq!(counts(&state), counted(&[("nvidia.com/gpu", 2, 2)]));
        assert_eq!(ids(&state, "nvidia.com/gpu").len(), gpus.len());
    }
}

#[test]
fn other_slots_stay_where_they_are_when_a_card_is_shared() {
    let (mut state, gpus) = node_in(IdentityMode::Assignment, 4);
    let text = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, rename: gpu.shared, replicas: 2, devices: [1]}]}}";
    state.configure(config(text)).unwrap();
    assert_eq!(ids(&state, "nvidia.com/gpu"), ["slot-0", "slot-2", "slot-3"]);
    let assigned = [("main", vec![gpus[1].clone()])];
    let error = state.create(&container("a", "main", &["slot-0"], Some(&assigned))).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "pod default/a, container main: {} is not offered whole on this node but as nvidia.com/gpu.shared",
            gpus[1]
        )
    );
    assert_eq!(state.create(&container("b", "main", &["slot-2", "slot-3"], None)).unwrap().len(), 2);
    state.configure(config("version: v1")).unwrap();
    assert_eq!(ids(&state, "nvidia.com/gpu"), ["slot-0", "slot-1", "slot-2", "slot-3"]);
}

#[test]
fn a_container_of_earlier_days_is_started_again_whatever_the_configuration_says_now() {
    let (mut state, gpus) = node_in(IdentityMode::Kubelet, 2);
    let share = format!("{}::3", gpus[1]);
    assert!(state.allocate("nvidia.com/gpu", std::slice::from_ref(&share)).is_err(), "never given anew");
    assert_eq!(state.create(&container("a", "main", &[&share], None)).unwrap(), [gpus[1].clone()]);
    assert_eq!(ids(&state, "nvidia.com/gpu"), [gpus[0].to_string(), share]);
    assert!(state.create(&container("b", "main", &[&format!("{}::x", gpus[0])], None)).is_err());
}

#[test]
fn shares_are_spread_over_distinct_cards_or_packed_and_ties_have_one_answer() {
    let (mut state, gpus) = node_in(IdentityMode::Kubelet, 3);
    let name = |gpu: usize, share: u32| format!("{}::{share}", gpus[gpu]);
    for (policy, size, must, expected) in [
        // Of card 0 two shares are taken, of card 1 one, of card 2 none.
        ("distributed", 1, &[][..], &[(2, 0)][..]),
        ("distributed", 2, &[], &[(2, 0), (1, 1)]),
        ("distributed", 3, &[], &[(2, 0), (1, 1), (0, 2)]),
        ("distributed", 4, &[], &[(2, 0), (1, 1), (0, 2), (2, 1)]),
        ("distributed", 2, &[(2, 3)], &[(2, 3), (1, 1)]),
        ("packed", 1, &[], &[(0, 2)]),
        ("packed", 2, &[], &[(0, 2), (1, 1)]),
        ("packed", 5, &[], &[(0, 2), (1, 1), (2, 0), (0, 3), (1, 2)]),
    ] {
        let text = format!(
            "version: v1\nflags: {{plugin: {{sharedDevicesAllocationPolicy: {policy}}}}}\nsharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 4}}]}}}}"
        );
        state.configure(config(&text)).unwrap();
        let mut free: Vec<String> = [(0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]
            .map(|(gpu, share)| name(gpu, share))
            .to_vec();
        free.reverse();
        let must: Vec<String> = must.iter().map(|(gpu, share)| name(*gpu, *share)).collect();
        let expected: Vec<String> = expected.iter().map(|(gpu, share)| name(*gpu, *share)).collect();
        let chosen = state.preferred("nvidia.com/gpu", &free, &must, size).unwrap();
        assert_eq!(chosen, expected, "{policy} {size}");
        free.sort();
        assert_eq!(state.preferred("nvidia.com/gpu", &free, &must, size).unwrap(), expected);
    }
    let all = ids(&state, "nvidia.com/gpu");
    for (available, must, size, rule) in [
        (&all[..2], &[][..], 3, "fewer are available than asked for"),
        (&all[..2], &all[4..5], 1, "what is required must be available"),
        (&all[..2], &all[..2], 1, "more are required than asked for"),
    ] {
        let error = state.preferred("nvidia.com/gpu", available, must, size).unwrap_err().to_string();
        assert!(error.ends_with(rule), "{error}");
    }
}

#[test]
fn partitions_come_from_distinct_cards_or_from_the_fullest() {
    let cards: &[Option<&[&str]>] = &[Some(&["1g.5gb"; 3]), Some(&["1g.5gb"; 3])];
    for (policy, cards_chosen) in [("distributed", [1, 0, 1]), ("packed", [0, 0, 1])] {
        let text = format!(
            "version: v1\nflags: {{migStrategy: mixed, plugin: {{sharedDevicesAllocationPolicy: {policy}}}}}"
        );
        let mut state = mig_node(&text, cards);
        let all = ids(&state, "nvidia.com/mig-1g.5gb");
        // One partition of card 0 is taken.
        let chosen = state.preferred("nvidia.com/mig-1g.5gb", &all[1..], &[], 3).unwrap();
        let found: Vec<usize> = chosen.iter().map(|id| usize::from(all[3..].contains(id))).collect();
        assert_eq!(found, cards_chosen, "{policy}");
    }
}

#[test]
fn every_question_of_every_subset_of_a_board_has_an_answer() {
    let (mut state, gpus) = node_in(IdentityMode::Kubelet, 8);
    for free in 0_u32..256 {
        let available: Vec<String> =
            (0..8).filter(|i| free >> i & 1 == 1).map(|i: usize| gpus[i].to_string()).collect();
        for size in 0..=available.len() {
            let chosen =
                state.preferred("nvidia.com/gpu", &available, &[], i32::try_from(size).unwrap()).unwrap();
            let distinct: BTreeSet<&String> = chosen.iter().collect();
            assert_eq!(distinct.len(), size);
            assert!(chosen.iter().all(|id| available.contains(id)));
        }
    }
}
