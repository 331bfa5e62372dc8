use proptest::prelude::*;

use std::collections::BTreeSet;

use gantry_api::ASSIGNMENT_ANNOTATION;
use gantry_proto::deviceplugin::HEALTHY;

use super::fixture::{container, empty, node, node_in, pod};
use super::*;
use crate::Error;

const GPU: &str = "nvidia.com/gpu";

fn health(state: &State) -> Vec<(String, bool)> {
    state.devices().into_iter().map(|device| (device.id, device.health == HEALTHY)).collect()
}

fn behind(state: &State) -> Vec<GpuId> {
    state.slots().flatten().cloned().collect()
}

fn fault() -> Health {
    Health::Unhealthy(Fault { kind: FaultKind::Xid(79), message: "gone".into() })
}

#[test]
fn the_assignment_decides_which_gpu_a_slot_means() {
    let (mut state, gpus) = node(4);
    let assigned = [("main", vec![gpus[3].clone(), gpus[0].clone()])];
    let request = container("a", "main", &["slot-1", "slot-2"], Some(&assigned));
    assert_eq!(state.create(&request).unwrap(), [gpus[3].clone(), gpus[0].clone()]);
    let behind = behind(&state);
    assert_eq!((&behind[1], &behind[2]), (&gpus[3], &gpus[0]));
    assert_eq!(behind.iter().collect::<BTreeSet<_>>().len(), 4, "a permutation");
    // A container that is started again keeps what it has.
    assert_eq!(state.create(&request).unwrap(), [gpus[3].clone(), gpus[0].clone()]);
    assert_eq!(self::behind(&state), behind);
}

#[test]
fn a_slot_is_as_healthy_as_the_gpu_behind_it() {
    let (mut state, gpus) = node(3);
    state.create(&container("a", "main", &["slot-0"], Some(&[("main", vec![gpus[2].clone()])]))).unwrap();
    assert_eq!(state.set_health(&gpus[2], fault()).as_deref(), Some("slot-0"));
    assert_eq!(state.set_health(&gpus[2], fault()), None, "no change, no message");
    assert_eq!(health(&state), [("slot-0".into(), false), ("slot-1".into(), true), ("slot-2".into(), true)]);
    assert_eq!(state.set_health(&gpus[2], Health::Healthy).as_deref(), Some("slot-0"));
    assert!(health(&state).iter().all(|(_, healthy)| *healthy));
}

#[test]
fn a_device_is_never_handed_to_two_owners() {
    let (mut state, gpus) = node(4);
    let assigned = [("main", vec![gpus[1].clone()])];
    state.create(&container("a", "main", &["slot-0"], Some(&assigned))).unwrap();
    let before = (state.in_use(), behind(&state));
    let second = container("b", "main", &["slot-1"], Some(&assigned));
    assert_eq!(
        state.create(&second).unwrap_err().to_string(),
        format!(
            "pod default/b (uid uid-b): {} belongs to pod default/a (uid uid-a) until that pod is gone",
            gpus[1]
        )
    );
    assert_eq!((state.in_use(), behind(&state)), before, "nothing half-applied");
    assert!(state.retain(|uid| uid != "uid-a"));
    assert_eq!(state.create(&second).unwrap(), [gpus[1].clone()]);
}

#[test]
fn a_pod_without_an_assignment_gets_no_gpu_that_another_is_promised() {
    let (mut state, gpus) = node(4);
    let first = state.create(&container("first", "main", &["slot-0"], None)).unwrap();
    let promised: BTreeSet<GpuId> = gpus.iter().filter(|gpu| !first.contains(gpu)).take(2).cloned().collect();
    let other = container("other", "main", &["slot-1"], None);
    let taken = state.grant(&other, || promised.clone()).unwrap().devices;
    assert!(promised.iter().all(|gpu| !taken.contains(gpu)), "{taken:?} of the promised {promised:?}");
    // The kubelet has granted more than there is: it refuses one of the pods, and may refuse the other.
    let last =
        state.grant(&container("last", "main", &["slot-2"], None), || promised.clone()).unwrap().devices;
    assert!(promised.contains(&last[0]), "{last:?}");
}

#[test]
fn the_containers_of_a_pod_may_use_a_gpu_one_after_the_other() {
    let (mut state, gpus) = node(2);
    let assigned = [("init", vec![gpus[1].clone()]), ("main", vec![gpus[1].clone()])];
    state.create(&container("a", "init", &["slot-0"], Some(&assigned))).unwrap();
    assert_eq!(
        state.create(&container("a", "main", &["slot-0"], Some(&assigned))).unwrap(),
        [gpus[1].clone()]
    );
}

