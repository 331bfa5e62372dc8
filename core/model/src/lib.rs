//! The nouns of the domain, without behaviour that needs a cluster, a clock or a driver.
//!
//! ```text
//!   Node ──has──▶ Gpu ──linked by──▶ Topology
//!   pod ──dialect──▶ Request ──engine──▶ Assignment (which GPUs of which node)
//!                                └─────▶ Reason     (why not, and what would fit)
//! ```
//!
//! Types here do not derive `Serialize`: what crosses a process boundary has its own type in `wire`.

mod device;
mod topology;

pub use device::{Fault, FaultKind, Gpu, GpuId, Health, InvalidGpuId};
pub use topology::{Link, LinkKind, Topology};
