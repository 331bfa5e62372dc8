//! Metadata that the server owns.

use gantry_apimachinery::{
    FieldError, FieldPath, ResourceName, validate_annotations, validate_labels, validate_qualified_name,
};
use gantry_kit::{SharedClock, SharedIds, stamp};
use serde_json::{Value, json};

use crate::http::Call;
use crate::json::{map_at, remove, text};
use crate::store::ObjectKey;
use crate::{Status, store};

/// Fields of the metadata that an update cannot change.
const SYSTEM_FIELDS: &[&str] = &[
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
];

pub(crate) fn now(clock: &SharedClock) -> String {
    stamp(clock.now())
}

/// Checks `apiVersion` and `kind` against the path, filling in what is absent.
pub(crate) fn check_type(call: &Call, object: &mut Value) -> Result<(), Status> {
    let api_version = call.resource.api_version();
    check_type_is(object, &api_version, &call.resource.kind)
}

pub(crate) fn check_type_is(object: &mut Value, api_version: &str, kind: &str) -> Result<(), Status> {
    let Some(map) = object.as_object_mut() else {
        return Err(Status::bad_request("the request body must be an object"));
    };
    for (field, expected) in [("apiVersion", api_version), ("kind", kind)] {
        let actual = map.get(field).map_or("", text);
        if actual.is_empty() {
            map.insert(field.to_owned(), expected.into());
        } else if actual != expected {
            return Err(Status::bad_request(format!(
                "the {field} in the data ({actual}) does not match the expected {field} ({expected})"
            )));
        }
    }
    if map.get("metadata").is_some_and(|metadata| !metadata.is_object() && !metadata.is_null()) {
        return Err(Status::bad_request("metadata must be an object"));
    }
    map_at(object, &["metadata"]);
    Ok(())
}

/// The namespace in the object must be that of the path; it is filled in where absent.
pub(crate) fn check_namespace(call: &Call, object: &mut Value) -> Result<(), Status> {
    let metadata = map_at(object, &["metadata"]);
    if !call.resource.namespaced {
        metadata.remove("namespace");
        return Ok(());
    }
    let actual = metadata.get("namespace").map_or("", text);
    if actual.is_empty() {
        metadata.insert("namespace".into(), call.path.namespace.as_str().into());
    } else if actual != call.path.namespace {
        return Err(Status::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the request ({actual} is not {})",
            call.path.namespace
        )));
    }
    Ok(())
}

/// Gives a new object its name, UID and time of creation, and takes away what a client cannot set.
pub(crate) fn prepare_new(object: &mut Value, clock: &SharedClock, ids: &SharedIds) -> Result<(), Status> {
    let metadata = map_at(object, &["metadata"]);
    if metadata.get("resourceVersion").is_some_and(|v| !text(v).is_empty()) {
        return Err(Status::unclassified(
            "resourceVersion should not be set on objects to be created".to_owned(),
        ));
    }
    for field in SYSTEM_FIELDS {
        metadata.remove(*field);
    }
    metadata.insert("uid".into(), ids.uid().into());
    metadata.insert("creationTimestamp".into(), now(clock).into());
    Ok(())
}

/// Draws a name if only `generateName` is given.
pub(crate) fn generate_name(object: &mut Value, ids: &SharedIds) -> bool {
    /// 63 less the suffix: what Kubernetes keeps of a long prefix.
    const LONGEST: usize = 58;
    let metadata = map_at(object, &["metadata"]);
    let prefix = metadata.get("generateName").map_or("", text);
    if metadata.get("name").is_some_and(|name| !text(name).is_empty()) || prefix.is_empty() {
        return false;
    }
    let prefix: String = prefix.chars().take(LONGEST).collect();
    metadata.insert("name".into(), format!("{prefix}{}", ids.suffix(5)).into());
    true
}

/// Restores from the old object what an update cannot change.
pub(crate) fn keep_system_fields(new: &mut Value, old: &Value) {
    let old = &old["metadata"];
    let metadata = map_at(new, &["metadata"]);
    for field in SYSTEM_FIELDS.iter().chain(&["name", "namespace"]) {
        match old.get(*field) {
            Some(value) => metadata.insert((*field).to_owned(), value.clone()),
            None => metadata.remove(*field),
        };
    }
}

