//! Readings through NVML. What it does not tell is 0, or absent.

#![expect(unsafe_code, reason = "a C library")]

use std::ffi::{CStr, c_char, c_uint};

use gantry_model::LinkKind;
use gantry_smi::{GpuReading, MigReading, ProcessReading};
use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
    nvmlProcessInfo_v2_t, nvmlUtilization_t,
};

/// Why there is nothing to read.
pub(crate) enum Missing {
    /// The library cannot be loaded.
    Library(String),
    /// The library says that it cannot work.
    Driver(u32, String),
}

/// The library, initialised.
pub(crate) struct Nvml(NvmlLib);

/// Calls a function; `None` where the library lacks it or refuses.
macro_rules! ask {
    ($nvml:expr, $name:ident($($argument:expr),*)) => {{
        // SAFETY: the signature is that of NVIDIA's header; handles come from NVML, and places are as large as it asks.
        $nvml.0.$name.as_ref().ok().map(|function| unsafe { function($($argument),*) }).filter(|code| *code == 0)
    }};
}

/// A number of a card.
macro_rules! number {
    ($nvml:expr, $name:ident($($argument:expr),*)) => {{
        let mut value: c_uint = 0;
        ask!($nvml, $name($($argument,)* &raw mut value)).map(|_| value)
    }};
}

impl Nvml {
    pub(crate) fn open() -> Result<Self, Missing> {
        // SAFETY: NVML has no requirements on being loaded.
        let lib = unsafe { NvmlLib::new("libnvidia-ml.so.1") }
            .map_err(|error| Missing::Library(error.to_string()))?;
        let code = match &lib.nvmlInit_v2 {
            // SAFETY: the function takes nothing.
            Ok(init) => unsafe { init() },
            Err(error) => return Err(Missing::Library(error.to_string())),
        };
        if code == 0 {
            return Ok(Self(lib));
        }
        let reason = match &lib.nvmlErrorString {
            // SAFETY: NVML returns a string that it owns for ever.
            Ok(function) => unsafe { CStr::from_ptr(function(code)) }.to_string_lossy().into_owned(),
            Err(_) => code.to_string(),
        };
        Err(Missing::Driver(code, reason))
    }

    pub(crate) fn driver_version(&self) -> String {
        text(|place, room| ask!(self, nvmlSystemGetDriverVersion(place, room)))
    }

    pub(crate) fn cuda_version(&self) -> i32 {
        let mut value = 0;
        ask!(self, nvmlSystemGetCudaDriverVersion_v2(&raw mut value)).map_or(0, |_| value)
    }

    pub(crate) fn count(&self) -> u32 {
        number!(self, nvmlDeviceGetCount_v2()).unwrap_or(0)
    }

