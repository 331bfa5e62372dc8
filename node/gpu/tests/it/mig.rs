//! Partitions.

use std::process::Command;

use gantry_fake_nvml::{Fault, Process};
use gantry_gpu::{EventKind, GpuBackend as _, MigChange, NvmlGpus, PROFILES, Profile, SimGpus};
use gantry_model::{FaultKind, GpuId, Health, Partition};

use crate::node::{Events, Node, eventually, options};

fn card(gpus: &NvmlGpus, index: usize) -> GpuId {
    gpus.inventory().unwrap().gpus[index].id.clone()
}

fn partitions(gpus: &NvmlGpus, index: usize) -> Option<Vec<Partition>> {
    gpus.inventory().unwrap().gpus[index].partitions.clone()
}

#[test]
fn a_card_is_partitioned_and_made_whole_again() {
    let node = Node::new("model: a100-40\ncount: 2");
    let gpus = node.open();
    let id = card(&gpus, 1);
    assert_eq!(
        gpus.create_partition(&id, "3g.20gb", None).unwrap_err().to_string(),
        format!("GPU {id} is not in MIG mode: turn it on first")
    );
    assert_eq!(gpus.set_mig(&id, true), Ok(MigChange::Done));
    assert_eq!(partitions(&gpus, 1), Some(vec![]));
    assert_eq!(partitions(&gpus, 0), None);
    let made = gpus.create_partition(&id, "3g.20gb", Some(4)).unwrap();
    assert!(made.id.as_str().starts_with("MIG-"));
    assert_eq!(
        (&*made.profile, made.gpu_instance, made.start, made.size, made.memory_mib),
        ("3g.20gb", 2, 4, 4, 19_968)
    );
    assert_eq!(
        (made.attributes.multiprocessors, made.attributes.copy_engines, made.attributes.decoders),
        (42, 3, 2)
    );
    let small = gpus.create_partition(&id, "1g.5gb+me", None).unwrap();
    assert_eq!(partitions(&gpus, 1), Some(vec![made.clone(), Partition { index: 1, ..small.clone() }]));
    for (profile, start, expected) in [
        ("4g.20gb", Some(0), format!("GPU {id} has no room for 4g.20gb at memory slice 0")),
        ("7g.40gb", None, format!("GPU {id} has no room for 7g.40gb")),
        ("3g.20gb", Some(1), "3g.20gb cannot begin at memory slice 1: use one of 0, 4".to_owned()),
        (
            "8g.5gb",
            None,
            format!(
                "profile \"8g.5gb\" is not one of GPU {id}: use one of 1g.5gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb, 1g.5gb+me, 1g.10gb"
            ),
        ),
    ] {
        assert_eq!(gpus.create_partition(&id, profile, start).unwrap_err().to_string(), expected);
    }
    // In use: by partitions, and by a process.
    let in_use = |id: &GpuId| format!("{id} is in use: end what runs on it and remove its partitions first");
    assert_eq!(gpus.set_mig(&id, false).unwrap_err().to_string(), in_use(&id));
    node.change(|state| {
        state.card(1).processes.push(Process { pid: 9, gpu_instance: Some(2), ..Process::default() });
    });
    assert_eq!(gpus.destroy_partition(&made.id).unwrap_err().to_string(), in_use(&made.id));
    node.change(|state| state.card(1).processes.clear());
    for partition in [&made.id, &small.id] {
        gpus.destroy_partition(partition).unwrap();
    }
    assert_eq!(
        gpus.destroy_partition(&made.id).unwrap_err().to_string(),
        format!("no partition of this node is {}", made.id)
    );
    assert_eq!(gpus.set_mig(&id, false), Ok(MigChange::Done));
    assert_eq!(partitions(&gpus, 1), None);
}

