//! Cards that fail.

use std::time::Duration;

use gantry_fake_nvml::Fault;
use gantry_gpu::{EventKind, GpuBackend as _, NvmlGpus, NvmlOptions};
use gantry_model::{FaultKind, Health};

use crate::node::{Events, Node, eventually};

/// A driver that says what is to be done about a card.
const NEW_DRIVER: &str = "model: h100\nsystem: {driver_version: 570.86.15}";

fn kind(health: &Health) -> Option<FaultKind> {
    match health {
        Health::Healthy => None,
        Health::Unhealthy(fault) => Some(fault.kind),
    }
}

fn is(event: &EventKind, wanted: FaultKind) -> bool {
    matches!(event, EventKind::Fault(fault) if fault.kind == wanted)
}

#[test]
fn a_lost_card_hides_no_other_and_comes_back() {
    for fault in [Fault::Lost, Fault::FallenOffBus] {
        let node = Node::new("model: h100");
        let gpus = node.open();
        let before = gpus.inventory().unwrap();
        node.fail(3, fault);
        let inventory = gpus.inventory().unwrap();
        assert_eq!(inventory.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 7]);
        let [failed] = &inventory.failed[..] else { panic!("{:?}", inventory.failed) };
        assert_eq!((failed.index, failed.id.as_ref()), (3, Some(&before.gpus[3].id)));
        assert_eq!(failed.pci_bus_id, "00000000:61:00.0");
        assert!(failed.error.starts_with("GPU is lost ("), "{}", failed.error);
        assert_eq!(inventory.topology, before.topology);
        assert_eq!(gpus.sample().unwrap().len(), 7);
        node.recover(3);
        assert_eq!(gpus.inventory().unwrap(), before);
    }
}

#[test]
fn a_card_that_is_lost_from_the_start_has_its_address_and_appears_later() {
    let node = Node::new("model: a30\ncount: 4");
    node.fail(0, Fault::FallenOffBus);
    let gpus = node.open();
    let inventory = gpus.inventory().unwrap();
    assert_eq!(inventory.gpus.len(), 3);
    assert_eq!(
        (inventory.failed[0].id.as_ref(), &*inventory.failed[0].pci_bus_id),
        (None, "00000000:17:00.0")
    );
    node.recover(0);
    let healthy = Node::new("model: a30\ncount: 4").open().inventory().unwrap();
    assert_eq!(gpus.inventory().unwrap(), healthy);
}

#[test]
fn a_card_that_hangs_holds_up_nobody_for_long_and_answers_again() {
    let node = Node::new("model: a100-80\ncount: 4");
    let gpus =
        NvmlGpus::open(NvmlOptions { answer: Duration::from_millis(1_500), ..node.options() }).unwrap();
    let before = gpus.inventory().unwrap();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    node.fail(2, Fault::Hang);
    let inventory = gpus.inventory().unwrap();
    assert_eq!(inventory.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1, 3]);
    assert_eq!(inventory.failed[0].error, "it does not answer within 1.5 s");
    assert_eq!(inventory.topology, before.topology);
    // From now on it is known not to answer: nothing waits for it, and no thread is added. Others run tests beside this one.
    let names = |prefix: &str| {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        tasks.filter_map(name).filter(|name| name.trim() == prefix).count()
    };
    assert!(threads() > 0);
    let stuck = names("nvml-2");
    for _ in 0..20 {
        assert_eq!(gpus.sample().unwrap().len(), 3);
    }
    assert!(names("nvml-2") <= stuck.max(1) + 16, "threads pile up");
    node.recover(2);
    eventually("the card answers again", || gpus.inventory().unwrap().failed.is_empty());
    assert_eq!(gpus.inventory().unwrap(), before);
}

#[test]
fn slow_cards_are_asked_side_by_side() {
    let node = Node::new("model: t4\ncount: 8");
    let gpus = node.open();
    gpus.inventory().unwrap();
    for gpu in 0..8 {
        node.fail(gpu, Fault::Slow(30));
    }
    assert_eq!(gpus.inventory().unwrap().gpus.len(), 8);
    assert_eq!(gpus.sample().unwrap().len(), 8);
}

