//! Partitions: read, made and ended.

#![expect(unsafe_code, reason = "a C library")]

use std::ffi::c_uint;
use std::sync::Arc;

use gantry_model::{Gpu, GpuId, Health, Partition, PartitionAttributes};
use nvml_wrapper_sys::bindings::{
    nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t,
};

use super::card::Facts;
use super::library::{Answer, Code, Handle, Nvml, call, handle, optional, text_of, version};
use crate::MigPlacement;

/// A kind of partition that a card offers now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigOffer {
    /// NVIDIA's name, such as `1g.5gb`.
    pub name: Arc<str>,
    /// The id that `nvidia-smi mig -lgip` lists.
    pub id: u32,
    /// Compute slices.
    pub compute_slices: u32,
    /// Memory in MiB that programs can use.
    pub memory_mib: u64,
    /// Where it may lie.
    pub placements: Vec<MigPlacement>,
    /// The most on one card.
    pub max_instances: u32,
    /// How many more there is room for; `None` while MIG mode is off.
    pub remaining: Option<u32>,
}

/// When a change of MIG mode takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigChange {
    /// Now.
    Done,
    /// After a reset of the GPU.
    AfterReset,
}

/// NVML's profiles that have the set of media engines, and those that have it in other ways, with what their names end in.
const SUFFIXES: [(c_uint, &str); 11] = [
    (7, "+me"),
    (8, "+me"),
    (10, "+gfx"),
    (11, "+gfx"),
    (12, "+gfx"),
    (13, "-me"),
    (14, "-me"),
    (15, "+me.all"),
    (16, "+me.all"),
    (17, "+gfx"),
    (18, "+me"),
];

/// The most profiles that NVML may number.
const MAX_PROFILES: c_uint = 32;

/// A profile of NVML. None changes while the driver is loaded.
#[derive(Debug, Clone)]
pub(super) struct Kind {
    name: Arc<str>,
    info: nvmlGpuInstanceProfileInfo_t,
    placements: Vec<MigPlacement>,
}

/// Every profile of a card.
pub(super) fn kinds(nvml: &Nvml, device: Handle, total_mib: u64) -> Answer<Vec<Kind>> {
    let mut found = Vec::new();
    for number in 0..MAX_PROFILES {
        let mut info = nvmlGpuInstanceProfileInfo_t {
            id: 0,
            isP2pSupported: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            copyEngineCount: 0,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: 0,
        };
        let answer = call!(nvml, nvmlDeviceGetGpuInstanceProfileInfo(device.0, number, &raw mut info));
        if optional(answer)?.is_none() {
            continue;
        }
        let name = match optional(driver_name(nvml, device, number))? {
            Some(name) => name,
            None => computed_name(number, info.sliceCount, info.memorySizeMB, total_mib),
        };
        found.push(Kind { name: name.into(), info, placements: placements(nvml, device, info.id)? });
    }
    Ok(found)
}

/// The driver's name of a profile, which old drivers do not tell.
fn driver_name(nvml: &Nvml, device: Handle, number: c_uint) -> Answer<String> {
    let mut info = nvmlGpuInstanceProfileInfo_v2_t {
        version: version::<nvmlGpuInstanceProfileInfo_v2_t>(2),
        id: 0,
        isP2pSupported: 0,
        sliceCount: 0,
        instanceCount: 0,
        multiprocessorCount: 0,
        copyEngineCount: 0,
        decoderCount: 0,
        encoderCount: 0,
        jpegCount: 0,
        ofaCount: 0,
        memorySizeMB: 0,
        name: [0; 96],
    };
    call!(nvml, nvmlDeviceGetGpuInstanceProfileInfoV(device.0, number, &raw mut info))?;
    let text = text_of(&info.name)?;
    Ok(text.strip_prefix("MIG ").unwrap_or(&text).to_owned())
}

/// The name that NVIDIA's tools make: memory is the card's, in GB, times the eighths that the instance has of it.
fn computed_name(number: c_uint, slices: c_uint, memory_mib: u64, total_mib: u64) -> String {
    let eighths = (memory_mib * 8).div_ceil(total_mib.max(1));
    // Rounded half up.
    let gb = (total_mib.div_ceil(1_024) * eighths * 2 + 8) / 16;
    let suffix = SUFFIXES.iter().find(|(with, _)| *with == number).map_or("", |(_, suffix)| suffix);
    format!("{slices}g.{gb}gb{suffix}")
}

