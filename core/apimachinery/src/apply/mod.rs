//! Server-side apply: who owns which field, and what an apply makes of it.
//!
//! ```text
//!   object ──extract──▶ FieldSet ◀──FieldsV1──▶ metadata.managedFields
//!      │                   ▲ union, difference, …
//!      ├─ compare(old, new): fields that were added, modified, removed ─▶ ManagedFields::update   POST, PUT, PATCH
//!      └─ merge(live, config), then what the applier no longer names is removed ─▶ ManagedFields::apply   apply patches
//! ```
//!
//! How a list is merged is told by an [`ApplySchema`]: drawn from a CustomResourceDefinition's schema, or from a table of built-in types.
//! Semantics and texts are those of `sigs.k8s.io/structured-merge-diff` v6 and `k8s.io/apimachinery/pkg/util/managedfields`.

mod compare;
mod conflict;
mod element;
mod extract;
mod fields_v1;
mod last_applied;
mod managed;
mod merge;
mod operate;
mod schema;
mod set;
#[cfg(test)]
mod tests;

pub use conflict::{ApplyError, Conflict};
pub use element::PathElement;
pub use managed::{ManagedEntry, ManagedFields, Operation};
pub use operate::{Applied, ApplyVersions, Writer};
pub(crate) use schema::field;
pub use schema::{
    ApplyField, ApplyList, ApplyMap, ApplySchema, ApplyType, ApplyTypeId, ApplyTypes, ListIdentity,
    ScalarType,
};
pub use set::{FieldSet, Members};