#[test]
fn what_does_not_fit_together_is_refused_with_both_sides() {
    let (mut state, gpus) = node(2);
    let other: GpuId = "GPU-other".parse().unwrap();
    let mut elsewhere = container("a", "main", &["slot-0"], Some(&[("main", vec![gpus[0].clone()])]));
    let text = elsewhere.annotations.get_mut(ASSIGNMENT_ANNOTATION).unwrap();
    *text = text.replace("node-1", "node-2");
    let mut unreadable = elsewhere.clone();
    unreadable.annotations.insert(ASSIGNMENT_ANNOTATION.to_owned(), "{".to_owned());
    let cases = [
        (elsewhere, "pod default/a: its assignment is for node node-2, and this is node node-1".to_owned()),
        (unreadable, "pod default/a: annotation gantry.dev/assignment: not an assignment".to_owned()),
        (
            container("a", "main", &["slot-0", "slot-1"], Some(&[("main", vec![gpus[0].clone()])])),
            "pod default/a, container main: 1 GPUs are assigned and the kubelet granted 2 devices".to_owned(),
        ),
        (
            container("a", "main", &[], Some(&[("main", vec![gpus[0].clone()])])),
            "pod default/a, container main: 1 GPUs are assigned and the kubelet granted 0 devices".to_owned(),
        ),
        (
            container("a", "side", &["slot-0"], Some(&[("main", vec![gpus[0].clone()])])),
            "pod default/a, container side: 0 GPUs are assigned and the kubelet granted 1 devices".to_owned(),
        ),
        (
            container("a", "main", &["slot-0"], Some(&[("main", vec![other])])),
            "pod default/a, container main: no GPU of node node-1 is GPU-other".to_owned(),
        ),
        (
            container("a", "main", &["slot-2"], None),
            "unknown device \"slot-2\": this plugin offers 2 devices as nvidia.com/gpu, slot-0 to slot-1"
                .to_owned(),
        ),
        (
            container("a", "main", &["slot-0", "slot-0"], None),
            "pod default/a, container main: device slot-0 is granted twice".to_owned(),
        ),
    ];
    for (request, expected) in cases {
        let error = state.create(&request).unwrap_err().to_string();
        assert!(error.starts_with(&expected), "{error}\ninstead of\n{expected}");
        assert!(state.in_use().is_empty());
    }
    let without = container("a", "side", &[], Some(&[("main", vec![gpus[0].clone()])]));
    assert!(state.create(&without).unwrap().is_empty(), "a container that neither side gave a GPU");
    for id in ["slot-00", "slot-+0", "slot-", "slot", "", "0", gpus[0].as_str()] {
        assert!(state.allocate(GPU, &[id.to_owned()]).is_err(), "{id}");
    }
}

#[test]
fn a_pod_of_another_scheduler_gets_the_best_free_gpus() {
    let (mut state, gpus) = node(4);
    state.create(&container("a", "main", &["slot-0"], Some(&[("main", vec![gpus[0].clone()])]))).unwrap();
    // 0 is taken, so 2 and 3 are the only bridged pair that is free.
    let got = state.create(&container("b", "main", &["slot-1", "slot-2"], None)).unwrap();
    assert_eq!(got, [gpus[2].clone(), gpus[3].clone()]);
    let error = state.create(&container("c", "main", &["slot-3", "slot-0"], None)).unwrap_err().to_string();
    assert_eq!(
        error,
        "pod default/c, container main: 2 GPUs are wanted and 1 are healthy and free on node node-1"
    );
    state.set_health(&gpus[1], fault());
    assert!(state.create(&container("c", "main", &["slot-3"], None)).is_err());
    state.set_health(&gpus[1], Health::Healthy);
    assert_eq!(state.create(&container("c", "main", &["slot-3"], None)).unwrap(), [gpus[1].clone()]);
}

#[test]
fn a_later_container_keeps_the_gpus_of_slots_that_its_pod_had() {
    let (mut state, _) = node(4);
    let init = state.create(&container("a", "init", &["slot-0", "slot-1"], None)).unwrap();
    let main = state.create(&container("a", "main", &["slot-1"], None)).unwrap();
    assert_eq!(main, [init[1].clone()]);
    let again = state.create(&container("a", "init", &["slot-0", "slot-1"], None)).unwrap();
    assert_eq!(again, init);
}

#[test]
fn unhealthy_devices_are_refused_by_name_and_duplicates_count_once() {
    let (mut state, gpus) = node_in(IdentityMode::Kubelet, 2);
    let ids = |list: &[usize]| list.iter().map(|i| gpus[*i].to_string()).collect::<Vec<_>>();
    assert_eq!(state.allocate(GPU, &ids(&[1, 1])).unwrap().len(), 1);
    state.set_health(&gpus[1], fault());
    assert_eq!(
        state.allocate(GPU, &ids(&[0, 1])).unwrap_err().to_string(),
        format!("device {0} ({0}) is unhealthy: XID 79: gone", gpus[1])
    );
    assert!(state.devices().iter().all(|device| device.topology.is_some()), "UUIDs have a place");
}

