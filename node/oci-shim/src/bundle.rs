//! Reading a container's configuration, and putting another in its place.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::libc::{O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK};
use serde_json::Value;

use crate::Error;

/// The most bytes of a `config.json` that are read. What runtimes write has some ten thousand; variables of a container can make it a few
/// million.
pub const MAX_CONFIG: u64 = 16 << 20;

/// A configuration as it was read, with what its successor takes over.
#[derive(Debug)]
pub(crate) struct Stored {
    path: PathBuf,
    mode: u32,
    owner: (u32, u32),
    /// The configuration.
    pub(crate) value: Value,
}

impl Stored {
    /// Reads a configuration: a regular file, not a link, of bounded size.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let io = |source: std::io::Error| match source.raw_os_error() {
            // What open() says of a link, with O_NOFOLLOW.
            Some(nix::libc::ELOOP) => Error::NoFile { path: path.to_path_buf() },
            _ => Error::Io { action: "read", path: path.to_path_buf(), source },
        };
        // A pipe in the file's place must not make this wait.
        let flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(Error::NoFile { path: path.to_path_buf() });
        }
        let mut text = Vec::new();
        let too_large = |bytes| Error::TooLarge { path: path.to_path_buf(), bytes };
        if metadata.len() > MAX_CONFIG {
            return Err(too_large(metadata.len()));
        }
        // A file that grows meanwhile is not read on.
        file.take(MAX_CONFIG + 1).read_to_end(&mut text).map_err(io)?;
        if text.len() as u64 > MAX_CONFIG {
            return Err(too_large(text.len() as u64));
        }
        let value = serde_json::from_slice(&text)
            .map_err(|detail| Error::Json { path: path.to_path_buf(), detail })?;
        let (mode, owner) = (metadata.mode() & 0o7777, (metadata.uid(), metadata.gid()));
        Ok(Self { path: path.to_path_buf(), mode, owner, value })
    }

    /// Puts a configuration in the place of this one: a reader sees the old one or the new one, of the same mode and owner.
    pub(crate) fn replace(&self, value: &Value) -> Result<(), Error> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = self.path.with_file_name(format!(".{name}.gantry-{}", std::process::id()));
        let io = |action, path: &Path| {
            let path = path.to_path_buf();
            move |source| Error::Io { action, path, source }
        };
        let text =
            serde_json::to_vec(value).map_err(|detail| Error::Json { path: self.path.clone(), detail })?;
        // Left by a process of the same number that was killed; a link there is removed, not followed.
        let _ = fs::remove_file(&temporary);
        let write = || -> std::io::Result<()> {
            let mut file: File = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(O_NOFOLLOW | O_CLOEXEC)
                .open(&temporary)?;
            file.write_all(&text)?;
            let metadata = file.metadata()?;
            if (metadata.uid(), metadata.gid()) != self.owner {
                std::os::unix::fs::fchown(&file, Some(self.owner.0), Some(self.owner.1))?;
            }
            file.set_permissions(fs::Permissions::from_mode(self.mode))
        };
        let written = write()
            .map_err(io("write", &temporary))
            .and_then(|()| fs::rename(&temporary, &self.path).map_err(io("replace", &self.path)));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_is_replaced_whole_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, r#"{"a":18446744073709551615}"#).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut stored = Stored::read(&path).unwrap();
        assert_eq!(stored.value, json!({ "a": u64::MAX }));
        stored.value["b"] = json!(1);
        stored.replace(&stored.value).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"a":18446744073709551615,"b":1}"#);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }

    #[test]
    fn refusals() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let refused = |name: &str| {
            let text = Stored::read(&at(name)).unwrap_err().to_string();
            text.replace(&folder.path().display().to_string(), "")
        };
        fs::write(at("real.json"), "{}").unwrap();
        symlink(at("real.json"), at("link.json")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(at("text"), "process: {}").unwrap();
        fs::write(at("empty"), "").unwrap();
        fs::write(at("deep"), "[".repeat(100_000)).unwrap();
        // Sparse: 100 MB that take no room.
        File::create(at("large")).unwrap().set_len(100_000_000).unwrap();
        for (name, text) in [
            ("link.json", "/link.json: must be a regular file, and not a link to one"),
            ("folder", "/folder: must be a regular file, and not a link to one"),
            ("pipe", "/pipe: must be a regular file, and not a link to one"),
            ("none", "read /none: No such file or directory (os error 2)"),
            ("text", "/text: not JSON: expected value at line 1 column 1"),
            ("empty", "/empty: not JSON: EOF while parsing a value at line 1 column 0"),
            ("deep", "/deep: not JSON: recursion limit exceeded at line 1 column 128"),
            ("large", "/large: 100000000 bytes is too large: at most 16777216 are read"),
        ] {
            assert_eq!(refused(name), text);
        }
    }

    #[test]
    fn a_link_in_the_way_of_the_new_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        fs::write(&path, "{}").unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        symlink(&victim, folder.path().join(format!(".config.json.gantry-{}", std::process::id()))).unwrap();
        Stored::read(&path).unwrap().replace(&json!({ "x": 1 })).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"x":1}"#);
    }
}
