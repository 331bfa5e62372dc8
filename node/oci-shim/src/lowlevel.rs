//! The runtime that does the work.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// Where programs of the system are that a service's `PATH` may lack.
const USUAL: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Counts how often this program has run itself, through others.
const DEPTH: &str = "GANTRY_RUNTIME_DEPTH";

/// More than any arrangement that makes sense.
const MAX_DEPTH: u32 = 4;

/// The first of the names that is a program, and not this one.
pub(crate) fn find(names: &[String], path: Option<&OsStr>) -> Result<PathBuf, Error> {
    let own = std::fs::metadata("/proc/self/exe").ok().map(|file| (file.dev(), file.ino()));
    // A relative folder would depend on where the caller stands.
    let named = path.map(env::split_paths).into_iter().flatten().filter(|folder| folder.is_absolute());
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in named.chain(USUAL.map(PathBuf::from)) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    let mut looped = None;
    for name in names {
        let candidates: Vec<PathBuf> = if name.contains('/') {
            vec![PathBuf::from(name)]
        } else {
            folders.iter().map(|folder| folder.join(name)).collect()
        };
        for candidate in candidates {
            match std::fs::metadata(&candidate) {
                Ok(file) if Some((file.dev(), file.ino())) == own => looped = looped.or(Some(candidate)),
                Ok(file) if file.is_file() && file.mode() & 0o111 != 0 => return Ok(candidate),
                _ => {}
            }
        }
    }
    match looped {
        Some(path) => Err(Error::Loop { path }),
        None => Err(Error::NoRuntime {
            names: names.join(", "),
            folders: folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":"),
        }),
    }
}

/// Becomes the runtime. Returns only where that fails.
pub(crate) fn become_runtime(path: &Path, arguments: &[OsString]) -> Error {
    let depth = env::var(DEPTH).ok().and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    if depth >= MAX_DEPTH {
        return Error::Loop { path: path.to_path_buf() };
    }
    let source = Command::new(path).args(arguments).env(DEPTH, (depth + 1).to_string()).exec();
    Error::Exec { path: path.to_path_buf(), source }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn the_first_name_that_is_a_program_is_taken_and_never_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a", "b", "c"] {
            fs::create_dir(at(name)).unwrap();
        }
        fs::write(at("b/gantry-test-runc"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(at("b/gantry-test-runc"), fs::Permissions::from_mode(0o755)).unwrap();
        // Not a program, and this one under another name.
        fs::write(at("a/gantry-test-runc"), "").unwrap();
        symlink("/proc/self/exe", at("c/gantry-test-self")).unwrap();
        let path = env::join_paths([at("a"), PathBuf::from("."), at("b"), at("c")]).unwrap();
        let find = |names: &[&str]| {
            find(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), Some(&path))
                .map_err(|error| error.to_string())
        };
        assert_eq!(find(&["gantry-test-none", "gantry-test-runc"]), Ok(at("b/gantry-test-runc")));
        assert_eq!(find(&["gantry-test-self", "gantry-test-runc"]), Ok(at("b/gantry-test-runc")));
        let full = at("b/gantry-test-runc").display().to_string();
        assert_eq!(find(&[&full]), Ok(at("b/gantry-test-runc")));
        let own = at("c/gantry-test-self").display().to_string();
        let looped = format!(
            "{own} leads back to this program: set runtimes in /etc/gantry/runtime.toml to runc itself"
        );
        assert_eq!(find(&["gantry-test-self"]), Err(looped.clone()));
        assert_eq!(find(&[&own]), Err(looped));
        let none = find(&["gantry-test-none"]).unwrap_err();
        assert!(none.starts_with("no OCI runtime: none of gantry-test-none is a program in /"), "{none}");
    }
}
