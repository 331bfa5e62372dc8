//! The process kit: what every Gantry process needs and no component should invent again.
//!
//! Components never read the wall clock, draw randomness or listen for signals themselves. They are handed a
//! [`Clock`], an [`IdSource`] and a [`CancellationToken`], so that a test or a simulation can hand them others:
//!
//! ```text
//!   main ──▶ SystemClock, RandomIds, signal handlers ─┐
//!   tests ─▶ VirtualClock, SeededIds, own token ──────┴─▶ component::run(options, clock, ids, cancel)
//! ```
//!
//! Sleeping is always `tokio::time`, which a paused runtime turns into virtual time.

mod clock;
mod endpoints;
mod hash;
mod ids;
mod metrics;
mod panics;
mod process;
mod stamp;
mod tasks;

pub use clock::{Clock, ManualClock, SharedClock, SystemClock, VirtualClock};
pub use endpoints::{Readiness, serve_endpoints};
pub use hash::{fnv1a_32, fnv1a_64};
pub use ids::{IdSource, RandomIds, SeededIds, SharedIds, suffix_letters, uuid_v4};
pub use metrics::{Counter, Gauge, Metrics};
pub use panics::catch_panic;
pub use process::{init_logging, install_crypto, shutdown_signal};
pub use stamp::{micro_stamp, stamp};
pub use tasks::Tasks;
pub use tokio_util::sync::CancellationToken;
