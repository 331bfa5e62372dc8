//! What a card is and what it reads.

#![expect(unsafe_code, reason = "exported symbols")]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlPciInfoExt_v1_t,
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t, nvmlTemperature_v1_t,
    nvmlUtilization_t,
};

use super::abi::array;
use super::context::Meaning;
use super::{Code, Context, Device, Out, Result, Text, api, fill};
use crate::state::now_us;
use crate::{Card, Loss, Process};

/// What a card reads whose readings make no sense.
const GARBAGE: u32 = u32::MAX;

/// A reading, or nonsense if the card reads nonsense.
fn reading(card: &Card, value: u32) -> u32 {
    if card.state.garbage { GARBAGE } else { value }
}

/// A handle of the visible card at a position.
fn handle_at(cx: &Context, position: c_uint, out: Out<Device>) -> Result {
    let index = *cx.visible()?.get(position as usize).ok_or(Code::INVALID_ARGUMENT)?;
    handle(cx, index, out)
}

fn handle(cx: &Context, index: u32, out: Out<Device>) -> Result {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if cx.loss(index) == Some(Loss::FallenOffBus) {
        return Err(Code::GPU_IS_LOST);
    }
    out.put(Device::new(index, Meaning::Gpu))
}

fn handle_by_uuid(cx: &Context, uuid: Text, out: Out<Device>) -> Result {
    let uuid = uuid.get()?;
    for card in cx.visible()?.into_iter().filter_map(|index| cx.node.cards.get(index as usize)) {
        if card.uuid() == uuid {
            return handle(cx, card.index, out);
        }
        for (gpu, compute) in super::mig::devices(cx, card) {
            if card.mig_uuid(gpu, compute) == uuid {
                return out.put(Device::new(card.index, Meaning::Mig(gpu, compute)));
            }
        }
    }
    Err(Code::NOT_FOUND)
}

fn handle_by_pci(cx: &Context, address: Text, out: Out<Device>) -> Result {
    let wanted = crate::node::pci_address(address.get()?).ok_or(Code::INVALID_ARGUMENT)?;
    let mut cards = cx.visible()?.into_iter();
    let index =
        cards.find(|index| cx.node.cards.get(*index as usize).is_some_and(|card| card.pci() == wanted));
    handle(cx, index.ok_or(Code::NOT_FOUND)?, out)
}

fn pci(card: &Card) -> nvmlPciInfo_t {
    let (domain, bus, device) = card.pci();
    nvmlPciInfo_t {
        busIdLegacy: array(&format!("{:04X}:{bus:02X}:{device:02X}.0", domain & 0xffff)),
        domain,
        bus,
        device,
        pciDeviceId: card
            .device
            .pci
            .device_id
            .unwrap_or(u32::from(card.profile.pci_device_id) << 16 | 0x10de),
        pciSubSystemId: card.device.pci.subsystem_id.unwrap_or(0x10de_10de),
        busId: array(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    }
}

/// NVML's number of an architecture, by compute capability.
fn architecture(capability: (u32, u32)) -> c_uint {
    match capability {
        (7, 0 | 2) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10.., _) => 10,
        _ => 4,
    }
}

/// The processes on a GPU, or those on a GPU instance of it.
fn processes(card: &Card, instance: Option<(u32, u32)>) -> impl Iterator<Item = &Process> {
    card.state
        .processes
        .iter()
        .filter(move |process| instance.is_none_or(|(gpu, _)| process.gpu_instance == Some(gpu)))
}

/// NVML's mark for "does not apply".
const NONE: u32 = u32::MAX;

fn running(cx: &Context, device: Device, count: Out<c_uint>, list: Out<nvmlProcessInfo_v2_t>) -> Result {
    let (card, instance) = cx.device(device)?;
    let rows: Vec<_> = processes(card, instance)
        .map(|process| nvmlProcessInfo_v2_t {
            pid: process.pid,
            usedGpuMemory: process.memory_mib << 20,
            gpuInstanceId: process.gpu_instance.unwrap_or(NONE),
            computeInstanceId: process.gpu_instance.map_or(NONE, |_| 0),
        })
        .collect();
    fill(count, list, &rows)
}

