//! The way of every write: defaults, admission, validation, commit.

use std::sync::Arc;

use gantry_apimachinery::{FieldError, ManagedFields};
use serde_json::Value;

use super::update::Part;
use super::{meta, webhooks};
use crate::http::Call;
use crate::json::text;
use crate::store::{CommitError, Object};
use crate::{Status, admission, crd};

/// Asks the admission plugins and checks the result, given in its storage version with its defaults. `errors` are
/// faults that were found before. Without `old` the object is new.
pub(crate) async fn admit(
    call: &Call,
    mut object: Value,
    old: Option<&Value>,
    errors: Vec<FieldError>,
) -> Result<Value, Status> {
    if old.is_none() {
        default(call, &mut object);
        admission::admit_new(&call.server, &call.resource, &mut object)?;
        // Limits that admission added are requests, too.
        default(call, &mut object);
    }
    let (mut object, changed) = webhooks::mutate(call, object, old).await?;
    if changed {
        default(call, &mut object);
    }
    if &*call.resource.id == crd::DEFINITIONS {
        crd::establish(&call.server, &mut object, &meta::now(&call.server.options.clock));
    }
    validate(call, &object, old, errors)?;
    webhooks::validate(call, Some(&object), old).await?;
    Ok(object)
}

/// Fills in what a new state leaves out that is there now, and its defaults.
pub(crate) fn complete(call: &Call, part: Part, object: &mut Value, old: &Value) {
    match part {
        Part::Main => {
            (call.resource.hooks.prepare_update)(object, old);
            default(call, object);
        }
        Part::Status => {
            meta::drop_nulls(object);
            if let Some(custom) = &call.resource.custom {
                custom.default(object);
            }
        }
        Part::Finalize | Part::Everything => {}
    }
}

/// The part of [`admit`] that concerns a write of the status alone.
pub(crate) async fn admit_status(call: &Call, object: Value, old: &Value) -> Result<Value, Status> {
    let mut errors = Vec::new();
    meta::validate(call, &object, Some(old), &mut errors);
    if let Some(custom) = &call.resource.custom {
        errors.extend(custom.validate(&object, Some(old)));
    }
    refuse(call, &object, &errors)?;
    let (object, _) = webhooks::mutate(call, object, Some(old)).await?;
    webhooks::validate(call, Some(&object), Some(old)).await?;
    Ok(object)
}

/// Fills in what the kind's defaults are.
pub(crate) fn default(call: &Call, object: &mut Value) {
    (call.resource.hooks.default)(object);
    if let Some(custom) = &call.resource.custom {
        custom.default(object);
    }
    meta::drop_nulls(object);
}

fn validate(
    call: &Call,
    object: &Value,
    old: Option<&Value>,
    mut errors: Vec<FieldError>,
) -> Result<(), Status> {
    let hooks = &call.resource.hooks;
    meta::validate(call, object, old, &mut errors);
    if let Some(custom) = &call.resource.custom {
        errors.extend(custom.validate(object, old));
    }
    (hooks.validate)(object, &mut errors);
    if let Some(old) = old {
        (hooks.validate_update)(object, old, &mut errors);
    }
    refuse(call, object, &errors)
}

fn refuse(call: &Call, object: &Value, errors: &[FieldError]) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(call.resource.invalid(text(&object["metadata"]["name"]), errors))
}

/// What a commit entails at once: a definition of a custom resource takes effect.
pub(crate) fn committed(call: &Call, object: &Object, is_gone: bool) {
    if &*call.resource.id != crd::DEFINITIONS {
        return;
    }
    crd::register(&call.server, &object.value, is_gone);
    if !is_gone && object.value["metadata"].get("deletionTimestamp").is_some() {
        crd::clean_up(&call.server, object.meta("name"));
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
pub(crate) fn unsaved(object: Value, managed: ManagedFields) -> Arc<Object> {
    Arc::new(Object::new(object, managed, 0))
}
