//! Shared objects without code, and symbols taken out of real ones.

/// Bytes before the state in a file that is a library too.
const SIZE: usize = 4_096;

/// Where the text of a state begins in a file.
pub(crate) fn payload(bytes: &[u8]) -> usize {
    if bytes.starts_with(b"\x7fELF") && bytes.len() >= SIZE { SIZE } else { 0 }
}

#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
#[cfg(not(target_arch = "aarch64"))]
const MACHINE: u16 = 62;

/// A shared object of [`SIZE`] bytes with a name and nothing in it: the dynamic loader takes it, `ldconfig` lists it.
/// Its form is that of the ELF specification, 64 bits, little endian.
pub(crate) fn placeholder(soname: &str) -> Vec<u8> {
    const HEADERS: u64 = 64;
    const DYNAMIC: u64 = 0x200;
    const SYMBOLS: u64 = 0x300;
    const HASH: u64 = 0x340;
    const STRINGS: u64 = 0x400;
    let mut strings = vec![0];
    strings.extend(soname.bytes());
    strings.push(0);

    let mut bytes = vec![0_u8; SIZE];
    let mut put = |at: u64, data: &[u8]| {
        let at = usize::try_from(at).expect("invariant: offsets are within one page");
        bytes[at..at + data.len()].copy_from_slice(data);
    };
    let words = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    // Identification: 64 bits, little endian, version 1. Then: shared object, machine, version 1.
    put(0, b"\x7fELF\x02\x01\x01");
    put(16, &3_u16.to_le_bytes());
    put(18, &MACHINE.to_le_bytes());
    put(20, &1_u32.to_le_bytes());
    // No entry, program headers after this header, no sections.
    put(24, &words(&[0, HEADERS, 0]));
    // Flags, sizes of the headers, two program headers, no section headers.
    put(52, &[64, 0, 56, 0, 2, 0, 64, 0, 0, 0, 0, 0]);
    let segment = |kind: u64, at: u64, size: u64, align: u64| {
        // Kind with flags read and write above it, offset, address twice, size twice, alignment.
        words(&[kind | 6 << 32, at, at, at, size, size, align])
    };
    put(HEADERS, &segment(1, 0, SIZE as u64, SIZE as u64));
    // Hash, string table, symbol table, size of strings, size of a symbol, name, end.
    let dynamic = [4, HASH, 5, STRINGS, 6, SYMBOLS, 10, strings.len() as u64, 11, 24, 14, 1, 0, 0];
    put(HEADERS + 56, &segment(2, DYNAMIC, dynamic.len() as u64 * 8, 8));
    put(DYNAMIC, &words(&dynamic));
    // One bucket, one symbol (the empty one), an empty chain.
    put(HASH, &[1, 0, 0, 0, 1, 0, 0, 0]);
    put(STRINGS, &strings);
    bytes
}

/// Renames exported symbols of NVML, so that nobody finds them: a library as an older driver has it. Returns the names that were
/// not there.
pub(crate) fn remove_symbols<'a>(library: &mut [u8], names: &'a [String]) -> Vec<&'a str> {
    let mut absent: Vec<&str> = names.iter().map(String::as_str).collect();
    // Names in a string table stand between zeros.
    let starts: Vec<usize> = library
        .windows(5)
        .enumerate()
        .filter(|(_, window)| *window == b"\0nvml")
        .map(|(at, _)| at + 1)
        .collect();
    for start in starts {
        let length = library[start..].iter().position(|byte| *byte == 0).unwrap_or(0);
        let found = &library[start..start + length];
        if let Some(name) = names.iter().find(|name| name.as_bytes() == found) {
            absent.retain(|other| other != name);
            library[start] = b'-';
        }
    }
    absent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_found_whole() {
        let mut table = b"\0nvmlInit\0nvmlInit_v2\0xnvmlInit\0".to_vec();
        let names = ["nvmlInit".to_owned(), "nvmlShutdown".to_owned()];
        assert_eq!(remove_symbols(&mut table, &names), ["nvmlShutdown"]);
        assert_eq!(table, b"\0-vmlInit\0nvmlInit_v2\0xnvmlInit\0");
    }
}