#[test]
fn preferred_sets_are_connected_and_impossible_ones_are_refused() {
    let (mut state, gpus) = node_in(IdentityMode::Kubelet, 8);
    let ids = |list: &[usize]| list.iter().map(|i| gpus[*i].to_string()).collect::<Vec<_>>();
    for (available, must, size, expected) in [
        (&[0, 1, 2, 3, 4, 5, 6, 7][..], &[][..], 2, &[0, 1][..]),
        (&[1, 2, 3, 5], &[], 2, &[2, 3]),
        (&[0, 2, 4, 5], &[4], 2, &[4, 5]),
        (&[3, 2, 7], &[7], 3, &[7, 2, 3]),
        (&[0, 1], &[], 0, &[]),
        (&[], &[], 0, &[]),
        (&[4, 4, 4], &[4], 1, &[4]),
    ] {
        let chosen = state.preferred(GPU, &ids(available), &ids(must), size).unwrap();
        assert_eq!(chosen, ids(expected), "{available:?} {must:?} {size}");
    }
    for (available, must, size, rule) in [
        (&[0, 1][..], &[][..], 3, "fewer are available than asked for"),
        (&[0, 1], &[2], 1, "what is required must be available"),
        (&[0, 1], &[0, 1], 1, "more are required than asked for"),
        (&[0, 1], &[], -1, "the size must not be negative"),
    ] {
        let error = state.preferred(GPU, &ids(available), &ids(must), size).unwrap_err().to_string();
        assert!(error.ends_with(rule), "{error}");
    }
    assert!(state.preferred(GPU, &["GPU-x".into()], &[], 1).is_err());
}

#[test]
fn a_lost_card_keeps_its_place_and_an_unread_one_gets_its_name_later() {
    use gantry_gpu::{FailedGpu, GpuBackend as _, Profile, SimGpus};
    let sim = SimGpus::new(Profile::named("l4").unwrap(), 3, "n", 1).unwrap();
    let whole = sim.inventory().unwrap();
    let mut first = whole.clone();
    let lost = first.gpus.remove(1);
    first.failed.push(FailedGpu {
        index: 1,
        id: None,
        pci_bus_id: lost.pci_bus_id.clone(),
        error: "no answer".into(),
    });
    let mut state = empty("n", IdentityMode::Assignment);
    state.refresh(first.clone());
    assert_eq!(state.gpus()[1].id.as_str(), "PCI-00000000-31-00-0");
    assert_eq!(health(&state)[1], ("slot-1".to_owned(), false));
    state.refresh(whole.clone());
    assert_eq!(state.gpus(), whole.gpus);
    first.failed[0].id = Some(lost.id.clone());
    state.refresh(first);
    assert_eq!((&state.gpus()[1].id, state.gpus()[1].memory_mib), (&lost.id, lost.memory_mib));
    assert!(!state.gpus()[1].health.is_healthy());
}

#[test]
fn running_pods_are_taken_over_from_their_assignment() {
    let (mut state, gpus) = node(2);
    let running = container("a", "main", &[], Some(&[("main", vec![gpus[0].clone()])]));
    let annotation = &running.annotations[ASSIGNMENT_ANNOTATION];
    assert!(state.adopt(pod("a"), annotation).unwrap());
    assert!(!state.adopt(pod("a"), annotation).unwrap(), "known already");
    let second = container("b", "main", &["slot-0"], Some(&[("main", vec![gpus[0].clone()])]));
    assert!(matches!(state.create(&second), Err(Error::Taken { .. })));
}

proptest! {
    /// Whatever containers are created, removed, hurt and healed in whatever order, with or without assignments.
    #[test]
    fn no_history_breaks_the_ledger(
        steps in proptest::collection::vec((0_u8..6, 0_usize..8, 0_usize..8, 0_usize..8, any::<bool>()), 0..60)
    ) {
        let (mut state, gpus) = node(8);
        for (kind, a, b, c, assigned) in steps {
            let pod_name = format!("p{a}");
            match kind {
                0..=2 => {
                    let devices: Vec<String> = if b == c { vec![format!("slot-{b}")] } else { vec![format!("slot-{b}"), format!("slot-{c}")] };
                    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
                    let targets: Vec<GpuId> = (0..devices.len()).map(|i| gpus[(a + b + i) % 8].clone()).collect();
                    let list = [("main", targets)];
                    let request = container(&pod_name, "main", &devices, assigned.then_some(&list[..]));
                    let before = (state.in_use(), behind(&state));
                    if let Ok(got) = state.create(&request) {
                        prop_assert_eq!(got.len(), devices.len());
                        let behind = behind(&state);
                        for (slot, gpu) in request.devices.iter().zip(&got) {
                            let slot: usize = slot["slot-".len()..].parse().unwrap();
                            prop_assert_eq!(&behind[slot], gpu);
                        }
                    } else {
                        prop_assert_eq!(before, (state.in_use(), behind(&state)));
                    }
                }
                3 => { state.retain(|uid| uid != format!("uid-{pod_name}")); }
                4 => { state.set_health(&gpus[b], fault()); }
                _ => { state.set_health(&gpus[b], Health::Healthy); }
            }
            let slots: BTreeSet<_> = state.slots().flatten().collect();
            prop_assert_eq!(slots.len(), 8, "the slots are a permutation");
            let mut owner = BTreeMap::new();
            for pod in state.pods() {
                for gpu in pod.containers.values().flat_map(|container| &container.held) {
                    let known = owner.insert(&gpu.device, &pod.key.uid);
                    prop_assert!(known.is_none_or(|uid| *uid == pod.key.uid), "{} has two owners", gpu.device);
                }
            }
        }
    }
}
