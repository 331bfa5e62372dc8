//! What can be wrong with names, files and configurations.

use std::path::PathBuf;

use crate::Conflict;

/// Why a device cannot be named, described, stored or injected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not a fully qualified device name.
    #[error("{name:?} is no CDI device name: {rule}; write vendor/class=name, as in nvidia.com/gpu=0")]
    Name {
        /// What was given, shortened.
        name: String,
        /// The part of the grammar that it breaks.
        rule: &'static str,
    },
    /// A field has a value that the specification does not allow.
    #[error("{field}: invalid value {value:?}: {rule}")]
    Invalid {
        /// The field, such as `devices[0].containerEdits.env[1]`.
        field: String,
        /// The value.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// The stated version lacks a feature that the content uses.
    #[error("cdiVersion: invalid value {stated:?}: the content needs at least {needed}")]
    Version {
        /// The version in the file.
        stated: String,
        /// The lowest version with every feature that the file uses.
        needed: &'static str,
    },
    /// A file is not JSON or YAML of the right form.
    #[error("{path}: {message}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        message: String,
    },
    /// A file or folder cannot be read or written.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No specification has these devices.
    #[error("unresolvable CDI devices {}", .0.join(", "))]
    Unresolved(Vec<String>),
    /// Two files of one folder describe the same device, so neither counts.
    #[error("unresolvable CDI devices {}: {} and {} both describe it", .0.name, .0.files[0].display(), .0.files[1].display())]
    Conflict(Box<Conflict>),
    /// The OCI configuration has something else where an edit belongs.
    #[error("OCI configuration: {field} must be {expected}")]
    Config {
        /// The field, such as `linux.devices`.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A device node is neither described in full nor there to be looked at.
    #[error("device node {path}: not on this machine, and the specification gives no type and major number")]
    DeviceNode {
        /// The path on the host.
        path: String,
    },
}
