//! Which devices are out of service, since when, and when they return: a function of what was told and of the time.

use std::collections::{BTreeMap, BTreeSet};

use gantry_gpu::{EventKind, GpuDetails, HealthEvent, Inventory};
use gantry_model::{Fault, FaultKind, GpuId, Health};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::policy::{self, Scope};
use super::{Policy, Response};
use crate::facts::Look;
use crate::state::placeholder;

/// How long a suspended device must show no sign of its fault before it is trusted again.
const QUIET: SignedDuration = SignedDuration::from_secs(30);

/// How long a device that fails for the second time is held out of service at least; twice as long each further time.
const HOLD: SignedDuration = SignedDuration::from_secs(30);
/// The longest hold.
const LONGEST_HOLD: SignedDuration = SignedDuration::from_hours(1);

/// After so long without a fault, earlier ones no longer count.
const FORGIVE: SignedDuration = SignedDuration::from_hours(2);

/// The shortest and the longest time between two looks at a node with a device out of service.
const PROBES: (SignedDuration, SignedDuration) =
    (SignedDuration::from_secs(5), SignedDuration::from_secs(60));

/// What is remembered of one device: a GPU or a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    #[serde(with = "super::store::kind")]
    pub(crate) kind: FaultKind,
    /// In the driver's words.
    pub(crate) message: String,
    /// Whether it is out of service.
    pub(crate) active: bool,
    /// When it failed.
    #[serde(with = "super::store::time")]
    pub(crate) since: Timestamp,
    /// The last sign of it.
    #[serde(with = "super::store::time")]
    pub(crate) last: Timestamp,
    /// How often it failed in a row.
    pub(crate) strikes: u32,
    /// Whether the last look showed the fault as a state of the card; then its end is seen as well.
    pub(crate) stands: bool,
    /// Whether what was to be done about it has been done, as far as one can see.
    pub(crate) mended: bool,
    /// The boot of the machine in which it failed.
    pub(crate) boot: String,
}

/// A device out of service, for those who tell of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) id: GpuId,
    pub(crate) fault: Fault,
    pub(crate) since: Timestamp,
}

/// What came of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The policy makes nothing of it.
    Ignored,
    /// The device is out of service.
    Sick,
    /// A device may return; a look decides.
    Mended,
}

/// The devices of a node that failed lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tracker {
    pub(crate) policy: Policy,
    boot: String,
    pub(crate) records: BTreeMap<GpuId, Record>,
    /// The GPU of each partition, as last seen.
    parents: BTreeMap<GpuId, GpuId>,
    /// The id of each card by PCI address, as last seen.
    addresses: BTreeMap<String, GpuId>,
}

impl Tracker {
    /// `boot` names the time for which the machine has been up; records of another boot belong to cards that were reset since.
    pub(crate) fn new(policy: Policy, boot: String, records: BTreeMap<GpuId, Record>) -> Self {
        Self { policy, boot, records, parents: BTreeMap::new(), addresses: BTreeMap::new() }
    }

    /// Takes note of what the driver told.
    pub(crate) fn event(&mut self, now: Timestamp, event: &HealthEvent) -> Outcome {
        match &event.kind {
            EventKind::Recovered => {
                for (id, record) in &mut self.records {
                    if *id == event.gpu || self.parents.get(id) == Some(&event.gpu) {
                        record.mended = true;
                        record.stands = false;
                    }
                }
                Outcome::Mended
            }
            EventKind::Fault(fault) if self.policy.response(fault.kind) == Response::Ignore => {
                Outcome::Ignored
            }
            EventKind::Fault(fault) => {
                let parent = self.parents.get(&event.gpu);
                let target = match self.policy.scope(fault.kind) {
                    Scope::Card => parent.unwrap_or(&event.gpu),
                    Scope::Partition => &event.gpu,
                };
                self.fail(now, &target.clone(), fault, false);
                Outcome::Sick
            }
        }
    }

