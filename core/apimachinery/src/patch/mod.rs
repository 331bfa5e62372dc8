//! The patches of an API server.

mod merge_schema;

pub use merge_schema::{MergeField, MergeSchema};
