//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

pub use crate::volcano::fuzzing::volcano_job;
