//! The simulated backend.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_kit::{fnv1a_64, uuid_v4};
use gantry_model::{Fault, FaultKind, Gpu, GpuId, Health, Partition, PartitionAttributes, Topology};

use crate::backend::fault_message;
use crate::{
    DriverInfo, Error, EventKind, EventSink, Fabric, FabricInfo, FabricState, FailedGpu, GpuBackend,
    GpuDetails, GpuProcess, GpuSample, HealthEvent, Inventory, MigPlacement, MigProfile, Profile,
    RecoveryAction, Subscribers, Subscription, is_application_xid,
};

/// The most GPUs on one node that NVIDIA's own machines have.
const MAX_GPUS: usize = 16;

/// What a simulated process does on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// The program's name.
    pub name: String,
    /// Share of time in which its kernels run, 0 to 100.
    pub utilization_percent: u8,
    /// Memory that it uses in MiB.
    pub memory_mib: u64,
}

/// The GPUs of one simulated node: a pure function of profile, count, node name and seed, until something is done
/// to them.
#[derive(Debug)]
pub struct SimGpus {
    profile: &'static Profile,
    topology: Topology,
    cards: Mutex<Vec<Card>>,
    subscribers: Subscribers,
}

#[derive(Debug)]
struct Card {
    gpu: Gpu,
    /// By pid.
    load: BTreeMap<u32, Load>,
}

impl Card {
    fn is_lost(&self) -> bool {
        matches!(&self.gpu.health, Health::Unhealthy(fault) if fault.kind == FaultKind::Lost)
    }
}

impl SimGpus {
    /// `count` cards of a model. UUIDs depend on `node_name` and `seed` alone, so a node that is built again is the
    /// same node.
    pub fn new(
        profile: &'static Profile,
        count: usize,
        node_name: &str,
        seed: u64,
    ) -> Result<Arc<Self>, Error> {
        if !(1..=MAX_GPUS).contains(&count) {
            return Err(Error::Count { count, max: MAX_GPUS });
        }
        let product: Arc<str> = profile.product.into();
        let cards = (0..count)
            .map(|index| {
                let number = u32::try_from(index).unwrap_or(u32::MAX);
                Card {
                    gpu: Gpu {
                        id: sim_gpu_id(node_name, seed, number),
                        index: number,
                        minor: number,
                        product: Arc::clone(&product),
                        memory_mib: profile.memory_mib,
                        pci_bus_id: profile.pci_bus_id(index),
                        numa_node: Some(profile.numa_node(index, count)),
                        compute_capability: profile.compute_capability,
                        mig_capable: !profile.mig.is_empty(),
                        partitions: None,
                        health: Health::Healthy,
                    },
                    load: BTreeMap::new(),
                }
            })
            .collect();
        Ok(Arc::new(Self {
            profile,
            topology: Topology::from_fn(count, |a, b| profile.link(a, b, count)),
            cards: Mutex::new(cards),
            subscribers: Subscribers::default(),
        }))
    }

