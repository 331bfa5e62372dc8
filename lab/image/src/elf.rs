//! What of an ELF file says which libraries it needs.
//!
//! Format: System V ABI, chapters 4 and 5, and `elf(5)`. Only 64-bit little-endian files: those of the processors that GPUs are used with.

/// Why a file is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// Something else.
    #[error("not an ELF file")]
    NotElf,
    /// An ELF file of another kind.
    #[error("only 64-bit little-endian ELF files are supported")]
    Class,
    /// A processor that is not known here.
    #[error("ELF machine {0} is not supported; amd64 is 62, arm64 is 183")]
    Machine(u16),
    /// It refers to bytes that it does not have.
    #[error("the ELF file is damaged: {0} is outside of the file")]
    Outside(&'static str),
}

/// The parts of an ELF file that the dynamic loader acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// The processor as Go and OCI name it.
    pub architecture: &'static str,
    /// The path of the loader; none for a library, and for a program that is linked statically.
    pub interpreter: Option<String>,
    /// The names of the libraries that it is linked against.
    pub needed: Vec<String>,
    /// Folders to look in first, with `$ORIGIN` as it stands there. `DT_RUNPATH`, or else `DT_RPATH`.
    pub search: Vec<String>,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

impl Elf {
    /// Reads a program or library.
    ///
    /// # Errors
    /// Where it is none, of another kind, or refers to bytes that it does not have.
    pub fn parse(file: &[u8]) -> Result<Self, ElfError> {
        if file.get(..4) != Some(b"\x7fELF") {
            return Err(ElfError::NotElf);
        }
        // EI_CLASS and EI_DATA: 64 bits, little endian.
        if file.get(4..6) != Some(&[2, 1]) {
            return Err(ElfError::Class);
        }
        let header = "the header";
        let architecture = match u16_at(file, 18, header)? {
            62 => "amd64",
            183 => "arm64",
            other => return Err(ElfError::Machine(other)),
        };
        let table = u64_at(file, 32, header)?;
        let entry = u64::from(u16_at(file, 54, header)?);
        let count = u64::from(u16_at(file, 56, header)?);
        let mut segments = Vec::new();
        for index in 0..count {
            let what = "a program header";
            let at = table.checked_add(index * entry).ok_or(ElfError::Outside(what))?;
            segments.push(Segment {
                kind: u32_at(file, at, what)?,
                offset: u64_at(file, at.saturating_add(8), what)?,
                address: u64_at(file, at.saturating_add(16), what)?,
                size: u64_at(file, at.saturating_add(32), what)?,
            });
        }
        let find = |kind| segments.iter().find(|segment| segment.kind == kind);
        let interpreter =
            find(PT_INTERP).map(|segment| text_at(file, segment.offset, "the loader's path")).transpose()?;
        let mut elf = Self { architecture, interpreter, needed: Vec::new(), search: Vec::new() };
        let Some(dynamic) = find(PT_DYNAMIC) else { return Ok(elf) };
        let (mut needed, mut strings, mut rpath, mut runpath) = (Vec::new(), None, None, None);
        let what = "the dynamic section";
        for index in 0..dynamic.size / 16 {
            let at = dynamic.offset.checked_add(index * 16).ok_or(ElfError::Outside(what))?;
            let (tag, value) = (u64_at(file, at, what)?, u64_at(file, at.saturating_add(8), what)?);
            match tag {
                0 => break,
                DT_NEEDED => needed.push(value),
                DT_STRTAB => strings = Some(value),
                DT_RPATH => rpath = Some(value),
                DT_RUNPATH => runpath = Some(value),
                _ => {}
            }
        }
        let path = runpath.or(rpath);
        if needed.is_empty() && path.is_none() {
            return Ok(elf);
        }
        let what = "the string table";
        let strings =
            strings.and_then(|address| offset_of(&segments, address)).ok_or(ElfError::Outside(what))?;
        let string = |offset: u64| {
            text_at(file, strings.checked_add(offset).ok_or(ElfError::Outside(what))?, "a name")
        };
        for offset in needed {
            elf.needed.push(string(offset)?);
        }
        if let Some(offset) = path {
            elf.search =
                string(offset)?.split(':').filter(|path| !path.is_empty()).map(str::to_owned).collect();
        }
        Ok(elf)
    }
}