#[test]
fn nonsense_is_left_out_of_samples_and_a_card_that_never_made_sense_is_failed() {
    let node = Node::new("model: rtx3090\ncount: 2");
    let gpus = node.open();
    let before = gpus.inventory().unwrap();
    node.fail(1, Fault::Garbage);
    let sample = gpus.sample().unwrap().remove(1);
    assert_eq!(
        (
            sample.utilization_percent,
            sample.temperature_celsius,
            sample.power_milliwatts,
            sample.memory_used_mib
        ),
        (None, None, None, None)
    );
    assert_eq!((sample.sm_clock_mhz, sample.fan_percent), (None, None));
    // What was read while it made sense still holds.
    assert_eq!(gpus.inventory().unwrap(), before);
    let inventory = node.open().inventory().unwrap();
    assert_eq!((inventory.gpus.len(), &*inventory.failed[0].error), (1, "its name is no text"));
}

#[test]
fn an_xid_of_another_process_arrives_as_an_event_and_is_over_when_the_driver_says_so() {
    let node = Node::new(NEW_DRIVER);
    let gpus = node.open();
    let ids: Vec<_> = gpus.inventory().unwrap().gpus.into_iter().map(|gpu| gpu.id).collect();
    let events = Events::of(&gpus);
    // The sets are made by a thread: until then XIDs of applications go unseen, as with a real driver.
    eventually("events are delivered", || {
        node.fail(0, Fault::Xid(31, None));
        !events.all().is_empty()
    });
    node.fail(5, Fault::Xid(48, None));
    eventually("the XID arrives", || events.kinds().iter().any(|event| is(event, FaultKind::Xid(48))));
    assert_eq!(events.all().last().map(|event| event.gpu.clone()), Some(ids[5].clone()));
    let inventory = gpus.inventory().unwrap();
    assert_eq!(kind(&inventory.gpus[5].health), Some(FaultKind::Xid(48)));
    assert_eq!(kind(&inventory.gpus[0].health), None, "an application's XID says nothing about the card");
    node.recover(5);
    eventually("the recovery is told", || events.kinds().contains(&EventKind::Recovered));
    assert!(gpus.inventory().unwrap().gpus[5].health.is_healthy());
}

#[test]
fn faults_without_an_event_are_found_by_looking() {
    let node = Node::without(NEW_DRIVER, &["nvmlEventSetCreate"]);
    let gpus = node.open();
    gpus.inventory().unwrap();
    let events = Events::of(&gpus);
    for (gpu, fault, wanted) in [
        (1, Fault::Lost, FaultKind::Lost),
        (2, Fault::EccDouble(2), FaultKind::DoubleBitEcc),
        (3, Fault::RemapPending, FaultKind::RowRemapPending),
    ] {
        node.fail(gpu, fault);
        eventually("the fault is found", || events.kinds().iter().any(|event| is(event, wanted)));
        node.recover(gpu);
    }
    node.change(|state| state.card(4).recovery_action = 2);
    eventually("advice is found", || events.kinds().iter().any(|event| is(event, FaultKind::ResetRequired)));
    node.recover(4);
    eventually("all recover", || {
        events.kinds().iter().filter(|event| **event == EventKind::Recovered).count() == 4
    });
    assert!(gpus.inventory().unwrap().gpus.iter().all(|gpu| gpu.health.is_healthy()));
}

#[test]
fn a_card_that_falls_off_the_bus_leaves_events_of_the_others_alive() {
    let node = Node::new(NEW_DRIVER);
    let gpus = node.open();
    gpus.inventory().unwrap();
    let events = Events::of(&gpus);
    node.fail(0, Fault::FallenOffBus);
    eventually("the loss is told", || events.kinds().iter().any(|event| is(event, FaultKind::Lost)));
    eventually("an XID of another card arrives", || {
        node.fail(1, Fault::Xid(45, None));
        events.kinds().iter().any(|event| is(event, FaultKind::Xid(45)))
    });
    node.recover(0);
    eventually("the card is back", || events.kinds().contains(&EventKind::Recovered));
    eventually("and in the set of events", || {
        node.fail(0, Fault::Xid(43, None));
        events.kinds().iter().any(|event| is(event, FaultKind::Xid(43)))
    });
}
