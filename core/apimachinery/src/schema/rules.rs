//! `x-kubernetes-validations`: rules in CEL, evaluated by kube-cel.

use std::fmt;

use kube_cel::{CompiledSchema, ErrorKind, ValidationError, compile_schema, validate_compiled};
use serde_json::Value;

use super::nesting::is_shallow;
use crate::{FieldError, FieldErrorKind, FieldPath, JsonPath};

const KEYWORD: &str = "x-kubernetes-validations";

/// The rules of a schema, compiled.
pub(super) struct Rules(CompiledSchema);

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rules")
    }
}

impl Rules {
    /// The rules anywhere in the schema; `None` when it has none, which spares the objects a conversion.
    pub(super) fn compile(schema: &Value, path: &FieldPath) -> Result<Option<Self>, Vec<FieldError>> {
        let mut errors = Vec::new();
        if !find_rules(schema, path, &mut errors) {
            return Ok(None);
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let compiled = compile_schema(schema);
        collect(&compiled, path, &mut errors);
        if errors.is_empty() { Ok(Some(Self(compiled))) } else { Err(errors) }
    }

    /// Evaluates the rules, unless `known` holds a fault that takes away what they rely on.
    pub(super) fn validate(
        &self,
        object: &Value,
        old: Option<&Value>,
        known: &[FieldError],
    ) -> Vec<FieldError> {
        let is_blocking = |error: &FieldError| {
            matches!(
                error.kind,
                FieldErrorKind::NotSupported
                    | FieldErrorKind::Required
                    | FieldErrorKind::TooLong
                    | FieldErrorKind::TooMany
                    | FieldErrorKind::TypeInvalid
            )
        };
        if known.iter().any(is_blocking) {
            let rule = "some validation rules were not checked because the object was invalid; correct the existing \
                        errors to complete validation";
            return vec![FieldError::invalid(&FieldPath::root(), Value::Null, rule)];
        }
        let Err(faults) = validate_compiled(&self.0, object, old) else { return Vec::new() };
        let mut errors: Vec<FieldError> = faults.iter().map(|fault| field_error(fault, object)).collect();
        // kube-cel walks properties in the order of a hash map.
        errors.sort_by(|a, b| (&a.path, &a.detail).cmp(&(&b.path, &b.detail)));
        errors
    }
}

/// Whether there are rules anywhere in the schema. Those that the compiler must not see become errors.
fn find_rules(schema: &Value, path: &FieldPath, errors: &mut Vec<FieldError>) -> bool {
    match schema {
        Value::Object(fields) => {
            let mut found = false;
            for (name, value) in fields {
                let path = path.child(name);
                if name == KEYWORD {
                    refuse_deep_rules(value, &path, errors);
                    found = true;
                } else {
                    found |= find_rules(value, &path, errors);
                }
            }
            found
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .fold(false, |found, (index, item)| find_rules(item, &path.index(index), errors) || found),
        _ => false,
    }
}

fn refuse_deep_rules(rules: &Value, path: &FieldPath, errors: &mut Vec<FieldError>) {
    for (index, rule) in rules.as_array().into_iter().flatten().enumerate() {
        for field in ["rule", "messageExpression"] {
            let expression = rule.get(field).and_then(Value::as_str).unwrap_or_default();
            if !is_shallow(expression) {
                let detail = "the expression is nested too deeply: split it into several rules";
                errors.push(FieldError::invalid(&path.index(index).child(field), expression, detail));
            }
        }
    }
}

fn collect(schema: &CompiledSchema, path: &FieldPath, errors: &mut Vec<FieldError>) {
    for (index, rule) in schema.validations.iter().enumerate() {
        if let Err(error) = rule {
            let path = path.child(KEYWORD).index(index).child("rule");
            let detail = error.to_string();
            // The texts of the parser span lines; the first says what is wrong.
            errors.push(FieldError::invalid(&path, Value::Null, detail.lines().next().unwrap_or_default()));
        }
    }
    let mut properties: Vec<_> = schema.properties.iter().collect();
    properties.sort_by_key(|(name, _)| *name);
    for (name, property) in properties {
        collect(property, &path.child("properties").key(name), errors);
    }
    let single = [("items", &schema.items), ("additionalProperties", &schema.additional_properties)];
    for (keyword, child) in single {
        if let Some(child) = child {
            collect(child, &path.child(keyword), errors);
        }
    }
    let lists = [("allOf", &schema.all_of), ("anyOf", &schema.any_of), ("oneOf", &schema.one_of)];
    for (keyword, children) in lists {
        for (index, child) in children.iter().enumerate() {
            collect(child, &path.child(keyword).index(index), errors);
        }
    }
}

fn field_error(fault: &ValidationError, object: &Value) -> FieldError {
    let path = FieldPath::new(fault.field_path.trim_start_matches('.'));
    let detail = fault.message.clone();
    if fault.kind != ErrorKind::ValidationFailure {
        return FieldError::invalid(&path, kind_or_value(&path, object), detail);
    }
    match fault.reason.as_deref() {
        Some("FieldValueRequired") => FieldError::required(&path, detail),
        Some("FieldValueForbidden") => FieldError::forbidden(&path, detail),
        Some("FieldValueDuplicate") => {
            FieldError { detail, ..FieldError::duplicate(&path, kind_or_value(&path, object)) }
        }
        _ => FieldError::invalid(&path, kind_or_value(&path, object), detail),
    }
}

/// What the API server shows of the value that a rule refuses: a plain value as it is, of others the type.
fn kind_or_value(path: &FieldPath, object: &Value) -> Value {
    let found = format!(".{path}").parse::<JsonPath>().ok();
    let found = if path.as_str().is_empty() {
        Some(object)
    } else {
        found.and_then(|p| p.find(object).first().copied())
    };
    match found {
        Some(Value::Array(_)) => "array".into(),
        Some(Value::Object(_)) | None => "object".into(),
        Some(plain) => plain.clone(),
    }
}
