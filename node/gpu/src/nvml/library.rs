//! The library, loaded while the program runs, and its functions as calls that are safe.

#![expect(unsafe_code, reason = "a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::path::{Path, PathBuf};

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlDeviceAttributes_t, nvmlEventData_t, nvmlEventSet_t, nvmlFieldValue_t,
    nvmlGpuFabricInfo_t, nvmlGpuFabricInfo_v2_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t,
    nvmlProcessInfo_v2_t, nvmlReturn_t, nvmlUtilization_t,
};

use crate::Error;

/// The name by which the dynamic loader knows the library.
pub(super) const SONAME: &str = "libnvidia-ml.so.1";

/// Folders of libraries below a driver root, in the order in which they are tried: Debian's, Red Hat's, the plain ones.
const FOLDERS: [&str; 6] = [
    #[cfg(target_arch = "aarch64")]
    "usr/lib/aarch64-linux-gnu",
    #[cfg(not(target_arch = "aarch64"))]
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    #[cfg(target_arch = "aarch64")]
    "lib/aarch64-linux-gnu",
    #[cfg(not(target_arch = "aarch64"))]
    "lib/x86_64-linux-gnu",
    "lib64",
    "usr/lib",
    "lib",
];

/// What NVML answered instead of doing what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Code(pub(super) nvmlReturn_t);

macro_rules! codes {
    ($($name:ident = $value:ident)*) => {
        impl Code {
            $(pub(super) const $name: Self = Self(nvml_wrapper_sys::bindings::$value);)*
        }
    };
}
codes! {
    INVALID_ARGUMENT = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT
    NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
    NO_PERMISSION = nvmlReturn_enum_NVML_ERROR_NO_PERMISSION
    NOT_FOUND = nvmlReturn_enum_NVML_ERROR_NOT_FOUND
    INSUFFICIENT_SIZE = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE
    TIMEOUT = nvmlReturn_enum_NVML_ERROR_TIMEOUT
    FUNCTION_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
    IN_USE = nvmlReturn_enum_NVML_ERROR_IN_USE
    RESET_REQUIRED = nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED
    NO_DATA = nvmlReturn_enum_NVML_ERROR_NO_DATA
    INSUFFICIENT_RESOURCES = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES
    VERSION_MISMATCH = nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    UNKNOWN = nvmlReturn_enum_NVML_ERROR_UNKNOWN
}

pub(super) type Answer<T> = Result<T, Code>;

/// `None` where this card or driver does not tell; an error only where the card has a problem.
pub(super) fn optional<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(
            Code::NOT_SUPPORTED
            | Code::FUNCTION_NOT_FOUND
            | Code::VERSION_MISMATCH
            | Code::NO_DATA
            | Code::NO_PERMISSION
            | Code::NOT_FOUND
            | Code::INVALID_ARGUMENT,
        ) => Ok(None),
        Err(code) => Err(code),
    }
}

/// A handle of NVML: of a GPU, a MIG device, or an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handle(pub(super) nvmlDevice_t);

// SAFETY: NVML's handles name things of the driver; they may be used from any thread, as NVML's documentation says of all its
// functions, and nothing here reads what they point to.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A set of events.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventSet(nvmlEventSet_t);

// SAFETY: as for `Handle`; it is used by one thread at a time.
unsafe impl Send for EventSet {}

/// The library, initialised. Shut down when it is dropped, which no thread that is still inside a call lets happen.
pub(super) struct Nvml {
    pub(super) lib: NvmlLib,
    pub(super) path: PathBuf,
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvml").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        let _ = call!(self, nvmlShutdown());
    }
}