    /// The model.
    pub fn profile(&self) -> &'static Profile {
        self.profile
    }

    /// Makes a card fail. An XID that applications cause is reported and changes nothing else, as on real cards.
    /// A lost card ends what runs on it.
    pub fn fault(&self, index: usize, kind: FaultKind) -> Result<(), Error> {
        self.change(index, |card| {
            let fault = Fault { kind, message: fault_message(kind) };
            if !matches!(kind, FaultKind::Xid(xid) if is_application_xid(xid)) {
                card.gpu.health = Health::Unhealthy(fault.clone());
            }
            if kind == FaultKind::Lost {
                card.load.clear();
            }
            EventKind::Fault(fault)
        })
    }

    /// Takes a card off the bus: it no longer answers.
    pub fn lose(&self, index: usize) -> Result<(), Error> {
        self.fault(index, FaultKind::Lost)
    }

    /// Mends a card, whatever it had.
    pub fn recover(&self, index: usize) -> Result<(), Error> {
        self.change(index, |card| {
            card.gpu.health = Health::Healthy;
            EventKind::Recovered
        })
    }

    /// States what a process does on a card from now on, until it is stated again or the process ends.
    /// Refuses what the card would refuse: more memory than is free, work on a lost card.
    pub fn set_load(&self, gpu: &GpuId, pid: u32, load: Load) -> Result<(), Error> {
        let mut cards = self.cards();
        let card =
            cards.iter_mut().find(|card| card.gpu.id == *gpu).ok_or_else(|| Error::NoSuchGpu(gpu.clone()))?;
        if card.is_lost() {
            return Err(Error::Lost(gpu.clone()));
        }
        let others: u64 =
            card.load.iter().filter(|(other, _)| **other != pid).map(|(_, load)| load.memory_mib).sum();
        let free_mib = card.gpu.memory_mib.saturating_sub(others);
        if load.memory_mib > free_mib {
            return Err(Error::OutOfMemory { gpu: gpu.clone(), asked_mib: load.memory_mib, free_mib });
        }
        card.load.insert(pid, load);
        Ok(())
    }

    /// Ends a process on every card. A pid that is on none is fine.
    pub fn end_process(&self, pid: u32) {
        for card in self.cards().iter_mut() {
            card.load.remove(&pid);
        }
    }

    /// Partitions a card, by profile and first memory slice; `None` turns MIG mode off. What it was before is gone. The card must
    /// answer, and nothing may run on it.
    pub fn set_mig(&self, index: usize, layout: Option<&[(&str, u8)]>) -> Result<(), Error> {
        let mut cards = self.cards();
        let count = cards.len();
        let card = cards.get_mut(index).ok_or(Error::NoSuchIndex { index, count })?;
        let id = card.gpu.id.clone();
        if card.is_lost() {
            return Err(Error::Lost(id));
        }
        if !card.load.is_empty() {
            return Err(Error::InUse(id));
        }
        if !card.gpu.mig_capable {
            return Err(Error::NoMig(id));
        }
        let mut taken: Vec<(&MigProfile, MigPlacement)> = Vec::new();
        for &(name, start) in layout.unwrap_or_default() {
            let row =
                self.profile.mig.iter().find(|row| row.name == name).ok_or_else(|| Error::NoMigProfile {
                    gpu: id.clone(),
                    profile: name.chars().take(40).collect(),
                    known: self.profile.mig.iter().map(|row| row.name).collect::<Vec<_>>().join(", "),
                })?;
            let place = row.placements.iter().find(|place| place.start == start).copied();
            let place = place.ok_or_else(|| Error::NoMigPlacement {
                profile: name.to_owned(),
                start,
                possible: row
                    .placements
                    .iter()
                    .map(|place| place.start.to_string())
                    .collect::<Vec<_>>()
                    .join(", "),
            })?;
            if !self.profile.mig_fits(&taken, row, place) {
                return Err(Error::NoRoom { gpu: id, profile: name.to_owned(), start: Some(start) });
            }
            taken.push((row, place));
        }
        taken.sort_by_key(|(_, place)| self.profile.mig_instance_id(*place));
        let partitions =
            (0_u32..).zip(taken).map(|(index, (row, place))| partition(self.profile, &id, index, row, place));
        card.gpu.partitions = layout.map(|_| partitions.collect());
        Ok(())
    }

    /// Lays out the simulated driver below `root`, as an installed one is laid out on Debian. Nodes with the same driver can share a root.
    pub fn install_driver(&self, root: &Path) -> io::Result<()> {
        gantry_driver::install_simulated(root, &self.profile.driver().driver_version)
    }

    fn change(&self, index: usize, change: impl FnOnce(&mut Card) -> EventKind) -> Result<(), Error> {
        let event = {
            let mut cards = self.cards();
            let count = cards.len();
            let card = cards.get_mut(index).ok_or(Error::NoSuchIndex { index, count })?;
            HealthEvent { kind: change(card), gpu: card.gpu.id.clone() }
        };
        self.subscribers.send(&event);
        Ok(())
    }

    fn cards(&self) -> MutexGuard<'_, Vec<Card>> {
        self.cards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GpuBackend for SimGpus {
    fn driver(&self) -> Result<DriverInfo, Error> {
        Ok(self.profile.driver())
    }

    fn inventory(&self) -> Result<Inventory, Error> {
        let cards = self.cards();
        let (lost, present): (Vec<_>, Vec<_>) = cards.iter().partition(|card| card.is_lost());
        Ok(Inventory {
            gpus: present.into_iter().map(|card| card.gpu.clone()).collect(),
            topology: self.topology.clone(),
            failed: lost
                .into_iter()
                .map(|card| FailedGpu {
                    index: card.gpu.index,
                    id: Some(card.gpu.id.clone()),
                    pci_bus_id: card.gpu.pci_bus_id.clone(),
                    error: fault_message(FaultKind::Lost),
                })
                .collect(),
        })
    }

    fn sample(&self) -> Result<Vec<GpuSample>, Error> {
        let cards = self.cards();
        Ok(cards.iter().filter(|card| !card.is_lost()).map(|card| sample(self.profile, card)).collect())
    }

    fn subscribe(&self, sink: EventSink) -> Subscription {
        self.subscribers.add(sink)
    }

    fn machine(&self) -> Option<String> {
        Some(self.profile.machine.to_owned())
    }

    fn details(&self) -> Result<BTreeMap<GpuId, GpuDetails>, Error> {
        let cards = self.cards();
        let present = cards.iter().filter(|card| !card.is_lost());
        Ok(present.map(|card| (card.gpu.id.clone(), details(self.profile, card))).collect())
    }
}

