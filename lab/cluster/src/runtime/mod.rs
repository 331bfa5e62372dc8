//! Containers: from a specification to an OCI configuration to what a process sees.
//!
//! ```text
//!   Pod, Allocate's answer ──▶ config ──CDI edits──▶ ContainerView ──▶ programs
//!                                                        │ Sandbox: state, log, exit code
//! ```

mod config;
mod driver;
mod hardware;
mod logs;
mod sandbox;
mod view;

pub(crate) use config::{Blueprint, config, inject};
pub(crate) use driver::install as install_driver;
pub use gantry_smi::{Driver, GpuReading};
pub(crate) use hardware::NodeHardware;
pub(crate) use logs::{Log, LogLine};
pub(crate) use sandbox::{Record, Run, Sandbox, State, Termination};
pub(crate) use view::normalize;
pub use view::{ContainerView, File, Hardware};
