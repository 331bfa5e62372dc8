//! How cards are connected, from what NVML tells of PCIe and of each NVLink lane.

use gantry_model::{Link, LinkKind};

use super::host::Address;
use super::library::{Answer, Code, Handle, Nvml, optional};
use crate::profile::shared_pcie;

/// The most NVLink lanes of a card, `NVML_NVLINK_MAX_LINKS`.
const MAX_LANES: u32 = 18;

/// What is at the other end of a lane, `nvmlIntNvLinkDeviceType_t`.
const REMOTE_GPU: u32 = 0;
const REMOTE_SWITCH: u32 = 2;

/// A card's connections.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Wires {
    /// Lanes to NVSwitch, and through it to every card that has such lanes.
    pub(super) to_switch: u8,
    /// The card at the end of each lane that leads to one directly.
    pub(super) to_cards: Vec<Address>,
    /// GB/s of one lane, both directions together.
    pub(super) lane_gb_per_s: u32,
    /// GB/s of the PCIe link, both directions together.
    pub(super) pcie_gb_per_s: u32,
}

/// Reads a card's connections.
pub(super) fn wires(nvml: &Nvml, device: Handle, generation: u32) -> Answer<Wires> {
    let mut wires = Wires { pcie_gb_per_s: pcie(nvml, device)?, ..Wires::default() };
    for lane in 0..MAX_LANES {
        match nvml.nvlink_state(device, lane) {
            Ok(1) => {}
            Ok(_) | Err(Code::NOT_FOUND) => continue,
            Err(code) => {
                // No NVLink, or no further lane; anything else is a card with a problem.
                optional::<()>(Err(code))?;
                break;
            }
        }
        let kind = optional(nvml.nvlink_remote_kind(device, lane))?;
        if kind == Some(REMOTE_SWITCH) {
            wires.to_switch = wires.to_switch.saturating_add(1);
        } else if kind.is_none_or(|kind| kind == REMOTE_GPU)
            && let Some(address) = optional(nvml.nvlink_remote(device, lane))?
        {
            wires.to_cards.push(address);
        }
    }
    if wires.to_switch > 0 || !wires.to_cards.is_empty() {
        let speed = optional(
            nvml.field(device, nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON),
        )?;
        wires.lane_gb_per_s = lane(speed, generation);
    }
    Ok(wires)
}

/// GB/s of a lane in both directions as it is advertised. The driver tells MB/s of one direction with the signalling of the
/// generation, a few percent more.
fn lane(speed: Option<u64>, compute_major: u32) -> u32 {
    let both = speed.map(|speed| speed * 2 / 1_000).filter(|both| *both > 0);
    match both {
        None if compute_major >= 10 => 100,
        None => 50,
        Some(both) => {
            [200, 100, 50, 40, 28].into_iter().find(|known| u64::from(*known) <= both).unwrap_or(20)
        }
    }
}

/// GB/s of a PCIe link in both directions: 1 a lane for generation 3, twice that for each later one.
fn pcie(nvml: &Nvml, device: Handle) -> Answer<u32> {
    let generation =
        optional(nvml.pcie_generation(device))?.filter(|number| (1..=8).contains(number)).unwrap_or(3);
    let width = optional(nvml.pcie_width(device))?.filter(|number| (1..=32).contains(number)).unwrap_or(16);
    Ok(((width * 2) << generation) / 8)
}

/// The link over PCIe, by NVML's level of what two cards share.
pub(super) fn over_pcie(level: u32, a: &Wires, b: &Wires) -> Link {
    let kind = match level {
        // Two GPUs of one board share a switch.
        0..=10 => LinkKind::SingleSwitch,
        11..=20 => LinkKind::MultiSwitch,
        21..=30 => LinkKind::HostBridge,
        31..=40 => LinkKind::Node,
        _ => LinkKind::System,
    };
    Link { gb_per_s: shared_pcie(kind, a.pcie_gb_per_s.min(b.pcie_gb_per_s)), kind }
}

/// The link over NVLink, if there is one: through switches, or lane by lane.
pub(super) fn over_nvlink(a: &Wires, (b, b_address): (&Wires, Address)) -> Option<Link> {
    let direct = a.to_cards.iter().filter(|address| **address == b_address).count();
    let lanes = u8::try_from(direct).unwrap_or(u8::MAX).max(a.to_switch.min(b.to_switch));
    let gb_per_s = u32::from(lanes) * a.lane_gb_per_s.min(b.lane_gb_per_s);
    (lanes > 0).then_some(Link { gb_per_s, kind: LinkKind::NvLink(lanes) })
}

/// What is assumed between two cards of which one was never read: the farthest, as little as PCIe carries.
pub(super) fn unknown() -> Link {
    over_pcie(
        50,
        &Wires { pcie_gb_per_s: 32, ..Wires::default() },
        &Wires { pcie_gb_per_s: 32, ..Wires::default() },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_carry_what_is_advertised() {
        for (speed, major, expected) in [
            (Some(25_781), 8, 50),
            (Some(26_562), 9, 50),
            (Some(53_125), 10, 100),
            (Some(14_062), 8, 28),
            (Some(20_000), 6, 40),
            (Some(0), 9, 50),
            (None, 10, 100),
            (None, 8, 50),
        ] {
            assert_eq!(lane(speed, major), expected, "{speed:?}");
        }
    }

    #[test]
    fn lanes_to_switches_join_all_and_others_only_their_ends() {
        let switched = |lanes| Wires { to_switch: lanes, lane_gb_per_s: 50, ..Wires::default() };
        let link = over_nvlink(&switched(18), (&switched(17), (0, 1, 0))).unwrap();
        assert_eq!(link, Link { gb_per_s: 850, kind: LinkKind::NvLink(17) });
        assert_eq!(over_nvlink(&switched(18), (&Wires::default(), (0, 1, 0))), None);
        let bridged = Wires { to_cards: vec![(0, 1, 0); 4], lane_gb_per_s: 28, ..Wires::default() };
        let link = over_nvlink(&bridged, (&bridged, (0, 1, 0))).unwrap();
        assert_eq!(link, Link { gb_per_s: 112, kind: LinkKind::NvLink(4) });
        assert_eq!(over_nvlink(&bridged, (&bridged, (0, 2, 0))), None);
    }
}
