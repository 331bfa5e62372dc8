//! Cells and parts of cells that several kinds share.

use gantry_apimachinery::{FieldPath, Selector};
use gantry_units::human_duration;
use jiff::Timestamp;
use serde_json::Value;

/// What is at a dotted path; `Null` if absent.
pub(super) fn field<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(object, |here, name| &here[name])
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_default()
}

pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A text or number as text; `absent` instead of nothing.
pub(super) fn text_or(value: &Value, absent: &str) -> String {
    match value {
        Value::String(text) if !text.is_empty() => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => absent.to_owned(),
    }
}

pub(super) fn length(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    }
}

pub(super) fn timestamp(value: &Value) -> Option<Timestamp> {
    text(value).parse().ok()
}

pub(super) fn seconds_since(value: &Value, now: Timestamp) -> Option<i64> {
    timestamp(value).map(|then| now.duration_since(then).as_secs())
}

/// As in the AGE column.
pub(super) fn age(value: &Value, now: Timestamp) -> String {
    seconds_since(value, now).map_or_else(|| "<unknown>".to_owned(), human_duration)
}

/// The list joined by `,`; `<none>` if there is nothing to join.
pub(super) fn joined<'a>(parts: impl IntoIterator<Item = &'a str>, separator: &str) -> String {
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "<none>".to_owned() } else { parts.join(separator) }
}

pub(super) fn labels(value: &Value) -> String {
    let pairs: Vec<String> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", text(value)))
        .collect();
    joined(pairs.iter().map(String::as_str), ",")
}

/// A label selector as kubectl takes one; one that has no meaning shows as an error rather than as everything.
pub(super) fn selector(value: &Value) -> String {
    if value.is_null() {
        return "<none>".to_owned();
    }
    match Selector::from_label_selector(value, &FieldPath::new("selector")) {
        Ok(selector) if selector.is_everything() => "<none>".to_owned(),
        Ok(selector) => selector.to_string(),
        Err(_) => "<error>".to_owned(),
    }
}

/// One field of every container of a pod specification.
pub(super) fn of_containers(pod_spec: &Value, name: &str) -> String {
    items(&pod_spec["containers"])
        .iter()
        .map(|container| text(&container[name]))
        .collect::<Vec<_>>()
        .join(",")
}

/// The condition of this type.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(&object["status"]["conditions"]).iter().find(|condition| condition["type"] == kind)
}

pub(super) fn condition_is_true(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|condition| condition["status"] == "True")
}

pub(super) fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// The first three, then how many more there are.
pub(super) fn at_most_three(parts: &[String]) -> String {
    match parts {
        [] => "<none>".to_owned(),
        [..] if parts.len() <= 3 => parts.join(","),
        [first, second, third, rest @ ..] => format!("{first},{second},{third} + {} more...", rest.len()),
        [..] => parts.join(","),
    }
}
