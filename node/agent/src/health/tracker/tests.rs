use std::sync::Arc;

use gantry_gpu::{FabricInfo, FabricState, GpuBackend as _, Profile, RecoveryAction, SimGpus};
use gantry_model::{Partition, PartitionAttributes};
use gantry_nvidia_config::HealthChecks;

use super::*;

/// Real cards forget an XID as soon as they have told it: what is here is healthy unless it is lost.
struct Node {
    cards: Arc<SimGpus>,
    tracker: Tracker,
    now: Timestamp,
    details: GpuDetails,
    /// Partitions of the first card.
    partitions: Vec<Partition>,
}

impl Node {
    fn new() -> Self {
        Self::with(Policy::default())
    }

    fn with(policy: Policy) -> Self {
        let cards = SimGpus::new(Profile::named("a100-80").unwrap(), 4, "n", 1).unwrap();
        let tracker = Tracker::new(policy, "boot-1".into(), BTreeMap::new());
        Self {
            cards,
            tracker,
            now: Timestamp::UNIX_EPOCH,
            details: GpuDetails::default(),
            partitions: Vec::new(),
        }
    }

    fn id(&self, index: usize) -> GpuId {
        let inventory = self.cards.inventory().unwrap();
        let failed = inventory.failed.iter().map(|card| (card.index, card.id.clone().unwrap()));
        let all: BTreeMap<_, _> =
            inventory.gpus.iter().map(|gpu| (gpu.index, gpu.id.clone())).chain(failed).collect();
        all[&u32::try_from(index).unwrap()].clone()
    }

    fn after(&mut self, seconds: i64) -> &mut Self {
        self.now += SignedDuration::from_secs(seconds);
        self
    }

    fn xid(&mut self, id: &GpuId, xid: u32) -> Outcome {
        let fault = Fault { kind: FaultKind::Xid(xid), message: format!("the driver reported XID {xid}") };
        self.tracker.event(self.now, &HealthEvent { gpu: id.clone(), kind: EventKind::Fault(fault) })
    }

    /// Looks, and gives the devices that are out of service.
    fn sick(&mut self) -> Vec<String> {
        let mut inventory = self.cards.inventory().unwrap();
        inventory.gpus[0].partitions = (!self.partitions.is_empty()).then(|| self.partitions.clone());
        let details = inventory.gpus.iter().map(|gpu| (gpu.id.clone(), self.details.clone())).collect();
        let mut look = Look { inventory, driver: None, details };
        self.tracker.look(self.now, &mut look);
        let whole = look
            .inventory
            .gpus
            .iter()
            .filter(|gpu| !gpu.health.is_healthy())
            .map(|gpu| gpu.index.to_string());
        let parts = look.inventory.gpus.iter().flat_map(|gpu| gpu.partitions.iter().flatten());
        let parts = parts.filter(|part| !part.health.is_healthy()).map(|part| part.id.to_string());
        let failed = look.inventory.failed.iter().map(|card| card.index.to_string());
        whole.chain(parts).chain(failed).collect()
    }

    /// Looks as often as the tracker asks, and gives the seconds after which all is well.
    fn seconds_out(&mut self) -> i64 {
        let start = self.now;
        for _ in 0..10_000 {
            if self.sick().is_empty() {
                return self.now.duration_since(start).as_secs();
            }
            self.now += self.tracker.next_look(self.now).expect("something is out of service");
        }
        i64::MAX
    }

    fn restart(&mut self, boot: &str) {
        let records =
            super::super::store::decode(super::super::store::encode(&self.tracker.records).as_bytes());
        self.tracker = Tracker::new(self.tracker.policy.clone(), boot.into(), records.unwrap());
    }
}

#[test]
fn a_fault_that_needs_nothing_takes_one_card_out_until_it_was_quiet() {
    let mut node = Node::new();
    let id = node.id(2);
    assert_eq!(node.xid(&id, 94), Outcome::Sick);
    assert_eq!(node.sick(), ["2"]);
    assert_eq!(node.after(20).sick(), ["2"]);
    // Another sign of it: the quiet begins anew.
    node.xid(&id, 94);
    assert_eq!(node.after(29).sick(), ["2"]);
    assert!(node.after(1).sick().is_empty());
    assert_eq!(node.tracker.next_look(node.now), None);
}

