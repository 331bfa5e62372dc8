//! What every interface shows: queries over a cluster and the values they give.
//!
//! ```text
//!   kube::Client ──▶ Snapshot (nodes, GpuNodes, pods) ─┬─▶ Summary      one line
//!                                                      ├─▶ [GpuView]    a row a GPU, with its owners
//!                                                      └─▶ Why          a pod's place, or what it waits for
//! ```
//!
//! The values serialise as they are printed with `-o json`; how they look is the interface's business.

mod error;
mod gpus;
mod snapshot;
mod summary;
mod why;

pub use error::Error;
pub use gpus::{GpuView, OwnerView};
pub use snapshot::Snapshot;
pub use summary::Summary;
pub use why::{ReasonView, Why};
