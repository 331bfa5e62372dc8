//! Reading Kubernetes objects as JSON values: paths, metadata, owners, time stamps, comparison, hashing.

use std::collections::BTreeMap;

pub(crate) use gantry_kit::stamp;
use gantry_kit::{fnv1a_32, suffix_letters};
use jiff::Timestamp;
use kube::core::{Selector, SelectorExt as _};
use serde_json::{Map, Value, json};

use crate::kinds::Kind;

static NULL: Value = Value::Null;

/// Reads along paths of fields and indices, such as `/spec/containers/0`; what is absent reads as empty.
pub(crate) trait Fields {
    /// The value at `path`, or null.
    fn at(&self, path: &str) -> &Value;

    fn text(&self, path: &str) -> &str {
        self.at(path).as_str().unwrap_or("")
    }

    fn int(&self, path: &str) -> Option<i64> {
        self.at(path).as_i64()
    }

    fn flag(&self, path: &str) -> bool {
        self.at(path).as_bool().unwrap_or(false)
    }

    fn list(&self, path: &str) -> &[Value] {
        self.at(path).as_array().map_or(&[], Vec::as_slice)
    }

    fn time(&self, path: &str) -> Option<Timestamp> {
        self.text(path).parse().ok()
    }

    fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    fn namespace(&self) -> &str {
        self.text("/metadata/namespace")
    }

    fn uid(&self) -> &str {
        self.text("/metadata/uid")
    }

    fn generation(&self) -> i64 {
        self.int("/metadata/generation").unwrap_or(0)
    }

    fn created(&self) -> Timestamp {
        self.time("/metadata/creationTimestamp").unwrap_or(Timestamp::UNIX_EPOCH)
    }

    fn is_deleting(&self) -> bool {
        !self.at("/metadata/deletionTimestamp").is_null()
    }

    /// `resourceVersion` as a number: Kubernetes promises that versions of one resource can be compared.
    fn version(&self) -> u64 {
        self.text("/metadata/resourceVersion").parse().unwrap_or(0)
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.at("/metadata/labels").get(key)?.as_str()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.at("/metadata/annotations").get(key)?.as_str()
    }

    fn labels(&self) -> BTreeMap<String, String> {
        string_map(self.at("/metadata/labels"))
    }

    fn controller(&self) -> Option<Owner> {
        Owner::controlling(self.list("/metadata/ownerReferences"))
    }

    fn condition(&self, kind: &str) -> Option<&Value> {
        self.list("/status/conditions").iter().find(|condition| condition.text("/type") == kind)
    }

    /// Whether a condition of this type has the status `True`.
    fn is_true(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.text("/status") == "True")
    }
}

fn child<'a>(value: &'a Value, part: &str) -> Option<&'a Value> {
    match value {
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        other => other.get(part),
    }
}

impl Fields for Value {
    fn at(&self, path: &str) -> &Value {
        // Unlike a JSON pointer without escapes, whose handling allocates: controllers read a lot.
        path.split('/').skip(1).try_fold(self, child).unwrap_or(&NULL)
    }
}

/// The string entries of a JSON object.
pub(crate) fn string_map(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// The controller of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Owner {
    /// The owner reference with `controller: true`.
    pub(crate) fn controlling(references: &[Value]) -> Option<Self> {
        let reference = references.iter().find(|reference| reference.flag("/controller"))?;
        Some(Self {
            kind: reference.text("/kind").to_owned(),
            name: reference.text("/name").to_owned(),
            uid: reference.text("/uid").to_owned(),
        })
    }
}

