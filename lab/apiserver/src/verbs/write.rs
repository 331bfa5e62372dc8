//! The way of every write: defaults, admission, validation, commit.

use std::sync::Arc;

use gantry_apimachinery::FieldError;
use serde_json::Value;

use super::meta;
use crate::http::Call;
use crate::json::text;
use crate::store::{CommitError, Object};
use crate::{Status, admission};

/// Fills in defaults, asks the admission plugins and checks the result, given in its storage version. `errors` are faults
/// that were found before. Without `old` the object is new.
pub(crate) async fn admit(
    call: &Call,
    mut object: Value,
    old: Option<&Value>,
    mut errors: Vec<FieldError>,
) -> Result<Value, Status> {
    let hooks = &call.resource.hooks;
    if let Some(old) = old {
        (hooks.prepare_update)(&mut object, old);
    }
    (hooks.default)(&mut object);
    if old.is_none() {
        admission::admit_new(&call.server, &call.resource, &mut object)?;
        // Limits that admission added are requests, too.
        (hooks.default)(&mut object);
    }
    meta::drop_nulls(&mut object);
    meta::validate(call, &object, old, &mut errors);
    (hooks.validate)(&object, &mut errors);
    if let Some(old) = old {
        (hooks.validate_update)(&object, old, &mut errors);
    }
    if errors.is_empty() {
        Ok(object)
    } else {
        Err(call.resource.invalid(text(&object["metadata"]["name"]), &errors))
    }
}

/// The part of [`admit`] that concerns a write of the status alone.
pub(crate) fn admit_status(call: &Call, mut object: Value, old: &Value) -> Result<Value, Status> {
    meta::drop_nulls(&mut object);
    let mut errors = Vec::new();
    meta::validate(call, &object, Some(old), &mut errors);
    if errors.is_empty() {
        Ok(object)
    } else {
        Err(call.resource.invalid(text(&object["metadata"]["name"]), &errors))
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
