//! FieldsV1: a set of fields as JSON, in Kubernetes' order.
//!
//! Each key is a step, each value what is below it; `.` says that the path that ends here is in the set although others go on, and an
//! empty object that it is and none does.

use serde_json::{Map, Value};

use super::set::Entry;
use super::{FieldSet, PathElement};

impl FieldSet {
    /// Reads FieldsV1. Steps of a kind that nobody knows are left out.
    ///
    /// ```
    /// use gantry_apimachinery::FieldSet;
    ///
    /// let set = FieldSet::from_fields_v1(&serde_json::json!({"f:spec": {"f:replicas": {}}})).unwrap();
    /// assert_eq!(set, FieldSet::of_fields("spec.replicas"));
    /// assert_eq!(set.to_fields_v1(), r#"{"f:spec":{"f:replicas":{}}}"#);
    /// ```
    pub fn from_fields_v1(fields: &Value) -> Result<Self, String> {
        let fields = match fields {
            Value::Object(fields) => fields,
            Value::Null => return Ok(Self::default()),
            _ => return Err("fields are a JSON object of path elements".to_owned()),
        };
        let mut entries = Vec::with_capacity(fields.len());
        for (key, value) in fields.iter().filter(|(key, _)| *key != ".") {
            let Some(element) = PathElement::parse(key)? else { continue };
            let below = Self::from_fields_v1(value)?;
            let is_member = below.is_empty() || value.get(".").is_some();
            entries.push(Entry { element, is_member, below });
        }
        Ok(Self::from_entries(entries))
    }

    /// FieldsV1 as text. (The order of its keys has a meaning that a JSON value would lose: keys of items are ordered as values.)
    pub fn to_fields_v1(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    /// FieldsV1 as a value, whose keys are in the order of their texts.
    pub(super) fn to_value(&self) -> Value {
        let entries = self.entries().iter().map(|entry| {
            let mut below = entry.below.to_value();
            if entry.is_member && !entry.below.is_empty() {
                below["."] = Value::Object(Map::new());
            }
            (entry.element.to_text(), below)
        });
        Value::Object(entries.collect())
    }

    pub(super) fn write(&self, out: &mut String) {
        out.push('{');
        self.write_entries(out, true);
        out.push('}');
    }

    fn write_entries(&self, out: &mut String, mut is_first: bool) {
        for entry in self.entries() {
            if !is_first {
                out.push(',');
            }
            is_first = false;
            write_key(&entry.element, out);
            out.push_str(":{");
            if entry.is_member && !entry.below.is_empty() {
                out.push_str("\".\":{}");
            }
            entry.below.write_entries(out, !entry.is_member);
            out.push('}');
        }
    }
}

fn write_key(element: &PathElement, out: &mut String) {
    match element {
        // Nearly all steps are names that need no escapes.
        PathElement::Field(name)
            if name.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') =>
        {
            out.push_str("\"f:");
            out.push_str(name);
            out.push('"');
        }
        other => out.push_str(&Value::String(other.to_text()).to_string()),
    }
}