fn details(profile: &Profile, card: &Card) -> GpuDetails {
    let fault = match &card.gpu.health {
        Health::Healthy => None,
        Health::Unhealthy(fault) => Some(fault.kind),
    };
    // Cards before Hopper reach their switches without being registered.
    let registers = matches!(profile.fabric, Fabric::NvSwitch { .. }) && profile.compute_capability >= (9, 0);
    // Cards before Ampere retire pages; those for games do neither.
    let remaps_rows = !profile.product.contains("GeForce") && profile.compute_capability >= (8, 0);
    let tells_recovery = profile.driver().driver_version.as_str() >= "565";
    GpuDetails {
        pci_class: Some(profile.pci_class()),
        nvlink_generation: None,
        fabric: registers.then_some(FabricInfo {
            state: FabricState::Completed { status: 0 },
            cluster: [0; 16],
            clique: 0,
        }),
        recovery: tells_recovery.then_some(if fault.is_none() {
            RecoveryAction::None
        } else {
            RecoveryAction::Reset
        }),
        row_remap_pending: remaps_rows.then_some(fault == Some(FaultKind::RowRemapPending)),
    }
}

fn sample(profile: &Profile, card: &Card) -> GpuSample {
    let busy: u32 = card.load.values().map(|load| u32::from(load.utilization_percent)).sum::<u32>().min(100);
    let used: u64 = card.load.values().map(|load| load.memory_mib).sum();
    let in_use = !card.load.is_empty();
    let readings = profile.readings(card.gpu.index, busy, in_use);
    let percent = u8::try_from(busy).unwrap_or(100);
    GpuSample {
        id: card.gpu.id.clone(),
        index: card.gpu.index,
        utilization_percent: Some(percent),
        memory_utilization_percent: Some(percent / 2),
        memory_used_mib: Some(used),
        memory_total_mib: card.gpu.memory_mib,
        temperature_celsius: Some(readings.temperature_celsius),
        power_milliwatts: Some(readings.power_milliwatts),
        power_limit_milliwatts: Some(profile.power.limit_watts * 1_000),
        sm_clock_mhz: Some(readings.sm_clock_mhz),
        memory_clock_mhz: Some(readings.memory_clock_mhz),
        fan_percent: readings.fan_percent.and_then(|percent| u8::try_from(percent).ok()),
        performance_state: Some(readings.performance_state),
        processes: card
            .load
            .iter()
            .map(|(pid, load)| GpuProcess {
                pid: *pid,
                name: Some(load.name.clone()),
                memory_used_mib: Some(load.memory_mib),
            })
            .collect(),
    }
}

/// The UUID of a simulated GPU, of version 4 form. It depends on the arguments alone.
pub fn sim_gpu_id(node_name: &str, seed: u64, index: u32) -> GpuId {
    let mut bytes = node_name.as_bytes().to_vec();
    bytes.extend(seed.to_le_bytes());
    bytes.extend(index.to_le_bytes());
    let half = |salt: u64| {
        // FNV-1a alone leaves neighbours alike; SplitMix64's finaliser sets them apart.
        let mut hash = fnv1a_64(&bytes, salt);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    };
    let text = format!("GPU-{}", uuid_v4(half(1), half(2)));
    text.parse().expect("invariant: hexadecimal digits and hyphens are a GPU id")
}

