//! What Gantry writes into a cluster and reads back: one annotation, one custom resource; and the foreign resources it serves.
//!
//! ```text
//!   scheduler ──Binding.metadata.annotations["gantry.dev/assignment"]──▶ pod ──▶ node agent
//!   node agent ──GpuNode.status (devices, links, who uses which)──▶ scheduler, `gantry get gpus`
//! ```
//!
//! The types here are boundary types: strict when they read, convertible from and to `gantry_model`, and never used for
//! decisions. Custom resource definitions are functions, see [`crds`];
//! their YAML in `charts/gantry/crds/` is checked against them by a test.

mod assignment;
mod crd;
mod gpu_node;

pub use assignment::{ASSIGNMENT_ANNOTATION, decode_assignment, encode_assignment};
pub use crd::crds;
pub use gpu_node::{
    CDI_FILES_CURRENT, ContainerGpus, FaultStatus, GpuHealth, GpuNode, GpuNodeStatus, GpuStatus,
    IdentityMode, LinkGroup, StatusCondition,
};

/// The group of Gantry's custom resources.
pub const GROUP: &str = "gantry.dev";

/// The version of Gantry's custom resources.
pub const VERSION: &str = "v1alpha1";

/// Why something that Gantry wrote into a cluster, or somebody else in its place, cannot be understood.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The annotation is not the JSON that this version writes.
    #[error("annotation {}: not an assignment: {detail}", ASSIGNMENT_ANNOTATION)]
    AssignmentSyntax {
        /// What the JSON parser says.
        detail: serde_json::Error,
    },
    /// The annotation was written by a version that this one does not know.
    #[error(
        "annotation {}: version {version} is not known: this program reads version 1",
        ASSIGNMENT_ANNOTATION
    )]
    AssignmentVersion {
        /// The version in the annotation.
        version: u64,
    },
    /// The annotation is longer than any assignment can be.
    #[error("annotation {}: {bytes} bytes is too long: at most 65536", ASSIGNMENT_ANNOTATION)]
    AssignmentSize {
        /// Its length.
        bytes: usize,
    },
    /// A container has one GPU twice.
    #[error("annotation {}: container {container} has {gpu} twice", ASSIGNMENT_ANNOTATION)]
    AssignmentTwice {
        /// The container.
        container: String,
        /// The GPU's id.
        gpu: String,
    },
    /// A text that should be a GPU's id is none.
    #[error("{field}: {detail}")]
    GpuId {
        /// The field.
        field: String,
        /// What is wrong with it.
        detail: gantry_model::InvalidGpuId,
    },
    /// A field of a `GpuNode` has a value that breaks a rule.
    #[error("GpuNode {node}: {field}: invalid value {value:?}: {rule}")]
    GpuNode {
        /// The object's name.
        node: String,
        /// The field, such as `status.gpus[3].index`.
        field: String,
        /// The value.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
}
