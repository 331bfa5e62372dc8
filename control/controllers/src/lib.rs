//! Controllers of GPU workloads that Kubernetes itself does not have.
//!
//! ```text
//!   batch.volcano.sh Job ──plan──▶ PodGroup + pods (group name and minimum in their annotations)
//!            ▲                                   │
//!            └────────── status ◀── pods ◀───────┴─ scheduler: all of the minimum, or none
//! ```
//!
//! A plan is a pure function of what was observed; [`run`] carries plans out.

mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod volcano;

pub use error::Error;
pub use volcano::{Options, run};
