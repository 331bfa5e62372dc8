//! The interface as a C caller meets it. One test: the library is one for a process.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlFieldValue_t, nvmlGpmSupport_t, nvmlGpuFabricInfo_v3_t, nvmlMemory_v2_t, nvmlValue_t,
};

use super::abi::version;
use super::context::library;
use super::{Code, Device, Out, device, fields, gpm, health, link, system};
use crate::{Fault, Paths, Store};

const VERSION_MISMATCH: u32 = 25;
const INSUFFICIENT_SIZE: u32 = 7;

/// `nvmlGpmMetric_t`.
#[derive(Debug, PartialEq)]
#[repr(C)]
struct Row {
    id: c_uint,
    code: c_uint,
    value: f64,
    names: [usize; 3],
}

/// What follows `nvmlGpmMetricsGet_t`'s head, as a caller with an old header has it: room for two metrics.
#[repr(C)]
struct Request {
    version: c_uint,
    count: c_uint,
    samples: [usize; 2],
    rows: [Row; 2],
    /// Must stay as it is.
    after: u64,
}

#[test]
fn callers_get_what_they_ask_for_and_codes_for_what_they_may_not() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.yaml");
    let state = folder.path().join("state.json");
    std::fs::write(&config, format!("model: h100\ncount: 2\nstate: {}\nvisible: all", state.display()))
        .unwrap();
    let mut count = 0;
    assert_eq!(device::nvmlDeviceGetCount_v2(Out::to(&mut count)), Code::UNINITIALIZED.0);
    assert_eq!(system::nvmlShutdown(), Code::UNINITIALIZED.0);
    library().set_paths(Paths { config: Some(config.clone()), carrier: None });
    assert_eq!(system::nvmlInit_v2(), 0);
    assert_eq!((device::nvmlDeviceGetCount_v2(Out::to(&mut count)), count), (0, 2));

    let mut card = Device(0);
    assert_eq!(device::nvmlDeviceGetHandleByIndex_v2(2, Out::to(&mut card)), Code::INVALID_ARGUMENT.0);
    assert_eq!(device::nvmlDeviceGetHandleByIndex_v2(0, Out::null()), Code::INVALID_ARGUMENT.0);
    assert_eq!(device::nvmlDeviceGetHandleByIndex_v2(1, Out::to(&mut card)), 0);
    let mut name: [c_char; 8] = [0; 8];
    assert_eq!(device::nvmlDeviceGetName(card, Out::to(&mut name).cast(), 8), INSUFFICIENT_SIZE);
    assert_eq!(device::nvmlDeviceGetMinorNumber(Device(7), Out::to(&mut count)), Code::INVALID_ARGUMENT.0);

    // Versions: of a structure of another size, of one that is not known, and the right ones.
    let mut memory = nvmlMemory_v2_t { version: 0, total: 0, reserved: 0, free: 0, used: 0 };
    assert_eq!(device::nvmlDeviceGetMemoryInfo_v2(card, Out::to(&mut memory)), VERSION_MISMATCH);
    memory.version = version::<nvmlMemory_v2_t>(2);
    assert_eq!(
        (device::nvmlDeviceGetMemoryInfo_v2(card, Out::to(&mut memory)), memory.total >> 20),
        (0, 81_559)
    );
    let mut fabric = nvmlGpuFabricInfo_v3_t {
        version: version::<nvmlGpuFabricInfo_v3_t>(4),
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    assert_eq!(link::nvmlDeviceGetGpuFabricInfoV(card, Out::to(&mut fabric).cast()), VERSION_MISMATCH);
    fabric.version = version::<nvmlGpuFabricInfo_v3_t>(3);
    assert_eq!(
        (link::nvmlDeviceGetGpuFabricInfoV(card, Out::to(&mut fabric).cast()), fabric.healthSummary),
        (0, 1)
    );

    // Each field has its own code.
    let field = |id| nvmlFieldValue_t {
        fieldId: id,
        scopeId: 0,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        nvmlReturn: 99,
        value: nvmlValue_t { ullVal: 0 },
    };
    let mut values = [field(90), field(230), field(99_999)];
    assert_eq!(fields::nvmlDeviceGetFieldValues(card, 3, Out::to(&mut values).cast()), 0);
    let codes = values.map(|value| value.nvmlReturn);
    assert_eq!(codes, [0, Code::NOT_SUPPORTED.0, Code::INVALID_ARGUMENT.0]);
    assert_eq!((values[0].valueType, values[0].timestamp > 0), (1, true));

    // GPM, with a structure as short as an old header has it.
    let store = Store::new(&state);
    store
        .update::<_, crate::Error>(|state| {
            let process = crate::Process { pid: 1, utilization: 80, ..crate::Process::default() };
            state.card(1).processes.push(process);
            Ok(())
        })
        .unwrap();
    let mut support = nvmlGpmSupport_t { version: 1, isSupportedDevice: 0 };
    assert_eq!(gpm::nvmlGpmQueryDeviceSupport(card, Out::to(&mut support)), 0);
    assert_eq!(support.isSupportedDevice, 1);
    let mut samples = [Device(0); 2];
    for sample in &mut samples {
        assert_eq!(gpm::nvmlGpmSampleAlloc(Out::to(sample)), 0);
        assert_eq!(gpm::nvmlGpmSampleGet(card, *sample), 0);
    }
    let mut metrics = Request {
        version: 1,
        count: 2,
        samples: samples.map(|sample| sample.0),
        rows: [1, 4_000].map(|id| Row { id, code: 9, value: 1.0, names: [1; 3] }),
        after: 0x1234,
    };
    assert_eq!(gpm::nvmlGpmMetricsGet(Out::to(&mut metrics).cast()), 0);
    assert_eq!(metrics.rows[0], Row { id: 1, code: 0, value: 80.0, names: [0; 3] });
    assert_eq!((metrics.rows[1].code, metrics.after), (Code::NOT_SUPPORTED.0, 0x1234));
    assert_eq!(gpm::nvmlGpmSampleFree(samples[0]), 0);
    assert_eq!(gpm::nvmlGpmSampleFree(samples[0]), Code::INVALID_ARGUMENT.0);

    // A function that this driver does not have, counters, a card that is gone.
    store
        .update::<_, crate::Error>(|state| {
            state.missing = vec!["nvmlDeviceGetCount_v2".to_owned()];
            state.fail(0, Fault::FallenOffBus);
            state.fail(1, Fault::EccDouble(3));
            Ok(())
        })
        .unwrap();
    assert_eq!(device::nvmlDeviceGetCount_v2(Out::to(&mut count)), Code::FUNCTION_NOT_FOUND.0);
    assert_eq!(device::nvmlDeviceGetHandleByIndex_v2(0, Out::to(&mut card)), Code::GPU_IS_LOST.0);
    let mut errors = 0_u64;
    assert_eq!((health::nvmlDeviceGetTotalEccErrors(card, 1, 0, Out::to(&mut errors)), errors), (0, 3));
    assert_eq!(system::nvmlShutdown(), 0);
    assert_eq!(device::nvmlDeviceGetCount(Out::to(&mut count)), Code::UNINITIALIZED.0);
}
