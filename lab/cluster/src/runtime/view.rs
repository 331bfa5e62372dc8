//! What a container sees: its environment, its files, its GPUs, and nothing of the node besides.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use gantry_kit::SharedClock;
use gantry_model::LinkKind;
use gantry_smi::{Driver, GpuReading};
use jiff::Timestamp;
use serde_json::Value;

/// The major number under which the NVIDIA driver registers `/dev/nvidia*`.
const NVIDIA_MAJOR: i64 = 195;

/// Minor numbers from here on are control nodes (`/dev/nvidiactl` is 255, `/dev/nvidia-modeset` 254).
const FIRST_CONTROL_MINOR: i64 = 254;

/// The GPUs of a node as its driver would report them to a process. A container asks only for those whose
/// device file it has.
pub trait Hardware: Debug + Send + Sync + 'static {
    /// The driver that the node runs.
    fn driver(&self) -> Driver;
    /// The state of the GPU behind `/dev/nvidia<minor>`.
    fn gpu(&self, minor: u32) -> Option<GpuReading>;
    /// How two GPUs are connected, by minor number.
    fn link(&self, a: u32, b: u32) -> Option<LinkKind>;
}

/// One file of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum File {
    /// A directory.
    Directory,
    /// A file whose bytes are known.
    Regular(Vec<u8>),
    /// A file that is there but whose bytes nobody simulates, such as the driver's libraries.
    Opaque,
    /// A character device.
    Device {
        /// Driver number.
        major: i64,
        /// Device number.
        minor: i64,
    },
    /// A symbolic link with its target.
    Link(String),
}

/// A container from within. Built from the OCI configuration and nothing else, so that what a program sees is
/// what the node agent's edits made.
#[derive(Debug)]
pub struct ContainerView {
    process: ProcessConfig,
    files: BTreeMap<String, File>,
    hardware: Arc<dyn Hardware>,
    clock: SharedClock,
    created: Timestamp,
}

/// What is kept of the configuration once the files are laid out: ten thousand containers share one process.
#[derive(Debug)]
struct ProcessConfig {
    args: Vec<String>,
    /// `NAME=value`, in the order of the configuration.
    env: Vec<String>,
    cwd: String,
    hostname: String,
    user: (i64, i64),
}

impl ProcessConfig {
    fn read(config: &Value) -> Self {
        let text = |pointer: &str, default: &str| {
            config.pointer(pointer).and_then(Value::as_str).unwrap_or(default).to_owned()
        };
        let id = |pointer: &str| config.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
        Self {
            args: strings(config, "/process/args").map(str::to_owned).collect(),
            env: strings(config, "/process/env").map(str::to_owned).collect(),
            cwd: text("/process/cwd", "/"),
            hostname: text("/hostname", "localhost"),
            user: (id("/process/user/uid"), id("/process/user/gid")),
        }
    }
}

impl ContainerView {
    /// The view that `config` gives. `volumes` are the files which the volumes hold, by absolute path in the
    /// container; a mount without any is an empty directory if it is in `directories`, else a file.
    pub fn new(
        config: &Value,
        volumes: &BTreeMap<String, Vec<u8>>,
        directories: &BTreeSet<String>,
        hardware: Arc<dyn Hardware>,
        clock: SharedClock,
    ) -> Self {
        let files = lay_out(config, volumes, directories);
        let created = clock.now();
        Self { process: ProcessConfig::read(config), files, hardware, clock, created }
    }

    /// User and group of the container's first process.
    pub fn user(&self) -> (i64, i64) {
        self.process.user
    }