/// Where in the file an address of the running program is.
fn offset_of(segments: &[Segment], address: u64) -> Option<u64> {
    segments
        .iter()
        .filter(|segment| segment.kind == PT_LOAD)
        .find(|segment| address.checked_sub(segment.address).is_some_and(|within| within < segment.size))
        .and_then(|segment| segment.offset.checked_add(address - segment.address))
}

fn bytes_at<const N: usize>(file: &[u8], at: u64, what: &'static str) -> Result<[u8; N], ElfError> {
    usize::try_from(at)
        .ok()
        .and_then(|at| file.get(at..at.checked_add(N)?))
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(ElfError::Outside(what))
}

fn u16_at(file: &[u8], at: u64, what: &'static str) -> Result<u16, ElfError> {
    bytes_at(file, at, what).map(u16::from_le_bytes)
}

fn u32_at(file: &[u8], at: u64, what: &'static str) -> Result<u32, ElfError> {
    bytes_at(file, at, what).map(u32::from_le_bytes)
}

fn u64_at(file: &[u8], at: u64, what: &'static str) -> Result<u64, ElfError> {
    bytes_at(file, at, what).map(u64::from_le_bytes)
}

/// Text that ends with a zero. No path of a file is longer than 4,096 bytes (`PATH_MAX`).
fn text_at(file: &[u8], at: u64, what: &'static str) -> Result<String, ElfError> {
    let rest = usize::try_from(at).ok().and_then(|at| file.get(at..)).ok_or(ElfError::Outside(what))?;
    let end = rest.iter().take(4096).position(|byte| *byte == 0).ok_or(ElfError::Outside(what))?;
    Ok(String::from_utf8_lossy(&rest[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_tells_its_loader_and_libc() {
        let file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::parse(&file).unwrap();
        assert!(elf.needed.iter().any(|name| name.starts_with("libc.so")), "{elf:?}");
        assert!(elf.interpreter.is_some_and(|path| path.contains("ld-linux")));
        let go = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        assert_eq!(elf.architecture, go);
    }

    /// A library without segments.
    fn header() -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18] = 62;
        file[32] = 64;
        file[54] = 56;
        file
    }

    fn with_segment(kind: u8, offset: u8, size: u8) -> Vec<u8> {
        let mut file = header();
        file[56] = 1;
        file.resize(64 + 56, 0);
        (file[64], file[72], file[96]) = (kind, offset, size);
        file
    }

    #[test]
    fn what_is_no_elf_file_is_refused_with_the_reason() {
        assert_eq!(Elf::parse(&header()).map(|elf| elf.needed), Ok(Vec::new()));
        let mut narrow = header();
        narrow[4] = 1;
        let mut sparc = header();
        sparc[18] = 2;
        let mut cut = header();
        cut[56] = 1;
        let mut needs = with_segment(2, 120, 16);
        needs.resize(136, 0);
        needs[120] = 1;
        for (file, text) in [
            (b"#!/bin/sh\n".to_vec(), "not an ELF file"),
            (narrow, "only 64-bit little-endian ELF files are supported"),
            (sparc, "ELF machine 2 is not supported; amd64 is 62, arm64 is 183"),
            (header()[..40].to_vec(), "the ELF file is damaged: the header is outside of the file"),
            (cut, "the ELF file is damaged: a program header is outside of the file"),
            (with_segment(3, 200, 1), "the ELF file is damaged: the loader's path is outside of the file"),
            (with_segment(2, 110, 16), "the ELF file is damaged: the dynamic section is outside of the file"),
            (needs, "the ELF file is damaged: the string table is outside of the file"),
        ] {
            assert_eq!(Elf::parse(&file).unwrap_err().to_string(), text);
        }
    }
}