    fn fail(&mut self, now: Timestamp, id: &GpuId, fault: &Fault, stands: bool) {
        let stands = stands && !self.is_echoed(fault.kind);
        let fresh = Record {
            kind: fault.kind,
            message: fault.message.clone(),
            active: true,
            since: now,
            last: now,
            strikes: 1,
            stands,
            mended: false,
            boot: self.boot.clone(),
        };
        let Some(record) = self.records.get_mut(id) else {
            self.records.insert(id.clone(), fresh);
            return;
        };
        if !record.active {
            let strikes =
                if now.duration_since(record.last) < FORGIVE { record.strikes.saturating_add(1) } else { 1 };
            *record = Record { strikes, ..fresh };
            return;
        }
        record.last = now;
        record.mended = false;
        record.stands = stands;
        record.boot.clone_from(&self.boot);
        if self.policy.response(fault.kind) > self.policy.response(record.kind) {
            record.kind = fault.kind;
            record.message.clone_from(&fault.message);
        }
    }

    /// Compares what is remembered with how the cards are now, and writes into the look which devices are out of service.
    pub(crate) fn look(&mut self, now: Timestamp, look: &mut Look) {
        let inventory = &look.inventory;
        self.parents = inventory
            .gpus
            .iter()
            .flat_map(|gpu| {
                gpu.partitions.iter().flatten().map(|partition| (partition.id.clone(), gpu.id.clone()))
            })
            .collect();
        self.addresses.extend(inventory.gpus.iter().map(|gpu| (gpu.pci_bus_id.clone(), gpu.id.clone())));
        let (mut seen, mut echoes) = (BTreeSet::new(), BTreeSet::new());
        let none = GpuDetails::default();
        for gpu in &inventory.gpus {
            let details = look.details.get(&gpu.id).unwrap_or(&none);
            let standing = self.standing(&gpu.id, &gpu.health, details);
            self.compare(now, &gpu.id, standing.as_ref(), details);
            seen.insert(gpu.id.clone());
            echoes.extend((!gpu.health.is_healthy()).then(|| gpu.id.clone()));
            for partition in gpu.partitions.iter().flatten() {
                let standing = self.standing(&partition.id, &partition.health, &none);
                self.compare(now, &partition.id, standing.as_ref(), &none);
                seen.insert(partition.id.clone());
                echoes.extend((!partition.health.is_healthy()).then(|| partition.id.clone()));
            }
        }
        for failed in &inventory.failed {
            let id = self.failed_id(failed.id.as_ref(), &failed.pci_bus_id);
            let lost = Fault { kind: FaultKind::Lost, message: failed.error.clone() };
            self.compare(now, &id, Some(&lost), &none);
            seen.insert(id);
        }
        let boot = self.boot.clone();
        self.records.retain(|id, record| {
            let listed = seen.contains(id) || (record.boot == boot && !id.as_str().starts_with("MIG-"));
            let lately = now.duration_since(record.last) < FORGIVE;
            listed && (record.active || lately || echoes.contains(id))
        });
        self.overlay(&mut look.inventory);
    }

    /// Whether a backend may name a fault for longer than it lasts.
    fn is_echoed(&self, kind: FaultKind) -> bool {
        matches!(kind, FaultKind::Xid(_)) && self.policy.response(kind) == Response::Suspend
    }

    fn failed_id(&self, id: Option<&GpuId>, pci_bus_id: &str) -> GpuId {
        id.or_else(|| self.addresses.get(pci_bus_id)).cloned().unwrap_or_else(|| placeholder(pci_bus_id))
    }

    /// What is wrong with a device as it stands; its own word first, then the worst of what it tells besides.
    fn standing(&self, id: &GpuId, health: &Health, details: &GpuDetails) -> Option<Fault> {
        if let Health::Unhealthy(fault) = health {
            let response = self.policy.response(fault.kind);
            // A backend goes on naming an XID for which nothing has to be done; what came of it is on record.
            let echo = self.is_echoed(fault.kind)
                && self.records.get(id).is_some_and(|known| known.kind == fault.kind);
            if response != Response::Ignore && !echo {
                return Some(fault.clone());
            }
        }
        let fault = |kind, message: String| Some(Fault { kind, message });
        if let Some(kind) = details.recovery.and_then(policy::recovery_fault) {
            return fault(kind, "the driver asks for it".to_owned());
        }
        if details.row_remap_pending == Some(true) {
            return fault(FaultKind::RowRemapPending, "a memory row waits to be remapped".to_owned());
        }
        match &details.fabric {
            Some(fabric) if !fabric.state.is_ready() => fault(
                FaultKind::FabricNotReady,
                format!("the registration with the NVLink fabric is: {}", fabric.state),
            ),
            _ => None,
        }
    }

