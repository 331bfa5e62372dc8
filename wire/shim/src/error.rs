//! What can be wrong with annotations and messages.

use crate::granted::RULE;
use crate::{MAX_DEVICES, MAX_LINE};

/// Why a text is no list of devices, or no message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device has a form that no device plugin offers.
    #[error("annotation {key}: {id:?} is no device: {}", RULE)]
    Device {
        /// The annotation's key.
        key: String,
        /// The text, shortened.
        id: String,
    },
    /// One container has a device twice.
    #[error("annotation {key}: {id} stands there twice: a device is granted once")]
    Twice {
        /// The annotation's key.
        key: String,
        /// The device.
        id: String,
    },
    /// More devices than a node can have.
    #[error("annotation {key}: more than {} devices", MAX_DEVICES)]
    TooMany {
        /// The annotation's key.
        key: String,
    },
    /// A message is too long to be read.
    #[error("a message of more than {} bytes is refused", MAX_LINE)]
    Size,
    /// A message is not the JSON that this version writes.
    #[error("not a message: {0}")]
    Syntax(serde_json::Error),
    /// A message is of a version that this one does not know.
    #[error(
        "version {0} is not known: this program speaks version 1; update gantry-runtime and the node agent together"
    )]
    Version(u64),
    /// A field of a message has a value that breaks a rule.
    #[error("{field}: invalid value {value:?}: {rule}")]
    Invalid {
        /// The field, such as `pod.uid`.
        field: &'static str,
        /// The value, shortened.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
}