/// The partitions of a card in MIG mode, by GPU instance, then compute instance.
pub(super) fn partitions(nvml: &Nvml, facts: &Facts) -> Answer<Vec<Partition>> {
    let device = facts.handle;
    let mut found = Vec::new();
    for index in 0..optional(nvml.max_mig_devices(device))?.unwrap_or(0).min(64) {
        // Indices of MIG devices can have holes.
        let Some(mig) = optional(nvml.mig_device(device, index))? else { continue };
        found.push(partition(nvml, device, mig, index, &facts.kinds)?);
    }
    found.sort_by_key(|partition| (partition.gpu_instance, partition.compute_instance));
    Ok(found)
}

fn partition(nvml: &Nvml, device: Handle, mig: Handle, index: u32, kinds: &[Kind]) -> Answer<Partition> {
    let gpu_instance = nvml.gpu_instance_id(mig)?;
    let attributes = nvml.attributes(mig)?;
    let info = optional(instance(nvml, device, gpu_instance).and_then(|one| info(nvml, one)))?;
    let kind = info.and_then(|info| kinds.iter().find(|kind| kind.info.id == info.profileId));
    let own = attributes.computeInstanceSliceCount;
    let profile = match kind {
        Some(kind) if own < attributes.gpuInstanceSliceCount => format!("{own}c.{}", kind.name).into(),
        Some(kind) => Arc::clone(&kind.name),
        // Who may not ask for instances still sees what the device consists of.
        None => format!("{}g.{}mb", attributes.gpuInstanceSliceCount, attributes.memorySizeMB).into(),
    };
    Ok(Partition {
        id: nvml.uuid(mig)?.parse().map_err(|_| Code::UNKNOWN)?,
        index,
        profile,
        gpu_instance,
        compute_instance: nvml.compute_instance_id(mig)?,
        start: info.map_or(0, |info| info.placement.start),
        size: info.map_or(0, |info| info.placement.size),
        memory_mib: attributes.memorySizeMB,
        attributes: PartitionAttributes {
            multiprocessors: attributes.multiprocessorCount,
            gpu_instance_slices: attributes.gpuInstanceSliceCount,
            compute_instance_slices: own,
            copy_engines: attributes.sharedCopyEngineCount,
            decoders: attributes.sharedDecoderCount,
            encoders: attributes.sharedEncoderCount,
            jpeg_engines: attributes.sharedJpegCount,
            ofa_engines: attributes.sharedOfaCount,
        },
        health: Health::Healthy,
    })
}

/// A handle of a GPU instance or of a compute instance: to us, a handle like any other.
fn instance(nvml: &Nvml, device: Handle, id: u32) -> Answer<Handle> {
    handle(|place| call!(nvml, nvmlDeviceGetGpuInstanceById(device.0, id, place.cast())))
}

fn info(nvml: &Nvml, instance: Handle) -> Answer<nvmlGpuInstanceInfo_t> {
    let mut info = nvmlGpuInstanceInfo_t {
        device: std::ptr::null_mut(),
        id: 0,
        profileId: 0,
        placement: nvmlGpuInstancePlacement_t { start: 0, size: 0 },
    };
    call!(nvml, nvmlGpuInstanceGetInfo(instance.0.cast(), &raw mut info))?;
    Ok(info)
}

/// What a card offers.
pub(super) fn offers(nvml: &Nvml, facts: &Facts) -> Answer<Vec<MigOffer>> {
    let mut offers = Vec::new();
    for kind in facts.kinds.iter().cloned() {
        let mut remaining = 0;
        let id = kind.info.id;
        let answer =
            call!(nvml, nvmlDeviceGetGpuInstanceRemainingCapacity(facts.handle.0, id, &raw mut remaining));
        offers.push(MigOffer {
            name: kind.name,
            id,
            compute_slices: kind.info.sliceCount,
            memory_mib: kind.info.memorySizeMB,
            placements: kind.placements,
            max_instances: kind.info.instanceCount,
            remaining: optional(answer)?.map(|()| remaining),
        });
    }
    Ok(offers)
}

/// The most placements of a profile: one for each memory slice, and room to spare.
const MAX_PLACEMENTS: usize = 64;

