//! The nouns of the domain, without behaviour that needs a cluster, a clock or a driver.
//!
//! ```text
//!   Node ──has──▶ Gpu ──linked by──▶ Topology
//!   pod ──dialect──▶ Request ──engine──▶ Assignment (which GPUs of which node)
//!                                └─────▶ Reason     (why not, and what would fit)
//! ```
//!
//! A [`Reason`] is why something was refused, an [`Advice`] what a pod's author should know although it was not.
//! Both are data with a stable code; their texts, the reference pages and the metric labels derive from one [`catalogue`].
//!
//! Types here do not derive `Serialize`: what crosses a process boundary has its own type in `wire`.

mod device;
mod node;
mod reason;
mod request;
mod resources;
mod selector;
mod topology;

pub use device::{Fault, FaultKind, Gpu, GpuId, Health, InvalidGpuId, Partition, PartitionAttributes};
pub use node::Node;
pub use reason::{Advice, Entry, Reason, catalogue};
pub use request::{
    Assignment, ContainerKind, ContainerRequest, Group, PodKey, Request, ResourceOrigin, SharingVocabulary,
};
pub use resources::Resources;
pub use selector::{
    Labels, NodeConstraints, NodeSelectorTerm, Requirement, Taint, TaintEffect, Test, Toleration, Unmet,
};
pub use topology::{Link, LinkKind, MAX_GPUS, Topology};
