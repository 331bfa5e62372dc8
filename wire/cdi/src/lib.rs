//! The Container Device Interface (CDI): files that say what a container needs in order to use a device.
//!
//! ```text
//!   node agent ──write()──▶ /var/run/cdi/*.json ◀──Folders::cache()── container runtime
//!                              kind: nvidia.com/gpu                     │ names: nvidia.com/gpu=0
//!                              devices: name → containerEdits           ▼
//!                                                     OCI config.json (a JSON value) + edits
//! ```
//!
//! The format is version 1.1.0 of
//! <https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>. Reading is as strict as the specification
//! asks: an unknown field, a version below what the content needs or a device without edits makes a file
//! invalid, and an invalid file never hides the valid ones. The OCI configuration is edited as a JSON value, so
//! fields that nobody here knows survive.

mod cache;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inject;
mod name;
mod spec;
mod write;

pub use cache::{Cache, Conflict, Folders, read, specification_files};
pub use error::Error;
pub use inject::apply;
pub use name::DeviceName;
pub use spec::{ContainerEdits, Device, DeviceNode, Hook, IntelRdt, Mount, NetDevice, Spec};
pub use write::{remove, to_yaml, write};
