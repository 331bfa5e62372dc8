//! Makes a container runtime know one more OCI runtime: what `nvidia-ctk runtime configure` does, on files that belong to somebody else.
//!
//! ```text
//!   files as they are ──plan()──▶ Plan: files as they should be ──diff()──▶ what --dry-run prints
//!   (a closure)                     │
//!                                   └──apply()──▶ a backup, then each file replaced whole
//! ```
//!
//! Planning is a function of the files' texts: what is wanted is compared with what is there, so a second run plans nothing. Comments,
//! order and unknown keys of a file stay. A file that cannot be read as what it should be is refused by line and column; nothing is
//! written then.
//!
//! **containerd 1 replaces, containerd 2 merges.** Up to version 2 of its configuration an imported file takes the place of a plugin's whole
//! section (<https://github.com/containerd/containerd/issues/5837>), which would silently drop a node's CNI and registry settings. There the
//! main file itself is edited; a drop-in that is asked for nevertheless begins as a copy of the section. From version 3 on sections are
//! merged, and a drop-in has what is ours and nothing else.

mod apply;
mod containerd;
mod crio;
mod diff;
mod docker;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod plan;
mod toml;

pub use error::Error;
pub use plan::{Change, Engine, Options, Plan, plan};
