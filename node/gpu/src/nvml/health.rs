//! Whether a card is well: what its driver counts, what it reported, and when that is over.

use std::collections::BTreeMap;

use gantry_model::{Fault, FaultKind, Gpu, Health};

use super::card::Signals;
use crate::backend::fault_message;
use crate::{EventKind, is_application_xid};

/// Readings in a row in which the driver must say that nothing is to be done before a reported XID is over.
const QUIET: u8 = 2;

/// An XID that took a card or a partition out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Latched {
    xid: u32,
    quiet: u8,
}

impl Latched {
    fn new(xid: u32) -> Self {
        Self { xid, quiet: 0 }
    }

    /// Whether it still counts after a reading. Drivers that say what is to be done also say when it was done; with others it
    /// counts until the card was gone and has come back.
    fn lasts(&mut self, signals: Signals) -> bool {
        self.quiet = if signals.recovery_action == Some(0) { self.quiet.saturating_add(1) } else { 0 };
        self.quiet < QUIET
    }

    fn fault(self) -> Fault {
        fault(FaultKind::Xid(self.xid))
    }
}

/// GPU instance and compute instance.
pub(super) type Instance = (u32, u32);

/// What is known of a card's health.
#[derive(Debug, Default)]
pub(super) struct Condition {
    /// Why the card does not answer, while it does not.
    gone: Option<String>,
    xid: Option<Latched>,
    /// XIDs of single partitions.
    instances: BTreeMap<Instance, Latched>,
    signals: Signals,
    /// Whether it was ever read.
    seen: bool,
}

fn fault(kind: FaultKind) -> Fault {
    Fault { kind, message: fault_message(kind) }
}

/// What to tell when health was one thing and is another.
fn change(before: &Health, after: &Health) -> Option<EventKind> {
    match (before, after) {
        (Health::Unhealthy(old), Health::Unhealthy(new)) if old.kind == new.kind => None,
        (_, Health::Unhealthy(fault)) => Some(EventKind::Fault(fault.clone())),
        (Health::Unhealthy(_), Health::Healthy) => Some(EventKind::Recovered),
        (Health::Healthy, Health::Healthy) => None,
    }
}

/// What a reading changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) card: Option<EventKind>,
    /// Partitions that work again.
    pub(super) recovered: Vec<Instance>,
    /// Whether the card answers that did not before.
    pub(super) back: bool,
}

impl Condition {
    /// The card's health.
    pub(super) fn health(&self) -> Health {
        let signals = self.signals;
        let asked = signals.recovery_action;
        let kind = if let Some(message) = &self.gone {
            return Health::Unhealthy(Fault { kind: FaultKind::Lost, message: message.clone() });
        } else if let Some(latched) = self.xid {
            return Health::Unhealthy(latched.fault());
        } else if signals.uncorrected > 0 && asked != Some(0) {
            // A driver that says nothing is to be done has dealt with the errors.
            FaultKind::DoubleBitEcc
        } else if signals.remap {
            FaultKind::RowRemapPending
        } else if asked.is_some_and(|action| action > 0) {
            FaultKind::ResetRequired
        } else {
            return Health::Healthy;
        };
        Health::Unhealthy(fault(kind))
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.is_some()
    }

    /// Writes health into a card and its partitions.
    pub(super) fn mark(&mut self, gpu: &mut Gpu) {
        gpu.health = self.health();
        // Another partition may have the numbers of one that ended, and starts well.
        let exists = |instance: &Instance| {
            gpu.partitions.iter().flatten().any(|one| (one.gpu_instance, one.compute_instance) == *instance)
        };
        self.instances.retain(|instance, _| exists(instance));
        for partition in gpu.partitions.iter_mut().flatten() {
            let key = (partition.gpu_instance, partition.compute_instance);
            if let Some(latched) = self.instances.get(&key) {
                partition.health = Health::Unhealthy(latched.fault());
            }
        }
    }

    /// The partition was ended.
    pub(super) fn forget(&mut self, instance: Instance) {
        self.instances.remove(&instance);
    }

    /// The card answered.
    pub(super) fn read(&mut self, signals: Signals) -> Changes {
        let before = self.health();
        let back = self.gone.take().is_some();
        if back {
            // It was reset, or the driver was loaded again: what was reported before is over.
            self.xid = None;
        }
        let first = !std::mem::replace(&mut self.seen, true);
        self.signals = signals;
        self.xid = self.xid.take().filter_map_mut(|latched| latched.lasts(signals));
        let mut recovered = Vec::new();
        self.instances.retain(|instance, latched| {
            let lasts = !back && latched.lasts(signals);
            if !lasts {
                recovered.push(*instance);
            }
            lasts
        });
        Changes { card: change(&before, &self.health()), recovered, back: back || first }
    }

