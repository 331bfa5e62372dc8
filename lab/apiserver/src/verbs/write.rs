//! The way of every write: defaults, admission, validation, commit.

use std::sync::Arc;

use serde_json::Value;

use super::meta;
use crate::Status;
use crate::http::Call;
use crate::json::text;
use crate::store::{CommitError, Object};
use gantry_apimachinery::FieldError;

/// What a write does, in the words of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
}

/// Fills in defaults, asks the admission plugins and checks the result. The object is in its storage version.
pub(crate) async fn admit(
    call: &Call,
    operation: Operation,
    mut object: Value,
    old: Option<&Value>,
) -> Result<Value, Status> {
    let hooks = &call.resource.hooks;
    (hooks.default)(&mut object);
    meta::drop_nulls(&mut object);
    let _ = operation;
    let mut causes: Vec<FieldError> = Vec::new();
    (hooks.validate)(&object, &mut causes);
    if let Some(old) = old {
        (hooks.validate_update)(&object, old, &mut causes);
    }
    if causes.is_empty() {
        Ok(object)
    } else {
        Err(call.resource.invalid(text(&object["metadata"]["name"]), &causes))
    }
}

/// Turns a failed commit into the answer that clients know how to treat.
pub(crate) fn commit_failure(call: &Call, name: &str, error: CommitError) -> Status {
    match error {
        CommitError::Exists => call.resource.already_exists(name),
        CommitError::Missing => call.resource.not_found(name),
        CommitError::Stale => call.resource.stale(name),
        CommitError::Disk(error) => Status::internal(error),
    }
}

/// A stand-in for what a dry run would have stored.
pub(crate) fn unsaved(object: Value) -> Arc<Object> {
    Arc::new(Object::new(object, 0))
}
