//! From a pod in any vendor's vocabulary to one [`Request`], or the [`Reason`] that names the field and the fix.
//!
//! ```text
//!   Pod (JSON) ──parse──▶ Request  { GPUs by container, amounts, constraints, priority … }
//!        │          └───▶ Reason   G2xxx: the pod cannot be what its author meant
//!        └──────advice──▶ Advice   G4xxx: accepted, and yet there is something to know
//!   Node (JSON) ──parse_node──▶ Node, without its GPUs: those come from the node's agent
//! ```
//!
//! This is the only place in Gantry that knows the name of a resource. Names of GPU sharing that this release does not serve are
//! recognised and stay what they are to Kubernetes: extended resources. Where no node offers them the pod waits, and the engine's
//! reason names the field and tells what the name means.
//!
//! | in the pod | means |
//! | --- | --- |
//! | `nvidia.com/gpu` | whole GPUs |
//! | `nvidia.com/gpumem`, `gpu-memory`, `volcano.sh/vgpu-memory` | an amount of GPU memory |
//! | `nvidia.com/gpumem-percentage`, `volcano.sh/vgpu-memory-percentage` | a part of GPU memory |
//! | `nvidia.com/gpucores`, `gpu-core`, `volcano.sh/vgpu-cores` | a part of compute |
//! | `volcano.sh/vgpu-number` | a number of shares |
//! | `nvidia.com/gpu.shared` | a number of turns on a GPU (time-slicing) |
//! | `nvidia.com/mig-<profile>` | a partition |

mod advice;
mod fields;
mod names;
mod node;
mod placement;
mod pod;

pub use advice::advice;
pub use names::{
    GPU_RESOURCE, GROUP_MIN_MEMBER_ANNOTATION, GROUP_NAME_ANNOTATION, VOLCANO_GROUP_NAME_ANNOTATION,
};
pub use node::parse_node;
pub use placement::{parse_constraints, parse_toleration};
pub use pod::{parse, parse_bound};

#[cfg(doc)]
use gantry_model::{Reason, Request};
