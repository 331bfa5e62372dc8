//! Faults that are put on cards while they are simulated.

use crate::{Loss, State};

/// NVML's kinds of events.
const SINGLE_BIT_ECC: u64 = 1;
const DOUBLE_BIT_ECC: u64 = 2;
const XID: u64 = 8;

/// The driver's advice to reset the GPU, a value of field 230.
const RESET: u32 = 1;

/// Something that goes wrong with a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The card no longer answers; nothing is said about it.
    Lost,
    /// The card is off the bus: XID 79, and no handle is given out.
    FallenOffBus,
    /// The driver reports an XID, of the whole card or of an instance (GPU instance, compute instance).
    Xid(u64, Option<(u32, u32)>),
    /// So many corrected memory errors.
    EccSingle(u64),
    /// So many uncorrected memory errors.
    EccDouble(u64),
    /// A row is to be remapped at the next reset.
    RemapPending,
    /// A row cannot be remapped.
    RemapFailed,
    /// Clocks are lowered, for these reasons (bits of `nvmlClocksEventReason…`).
    Throttle(u64),
    /// Readings make no sense.
    Garbage,
    /// Every call about the card takes so many milliseconds.
    Slow(u64),
    /// Calls about the card do not return.
    Hang,
}

impl State {
    /// Puts a fault on a card. Others that it has stay.
    pub fn fail(&mut self, index: u32, fault: Fault) {
        // An application's XID leaves the card as it is.
        let critical = |xid: u64| !u32::try_from(xid).is_ok_and(gantry_gpu::is_application_xid);
        let card = self.card(index);
        match fault {
            Fault::Lost => card.loss = Some(Loss::Lost),
            Fault::FallenOffBus => card.loss = Some(Loss::FallenOffBus),
            // An error that was kept within a partition leaves the rest of the card at work.
            Fault::Xid(xid, None) if critical(xid) => card.recovery_action = RESET,
            Fault::Xid(..) => {}
            Fault::EccSingle(count) => card.ecc_corrected = card.ecc_corrected.saturating_add(count),
            Fault::EccDouble(count) => {
                card.ecc_uncorrected = card.ecc_uncorrected.saturating_add(count);
                card.recovery_action = RESET;
            }
            Fault::RemapPending => {
                card.remap_pending = true;
                card.recovery_action = RESET;
            }
            Fault::RemapFailed => card.remap_failed = true,
            Fault::Throttle(reasons) => card.throttle |= reasons,
            Fault::Garbage => card.garbage = true,
            Fault::Slow(milliseconds) => card.delay_ms = milliseconds,
            Fault::Hang => card.hang = true,
        }
        if matches!(fault, Fault::Lost | Fault::FallenOffBus) {
            card.processes.clear();
        }
        match fault {
            Fault::FallenOffBus => self.send(index, XID, 79, None),
            Fault::Xid(xid, instance) => self.send(index, XID, xid, instance),
            Fault::EccSingle(count) => self.send(index, SINGLE_BIT_ECC, count, None),
            Fault::EccDouble(count) => self.send(index, DOUBLE_BIT_ECC, count, None),
            _ => {}
        }
    }

    /// Takes every fault off a card, as a reset does. Partitions and processes stay, and a pending MIG mode is now in force.
    pub fn recover(&mut self, index: u32) {
        let card = self.card(index);
        let before = std::mem::take(card);
        card.mig = before.mig_pending;
        card.mig_pending = before.mig_pending;
        card.instances = before.instances;
        card.processes = before.processes;
        card.overrides = before.overrides;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_takes_away_faults_and_nothing_else() {
        let mut state = State::default();
        state.card(2).mig_pending = true;
        state.card(2).overrides = serde_json::json!({"serial": "1"});
        for fault in [
            Fault::Lost,
            Fault::EccDouble(3),
            Fault::RemapPending,
            Fault::Throttle(8),
            Fault::Garbage,
            Fault::Slow(5),
            Fault::Hang,
        ] {
            state.fail(2, fault);
        }
        assert_eq!(state.cards[&2].ecc_uncorrected, 3);
        state.recover(2);
        let expected = crate::CardState {
            mig: true,
            mig_pending: true,
            overrides: serde_json::json!({"serial": "1"}),
            ..Default::default()
        };
        assert_eq!(state.cards[&2], expected);
    }

    #[test]
    fn only_a_critical_xid_asks_for_a_reset() {
        let mut state = State::default();
        state.fail(0, Fault::Xid(31, None));
        assert_eq!(state.card(0).recovery_action, 0);
        state.fail(0, Fault::Xid(94, Some((7, 0))));
        assert_eq!(state.card(0).recovery_action, 0);
        state.fail(0, Fault::Xid(48, None));
        assert_eq!(state.card(0).recovery_action, RESET);
        let events: Vec<_> = state.events.iter().map(|event| (event.data, event.instance)).collect();
        assert_eq!(events, [(31, None), (94, Some((7, 0))), (48, None)]);
    }
}
