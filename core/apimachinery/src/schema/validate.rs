//! Checks of values against nodes, worded as kube-openapi words them.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde_json::{Map, Number, Value};

use super::formats;
use super::node::{Additional, Bound, ListType, Node, Type};
use crate::{FieldError, FieldPath};

/// Every fault of a value, in the order of the fields.
pub(super) fn validate(node: &Node, value: &Value, path: &FieldPath) -> Vec<FieldError> {
    if value.is_null() && node.is_nullable {
        return Vec::new();
    }
    if let Some(kind) = node.kind
        && !has_type(kind, value)
    {
        let found = type_of(value);
        let rule = format!("{} must be of type {}: {found:?}", in_body(path), kind.name());
        return vec![FieldError::type_invalid(path, found, rule)];
    }
    let mut errors = Vec::new();
    if let Some(allowed) = &node.allowed
        && !allowed.contains(value)
    {
        let texts: Vec<String> = allowed
            .iter()
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect();
        errors.push(FieldError::not_supported(path, value.clone(), texts.iter().map(String::as_str)));
    }
    match value {
        Value::String(text) => check_text(node, text, path, &mut errors),
        Value::Number(number) => check_number(node, number, path, &mut errors),
        Value::Array(items) => check_list(node, items, path, &mut errors),
        Value::Object(fields) => check_object(node, fields, path, &mut errors),
        Value::Null | Value::Bool(_) => {}
    }
    check_junctions(node, value, path, &mut errors);
    errors
}

fn in_body(path: &FieldPath) -> String {
    if path.as_str().is_empty() { "in body".to_owned() } else { format!("{path} in body") }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if is_whole(number) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_whole(number: &Number) -> bool {
    !number.is_f64() || number.as_f64().is_some_and(|float| float.fract() == 0.0)
}

fn has_type(kind: Type, value: &Value) -> bool {
    match (kind, value) {
        (Type::Array, Value::Array(_))
        | (Type::Boolean, Value::Bool(_))
        | (Type::Number, Value::Number(_))
        | (Type::Object, Value::Object(_))
        | (Type::String | Type::IntOrString, Value::String(_)) => true,
        (Type::Integer | Type::IntOrString, Value::Number(number)) => is_whole(number),
        _ => false,
    }
}

fn check_text(node: &Node, text: &str, path: &FieldPath, errors: &mut Vec<FieldError>) {
    let length = text.chars().count() as u64;
    if let Some(min) = node.length.0.filter(|min| length < *min) {
        errors.push(FieldError::invalid(
            path,
            text,
            format!("{} should be at least {min} chars long", in_body(path)),
        ));
    }
    if let Some(max) = node.length.1.filter(|max| length > *max) {
        let detail = format!("may not be more than {max} characters");
        errors.push(FieldError { detail, ..FieldError::too_long(path, 0) });
    }
    if let Some(pattern) = node.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
        errors.push(FieldError::invalid(path, text, format!("{} should match '{pattern}'", in_body(path))));
    }
    if let Some(format) = node.format.as_ref().filter(|format| !formats::accepts(format, text)) {
        let rule = format!("{} must be of type {format}: {text:?}", in_body(path));
        errors.push(FieldError::invalid(path, text, rule));
    }
}

