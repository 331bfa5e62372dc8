//! MIG's profiles and what instances are made of.

use std::ffi::c_uint;

use gantry_gpu::MigProfile;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t,
    nvmlComputeInstanceProfileInfo_v3_t, nvmlDeviceAttributes_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};

use super::abi::{array, version};
use super::{Code, Out, Result};
use crate::{Card, ComputeInstance, GpuInstance, mig};

/// The GPU instance with an id.
pub(super) fn instance(card: &Card, gpu: u32) -> Result<&GpuInstance> {
    card.state.instances.iter().find(|one| one.id == gpu).ok_or(Code::NOT_FOUND)
}

/// The compute instance with an id.
pub(super) fn compute(card: &Card, gpu: u32, id: u32) -> Result<&ComputeInstance> {
    instance(card, gpu)?.compute.iter().find(|one| one.id == id).ok_or(Code::NOT_FOUND)
}

/// The row of a GPU instance.
pub(super) fn row_of(card: &Card, gpu: u32) -> Result<&'static MigProfile> {
    mig::by_id(card.profile, instance(card, gpu)?.profile).ok_or(Code::NOT_FOUND)
}

/// Multiprocessors of a compute instance with `slices` of a GPU instance.
fn multiprocessors(row: &MigProfile, slices: u8) -> c_uint {
    if slices == row.compute_slices {
        return row.engines.multiprocessors;
    }
    row.engines.multiprocessors / u32::from(row.compute_slices).max(1) * u32::from(slices)
}

/// A MIG device's name: that of its GPU instance, with its own slices before it if they are fewer.
pub(super) fn device_name(card: &Card, gpu: u32, id: u32) -> Result<String> {
    Ok(compute_name(row_of(card, gpu)?, compute(card, gpu, id)?.slices))
}

fn compute_name(row: &MigProfile, slices: u8) -> String {
    if slices == row.compute_slices { row.name.to_owned() } else { format!("{slices}c.{}", row.name) }
}

pub(super) fn attributes(card: &Card, gpu: u32, id: u32) -> Result<nvmlDeviceAttributes_t> {
    let row = row_of(card, gpu)?;
    let slices = compute(card, gpu, id)?.slices;
    Ok(nvmlDeviceAttributes_t {
        multiprocessorCount: multiprocessors(row, slices),
        sharedCopyEngineCount: row.engines.copy,
        sharedDecoderCount: row.engines.decoders,
        sharedEncoderCount: 0,
        sharedJpegCount: row.engines.jpeg,
        sharedOfaCount: row.engines.ofa,
        gpuInstanceSliceCount: u32::from(row.compute_slices),
        computeInstanceSliceCount: u32::from(slices),
        memorySizeMB: row.memory_mib,
    })
}

pub(super) fn gpu_profile(row: &MigProfile) -> nvmlGpuInstanceProfileInfo_t {
    nvmlGpuInstanceProfileInfo_t {
        id: row.id,
        isP2pSupported: 0,
        sliceCount: u32::from(row.compute_slices),
        instanceCount: u32::from(row.max_instances),
        multiprocessorCount: row.engines.multiprocessors,
        copyEngineCount: row.engines.copy,
        decoderCount: row.engines.decoders,
        encoderCount: 0,
        jpegCount: row.engines.jpeg,
        ofaCount: row.engines.ofa,
        memorySizeMB: row.memory_mib,
    }
}

/// Writes the second or third form, whichever the caller's version says.
pub(super) fn put_gpu_profile(row: &MigProfile, out: Out<nvmlGpuInstanceProfileInfo_v2_t>) -> Result {
    let first = gpu_profile(row);
    let name = array(&format!("MIG {}", row.name));
    if out.version()? == version::<nvmlGpuInstanceProfileInfo_v3_t>(3) {
        return out.cast().put(nvmlGpuInstanceProfileInfo_v3_t {
            version: out.version()?,
            id: first.id,
            sliceCount: first.sliceCount,
            instanceCount: first.instanceCount,
            multiprocessorCount: first.multiprocessorCount,
            copyEngineCount: first.copyEngineCount,
            decoderCount: first.decoderCount,
            encoderCount: 0,
            jpegCount: first.jpegCount,
            ofaCount: first.ofaCount,
            memorySizeMB: first.memorySizeMB,
            name,
            capabilities: 0,
        });
    }
    out.expect_version(2)?;
    out.put(nvmlGpuInstanceProfileInfo_v2_t {
        version: out.version()?,
        id: first.id,
        isP2pSupported: 0,
        sliceCount: first.sliceCount,
        instanceCount: first.instanceCount,
        multiprocessorCount: first.multiprocessorCount,
        copyEngineCount: first.copyEngineCount,
        decoderCount: first.decoderCount,
        encoderCount: 0,
        jpegCount: first.jpegCount,
        ofaCount: first.ofaCount,
        memorySizeMB: first.memorySizeMB,
        name,
    })
}

pub(super) fn compute_profile(row: &MigProfile, kind: c_uint) -> Result<nvmlComputeInstanceProfileInfo_t> {
    let slices = mig::compute_slices(row.compute_slices, kind).ok_or(Code::NOT_SUPPORTED)?;
    Ok(nvmlComputeInstanceProfileInfo_t {
        id: kind,
        sliceCount: u32::from(slices),
        instanceCount: u32::from(row.compute_slices / slices),
        multiprocessorCount: multiprocessors(row, slices),
        sharedCopyEngineCount: row.engines.copy,
        sharedDecoderCount: row.engines.decoders,
        sharedEncoderCount: 0,
        sharedJpegCount: row.engines.jpeg,
        sharedOfaCount: row.engines.ofa,
    })
}

/// Writes the second or third form, whichever the caller's version says.
pub(super) fn put_compute_profile(
    row: &MigProfile,
    kind: c_uint,
    out: Out<nvmlComputeInstanceProfileInfo_v2_t>,
) -> Result {
    let first = compute_profile(row, kind)?;
    let slices = mig::compute_slices(row.compute_slices, kind).unwrap_or(0);
    let name = array(&format!("MIG {}", compute_name(row, slices)));
    if out.version()? == version::<nvmlComputeInstanceProfileInfo_v3_t>(3) {
        return out.cast().put(nvmlComputeInstanceProfileInfo_v3_t {
            version: out.version()?,
            id: first.id,
            sliceCount: first.sliceCount,
            instanceCount: first.instanceCount,
            multiprocessorCount: first.multiprocessorCount,
            sharedCopyEngineCount: first.sharedCopyEngineCount,
            sharedDecoderCount: first.sharedDecoderCount,
            sharedEncoderCount: 0,
            sharedJpegCount: first.sharedJpegCount,
            sharedOfaCount: first.sharedOfaCount,
            name,
            capabilities: 0,
        });
    }
    out.expect_version(2)?;
    out.put(nvmlComputeInstanceProfileInfo_v2_t {
        version: out.version()?,
        id: first.id,
        sliceCount: first.sliceCount,
        instanceCount: first.instanceCount,
        multiprocessorCount: first.multiprocessorCount,
        sharedCopyEngineCount: first.sharedCopyEngineCount,
        sharedDecoderCount: first.sharedDecoderCount,
        sharedEncoderCount: 0,
        sharedJpegCount: first.sharedJpegCount,
        sharedOfaCount: first.sharedOfaCount,
        name,
    })
}