#[test]
fn an_applications_error_takes_nothing_out() {
    let mut node = Node::new();
    let id = node.id(0);
    for xid in [13, 31, 43, 45, 68, 69, 63, 154] {
        assert_eq!(node.xid(&id, xid), Outcome::Ignored, "XID {xid}");
    }
    assert!(node.sick().is_empty() && node.tracker.records.is_empty());
}

#[test]
fn a_card_that_needs_a_reset_waits_for_a_sign_of_one() {
    let mut node = Node::new();
    let id = node.id(1);
    node.xid(&id, 95);
    assert_eq!(node.after(100_000).sick(), ["1"], "nothing was done");
    // A reset takes it away for a moment.
    node.cards.lose(1).unwrap();
    assert_eq!(node.sick(), ["1"]);
    node.cards.recover(1).unwrap();
    assert_eq!(node.after(1).sick(), Vec::<String>::new());
    // A new driver says itself what is left to do.
    node.after(100_000).xid(&id, 95);
    node.details.recovery = Some(RecoveryAction::Reset);
    assert_eq!(node.after(60).sick().len(), 4, "each card says so here");
    node.details.recovery = Some(RecoveryAction::None);
    assert_eq!(node.after(60).sick(), Vec::<String>::new());
    // It may say at once that nothing is needed.
    node.after(100_000).xid(&id, 109);
    assert_eq!(node.after(5).sick(), ["1"]);
    assert!(node.after(30).sick().is_empty());
}

#[test]
fn a_restart_of_the_agent_forgets_no_fault_and_one_of_the_machine_mends_it() {
    let mut node = Node::new();
    let (reset, reboot) = (node.id(1), node.id(3));
    node.xid(&reset, 48);
    node.xid(&reset, 64);
    node.xid(&reboot, 79);
    let before = node.tracker.verdicts();
    node.restart("boot-1");
    assert_eq!(node.tracker.verdicts(), before);
    assert_eq!(node.after(100_000).sick(), ["1", "3"]);
    node.restart("boot-2");
    assert_eq!(node.sick(), Vec::<String>::new());
}

#[test]
fn a_card_that_fails_again_and_again_is_held_longer_each_time() {
    let mut node = Node::new();
    let id = node.id(0);
    let mut out = Vec::new();
    for _ in 0..9 {
        node.xid(&id, 94);
        out.push(node.seconds_out());
        node.after(60);
    }
    assert_eq!(out, [30, 30, 60, 120, 240, 480, 960, 1_920, 3_600]);
    node.after(7_200).xid(&id, 94);
    assert_eq!(node.seconds_out(), 30, "after two good hours all is forgiven");
}

#[test]
fn a_backend_that_says_mended_is_believed_once_and_then_held() {
    let mut node = Node::new();
    let id = node.id(0);
    let fail_and_mend = |node: &mut Node| {
        node.xid(&id, 79);
        assert_eq!(node.sick(), ["0"]);
        node.tracker.event(node.now, &HealthEvent { gpu: id.clone(), kind: EventKind::Recovered });
        node.seconds_out()
    };
    assert_eq!([fail_and_mend(&mut node), fail_and_mend(&mut node), fail_and_mend(&mut node)], [0, 30, 60]);
    node.xid(&id, 79);
    node.tracker.event(node.now, &HealthEvent { gpu: id.clone(), kind: EventKind::Recovered });
    let message = node.tracker.verdicts()[0].fault.message.clone();
    assert_eq!(
        message,
        "the driver reported XID 79 (fallen off the bus); works again, and is held out of service until \
         1970-01-01T00:03:30Z: it failed 4 times in a row"
    );
}

#[test]
fn a_partition_is_out_alone_where_the_fault_keeps_to_it_and_the_card_where_not() {
    let mut node = Node::new();
    let partition = |index: u32| Partition {
        id: format!("MIG-{index}").parse().unwrap(),
        index,
        profile: "1g.10gb".into(),
        gpu_instance: index,
        compute_instance: 0,
        start: index,
        size: 1,
        memory_mib: 9_728,
        attributes: PartitionAttributes::default(),
        health: Health::Healthy,
    };
    node.partitions = vec![partition(0), partition(1)];
    node.sick();
    let id = node.partitions[1].id.clone();
    node.xid(&id, 94);
    assert_eq!(node.sick(), ["MIG-1"]);
    node.xid(&id, 95);
    assert_eq!(node.sick(), ["0", "MIG-1"]);
    // A partition that is taken apart takes its fault along.
    node.partitions.remove(1);
    assert_eq!(node.sick(), ["0"]);
    assert!(!node.tracker.records.contains_key(&id));
    // NVIDIA's plugin keeps everything to the partition.
    let mut node = Node::with(Policy { profile: super::super::HealthProfile::Nvidia, ..Policy::default() });
    node.partitions = vec![partition(0), partition(1)];
    node.sick();
    node.xid(&id, 95);
    assert_eq!(node.sick(), ["MIG-1"]);
}

