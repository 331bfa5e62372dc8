//! Which objects are meant: label selectors (as a string and as an object), field selectors, node selectors.

mod fields;
mod labels;
mod node;
mod parser;

pub use fields::{FieldRequirement, FieldSelector};
pub use labels::{Labels, Operator, Requirement, Selector};
pub use node::NodeSelector;
