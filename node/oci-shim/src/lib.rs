//! An OCI runtime that brings GPUs into containers and leaves everything else to runc: the role of NVIDIA's container runtime.
//!
//! ```text
//!   containerd, CRI-O, Docker ──"create --bundle B …"──▶ gantry-runtime ──the same arguments──▶ runc, crun
//!                                                          │  ▲
//!                              B/config.json: Container ◀──┘  │ edits of CDI specifications
//!                                     │                       │
//!      policy: /etc/gantry/runtime.toml, NVIDIA's config.toml │
//!                                     ▼                       │
//!        annotations > slots (the node agent) > marker mounts > environment
//! ```
//!
//! Only `create` and `run` look at anything; every other command becomes runc's at once. A configuration is changed as a JSON
//! value, so that what nobody here knows stays, and is replaced whole or not at all. Nothing is run in a container's file system.
//!
//! **The environment is not believed.** Any image can say `NVIDIA_VISIBLE_DEVICES=all`. For a container without privileges that counts only
//! where the settings say so; otherwise it is created without GPUs, and the log says why.
//!
//! **Slots are believed to the node agent alone.** Where the device plugin granted slots, the agent says which GPUs they are for this pod.
//! When it does not answer, the container is not created: to start it without its GPUs, or with others', would be worse.

mod agent;
mod args;
mod bundle;
mod config;
mod container;
mod edit;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod log;
mod lowlevel;
mod policy;
mod run;
mod wish;

pub use args::{Bundle, CommandLine};
pub use bundle::MAX_CONFIG;
pub use config::load;
pub use container::{Container, Identity};
pub use edit::{Outcome, World, edit};
pub use error::Error;
pub use policy::{CONFIG_FILE, Level, LogTarget, NVIDIA_CONFIG_FILE, Policy};
pub use run::run;
pub use wish::{Asked, Device, Wish};