#[test]
fn the_simulated_backend_shows_the_same_partitions() {
    for (name, layout) in [
        ("a100-40", &[("3g.20gb", 4), ("2g.10gb", 0), ("1g.5gb", 3)][..]),
        ("a30", &[("2g.12gb+me", 0), ("1g.6gb", 2)]),
        ("b200", &[("7g.180gb", 0)]),
    ] {
        let profile = Profile::named(name).unwrap();
        let node = Node::new(&format!("model: {name}\ncount: 2\nnode: n1"));
        let (real, simulated) = (node.open(), SimGpus::new(profile, 2, "n1", 0).unwrap());
        let id = card(&real, 1);
        real.set_mig(&id, true).unwrap();
        for (profile, start) in layout {
            real.create_partition(&id, profile, Some(*start)).unwrap();
        }
        simulated.set_mig(1, Some(layout)).unwrap();
        assert_eq!(real.inventory().unwrap(), simulated.inventory().unwrap());
    }
}

#[test]
fn what_a_board_offers_is_its_table() {
    for profile in PROFILES {
        let node = Node::new(&format!("model: {}\ncount: 1", profile.name));
        let gpus = node.open();
        let id = card(&gpus, 0);
        if profile.mig.is_empty() {
            let text = format!("GPU {id} cannot be partitioned: its hardware or driver has no MIG");
            assert_eq!(gpus.mig_offers(&id).unwrap_err().to_string(), text);
            assert_eq!(gpus.set_mig(&id, true).unwrap_err().to_string(), text);
            continue;
        }
        let offers = gpus.mig_offers(&id).unwrap();
        assert_eq!(offers.len(), profile.mig.len());
        for row in profile.mig {
            let offer = offers.iter().find(|offer| &*offer.name == row.name).unwrap();
            assert_eq!(offer.placements, row.placements);
            assert_eq!(
                (offer.id, offer.memory_mib, offer.max_instances, offer.remaining),
                (row.id, row.memory_mib, u32::from(row.max_instances), None)
            );
        }
        gpus.set_mig(&id, true).unwrap();
        assert_eq!(gpus.mig_offers(&id).unwrap()[0].remaining, Some(u32::from(profile.mig[0].max_instances)));
    }
}

/// Two partitions at every pair of placements: the second is refused exactly where the table has no room beside the first.
#[test]
fn placements_are_legal_as_the_table_says() {
    for name in ["a100-40", "a30"] {
        let profile = Profile::named(name).unwrap();
        let node = Node::new(&format!("model: {name}\ncount: 1"));
        let gpus = node.open();
        let id = card(&gpus, 0);
        gpus.set_mig(&id, true).unwrap();
        let slices = profile.mig.iter().map(|row| row.compute_slices).max().unwrap();
        let all = profile.mig.iter().flat_map(|row| row.placements.iter().map(move |place| (row, *place)));
        let all: Vec<_> = all.collect();
        for (first, at) in &all {
            let made = gpus.create_partition(&id, first.name, Some(at.start)).unwrap();
            assert_eq!((made.start, made.size), (u32::from(at.start), u32::from(at.size)));
            for (second, beside) in &all {
                let apart = at.start + at.size <= beside.start || beside.start + beside.size <= at.start;
                let media = first.name.ends_with("+me") && second.name.ends_with("+me");
                let many = first.name == second.name && first.max_instances == 1;
                let legal =
                    apart && !media && !many && first.compute_slices + second.compute_slices <= slices;
                let other = gpus.create_partition(&id, second.name, Some(beside.start));
                assert_eq!(
                    other.is_ok(),
                    legal,
                    "{name}: {} at {at:?}, {} at {beside:?}",
                    first.name,
                    second.name
                );
                if let Ok(other) = other {
                    gpus.destroy_partition(&other.id).unwrap();
                }
            }
            gpus.destroy_partition(&made.id).unwrap();
        }
    }
}

