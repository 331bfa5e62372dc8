//! NVML's C interface.
//!
//! [`abi`] holds the few places that touch the caller's memory, [`context`] what every call does first; the other modules are
//! NVML's functions by topic, each a row of an `api!` block. Names, arguments, structures and error codes are those of
//! NVIDIA's `nvml.h`; structures come from `nvml-wrapper-sys`, which is generated from it.

mod abi;
mod context;
mod device;
mod events;
mod fields;
mod gpm;
mod health;
mod link;
mod mig;
mod mig_info;
mod system;
#[cfg(test)]
mod tests;

use abi::{Code, Out, Result, Text, fill};
use context::{Context, Device};

/// Functions with NVML's C interface. Each checks first that the library is initialised and that this driver has the function.
macro_rules! api {
    ($(fn $name:ident($($arg:ident: $kind:ty),* $(,)?) |$cx:ident| $body:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub(crate) extern "C" fn $name($($arg: $kind),*) -> nvml_wrapper_sys::bindings::nvmlReturn_t {
            $crate::ffi::context::call(stringify!($name), |$cx| $body)
        }
    )*};
}
use api;
