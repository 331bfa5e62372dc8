//! A node's simulated GPUs as the driver reports them.

use std::fmt::Debug;
use std::sync::Arc;

use gantry_gpu::{GpuBackend as _, GpuSample, SimGpus};
use gantry_model::{Gpu, LinkKind};

use super::{Driver, GpuReading, Hardware};

/// NVIDIA's PCI vendor number.
const NVIDIA_VENDOR: u32 = 0x10de;

/// The hardware of a node; without GPUs it has no driver either.
#[derive(Debug)]
pub(crate) struct NodeHardware(pub(crate) Option<Arc<SimGpus>>);

impl NodeHardware {
    fn reading(&self, gpu: &Gpu, sample: Option<&GpuSample>) -> Option<GpuReading> {
        let profile = self.0.as_ref()?.profile();
        // Data centre cards have ECC memory; cards with a fan of their own are not of that kind.
        let data_centre = !profile.power.fan;
        Some(GpuReading {
            minor: gpu.minor,
            uuid: gpu.id.to_string(),
            name: gpu.product.to_string(),
            bus_id: gpu.pci_bus_id.to_uppercase(),
            numa_node: gpu.numa_node,
            memory_total_mib: gpu.memory_mib,
            memory_used_mib: sample.and_then(|sample| sample.memory_used_mib).unwrap_or(0),
            utilization_gpu: sample.and_then(|sample| sample.utilization_percent).unwrap_or(0).into(),
            utilization_memory: sample
                .and_then(|sample| sample.memory_utilization_percent)
                .unwrap_or(0)
                .into(),
            temperature_c: sample.and_then(|sample| sample.temperature_celsius).unwrap_or(0),
            power_draw_mw: sample.and_then(|sample| sample.power_milliwatts).unwrap_or(0).into(),
            power_limit_mw: sample.and_then(|sample| sample.power_limit_milliwatts).unwrap_or(0).into(),
            fan: sample.and_then(|sample| sample.fan_percent).map(u32::from),
            performance_state: sample.and_then(|sample| sample.performance_state).unwrap_or(0),
            sm_clock_mhz: sample.and_then(|sample| sample.sm_clock_mhz).unwrap_or(0),
            sm_clock_max_mhz: profile.power.sm_mhz.1,
            memory_clock_mhz: sample.and_then(|sample| sample.memory_clock_mhz).unwrap_or(0),
            memory_clock_max_mhz: profile.power.memory_mhz.1,
            pcie_generation_max: profile.pcie_generation(),
            pci_device_id: u32::from(profile.pci_device_id) << 16 | NVIDIA_VENDOR,
            vbios: profile.vbios.to_owned(),
            compute_capability: gpu.compute_capability,
            ecc: data_centre.then_some(true),
            mig: gpu.mig_capable.then_some(gpu.partitions.is_some()),
            lost: false,
            ..GpuReading::default()
        })
    }
}

impl Hardware for NodeHardware {
    fn driver(&self) -> Driver {
        match self.0.as_ref().and_then(|gpus| gpus.driver().ok()) {
            Some(info) => Driver {
                version: info.driver_version,
                cuda: format!("{}.{}", info.cuda_version.0, info.cuda_version.1),
            },
            None => Driver { version: String::new(), cuda: String::new() },
        }
    }

    fn gpu(&self, minor: u32) -> Option<GpuReading> {
        let gpus = self.0.as_ref()?;
        let inventory = gpus.inventory().ok()?;
        if let Some(gpu) = inventory.gpus.iter().find(|gpu| gpu.minor == minor) {
            let samples = gpus.sample().ok()?;
            return self.reading(gpu, samples.iter().find(|sample| sample.id == gpu.id));
        }
        // Simulated cards are numbered alike by index and minor.
        let failed = inventory.failed.iter().find(|failed| failed.index == minor)?;
        Some(GpuReading {
            minor,
            uuid: failed.id.as_ref().map(ToString::to_string).unwrap_or_default(),
            bus_id: failed.pci_bus_id.to_uppercase(),
            lost: true,
            ..GpuReading::default()
        })
    }

    fn link(&self, a: u32, b: u32) -> Option<LinkKind> {
        let inventory = self.0.as_ref()?.inventory().ok()?;
        inventory.topology.link(a as usize, b as usize).map(|link| link.kind)
    }
}