/// The owner reference that makes `owner` the controller.
pub(crate) fn controller_reference(kind: Kind, owner: &Value) -> Value {
    json!({
        "apiVersion": kind.api_version(), "kind": kind.name(), "name": owner.name(), "uid": owner.uid(),
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// Seconds from `then` to `now`, negative if `then` lies ahead.
pub(crate) fn seconds_between(then: Timestamp, now: Timestamp) -> i64 {
    now.as_second() - then.as_second()
}

/// A label selector of an object (`matchLabels`, `matchExpressions`). `None` if it is absent or malformed,
/// which selects nothing.
pub(crate) fn selector(value: &Value) -> Option<Selector> {
    let parsed = serde_json::from_value::<kube_selector::LabelSelector>(value.clone()).ok()?;
    if value.is_null() { None } else { Selector::try_from(parsed).ok() }
}

mod kube_selector {
    pub(super) use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
}

/// Whether `labels` fulfil the selector.
pub(crate) fn selects(selector: &Selector, labels: &BTreeMap<String, String>) -> bool {
    selector.matches(labels)
}

/// An integer, or a percentage of `total` that is rounded up or down.
pub(crate) fn int_or_percent(value: &Value, total: i64, round_up: bool) -> Option<i64> {
    if let Some(number) = value.as_i64() {
        return Some(number);
    }
    let percent: i64 = value.as_str()?.strip_suffix('%')?.parse().ok()?;
    let product = i128::from(total) * i128::from(percent);
    let quotient = if round_up { (product + 99).div_euclid(100) } else { product.div_euclid(100) };
    i64::try_from(quotient).ok()
}

/// The JSON merge patch that turns `old` into `new`; `None` where they are equal.
pub(crate) fn merge_diff(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return Some(new.clone()) };
    let mut patch = Map::new();
    for (key, value) in new {
        if let Some(change) = merge_diff(old.get(key).unwrap_or(&NULL), value) {
            patch.insert(key.clone(), change);
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The merge patch for an object's status; `None` where `status` is what it has.
pub(crate) fn status_diff(object: &Value, status: &Value) -> Option<Value> {
    let empty = json!({});
    let old = object.get("status").unwrap_or(&empty);
    merge_diff(old, status).map(|change| json!({"status": change}))
}

/// An object without the entries that are null, zero, empty or false: what Go leaves out of a status.
pub(crate) fn without_zeros(entries: Value) -> Map<String, Value> {
    let Value::Object(entries) = entries else { return Map::new() };
    let is_zero = |value: &Value| match value {
        Value::Null => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) => false,
    };
    entries.into_iter().filter(|(_, value)| !is_zero(value)).collect()
}

/// A template without what a round trip through a typed client adds or drops (nulls, empty objects, lists and
/// strings), so that two spellings of one template compare equal.
pub(crate) fn normal_form(value: &Value) -> Value {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    match value {
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| (key.clone(), normal_form(value)));
            Value::Object(entries.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(normal_form).collect()),
        other => other.clone(),
    }
}

/// FNV-1a over the normal form and the collision count, in the letters of generated names. Kubernetes hashes
/// its own in-memory form, which nothing outside can reproduce: only the shape of the result is the same.
pub(crate) fn template_hash(template: &Value, collisions: i64) -> String {
    let mut text = normal_form(template).to_string();
    if collisions != 0 {
        text.push_str(&collisions.to_string());
    }
    suffix_letters(&fnv1a_32(text.as_bytes()).to_string())
}

/// Sets `object[key] = value`, making `object` an object if it is absent.
pub(crate) fn set(object: &mut Value, key: &str, value: Value) {
    if !object.is_object() {
        *object = json!({});
    }
    object[key] = value;
}

/// The object at `key`, made if it is absent.
pub(crate) fn entry<'a>(object: &'a mut Value, key: &str) -> &'a mut Value {
    if !object.is_object() {
        *object = json!({});
    }
    let slot = &mut object[key];
    if !slot.is_object() {
        *slot = json!({});
    }
    slot
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_round_as_asked() {
        for (value, total, up, expect) in [
            (json!(3), 10, true, Some(3)),
            (json!("25%"), 10, true, Some(3)),
            (json!("25%"), 10, false, Some(2)),
            (json!("0%"), 10, true, Some(0)),
            (json!("150%"), 3, true, Some(5)),
            (json!("x"), 3, true, None),
            (Value::Null, 3, true, None),
        ] {
            assert_eq!(int_or_percent(&value, total, up), expect, "{value} of {total}");
        }
    }

    #[test]
    fn a_diff_names_only_what_changed_and_nulls_what_left() {
        let old = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1]});
        let new = json!({"a": 1, "b": {"c": 4}, "e": [1]});
        assert_eq!(merge_diff(&old, &new), Some(json!({"b": {"c": 4, "d": null}})));
        assert_eq!(merge_diff(&old, &old), None);
    }

    #[test]
    fn a_typed_round_trip_does_not_change_a_templates_hash() {
        let written = json!({"spec": {"containers": [{"name": "a", "image": "b"}]}});
        let read_back = json!({
            "metadata": {"creationTimestamp": null},
            "spec": {"containers": [{"name": "a", "image": "b", "resources": {}}]},
        });
        assert_eq!(template_hash(&written, 0), template_hash(&read_back, 0));
        assert_ne!(template_hash(&written, 0), template_hash(&written, 1));
    }

    #[test]
    fn an_absent_selector_selects_nothing_and_an_empty_one_everything() {
        assert!(selector(&Value::Null).is_none());
        let everything = selector(&json!({})).expect("an empty selector");
        assert!(selects(&everything, &BTreeMap::new()));
    }
}
