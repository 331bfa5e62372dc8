//! Health as it changes: events of the driver, and a look at every card for what no event tells.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use super::library::{Code, EventSet, Handle, Nvml, optional};
use super::worker::Deadline;
use super::{Inner, lock};
use crate::HealthEvent;

/// Kinds of events that are asked for: uncorrected memory errors, XIDs, advice on recovery.
const UNCORRECTED: u64 = 2;
const XID: u64 = 8;
const RECOVERY_ACTION: u64 = 32_768;
const WANTED: u64 = UNCORRECTED | XID | RECOVERY_ACTION;

/// How long one wait for events lasts, in milliseconds.
const WAIT_MS: u32 = 500;

/// The least time between two attempts to wait after one that failed. A card that is gone makes every wait fail at once.
const BACK_OFF: Duration = Duration::from_secs(1);

/// The threads that watch.
#[derive(Debug, Default)]
pub(super) struct State {
    started: bool,
    pub(super) stop: bool,
}

/// Starts the threads that watch, once.
pub(super) fn start(inner: &Arc<Inner>) {
    let mut state = lock(&inner.watch);
    if std::mem::replace(&mut state.started, true) {
        return;
    }
    for (name, run) in [("nvml-poll", poll as fn(&Weak<Inner>)), ("nvml-events", events)] {
        let inner = Arc::downgrade(inner);
        // A machine that has no thread to spare has other worries; the other half of the watch works alone.
        let _ = thread::Builder::new().name(name.to_owned()).spawn(move || run(&inner));
    }
}

impl Inner {
    /// Waits; whether to go on.
    fn pause(&self, time: Duration) -> bool {
        let state = lock(&self.watch);
        let waited = self.stopped.wait_timeout_while(state, time, |state| !state.stop);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.stop
    }

    fn is_stopped(&self) -> bool {
        lock(&self.watch).stop
    }

    /// An event of the driver.
    fn event(&self, device: Handle, kind: u64, data: u64, instance: Option<(u32, u32)>) {
        let slots = self.slots();
        let found = slots.iter().find_map(|slot| {
            let facts = slot.facts().filter(|facts| facts.handle == device)?;
            Some((slot, facts))
        });
        let Some((slot, facts)) = found else {
            // Which card is not known: look at all.
            self.refresh();
            return;
        };
        if kind == XID {
            let xid = u32::try_from(data).unwrap_or(u32::MAX);
            let event = match instance {
                Some(instance) => {
                    // The partition's id is what the driver calls it now.
                    let partitions =
                        self.on(slot, self.options.answer, move |nvml| super::mig::partitions(nvml, &facts));
                    let partitions = partitions.ok().and_then(Result::ok).unwrap_or_default();
                    let mut of = partitions.into_iter();
                    of.find(|one| (one.gpu_instance, one.compute_instance) == instance).map(|one| {
                        HealthEvent { kind: slot.condition().partition_xid(instance, xid), gpu: one.id }
                    })
                }
                None => Some(HealthEvent { kind: slot.condition().xid(xid), gpu: facts.gpu.id }),
            };
            if let Some(event) = event {
                self.subscribers.send(&event);
                return;
            }
        }
        self.refresh();
    }

    /// A set with every card that answers. Cards are asked by their workers: one that hangs is left out.
    fn event_set(&self) -> Result<EventSet, Code> {
        let set = self.nvml.event_set()?;
        let deadline = Deadline::after(self.options.answer);
        let given: Vec<_> = self
            .slots()
            .into_iter()
            .filter(|slot| !slot.condition().is_gone())
            .filter_map(|slot| {
                let (facts, nvml) = (slot.facts()?, Arc::clone(&self.nvml));
                Some(slot.worker.give(move || register(&nvml, facts.handle, set)))
            })
            .collect();
        let registered = given.into_iter().map(|pending| pending.wait(deadline));
        // Nothing to wait for, as with a driver that has no events: the look at every card remains.
        if registered.filter(|answer| matches!(answer, Ok(Ok(true)))).count() == 0 {
            self.nvml.free(set);
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(set)
    }
}

/// Whether the card has events.
fn register(nvml: &Nvml, device: Handle, set: EventSet) -> Result<bool, Code> {
    let kinds = optional(nvml.event_kinds(device))?.unwrap_or(0) & WANTED;
    if kinds == 0 {
        return Ok(false);
    }
    nvml.register(device, kinds, set)?;
    Ok(true)
}

/// Looks at every card from time to time.
fn poll(inner: &Weak<Inner>) {
    loop {
        let Some(inner) = inner.upgrade() else { return };
        inner.refresh();
        if !inner.pause(inner.options.poll) {
            return;
        }
    }
}

/// Waits for events until the backend is dropped.
fn events(weak: &Weak<Inner>) {
    loop {
        let Some(inner) = weak.upgrade() else { return };
        inner.refresh();
        let arrivals = inner.arrivals.load(Ordering::Acquire);
        let nvml = Arc::clone(&inner.nvml);
        let Ok(set) = inner.event_set() else {
            // Without events, or without a card that answers: try again when the poll may have found one.
            if inner.pause(inner.options.poll.max(BACK_OFF)) {
                continue;
            }
            return;
        };
        drop(inner);
        let outcome = wait(weak, &nvml, set, arrivals);
        nvml.free(set);
        match outcome {
            Outcome::Stop => return,
            Outcome::Again => {}
            Outcome::Failed => {
                let Some(inner) = weak.upgrade() else { return };
                inner.refresh();
                if !inner.pause(BACK_OFF) {
                    return;
                }
            }
        }
    }
}

/// Why waiting on one set ended.
enum Outcome {
    Stop,
    /// There are cards that the set does not have.
    Again,
    Failed,
}

fn wait(weak: &Weak<Inner>, nvml: &Nvml, set: EventSet, arrivals: u64) -> Outcome {
    loop {
        let answer = nvml.wait(set, WAIT_MS);
        let Some(inner) = weak.upgrade().filter(|inner| !inner.is_stopped()) else { return Outcome::Stop };
        match answer {
            Ok(data) => {
                let instance =
                    (data.gpuInstanceId != u32::MAX).then_some((data.gpuInstanceId, data.computeInstanceId));
                inner.event(Handle(data.device), data.eventType, data.eventData, instance);
            }
            Err(Code::TIMEOUT) => {}
            Err(_) => return Outcome::Failed,
        }
        if inner.arrivals.load(Ordering::Acquire) != arrivals {
            return Outcome::Again;
        }
    }
}
