//! What can be wrong with slots and messages.

use crate::{MAX_LINE, MAX_SLOTS};

/// Why a text is no list of slots, or no message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A slot has a form that no device plugin offers.
    #[error("{variable}: {slot:?} is no slot: a slot has 1 to 63 letters, digits, '-', '_', '.' and ':'")]
    Slot {
        /// The environment variable.
        variable: String,
        /// The text, shortened.
        slot: String,
    },
    /// One container has a slot twice.
    #[error("{variable}: {slot} stands there twice: a slot is granted once")]
    Twice {
        /// The environment variable.
        variable: String,
        /// The slot.
        slot: String,
    },
    /// More slots than a node can have.
    #[error("{variable}: more than {} slots", MAX_SLOTS)]
    TooMany {
        /// The environment variable.
        variable: String,
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
