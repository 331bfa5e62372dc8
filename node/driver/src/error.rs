//! What can be wrong with an installed driver, an image's wishes, and what is asked for.

use std::path::PathBuf;

use crate::{Capabilities, DriverVersion};

/// A failure or a refusal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file or folder cannot be read.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A path cannot be followed inside its root.
    #[error("{path} below {root}: {rule}")]
    Link {
        /// The path inside the root.
        path: String,
        /// The root.
        root: PathBuf,
        /// What is wrong.
        rule: &'static str,
    },
    /// No driver is installed where it was looked for.
    #[error(
        "no NVIDIA driver below {root}: neither libcuda.so.<version> nor libnvidia-ml.so.<version> in the folders of \
         its /etc/ld.so.cache or in the usual ones; install the driver, or name the root that it is installed below"
    )]
    NoDriver {
        /// The root.
        root: PathBuf,
    },
    /// The libraries are of another version than the kernel module.
    #[error(
        "driver version mismatch: the running driver is {running}, and below {root} there are libraries of {}; \
         install the libraries of {running}, or reload the kernel module", list(.found)
    )]
    Mismatch {
        /// The version of the kernel module, or what NVML says.
        running: DriverVersion,
        /// The versions of the libraries.
        found: Vec<DriverVersion>,
        /// The root.
        root: PathBuf,
    },
    /// A text that is no driver version.
    #[error("{0:?} is no driver version: write two to four numbers joined by dots, as in 550.54.15")]
    Version(String),
    /// A loader's cache that cannot be read.
    #[error("ld.so.cache: {0}")]
    LoaderCache(&'static str),
    /// A file that is no shared library.
    #[error("not a shared library: {0}")]
    Elf(&'static str),
    /// A line of `mig-minors` that cannot be read.
    #[error("mig-minors, line {line}: {text:?} is not `NAME MINOR`, as in gpu0/gi1/ci0/access 13")]
    MigMinors {
        /// The line, from 1.
        line: usize,
        /// Its text, shortened.
        text: String,
    },
    /// A text that is no PCI address.
    #[error("{0:?} is no PCI address: write DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal, as in 0000:07:00.0")]
    PciAddress(String),
    /// A driver capability that nobody knows.
    #[error("{variable}: unknown driver capability {value:?}: use all, or some of {known}, joined by commas", known = Capabilities::NAMES.join(", "))]
    Capability {
        /// The variable.
        variable: &'static str,
        /// The part that is not known, shortened.
        value: String,
    },
    /// A driver capability that containers of this node do not get.
    #[error(
        "{variable}: {missing} is not to be had: supported-driver-capabilities of this node is {supported}"
    )]
    Unsupported {
        /// The variable.
        variable: &'static str,
        /// What is asked for and not to be had.
        missing: String,
        /// What is to be had.
        supported: String,
    },
    /// A requirement of an image that cannot be read.
    #[error("{variable}: invalid constraint {constraint:?}: {rule}")]
    Constraint {
        /// The variable.
        variable: String,
        /// The constraint, shortened.
        constraint: String,
        /// What is wrong.
        rule: &'static str,
    },
    /// A requirement of an image that this node does not meet.
    #[error(
        "unsatisfied requirement {variable}={constraint:?}: this node has {has}; use an image for this driver, update \
         the driver, or set NVIDIA_DISABLE_REQUIRE=true to start nevertheless"
    )]
    Unsatisfied {
        /// The variable.
        variable: String,
        /// Its value, shortened.
        constraint: String,
        /// What driver and GPU are.
        has: String,
    },
    /// Devices that the node does not have.
    #[error("no such device: {}; this node has {known}", .names.join(", "))]
    UnknownDevice {
        /// What was asked for.
        names: Vec<String>,
        /// What there is, in short.
        known: String,
    },
    /// Nothing to describe: an empty specification would be an invalid one.
    #[error("no device for {kind}: {missing}")]
    NoDevices {
        /// The kind.
        kind: String,
        /// What was looked for.
        missing: &'static str,
    },
    /// A CDI specification or name that is not valid.
    #[error(transparent)]
    Cdi(#[from] gantry_cdi::Error),
}

fn list(versions: &[DriverVersion]) -> String {
    versions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The beginning of a text from outside, short enough for a message.
pub(crate) fn short(text: &str) -> String {
    text.chars().take(120).collect()
}