/// Nothing of this kind runs.
fn none<T: Copy>(cx: &Context, device: Device, count: Out<c_uint>, list: Out<T>) -> Result {
    cx.device(device)?;
    fill(count, list, &[])
}

/// Total, reserved and used memory of a card or of a MIG device, in bytes.
fn memory(cx: &Context, device: Device) -> Result<(u64, u64, u64)> {
    let (card, instance) = cx.device(device)?;
    if card.state.garbage {
        // More in use than there is.
        return Ok((1 << 20, 0, u64::MAX));
    }
    let Some((gpu, _)) = instance else { return Ok(card.memory()) };
    let row = super::mig_info::row_of(card, gpu)?;
    let used = processes(card, instance).map(|process| process.memory_mib << 20).fold(0, u64::saturating_add);
    Ok((row.memory_mib << 20, 0, used.min(row.memory_mib << 20)))
}

fn clock(card: &Card, kind: c_uint, most: bool) -> Result<c_uint> {
    let power = card.profile.power;
    let readings = card.readings();
    let (now, highest) = match kind {
        // Graphics and multiprocessors run at one clock.
        0 | 1 => (readings.sm_clock_mhz, power.sm_mhz.1),
        2 => (readings.memory_clock_mhz, power.memory_mhz.1),
        3 => return Err(Code::NOT_SUPPORTED),
        _ => return Err(Code::INVALID_ARGUMENT),
    };
    Ok(if most { highest } else { reading(card, now) })
}

/// The CPUs near a card, as bits: those of its NUMA node, of sixteen each.
fn affinity(card: &Card, words: c_uint, set: Out<c_ulong>) -> Result {
    let node = card.device.numa_node.and_then(|node| usize::try_from(node).ok()).unwrap_or(0);
    for word in 0..words as usize {
        let bits = (0..64).filter(|bit| (word * 64 + bit) / 16 == node);
        set.put_at(word, bits.fold(0, |mask: c_ulong, bit| mask | 1 << bit))?;
    }
    Ok(())
}

fn temperature(card: &Card, sensor: c_uint) -> Result<c_uint> {
    if sensor == 0 {
        Ok(reading(card, card.readings().temperature_celsius))
    } else {
        Err(Code::INVALID_ARGUMENT)
    }
}

fn generation(card: &Card, now: bool) -> c_uint {
    let idle = card.readings().performance_state >= 8;
    if now && idle { 1 } else { card.profile.pcie_generation() }
}

fn fan(card: &Card) -> Result<c_uint> {
    card.readings().fan_percent.map(|percent| reading(card, percent)).ok_or(Code::NOT_SUPPORTED)
}

/// What a card in MIG mode does not tell as a whole.
fn whole(cx: &Context, device: Device) -> Result<&Card> {
    let card = cx.gpu(device)?;
    if card.state.mig { Err(Code::NOT_SUPPORTED) } else { Ok(card) }
}

fn limit(card: &Card, own: Option<u32>) -> c_uint {
    own.unwrap_or(card.profile.power.limit_watts * 1_000)
}

