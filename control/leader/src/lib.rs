//! Leader election: of several processes that could do the same work, one does it, and the others stand by.
//!
//! ```text
//!            ┌─ somebody else's Lease is in force ─┐
//!            ▼                                     │
//!   standby ──── Lease free, or not renewed for its duration ────▶ leading ── renews every 2 s, runs the work
//!      ▲                                                             │
//!      └── not renewed for 10 s, or taken by another: the work is cancelled *and has ended* ◀┘
//! ```
//!
//! The rules are those of Kubernetes' own components (`client-go/tools/leaderelection`), so that a Lease is read and taken over
//! between versions: whoever waits goes by the time at which *it* saw the Lease change, never by the clock of the holder. A leader counts from
//! the moment at which it *sent* its last successful renewal, and stops five seconds before the Lease can be taken.

mod election;

pub use election::{Options, Role, lead};