fn compare(a: &Number, b: &Number) -> Option<Ordering> {
    match (a.as_i128(), b.as_i128()) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

fn check_number(node: &Node, number: &Number, path: &FieldPath, errors: &mut Vec<FieldError>) {
    let bounds = [
        (&node.minimum, Ordering::Less, "greater than or equal to", "greater than"),
        (&node.maximum, Ordering::Greater, "less than or equal to", "less than"),
    ];
    for (bound, beyond, inclusive, exclusive) in bounds {
        let Some(Bound { limit, is_exclusive }) = bound else { continue };
        let order = compare(number, limit);
        if order == Some(beyond) || (*is_exclusive && order == Some(Ordering::Equal)) {
            let words = if *is_exclusive { exclusive } else { inclusive };
            let rule = format!("{} should be {words} {limit}", in_body(path));
            errors.push(FieldError::invalid(path, Value::Number(number.clone()), rule));
        }
    }
    if let Some(step) = &node.multiple_of
        && !is_multiple(number, step)
    {
        let rule = format!("{} should be a multiple of {step}", in_body(path));
        errors.push(FieldError::invalid(path, Value::Number(number.clone()), rule));
    }
    let range = match node.format.as_deref() {
        Some("int32") => i128::from(i32::MIN)..=i128::from(i32::MAX),
        Some("int64") => i128::from(i64::MIN)..=i128::from(i64::MAX),
        _ => return,
    };
    if number.as_i128().is_none_or(|whole| !range.contains(&whole)) && !(number.is_f64() && is_whole(number))
    {
        let format = node.format.as_deref().unwrap_or_default();
        let rule = format!("{} must be of type {format}: {number}", in_body(path));
        errors.push(FieldError::invalid(path, Value::Number(number.clone()), rule));
    }
}

fn is_multiple(number: &Number, step: &Number) -> bool {
    match (number.as_i128(), step.as_i128()) {
        (_, Some(0)) => true,
        (Some(number), Some(step)) => number % step == 0,
        _ => match (number.as_f64(), step.as_f64()) {
            (Some(number), Some(step)) if step != 0.0 => {
                ((number / step).round() * step - number).abs() < 1e-9
            }
            _ => true,
        },
    }
}

fn check_count(
    limits: (Option<u64>, Option<u64>),
    actual: usize,
    noun: &str,
    value: impl FnOnce() -> Value,
    path: &FieldPath,
    errors: &mut Vec<FieldError>,
) {
    let count = actual as u64;
    if let Some(min) = limits.0.filter(|min| count < *min) {
        errors.push(FieldError::invalid(
            path,
            value(),
            format!("{} should have at least {min} {noun}", in_body(path)),
        ));
    }
    if let Some(max) = limits.1.filter(|max| count > *max) {
        errors.push(FieldError::too_many(path, actual, usize::try_from(max).unwrap_or(usize::MAX)));
    }
}

fn check_list(node: &Node, items: &[Value], path: &FieldPath, errors: &mut Vec<FieldError>) {
    check_count(node.items_count, items.len(), "items", || Value::Array(items.to_vec()), path, errors);
    let mut seen = BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        let path = path.index(index);
        if let Some(schema) = &node.items {
            errors.extend(validate(schema, item, &path));
        }
        let identity = match (&node.list_type, item) {
            (ListType::Atomic, _) => continue,
            (ListType::Set, item) => item.clone(),
            (ListType::Map(keys), Value::Object(fields)) => {
                let key = |key: &String| fields.get(key).map(|value| (key.clone(), value.clone()));
                Value::Object(keys.iter().filter_map(key).collect())
            }
            // Anything but an object has a type error already.
            (ListType::Map(_), _) => continue,
        };
        // Keys of objects are ordered, so that equal values have equal texts.
        if !seen.insert(identity.to_string()) {
            errors.push(FieldError::duplicate(&path, identity));
        }
    }
}

fn check_object(node: &Node, fields: &Map<String, Value>, path: &FieldPath, errors: &mut Vec<FieldError>) {
    check_count(
        node.properties_count,
        fields.len(),
        "properties",
        || Value::Object(fields.clone()),
        path,
        errors,
    );
    if node.is_resource {
        for name in ["apiVersion", "kind"] {
            let path = path.child(name);
            match fields.get(name) {
                None | Some(Value::Null) => errors.push(FieldError::required(&path, "must not be empty")),
                Some(Value::String(text)) if text.is_empty() => {
                    errors.push(FieldError::required(&path, "must not be empty"));
                }
                Some(Value::String(_)) => {}
                Some(other) => {
                    errors.push(FieldError::type_invalid(&path, type_of(other), "must be a string"));
                }
            }
        }
    }
    for name in
        node.required.iter().filter(|name| !fields.contains_key(*name) && !node.is_resource_field(name))
    {
        errors.push(FieldError::required(&path.child(name), ""));
    }
    let is_map = matches!(node.additional, Additional::Of(_));
    for (name, value) in fields {
        if let Some(property) = node.field(name) {
            errors.extend(validate(property, value, &if is_map { path.key(name) } else { path.child(name) }));
        }
    }
}

fn check_junctions(node: &Node, value: &Value, path: &FieldPath, errors: &mut Vec<FieldError>) {
    let valid = |nodes: &[Node]| nodes.iter().filter(|node| validate(node, value, path).is_empty()).count();
    let mut refuse = |rule: String| errors.push(FieldError::invalid(path, value.clone(), rule));
    let name = path.as_str();
    // Asked once for both the verdict and the details: twice at each level would be without end in nested lists.
    let nested: Vec<_> = node.all_of.iter().flat_map(|node| validate(node, value, path)).collect();
    if !nested.is_empty() {
        refuse(format!("{name:?} must validate all the schemas (allOf)"));
    }
    if !node.any_of.is_empty() && valid(&node.any_of) == 0 {
        refuse(format!("{name:?} must validate at least one schema (anyOf)"));
    }
    if !node.one_of.is_empty() {
        match valid(&node.one_of) {
            1 => {}
            0 => refuse(format!("{name:?} must validate one and only one schema (oneOf). Found none valid")),
            count => {
                refuse(format!(
                    "{name:?} must validate one and only one schema (oneOf). Found {count} valid alternatives"
                ));
            }
        }
    }
    if node.not.as_ref().is_some_and(|not| validate(not, value, path).is_empty()) {
        refuse(format!("{name:?} must not validate the schema (not)"));
    }
    errors.extend(nested);
}