/// The UUID of a partition of a simulated GPU: always the same for the same instances of the same GPU.
pub fn sim_partition_id(gpu: &str, gpu_instance: u32, compute_instance: u32) -> GpuId {
    let id = sim_gpu_id(gpu, u64::from(gpu_instance), compute_instance).to_string();
    id.replacen("GPU-", "MIG-", 1).parse().expect("invariant: hexadecimal digits and hyphens are a GPU id")
}

/// The partition that one instance of `row` at `place` is.
fn partition(profile: &Profile, gpu: &GpuId, index: u32, row: &MigProfile, place: MigPlacement) -> Partition {
    let gpu_instance = profile.mig_instance_id(place);
    let slices = u32::from(row.compute_slices);
    Partition {
        id: sim_partition_id(gpu.as_str(), gpu_instance, 0),
        index,
        profile: row.name.into(),
        gpu_instance,
        compute_instance: 0,
        start: place.start.into(),
        size: place.size.into(),
        memory_mib: row.memory_mib,
        attributes: PartitionAttributes {
            multiprocessors: row.engines.multiprocessors,
            gpu_instance_slices: slices,
            compute_instance_slices: slices,
            copy_engines: row.engines.copy,
            decoders: row.engines.decoders,
            encoders: 0,
            jpeg_engines: row.engines.jpeg,
            ofa_engines: row.engines.ofa,
        },
        health: Health::Healthy,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::PROFILES;

    fn node(profile: &str, count: usize) -> Arc<SimGpus> {
        SimGpus::new(Profile::named(profile).unwrap(), count, "node-1", 7).unwrap()
    }

    fn load(utilization_percent: u8, memory_mib: u64) -> Load {
        Load { name: "python".into(), utilization_percent, memory_mib }
    }

    #[test]
    fn a_node_built_again_is_the_same_node_and_no_other() {
        let ids = |name: &str, seed| {
            let gpus = SimGpus::new(&PROFILES[0], 8, name, seed).unwrap().inventory().unwrap().gpus;
            gpus.into_iter().map(|gpu| gpu.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ids("a", 1), ids("a", 1));
        let all: BTreeSet<_> = [ids("a", 1), ids("b", 1), ids("a", 2)].concat().into_iter().collect();
        assert_eq!(all.len(), 24);
    }

    #[test]
    fn counts_out_of_range_are_refused() {
        for count in [0, 17] {
            let error = SimGpus::new(&PROFILES[0], count, "n", 0).unwrap_err();
            assert_eq!(error.to_string(), format!("{count} GPUs on one node: use 1 to 16"));
        }
    }

    #[test]
    fn a_lost_card_hides_no_other_and_comes_back() {
        let gpus = node("h100", 8);
        let before = gpus.inventory().unwrap();
        gpus.lose(3).unwrap();
        let inventory = gpus.inventory().unwrap();
        assert_eq!(inventory.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 7]);
        assert_eq!(inventory.failed.len(), 1);
        assert_eq!(inventory.failed[0].id.as_ref(), Some(&before.gpus[3].id));
        assert_eq!(inventory.topology, before.topology);
        assert_eq!(gpus.sample().unwrap().len(), 7);
        assert_eq!(
            gpus.set_load(&before.gpus[3].id, 1, load(1, 1)),
            Err(Error::Lost(before.gpus[3].id.clone()))
        );
        gpus.recover(3).unwrap();
        assert_eq!(gpus.inventory().unwrap(), before);
    }

    #[test]
    fn an_application_error_is_reported_and_leaves_the_card_healthy() {
        let gpus = node("t4", 1);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let subscription =
            gpus.subscribe(Box::new(move |event| sink.lock().unwrap().push(event.kind.clone())));
        gpus.fault(0, FaultKind::Xid(31)).unwrap();
        assert!(gpus.inventory().unwrap().gpus[0].health.is_healthy());
        gpus.fault(0, FaultKind::Xid(79)).unwrap();
        assert!(!gpus.inventory().unwrap().gpus[0].health.is_healthy());
        gpus.recover(0).unwrap();
        drop(subscription);
        gpus.fault(0, FaultKind::DoubleBitEcc).unwrap();
        let fault = |kind| EventKind::Fault(Fault { kind, message: fault_message(kind) });
        assert_eq!(
            *seen.lock().unwrap(),
            [fault(FaultKind::Xid(31)), fault(FaultKind::Xid(79)), EventKind::Recovered]
        );
        assert_eq!(gpus.fault(1, FaultKind::Lost), Err(Error::NoSuchIndex { index: 1, count: 1 }));
    }

    #[test]
    fn a_card_is_partitioned_as_its_table_allows() {
        let gpus = node("a100-40", 2);
        let id = gpus.inventory().unwrap().gpus[1].id.clone();
        gpus.set_mig(1, Some(&[("1g.5gb", 6), ("3g.20gb", 0)])).unwrap();
        let partitions = gpus.inventory().unwrap().gpus.remove(1).partitions.unwrap();
        let seen: Vec<_> =
            partitions.iter().map(|one| (&*one.profile, one.gpu_instance, one.index)).collect();
        assert_eq!(seen, [("3g.20gb", 1, 0), ("1g.5gb", 13, 1)]);
        for (layout, expected) in [
            (
                &[("9g.5gb", 0)][..],
                Error::NoMigProfile {
                    gpu: id.clone(),
                    profile: "9g.5gb".into(),
                    known: "1g.5gb, 1g.5gb+me, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb".into(),
                },
            ),
            (
                &[("2g.10gb", 1)],
                Error::NoMigPlacement { profile: "2g.10gb".into(), start: 1, possible: "0, 2, 4".into() },
            ),
            (
                &[("4g.20gb", 0), ("1g.5gb", 3)],
                Error::NoRoom { gpu: id.clone(), profile: "1g.5gb".into(), start: Some(3) },
            ),
        ] {
            assert_eq!(gpus.set_mig(1, Some(layout)), Err(expected));
        }
        gpus.set_mig(1, None).unwrap();
        assert_eq!(gpus.inventory().unwrap().gpus[1].partitions, None);
        gpus.set_load(&id, 1, load(1, 1)).unwrap();
        assert_eq!(gpus.set_mig(1, Some(&[])), Err(Error::InUse(id)));
        let card = node("t4", 1);
        assert!(matches!(card.set_mig(0, Some(&[])), Err(Error::NoMig(_))));
    }

    #[test]
    fn samples_show_what_runs() {
        let gpus = node("rtx4090", 2);
        let id = gpus.inventory().unwrap().gpus[1].id.clone();
        gpus.set_load(&id, 41, load(60, 10_000)).unwrap();
        gpus.set_load(&id, 42, load(70, 4_000)).unwrap();
        let sample = gpus.sample().unwrap().remove(1);
        assert_eq!((sample.utilization_percent, sample.memory_used_mib), (Some(100), Some(14_000)));
        assert_eq!(sample.processes.iter().map(|process| process.pid).collect::<Vec<_>>(), [41, 42]);
        assert!(sample.power_milliwatts > gpus.sample().unwrap()[0].power_milliwatts);
        assert_eq!(
            gpus.set_load(&id, 43, load(0, 10_565)).unwrap_err().to_string(),
            format!("out of memory on {id}: tried to use 10565 MiB, 10564 MiB are free")
        );
        gpus.end_process(41);
        gpus.end_process(42);
        let rest = gpus.sample().unwrap().remove(1);
        assert_eq!((rest.utilization_percent, rest.memory_used_mib), (Some(0), Some(0)));
        assert!(rest.processes.is_empty());
    }

    proptest! {
        #[test]
        fn memory_is_never_over_committed_and_power_never_over_its_limit(
            steps in proptest::collection::vec((0_u32..6, 0_u8..=100, 0_u64..30_000), 0..40)
        ) {
            let gpus = node("a30", 1);
            let id = gpus.inventory().unwrap().gpus[0].id.clone();
            for (pid, utilization, memory) in steps {
                let before = gpus.sample().unwrap();
                if gpus.set_load(&id, pid, load(utilization, memory)).is_err() {
                    prop_assert_eq!(gpus.sample().unwrap(), before);
                }
                let sample = gpus.sample().unwrap().remove(0);
                prop_assert!(sample.memory_used_mib <= Some(sample.memory_total_mib));
                prop_assert!(sample.power_milliwatts <= sample.power_limit_milliwatts);
            }
        }
    }
}
