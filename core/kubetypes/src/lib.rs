//! Kubernetes' built-in types (v1.34) as one table: names, protobuf numbers, types and markers of every field.
//!
//! The table is data: `data/GROUP.VERSION.types`, one file for each group-version, drawn from the `generated.proto` and `types.go` of
//! k8s.io/api, k8s.io/apimachinery, k8s.io/apiextensions-apiserver and k8s.io/kube-aggregator at v0.34.1 (and k8s.io/metrics). What an API server must know of a
//! built-in object is a reading of it:
//!
//! ```text
//!                      ┌─▶ Types::check, Types::prune   strict field validation, as `fieldValidation=Strict|Warn|Ignore` asks
//!  data/*.types ─▶ Types ─▶ decode                      `application/vnd.kubernetes.protobuf` bodies into JSON
//!                      ├─▶ Types::apply_schema          server-side apply: sets, maps and what is replaced as a whole
//!                      ├─▶ MergeSchema                  strategic merge patch: strategy and merge key of each field
//!                      └─▶ openapi::document            OpenAPI v3, for `kubectl explain`, `apply`, `diff`
//! ```
//!
//! # The format
//!
//! ```text
//! group apps/v1 apps.v1 io.k8s.api.apps.v1       group-version, prefix of its types, prefix of its OpenAPI names
//! kind Deployment deployments namespaced         kind, with its resource and scope where it has one
//! type Deployment typed                          `typed`: has apiVersion and kind; `atomic`: replaced as a whole by server-side apply;
//!   2 spec DeploymentSpec                        `unwrap`: JSON shows its only field's value
//!   1 replicas *int32                            number, JSON name, type: `*T` pointer, `[]T` list, `{}T` map from strings
//!   10 conditions []C patch=merge key=type map=type
//! ```
//!
//! A line that begins with `#` is a comment. A type without a dot is of the same file. Properties of a field: `required` (and so written
//! when empty), `omitempty` (required, but not written when empty), `always` (written when empty, not required), `omitzero`, `inline`, `patch=`
//! and `key=` (strategic merge), `list=` and `map=` (list type and map keys of server-side apply), `atomic`, `enum=A|B`, `default=JSON`.
//! `data/descriptions.txt` has one line of words for the types and fields that are met most.

mod apply;
mod check;
mod data;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod merge;
mod openapi;
mod parse;
mod protobuf;
mod table;
mod time;

pub use check::{Findings, UnknownField, Unsupported};
pub use error::Error;
pub use openapi::document;
pub use protobuf::{MAX_BODY_BYTES, PROTOBUF_MAGIC, decode};
pub use table::{Field, Kind, Leaf, ListType, PatchStrategy, Scalar, Shape, Type, TypeId, Types};
