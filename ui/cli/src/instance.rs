//! The clusters that run on this machine: a folder each, held by a file lock.
//!
//! Whether a cluster runs is whether its lock is held, which the kernel answers truly even after a `kill -9`;
//! a process number alone could be somebody else's by now.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

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
                None => bail!("cluster {name} runs already\nhint: gantry down {name}"),
            };
        }
        for number in 1..=99 {
            let name = if number == 1 { "gantry".to_owned() } else { format!("gantry-{number}") };
            if let Some(claim) = Self::attempt(&root, &name)? {
                return Ok(claim);
            }
        }
        bail!("99 clusters run already\nhint: gantry down --all")
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
        let path = self.folder.join("info.json");
        let partial = self.folder.join("info.json.new");
        let mut file = File::create(&partial).with_context(|| format!("create {}", partial.display()))?;
        file.write_all(&serde_json::to_vec_pretty(info)?)?;
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
    let root = root()?;
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(&root) else { return Ok(found) };
    for entry in entries {
        let folder = entry?.path();
        if !folder.is_dir() || !is_held(&folder)? {
            continue;
        }
        // No file yet: the cluster is still starting.
        let Ok(text) = fs::read(folder.join("info.json")) else { continue };
        if let Ok(info) = serde_json::from_slice::<Info>(&text) {
            found.push(info);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The folder of a cluster by name, whether it runs or not.
pub(crate) fn folder(name: &str) -> anyhow::Result<PathBuf> {
    check_name(name)?;
    Ok(root()?.join(name))
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
        bail!(
            "{} belongs to user {owner}\nhint: set XDG_RUNTIME_DIR to a folder of your own",
            root.display()
        );
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
