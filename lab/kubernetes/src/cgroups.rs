//! The control groups of a node: one below our own in each hierarchy, whichever versions the machine mounts.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

use crate::pause;

const MOUNTS: &str = "/sys/fs/cgroup";

/// A node's group in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cgroup {
    /// What is mounted: a controller such as `memory`, `name=systemd`, or nothing for the unified hierarchy.
    pub(crate) controller: String,
    /// The group's folder.
    pub(crate) folder: PathBuf,
}

/// Where a hierarchy is mounted, for the node as for us.
pub(crate) fn mount_point(controller: &str) -> PathBuf {
    let mounts = Path::new(MOUNTS);
    match controller {
        "" if mounts.join("cgroup.controllers").exists() => mounts.to_path_buf(),
        "" => mounts.join("unified"),
        named => mounts.join(named.trim_start_matches("name=")),
    }
}

/// Makes a group of this name in every hierarchy in which this process is.
pub(crate) fn create(name: &str) -> anyhow::Result<Vec<Cgroup>> {
    let mut groups = Vec::new();
    for Cgroup { controller, folder: parent } in own()? {
        let folder = parent.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        match controller.as_str() {
            // A new group of this kind has no processors and no memory, and takes no process before it has.
            "cpuset" => {
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    let value = fs::read(parent.join(file)).unwrap_or_default();
                    fs::write(folder.join(file), value)
                        .with_context(|| format!("write {}", folder.join(file).display()))?;
                }
            }
            // In the unified hierarchy a parent says what its children control; where it may not, the kubelet will tell.
            "" => drop(fs::write(parent.join("cgroup.subtree_control"), "+cpu +memory +pids +cpuset +io")),
            _ => {}
        }
        groups.push(Cgroup { controller, folder });
    }
    Ok(groups)
}

/// Removes groups whose processes have ended. The kernel needs a moment for processes that were just killed.
pub(crate) fn remove(groups: &[Cgroup]) -> anyhow::Result<()> {
    let mut left = String::new();
    for _ in 0..200 {
        let mut busy = groups.iter().filter(|group| remove_tree(&group.folder).is_err());
        let Some(group) = busy.next() else { return Ok(()) };
        left = group.folder.display().to_string();
        pause(10);
    }
    bail!("{left} cannot be removed: a process is still in it")
}

fn remove_tree(folder: &Path) -> std::io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

/// The groups below our own whose names begin so: what a cluster that was killed has left.
pub(crate) fn left_by(prefix: &str) -> Vec<Cgroup> {
    let mut groups = Vec::new();
    for Cgroup { controller, folder: parent } in own().unwrap_or_default() {
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(prefix) {
                groups.push(Cgroup { controller: controller.clone(), folder: entry.path() });
            }
        }
    }
    groups
}

/// The groups in which this process is, in every hierarchy that is mounted.
fn own() -> anyhow::Result<Vec<Cgroup>> {
    let text = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controller), Some(path)) = (fields.next(), fields.next()) else {
            bail!("/proc/self/cgroup: {line:?} is not of the form ID:CONTROLLERS:PATH");
        };
        let folder = mount_point(controller).join(path.trim_start_matches('/'));
        if folder.is_dir() {
            groups.push(Cgroup { controller: controller.to_owned(), folder });
        }
    }
    Ok(groups)
}
