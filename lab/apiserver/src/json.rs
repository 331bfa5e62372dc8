//! Reaching into JSON values of any shape without panicking.

use serde_json::{Map, Value};

/// The object at `path`, created on the way; anything that is no object is replaced by one.
pub(crate) fn map_at<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut here = value;
    for part in path {
        here = as_map(here).entry(*part).or_insert(Value::Null);
    }
    as_map(here)
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("invariant: made an object above")
}

/// Sets the field at `path`.
pub(crate) fn set(value: &mut Value, path: &[&str], new: impl Into<Value>) {
    if let Some((last, parents)) = path.split_last() {
        map_at(value, parents).insert((*last).to_owned(), new.into());
    }
}

/// Sets the field at `path` if it is absent or null.
pub(crate) fn set_default(value: &mut Value, path: &[&str], default: impl Into<Value>) {
    if let Some((last, parents)) = path.split_last() {
        let slot = map_at(value, parents).entry(*last).or_insert(Value::Null);
        if slot.is_null() {
            *slot = default.into();
        }
    }
}

/// What is at `path`; `Null` if absent.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> &'a Value {
    path.iter().fold(value, |here, part| &here[*part])
}

/// Removes the field at `path`, if it is there.
pub(crate) fn remove(value: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    let mut here = value;
    for part in parents {
        here = here.get_mut(*part)?;
    }
    here.as_object_mut()?.remove(*last)
}

/// The elements of a list; none if the value is no list.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The elements of a list, to be changed.
pub(crate) fn items_mut(value: Option<&mut Value>) -> &mut [Value] {
    value.and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}

/// A text; empty if the value is no text.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
