//! The library itself and the driver.

#![expect(unsafe_code, reason = "exported symbols")]

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::context::{self, guard, library};
use super::{Code, Out, Result, api};
use crate::Error;

fn init() -> Result {
    let mut library = library();
    if library.initialised == 0 {
        let node = context::load(&mut library).map_err(|error| {
            complain(&error);
            Code::from(error)
        })?;
        if node.visible().is_none() {
            context::forget(&mut library);
            return Err(Code::DRIVER_NOT_LOADED);
        }
    }
    library.initialised += 1;
    Ok(())
}

#[expect(clippy::print_stderr, reason = "NVML's codes cannot say which file is wrong")]
fn complain(error: &Error) {
    let source = std::error::Error::source(error).map(|source| format!(": {source}"));
    eprintln!("simulated libnvidia-ml.so.1: {error}{}", source.unwrap_or_default());
}

/// Initialises the library.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    guard(init)
}

/// The first form of [`nvmlInit_v2`].
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInit() -> nvmlReturn_t {
    guard(init)
}

/// [`nvmlInit_v2`]; the flags say what to do without GPUs, of which a simulated node has at least one.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    guard(init)
}

/// Ends what one `nvmlInit` began.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    guard(|| {
        let mut library = library();
        library.initialised = library.initialised.checked_sub(1).ok_or(Code::UNINITIALIZED)?;
        if library.initialised == 0 {
            context::forget(&mut library);
        }
        Ok(())
    })
}

/// What a code says.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    let text = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"The requested vgpu operation is not available on target device, becasue ECC is enabled",
        23 => c"Insufficient Resources",
        24 => c"Frequency not supported",
        25 => c"Argument version mismatch",
        26 => c"Deprecated",
        27 => c"Not Ready",
        28 => c"GPU not found",
        29 => c"Invalid state",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

api! {
    fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) |cx| {
        version.put_text(length, &cx.node.config.driver_version)
    };
    fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) |cx| {
        version.put_text(length, &cx.node.config.nvml_version)
    };
    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) |cx| version.put(cuda(cx.node.config.cuda_version));
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) |cx| version.put(cuda(cx.node.config.cuda_version));
    fn nvmlSystemGetProcessName(pid: c_uint, name: Out<c_char>, length: c_uint) |cx| {
        let mut all = cx.node.cards.iter().flat_map(|card| &card.state.processes);
        let process = all.find(|process| process.pid == pid).ok_or(Code::NOT_FOUND)?;
        // A name that is too long is cut, unlike other texts.
        let room = (length as usize).saturating_sub(1).min(process.name.len());
        name.put_bytes(length, &process.name.as_bytes()[..room])
    };
}

/// CUDA's way to write a version: 12040 is 12.4.
fn cuda((major, minor): (u32, u32)) -> c_int {
    c_int::try_from(major * 1_000 + minor * 10).unwrap_or(c_int::MAX)
}
