//! Event sets: XIDs and memory errors, delivered to every process that waits.

#![expect(unsafe_code, reason = "exported symbols")]

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_ulonglong};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlEventData_t;

use super::context::{Meaning, library, load};
use super::{Code, Device, Out, Result, api};
use crate::Card;

/// What one process waits for.
#[derive(Debug, Default)]
pub(crate) struct EventSet {
    /// The kinds of events by card, and the number of the first event that counts.
    cards: BTreeMap<u32, (u64, u64)>,
}

/// How often the state is looked at while somebody waits.
const PERIOD: Duration = Duration::from_millis(10);

/// Corrected and uncorrected errors where memory has ECC, performance states, XIDs.
fn supported(card: &Card) -> u64 {
    if card.ecc() == Some(true) { 1 | 2 | 4 | 8 } else { 4 | 8 }
}

fn poll(set: usize) -> Result<Option<nvmlEventData_t>> {
    let mut library = library();
    let node = load(&mut library)?;
    let set = library.event_sets.get_mut(&set).ok_or(Code::INVALID_ARGUMENT)?;
    let event = node.state.events.iter().find(|event| {
        set.cards
            .get(&event.card)
            .is_some_and(|(kinds, first)| kinds & event.kind != 0 && event.number >= *first)
    });
    if let Some(event) = event {
        if let Some((_, first)) = set.cards.get_mut(&event.card) {
            *first = event.number + 1;
        }
        let (gpu, compute) = event.instance.unwrap_or((u32::MAX, u32::MAX));
        return Ok(Some(nvmlEventData_t {
            device: Device::new(event.card, Meaning::Gpu).pointer(),
            eventType: event.kind,
            eventData: event.data,
            gpuInstanceId: gpu,
            computeInstanceId: compute,
        }));
    }
    let lost = |card: &u32| node.cards.get(*card as usize).is_some_and(|card| card.state.loss.is_some());
    if set.cards.keys().any(lost) { Err(Code::GPU_IS_LOST) } else { Ok(None) }
}

#[expect(clippy::disallowed_methods, reason = "a C caller waits in real time")]
fn wait(set: Device, milliseconds: c_uint) -> Result<nvmlEventData_t> {
    let end = Instant::now() + Duration::from_millis(u64::from(milliseconds));
    loop {
        if let Some(event) = poll(set.0)? {
            return Ok(event);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Code::TIMEOUT);
        }
        thread::sleep(left.min(PERIOD));
    }
}

/// The first form of the data ends before the instances.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FirstEventData {
    device: *mut std::ffi::c_void,
    kind: c_ulonglong,
    data: c_ulonglong,
}

api! {
    fn nvmlEventSetCreate(set: Out<Device>) |_cx| {
        let mut library = library();
        let handle = library.next_handle();
        set.put(Device(handle))?;
        library.event_sets.insert(handle, EventSet::default());
        Ok(())
    };
    fn nvmlEventSetFree(set: Device) |_cx| {
        library().event_sets.remove(&set.0).map(drop).ok_or(Code::INVALID_ARGUMENT)
    };
    fn nvmlDeviceGetSupportedEventTypes(device: Device, kinds: Out<c_ulonglong>) |cx| kinds.put(supported(cx.gpu(device)?));
    fn nvmlDeviceRegisterEvents(device: Device, kinds: c_ulonglong, set: Device) |cx| {
        let card = cx.gpu(device)?;
        if kinds & !supported(card) != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let first = cx.node.state.next_event;
        let mut library = library();
        let set = library.event_sets.get_mut(&set.0).ok_or(Code::INVALID_ARGUMENT)?;
        let (known, _) = set.cards.entry(card.index).or_insert((0, first));
        *known |= kinds;
        Ok(())
    };
    fn nvmlEventSetWait_v2(set: Device, data: Out<nvmlEventData_t>, milliseconds: c_uint) |_cx| {
        data.put(wait(set, milliseconds)?)
    };
    fn nvmlEventSetWait(set: Device, data: Out<FirstEventData>, milliseconds: c_uint) |_cx| {
        let event = wait(set, milliseconds)?;
        data.put(FirstEventData { device: event.device.cast(), kind: event.eventType, data: event.eventData })
    };
    fn nvmlDeviceClearEccErrorCounts(device: Device, _counter: c_uint) |cx| {
        let index = cx.gpu(device)?.index;
        cx.update(|state| {
            let card = state.card(index);
            (card.ecc_corrected, card.ecc_uncorrected) = (0, 0);
            Ok(())
        })
    };
}
