//! Kubernetes semantics on JSON values: what an API server does with an object, without a server.
//!
//! Objects stay [`serde_json::Value`] end to end, so that fields nobody here knows survive. Each module is one rule book of Kubernetes,
//! a set of functions from values to values. Refusals read as the API server words them, because people search for those words.
//!
//! ```text
//!            request body                                     stored object                    answer
//!   ┌──────────────┴────────────┐                         ┌────────┴────────┐          ┌─────────┴────────┐
//!   names ─ field errors ─ Status    MergeSchema ─ patches    Selector, fields    columns (JSONPath), Status
//! ```
//!
//! - [`FieldError`], [`FieldPath`]: a fault of one field, printed `spec.replicas: Invalid value: -1: …`.
//! - [`Status`]: the `metav1.Status` of every kind of refusal.
//! - [`Selector`], [`FieldSelector`]: which objects are meant.
//! - [`json_patch`], [`merge_patch`], [`strategic_merge_patch`] with a [`MergeSchema`]: changes to an object.
//! - [`ManagedFields`], [`FieldSet`], [`ApplySchema`]: server-side apply and who owns which field.
//! - [`default_pod_resources`], [`validate_pod_resources`], [`effective_requests`]: what a pod asks of a node.
//! - [`Schema`]: what a CustomResourceDefinition says of its objects.
//! - [`JsonPath`], [`PrinterColumn`]: values named by a path, columns of `kubectl get`.

mod apply;
mod columns;
mod field;
mod jsonpath;
mod names;
mod patch;
mod resources;
mod schema;
mod selector;
mod status;

pub use apply::{
    Applied, ApplyError, ApplyField, ApplyList, ApplyMap, ApplySchema, ApplyType, ApplyTypeId, ApplyTypes,
    ApplyVersions, Conflict, FieldSet, ListIdentity, ManagedEntry, ManagedFields, Members,
    Operation as FieldOperation, PathElement, ScalarType, Writer,
};
pub use columns::PrinterColumn;
pub use field::{FieldError, FieldErrorKind, FieldPath};
pub use jsonpath::JsonPath;
pub use names::{
    validate_annotations, validate_dns1035_label, validate_dns1123_label, validate_dns1123_subdomain,
    validate_label_value, validate_labels, validate_qualified_name,
};
pub use patch::{MergeField, MergeSchema, json_patch, merge_patch, strategic_merge_patch};
pub use resources::{
    canonicalize_pod_resources, default_pod_resources, effective_requests, is_extended_resource,
    read_quantity, validate_pod_resources, validate_resource_requirements,
};
pub use schema::Schema;
pub use selector::{FieldRequirement, FieldSelector, Labels, Operator, Requirement, Selector};
pub use status::{ResourceName, Status};

/// Why a text or a value is not what an operation needs. Faults of fields of an object are [`FieldError`]s instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A label selector string that has no meaning.
    #[error("unable to parse label selector {input:?}: {reason}")]
    LabelSelector {
        /// The selector as it was given.
        input: String,
        /// What was found and what is expected there.
        reason: String,
    },
    /// A field selector string that has no meaning.
    #[error(
        "invalid field selector {input:?}; can't understand {term:?}: use field=value or field!=value, joined by ','"
    )]
    FieldSelector {
        /// The selector as it was given.
        input: String,
        /// The part that is at fault.
        term: String,
    },
    /// A JSONPath that has no meaning.
    #[error("invalid JSONPath {input:?}: {reason}")]
    JsonPath {
        /// The path as it was given.
        input: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A patch that has no meaning, whatever the object.
    #[error("invalid patch{}: {reason}", if path.is_empty() { String::new() } else { format!(" at {path:?}") })]
    MalformedPatch {
        /// The field of the patch; empty for the whole.
        path: String,
        /// The rule that it breaks.
        reason: String,
    },
    /// An operation of a JSON patch that does not fit the object.
    #[error("operation {index} of the patch failed at {path:?}: {reason}")]
    PatchFailed {
        /// The operation, counted from 0.
        index: usize,
        /// The JSON pointer that it names.
        path: String,
        /// Why it failed.
        reason: String,
    },
}