    fn handle(&self, index: u32) -> Option<nvmlDevice_t> {
        let mut device = std::ptr::null_mut();
        ask!(self, nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)).map(|_| device)
    }

    fn uuid(&self, device: nvmlDevice_t) -> String {
        text(|place, room| ask!(self, nvmlDeviceGetUUID(device, place, room)))
    }

    fn name(&self, device: nvmlDevice_t) -> String {
        text(|place, room| ask!(self, nvmlDeviceGetName(device, place, room)))
    }

    /// Total and used memory in MiB.
    fn memory(&self, device: nvmlDevice_t) -> (u64, u64) {
        let version = c_uint::try_from(size_of::<nvmlMemory_v2_t>()).unwrap_or(0) | 2 << 24;
        let mut second = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        if ask!(self, nvmlDeviceGetMemoryInfo_v2(device, &raw mut second)).is_some() {
            return (second.total >> 20, second.used >> 20);
        }
        let mut first = nvmlMemory_t { total: 0, free: 0, used: 0 };
        ask!(self, nvmlDeviceGetMemoryInfo(device, &raw mut first));
        (first.total >> 20, first.used >> 20)
    }

    fn errors(&self, device: nvmlDevice_t, kind: c_uint) -> u64 {
        let mut count = 0;
        ask!(self, nvmlDeviceGetTotalEccErrors(device, kind, 0, &raw mut count)).map_or(0, |_| count)
    }

    fn processes(&self, device: nvmlDevice_t) -> Vec<ProcessReading> {
        let empty = nvmlProcessInfo_v2_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
        let mut list = vec![empty; 1_024];
        let mut count = c_uint::try_from(list.len()).unwrap_or(0);
        let place = list.as_mut_ptr();
        if ask!(self, nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, place)).is_none() {
            return Vec::new();
        }
        list.truncate(count as usize);
        let row = |row: nvmlProcessInfo_v2_t| ProcessReading {
            pid: row.pid,
            name: text(|place, room| ask!(self, nvmlSystemGetProcessName(row.pid, place, room))),
            memory_mib: row.usedGpuMemory >> 20,
            gpu_instance: (row.gpuInstanceId != c_uint::MAX).then_some(row.gpuInstanceId),
        };
        list.into_iter().map(row).collect()
    }

    fn mig_devices(&self, device: nvmlDevice_t) -> Vec<MigReading> {
        let count = number!(self, nvmlDeviceGetMaxMigDeviceCount(device)).unwrap_or(0);
        (0..count).filter_map(|index| self.mig_device(device, index)).collect()
    }

    fn mig_device(&self, device: nvmlDevice_t, index: u32) -> Option<MigReading> {
        let mut mig = std::ptr::null_mut();
        ask!(self, nvmlDeviceGetMigDeviceHandleByIndex(device, index, &raw mut mig))?;
        let mut own = nvmlDeviceAttributes_t {
            multiprocessorCount: 0,
            sharedCopyEngineCount: 0,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
            gpuInstanceSliceCount: 0,
            computeInstanceSliceCount: 0,
            memorySizeMB: 0,
        };
        ask!(self, nvmlDeviceGetAttributes_v2(mig, &raw mut own))?;
        let name = self.name(mig);
        let (total, used) = self.memory(mig);
        Some(MigReading {
            index,
            uuid: self.uuid(mig),
            profile: name.rsplit(" MIG ").next().unwrap_or(&name).to_owned(),
            gpu_instance: number!(self, nvmlDeviceGetGpuInstanceId(mig))?,
            compute_instance: number!(self, nvmlDeviceGetComputeInstanceId(mig))?,
            memory_total_mib: total,
            memory_used_mib: used,
            engines: [
                own.multiprocessorCount,
                own.sharedCopyEngineCount,
                own.sharedEncoderCount,
                own.sharedDecoderCount,
                own.sharedOfaCount,
                own.sharedJpegCount,
            ],
        })
    }

    pub(crate) fn reading(&self, index: u32) -> GpuReading {
        let lost = GpuReading { minor: index, lost: true, ..GpuReading::default() };
        let Some(device) = self.handle(index) else { return lost };
        let Some(minor) = number!(self, nvmlDeviceGetMinorNumber(device)) else { return lost };
        let mut pci = nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: [0; 32],
        };
        ask!(self, nvmlDeviceGetPciInfo_v3(device, &raw mut pci));
        let bus_id = format!("{:08X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device);
        let (memory_total_mib, memory_used_mib) = self.memory(device);
        let mut rates = nvmlUtilization_t { gpu: 0, memory: 0 };
        ask!(self, nvmlDeviceGetUtilizationRates(device, &raw mut rates));
        let (mut major, mut minor_capability) = (0, 0);
        ask!(self, nvmlDeviceGetCudaComputeCapability(device, &raw mut major, &raw mut minor_capability));
        let (mut now, mut pending) = (0, 0);
        let mig = ask!(self, nvmlDeviceGetMigMode(device, &raw mut now, &raw mut pending)).map(|_| now == 1);
        let ecc = ask!(self, nvmlDeviceGetEccMode(device, &raw mut now, &raw mut pending)).map(|_| now == 1);
        let mut throttle = 0;
        ask!(self, nvmlDeviceGetCurrentClocksThrottleReasons(device, &raw mut throttle));
        let part = |number: i32| u32::try_from(number).unwrap_or(0);
        GpuReading {
            minor,
            uuid: self.uuid(device),
            name: self.name(device),
            numa_node: numa_node(&bus_id),
            bus_id,
            memory_total_mib,
            memory_used_mib,
            utilization_gpu: rates.gpu,
            utilization_memory: rates.memory,
            temperature_c: number!(self, nvmlDeviceGetTemperature(device, 0)).unwrap_or(0),
            power_draw_mw: number!(self, nvmlDeviceGetPowerUsage(device)).unwrap_or(0).into(),
            power_limit_mw: number!(self, nvmlDeviceGetEnforcedPowerLimit(device)).unwrap_or(0).into(),
            fan: number!(self, nvmlDeviceGetFanSpeed(device)),
            performance_state: number!(self, nvmlDeviceGetPerformanceState(device))
                .and_then(|state| u8::try_from(state).ok())
                .unwrap_or(0),
            sm_clock_mhz: number!(self, nvmlDeviceGetClockInfo(device, 1)).unwrap_or(0),
            sm_clock_max_mhz: number!(self, nvmlDeviceGetMaxClockInfo(device, 1)).unwrap_or(0),
            memory_clock_mhz: number!(self, nvmlDeviceGetClockInfo(device, 2)).unwrap_or(0),
            memory_clock_max_mhz: number!(self, nvmlDeviceGetMaxClockInfo(device, 2)).unwrap_or(0),
            pcie_generation_max: number!(self, nvmlDeviceGetMaxPcieLinkGeneration(device)).unwrap_or(0),
            pci_device_id: pci.pciDeviceId,
            vbios: text(|place, room| ask!(self, nvmlDeviceGetVbiosVersion(device, place, room))),
            compute_capability: (part(major), part(minor_capability)),
            ecc,
            mig,
            ecc_errors: (self.errors(device, 0), self.errors(device, 1)),
            throttle: throttle & !1,
            mig_devices: self.mig_devices(device),
            processes: self.processes(device),
            lost: false,
        }
    }

    /// How two GPUs are connected, by minor number.
    pub(crate) fn link(&self, a: u32, b: u32) -> Option<LinkKind> {
        let find = |minor: u32| {
            let mut handles = (0..self.count()).filter_map(|index| self.handle(index));
            handles.find(|device| number!(self, nvmlDeviceGetMinorNumber(*device)) == Some(minor))
        };
        let (a, b) = (find(a)?, find(b)?);
        let lanes = |device: nvmlDevice_t| {
            (0..18).filter(move |lane| number!(self, nvmlDeviceGetNvLinkState(device, *lane)) == Some(1))
        };
        // Lanes lead to a switch, and so to every GPU, or to one GPU.
        let (mut status, mut count) = (0, 0);
        if ask!(self, nvmlDeviceGetP2PStatus(a, b, 2, &raw mut status)).is_some() && status == 0 {
            count = lanes(a).count().min(lanes(b).count());
        }
        if count > 0 {
            return Some(LinkKind::NvLink(u8::try_from(count).unwrap_or(u8::MAX)));
        }
        Some(match number!(self, nvmlDeviceGetTopologyCommonAncestor(a, b))? {
            0..=10 => LinkKind::SingleSwitch,
            11..=20 => LinkKind::MultiSwitch,
            21..=30 => LinkKind::HostBridge,
            31..=40 => LinkKind::Node,
            _ => LinkKind::System,
        })
    }
}

/// The NUMA node, which the kernel tells rather than NVML.
fn numa_node(bus_id: &str) -> Option<u32> {
    let address = bus_id.get(4..)?.to_ascii_lowercase();
    std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/numa_node")).ok()?.trim().parse().ok()
}

/// A text that a call writes; empty where there is none.
fn text(get: impl FnOnce(*mut c_char, c_uint) -> Option<c_uint>) -> String {
    let mut bytes = [0 as c_char; 256];
    let room = c_uint::try_from(bytes.len()).unwrap_or(0);
    if get(bytes.as_mut_ptr(), room).is_none() {
        return String::new();
    }
    let bytes: Vec<u8> =
        bytes.iter().take_while(|byte| **byte != 0).map(|byte| byte.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
