//! `libnvidia-ml.so.1` without silicon: NVML's C interface over simulated GPUs.
//!
//! ```text
//!   NvmlGpus, nvidia-smi, any program that loads NVML
//!        │ dlopen libnvidia-ml.so.1
//!   ┌────▼────────────────────────────────────────────────┐
//!   │ ffi     C interface: versions, sizes, error codes   │
//!   │ node    what the cards are and read at this moment  │◀── config (YAML): which model, how many, what differs
//!   │ mig     what fits, by the tables of gantry-gpu      │◀─▶ state (JSON): faults, partitions, events; one file for all
//!   └─────────────────────────────────────────────────────┘     processes, locked while it is read or written
//!                                                              ▲
//!   fake-nvml-ctl  fault, recover, set, install ───────────────┘
//! ```
//!
//! What a model is, how it is linked and how MIG cuts it stands in [`gantry_gpu::PROFILES`] alone. A configuration names a row
//! and says what differs. [`Paths::find`] tells where configuration and state are looked for. [`install`] lays out a driver root
//! such as a driver container has.
//!
//! Nothing panics across the C interface: a caught panic is `NVML_ERROR_UNKNOWN`.

mod config;
mod elf;
mod error;
mod fault;
mod ffi;
mod install;
mod mig;
mod node;
mod state;

pub use config::{Config, Visible};
pub use error::Error;
pub use fault::Fault;
pub use install::{Installed, Options as InstallOptions, cap_minor, install};
pub use mig::{ComputeInstance, GpuInstance};
pub use node::{Card, Node, Paths};
pub use state::{CardState, Event, Loss, Process, State, Store};
