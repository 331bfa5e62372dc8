//! The health of devices: what a fault means, how long a device is out of service for it, and what is remembered of it.
//!
//! ```text
//!   driver ──event──▶ ┌─────────┐   policy: a table by kind of fault
//!          ──look───▶ │ tracker │ ──▶ looks in which devices out of service are marked, one by one
//!   clock ──────────▶ └─────────┘ ──▶ records, kept over a restart
//! ```
//!
//! A device that failed returns to service by itself when it is seen to be well: after a fault that needs nothing, when it was quiet
//! for half a minute; after one that needs a reset or a reboot, when there is a sign of that. Signs are: the driver says that
//! nothing is left to do (drivers since 565), a standing fault is gone, a lost card answers, the machine was booted. One that fails
//! again and again is held out of service, each time twice as long.
//!
//! **Blast radius.** A fault concerns the card that has it, or the partition where the driver names one and the fault keeps to it.
//! A look that fails changes nothing: that the driver does not answer says nothing about a card.

mod policy;
mod store;
mod tracker;

use std::path::{Path, PathBuf};

use gantry_gpu::{HealthEvent, Inventory};
use gantry_model::FaultKind;
use gantry_nvidia_config::HealthChecks;
use jiff::{SignedDuration, Timestamp};

use self::tracker::Tracker;
use crate::Error;
use crate::facts::Look;

pub use policy::{HealthProfile, InvalidOverrides, Policy, Response};
pub(crate) use tracker::{Outcome, Verdict};

/// What is configured about health.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HealthOptions {
    /// What faults mean.
    pub policy: Policy,
    /// Whether a node on which no GPU is fit is tainted `nvidia.com/gpu-unhealthy:NoSchedule`.
    pub taint: bool,
}

/// The tracker of an agent, and its file.
#[derive(Debug)]
pub(crate) struct Monitor {
    tracker: Tracker,
    path: PathBuf,
    /// What stands in the file.
    written: Vec<u8>,
    /// The cards as the driver last described them, or as they were marked since.
    inventory: Option<Inventory>,
}

impl Monitor {
    /// Continues where the last run ended. With it comes why its file cannot be used, if so: then nothing is remembered.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub(crate) fn new(policy: Policy, boot: String, path: PathBuf) -> Result<(Self, Option<String>), Error> {
        let (records, cause) = match store::read(&path)? {
            Ok(records) => (records, None),
            Err(cause) => (std::collections::BTreeMap::new(), Some(cause)),
        };
        let tracker = Tracker::new(policy, boot, records);
        Ok((Self { tracker, path, written: Vec::new(), inventory: None }, cause))
    }

    /// Takes over which XIDs are looked at.
    pub(crate) fn configure(&mut self, checks: HealthChecks) {
        self.tracker.policy.checks = checks;
    }

    /// What an event comes to; and the inventory as it is now, where that was ever read.
    pub(crate) fn event(&mut self, now: Timestamp, event: &HealthEvent) -> (Outcome, Option<Inventory>) {
        let outcome = self.tracker.event(now, event);
        if let Some(inventory) = &mut self.inventory {
            self.tracker.overlay(inventory);
        }
        (outcome, self.inventory.clone())
    }

    /// Marks in a look what is out of service.
    pub(crate) fn look(&mut self, now: Timestamp, look: &mut Look) {
        self.tracker.look(now, look);
        self.inventory = Some(look.inventory.clone());
    }

    /// What kind of fault it is, and why it is answered as it is, where the table tells.
    pub(crate) fn reason(kind: FaultKind) -> String {
        policy::row_of(kind).map(|rule| format!(" ({}; {})", rule.name, rule.why)).unwrap_or_default()
    }

    pub(crate) fn verdicts(&self) -> Vec<Verdict> {
        self.tracker.verdicts()
    }

    pub(crate) fn next_look(&self, now: Timestamp) -> Option<SignedDuration> {
        self.tracker.next_look(now)
    }

    /// Writes down what is remembered, where that has changed.
    pub(crate) fn save(&mut self) -> Result<(), Error> {
        let text = store::encode(&self.tracker.records).into_bytes();
        if text != self.written && !(self.written.is_empty() && self.tracker.records.is_empty()) {
            store::write(&self.path, &self.tracker.records)?;
            self.written = text;
        }
        Ok(())
    }
}

/// Names the time for which this machine has been up.
pub(crate) fn boot_id() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/sys/kernel/random/boot_id"));
    text.unwrap_or_default().trim().to_owned()
}
