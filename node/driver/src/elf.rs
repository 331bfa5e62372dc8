//! The name under which the loader looks for a shared library, from the library's own dynamic section.
//!
//! Four small reads of a file of up to a hundred MiB, in the ELF format (gABI chapters 4 and 5) as far as drivers use it: little-endian, 32 or 64
//! bits. A general object-file crate reads or maps the whole file, and offers a thousand things that must not go wrong here.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use crate::Error;

/// What is told of a shared library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedLibrary {
    /// What programs that were linked with it ask the loader for, such as `libcuda.so.1`. A plain file name.
    pub soname: Option<String>,
    /// Whether it is for 64-bit programs.
    pub is_64_bit: bool,
    /// The processor, in ELF's numbers: 62 is x86-64, 183 is AArch64, 3 is i386.
    pub machine: u16,
}

/// Bytes at offsets.
pub(crate) trait Bytes {
    /// Fills the whole buffer or fails.
    fn fill(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl Bytes for File {
    fn fill(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl Bytes for [u8] {
    fn fill(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let found = start.and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The most program headers that are looked at. Drivers have about ten.
const MAX_HEADERS: u16 = 64;
/// The most bytes of a dynamic section that are looked at. Drivers have about a thousand.
const MAX_DYNAMIC: u64 = 64 * 1024;
/// The most bytes of a name: what a file system takes.
const MAX_NAME: usize = 255;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;

/// Reads the head of a shared library.
pub(crate) fn read(file: &(impl Bytes + ?Sized)) -> Result<SharedLibrary, Error> {
    let refuse = |rule| Err(Error::Elf(rule));
    let get = |offset: u64, buffer: &mut [u8]| {
        file.fill(offset, buffer).map_err(|_| Error::Elf("it ends before what it refers to"))
    };
    let mut head = [0; 64];
    // The head of a 32-bit file has 52 bytes, and something always follows it.
    get(0, &mut head).map_err(|_| Error::Elf("it is too short"))?;
    if &head[..4] != b"\x7fELF" {
        return refuse("it does not begin as an ELF file does");
    }
    let wide = match head[4] {
        1 => false,
        2 => true,
        _ => return refuse("its class is neither 32 nor 64 bits"),
    };
    if head[5] != 1 {
        return refuse("it is not little-endian");
    }
    if number(&head[16..18]) != 3 {
        return refuse("its type is not that of a shared object");
    }
    let machine = u16::try_from(number(&head[18..20])).unwrap_or_default();
    let (table, size, count) = if wide {
        (number(&head[32..40]), number(&head[54..56]), number(&head[56..58]))
    } else {
        (number(&head[28..32]), number(&head[42..44]), number(&head[44..46]))
    };
    if size != if wide { 56 } else { 32 } || count > u64::from(MAX_HEADERS) {
        return refuse("its table of program headers is not usable");
    }
    let mut headers = vec![0; usize::try_from(size * count).unwrap_or_default()];
    get(table, &mut headers)?;
    let segments: Vec<Segment> = headers
        .chunks_exact(usize::try_from(size).unwrap_or(1))
        .map(|header| Segment::new(header, wide))
        .collect();
    let library = |soname| SharedLibrary { soname, is_64_bit: wide, machine };
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
        return Ok(library(None));
    };
    let mut entries = vec![0; usize::try_from(dynamic.length.min(MAX_DYNAMIC)).unwrap_or_default()];
    get(dynamic.offset, &mut entries)?;
    let half = if wide { 8 } else { 4 };
    let entries =
        entries.chunks_exact(2 * half).map(|entry| (number(&entry[..half]), number(&entry[half..])));
    let entries: Vec<_> = entries.take_while(|(tag, _)| *tag != 0).collect();
    let value = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let Some(soname) = value(DT_SONAME) else { return Ok(library(None)) };
    let Some(strings) = value(DT_STRTAB) else { return refuse("it has a name and no table of strings") };
    let offset = segments.iter().find_map(|segment| segment.file_offset(strings));
    let Some(offset) = offset.and_then(|offset| offset.checked_add(soname)) else {
        return refuse("its table of strings lies in no segment");
    };
    let mut name = Vec::new();
    loop {
        let mut byte = [0];
        let at = offset.checked_add(name.len() as u64).ok_or(Error::Elf("its name lies outside"))?;
        get(at, &mut byte)?;
        match byte[0] {
            0 => break,
            b'/' | ..=b' ' | 0x7f.. => return refuse("its name is no plain file name"),
            _ if name.len() == MAX_NAME => return refuse("its name is too long"),
            byte => name.push(byte),
        }
    }
    let name = String::from_utf8(name).unwrap_or_default();
    if name.is_empty() || name == "." || name == ".." {
        return refuse("its name is no plain file name");
    }
    Ok(library(Some(name)))
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Part of the file, and where it is loaded.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    length: u64,
}

impl Segment {
    fn new(header: &[u8], wide: bool) -> Self {
        let at = |start: usize, length: usize| number(&header[start..start + length]);
        if wide {
            Self { kind: at(0, 4), offset: at(8, 8), address: at(16, 8), length: at(32, 8) }
        } else {
            Self { kind: at(0, 4), offset: at(4, 4), address: at(8, 4), length: at(16, 4) }
        }
    }

    /// Where in the file an address lies.
    fn file_offset(&self, address: u64) -> Option<u64> {
        let inside = address.checked_sub(self.address).filter(|inside| *inside < self.length)?;
        (self.kind == PT_LOAD).then(|| self.offset.checked_add(inside)).flatten()
    }
}

/// A library with a name and nothing else: what a simulated driver installs.
pub(crate) fn minimal(soname: &str, machine: u16, wide: bool) -> Vec<u8> {
    let half = if wide { 8 } else { 4 };
    let put = |number: usize, length: usize| (number as u64).to_le_bytes()[..length].to_vec();
    let (head, header) = if wide { (64, 56) } else { (52, 32) };
    let dynamic = head + 2 * header;
    let strings = dynamic + 3 * 2 * half;
    let length = strings + 1 + soname.len() + 1;
    let mut bytes = vec![0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1, 1];
    bytes.resize(16, 0);
    bytes.extend([put(3, 2), put(machine.into(), 2), put(1, 4), put(0, half), put(head, half)].concat());
    bytes.extend([put(0, half), put(0, 4), put(head, 2), put(header, 2), put(2, 2)].concat());
    bytes.resize(head, 0);
    for (kind, start, size) in [(PT_LOAD, 0, length), (PT_DYNAMIC, dynamic, strings - dynamic)] {
        let kind = kind.to_le_bytes()[..4].to_vec();
        let place = [put(start, half), put(start, half), put(start, half), put(size, half), put(size, half)];
        bytes.extend(kind);
        if wide {
            bytes.extend(put(4, 4));
            bytes.extend(place.concat());
            bytes.extend(put(8, half));
        } else {
            bytes.extend(place.concat());
            bytes.extend([put(4, 4), put(4, half)].concat());
        }
    }
    for (tag, value) in [(DT_STRTAB, strings), (DT_SONAME, 1), (0, 0)] {
        bytes.extend(tag.to_le_bytes()[..half].to_vec());
        bytes.extend(put(value, half));
    }
    bytes.push(0);
    bytes.extend(soname.as_bytes());
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_both_classes() {
        for (machine, wide) in [(62, true), (183, true), (3, false)] {
            let bytes = minimal("libcuda.so.1", machine, wide);
            let expected = SharedLibrary { soname: Some("libcuda.so.1".into()), is_64_bit: wide, machine };
            assert_eq!(read(bytes.as_slice()).unwrap(), expected);
        }
    }

    #[test]
    fn the_libraries_of_this_machine_have_the_names_that_they_are_loaded_by() {
        // Whatever test binary runs this has the C library mapped.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library = maps.lines().find_map(|line| {
            let path = line.split_whitespace().nth(5)?;
            path.rsplit('/').next()?.starts_with("libc.so").then(|| path.to_owned())
        });
        let path = library.expect("the C library is mapped");
        let library = read(&File::open(path).unwrap()).unwrap();
        assert_eq!((library.soname.as_deref(), library.is_64_bit), (Some("libc.so.6"), true));
    }

    #[test]
    fn what_is_no_library_is_refused_with_the_reason() {
        let good = minimal("libcuda.so.1", 62, true);
        let changed = |at: usize, with: &[u8]| {
            let mut bytes = good.clone();
            bytes[at..at + with.len()].copy_from_slice(with);
            bytes
        };
        let named = |name: &str| minimal(name, 62, true);
        let cases: [(Vec<u8>, &str); 15] = [
            (Vec::new(), "it is too short"),
            (vec![0; 64], "it does not begin as an ELF file does"),
            (changed(4, &[3]), "its class is neither 32 nor 64 bits"),
            (changed(5, &[2]), "it is not little-endian"),
            (changed(16, &[2]), "its type is not that of a shared object"),
            (changed(54, &[32]), "its table of program headers is not usable"),
            (changed(56, &[255, 255]), "its table of program headers is not usable"),
            (changed(32, &[255; 8]), "it ends before what it refers to"),
            (changed(128, &[255; 8]), "it ends before what it refers to"),
            (changed(176, &[6]), "it has a name and no table of strings"),
            (changed(184, &[255; 8]), "its table of strings lies in no segment"),
            (good[..good.len() - 1].to_vec(), "it ends before what it refers to"),
            (named("../escape.so"), "its name is no plain file name"),
            (named(""), "its name is no plain file name"),
            (named(&"x".repeat(256)), "its name is too long"),
        ];
        for (bytes, rule) in cases {
            assert_eq!(
                read(bytes.as_slice()).unwrap_err().to_string(),
                format!("not a shared library: {rule}")
            );
        }
    }
}
