//! How cards are connected: PCIe, NVLink, NVSwitch, fabric.

#![expect(unsafe_code, reason = "exported symbols")]

use std::ffi::{c_uint, c_ulonglong};

use gantry_gpu::Fabric;
use gantry_model::LinkKind;
use nvml_wrapper_sys::bindings::{
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlGpuFabricInfo_v3_t, nvmlPciInfo_t,
};

use super::abi::{array, version};
use super::context::Meaning;
use super::{Code, Context, Device, Out, Result, api, fill};
use crate::Card;

/// NVML's level of the nearest thing that two cards share on PCIe.
fn level(cx: &Context, a: &Card, b: &Card) -> c_uint {
    if a.index == b.index {
        return 0;
    }
    let link = a.profile.pcie_link(a.index as usize, b.index as usize, cx.node.cards.len());
    match link.kind {
        LinkKind::SingleSwitch => 10,
        LinkKind::MultiSwitch => 20,
        LinkKind::HostBridge => 30,
        LinkKind::Node => 40,
        LinkKind::System | LinkKind::NvLink(_) => 50,
    }
}

/// The number of NVLink lanes of a card.
pub(super) fn lanes(card: &Card) -> Result<c_uint> {
    match card.profile.fabric {
        Fabric::Pcie => Err(Code::NOT_SUPPORTED),
        Fabric::NvSwitch { lanes, .. } | Fabric::Bridge { lanes, .. } => Ok(u32::from(lanes)),
    }
}

/// Speed of one lane in one direction in MB/s, as the driver gives it: with the signalling of the generation, which is a few
/// percent above the round figure.
pub(super) fn speed(card: &Card) -> Result<c_uint> {
    let (Fabric::NvSwitch { lanes, gb_per_s } | Fabric::Bridge { lanes, gb_per_s }) = card.profile.fabric
    else {
        return Err(Code::NOT_SUPPORTED);
    };
    let both = gb_per_s / u32::from(lanes).max(1);
    Ok(match (both, card.profile.compute_capability.0) {
        (28, _) => 14_062,
        (_, ..=8) => both * 500 + both * 500 / 32,
        _ => both * 500 + both * 500 / 16,
    })
}

/// What is at the other end of a lane.
enum Remote<'a> {
    Nothing,
    Card(&'a Card),
    /// A switch, by number.
    Switch(u32),
}

/// Switches of a machine: every card has a part of its lanes to each.
const SWITCHES: u32 = 6;

fn remote<'a>(cx: &'a Context, card: &Card, lane: c_uint) -> Result<Remote<'a>> {
    if lane >= lanes(card)? {
        return Err(Code::INVALID_ARGUMENT);
    }
    Ok(match card.profile.fabric {
        Fabric::NvSwitch { .. } => Remote::Switch(lane % SWITCHES),
        _ => cx.node.cards.get((card.index ^ 1) as usize).map_or(Remote::Nothing, Remote::Card),
    })
}

fn remote_pci(cx: &Context, device: Device, lane: c_uint, out: Out<nvmlPciInfo_t>) -> Result {
    let (domain, bus, slot, id) = match remote(cx, cx.gpu(device)?, lane)? {
        Remote::Nothing => return Err(Code::NOT_FOUND),
        Remote::Card(card) => {
            let (domain, bus, slot) = card.pci();
            (domain, bus, slot, u32::from(card.profile.pci_device_id) << 16 | 0x10de)
        }
        Remote::Switch(number) => (0, number + 1, 0, 0x1af1_10de),
    };
    out.put(nvmlPciInfo_t {
        busIdLegacy: array(&format!("{:04X}:{bus:02X}:{slot:02X}.0", domain & 0xffff)),
        domain,
        bus,
        device: slot,
        pciDeviceId: id,
        pciSubSystemId: 0,
        busId: array(&format!("{domain:08X}:{bus:02X}:{slot:02X}.0")),
    })
}