#[test]
fn what_a_card_shows_counts_without_an_event_and_ends_with_it() {
    let mut node = Node::new();
    for (kind, details) in [
        (FaultKind::RowRemapPending, GpuDetails { row_remap_pending: Some(true), ..GpuDetails::default() }),
        (
            FaultKind::RebootRequired,
            GpuDetails { recovery: Some(RecoveryAction::Reboot), ..GpuDetails::default() },
        ),
        (
            FaultKind::ResetRequired,
            GpuDetails { recovery: Some(RecoveryAction::DrainP2p), ..GpuDetails::default() },
        ),
        (
            FaultKind::FabricNotReady,
            GpuDetails {
                fabric: Some(FabricInfo { state: FabricState::InProgress, cluster: [0; 16], clique: 0 }),
                ..GpuDetails::default()
            },
        ),
    ] {
        node.details = details;
        assert_eq!(node.after(100_000).sick().len(), 4);
        assert!(node.tracker.verdicts().iter().all(|verdict| verdict.fault.kind == kind), "{kind}");
        node.details = GpuDetails::default();
        assert_eq!(node.after(1).sick(), Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn the_worst_of_several_faults_counts_and_a_lost_card_hides_no_other() {
    let mut node = Node::new();
    let id = node.id(2);
    node.xid(&id, 94);
    node.cards.lose(2).unwrap();
    assert_eq!(node.sick(), ["2"]);
    let verdict = node.tracker.verdicts().remove(0);
    assert_eq!((verdict.fault.kind, verdict.since), (FaultKind::Lost, Timestamp::UNIX_EPOCH));
    assert!(
        verdict
            .fault
            .message
            .ends_with("to do: drain the node and reboot it; replace the card if this repeats")
    );
    node.xid(&id, 94);
    assert_eq!(node.tracker.verdicts()[0].fault.kind, FaultKind::Lost);
}

#[test]
fn a_look_that_began_before_the_fault_does_not_end_it() {
    let mut node = Node::new();
    let mut look =
        Look { inventory: node.cards.inventory().unwrap(), driver: None, details: BTreeMap::new() };
    let id = node.id(1);
    node.xid(&id, 79);
    node.tracker.look(node.now, &mut look);
    assert!(!look.inventory.gpus[1].health.is_healthy());
}

#[test]
fn a_clock_that_is_set_back_holds_nobody() {
    let mut node = Node::new();
    node.after(1_000_000);
    let id = node.id(0);
    node.xid(&id, 94);
    node.after(-900_000);
    assert_eq!(node.seconds_out(), 30);
}

#[test]
fn a_policy_that_ignores_a_fault_ignores_the_state_that_it_left() {
    // The simulated card shows its XID for as long as it is not mended.
    let checks = HealthChecks { all_disabled: true, ..HealthChecks::default() };
    let mut node = Node::with(Policy { checks, ..Policy::default() });
    node.cards.fault(0, FaultKind::Xid(79)).unwrap();
    assert!(node.sick().is_empty());
    node.cards.fault(1, FaultKind::DoubleBitEcc).unwrap();
    assert_eq!(node.sick(), ["1"], "no XID");
}

#[test]
fn a_backend_that_goes_on_naming_an_xid_keeps_no_card_out_and_fails_none_again() {
    let mut node = Node::new();
    // Before the agent looked for the first time.
    node.cards.fault(2, FaultKind::Xid(94)).unwrap();
    assert_eq!(node.sick(), ["2"]);
    assert_eq!(node.seconds_out(), 30);
    assert!(node.after(100_000).sick().is_empty() && node.after(100_000).sick().is_empty());
    let id = node.id(2);
    node.xid(&id, 94);
    assert_eq!(node.sick(), ["2"], "told again");
    // One that needs a reset is believed for as long as it is named.
    node.cards.fault(3, FaultKind::Xid(95)).unwrap();
    assert_eq!(node.after(100_000).sick(), ["3"]);
    node.cards.recover(3).unwrap();
    assert!(node.sick().is_empty());
}
