//! What NVML tells of one card.

use std::path::Path;
use std::sync::Arc;

use gantry_model::{Gpu, GpuId, Health};

use super::host::{self, Address};
use super::library::{Answer, Code, Handle, Nvml, optional};
use super::{mig, topology};
use crate::{FabricInfo, FabricState, GpuDetails, GpuProcess, GpuSample, RecoveryAction, pci_class};

/// What does not change while the driver is loaded.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) handle: Handle,
    /// With no partitions, healthy.
    pub(super) gpu: Gpu,
    pub(super) address: Address,
    pub(super) wires: topology::Wires,
    /// What MIG can cut; empty where it cannot.
    pub(super) kinds: Arc<[mig::Kind]>,
}

/// What shows whether a card is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Signals {
    /// What the driver says must be done, 0 for nothing; `None` for drivers that do not say.
    pub(super) recovery_action: Option<u64>,
    /// Uncorrected memory errors since the driver was loaded.
    pub(super) uncorrected: u64,
    /// A memory row waits for a reset to be remapped, or could not be.
    pub(super) remap: bool,
}

/// `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
const RECOVERY_ACTION: u32 = nvml_wrapper_sys::bindings::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION;

/// NVML's numbers: uncorrected errors, since the driver was loaded.
const UNCORRECTED: u32 = 1;
const VOLATILE: u32 = 0;

/// The least memory in MiB of a card that CUDA still runs on. Less is a card that does not know what it says.
const LEAST_MIB: u64 = 256;

/// A card's words that make no sense, in ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// NVML refused the named call.
    Refused(&'static str, Code),
    /// What it said cannot be.
    Nonsense(String),
}

fn asked<T>(call: &'static str, answer: Answer<T>) -> Result<T, Unreadable> {
    answer.map_err(|code| Unreadable::Refused(call, code))
}

/// Reads a card for the first time.
pub(super) fn facts(nvml: &Nvml, index: u32, handle: Handle, sysfs: &Path) -> Result<Facts, Unreadable> {
    let uuid = asked("nvmlDeviceGetUUID", nvml.uuid(handle))?;
    let id: GpuId = uuid.parse().map_err(|error| Unreadable::Nonsense(format!("its UUID: {error}")))?;
    let product = match nvml.name(handle) {
        Err(Code::UNKNOWN) => return Err(Unreadable::Nonsense("its name is no text".to_owned())),
        other => asked("nvmlDeviceGetName", other)?,
    };
    let (total, _) = asked("nvmlDeviceGetMemoryInfo", nvml.memory(handle))?;
    let memory_mib = total >> 20;
    if memory_mib < LEAST_MIB {
        return Err(Unreadable::Nonsense(format!("it has {memory_mib} MiB of memory")));
    }
    let address = asked("nvmlDeviceGetPciInfo", nvml.pci(handle))?;
    let (major, minor) = asked("nvmlDeviceGetCudaComputeCapability", nvml.compute_capability(handle))?;
    let part = |number: i32| u32::try_from(number).unwrap_or(0);
    let mig = asked("nvmlDeviceGetMigMode", optional(nvml.mig_mode(handle)))?;
    let kinds = match mig {
        Some(_) => asked("nvmlDeviceGetGpuInstanceProfileInfo", mig::kinds(nvml, handle, memory_mib))?,
        None => Vec::new(),
    };
    Ok(Facts {
        handle,
        gpu: Gpu {
            id,
            index,
            minor: asked("nvmlDeviceGetMinorNumber", nvml.minor(handle))?,
            product: product.into(),
            memory_mib,
            pci_bus_id: host::bus_id(address),
            numa_node: host::numa_node(sysfs, address),
            compute_capability: (part(major), part(minor)),
            mig_capable: mig.is_some(),
            partitions: None,
            health: Health::Healthy,
        },
        address,
        wires: asked("nvmlDeviceGetNvLinkState", topology::wires(nvml, handle, part(major)))?,
        kinds: kinds.into(),
    })
}

/// The card as it is now.
pub(super) fn read(nvml: &Nvml, facts: &Facts) -> Result<(Gpu, Signals), Unreadable> {
    let mut gpu = facts.gpu.clone();
    // Also shows that the card still answers.
    asked("nvmlDeviceGetUUID", nvml.uuid(facts.handle))?;
    if gpu.mig_capable {
        let on = asked("nvmlDeviceGetMigMode", optional(nvml.mig_mode(facts.handle)))?;
        if on.is_some_and(|(now, _)| now) {
            gpu.partitions =
                Some(asked("nvmlDeviceGetMigDeviceHandleByIndex", mig::partitions(nvml, facts))?);
        }
    }
    Ok((gpu, signals(nvml, facts)?))
}

/// Whether the card is well.
pub(super) fn signals(nvml: &Nvml, facts: &Facts) -> Result<Signals, Unreadable> {
    let handle = facts.handle;
    let action = optional(nvml.field(handle, RECOVERY_ACTION));
    let errors = optional(nvml.ecc_errors(handle, UNCORRECTED, VOLATILE));
    let rows = optional(nvml.remapped_rows(handle));
    // All drivers have this one, and a card that is gone does not answer it.
    asked("nvmlDeviceGetUUID", nvml.uuid(handle))?;
    Ok(Signals {
        recovery_action: asked("nvmlDeviceGetFieldValues", action)?,
        // A counter with all bits set counts nothing.
        uncorrected: asked("nvmlDeviceGetTotalEccErrors", errors)?
            .filter(|count| *count != u64::MAX)
            .unwrap_or(0),
        remap: asked("nvmlDeviceGetRemappedRows", rows)?
            .is_some_and(|[.., pending, failed]| pending + failed > 0),
    })
}

