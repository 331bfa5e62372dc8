//! The installed NVIDIA driver, and what containers get of it.
//!
//! ```text
//!   driver root ─▶ discover() ─▶ Driver ┐                      ┌─▶ spec()             CDI files of a node
//!   dev root    ─▶ scan()     ─▶ DeviceFiles ├─▶ Machine ──────┤
//!   /proc       ─▶ MigMinors, Running   │   (a plain value)    └─▶ container_edits()  what one container gets: its devices, the
//!   GpuBackend  ─▶ [Gpu]                ┘                           capabilities that it asks for, after its requirements are checked
//!                                             image root ─▶ ImageLayout::probe(): where its loader looks
//! ```
//!
//! Reading and describing are apart: [`Machine`] is a value, and what follows from it is a pure function with golden files in `tests/golden`.
//!
//! **No hooks.** NVIDIA's toolkit runs programs as root in a container's file system, to make links and the loader's cache. Here every name that
//! programs and the loader use is a mount of its own, in a folder that the image's loader searches without being told
//! (docs/decisions.md): the name is read from the library itself.
//!
//! Nothing is known of distributions: what the loader's cache names is looked at first, then the usual folders, and links are followed as inside
//! the root. To make another part of the driver known, add a row in `tables.rs`.

mod capability;
mod container;
mod discover;
mod elf;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod image;
mod ldcache;
mod machine;
mod minors;
mod nodes;
mod require;
mod root;
mod simulate;
mod tables;
mod version;

pub use capability::{CAPABILITIES_VARIABLE, Capabilities};
pub use container::ContainerRequest;
pub use discover::{Driver, DriverFile, Place, Running, discover};
pub use elf::SharedLibrary;
pub use error::Error;
pub use image::{ImageLayout, LibC};
pub use ldcache::CachedLibrary;
pub use machine::{
    Class, MANAGEMENT_VENDOR, Machine, NameStrategy, PLUGIN_VENDOR, RUNTIME_VENDOR, VENDOR, Wish,
};
pub use minors::MigMinors;
pub use nodes::{DeviceFile, DeviceFiles, PciAddress};
pub use require::{Facts, Requirement, requirements};
pub use root::Root;
pub use simulate::install_simulated;
pub use tables::SOCKETS;
pub use version::DriverVersion;