/// Whether the two objects differ in anything but the bookkeeping of writes.
pub(crate) fn same(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new == old };
    let without = |map: &serde_json::Map<String, Value>| map.keys().filter(|key| *key != "metadata").count();
    without(new) == without(old)
        && new.iter().all(|(key, value)| {
            if key == "metadata" { same_metadata(value, &old[key]) } else { old.get(key) == Some(value) }
        })
}

fn same_metadata(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new == old };
    let relevant = |key: &&String| *key != "resourceVersion" && *key != "generation";
    new.keys().filter(relevant).count() == old.keys().filter(relevant).count()
        && new.keys().filter(relevant).all(|key| old.get(key) == new.get(key))
}

/// Whether anything changed that a controller must act on: all but metadata and status.
pub(crate) fn desired_state_changed(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return true };
    let desired = |key: &&String| !matches!(key.as_str(), "metadata" | "status" | "apiVersion" | "kind");
    new.keys().chain(old.keys()).filter(desired).any(|key| new.get(key) != old.get(key))
}

/// New objects need a namespace that exists and stays.
pub(crate) fn check_namespace_accepts(call: &Call, name: &str) -> Result<(), Status> {
    let resource = &call.resource;
    if !resource.namespaced {
        return Ok(());
    }
    let namespace = &call.path.namespace;
    let id = store::ResourceId::from("namespaces");
    let Some(found) = call.server.store.get(&id, &ObjectKey::new("", namespace)) else {
        return Err(Status::not_found(ResourceName { group: "", resource: "namespaces", name: namespace }));
    };
    if found.value["metadata"].get("deletionTimestamp").is_some() {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut status = resource.forbidden(name, &why);
        let cause = json!({
            "reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"),
            "field": "metadata.namespace",
        });
        status.details.insert("causes".into(), json!([cause]));
        return Err(status);
    }
    Ok(())
}

/// Checks what every object has: its name, labels, annotations, owners and finalizers.
pub(crate) fn validate(call: &Call, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let metadata = &object["metadata"];
    let path = FieldPath::new("metadata");
    let name = text(&metadata["name"]);
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), "name or generateName is required"));
    } else if old.is_none() {
        let faults = (call.resource.hooks.names)(name);
        errors.extend(faults.into_iter().map(|fault| FieldError::invalid(&path.child("name"), name, fault)));
    }
    errors.extend(validate_labels(&metadata["labels"], &path.child("labels")));
    errors.extend(validate_annotations(&metadata["annotations"], &path.child("annotations")));
    let mut controllers = 0;
    for (i, owner) in crate::json::items(&metadata["ownerReferences"]).iter().enumerate() {
        let path = path.child("ownerReferences").index(i);
        for field in ["apiVersion", "kind", "name", "uid"] {
            if text(&owner[field]).is_empty() {
                errors.push(FieldError::invalid(
                    &path.child(field),
                    "",
                    format!("{field} must not be empty"),
                ));
            }
        }
        controllers += usize::from(owner["controller"] == true);
    }
    if controllers > 1 {
        let rule = "Only one reference can have Controller set to true";
        let references = metadata["ownerReferences"].clone();
        errors.push(FieldError::invalid(&path.child("ownerReferences"), references, rule));
    }
    for finalizer in finalizers(object) {
        let faults = validate_qualified_name(finalizer);
        let path = path.child("finalizers");
        errors.extend(faults.into_iter().map(|fault| FieldError::invalid(&path, finalizer, fault)));
    }
    if let Some(old) = old
        && old["metadata"].get("deletionTimestamp").is_some()
    {
        let before = finalizers(old);
        let new: Vec<&str> = finalizers(object).into_iter().filter(|f| !before.contains(f)).collect();
        if !new.is_empty() {
            let rule = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {new:?}"
            );
            errors.push(FieldError::forbidden(&path.child("finalizers"), rule));
        }
    }
}

/// `metadata.finalizers` as texts.
pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    crate::json::items(&object["metadata"]["finalizers"]).iter().map(text).collect()
}

/// Drops null metadata, which means absent.
pub(crate) fn drop_nulls(object: &mut Value) {
    map_at(object, &["metadata"]).retain(|_, value| !value.is_null());
    if object["metadata"].get("finalizers").is_some_and(|list| list.as_array().is_some_and(Vec::is_empty)) {
        remove(object, &["metadata", "finalizers"]);
    }
}