    fn compare(&mut self, now: Timestamp, id: &GpuId, standing: Option<&Fault>, details: &GpuDetails) {
        let boot = self.boot.clone();
        let known = self.records.get_mut(id).filter(|record| record.active);
        match (standing, known) {
            (None, None) => {}
            (Some(fault), None) => self.fail(now, id, fault, true),
            (Some(fault), Some(record)) => {
                record.stands = true;
                record.mended = false;
                record.last = record.last.max(now);
                if self.policy.response(fault.kind) > self.policy.response(record.kind) {
                    record.kind = fault.kind;
                    record.message.clone_from(&fault.message);
                }
            }
            (None, Some(record)) => {
                // A clock that was set back must not keep a card out of service.
                record.last = record.last.min(now);
                let quiet = now.duration_since(record.last) >= QUIET;
                let says_so = quiet && details.recovery.is_some();
                let rebooted = record.boot != boot && !boot.is_empty() && !record.boot.is_empty();
                record.mended |= record.stands || says_so || rebooted;
                record.stands = false;
                if now >= returns_at(&self.policy, record).unwrap_or(Timestamp::MAX) {
                    record.active = false;
                }
            }
        }
    }

    /// Marks devices as they are remembered.
    pub(crate) fn overlay(&self, inventory: &mut Inventory) {
        let health = |id: &GpuId| match self.records.get(id).filter(|record| record.active) {
            Some(record) => Health::Unhealthy(self.fault(record)),
            None => Health::Healthy,
        };
        for gpu in &mut inventory.gpus {
            gpu.health = health(&gpu.id);
            for partition in gpu.partitions.iter_mut().flatten() {
                partition.health = health(&partition.id);
            }
        }
        for failed in &mut inventory.failed {
            let id = self.failed_id(failed.id.as_ref(), &failed.pci_bus_id);
            if let Health::Unhealthy(fault) = health(&id) {
                failed.error = fault.message;
            }
        }
    }

    /// A fault with what has to be done about it.
    fn fault(&self, record: &Record) -> Fault {
        let mut message = record.message.clone();
        if let Some(rule) = policy::row_of(record.kind) {
            message = format!("{message} ({})", rule.name);
        }
        let response = self.policy.response(record.kind);
        match returns_at(&self.policy, record).filter(|_| record.mended && record.strikes > 1) {
            Some(at) => {
                let at = gantry_kit::stamp(at);
                message = format!(
                    "{message}; works again, and is held out of service until {at}: it failed {} times in a row",
                    record.strikes
                );
            }
            None => message = format!("{message}; to do: {}", response.action()),
        }
        Fault { kind: record.kind, message }
    }

    /// What is out of service.
    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        let active = self.records.iter().filter(|(_, record)| record.active);
        active
            .map(|(id, record)| Verdict { id: id.clone(), fault: self.fault(record), since: record.since })
            .collect()
    }

    /// After how long the next look is due; `None` where nothing is out of service.
    pub(crate) fn next_look(&self, now: Timestamp) -> Option<SignedDuration> {
        let due = |record: &Record| {
            let slow = now.duration_since(record.since) / 10;
            let wait = slow.clamp(PROBES.0, PROBES.1);
            // Exactly when it may return, if that is sooner.
            let left = returns_at(&self.policy, record).map(|at| at.duration_since(now));
            left.filter(|left| *left > SignedDuration::ZERO).map_or(wait, |left| left.min(wait))
        };
        self.records.values().filter(|record| record.active).map(due).min()
    }
}

/// When a device that shows no fault returns to service; `None` as long as something has to be done first.
fn returns_at(policy: &Policy, record: &Record) -> Option<Timestamp> {
    let doubled = 2_i32.saturating_pow(record.strikes.saturating_sub(2));
    let hold = match record.strikes {
        0 | 1 => SignedDuration::ZERO,
        _ => HOLD.checked_mul(doubled).unwrap_or(LONGEST_HOLD).min(LONGEST_HOLD),
    };
    let wait = match (record.mended, policy.response(record.kind)) {
        (true, _) => hold,
        (false, Response::Ignore | Response::Suspend) => hold.max(QUIET),
        (false, Response::Reset | Response::Reboot) => return None,
    };
    Some(record.last.saturating_add(wait).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests;