fn placements(nvml: &Nvml, device: Handle, profile: c_uint) -> Answer<Vec<MigPlacement>> {
    let mut count = 0;
    let null = std::ptr::null_mut();
    let answer =
        call!(nvml, nvmlDeviceGetGpuInstancePossiblePlacements_v2(device.0, profile, null, &raw mut count));
    if optional(answer)?.is_none() {
        return Ok(Vec::new());
    }
    let mut list =
        vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; (count as usize).max(MAX_PLACEMENTS)];
    let place = list.as_mut_ptr();
    call!(nvml, nvmlDeviceGetGpuInstancePossiblePlacements_v2(device.0, profile, place, &raw mut count))?;
    let slices = |number: u32| u8::try_from(number).map_err(|_| Code::UNKNOWN);
    let rows = list.into_iter().take(count as usize);
    rows.map(|row| Ok(MigPlacement { start: slices(row.start)?, size: slices(row.size)? })).collect()
}

/// Turns MIG mode on or off.
pub(super) fn set_mode(nvml: &Nvml, device: Handle, on: bool) -> Answer<MigChange> {
    let mut status = 0;
    call!(nvml, nvmlDeviceSetMigMode(device.0, c_uint::from(on), &raw mut status))?;
    match Code(status) {
        Code(0) => Ok(MigChange::Done),
        Code::RESET_REQUIRED => Ok(MigChange::AfterReset),
        code => Err(code),
    }
}

/// Makes a GPU instance of a profile with one compute instance that has all of it; where that fails, nothing is left.
pub(super) fn create(
    nvml: &Nvml,
    facts: &Facts,
    offer: &MigOffer,
    place: Option<MigPlacement>,
) -> Answer<(u32, u32)> {
    let device = facts.handle;
    let made = match place {
        Some(place) => {
            let at =
                nvmlGpuInstancePlacement_t { start: u32::from(place.start), size: u32::from(place.size) };
            handle(|out| {
                call!(
                    nvml,
                    nvmlDeviceCreateGpuInstanceWithPlacement(device.0, offer.id, &raw const at, out.cast())
                )
            })?
        }
        None => handle(|out| call!(nvml, nvmlDeviceCreateGpuInstance(device.0, offer.id, out.cast())))?,
    };
    let whole = whole_profile(offer.compute_slices);
    let compute =
        handle(|out| call!(nvml, nvmlGpuInstanceCreateComputeInstance(made.0.cast(), whole, out.cast())));
    match compute.and_then(|compute| compute_id(nvml, compute)) {
        Ok(id) => Ok((info(nvml, made)?.id, id)),
        Err(code) => {
            let _ = call!(nvml, nvmlGpuInstanceDestroy(made.0.cast()));
            Err(code)
        }
    }
}

/// NVML's number of the compute instance profile with so many slices.
fn whole_profile(slices: u32) -> c_uint {
    match slices {
        0 | 1 => 0,
        2 => 1,
        3 => 2,
        4 => 3,
        6 => 6,
        8 => 5,
        _ => 4,
    }
}

fn compute_id(nvml: &Nvml, compute: Handle) -> Answer<u32> {
    use nvml_wrapper_sys::bindings::{nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t};
    let mut info = nvmlComputeInstanceInfo_t {
        device: std::ptr::null_mut(),
        gpuInstance: std::ptr::null_mut(),
        id: 0,
        profileId: 0,
        placement: nvmlComputeInstancePlacement_t { start: 0, size: 0 },
    };
    call!(nvml, nvmlComputeInstanceGetInfo_v2(compute.0.cast(), &raw mut info))?;
    Ok(info.id)
}

/// Ends a partition: its compute instance, and the GPU instance if nothing else is in it.
pub(super) fn destroy(nvml: &Nvml, facts: &Facts, partition: &Partition) -> Answer<()> {
    let parent = instance(nvml, facts.handle, partition.gpu_instance)?;
    let compute = handle(|out| {
        call!(
            nvml,
            nvmlGpuInstanceGetComputeInstanceById(parent.0.cast(), partition.compute_instance, out.cast())
        )
    })?;
    call!(nvml, nvmlComputeInstanceDestroy(compute.0.cast()))?;
    match call!(nvml, nvmlGpuInstanceDestroy(parent.0.cast())) {
        // Other compute instances share it.
        Err(Code::IN_USE) => Ok(()),
        other => other,
    }
}

/// The partition of a card with an id.
pub(super) fn of<'a>(gpu: &'a Gpu, id: &GpuId) -> Option<&'a Partition> {
    gpu.partitions.iter().flatten().find(|partition| partition.id == *id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PROFILES;

    #[test]
    fn computed_names_are_those_of_the_tables() {
        for profile in PROFILES {
            for row in profile.mig {
                let slices = u32::from(row.compute_slices);
                let name = computed_name(row.kind, slices, row.memory_mib, profile.memory_mib);
                assert_eq!(name, row.name, "{}", profile.name);
            }
        }
    }
}
