//! The fields that an object names, and whether an applied object fits its type.

use serde_json::Value;

use super::schema::{ApplyList, ApplyMap, ApplySchema, ApplyTypes, Handling, ListIdentity, ScalarType};
use super::set::{Entry, entry};
use super::{FieldSet, PathElement};

/// The fields of an object, as whoever applies it comes to own them.
pub(super) fn field_set(schema: ApplySchema<'_>, object: &Value) -> FieldSet {
    fields(schema, object).1
}

/// Whether the place itself is a field of the set, and the fields below it.
fn fields(schema: ApplySchema<'_>, value: &Value) -> (bool, FieldSet) {
    match (schema.here().handling(Some(value)), value) {
        (Handling::Map(of), Value::Object(object)) if !of.is_atomic => {
            let mut entries = Vec::with_capacity(object.len());
            let mut declared = of.fields.iter().peekable();
            for (name, value) in object {
                while declared.next_if(|field| field.name.as_ref() < name.as_str()).is_some() {}
                let field = declared.peek().filter(|field| field.name.as_ref() == name);
                let type_id = field.map(|field| field.type_id).or(of.other).unwrap_or(ApplyTypes::DEDUCED);
                let (is_leaf, below) = fields(schema.at(type_id), value);
                let is_empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                let element = match field {
                    Some(field) => PathElement::Field(field.name.clone()),
                    None => PathElement::field(name),
                };
                entries.extend(entry(&element, is_leaf || is_empty || field.is_none(), below));
            }
            (false, FieldSet::from_sorted(entries))
        }
        (Handling::List(of), Value::Array(items)) if of.identity != ListIdentity::Atomic => {
            let mut entries: Vec<Entry> = Vec::with_capacity(items.len());
            for item in items {
                let Ok(element) = schema.element_of(of, item) else { continue };
                let below = fields(schema.at(of.item), item).1;
                match entries.iter_mut().find(|entry| entry.element == element) {
                    // Items of the same identity are one leaf together.
                    Some(twin) => twin.below = FieldSet::default(),
                    None => entries.push(Entry { element, is_member: true, below }),
                }
            }
            (false, FieldSet::from_entries(entries))
        }
        // Null is a list or an object without anything in it; the field that has it is told by its parent.
        (Handling::Map(ApplyMap { is_atomic: false, .. }), Value::Null) => (false, FieldSet::default()),
        (Handling::List(of), Value::Null) if of.identity != ListIdentity::Atomic => {
            (false, FieldSet::default())
        }
        _ => (true, FieldSet::default()),
    }
}

/// What is wrong with an applied object, in structured-merge-diff's words; empty when nothing is.
pub(super) fn faults(schema: ApplySchema<'_>, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, object, &mut String::new(), &mut found);
    found
}

fn report(path: &str, problem: &str, found: &mut Vec<String>) {
    found.push(if path.is_empty() { problem.to_owned() } else { format!("{path}: {problem}") });
}

fn check(schema: ApplySchema<'_>, value: &Value, path: &mut String, found: &mut Vec<String>) {
    let here = schema.here();
    match here.handling(Some(value)) {
        Handling::Map(of) => match value {
            Value::Null => {}
            Value::Object(object) => {
                for (name, value) in object {
                    let length = path.len();
                    path.push('.');
                    path.push_str(name);
                    match of.field(name).map(|field| field.type_id).or(of.other) {
                        Some(type_id) => check(schema.at(type_id), value, path, found),
                        None => report(path, "field not declared in schema", found),
                    }
                    path.truncate(length);
                }
            }
            other => report(path, &format!("expected map, got {}", go_value(other)), found),
        },
        Handling::List(of) => match value {
            Value::Null => {}
            Value::Array(items) => check_items(schema, of, items, path, found),
            other => report(path, &format!("expected list, got {}", go_value(other)), found),
        },
        Handling::Leaf => {
            let problem = match (here.scalar, value) {
                (None, _) | (_, Value::Null) => return,
                (Some(ScalarType::Numeric), Value::Number(_))
                | (Some(ScalarType::String), Value::String(_))
                | (Some(ScalarType::Boolean), Value::Bool(_))
                | (Some(ScalarType::Untyped), Value::Number(_) | Value::String(_) | Value::Bool(_)) => return,
                (Some(ScalarType::Numeric), other) => {
                    format!("expected numeric (int or float), got {}", go_type(other))
                }
                (Some(ScalarType::String), other) => format!("expected string, got {}", go_syntax(other)),
                (Some(ScalarType::Boolean), other) => format!("expected boolean, got {}", go_value(other)),
                (Some(ScalarType::Untyped), other) => format!("expected any scalar, got {}", go_value(other)),
            };
            report(path, &problem, found);
        }
    }
}

fn check_items(
    schema: ApplySchema<'_>,
    of: &ApplyList,
    items: &[Value],
    path: &mut String,
    found: &mut Vec<String>,
) {
    let mut seen: Vec<PathElement> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let element = if of.identity == ListIdentity::Atomic {
            PathElement::Index(i64::try_from(index).unwrap_or(i64::MAX))
        } else {
            match schema.element_of(of, item) {
                Ok(element) => element,
                Err(problem) => return report(path, &format!("element {index}: {problem}"), found),
            }
        };
        if of.identity != ListIdentity::Atomic {
            match seen.binary_search(&element) {
                Ok(_) => report(path, &format!("duplicate entries for key {element}"), found),
                Err(at) => seen.insert(at, element.clone()),
            }
        }
        let length = path.len();
        path.push_str(&element.to_string());
        check(schema.at(of.item), item, path, found);
        path.truncate(length);
    }
}

/// The type of a value in Go.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "string",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
        Value::Null => "<nil>",
    }
}

/// A value as Go's messages show it with `%v`.
fn go_value(value: &Value) -> String {
    fn plain(value: &Value) -> String {
        match value {
            Value::String(text) => text.clone(),
            Value::Null => "<nil>".to_owned(),
            Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(" ")),
            Value::Object(fields) => {
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{name}:{}", plain(value))).collect();
                format!("map[{}]", fields.join(" "))
            }
            other => other.to_string(),
        }
    }
    format!("&{{{}}}", plain(value))
}

/// A value as Go's messages show it with `%#v`, which is how one that should be a string is shown.
fn go_syntax(value: &Value) -> String {
    fn plain(value: &Value) -> String {
        match value {
            Value::Null => "interface {}(nil)".to_owned(),
            Value::Array(items) => {
                format!("[]interface {{}}{{{}}}", items.iter().map(plain).collect::<Vec<_>>().join(", "))
            }
            Value::Object(fields) => {
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{name:?}:{}", plain(value))).collect();
                format!("map[string]interface {{}}{{{}}}", fields.join(", "))
            }
            other => other.to_string(),
        }
    }
    format!("&value.valueUnstructured{{Value:{}}}", plain(value))
}
