//! What is allowed, and where things are.

use std::path::PathBuf;

use gantry_cdi::DeviceName;

/// Where the settings of this program are.
pub const CONFIG_FILE: &str = "/etc/gantry/runtime.toml";

/// Where those of NVIDIA's container runtime are.
pub const NVIDIA_CONFIG_FILE: &str = "/etc/nvidia-container-runtime/config.toml";

/// The settings, from both files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The OCI runtimes that are run in this one's place, the first that is there: names in `PATH`, or paths.
    pub runtimes: Vec<String>,
    /// Whether an unprivileged container gets what its environment asks for.
    pub accept_environment: bool,
    /// The file that says so, or the one to say it in.
    pub source_of_environment: PathBuf,
    /// Whether marker mounts are honoured.
    pub accept_volume_mounts: bool,
    /// The file that says so, or the one to say it in.
    pub source_of_mounts: PathBuf,
    /// Whether what is not allowed is an error, rather than not given.
    pub strict: bool,
    /// The beginnings of annotations that name CDI devices.
    pub annotation_prefixes: Vec<String>,
    /// The folders of CDI specifications, the least important first.
    pub spec_dirs: Vec<PathBuf>,
    /// The kinds in which a GPU without a kind is looked for, the first that has all.
    pub kinds: Vec<String>,
    /// Whether requirements of images (`NVIDIA_REQUIRE_*`) are ignored.
    pub disable_require: bool,
    /// The driver capabilities that a container can have at most.
    pub supported_capabilities: Option<String>,
    /// Where the node agent listens.
    pub agent_socket: PathBuf,
    /// Where messages go.
    pub log: LogTarget,
    /// Which messages are written.
    pub log_level: Level,
}

/// Where messages go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// The machine's log, through `/dev/log`.
    Syslog,
    /// A file that grows.
    File(PathBuf),
    /// Nowhere.
    None,
}

/// How important a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A container is not created.
    Error,
    /// A container does not get what it asks for.
    Warning,
    /// A container gets devices.
    Info,
    /// What was looked at.
    Debug,
}

impl Level {
    /// The word for it, as runc writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        Self {
            runtimes: texts(&["runc", "crun"]),
            accept_environment: false,
            source_of_environment: CONFIG_FILE.into(),
            accept_volume_mounts: true,
            source_of_mounts: CONFIG_FILE.into(),
            strict: false,
            annotation_prefixes: texts(&["cdi.k8s.io/"]),
            spec_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
            kinds: texts(&["runtime.nvidia.com/gpu", "nvidia.com/gpu"]),
            disable_require: false,
            supported_capabilities: None,
            agent_socket: gantry_shim::AGENT_SOCKET.into(),
            log: LogTarget::Syslog,
            log_level: Level::Info,
        }
    }
}

impl Policy {
    /// Whether a device is a GPU, whoever described it: of a kind of GPUs, or of NVIDIA's.
    pub fn is_gpu(&self, name: &DeviceName) -> bool {
        let vendor = name.kind().split('/').next().unwrap_or_default();
        vendor == "nvidia.com"
            || vendor.ends_with(".nvidia.com")
            || self.kinds.iter().any(|kind| kind == name.kind())
    }
}
