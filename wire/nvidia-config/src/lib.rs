//! The configuration of NVIDIA's device plugin and GPU Feature Discovery, as their users write it: a file (`version: v1`),
//! environment variables and flags, under NVIDIA's names and with NVIDIA's order of importance.
//!
//! ```text
//!   flags ──────────┐ most important
//!   environment ────┤──[`Config::load`]──▶ Config, or an Error that names key, line, value, rule and fix
//!   file (YAML) ────┤
//!   defaults ───────┘ least important
//! ```
//!
//! NVIDIA's programs take unknown keys, missing versions, keys that stand twice and contradictions in silence. Here they are
//! errors: whoever mistypes `replicas` learns it before a node comes up without shares.
//!
//! [`SETTINGS`] is the one table of what can be set by flag and environment: programs build their arguments from it. It also says
//! what becomes of each: a value that Gantry cannot follow is an error, one that changes nothing a [`Notice`].
//!
//! Source of names, defaults and rules: `NVIDIA/k8s-device-plugin` v0.20.0, `api/config/v1` and `cmd/*/main.go`.

mod config;
mod error;
mod file;
mod load;
mod names;
mod settings;
mod yaml;

pub use config::{
    AllocationPolicy, Config, DeviceIdStrategy, DeviceListStrategy, DeviceRef, DiscoveryStrategy, Gfd,
    HealthChecks, Imex, MigStrategy, Notice, Plugin, ResourceRule, Resources, SharedDevices, SharedResource,
    Sharing, SharingKind,
};
pub use error::{At, Error};
pub use names::{MIG_PREFIX, PREFIX, Pattern, ResourceName, SHARED_SUFFIX};
pub use settings::{Kind, SETTINGS, Setting, Treatment};
