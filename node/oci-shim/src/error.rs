//! Why a container is not created.

use std::path::PathBuf;

use crate::MAX_CONFIG;

/// A failure or a refusal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The configuration is no file of its own.
    #[error("{path}: must be a regular file, and not a link to one")]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// The configuration is larger than any that is read.
    #[error("{path}: {bytes} bytes is too large: at most {} are read", MAX_CONFIG)]
    TooLarge {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The configuration is not JSON.
    #[error("{path}: not JSON: {detail}")]
    Json {
        /// The path.
        path: PathBuf,
        /// What the parser says.
        detail: serde_json::Error,
    },
    /// A field of the configuration has another form than OCI's.
    #[error("config.json: {field} must be {expected}")]
    Field {
        /// The field, such as `process.env[3]`.
        field: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A setting cannot be used.
    #[error("{path}:{line}: {key}: {rule}")]
    Setting {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key with its tables, such as `nvidia-container-runtime.runtimes`.
        key: String,
        /// What is wrong with it, and what it must be.
        rule: String,
    },
    /// A file of settings is not TOML.
    #[error("{path}:{line}:{column}: not TOML: {detail}")]
    Toml {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What the parser says.
        detail: String,
    },
    /// A device is asked for in a form that no device has.
    #[error("{source_field}: {value:?}: {rule}")]
    Device {
        /// Where it is asked for.
        source_field: String,
        /// The text, shortened.
        value: String,
        /// What is wrong.
        rule: String,
    },
    /// A device is asked for that no specification describes.
    #[error("{source_field}: no CDI specification in {folders} describes {}; known: {known}", .missing.join(", "))]
    Unknown {
        /// Where it is asked for.
        source_field: String,
        /// The devices.
        missing: Vec<String>,
        /// The folders that were read.
        folders: String,
        /// The devices that are known, in short.
        known: String,
    },
    /// The environment asks for GPUs and policy does not allow it; only where the policy is strict.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// The container has slots, and nothing says whose it is.
    #[error(
        "the container has slots ({slots}) but {missing} in its annotations: this runtime needs those that containerd and CRI-O write"
    )]
    NoIdentity {
        /// The slots.
        slots: String,
        /// What is missing.
        missing: &'static str,
    },
    /// The node agent does not answer.
    #[error(
        "container {container} of pod {pod} has slots ({slots}), and the node agent that knows their GPUs does not answer at {socket}: {cause}; the container is tried again when the agent runs"
    )]
    AgentAway {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
        /// Its slots.
        slots: String,
        /// The agent's socket.
        socket: PathBuf,
        /// What went wrong.
        cause: String,
    },
    /// The node agent refuses the container.
    #[error("the node agent refuses container {container} of pod {pod}: {reason}")]
    AgentRefused {
        /// The pod.
        pod: String,
        /// The container.
        container: String,
        /// Why.
        reason: String,
    },
    /// What the container was granted cannot be read.
    #[error("config.json: {0}")]
    Granted(#[from] gantry_shim::Error),
    /// The devices cannot be injected.
    #[error(transparent)]
    Cdi(#[from] gantry_cdi::Error),
    /// There is nothing that this program can run in its place.
    #[error(
        "no OCI runtime: none of {names} is a program in {folders}; set runtimes in /etc/gantry/runtime.toml"
    )]
    NoRuntime {
        /// What was looked for.
        names: String,
        /// Where.
        folders: String,
    },
    /// The runtime that is run is this program again.
    #[error("{path} leads back to this program: set runtimes in /etc/gantry/runtime.toml to runc itself")]
    Loop {
        /// The program.
        path: PathBuf,
    },
    /// The runtime cannot be run.
    #[error("run {path}: {source}")]
    Exec {
        /// The program.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}