#[test]
fn a_mode_that_waits_for_a_reset_says_so() {
    let node = Node::new("model: a100-80\ncount: 1\nmig_needs_reset: true");
    let gpus = node.open();
    let id = card(&gpus, 0);
    assert_eq!(gpus.set_mig(&id, true), Ok(MigChange::AfterReset));
    assert_eq!(partitions(&gpus, 0), None);
    node.recover(0);
    assert_eq!(partitions(&gpus, 0), Some(vec![]));
}

#[test]
fn an_old_driver_has_names_that_are_computed() {
    let node = Node::without("model: h200\ncount: 1", &["nvmlDeviceGetGpuInstanceProfileInfoV"]);
    let gpus = node.open();
    let id = card(&gpus, 0);
    gpus.set_mig(&id, true).unwrap();
    let made = gpus.create_partition(&id, "1g.18gb+me", None).unwrap();
    assert_eq!((&*made.profile, made.memory_mib), ("1g.18gb+me", 16_384));
}

#[test]
fn an_xid_of_a_partition_is_the_partitions_alone() {
    let node = Node::new("model: h100\ncount: 1");
    let gpus = node.open();
    let id = card(&gpus, 0);
    gpus.set_mig(&id, true).unwrap();
    let [one, two] = [(); 2].map(|()| gpus.create_partition(&id, "2g.20gb", None).unwrap());
    let events = Events::of(&gpus);
    eventually("the XID arrives", || {
        node.fail(0, Fault::Xid(94, Some((one.gpu_instance, one.compute_instance))));
        !events.all().is_empty()
    });
    let event = events.all().remove(0);
    assert_eq!(event.gpu, one.id);
    assert!(matches!(event.kind, EventKind::Fault(fault) if fault.kind == FaultKind::Xid(94)));
    let health = |id: &GpuId| {
        let all = partitions(&gpus, 0).unwrap();
        all.into_iter().find(|partition| partition.id == *id).map(|partition| partition.health)
    };
    assert!(matches!(health(&one.id), Some(Health::Unhealthy(_))));
    assert_eq!(health(&two.id), Some(Health::Healthy));
    // This driver does not say when it is over; a reset does.
    node.fail(0, Fault::Lost);
    eventually("the loss is told", || events.all().iter().any(|event| event.gpu == id));
    node.recover(0);
    eventually("it is over", || events.kinds().contains(&EventKind::Recovered));
    assert_eq!(health(&one.id), Some(Health::Healthy));
}

/// The name of the variable by which this test tells its second process where the node is.
const ROOT: &str = "GANTRY_TEST_DRIVER_ROOT";

#[test]
fn two_processes_share_one_state() {
    if let Some(root) = std::env::var_os(ROOT) {
        // The second process: it sees what the first did, and does something itself.
        let gpus = NvmlGpus::open(options(std::path::Path::new(&root))).unwrap();
        let id = card(&gpus, 0);
        assert_eq!(partitions(&gpus, 0).unwrap().len(), 1);
        gpus.create_partition(&id, "1g.10gb", Some(6)).unwrap();
        return;
    }
    let node = Node::new("model: h100\ncount: 1");
    let gpus = node.open();
    let id = card(&gpus, 0);
    gpus.set_mig(&id, true).unwrap();
    let first = gpus.create_partition(&id, "3g.40gb", Some(0)).unwrap();
    let own = std::env::current_exe().unwrap();
    let status = Command::new(own)
        .args(["--exact", "mig::two_processes_share_one_state", "--nocapture"])
        .env(ROOT, node.folder.path())
        .status()
        .unwrap();
    assert!(status.success());
    let all = partitions(&gpus, 0).unwrap();
    let seen: Vec<_> = all.iter().map(|partition| (&*partition.profile, partition.start)).collect();
    assert_eq!(seen, [("3g.40gb", 0), ("1g.10gb", 6)]);
    // And a third, which opens after both.
    drop(gpus);
    let again = node.open();
    assert_eq!(partitions(&again, 0).unwrap()[0].id, first.id);
}