/// Calls a function; one that the library lacks is `FUNCTION_NOT_FOUND`, as NVML itself says of what its driver lacks.
macro_rules! call {
    ($nvml:expr, $name:ident($($argument:expr),*)) => {
        match &$nvml.lib.$name {
            Ok(function) => {
                // SAFETY: the signature is that of NVIDIA's header; the arguments are handles that NVML gave out, and
                // places that live longer than the call and are as large as the function's documentation asks.
                $crate::nvml::library::check(unsafe { function($($argument),*) })
            }
            Err(_) => Err($crate::nvml::library::Code::FUNCTION_NOT_FOUND),
        }
    };
}
pub(super) use call;

pub(super) fn check(code: nvmlReturn_t) -> Answer<()> {
    if code == 0 { Ok(()) } else { Err(Code(code)) }
}

/// A function that fills one value of a card.
macro_rules! readings {
    ($($(#[$doc:meta])* $name:ident: $function:ident($($argument:ident: $kind:ty),*) -> $value:ty;)*) => {$(
        $(#[$doc])*
        pub(super) fn $name(&self, device: Handle, $($argument: $kind),*) -> Answer<$value> {
            let mut value = <$value>::default();
            call!(self, $function(device.0, $($argument,)* &raw mut value))?;
            Ok(value)
        }
    )*};
}

impl Nvml {
    /// Loads the library of a driver root, or the one that the dynamic loader finds where the root is `/`.
    pub(super) fn load(library: Option<&Path>, driver_root: &Path) -> Result<Self, Error> {
        let candidates: Vec<PathBuf> = match library {
            Some(path) => vec![path.to_path_buf()],
            None => {
                let soname = (driver_root == Path::new("/")).then(|| PathBuf::from(SONAME));
                let below = FOLDERS.iter().map(|folder| driver_root.join(folder).join(SONAME));
                soname.into_iter().chain(below).collect()
            }
        };
        let mut tried = Vec::new();
        for path in candidates {
            // A path without a folder is a name that the loader looks up.
            if path.components().count() > 1 && !path.exists() {
                tried.push(format!("{} is not there", path.display()));
                continue;
            }
            // SAFETY: NVML has no requirements on being loaded; that the file is NVML is what the path says.
            match unsafe { NvmlLib::new(&path) } {
                Ok(lib) => return Ok(Self { lib, path }),
                Err(error) => tried.push(error.to_string()),
            }
        }
        Err(Error::NoLibrary { tried: tried.join("; ") })
    }

    pub(super) fn init(&self) -> Answer<()> {
        call!(self, nvmlInit_v2())
    }

    /// What a code says, in NVML's words.
    pub(super) fn describe(&self, code: Code) -> String {
        let Ok(function) = &self.lib.nvmlErrorString else { return format!("NVML error {}", code.0) };
        // SAFETY: NVML returns a string that it owns for ever, or null.
        let text = unsafe {
            let text = function(code.0);
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
        };
        text.unwrap_or_else(|| format!("NVML error {}", code.0))
    }

    pub(super) fn driver_version(&self) -> Answer<String> {
        text::<96>(|place, room| call!(self, nvmlSystemGetDriverVersion(place, room)))
    }

    /// CUDA's version, as 12040 for 12.4.
    pub(super) fn cuda_version(&self) -> Answer<i32> {
        let mut value: c_int = 0;
        match call!(self, nvmlSystemGetCudaDriverVersion_v2(&raw mut value)) {
            Err(Code::FUNCTION_NOT_FOUND) => call!(self, nvmlSystemGetCudaDriverVersion(&raw mut value))?,
            other => other?,
        }
        Ok(value)
    }

    pub(super) fn process_name(&self, pid: u32) -> Answer<String> {
        text::<256>(|place, room| call!(self, nvmlSystemGetProcessName(pid, place, room)))
    }

    pub(super) fn count(&self) -> Answer<u32> {
        let mut value = 0;
        call!(self, nvmlDeviceGetCount_v2(&raw mut value))?;
        Ok(value)
    }

    pub(super) fn by_index(&self, index: u32) -> Answer<Handle> {
        handle(|place| call!(self, nvmlDeviceGetHandleByIndex_v2(index, place)))
    }

    pub(super) fn by_uuid(&self, uuid: &str) -> Answer<Handle> {
        let uuid = std::ffi::CString::new(uuid).map_err(|_| Code::INVALID_ARGUMENT)?;
        handle(|place| call!(self, nvmlDeviceGetHandleByUUID(uuid.as_ptr(), place)))
    }

    pub(super) fn mig_device(&self, device: Handle, index: u32) -> Answer<Handle> {
        handle(|place| call!(self, nvmlDeviceGetMigDeviceHandleByIndex(device.0, index, place)))
    }

    pub(super) fn uuid(&self, device: Handle) -> Answer<String> {
        text::<96>(|place, room| call!(self, nvmlDeviceGetUUID(device.0, place, room)))
    }

    pub(super) fn name(&self, device: Handle) -> Answer<String> {
        text::<96>(|place, room| call!(self, nvmlDeviceGetName(device.0, place, room)))
    }

    readings! {
        minor: nvmlDeviceGetMinorNumber() -> c_uint;
        power: nvmlDeviceGetPowerUsage() -> c_uint;
        power_limit: nvmlDeviceGetEnforcedPowerLimit() -> c_uint;
        performance_state: nvmlDeviceGetPerformanceState() -> c_uint;
        clock: nvmlDeviceGetClockInfo(kind: c_uint) -> c_uint;
        temperature: nvmlDeviceGetTemperature(sensor: c_uint) -> c_uint;
        fan: nvmlDeviceGetFanSpeed() -> c_uint;
        pcie_generation: nvmlDeviceGetMaxPcieLinkGeneration() -> c_uint;
        pcie_width: nvmlDeviceGetMaxPcieLinkWidth() -> c_uint;
        max_mig_devices: nvmlDeviceGetMaxMigDeviceCount() -> c_uint;
        gpu_instance_id: nvmlDeviceGetGpuInstanceId() -> c_uint;
        compute_instance_id: nvmlDeviceGetComputeInstanceId() -> c_uint;
        nvlink_state: nvmlDeviceGetNvLinkState(lane: c_uint) -> c_uint;
        nvlink_remote_kind: nvmlDeviceGetNvLinkRemoteDeviceType(lane: c_uint) -> c_uint;
        nvlink_version: nvmlDeviceGetNvLinkVersion(lane: c_uint) -> c_uint;
        event_kinds: nvmlDeviceGetSupportedEventTypes() -> u64;
        ecc_errors: nvmlDeviceGetTotalEccErrors(kind: c_uint, counter: c_uint) -> u64;
    }

    /// The nearest thing on PCIe that two cards share, as NVML's level.
    pub(super) fn common_ancestor(&self, a: Handle, b: Handle) -> Answer<c_uint> {
        let mut value = 0;
        call!(self, nvmlDeviceGetTopologyCommonAncestor(a.0, b.0, &raw mut value))?;
        Ok(value)
    }

    pub(super) fn compute_capability(&self, device: Handle) -> Answer<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        call!(self, nvmlDeviceGetCudaComputeCapability(device.0, &raw mut major, &raw mut minor))?;
        Ok((major, minor))
    }

    /// Whether MIG mode is on now, and after a reset.
    pub(super) fn mig_mode(&self, device: Handle) -> Answer<(bool, bool)> {
        let (mut now, mut pending) = (0, 0);
        call!(self, nvmlDeviceGetMigMode(device.0, &raw mut now, &raw mut pending))?;
        Ok((now == 1, pending == 1))
    }

    /// Corrected, uncorrected, pending, failed.
    pub(super) fn remapped_rows(&self, device: Handle) -> Answer<[c_uint; 4]> {
        let [mut a, mut b, mut c, mut d] = [0; 4];
        call!(self, nvmlDeviceGetRemappedRows(device.0, &raw mut a, &raw mut b, &raw mut c, &raw mut d))?;
        Ok([a, b, c, d])
    }

    pub(super) fn utilization(&self, device: Handle) -> Answer<(c_uint, c_uint)> {
        let mut value = nvmlUtilization_t { gpu: 0, memory: 0 };
        call!(self, nvmlDeviceGetUtilizationRates(device.0, &raw mut value))?;
        Ok((value.gpu, value.memory))
    }

    /// Total and used bytes. Used is without what the driver reserves, where the driver tells them apart.
    pub(super) fn memory(&self, device: Handle) -> Answer<(u64, u64)> {
        let version = version::<nvmlMemory_v2_t>(2);
        let mut second = nvmlMemory_v2_t { version, total: 0, reserved: 0, free: 0, used: 0 };
        if let Some(()) = optional(call!(self, nvmlDeviceGetMemoryInfo_v2(device.0, &raw mut second)))? {
            return Ok((second.total, second.used));
        }
        let mut first = nvmlMemory_t { total: 0, free: 0, used: 0 };
        call!(self, nvmlDeviceGetMemoryInfo(device.0, &raw mut first))?;
        Ok((first.total, first.used))
    }

    pub(super) fn pci(&self, device: Handle) -> Answer<(u32, u32, u32)> {
        let mut info = no_pci();
        call!(self, nvmlDeviceGetPciInfo_v3(device.0, &raw mut info))?;
        Ok((info.domain, info.bus, info.device))
    }

    pub(super) fn nvlink_remote(&self, device: Handle, lane: c_uint) -> Answer<(u32, u32, u32)> {
        let mut info = no_pci();
        call!(self, nvmlDeviceGetNvLinkRemotePciInfo_v2(device.0, lane, &raw mut info))?;
        Ok((info.domain, info.bus, info.device))
    }

    pub(super) fn attributes(&self, device: Handle) -> Answer<nvmlDeviceAttributes_t> {
        let mut value = nvmlDeviceAttributes_t {
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
        call!(self, nvmlDeviceGetAttributes_v2(device.0, &raw mut value))?;
        Ok(value)
    }

    /// A field that holds a number without sign.
    pub(super) fn field(&self, device: Handle, field: c_uint) -> Answer<u64> {
        let mut value = nvmlFieldValue_t {
            fieldId: field,
            scopeId: 0,
            timestamp: 0,
            latencyUsec: 0,
            valueType: 0,
            nvmlReturn: 0,
            value: nvml_wrapper_sys::bindings::nvmlValue_t { ullVal: 0 },
        };
        call!(self, nvmlDeviceGetFieldValues(device.0, 1, &raw mut value))?;
        check(value.nvmlReturn)?;
        // SAFETY: every member of the union is plain data of which any bits are valid, and all its bytes are initialised.
        Ok(unsafe {
            match value.valueType {
                // Unsigned int; unsigned long and unsigned long long; unsigned short.
                1 => u64::from(value.value.uiVal),
                2 | 3 => value.value.ullVal,
                6 => u64::from(value.value.usVal),
                _ => return Err(Code::NO_DATA),
            }
        })
    }

    /// Pid and memory in bytes, where it is known, of every process with a context.
    pub(super) fn processes(&self, device: Handle) -> Answer<Vec<(u32, Option<u64>)>> {
        let empty = nvmlProcessInfo_v2_t {
            pid: 0,
            usedGpuMemory: 0,
            gpuInstanceId: u32::MAX,
            computeInstanceId: u32::MAX,
        };
        // Processes come and go between two calls: there is room for some more than the first told of.
        let mut room = 32;
        for _ in 0..4 {
            let mut list = vec![empty; room];
            let mut count = c_uint::try_from(room).unwrap_or(c_uint::MAX);
            let place = list.as_mut_ptr();
            let answer =
                match call!(self, nvmlDeviceGetComputeRunningProcesses_v3(device.0, &raw mut count, place)) {
                    Err(Code::FUNCTION_NOT_FOUND) => {
                        call!(self, nvmlDeviceGetComputeRunningProcesses_v2(device.0, &raw mut count, place))
                    }
                    other => other,
                };
            match answer {
                Err(Code::INSUFFICIENT_SIZE) => room = (count as usize).min(65_536) * 2,
                other => {
                    other?;
                    list.truncate(count as usize);
                    // All bits set: the driver does not know.
                    let known = |bytes: u64| (bytes != u64::MAX).then_some(bytes);
                    return Ok(list.iter().map(|row| (row.pid, known(row.usedGpuMemory))).collect());
                }
            }
        }
        Err(Code::INSUFFICIENT_SIZE)
    }

    /// Registration with an NVLink fabric: state, status, cluster, clique.
    pub(super) fn fabric(&self, device: Handle) -> Answer<(u8, u32, [u8; 16], u32)> {
        let mut second = nvmlGpuFabricInfo_v2_t {
            version: version::<nvmlGpuFabricInfo_v2_t>(2),
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
            healthMask: 0,
        };
        // The function takes the third form by name, and each form by its version.
        let place = (&raw mut second).cast();
        if let Some(()) = optional(call!(self, nvmlDeviceGetGpuFabricInfoV(device.0, place)))? {
            return Ok((second.state, second.status, second.clusterUuid, second.cliqueId));
        }
        let mut first = nvmlGpuFabricInfo_t { clusterUuid: [0; 16], status: 0, cliqueId: 0, state: 0 };
        call!(self, nvmlDeviceGetGpuFabricInfo(device.0, &raw mut first))?;
        Ok((first.state, first.status, first.clusterUuid, first.cliqueId))
    }

    pub(super) fn event_set(&self) -> Answer<EventSet> {
        let mut set = std::ptr::null_mut();
        call!(self, nvmlEventSetCreate(&raw mut set))?;
        Ok(EventSet(set))
    }

    pub(super) fn register(&self, device: Handle, kinds: u64, set: EventSet) -> Answer<()> {
        call!(self, nvmlDeviceRegisterEvents(device.0, kinds, set.0))
    }

    pub(super) fn wait(&self, set: EventSet, milliseconds: u32) -> Answer<nvmlEventData_t> {
        let mut data = nvmlEventData_t {
            device: std::ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: u32::MAX,
            computeInstanceId: u32::MAX,
        };
        call!(self, nvmlEventSetWait_v2(set.0, &raw mut data, milliseconds))?;
        Ok(data)
    }

    pub(super) fn free(&self, set: EventSet) {
        let _ = call!(self, nvmlEventSetFree(set.0));
    }
}

fn no_pci() -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain: 0,
        bus: 0,
        device: 0,
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: [0; 32],
    }
}

/// The version of a structure: its size, and its number above 24 bits.
pub(super) fn version<T>(number: c_uint) -> c_uint {
    c_uint::try_from(size_of::<T>()).unwrap_or(0) | number << 24
}

/// A handle that a call writes.
pub(super) fn handle(get: impl FnOnce(*mut nvmlDevice_t) -> Answer<()>) -> Answer<Handle> {
    let mut value = std::ptr::null_mut();
    get(&raw mut value)?;
    Ok(Handle(value))
}

/// A text that a call writes; bytes that are no text are an error, for a card that says such a thing is not well.
fn text<const ROOM: usize>(get: impl FnOnce(*mut c_char, c_uint) -> Answer<()>) -> Answer<String> {
    let mut bytes = [0; ROOM];
    get(bytes.as_mut_ptr(), c_uint::try_from(ROOM).unwrap_or(0))?;
    text_of(&bytes)
}

/// The text in an array, up to its first zero.
pub(super) fn text_of(bytes: &[c_char]) -> Answer<String> {
    let bytes: Vec<u8> =
        bytes.iter().take_while(|byte| **byte != 0).map(|byte| byte.cast_unsigned()).collect();
    String::from_utf8(bytes).map_err(|_| Code::UNKNOWN)
}
