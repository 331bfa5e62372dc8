//! MIG: mode, GPU instances, compute instances, MIG devices.

#![expect(unsafe_code, reason = "exported symbols")]

use std::ffi::c_uint;

use gantry_gpu::{MigPlacement, MigProfile};
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t, nvmlComputeInstanceProfileInfo_t,
    nvmlComputeInstanceProfileInfo_v2_t, nvmlDeviceAttributes_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlReturn_t,
};

use super::context::Meaning;
use super::{Code, Context, Device, Out, Result, api, mig_info};
use crate::mig::{self, Refused};
use crate::{Card, CardState};

impl From<Refused> for Code {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Impossible => Self::INVALID_ARGUMENT,
            Refused::DoesNotFit => Self::INSUFFICIENT_RESOURCES,
            Refused::InUse => Self::IN_USE,
            Refused::Absent => Self::NOT_FOUND,
        }
    }
}

/// The MIG devices of a card that this process may use, by GPU instance and compute instance.
pub(super) fn devices(cx: &Context, card: &Card) -> Vec<(u32, u32)> {
    let instances = card.state.instances.iter().filter(|_| card.state.mig);
    let all = instances.flat_map(|one| one.compute.iter().map(|compute| (one.id, compute.id)));
    all.filter(|(gpu, compute)| cx.node.may_use(card, *gpu, *compute)).collect()
}

/// A card that MIG can partition.
fn capable(cx: &Context, device: Device) -> Result<&Card> {
    let card = cx.gpu(device)?;
    if card.profile.mig.is_empty() { Err(Code::NOT_SUPPORTED) } else { Ok(card) }
}

/// A card in MIG mode.
fn enabled(cx: &Context, device: Device) -> Result<&Card> {
    let card = capable(cx, device)?;
    if card.state.mig { Ok(card) } else { Err(Code::NOT_SUPPORTED) }
}

/// The row that NVML's number of a profile means on this board.
fn row(card: &Card, kind: c_uint) -> Result<&'static MigProfile> {
    let known = (0..nvml_wrapper_sys::bindings::NVML_GPU_INSTANCE_PROFILE_COUNT).contains(&kind);
    let found = card.profile.mig.iter().find(|row| row.kind == kind);
    found.ok_or(if known { Code::NOT_SUPPORTED } else { Code::INVALID_ARGUMENT })
}

fn row_by_id(card: &Card, id: c_uint) -> Result<&'static MigProfile> {
    mig::by_id(card.profile, id).ok_or(Code::NOT_SUPPORTED)
}

