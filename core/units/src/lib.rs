//! The quantities of Kubernetes, exact, and durations as kubectl prints them.
//!
//! A [`Quantity`] is what stands in `resources.limits`, in a node's `allocatable`, in a quota: a decimal number with a suffix.
//! It is held as a whole number of nano-units, so nothing is ever rounded by a float, together with the family of suffixes
//! that it was written in, so that it is printed back the way the API server prints it.
//!
//! ```text
//!   "1.5Gi" ──parse──▶ Quantity { nanos: 1 610 612 736 × 10⁹, format: BinarySi } ──Display──▶ "1536Mi"
//!                          │ value()  1 610 612 736        (units, rounded away from zero)
//!                          └ milli_value()                 (thousandths, rounded away from zero)
//! ```
//!
//! Equality and order are those of the value: `1Gi == 1024Mi`, whatever the suffix.
//!
//! [`human_duration`] is the text of kubectl's AGE column.

mod duration;
mod parse;
mod quantity;

pub use duration::human_duration;
pub use quantity::{Format, Quantity};

/// Why a text is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a quantity. `hint` tells what to write instead.
    #[error(
        "invalid quantity {input:?}: quantities must match the regular expression '{}': {hint}",
        Quantity::PATTERN
    )]
    Syntax {
        /// The text as it was given.
        input: String,
        /// What is wrong with it and what to write.
        hint: String,
    },
    /// The number is beyond what Kubernetes can hold (2⁶³ − 1 units either way).
    #[error("quantity {input:?} is out of range: the magnitude must be at most 9223372036854775807")]
    Range {
        /// The text as it was given.
        input: String,
    },
}