/// Clocks of NVML: multiprocessors, memory.
const SM_CLOCK: u32 = 1;
const MEMORY_CLOCK: u32 = 2;

/// One sample. What a card cannot mean, such as 200 percent, is left out.
pub(super) fn sample(nvml: &Nvml, facts: &Facts) -> Result<GpuSample, Unreadable> {
    let handle = facts.handle;
    let gpu = &facts.gpu;
    let total = u64::from(u32::try_from(gpu.memory_mib).unwrap_or(u32::MAX));
    asked("nvmlDeviceGetUUID", nvml.uuid(handle))?;
    let tell = |call: &'static str, answer: Answer<u32>, most: u32| {
        asked(call, optional(answer)).map(|value| value.filter(|value| *value <= most))
    };
    let percent = |value: u32| u8::try_from(value).ok().filter(|percent| *percent <= 100);
    let utilization = asked("nvmlDeviceGetUtilizationRates", optional(nvml.utilization(handle)))?;
    let memory = asked("nvmlDeviceGetMemoryInfo", optional(nvml.memory(handle)))?;
    let processes = asked("nvmlDeviceGetComputeRunningProcesses", optional(nvml.processes(handle)))?;
    Ok(GpuSample {
        id: gpu.id.clone(),
        index: gpu.index,
        utilization_percent: utilization.and_then(|(gpu, _)| percent(gpu)),
        memory_utilization_percent: utilization.and_then(|(_, memory)| percent(memory)),
        memory_used_mib: memory.map(|(_, used)| used >> 20).filter(|used| *used <= total),
        memory_total_mib: gpu.memory_mib,
        temperature_celsius: tell("nvmlDeviceGetTemperature", nvml.temperature(handle, 0), 150)?,
        // No card draws more than ten kilowatts.
        power_milliwatts: tell("nvmlDeviceGetPowerUsage", nvml.power(handle), 10_000_000)?,
        power_limit_milliwatts: tell(
            "nvmlDeviceGetEnforcedPowerLimit",
            nvml.power_limit(handle),
            10_000_000,
        )?,
        sm_clock_mhz: tell("nvmlDeviceGetClockInfo", nvml.clock(handle, SM_CLOCK), 100_000)?,
        memory_clock_mhz: tell("nvmlDeviceGetClockInfo", nvml.clock(handle, MEMORY_CLOCK), 100_000)?,
        fan_percent: tell("nvmlDeviceGetFanSpeed", nvml.fan(handle), 255)?.and_then(percent),
        performance_state: tell("nvmlDeviceGetPerformanceState", nvml.performance_state(handle), 15)?
            .and_then(|state| u8::try_from(state).ok()),
        processes: processes
            .unwrap_or_default()
            .into_iter()
            .map(|(pid, bytes)| GpuProcess {
                pid,
                name: nvml.process_name(pid).ok().map(|path| program(&path)),
                memory_used_mib: bytes.map(|bytes| bytes >> 20),
            })
            .collect(),
    })
}

/// NVML's numbers of how far a registration with a fabric is.
const FABRIC_NOT_STARTED: u8 = 1;
const FABRIC_IN_PROGRESS: u8 = 2;
const FABRIC_COMPLETED: u8 = 3;

/// What labels and health policy ask beyond the inventory.
pub(super) fn details(nvml: &Nvml, facts: &Facts, devices: &Path) -> Result<GpuDetails, Unreadable> {
    let handle = facts.handle;
    let fabric = asked("nvmlDeviceGetGpuFabricInfo", optional(nvml.fabric(handle)))?;
    let signals = signals(nvml, facts)?;
    let rows = asked("nvmlDeviceGetRemappedRows", optional(nvml.remapped_rows(handle)))?;
    let generation = asked("nvmlDeviceGetNvLinkVersion", optional(nvml.nvlink_version(handle, 0)))?;
    Ok(GpuDetails {
        pci_class: pci_class(devices, &facts.gpu.pci_bus_id),
        nvlink_generation: generation,
        fabric: fabric.and_then(|(state, status, cluster, clique)| {
            let state = match state {
                FABRIC_NOT_STARTED => FabricState::NotStarted,
                FABRIC_IN_PROGRESS => FabricState::InProgress,
                FABRIC_COMPLETED => FabricState::Completed { status },
                _ => return None,
            };
            Some(FabricInfo { state, cluster, clique })
        }),
        recovery: signals.recovery_action.and_then(RecoveryAction::from_nvml),
        row_remap_pending: rows.map(|[_, _, pending, _]| pending > 0),
    })
}

/// The program of a process, without its folder.
fn program(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// The handle of a card that was read before, or of the one at an index.
pub(super) fn find(nvml: &Nvml, index: u32, known: Option<&GpuId>) -> Result<Handle, Unreadable> {
    match known {
        Some(id) => asked("nvmlDeviceGetHandleByUUID", nvml.by_uuid(id.as_str())),
        None => asked("nvmlDeviceGetHandleByIndex", nvml.by_index(index)),
    }
}
