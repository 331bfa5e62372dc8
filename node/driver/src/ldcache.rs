//! The loader's cache, `/etc/ld.so.cache`: which libraries a system knows, and where they are.
//!
//! ```text
//!   [ld.so-1.7.0, number, entries of 12 bytes, padding]     the old format, which may come first and is passed over
//!   glibc-ld.so.cache1.1 ┃ number ┃ bytes of strings ┃ …    48 bytes, then
//!   flags ┃ name at ┃ path at ┃ …                           an entry of 24 bytes for each library; places count from the head
//! ```
//!
//! The layout is that of glibc's `sysdeps/generic/dl-cache.h`. It is written by `ldconfig` on the machine, in its own byte order.

use crate::Error;

/// A library that the loader knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedLibrary {
    /// The name that it is asked for by, such as `libcuda.so.1`.
    pub name: String,
    /// Its path.
    pub path: String,
}

/// The largest cache that is read, in bytes. A desktop system has 200 KiB.
pub(crate) const MAX_CACHE: u64 = 16 << 20;
/// The longest name or path, in bytes, as Linux has it.
const MAX_TEXT: usize = 4_096;

const OLD: &[u8] = b"ld.so-1.7.0";
const NEW: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_HEAD: usize = 16;
const OLD_ENTRY: usize = 12;
const HEAD: usize = 48;
const ENTRY: usize = 24;

/// The libraries in a cache, in its order. An entry that refers to something outside the file, or to what is not text, is left out.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<CachedLibrary>, Error> {
    let bytes = if bytes.starts_with(OLD) {
        let count = number(bytes, 12).ok_or(Error::LoaderCache("it ends within its head"))?;
        let end = count.checked_mul(OLD_ENTRY).and_then(|size| size.checked_add(OLD_HEAD));
        // The new format begins where eight bytes align.
        let start = end.and_then(|end| end.checked_next_multiple_of(8));
        let rest = start.and_then(|start| bytes.get(start..));
        rest.ok_or(Error::LoaderCache("it has the old format alone, which glibc 2.2 replaced"))?
    } else {
        bytes
    };
    if !bytes.starts_with(NEW) {
        return Err(Error::LoaderCache("it does not begin with glibc-ld.so.cache1.1"));
    }
    let ends = Error::LoaderCache("it ends within its head");
    let (Some(count), true) = (number(bytes, 20), bytes.len() >= HEAD) else { return Err(ends) };
    let table = count.checked_mul(ENTRY).and_then(|size| bytes.get(HEAD..HEAD.checked_add(size)?));
    let table = table.ok_or(Error::LoaderCache("it ends within its table"))?;
    let text = |at: usize| {
        let rest = bytes.get(at..)?;
        let length = rest.iter().take(MAX_TEXT).position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..length]).ok().filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let library = |entry: &[u8]| {
        let name = text(number(entry, 4)?)?;
        let path = text(number(entry, 8)?).filter(|path| path.starts_with('/'))?;
        Some(CachedLibrary { name, path })
    };
    Ok(table.chunks_exact(ENTRY).filter_map(library).collect())
}

/// A number of four bytes in this machine's order, as `ldconfig` wrote it.
fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
    usize::try_from(u32::from_ne_bytes(four)).ok()
}

/// A cache with these libraries, after an old one where `old` says so.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn write(libraries: &[CachedLibrary], old: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut strings = Vec::new();
    let start = HEAD + libraries.len() * ENTRY;
    let put = |bytes: &mut Vec<u8>, number: usize| {
        bytes.extend(u32::try_from(number).unwrap_or_default().to_ne_bytes());
    };
    let mut table = Vec::new();
    for library in libraries {
        put(&mut table, 0x0303);
        for text in [&library.name, &library.path] {
            put(&mut table, start + strings.len());
            strings.extend(text.as_bytes());
            strings.push(0);
        }
        table.extend([0; 12]);
    }
    if old {
        bytes.extend(OLD);
        bytes.push(0);
        put(&mut bytes, 1);
        bytes.extend([0; OLD_ENTRY + 4]);
    }
    bytes.extend(NEW);
    put(&mut bytes, libraries.len());
    put(&mut bytes, strings.len());
    bytes.extend([0; 20]);
    [bytes, table, strings].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(name: &str, path: &str) -> CachedLibrary {
        CachedLibrary { name: name.into(), path: path.into() }
    }

    #[test]
    fn what_is_written_is_read_in_both_forms() {
        let libraries = [
            library("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
            library("libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"),
        ];
        for old in [false, true] {
            assert_eq!(parse(&write(&libraries, old)).unwrap(), libraries);
        }
        assert!(parse(&write(&[], false)).unwrap().is_empty());
    }

    #[test]
    fn the_cache_of_this_machine_names_its_c_library() {
        let path = "/etc/ld.so.cache";
        let Ok(bytes) = std::fs::read(path) else {
            assert!(!std::path::Path::new(path).exists(), "{path} can be read");
            return;
        };
        let libraries = parse(&bytes).unwrap();
        assert!(libraries.iter().any(|library| library.name == "libc.so.6"), "{}", libraries.len());
        assert!(libraries.iter().all(|library| library.path.starts_with('/')));
    }

    #[test]
    fn damaged_caches_are_refused_and_damaged_entries_left_out() {
        let good = write(&[library("a", "/a"), library("b", "/b")], false);
        let mut cut = good.clone();
        cut.truncate(HEAD + ENTRY);
        let mut endless = good.clone();
        endless[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
        let mut old_alone = write(&[], true);
        old_alone.truncate(20);
        for (bytes, rule) in [
            (&b""[..], "it does not begin with glibc-ld.so.cache1.1"),
            (b"ld.so-1.7.0\0", "it ends within its head"),
            (&old_alone, "it has the old format alone, which glibc 2.2 replaced"),
            (&good[..40], "it ends within its head"),
            (&cut, "it ends within its table"),
            (&endless, "it ends within its table"),
        ] {
            assert_eq!(parse(bytes).unwrap_err().to_string(), format!("ld.so.cache: {rule}"));
        }
        let mut outside = good.clone();
        outside[HEAD + 4..HEAD + 8].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(parse(&outside).unwrap(), [library("b", "/b")]);
        let relative = write(&[library("a", "a"), library("", "/x"), library("b", "/b")], false);
        assert_eq!(parse(&relative).unwrap(), [library("b", "/b")]);
        // The last text has no end.
        assert_eq!(parse(&good[..good.len() - 1]).unwrap(), [library("a", "/a")]);
    }
}