/// Cards of this generation register with a fabric manager.
fn has_fabric(card: &Card) -> Result {
    let switched = matches!(card.profile.fabric, Fabric::NvSwitch { .. });
    if switched && card.profile.compute_capability.0 >= 9 { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// Registered.
const COMPLETED: u8 = 3;
/// Full bandwidth, no route being recovered, none unhealthy, no access timeout: the value "false", 2, at bits 0, 2, 4 and 6.
const HEALTHY_MASK: u32 = 2 | 2 << 2 | 2 << 4 | 2 << 6;

api! {
    fn nvmlDeviceGetTopologyCommonAncestor(a: Device, b: Device, out: Out<c_uint>) |cx| {
        out.put(level(cx, cx.gpu(a)?, cx.gpu(b)?))
    };
    fn nvmlDeviceGetTopologyNearestGpus(device: Device, wanted: c_uint, count: Out<c_uint>, list: Out<Device>) |cx| {
        let card = cx.gpu(device)?;
        let visible = cx.visible()?;
        let others = visible.iter().filter_map(|index| cx.node.cards.get(*index as usize));
        let near = others.filter(|other| other.index != card.index && level(cx, card, other) <= wanted);
        let handles: Vec<_> = near.map(|other| Device::new(other.index, Meaning::Gpu)).collect();
        fill(count, list, &handles)
    };
    fn nvmlDeviceGetP2PStatus(a: Device, b: Device, kind: c_uint, status: Out<c_uint>) |cx| {
        let (a, b) = (cx.gpu(a)?, cx.gpu(b)?);
        let link = a.profile.link(a.index as usize, b.index as usize, cx.node.cards.len());
        let works = match kind {
            // NVLink; otherwise reads, writes, atomics and PCIe, which cards for games do not do.
            2 => matches!(link.kind, LinkKind::NvLink(_)),
            _ => a.ecc().is_some(),
        };
        status.put(if works { 0 } else { 5 })
    };
    fn nvmlDeviceGetNvLinkState(device: Device, lane: c_uint, active: Out<c_uint>) |cx| {
        active.put(u32::from(!matches!(remote(cx, cx.gpu(device)?, lane)?, Remote::Nothing)))
    };
    fn nvmlDeviceGetNvLinkVersion(device: Device, lane: c_uint, out: Out<c_uint>) |cx| {
        let card = cx.gpu(device)?;
        remote(cx, card, lane)?;
        out.put(card.profile.compute_capability.0 - 5)
    };
    fn nvmlDeviceGetNvLinkCapability(device: Device, lane: c_uint, _capability: c_uint, out: Out<c_uint>) |cx| {
        remote(cx, cx.gpu(device)?, lane)?;
        out.put(1)
    };
    fn nvmlDeviceGetNvLinkErrorCounter(device: Device, lane: c_uint, _counter: c_uint, out: Out<c_ulonglong>) |cx| {
        remote(cx, cx.gpu(device)?, lane)?;
        out.put(0)
    };
    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(device: Device, lane: c_uint, out: Out<nvmlPciInfo_t>) |cx| {
        remote_pci(cx, device, lane, out)
    };
    fn nvmlDeviceGetNvLinkRemotePciInfo(device: Device, lane: c_uint, out: Out<nvmlPciInfo_t>) |cx| {
        remote_pci(cx, device, lane, out)
    };
    fn nvmlDeviceGetNvLinkRemoteDeviceType(device: Device, lane: c_uint, out: Out<c_uint>) |cx| {
        out.put(match remote(cx, cx.gpu(device)?, lane)? {
            Remote::Card(_) => 0,
            Remote::Switch(_) => 2,
            Remote::Nothing => 255,
        })
    };
    fn nvmlDeviceGetGpuFabricInfo(device: Device, info: Out<nvmlGpuFabricInfo_t>) |cx| {
        has_fabric(cx.gpu(device)?)?;
        info.put(nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: COMPLETED })
    };
    fn nvmlDeviceGetGpuFabricInfoV(device: Device, info: Out<nvmlGpuFabricInfo_v2_t>) |cx| {
        has_fabric(cx.gpu(device)?)?;
        if info.version()? == version::<nvmlGpuFabricInfo_v3_t>(3) {
            return info.cast().put(nvmlGpuFabricInfo_v3_t {
                version: info.version()?,
                clusterUuid: [0; 16],
                status: 0,
                cliqueId: 0,
                state: COMPLETED,
                healthMask: HEALTHY_MASK,
                healthSummary: 1,
            });
        }
        info.expect_version(2)?;
        info.put(nvmlGpuFabricInfo_v2_t {
            version: info.version()?,
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: COMPLETED,
            healthMask: HEALTHY_MASK,
        })
    };
}
