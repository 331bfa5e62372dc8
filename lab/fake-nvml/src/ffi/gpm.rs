//! GPM: what the multiprocessors did between two samples, on Hopper and later.

#![expect(unsafe_code, reason = "exported symbols")]

use std::ffi::{c_uint, c_void};

use nvml_wrapper_sys::bindings::nvmlGpmSupport_t;

use super::context::library;
use super::{Code, Context, Device, Out, Result, api};
use crate::Card;

/// The activity at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    busy: u32,
    pcie_gb_per_s: u32,
}

/// The beginning of `nvmlGpmMetricsGet_t`. How many metrics follow depends on the header that the caller was compiled with.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Request {
    version: c_uint,
    count: c_uint,
    samples: [usize; 2],
}

/// `nvmlGpmMetric_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Metric {
    id: c_uint,
    code: c_uint,
    value: f64,
    names: [*const c_void; 3],
}

fn sample(card: &Card) -> Result<Sample> {
    if card.profile.compute_capability.0 < 9 {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(Sample { busy: card.busy(), pcie_gb_per_s: card.profile.pcie_gb_per_s })
}

fn store(handle: Device, sample: Sample) -> Result {
    let mut library = library();
    let place = library.samples.get_mut(&handle.0).ok_or(Code::INVALID_ARGUMENT)?;
    *place = Some(sample);
    Ok(())
}

/// A metric, as a fixed part of the activity: percent, or MiB/s for links.
fn metric(sample: Sample, id: c_uint) -> Result<f64> {
    let busy = f64::from(sample.busy);
    Ok(match id {
        // Graphics engine, multiprocessors, their occupancy.
        1 => busy,
        2 => busy * 0.9,
        3 => busy * 0.5,
        // Integers; tensor cores: any, half precision.
        4 => busy * 0.2,
        5 | 7 => busy * 0.4,
        6 | 9 => 0.0,
        // Memory bandwidth; double, single and half precision.
        10 => busy * 0.5,
        11 => 0.0,
        12 => busy * 0.3,
        13 => busy * 0.1,
        // PCIe, sent and received.
        20 | 21 => busy / 100.0 * f64::from(sample.pcie_gb_per_s) * 1_000.0 / 8.0,
        // Video decoders, JPEG, optical flow; NVLink.
        30..=37 | 40..=47 | 50 => 0.0,
        60..=63 => busy * 100.0,
        _ => return Err(Code::NOT_SUPPORTED),
    })
}

fn metrics(_cx: &Context, request: Out<Request>) -> Result {
    let head = request.get()?;
    if head.version != 1 {
        return Err(Code::INVALID_ARGUMENT);
    }
    let known =
        |handle: usize| library().samples.get(&handle).copied().flatten().ok_or(Code::INVALID_ARGUMENT);
    let (first, second) = (known(head.samples[0])?, known(head.samples[1])?);
    let between = Sample { busy: first.busy.midpoint(second.busy), ..second };
    let list: Out<Metric> = request.after();
    for index in 0..head.count as usize {
        let mut row = list.get_at(index)?;
        (row.code, row.value) = match metric(between, row.id) {
            Ok(value) => (0, value),
            Err(code) => (code.0, 0.0),
        };
        row.names = [std::ptr::null(); 3];
        list.put_at(index, row)?;
    }
    Ok(())
}

api! {
    fn nvmlGpmQueryDeviceSupport(device: Device, support: Out<nvmlGpmSupport_t>) |cx| {
        let card = cx.gpu(device)?;
        let mut value = support.get()?;
        value.isSupportedDevice = u32::from(sample(card).is_ok());
        support.put(value)
    };
    fn nvmlGpmSampleAlloc(out: Out<Device>) |_cx| {
        let mut library = library();
        let handle = library.next_handle();
        out.put(Device(handle))?;
        library.samples.insert(handle, None);
        Ok(())
    };
    fn nvmlGpmSampleFree(handle: Device) |_cx| library().samples.remove(&handle.0).map(drop).ok_or(Code::INVALID_ARGUMENT);
    fn nvmlGpmSampleGet(device: Device, handle: Device) |cx| store(handle, sample(cx.gpu(device)?)?);
    fn nvmlGpmMigSampleGet(device: Device, instance: c_uint, handle: Device) |cx| {
        let card = cx.gpu(device)?;
        let whole = sample(card)?;
        if !card.state.instances.iter().any(|one| one.id == instance) {
            return Err(Code::NOT_FOUND);
        }
        let on = card.state.processes.iter().filter(|process| process.gpu_instance == Some(instance));
        store(handle, Sample { busy: on.map(|process| process.utilization).sum::<u32>().min(100), ..whole })
    };
    fn nvmlGpmMetricsGet(request: Out<Request>) |cx| metrics(cx, request);
}
