//! GPUs as the node agent meets them: [`GpuBackend`], over NVIDIA's driver and simulated.
//!
//! ```text
//!   agent ──▶ GpuBackend ─┬─ driver()      which driver, which CUDA
//!                         ├─ inventory()   the cards that answer, how they are linked, and those that do not answer
//!                         ├─ sample()      load, memory, temperature, power, processes: `None` = not supported
//!                         └─ subscribe()   XID errors, lost cards, recoveries, as they happen
//!
//!   NvmlGpus: GpuBackend ◀── libnvidia-ml.so.1 of a driver root, loaded while the program runs
//!
//!   SimGpus: GpuBackend ◀── a row of PROFILES × a count × a node name   (same input, same UUIDs)
//!        ▲ fault(), recover(): scripted faults       ▲ set_load(), end_process(): what the simulated runtime runs
//! ```
//!
//! A card that does not answer never hides the others: it moves from [`Inventory::gpus`] to [`Inventory::failed`]. No type of NVML
//! leaves this crate.
//! To simulate another GPU model, add a row to [`PROFILES`]; nothing else knows model names.

mod backend;
mod details;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod mig;
mod nvml;
mod pci;
mod profile;
mod sim;

pub use backend::{
    DriverInfo, EventKind, EventSink, FailedGpu, GpuBackend, GpuProcess, GpuSample, HealthEvent, Inventory,
    Subscribers, Subscription, is_application_xid,
};
pub use details::{FabricInfo, FabricState, GpuDetails, RecoveryAction, Vgpu};
pub use error::Error;
pub use mig::{MigEngines, MigPlacement, MigProfile};
pub use nvml::{MigChange, MigOffer, NvmlGpus, NvmlOptions};
pub use pci::{PCI_DEVICES, pci_class, vgpu};
pub use profile::{Fabric, PROFILES, Power, Profile, Readings};
pub use sim::{Load, SimGpus, sim_gpu_id, sim_partition_id};
