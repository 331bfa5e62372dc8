//! Which objects are meant: label selectors (as a string and as an object), field selectors.

mod fields;
mod labels;
mod parser;

pub use fields::{FieldRequirement, FieldSelector};
pub use labels::{Labels, Operator, Requirement, Selector};