    /// The environment in the order of the configuration; of a name given twice the last counts.
    pub fn env(&self) -> BTreeMap<String, String> {
        let pairs = self.process.env.iter();
        pairs
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// The command line of the container's first process.
    pub fn args(&self) -> &[String] {
        &self.process.args
    }

    /// The working directory, `/` unless configured.
    pub fn cwd(&self) -> &str {
        &self.process.cwd
    }

    /// The host name.
    pub fn hostname(&self) -> &str {
        &self.process.hostname
    }

    /// Now, by the cluster's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// When the container was created.
    pub fn created(&self) -> Timestamp {
        self.created
    }

    /// The file at an absolute, normalised path; links are not followed.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// The names in a directory, sorted; `None` if it is no directory.
    pub fn list(&self, directory: &str) -> Option<Vec<&str>> {
        if self.files.get(directory) != Some(&File::Directory) {
            return None;
        }
        let prefix = if directory == "/" { "/".to_owned() } else { format!("{directory}/") };
        Some(
            self.files
                .range(prefix.clone()..)
                .map(|(path, _)| path.as_str())
                .take_while(|path| path.starts_with(&prefix))
                .filter_map(|path| path.strip_prefix(&prefix))
                .filter(|name| !name.is_empty() && !name.contains('/'))
                .collect(),
        )
    }

    /// Every path, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Whether the container has a program of this name in a directory of `PATH`, or at this absolute path.
    pub fn has_executable(&self, name: &str) -> bool {
        if name.starts_with('/') {
            return self.files.contains_key(name);
        }
        ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin"]
            .iter()
            .any(|directory| self.files.contains_key(&format!("{directory}/{name}")))
    }

    /// The driver, if the container has its control device.
    pub fn driver(&self) -> Driver {
        self.hardware.driver()
    }

    /// The GPUs whose device files the container has, in PCI bus order as the driver enumerates them.
    pub fn gpus(&self) -> Vec<GpuReading> {
        let mut gpus: Vec<GpuReading> = self
            .files
            .iter()
            .filter_map(|(path, file)| match file {
                File::Device { major: NVIDIA_MAJOR, minor }
                    if *minor < FIRST_CONTROL_MINOR && path.starts_with("/dev/nvidia") =>
                {
                    self.hardware.gpu(u32::try_from(*minor).ok()?)
                }
                _ => None,
            })
            .collect();
        gpus.sort_by(|a, b| a.bus_id.cmp(&b.bus_id));
        gpus.dedup_by(|a, b| a.minor == b.minor);
        gpus
    }

    /// How two GPUs are connected, by minor number.
    pub fn link(&self, a: u32, b: u32) -> Option<LinkKind> {
        self.hardware.link(a, b)
    }
}

fn strings<'a>(config: &'a Value, pointer: &str) -> impl Iterator<Item = &'a str> + use<'a> {
    config.pointer(pointer).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The devices that every runtime creates, with their numbers (OCI runtime specification, "Default Devices").
const DEFAULT_DEVICES: &[(&str, i64, i64)] = &[
    ("/dev/full", 1, 7),
    ("/dev/null", 1, 3),
    ("/dev/random", 1, 8),
    ("/dev/tty", 5, 0),
    ("/dev/urandom", 1, 9),
    ("/dev/zero", 1, 5),
];

/// Directories of a plain root file system.
const ROOT: &[&str] = &[
    "/bin",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/proc",
    "/root",
    "/run",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/local",
    "/usr/local/bin",
    "/var",
    "/var/log",
    "/var/run",
];

fn lay_out(
    config: &Value,
    volumes: &BTreeMap<String, Vec<u8>>,
    directories: &BTreeSet<String>,
) -> BTreeMap<String, File> {
    let mut files = BTreeMap::new();
    files.insert("/".to_owned(), File::Directory);
    for path in ROOT {
        files.insert((*path).to_owned(), File::Directory);
    }
    for name in crate::programs::names().filter(|name| *name != crate::programs::NVIDIA_SMI) {
        files.insert(format!("/bin/{name}"), File::Opaque);
    }
    for (path, major, minor) in DEFAULT_DEVICES {
        files.insert((*path).to_owned(), File::Device { major: *major, minor: *minor });
    }
    let hostname = config.get("hostname").and_then(Value::as_str).unwrap_or("localhost");
    let text = |text: String| File::Regular(text.into_bytes());
    files.insert("/etc/hostname".to_owned(), text(format!("{hostname}\n")));
    files.insert(
        "/etc/hosts".to_owned(),
        text(format!("127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\t{hostname}\n")),
    );
    files.insert(
        "/etc/resolv.conf".to_owned(),
        text("search svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n".to_owned()),
    );
    for mount in config.get("mounts").and_then(Value::as_array).into_iter().flatten() {
        let Some(path) = mount.get("destination").and_then(Value::as_str) else { continue };
        let path = normalize("/", path);
        let bind =
            mount.get("type").and_then(Value::as_str).is_none_or(|kind| kind == "bind" || kind == "none");
        let directory = !bind || directories.contains(&path);
        insert(&mut files, &path, if directory { File::Directory } else { File::Opaque });
    }
    for (path, content) in volumes {
        insert(&mut files, &normalize("/", path), File::Regular(content.clone()));
    }
    for device in config.pointer("/linux/devices").and_then(Value::as_array).into_iter().flatten() {
        let Some(path) = device.get("path").and_then(Value::as_str) else { continue };
        let number = |key| device.get(key).and_then(Value::as_i64).unwrap_or_default();
        insert(
            &mut files,
            &normalize("/", path),
            File::Device { major: number("major"), minor: number("minor") },
        );
    }
    for (link, target) in hook_links(config) {
        insert(&mut files, &link, File::Link(target));
    }
    files
}

/// The links that `nvidia-cdi-hook create-symlinks --link TARGET::LINK` hooks would make.
fn hook_links(config: &Value) -> Vec<(String, String)> {
    let hooks = config.pointer("/hooks/createContainer").and_then(Value::as_array).into_iter().flatten();
    let mut links = Vec::new();
    for hook in hooks {
        let args: Vec<&str> = hook
            .get("args")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        for pair in args.windows(2).filter(|pair| pair[0] == "--link") {
            if let Some((target, link)) = pair[1].split_once("::") {
                links.push((normalize("/", link), target.to_owned()));
            }
        }
    }
    links
}

/// Adds a file and the directories above it.
fn insert(files: &mut BTreeMap<String, File>, path: &str, file: File) {
    for (at, _) in path.match_indices('/').filter(|(at, _)| *at > 0) {
        files.entry(path[..at].to_owned()).or_insert(File::Directory);
    }
    files.insert(path.to_owned(), file);
}

/// An absolute path without `.`, `..`, double or trailing slashes; relative ones start at `cwd`.
pub(crate) fn normalize(cwd: &str, path: &str) -> String {
    let joined = if path.starts_with('/') { path.to_owned() } else { format!("{cwd}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in joined.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_like_a_shell_does() {
        for (cwd, path, expected) in [
            ("/", "dev", "/dev"),
            ("/a/b", "../c/./d/", "/a/c/d"),
            ("/", "/../..", "/"),
            ("/x", "/dev//null", "/dev/null"),
        ] {
            assert_eq!(normalize(cwd, path), expected);
        }
    }
}