/// The card and GPU instance of a handle.
fn gpu_instance(cx: &Context, handle: Device) -> Result<(&Card, u32)> {
    match cx.any(handle)? {
        (card, Meaning::GpuInstance(gpu)) => Ok((card, gpu)),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

fn compute_instance(cx: &Context, handle: Device) -> Result<(&Card, u32, u32)> {
    match cx.any(handle)? {
        (card, Meaning::ComputeInstance(gpu, compute)) => Ok((card, gpu, compute)),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// Changes a card under the lock of the state file.
fn change<T>(
    cx: &Context,
    card: &Card,
    change: impl FnOnce(&mut CardState) -> std::result::Result<T, Refused>,
) -> Result<T> {
    cx.update(|state| Ok(change(state.card(card.index))?))
}

fn create(
    cx: &Context,
    device: Device,
    profile: c_uint,
    place: Option<MigPlacement>,
    out: Out<Device>,
) -> Result {
    let card = enabled(cx, device)?;
    row_by_id(card, profile)?;
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let id = change(cx, card, |state| mig::create(card.profile, state, profile, place))?;
    out.put(Device::new(card.index, Meaning::GpuInstance(id)))
}

fn create_compute(cx: &Context, handle: Device, kind: c_uint, start: Option<u8>, out: Out<Device>) -> Result {
    let (card, gpu) = gpu_instance(cx, handle)?;
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let id = change(cx, card, |state| mig::create_compute(card.profile, state, gpu, kind, start))?;
    out.put(Device::new(card.index, Meaning::ComputeInstance(gpu, id)))
}

fn places(
    cx: &Context,
    device: Device,
    profile: c_uint,
    list: Out<nvmlGpuInstancePlacement_t>,
    count: Out<c_uint>,
) -> Result {
    let row = row_by_id(capable(cx, device)?, profile)?;
    count.put(row.placements.len().try_into().unwrap_or(0))?;
    if list.is_null() {
        return Ok(());
    }
    row.placements.iter().enumerate().try_for_each(|(index, place)| {
        let place = nvmlGpuInstancePlacement_t { start: u32::from(place.start), size: u32::from(place.size) };
        list.put_at(index, place)
    })
}

/// A number of slices, as the tables have it.
fn slices(number: c_uint) -> Result<u8> {
    u8::try_from(number).map_err(|_| Code::INVALID_ARGUMENT)
}

fn compute_info(cx: &Context, handle: Device) -> Result<nvmlComputeInstanceInfo_t> {
    let (card, gpu, id) = compute_instance(cx, handle)?;
    let compute = mig_info::compute(card, gpu, id)?;
    Ok(nvmlComputeInstanceInfo_t {
        device: Device::new(card.index, Meaning::Gpu).pointer(),
        gpuInstance: Device::new(card.index, Meaning::GpuInstance(gpu)).pointer(),
        id,
        profileId: mig::compute_kind(compute.slices),
        placement: nvmlComputeInstancePlacement_t {
            start: u32::from(compute.start),
            size: u32::from(compute.slices),
        },
    })
}

fn put_all(list: Out<Device>, count: Out<c_uint>, handles: &[Device]) -> Result {
    handles.iter().enumerate().try_for_each(|(index, handle)| list.put_at(index, *handle))?;
    count.put(handles.len().try_into().unwrap_or(0))
}

api! {
    fn nvmlDeviceGetMigMode(device: Device, current: Out<c_uint>, pending: Out<c_uint>) |cx| {
        let card = capable(cx, device)?;
        current.put(u32::from(card.state.mig))?;
        pending.put(u32::from(card.state.mig_pending))
    };
    fn nvmlDeviceSetMigMode(device: Device, mode: c_uint, status: Out<nvmlReturn_t>) |cx| {
        let card = capable(cx, device)?;
        if mode > 1 || status.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let needs_reset = cx.node.config.mig_needs_reset;
        // The pending mode changes whatever comes of the present one.
        let outcome = cx.update(|state| Ok(mig::set_mode(state.card(card.index), mode == 1, needs_reset)))?;
        status.put(match outcome {
            Ok(true) => 0,
            Ok(false) => nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED,
            Err(refused) => Code::from(refused).0,
        })
    };
    fn nvmlDeviceGetMaxMigDeviceCount(device: Device, count: Out<c_uint>) |cx| {
        count.put(mig::max_devices(cx.gpu(device)?.profile))
    };
    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Device, index: c_uint, out: Out<Device>) |cx| {
        let card = capable(cx, device)?;
        let (gpu, compute) = *devices(cx, card).get(index as usize).ok_or(Code::NOT_FOUND)?;
        out.put(Device::new(card.index, Meaning::Mig(gpu, compute)))
    };
    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Device, out: Out<Device>) |cx| match cx.device(device)? {
        (card, Some(_)) => out.put(Device::new(card.index, Meaning::Gpu)),
        (_, None) => Err(Code::INVALID_ARGUMENT),
    };
    fn nvmlDeviceIsMigDeviceHandle(device: Device, out: Out<c_uint>) |cx| out.put(u32::from(cx.device(device)?.1.is_some()));
    fn nvmlDeviceGetGpuInstanceId(device: Device, id: Out<c_uint>) |cx| {
        id.put(cx.device(device)?.1.ok_or(Code::NOT_SUPPORTED)?.0)
    };
    fn nvmlDeviceGetComputeInstanceId(device: Device, id: Out<c_uint>) |cx| {
        id.put(cx.device(device)?.1.ok_or(Code::NOT_SUPPORTED)?.1)
    };
    fn nvmlDeviceGetAttributes_v2(device: Device, out: Out<nvmlDeviceAttributes_t>) |cx| {
        let (card, instance) = cx.device(device)?;
        let (gpu, compute) = instance.ok_or(Code::NOT_SUPPORTED)?;
        out.put(mig_info::attributes(card, gpu, compute)?)
    };
    fn nvmlDeviceGetAttributes(device: Device, out: Out<nvmlDeviceAttributes_t>) |cx| {
        let (card, instance) = cx.device(device)?;
        let (gpu, compute) = instance.ok_or(Code::NOT_SUPPORTED)?;
        out.put(mig_info::attributes(card, gpu, compute)?)
    };
    fn nvmlDeviceGetGpuInstanceProfileInfo(device: Device, kind: c_uint, out: Out<nvmlGpuInstanceProfileInfo_t>) |cx| {
        out.put(mig_info::gpu_profile(row(capable(cx, device)?, kind)?))
    };
    fn nvmlDeviceGetGpuInstanceProfileInfoV(device: Device, kind: c_uint, out: Out<nvmlGpuInstanceProfileInfo_v2_t>) |cx| {
        mig_info::put_gpu_profile(row(capable(cx, device)?, kind)?, out)
    };
    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(device: Device, id: c_uint, out: Out<nvmlGpuInstanceProfileInfo_v2_t>) |cx| {
        mig_info::put_gpu_profile(row_by_id(capable(cx, device)?, id)?, out)
    };
    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(device: Device, profile: c_uint, list: Out<nvmlGpuInstancePlacement_t>, count: Out<c_uint>) |cx| {
        places(cx, device, profile, list, count)
    };
    fn nvmlDeviceGetGpuInstancePossiblePlacements(device: Device, profile: c_uint, list: Out<nvmlGpuInstancePlacement_t>, count: Out<c_uint>) |cx| {
        places(cx, device, profile, list, count)
    };
    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: Device, profile: c_uint, count: Out<c_uint>) |cx| {
        let card = enabled(cx, device)?;
        count.put(mig::remaining(card.profile, &card.state.instances, row_by_id(card, profile)?))
    };
    fn nvmlDeviceCreateGpuInstance(device: Device, profile: c_uint, out: Out<Device>) |cx| {
        create(cx, device, profile, None, out)
    };
    fn nvmlDeviceCreateGpuInstanceWithPlacement(device: Device, profile: c_uint, place: Out<nvmlGpuInstancePlacement_t>, out: Out<Device>) |cx| {
        let place = place.get()?;
        let place = MigPlacement { start: slices(place.start)?, size: slices(place.size)? };
        create(cx, device, profile, Some(place), out)
    };
    fn nvmlGpuInstanceDestroy(instance: Device) |cx| {
        let (card, gpu) = gpu_instance(cx, instance)?;
        change(cx, card, |state| mig::destroy(state, gpu))
    };
    fn nvmlDeviceGetGpuInstances(device: Device, profile: c_uint, list: Out<Device>, count: Out<c_uint>) |cx| {
        let card = enabled(cx, device)?;
        row_by_id(card, profile)?;
        let of = card.state.instances.iter().filter(|one| one.profile == profile);
        let handles: Vec<_> = of.map(|one| Device::new(card.index, Meaning::GpuInstance(one.id))).collect();
        put_all(list, count, &handles)
    };
    fn nvmlDeviceGetGpuInstanceById(device: Device, id: c_uint, out: Out<Device>) |cx| {
        let card = enabled(cx, device)?;
        mig_info::instance(card, id)?;
        out.put(Device::new(card.index, Meaning::GpuInstance(id)))
    };
    fn nvmlGpuInstanceGetInfo(instance: Device, out: Out<nvmlGpuInstanceInfo_t>) |cx| {
        let (card, id) = gpu_instance(cx, instance)?;
        let one = mig_info::instance(card, id)?;
        out.put(nvmlGpuInstanceInfo_t {
            device: Device::new(card.index, Meaning::Gpu).pointer(),
            id,
            profileId: one.profile,
            placement: nvmlGpuInstancePlacement_t { start: u32::from(one.start), size: u32::from(one.size) },
        })
    };
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(instance: Device, kind: c_uint, engines: c_uint, out: Out<nvmlComputeInstanceProfileInfo_t>) |cx| {
        let (card, gpu) = gpu_instance(cx, instance)?;
        // Engines are shared; there is no other kind.
        if engines != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        out.put(mig_info::compute_profile(mig_info::row_of(card, gpu)?, kind)?)
    };
    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance: Device, kind: c_uint, engines: c_uint, out: Out<nvmlComputeInstanceProfileInfo_v2_t>) |cx| {
        let (card, gpu) = gpu_instance(cx, instance)?;
        if engines != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        mig_info::put_compute_profile(mig_info::row_of(card, gpu)?, kind, out)
    };
    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance: Device, kind: c_uint, list: Out<nvmlComputeInstancePlacement_t>, count: Out<c_uint>) |cx| {
        let (card, gpu) = gpu_instance(cx, instance)?;
        let row = mig_info::row_of(card, gpu)?;
        let wanted = mig::compute_slices(row.compute_slices, kind).ok_or(Code::NOT_SUPPORTED)?;
        let starts = mig::compute_places(row.compute_slices, wanted);
        count.put(starts.len().try_into().unwrap_or(0))?;
        if list.is_null() {
            return Ok(());
        }
        starts.iter().enumerate().try_for_each(|(index, start)| {
            let place = nvmlComputeInstancePlacement_t { start: u32::from(*start), size: u32::from(wanted) };
            list.put_at(index, place)
        })
    };
    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance: Device, kind: c_uint, count: Out<c_uint>) |cx| {
        let (card, gpu) = gpu_instance(cx, instance)?;
        let row = mig_info::row_of(card, gpu)?;
        let wanted = mig::compute_slices(row.compute_slices, kind).ok_or(Code::NOT_SUPPORTED)?;
        let free = mig::compute_free(row.compute_slices, &mig_info::instance(card, gpu)?.compute, wanted);
        count.put(free.len().try_into().unwrap_or(0))
    };
    fn nvmlGpuInstanceCreateComputeInstance(instance: Device, kind: c_uint, out: Out<Device>) |cx| {
        create_compute(cx, instance, kind, None, out)
    };
    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance: Device, kind: c_uint, place: Out<nvmlComputeInstancePlacement_t>, out: Out<Device>) |cx| {
        create_compute(cx, instance, kind, Some(slices(place.get()?.start)?), out)
    };
    fn nvmlComputeInstanceDestroy(instance: Device) |cx| {
        let (card, gpu, id) = compute_instance(cx, instance)?;
        change(cx, card, |state| mig::destroy_compute(state, gpu, id))
    };
    fn nvmlGpuInstanceGetComputeInstances(instance: Device, kind: c_uint, list: Out<Device>, count: Out<c_uint>) |cx| {
        let (card, gpu) = gpu_instance(cx, instance)?;
        let of = mig_info::instance(card, gpu)?.compute.iter().filter(|one| mig::compute_kind(one.slices) == kind);
        let handles: Vec<_> =
            of.map(|one| Device::new(card.index, Meaning::ComputeInstance(gpu, one.id))).collect();
        put_all(list, count, &handles)
    };
    fn nvmlGpuInstanceGetComputeInstanceById(instance: Device, id: c_uint, out: Out<Device>) |cx| {
        let (card, gpu) = gpu_instance(cx, instance)?;
        mig_info::compute(card, gpu, id)?;
        out.put(Device::new(card.index, Meaning::ComputeInstance(gpu, id)))
    };
    fn nvmlComputeInstanceGetInfo_v2(instance: Device, out: Out<nvmlComputeInstanceInfo_t>) |cx| {
        out.put(compute_info(cx, instance)?)
    };
    fn nvmlComputeInstanceGetInfo(instance: Device, out: Out<nvmlComputeInstanceInfo_t>) |cx| {
        out.put(compute_info(cx, instance)?)
    };
}
