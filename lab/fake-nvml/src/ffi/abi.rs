//! The caller's memory, and NVML's error codes.

#![expect(unsafe_code, reason = "memory of a C caller")]

use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH as VERSION_MISMATCH,
    nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE as INSUFFICIENT_SIZE,
    nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT as INVALID_ARGUMENT, nvmlReturn_t,
};

/// An error code of NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) nvmlReturn_t);

macro_rules! codes {
    ($($name:ident = $value:ident)*) => {
        impl Code {
            $(pub(crate) const $name: Self = Self(nvml_wrapper_sys::bindings::$value);)*
        }
    };
}
codes! {
    UNINITIALIZED = nvmlReturn_enum_NVML_ERROR_UNINITIALIZED
    INVALID_ARGUMENT = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT
    NOT_SUPPORTED = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED
    NO_PERMISSION = nvmlReturn_enum_NVML_ERROR_NO_PERMISSION
    NOT_FOUND = nvmlReturn_enum_NVML_ERROR_NOT_FOUND
    DRIVER_NOT_LOADED = nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED
    TIMEOUT = nvmlReturn_enum_NVML_ERROR_TIMEOUT
    FUNCTION_NOT_FOUND = nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND
    GPU_IS_LOST = nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST
    IN_USE = nvmlReturn_enum_NVML_ERROR_IN_USE
    INSUFFICIENT_RESOURCES = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES
    UNKNOWN = nvmlReturn_enum_NVML_ERROR_UNKNOWN
}

pub(crate) type Result<T = ()> = std::result::Result<T, Code>;

/// A place in the caller's memory: null, or room for as many `T` as the function's documentation asks for. Only callers of the
/// C interface make one; that they keep NVML's contract is what every use relies on.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

#[cfg(test)]
impl<T> Out<T> {
    /// A place as a C caller would name it.
    pub(crate) fn to(value: &mut T) -> Self {
        Self(value)
    }

    pub(crate) fn null() -> Self {
        Self(std::ptr::null_mut())
    }
}

impl<T> Out<T> {
    /// The same place, seen as another type that the structure's version says it is.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes a value; a null place is refused.
    pub(crate) fn put(self, value: T) -> Result {
        self.put_at(0, value)
    }

    /// Writes the value at an index, which must be within the room that the caller gave.
    pub(crate) fn put_at(self, index: usize, value: T) -> Result {
        if self.0.is_null() {
            return Err(Code(INVALID_ARGUMENT));
        }
        // SAFETY: not null; the caller gave room for more than `index` values.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Reads the value.
    pub(crate) fn get(self) -> Result<T> {
        self.get_at(0)
    }

    /// Reads the value at an index.
    pub(crate) fn get_at(self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(Code(INVALID_ARGUMENT));
        }
        // SAFETY: not null; the caller passed more than `index` values, plain data of which every bit pattern is valid.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Checks the structure's own version, a `c_uint` at its beginning: size in the low 24 bits, number above.
    pub(crate) fn expect_version(self, number: u32) -> Result {
        let expected = version::<T>(number);
        if self.cast::<c_uint>().get()? == expected { Ok(()) } else { Err(Code(VERSION_MISMATCH)) }
    }

    /// The version that the caller wrote, of a structure that begins with one.
    pub(crate) fn version(self) -> Result<c_uint> {
        self.cast::<c_uint>().get()
    }

    /// What follows this value in the caller's memory.
    pub(crate) fn after<U>(self) -> Out<U> {
        Out(self.0.wrapping_add(1).cast())
    }
}

/// The version that a structure of this type has.
pub(crate) fn version<T>(number: u32) -> c_uint {
    c_uint::try_from(size_of::<T>()).unwrap_or(0) | number << 24
}

impl Out<c_char> {
    /// Writes a text with its final zero.
    pub(crate) fn put_text(self, room: c_uint, text: &str) -> Result {
        self.put_bytes(room, text.as_bytes())
    }

    /// Writes bytes with a final zero.
    pub(crate) fn put_bytes(self, room: c_uint, bytes: &[u8]) -> Result {
        if self.is_null() {
            return Err(Code(INVALID_ARGUMENT));
        }
        if bytes.len() >= room as usize {
            return Err(Code(INSUFFICIENT_SIZE));
        }
        for (index, byte) in bytes.iter().chain([&0]).enumerate() {
            self.put_at(index, byte.cast_signed())?;
        }
        Ok(())
    }
}

/// Writes a list where `count` says how much room there is, and how many there are afterwards. As NVML does, a list without
/// room is `INSUFFICIENT_SIZE` and `count` tells what is needed.
pub(crate) fn fill<T: Copy>(count: Out<c_uint>, list: Out<T>, values: &[T]) -> Result {
    let room = count.get()? as usize;
    count.put(c_uint::try_from(values.len()).unwrap_or(c_uint::MAX))?;
    if values.is_empty() {
        return Ok(());
    }
    if room < values.len() || list.is_null() {
        return Err(Code(INSUFFICIENT_SIZE));
    }
    values.iter().enumerate().try_for_each(|(index, value)| list.put_at(index, *value))
}

/// A text of the caller: null or ended by a zero.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text, as far as it is one.
    pub(crate) fn get<'a>(self) -> Result<&'a str> {
        if self.0.is_null() {
            return Err(Code(INVALID_ARGUMENT));
        }
        // SAFETY: not null; NVML's contract is a string that ends with a zero and lives as long as the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code(INVALID_ARGUMENT))
    }
}

/// A text in an array of a structure, cut to its room.
pub(crate) fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (place, byte) in array.iter_mut().zip(text.bytes().take(N - 1)) {
        *place = byte.cast_signed();
    }
    array
}

/// Sizes as `nvml.h` has them: the low bits of the versions that every client compiles in.
#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use nvml_wrapper_sys::bindings::*;

    use super::version;

    #[test]
    fn versions_are_those_of_the_header() {
        // Of NVIDIA's nvml.h, as go-nvml computes them too.
        assert_eq!(version::<nvmlMemory_v2_t>(2), 0x0200_0028);
        assert_eq!(version::<nvmlGpuFabricInfo_v2_t>(2), 0x0200_0024);
        assert_eq!(version::<nvmlGpuFabricInfo_v3_t>(3), 0x0300_0028);
        assert_eq!(version::<nvmlGpuInstanceProfileInfo_v2_t>(2), 0x0200_0098);
        assert_eq!(version::<nvmlGpuInstanceProfileInfo_v3_t>(3), 0x0300_0098);
        assert_eq!(version::<nvmlComputeInstanceProfileInfo_v2_t>(2), 0x0200_0088);
        assert_eq!(version::<nvmlPciInfoExt_v1_t>(1), 0x0100_0040);
        assert_eq!(size_of::<nvmlPciInfo_t>(), 68);
        assert_eq!(size_of::<nvmlDeviceAttributes_t>(), 40);
        assert_eq!(size_of::<nvmlProcessInfo_v2_t>(), 24);
        assert_eq!(size_of::<nvmlEventData_t>(), 32);
        assert_eq!(size_of::<nvmlFieldValue_t>(), 40);
        assert_eq!(size_of::<nvmlUtilization_t>(), 8);
        assert_eq!(size_of::<nvmlGpuInstanceInfo_t>(), 24);
        assert_eq!(size_of::<nvmlComputeInstanceInfo_t>(), 32);
    }
}
