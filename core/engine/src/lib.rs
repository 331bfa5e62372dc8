//! Cluster state, placement and explanation: what goes where, and why not.
//!
//! ```text
//!            apply(Event)                          decide(now)
//!   cluster ─────────────▶ State ────────────────────────────▶ Decision::Bind          (node and devices, held from now on)
//!                          │ Ledger: who holds what            Decision::Unschedulable (Refusals: reasons in data)
//!                          │ shapes: pods that ask the same
//!                          └ log of changed nodes              explain(pod) ──▶ Explanation
//! ```
//!
//! A pod goes through the phases of [`Phase`]: waiting → proposed → held → binding → bound, and is released when it is gone or its
//! binding fails. From *proposed* on it holds its place in the ledger. The ledger is a sum over pods, so that after a restart
//! the events of bound pods alone rebuild it.
//!
//! Pods that ask for the same form a *shape*. A shape keeps the score of every node in a tournament tree and looks again only at
//! nodes that have changed since: a decision costs a few evaluations, however many nodes there are. A shape that fits nowhere
//! is not tried again until something has become free or a node has changed.
//!
//! Pods of a group have their turn together, when the first of them has. They are proposed one by one and held all together if
//! their minimum has a place; otherwise each gives its place back before anybody else has a turn, so that no group holds a part
//! of what it needs, and none keeps another from starting without starting itself.
//!
//! Which GPUs of a node a pod gets is answered by [`DeviceSets`], which the node agent asks too.
//!
//! The same events give the same decisions: nothing here reads a clock, a random number, or the order of a hash map.

mod decide;
mod device_set;
mod explain;
mod gang;
mod ledger;
mod shape;
mod state;
mod tree;

pub use device_set::{DeviceSets, GpuMask};
pub use explain::{Explanation, Nearest, PodChange, Refusal, Refusals};
pub use state::{Decision, Event, Millis, Phase, State};
