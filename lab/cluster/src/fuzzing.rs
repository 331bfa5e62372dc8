//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

pub use crate::device_manager::fuzzing::{checkpoint, registration};
pub use crate::kubelet::fuzzing::annotations;
pub use crate::programs::fuzzing::{nvidia_smi, shell_script};
