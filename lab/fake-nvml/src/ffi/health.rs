//! Memory errors, remapped rows, throttling.

#![expect(unsafe_code, reason = "exported symbols")]

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{nvmlRowRemapperHistogramValues_t, nvmlViolationTime_t};

use super::{Code, Device, Out, Result, api, fill};
use crate::Card;
use crate::state::now_us;

/// Errors by NVML's kind: 0 corrected, 1 uncorrected.
pub(super) fn errors(card: &Card, kind: c_uint) -> Result<c_ulonglong> {
    if card.ecc() != Some(true) {
        return Err(Code::NOT_SUPPORTED);
    }
    match kind {
        _ if card.state.garbage => Ok(u64::MAX),
        0 => Ok(card.state.ecc_corrected),
        1 => Ok(card.state.ecc_uncorrected),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Corrected, uncorrected, pending, failed; cards before Ampere retire pages instead, those for games neither.
pub(super) fn remapped(card: &Card) -> Result<[c_uint; 4]> {
    if card.ecc() != Some(true) || card.profile.compute_capability.0 < 8 {
        return Err(Code::NOT_SUPPORTED);
    }
    let (own, state) = (&card.device.remapped_rows, &card.state);
    let pending = state.remap_pending || own.pending == Some(true);
    let failed = state.remap_failed || own.failure_occurred == Some(true);
    let uncorrected = own.uncorrectable.unwrap_or(0) + u32::from(state.remap_pending);
    Ok([own.correctable.unwrap_or(0), uncorrected, u32::from(pending), u32::from(failed)])
}

fn retires_pages(card: &Card) -> Result {
    if card.ecc() == Some(true) && card.profile.compute_capability.0 < 8 {
        Ok(())
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

/// Why clocks are lowered; bit 0 says that nothing runs.
fn reasons(card: &Card) -> c_ulonglong {
    card.state.throttle | u64::from(card.busy() == 0 && card.state.processes.is_empty())
}

/// Every reason that a data-centre card can name.
const ALL_REASONS: c_ulonglong = 0x1ff;

api! {
    fn nvmlDeviceGetEccMode(device: Device, current: Out<c_uint>, pending: Out<c_uint>) |cx| {
        let on = u32::from(cx.gpu(device)?.ecc().ok_or(Code::NOT_SUPPORTED)?);
        current.put(on)?;
        pending.put(on)
    };
    fn nvmlDeviceGetTotalEccErrors(device: Device, kind: c_uint, _counter: c_uint, count: Out<c_ulonglong>) |cx| {
        count.put(errors(cx.gpu(device)?, kind)?)
    };
    fn nvmlDeviceGetMemoryErrorCounter(device: Device, kind: c_uint, _counter: c_uint, location: c_uint, count: Out<c_ulonglong>) |cx| {
        // All errors are of the device's memory, which is location 2.
        let all = errors(cx.gpu(device)?, kind)?;
        count.put(if location == 2 { all } else { 0 })
    };
    fn nvmlDeviceGetRemappedRows(device: Device, corrected: Out<c_uint>, uncorrected: Out<c_uint>, pending: Out<c_uint>, failed: Out<c_uint>) |cx| {
        let rows = remapped(cx.gpu(device)?)?;
        corrected.put(rows[0])?;
        uncorrected.put(rows[1])?;
        pending.put(rows[2])?;
        failed.put(rows[3])
    };
    fn nvmlDeviceGetRowRemapperHistogram(device: Device, values: Out<nvmlRowRemapperHistogramValues_t>) |cx| {
        let used = remapped(cx.gpu(device)?)?[1];
        values.put(nvmlRowRemapperHistogramValues_t {
            max: 640 - used.min(640),
            high: used.min(640),
            partial: 0,
            low: 0,
            none: 0,
        })
    };
    fn nvmlDeviceGetRetiredPages(device: Device, _cause: c_uint, count: Out<c_uint>, addresses: Out<c_ulonglong>) |cx| {
        retires_pages(cx.gpu(device)?)?;
        fill(count, addresses, &[])
    };
    fn nvmlDeviceGetRetiredPages_v2(device: Device, _cause: c_uint, count: Out<c_uint>, addresses: Out<c_ulonglong>, _times: Out<c_ulonglong>) |cx| {
        retires_pages(cx.gpu(device)?)?;
        fill(count, addresses, &[])
    };
    fn nvmlDeviceGetRetiredPagesPendingStatus(device: Device, pending: Out<c_uint>) |cx| {
        let card = cx.gpu(device)?;
        retires_pages(card)?;
        pending.put(u32::from(card.state.remap_pending))
    };
    fn nvmlDeviceGetCurrentClocksThrottleReasons(device: Device, out: Out<c_ulonglong>) |cx| out.put(reasons(cx.gpu(device)?));
    fn nvmlDeviceGetCurrentClocksEventReasons(device: Device, out: Out<c_ulonglong>) |cx| out.put(reasons(cx.gpu(device)?));
    fn nvmlDeviceGetSupportedClocksThrottleReasons(device: Device, out: Out<c_ulonglong>) |cx| {
        cx.gpu(device).and_then(|_| out.put(ALL_REASONS))
    };
    fn nvmlDeviceGetSupportedClocksEventReasons(device: Device, out: Out<c_ulonglong>) |cx| {
        cx.gpu(device).and_then(|_| out.put(ALL_REASONS))
    };
    fn nvmlDeviceGetViolationStatus(device: Device, policy: c_uint, out: Out<nvmlViolationTime_t>) |cx| {
        // Power is policy 0, heat policy 1: a second of violation while the reason lasts.
        let card = cx.gpu(device)?;
        let violated = match policy {
            0 => card.state.throttle & 0x84 != 0,
            1 => card.state.throttle & 0x60 != 0,
            2..=5 | 10 | 11 => false,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        let time = nvmlViolationTime_t { referenceTime: now_us(), violationTime: u64::from(violated) * 1_000_000_000 };
        out.put(time)
    };
}
