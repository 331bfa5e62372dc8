//! The way from `kubectl apply` on the client to `kubectl apply --server-side`.
//!
//! On the client kubectl keeps what it applied in an annotation. When the same kubectl applies on the server, fields that still are as
//! it applied them are its own, whoever is written down as their owner; and the annotation, once there, goes on to tell what was applied.

use serde_json::Value;

use super::FieldSet;
use super::compare::compare;
use super::extract::field_set;
use super::schema::ApplySchema;

/// The manager for which this holds.
pub(super) const MANAGER: &str = "kubectl";
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Bytes that all annotations of an object may have.
const MAX_ANNOTATIONS: usize = 256 * 1024;

fn annotation(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][ANNOTATION].as_str().filter(|text| !text.is_empty())
}

/// The fields that `kubectl apply` set and that are as it set them.
pub(super) fn unchanged_fields(schema: ApplySchema<'_>, live: &Value, api_version: &str) -> FieldSet {
    let Some(last) = annotation(live).and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return FieldSet::default();
    };
    if last["apiVersion"] != api_version {
        return FieldSet::default();
    }
    let compared = compare(schema, &last, live);
    field_set(schema, &last)
        .difference(&compared.modified)
        .difference(&compared.added)
        .difference(&compared.removed)
}

/// Writes what is applied into the annotation, if there is one.
pub(super) fn follow(object: &mut Value, config: &Value) {
    if annotation(object).is_none() {
        return;
    }
    let mut config = config.clone();
    if let Some(annotations) = config["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(ANNOTATION);
    }
    let text = format!("{config}\n");
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.remove(ANNOTATION);
        let others: usize =
            annotations.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
        if others + ANNOTATION.len() + text.len() <= MAX_ANNOTATIONS {
            annotations.insert(ANNOTATION.to_owned(), text.into());
        }
    }
}