    /// The card did not answer.
    pub(super) fn lose(&mut self, why: String) -> Option<EventKind> {
        let before = self.health();
        self.gone = Some(why);
        change(&before, &self.health())
    }

    /// The driver reported an XID of the whole card. Those of applications are told and change nothing; one that comes again is
    /// told again.
    pub(super) fn xid(&mut self, xid: u32) -> EventKind {
        if !is_application_xid(xid) {
            self.xid = Some(Latched::new(xid));
        }
        EventKind::Fault(fault(FaultKind::Xid(xid)))
    }

    /// The driver reported an XID of one partition.
    pub(super) fn partition_xid(&mut self, instance: Instance, xid: u32) -> EventKind {
        let latched = Latched::new(xid);
        if !is_application_xid(xid) {
            self.instances.insert(instance, latched);
        }
        EventKind::Fault(latched.fault())
    }
}

/// `Option::filter` that may change what it looks at.
trait FilterMut<T> {
    fn filter_map_mut(self, keep: impl FnOnce(&mut T) -> bool) -> Option<T>;
}

impl<T> FilterMut<T> for Option<T> {
    fn filter_map_mut(self, keep: impl FnOnce(&mut T) -> bool) -> Option<T> {
        self.and_then(|mut value| keep(&mut value).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well(action: Option<u64>) -> Signals {
        Signals { recovery_action: action, ..Signals::default() }
    }

    fn kind(condition: &Condition) -> Option<FaultKind> {
        match condition.health() {
            Health::Healthy => None,
            Health::Unhealthy(fault) => Some(fault.kind),
        }
    }

    #[test]
    fn an_xid_is_over_when_the_driver_says_so_twice() {
        let mut condition = Condition::default();
        condition.read(well(Some(0)));
        assert!(matches!(condition.xid(48), EventKind::Fault(_)));
        assert!(matches!(condition.xid(48), EventKind::Fault(_)), "told again");
        assert_eq!(condition.read(well(Some(1))).card, None);
        assert_eq!(condition.read(well(Some(0))).card, None);
        assert_eq!(kind(&condition), Some(FaultKind::Xid(48)));
        assert_eq!(condition.read(well(Some(0))).card, Some(EventKind::Recovered));
        assert_eq!(kind(&condition), None);
    }

    #[test]
    fn with_a_driver_that_does_not_say_it_lasts_until_the_card_came_back() {
        let mut condition = Condition::default();
        condition.read(well(None));
        condition.xid(79);
        for _ in 0..5 {
            assert_eq!(condition.read(well(None)).card, None);
        }
        assert!(matches!(condition.lose("gone".into()), Some(EventKind::Fault(_))));
        assert_eq!(condition.lose("still gone".into()), None);
        let changes = condition.read(well(None));
        assert_eq!((changes.card, changes.back), (Some(EventKind::Recovered), true));
    }

    #[test]
    fn counters_and_advice_are_faults_while_they_last() {
        for (signals, expected) in [
            (Signals { uncorrected: 3, ..well(None) }, Some(FaultKind::DoubleBitEcc)),
            (Signals { uncorrected: 3, ..well(Some(1)) }, Some(FaultKind::DoubleBitEcc)),
            (Signals { uncorrected: 3, ..well(Some(0)) }, None),
            (Signals { remap: true, ..well(Some(0)) }, Some(FaultKind::RowRemapPending)),
            (well(Some(4)), Some(FaultKind::ResetRequired)),
        ] {
            let mut condition = Condition::default();
            condition.read(signals);
            assert_eq!(kind(&condition), expected, "{signals:?}");
            condition.read(well(signals.recovery_action.map(|_| 0)));
            assert_eq!(kind(&condition), None, "{signals:?}");
        }
    }

    #[test]
    fn an_applications_xid_is_told_and_changes_nothing() {
        let mut condition = Condition::default();
        assert!(matches!(condition.xid(31), EventKind::Fault(_)));
        condition.partition_xid((7, 0), 13);
        assert_eq!(kind(&condition), None);
        assert!(condition.instances.is_empty());
    }

    #[test]
    fn a_partitions_xid_leaves_the_card_healthy() {
        let mut condition = Condition::default();
        condition.read(well(Some(0)));
        condition.partition_xid((7, 0), 94);
        assert_eq!(kind(&condition), None);
        assert_eq!(condition.read(well(Some(0))).recovered, []);
        assert_eq!(condition.read(well(Some(0))).recovered, [(7, 0)]);
    }
}
