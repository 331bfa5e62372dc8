//! Tar archives that depend on nothing but their content.
//!
//! Format: POSIX.1-1988 `ustar`. Owner is root, time is 1970, so that the same files make the same archive.

use std::io::{self, Write};

/// One thing in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    File { content: Vec<u8>, mode: u32 },
    Directory { mode: u32 },
    Symlink { target: String },
}

/// What a name breaks, if it cannot be an entry's.
pub(crate) fn refusal(name: &str, entry: &Entry) -> Option<&'static str> {
    if split(name, matches!(entry, Entry::Directory { .. })).is_none() {
        return Some("must have no more than 255 bytes, of which the last part no more than 100");
    }
    match entry {
        Entry::Symlink { target } if target.len() > 100 || target.is_empty() => {
            Some("the target of a link must have 1 to 100 bytes")
        }
        // Eleven octal digits.
        Entry::File { content, .. } if content.len() >= 1 << 33 => Some("a file must be smaller than 8 GiB"),
        _ => None,
    }
}

/// Name and prefix, as the header holds them: a name that is too long is cut at a slash.
fn split(name: &str, directory: bool) -> Option<(String, &str)> {
    let whole = if directory { format!("{name}/") } else { name.to_owned() };
    if whole.len() <= 100 {
        return Some((whole, ""));
    }
    let at = name
        .char_indices()
        .filter(|(_, char)| *char == '/')
        .map(|(at, _)| at)
        .find(|at| whole.len() - at - 1 <= 100 && *at <= 155)?;
    Some((whole[at + 1..].to_owned(), &name[..at]))
}

/// Appends one entry. `name` is relative and passes [`refusal`].
pub(crate) fn append(out: &mut impl Write, name: &str, entry: &Entry) -> io::Result<()> {
    let (kind, mode, content, target): (u8, u32, &[u8], &str) = match entry {
        Entry::File { content, mode } => (b'0', *mode, content, ""),
        Entry::Directory { mode } => (b'5', *mode, &[], ""),
        Entry::Symlink { target } => (b'2', 0o777, &[], target),
    };
    out.write_all(&header(name, kind, mode, content.len() as u64, target)?)?;
    out.write_all(content)?;
    out.write_all(&[0; 512][..content.len().next_multiple_of(512) - content.len()])
}

/// The two empty blocks at the end.
pub(crate) fn finish(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 1024])
}

fn header(name: &str, kind: u8, mode: u32, size: u64, target: &str) -> io::Result<[u8; 512]> {
    let (name, prefix) = split(name, kind == b'5').ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{name}: too long for a tar archive"))
    })?;
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, format!("{:07o}", mode & 0o7777).as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    put(136, b"00000000000");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    put(329, b"0000000");
    put(337, b"0000000");
    put(345, prefix.as_bytes());
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_at_a_slash_and_too_long_ones_refused() {
        let file = Entry::File { content: Vec::new(), mode: 0o644 };
        let folder = "d".repeat(90);
        let two = format!("{folder}/{folder}");
        assert_eq!(split(&two, false), Some((folder.clone(), folder.as_str())));
        assert_eq!(split(&two, true), Some((format!("{folder}/"), folder.as_str())));
        assert_eq!(refusal(&two, &file), None);
        let rule = Some("must have no more than 255 bytes, of which the last part no more than 100");
        assert_eq!(refusal(&"n".repeat(101), &file), rule);
        assert_eq!(refusal(&format!("{folder}/{folder}/{folder}"), &file), rule);
        let link = Entry::Symlink { target: "t".repeat(101) };
        assert_eq!(refusal("l", &link), Some("the target of a link must have 1 to 100 bytes"));
    }
}
