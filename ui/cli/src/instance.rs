//! The clusters that run on this machine: a folder each, held by a file lock.
//!
//! Whether a cluster runs is whether its lock is held, which the kernel answers truly even after a `kill -9`;
//! a process number alone could be somebody else's by now.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::hint;

/// A cluster that runs, or is about to.
#[derive(Debug)]
pub(crate) struct Held {
    /// The cluster's name.
    pub(crate) name: String,
    /// The process to signal; `None` in the moment before it has said.
    pub(crate) pid: Option<i32>,
    /// `None` while the cluster is starting.
    pub(crate) info: Option<Info>,
}

/// What others may know of a running cluster. Written once it is ready.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Info {
    /// The cluster's name.
    pub(crate) name: String,
    /// The process to signal.
    pub(crate) pid: i32,
    /// Where the API server listens, such as `https://127.0.0.1:41234`.
    pub(crate) server: String,
    /// A kubeconfig that reaches it.
    pub(crate) kubeconfig: PathBuf,
}

/// A cluster's folder, claimed by this process until it ends.
#[derive(Debug)]
pub(crate) struct Claim {
    name: String,
    folder: PathBuf,
    _lock: File,
}

impl Claim {
    /// Claims the folder of the cluster `name`, or of the first free default name.
    pub(crate) fn take(name: Option<&str>) -> anyhow::Result<Self> {
        let root = root()?;
        if let Some(name) = name {
            check_name(name)?;
            return match Self::attempt(&root, name)? {
                Some(claim) => Ok(claim),
                None => {
                    Err(hint::error(format!("cluster {name} runs already"), format!("gantry down {name}")))
                }
            };
        }
        for number in 1..=99 {
            let name = if number == 1 { "gantry".to_owned() } else { format!("gantry-{number}") };
            if let Some(claim) = Self::attempt(&root, &name)? {
                return Ok(claim);
            }
        }
        Err(hint::error("99 clusters run already", "gantry down --all"))
    }

    fn attempt(root: &Path, name: &str) -> anyhow::Result<Option<Self>> {
        let folder = root.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let lock = open_lock(&folder)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock {}", folder.display()));
            }
        }
        let claim = Self { name: name.to_owned(), folder, _lock: lock };
        claim.sweep()?;
        // At once, so that a cluster that never gets ready can be stopped.
        claim.write("pid", std::process::id().to_string().as_bytes())?;
        Ok(Some(claim))
    }

    /// Removes what an earlier cluster of that name left, all but the lock.
    fn sweep(&self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name == "lock") {
                continue;
            }
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }
                .with_context(|| format!("remove {}", path.display()))?;
        }
        Ok(())
    }

    /// The cluster's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The folder for sockets, certificates and logs.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Tells others that the cluster is ready.
    pub(crate) fn publish(&self, info: &Info) -> anyhow::Result<()> {
        self.write("info.json", &serde_json::to_vec_pretty(info)?)
    }

    /// Writes a file of the folder; others see all of it or none.
    fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        let partial = self.folder.join(format!("{name}.new"));
        fs::write(&partial, bytes).with_context(|| format!("write {}", partial.display()))?;
        fs::rename(&partial, &path).with_context(|| format!("write {}", path.display()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Best effort on the way out: the next claim of this name sweeps what is left.
        let _ = self.sweep();
    }
}

/// The clusters that run now and are ready, by name.
pub(crate) fn running() -> anyhow::Result<Vec<Info>> {
    Ok(held()?.into_iter().filter_map(|held| held.info).collect())
}

/// The clusters that run now, ready or not, by name.
pub(crate) fn held() -> anyhow::Result<Vec<Held>> {
    let root = root()?;
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(&root) else { return Ok(found) };
    for entry in entries {
        let folder = entry?.path();
        if !folder.is_dir() || !is_held(&folder)? {
            continue;
        }
        let Some(name) = folder.file_name().and_then(|name| name.to_str()) else { continue };
        let text = |file: &str| fs::read_to_string(folder.join(file)).ok();
        found.push(Held {
            name: name.to_owned(),
            pid: text("pid").and_then(|pid| pid.parse().ok()),
            info: text("info.json").and_then(|info| serde_json::from_str(&info).ok()),
        });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The folder of a cluster by name, whether it runs or not.
pub(crate) fn folder(name: &str) -> anyhow::Result<PathBuf> {
    check_name(name)?;
    Ok(root()?.join(name))
}

/// Removes what a cluster left that was killed; one that runs keeps what it has.
pub(crate) fn sweep(name: &str) -> anyhow::Result<()> {
    Claim::attempt(&root()?, name).map(drop)
}

/// Whether a process holds the cluster in `folder`.
pub(crate) fn is_held(folder: &Path) -> anyhow::Result<bool> {
    if !folder.join("lock").exists() {
        return Ok(false);
    }
    match open_lock(folder)?.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock {}", folder.display())),
    }
}

fn open_lock(folder: &Path) -> anyhow::Result<File> {
    let path = folder.join("lock");
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| format!("open {}", path.display()))
}

/// Where clusters have their folders. Short, because Unix socket paths are limited to 107 bytes, and closed to others.
fn root() -> anyhow::Result<PathBuf> {
    let user = nix::unistd::getuid();
    let root = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|path| path.is_dir())
        .map_or_else(|| PathBuf::from(format!("/tmp/gantry-{user}")), |path| path.join("gantry"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&root)
        .with_context(|| format!("create {}", root.display()))?;
    let owner = fs::metadata(&root)?.uid();
    if owner != user.as_raw() {
        return Err(hint::error(
            format!("{} belongs to user {owner}", root.display()),
            "export XDG_RUNTIME_DIR=$(mktemp -d)",
        ));
    }
    Ok(root)
}

/// A cluster's name becomes a folder and a kubeconfig context.
fn check_name(name: &str) -> anyhow::Result<()> {
    let fits = (1..=40).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    if fits {
        return Ok(());
    }
    bail!("--name {name:?}: use 1 to 40 of a-z, 0-9 and '-', as in --name lab-2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_could_leave_its_folder_is_refused() {
        for bad in ["", "../x", "a/b", "-a", "A", "a b", "a.."] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        assert!(check_name("lab-2").is_ok());
    }

    #[test]
    fn a_folder_is_held_while_its_claim_lives() -> anyhow::Result<()> {
        let root = tempfile::tempdir()?;
        let claim = Claim::attempt(root.path(), "a")?.context("the first claim")?;
        assert!(Claim::attempt(root.path(), "a")?.is_none());
        assert!(is_held(claim.folder())?);
        fs::write(claim.folder().join("left-over"), "x")?;
        let folder = claim.folder().to_path_buf();
        drop(claim);
        assert!(!is_held(&folder)?);
        assert!(!folder.join("left-over").exists());
        Ok(())
    }
}
