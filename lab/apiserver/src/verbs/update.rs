//! PUT, and the part of it that patches share.

use std::sync::Arc;

use http::Response;
use serde_json::Value;

use super::owners::{self, Owners};
use super::{fields, meta, view, write};
use crate::http::{Body, Call, Decoded, decode};
use crate::json::{map_at, text};
use crate::store::{CommitError, Object, ObjectKey};
use crate::{Status, admission};
use gantry_apimachinery::{FieldError, FieldPath, ManagedFields};

/// Attempts of a write that states no revision, when others write at the same time.
const ATTEMPTS: usize = 16;

/// Which part of the object a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status, if that has a path of its own.
    Main,
    Status,
    /// A namespace's `spec.finalizers`.
    Finalize,
    /// Whatever the server itself decides, such as a binding; no rule of clients applies.
    Everything,
}

pub(crate) async fn update(call: &Call, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let Decoded { mut object, duplicates } = decode(&call.headers, bytes)?;
    meta::check_type(call, &mut object)?;
    let name = text(&object["metadata"]["name"]);
    if !name.is_empty() && name != call.path.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.path.name
        )));
    }
    meta::check_namespace(call, &mut object)?;
    owners::check_options(call, "UpdateOptions", false)?;
    let updated = modify(call, Part::Main, &duplicates, |_, _| Ok(object.clone().into())).await?;
    view::respond(call, 200, &updated)
}

/// What a request makes of an object.
pub(crate) struct Changed {
    object: Value,
    owners: Owners,
}

impl From<Value> for Changed {
    fn from(object: Value) -> Self {
        Self { object, owners: Owners::Tracked }
    }
}

impl Changed {
    /// A new state with owners that are known.
    pub(crate) fn applied((object, managed): (Value, ManagedFields)) -> Self {
        Self { object, owners: Owners::Applied(managed) }
    }
}

/// Reads the object, lets `change` compute the new state from it and its owners, in the version of the request, and writes it.
/// `duplicates` are fields that occurred again in the request's text.
/// A write that names no revision is tried again if somebody else was faster.
pub(crate) async fn modify(
    call: &Call,
    part: Part,
    duplicates: &[String],
    change: impl Fn(&Value, &ManagedFields) -> Result<Changed, Status>,
) -> Result<Arc<Object>, Status> {
    let resource = &call.resource;
    let name = call.path.name.as_str();
    let key = ObjectKey::new(&call.path.namespace, name);
    for _ in 0..ATTEMPTS {
        let old = call.server.store.get(&resource.id, &key).ok_or_else(|| resource.not_found(name))?;
        let mut current = old.value.clone();
        resource.to_served(&mut current);
        let Changed { object: mut new, owners } = change(&current, &old.managed)?;
        check_identity(call, &mut new, &old)?;
        let errors =
            if part == Part::Everything { Vec::new() } else { fields::check(call, &mut new, duplicates)? };
        let base = owners::take_given(call, &mut new, &old.managed);
        resource.to_storage(&mut new);
        let mut new = merge_part(call, part, new, &old.value);
        write::complete(call, part, &mut new, &old.value);
        let managed = match owners {
            Owners::Applied(managed) => managed,
            Owners::Tracked if part == Part::Everything => base,
            Owners::Tracked => owners::after(call, &base, Some(&old.value), &new),
        };
        let mut new = match part {
            Part::Everything | Part::Finalize => new,
            Part::Status => write::admit_status(call, new, &old.value).await?,
            Part::Main => write::admit(call, new, Some(&old.value), errors).await?,
        };
        let _allocations = admission::allocate(&call.server, resource, &mut new)?;
        let is_same = meta::same(&new, &old.value) && managed.is_same_but_for_times(&old.managed);
        if is_same && !is_finished(&new) {
            return Ok(old);
        }
        if meta::desired_state_changed(&new, &old.value)
            && let Some(generation) = old.value["metadata"]["generation"].as_u64()
        {
            map_at(&mut new, &["metadata"]).insert("generation".into(), (generation + 1).into());
        }
        if call.dry_run() {
            return Ok(write::unsaved(new, managed));
        }
        let is_gone = is_finished(&new);
        let result = if is_gone {
            call.server.store.delete(&resource.id, &Object::new(new, managed, old.revision))
        } else {
            call.server.store.update_owned(&resource.id, new, managed, old.revision)
        };
        match result {
            Err(CommitError::Stale) => {}
            Ok(written) => {
                write::committed(call, &written, is_gone);
                return Ok(written);
            }
            Err(error) => return Err(write::commit_failure(call, name, error)),
        }
    }
    Err(resource.stale(name))
}

/// The new state must speak of the object that is there.
fn check_identity(call: &Call, new: &mut Value, old: &Object) -> Result<(), Status> {
    let resource = &call.resource;
    let name = call.path.name.as_str();
    meta::check_type(call, new)?;
    let metadata = map_at(new, &["metadata"]);
    let revision = metadata.get("resourceVersion").map_or("", text);
    if revision.is_empty() {
        if resource.custom.is_some() && call.path.subresource.is_empty() {
            return Err(Status::invalid(
                resource.named(name),
                &[FieldError::invalid(
                    &FieldPath::new("metadata.resourceVersion"),
                    0,
                    "must be specified for an update",
                )],
            ));
        }
    } else if revision != old.meta("resourceVersion") {
        return Err(resource.stale(name));
    }
    let uid = metadata.get("uid").map_or("", text);
    if !uid.is_empty() && uid != old.meta("uid") {
        return Err(resource.conflict(
            name,
            &format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                old.meta("uid")
            ),
        ));
    }
    Ok(())
}

/// What the request may change comes from `new`, the rest from `old`.
fn merge_part(call: &Call, part: Part, mut new: Value, old: &Value) -> Value {
    let take = |from: &Value, into: &mut Value, field: &str| match from.get(field) {
        Some(value) => map_at(into, &[]).insert(field.to_owned(), value.clone()),
        None => map_at(into, &[]).remove(field),
    };
    match part {
        Part::Main => {
            meta::keep_system_fields(&mut new, old);
            if call.resource.has_status() {
                take(old, &mut new, "status");
            }
            new
        }
        Part::Status => {
            let mut merged = old.clone();
            take(&new, &mut merged, "status");
            if call.resource.custom.is_none() {
                let metadata = map_at(&mut merged, &["metadata"]);
                for field in ["labels", "annotations", "finalizers"] {
                    match new["metadata"].get(field) {
                        Some(value) => metadata.insert(field.to_owned(), value.clone()),
                        None => metadata.remove(field),
                    };
                }
            }
            merged
        }
        Part::Everything => {
            meta::keep_system_fields(&mut new, old);
            new
        }
        Part::Finalize => {
            let mut merged = old.clone();
            let finalizers = new["spec"].get("finalizers").cloned().unwrap_or_default();
            map_at(&mut merged, &["spec"]).insert("finalizers".into(), finalizers);
            merged
        }
    }
}

/// Whether the object waited only for its last finalizer to go.
fn is_finished(object: &Value) -> bool {
    let metadata = &object["metadata"];
    metadata.get("deletionTimestamp").is_some()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && meta::finalizers(object).is_empty()
        && (object["kind"] != "Namespace" || crate::json::items(&object["spec"]["finalizers"]).is_empty())
}