api! {
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) |cx| count.put(cx.visible()?.len().try_into().unwrap_or(0));
    fn nvmlDeviceGetCount(count: Out<c_uint>) |cx| count.put(cx.visible()?.len().try_into().unwrap_or(0));
    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Device>) |cx| handle_at(cx, index, device);
    fn nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<Device>) |cx| handle_at(cx, index, device);
    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Device>) |cx| handle_by_uuid(cx, uuid, device);
    fn nvmlDeviceGetHandleByPciBusId_v2(address: Text, device: Out<Device>) |cx| handle_by_pci(cx, address, device);
    fn nvmlDeviceGetHandleByPciBusId(address: Text, device: Out<Device>) |cx| handle_by_pci(cx, address, device);
    fn nvmlDeviceGetName(device: Device, name: Out<c_char>, length: c_uint) |cx| {
        let (card, instance) = cx.device(device)?;
        match instance {
            _ if card.state.garbage => name.put_bytes(length, b"\xff\xfe\x01"),
            None => name.put_text(length, card.name()),
            Some((gpu, compute)) => {
                let profile = super::mig_info::device_name(card, gpu, compute)?;
                name.put_text(length, &format!("{} MIG {profile}", card.name()))
            }
        }
    };
    fn nvmlDeviceGetUUID(device: Device, uuid: Out<c_char>, length: c_uint) |cx| {
        match cx.device(device)? {
            (card, None) => uuid.put_text(length, card.uuid()),
            (card, Some((gpu, compute))) => uuid.put_text(length, &card.mig_uuid(gpu, compute)),
        }
    };
    fn nvmlDeviceGetIndex(device: Device, index: Out<c_uint>) |cx| {
        let (card, instance) = cx.device(device)?;
        let position = match instance {
            None => cx.visible()?.iter().position(|visible| *visible == card.index),
            Some(ids) => super::mig::devices(cx, card).iter().position(|other| *other == ids),
        };
        index.put(position.and_then(|position| position.try_into().ok()).ok_or(Code::NOT_FOUND)?)
    };
    fn nvmlDeviceGetMinorNumber(device: Device, minor: Out<c_uint>) |cx| minor.put(cx.gpu(device)?.minor());
    fn nvmlDeviceGetBrand(device: Device, brand: Out<c_uint>) |cx| {
        let product = cx.gpu(device)?.profile.product;
        // Tesla, GeForce RTX, NVIDIA.
        brand.put(if product.starts_with("Tesla") { 2 } else if product.contains("GeForce") { 10 } else { 14 })
    };
    fn nvmlDeviceGetSerial(device: Device, serial: Out<c_char>, length: c_uint) |cx| {
        let card = cx.gpu(device)?;
        serial.put_text(length, card.device.serial.as_deref().ok_or(Code::NOT_SUPPORTED)?)
    };
    fn nvmlDeviceGetBoardPartNumber(device: Device, number: Out<c_char>, length: c_uint) |cx| {
        let card = cx.gpu(device)?;
        number.put_text(length, card.device.board_part_number.as_deref().ok_or(Code::NOT_SUPPORTED)?)
    };
    fn nvmlDeviceGetVbiosVersion(device: Device, version: Out<c_char>, length: c_uint) |cx| {
        let card = cx.gpu(device)?;
        version.put_text(length, card.device.vbios_version.as_deref().unwrap_or(card.profile.vbios))
    };
    fn nvmlDeviceGetArchitecture(device: Device, number: Out<c_uint>) |cx| {
        number.put(architecture(cx.gpu(device)?.profile.compute_capability))
    };
    fn nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<c_int>, minor: Out<c_int>) |cx| {
        let (card, _) = cx.device(device)?;
        let number = |part: u32| c_int::try_from(part).unwrap_or(c_int::MAX);
        major.put(number(card.profile.compute_capability.0))?;
        minor.put(number(card.profile.compute_capability.1))
    };
    fn nvmlDeviceGetPciInfo_v3(device: Device, info: Out<nvmlPciInfo_t>) |cx| info.put(pci(cx.device(device)?.0));
    fn nvmlDeviceGetPciInfo_v2(device: Device, info: Out<nvmlPciInfo_t>) |cx| info.put(pci(cx.device(device)?.0));
    fn nvmlDeviceGetPciInfoExt(device: Device, info: Out<nvmlPciInfoExt_v1_t>) |cx| {
        info.expect_version(1)?;
        let pci = pci(cx.gpu(device)?);
        info.put(nvmlPciInfoExt_v1_t {
            version: info.version()?,
            domain: pci.domain,
            bus: pci.bus,
            device: pci.device,
            pciDeviceId: pci.pciDeviceId,
            pciSubSystemId: pci.pciSubSystemId,
            // A 3D controller.
            baseClass: 3,
            subClass: 2,
            busId: pci.busId,
        })
    };
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: Device, out: Out<c_uint>) |cx| out.put(generation(cx.gpu(device)?, false));
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration(device: Device, out: Out<c_uint>) |cx| {
        out.put(generation(cx.gpu(device)?, false))
    };
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Device, out: Out<c_uint>) |cx| out.put(generation(cx.gpu(device)?, true));
    fn nvmlDeviceGetMaxPcieLinkWidth(device: Device, out: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| out.put(16));
    fn nvmlDeviceGetCurrPcieLinkWidth(device: Device, out: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| out.put(16));
    fn nvmlDeviceGetPcieReplayCounter(device: Device, out: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| out.put(0));
    fn nvmlDeviceGetPcieThroughput(device: Device, _counter: c_uint, out: Out<c_uint>) |cx| {
        // A few percent of the link while something runs, in KB/s.
        let card = cx.gpu(device)?;
        out.put(reading(card, card.profile.pcie_gb_per_s * 1_000 * card.busy() / 4))
    };
    fn nvmlDeviceGetMemoryInfo(device: Device, info: Out<nvmlMemory_t>) |cx| {
        let (total, reserved, used) = memory(cx, device)?;
        // The first form counts what the driver keeps as used.
        let used = used.saturating_add(reserved);
        info.put(nvmlMemory_t { total, free: total.saturating_sub(used), used })
    };
    fn nvmlDeviceGetMemoryInfo_v2(device: Device, info: Out<nvmlMemory_v2_t>) |cx| {
        info.expect_version(2)?;
        let (total, reserved, used) = memory(cx, device)?;
        let free = total.saturating_sub(used).saturating_sub(reserved);
        info.put(nvmlMemory_v2_t { version: info.version()?, total, reserved, free, used })
    };
    fn nvmlDeviceGetBAR1MemoryInfo(device: Device, info: Out<nvmlBAR1Memory_t>) |cx| {
        // As large as the memory, rounded up: every model can have its BAR resized.
        let total = cx.device(device)?.0.memory().0.next_power_of_two();
        info.put(nvmlBAR1Memory_t { bar1Total: total, bar1Free: total, bar1Used: 0 })
    };
    fn nvmlDeviceGetUtilizationRates(device: Device, rates: Out<nvmlUtilization_t>) |cx| {
        let card = whole(cx, device)?;
        let memory = card.device.utilization.memory.unwrap_or(card.busy() / 2);
        rates.put(nvmlUtilization_t { gpu: reading(card, card.busy()), memory: reading(card, memory) })
    };
    fn nvmlDeviceGetEncoderUtilization(device: Device, share: Out<c_uint>, period: Out<c_uint>) |cx| {
        let card = whole(cx, device)?;
        share.put(card.device.utilization.encoder.unwrap_or(0))?;
        period.put(167_000)
    };
    fn nvmlDeviceGetDecoderUtilization(device: Device, share: Out<c_uint>, period: Out<c_uint>) |cx| {
        let card = whole(cx, device)?;
        share.put(card.device.utilization.decoder.unwrap_or(0))?;
        period.put(167_000)
    };
    fn nvmlDeviceGetTemperature(device: Device, sensor: c_uint, out: Out<c_uint>) |cx| {
        out.put(temperature(cx.gpu(device)?, sensor)?)
    };
    fn nvmlDeviceGetTemperatureV(device: Device, out: Out<nvmlTemperature_v1_t>) |cx| {
        out.expect_version(1)?;
        let mut value = out.get()?;
        value.temperature = temperature(cx.gpu(device)?, value.sensorType)?.cast_signed();
        out.put(value)
    };
    fn nvmlDeviceGetTemperatureThreshold(device: Device, kind: c_uint, out: Out<c_uint>) |cx| {
        let thermal = &cx.gpu(device)?.device.thermal;
        out.put(match kind {
            0 => thermal.shutdown_threshold_c.unwrap_or(92),
            1 => thermal.slowdown_threshold_c.unwrap_or(87),
            _ => return Err(Code::NOT_SUPPORTED),
        })
    };
    fn nvmlDeviceGetPowerUsage(device: Device, milliwatts: Out<c_uint>) |cx| {
        let card = cx.gpu(device)?;
        milliwatts.put(reading(card, card.readings().power_milliwatts))
    };
    fn nvmlDeviceGetTotalEnergyConsumption(device: Device, millijoules: Out<c_ulonglong>) |cx| {
        // As if the card had drawn since the first of January 2025 what it draws now.
        let card = cx.gpu(device)?;
        let seconds = now_us() / 1_000_000 - 1_735_689_600;
        millijoules.put(u64::from(card.readings().power_milliwatts).saturating_mul(seconds))
    };
    fn nvmlDeviceGetPowerManagementMode(device: Device, mode: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| mode.put(1));
    fn nvmlDeviceGetPowerManagementLimit(device: Device, limit: Out<c_uint>) |cx| limit.put(cx.gpu(device)?.power_limit());
    fn nvmlDeviceGetEnforcedPowerLimit(device: Device, limit: Out<c_uint>) |cx| limit.put(cx.gpu(device)?.power_limit());
    fn nvmlDeviceGetPowerManagementDefaultLimit(device: Device, out: Out<c_uint>) |cx| {
        let card = cx.gpu(device)?;
        out.put(limit(card, card.device.power.default_limit_mw))
    };
    fn nvmlDeviceGetPowerManagementLimitConstraints(device: Device, least: Out<c_uint>, most: Out<c_uint>) |cx| {
        let card = cx.gpu(device)?;
        let own = &card.device.power;
        least.put(own.min_limit_mw.unwrap_or(card.profile.power.limit_watts * 250))?;
        most.put(limit(card, own.max_limit_mw))
    };
    fn nvmlDeviceGetPerformanceState(device: Device, state: Out<c_uint>) |cx| {
        state.put(u32::from(cx.gpu(device)?.readings().performance_state))
    };
    fn nvmlDeviceGetPowerState(device: Device, state: Out<c_uint>) |cx| {
        state.put(u32::from(cx.gpu(device)?.readings().performance_state))
    };
    fn nvmlDeviceGetClockInfo(device: Device, kind: c_uint, mhz: Out<c_uint>) |cx| mhz.put(clock(cx.gpu(device)?, kind, false)?);
    fn nvmlDeviceGetClock(device: Device, kind: c_uint, which: c_uint, mhz: Out<c_uint>) |cx| {
        let card = cx.gpu(device)?;
        match which {
            0 => mhz.put(clock(card, kind, false)?),
            3 => mhz.put(clock(card, kind, true)?),
            _ => Err(Code::NOT_SUPPORTED),
        }
    };
    fn nvmlDeviceGetMaxClockInfo(device: Device, kind: c_uint, mhz: Out<c_uint>) |cx| mhz.put(clock(cx.gpu(device)?, kind, true)?);
    fn nvmlDeviceGetApplicationsClock(device: Device, kind: c_uint, mhz: Out<c_uint>) |cx| {
        mhz.put(clock(cx.gpu(device)?, kind, true)?)
    };
    fn nvmlDeviceGetFanSpeed(device: Device, percent: Out<c_uint>) |cx| percent.put(fan(cx.gpu(device)?)?);
    fn nvmlDeviceGetFanSpeed_v2(device: Device, number: c_uint, percent: Out<c_uint>) |cx| {
        let speed = fan(cx.gpu(device)?)?;
        if number == 0 { percent.put(speed) } else { Err(Code::INVALID_ARGUMENT) }
    };
    fn nvmlDeviceGetNumFans(device: Device, count: Out<c_uint>) |cx| {
        count.put(u32::from(cx.gpu(device)?.profile.power.fan))
    };
    fn nvmlDeviceGetComputeMode(device: Device, mode: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| mode.put(0));
    fn nvmlDeviceGetPersistenceMode(device: Device, mode: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| mode.put(1));
    fn nvmlDeviceGetDisplayMode(device: Device, mode: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| mode.put(0));
    fn nvmlDeviceGetDisplayActive(device: Device, mode: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| mode.put(0));
    fn nvmlDeviceGetVirtualizationMode(device: Device, mode: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| mode.put(0));
    fn nvmlDeviceGetAccountingMode(device: Device, mode: Out<c_uint>) |cx| cx.gpu(device).and_then(|_| mode.put(0));
    fn nvmlDeviceGetNumaNodeId(device: Device, node: Out<c_uint>) |cx| {
        // Of the GPU's own memory, which only coherent systems such as Grace Hopper show as a node.
        cx.gpu(device)?;
        let _ = node;
        Err(Code::NOT_SUPPORTED)
    };
    fn nvmlDeviceGetCpuAffinity(device: Device, words: c_uint, set: Out<c_ulong>) |cx| {
        affinity(cx.gpu(device)?, words, set)
    };
    fn nvmlDeviceGetCpuAffinityWithinScope(device: Device, words: c_uint, set: Out<c_ulong>, _scope: c_uint) |cx| {
        affinity(cx.gpu(device)?, words, set)
    };
    fn nvmlDeviceGetMemoryAffinity(device: Device, words: c_uint, set: Out<c_ulong>, _scope: c_uint) |cx| {
        let node = cx.gpu(device)?.device.numa_node.and_then(|node| usize::try_from(node).ok());
        for word in 0..words as usize {
            let bit = node.filter(|node| node / 64 == word).map_or(0, |node| 1 << (node % 64));
            set.put_at(word, bit)?;
        }
        Ok(())
    };
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: Out<c_uint>, list: Out<nvmlProcessInfo_v2_t>) |cx| {
        running(cx, device, count, list)
    };
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: Out<c_uint>, list: Out<nvmlProcessInfo_v2_t>) |cx| {
        running(cx, device, count, list)
    };
    fn nvmlDeviceGetComputeRunningProcesses(device: Device, count: Out<c_uint>, list: Out<nvmlProcessInfo_v1_t>) |cx| {
        let (card, instance) = cx.device(device)?;
        let rows: Vec<_> = processes(card, instance)
            .map(|process| nvmlProcessInfo_v1_t { pid: process.pid, usedGpuMemory: process.memory_mib << 20 })
            .collect();
        fill(count, list, &rows)
    };
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: Out<c_uint>, list: Out<nvmlProcessInfo_v2_t>) |cx| {
        none(cx, device, count, list)
    };
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: Out<c_uint>, list: Out<nvmlProcessInfo_v2_t>) |cx| {
        none(cx, device, count, list)
    };
    fn nvmlDeviceGetProcessUtilization(device: Device, list: Out<nvmlProcessUtilizationSample_t>, count: Out<c_uint>, since: c_ulonglong) |cx| {
        let card = whole(cx, device)?;
        let now = now_us();
        let busy = card.state.processes.iter().filter(|process| process.utilization > 0 && now > since);
        let rows: Vec<_> = busy
            .map(|process| nvmlProcessUtilizationSample_t {
                pid: process.pid,
                timeStamp: now,
                smUtil: process.utilization,
                memUtil: process.utilization / 2,
                encUtil: 0,
                decUtil: 0,
            })
            .collect();
        fill(count, list, &rows)
    };
}
