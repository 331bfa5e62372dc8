//! Faults of single fields, worded and classed as `k8s.io/apimachinery/pkg/util/validation/field` does.

use std::fmt;

use serde_json::{Value, json};

/// Where a field is: `spec.containers[0].resources.limits[nvidia.com/gpu]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FieldPath(String);

impl FieldPath {
    /// The object itself.
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// A path as it is written.
    pub fn new(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// A field of the object at this path.
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// An item of the list at this path.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// An entry of the map at this path.
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// The path as it is written; empty for the object itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// What is wrong with a field, in Kubernetes' classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldErrorKind {
    /// The value names something that does not exist.
    NotFound,
    /// The field must be set.
    Required,
    /// The value must be unique.
    Duplicate,
    /// The value breaks a rule.
    Invalid,
    /// The value is not among those allowed.
    NotSupported,
    /// The field may not be set or changed here.
    Forbidden,
    /// A text is too long.
    TooLong,
    /// A list has too many items.
    TooMany,
    /// The value has the wrong JSON type.
    TypeInvalid,
    /// The check itself failed.
    Internal,
}

impl FieldErrorKind {
    /// The words that begin the message, and the `reason` of a cause in a `Status`.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::NotFound => ("Not found", "FieldValueNotFound"),
            Self::Required => ("Required value", "FieldValueRequired"),
            Self::Duplicate => ("Duplicate value", "FieldValueDuplicate"),
            Self::Invalid => ("Invalid value", "FieldValueInvalid"),
            Self::NotSupported => ("Unsupported value", "FieldValueNotSupported"),
            Self::Forbidden => ("Forbidden", "FieldValueForbidden"),
            Self::TooLong => ("Too long", "FieldValueTooLong"),
            Self::TooMany => ("Too many", "FieldValueTooMany"),
            Self::TypeInvalid => ("Invalid value", "FieldValueTypeInvalid"),
            Self::Internal => ("Internal error", "InternalError"),
        }
    }

    /// The `reason` of a cause in a `Status`: `FieldValueInvalid` …
    pub const fn reason(self) -> &'static str {
        self.texts().1
    }

    const fn shows_value(self) -> bool {
        !matches!(self, Self::Required | Self::Forbidden | Self::TooLong | Self::Internal)
    }
}

/// One fault of one field. It prints as the API server prints it: `spec.replicas: Invalid value: -1: must be …`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{path}: {}", self.body())]
pub struct FieldError {
    /// The class of the fault.
    pub kind: FieldErrorKind,
    /// The field.
    pub path: FieldPath,
    /// The value at fault; null where the class shows none.
    pub value: Value,
    /// The rule that it breaks, or empty.
    pub detail: String,
}

impl FieldError {
    fn new(kind: FieldErrorKind, path: &FieldPath, value: Value, detail: impl Into<String>) -> Self {
        Self { kind, path: path.clone(), value, detail: detail.into() }
    }

    /// The field must be set; `detail` may tell why, or be empty.
    pub fn required(path: &FieldPath, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Required, path, Value::Null, detail)
    }

    /// The value breaks a rule.
    pub fn invalid(path: &FieldPath, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Invalid, path, value.into(), detail)
    }

    /// The value has the wrong JSON type.
    pub fn type_invalid(path: &FieldPath, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::TypeInvalid, path, value.into(), detail)
    }

    /// The value is not among those allowed, which are listed in the given order.
    pub fn not_supported<'a>(
        path: &FieldPath,
        value: impl Into<Value>,
        supported: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let list: Vec<String> = supported.into_iter().map(|value| format!("{value:?}")).collect();
        let detail =
            if list.is_empty() { String::new() } else { format!("supported values: {}", list.join(", ")) };
        Self::new(FieldErrorKind::NotSupported, path, value.into(), detail)
    }

    /// The field may not be set or changed here.
    pub fn forbidden(path: &FieldPath, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Forbidden, path, Value::Null, detail)
    }

    /// The value must be unique.
    pub fn duplicate(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::new(FieldErrorKind::Duplicate, path, value.into(), "")
    }

    /// The value names something that does not exist.
    pub fn not_found(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::new(FieldErrorKind::NotFound, path, value.into(), "")
    }

    /// A text has more than `max` bytes.
    pub fn too_long(path: &FieldPath, max: usize) -> Self {
        Self::new(FieldErrorKind::TooLong, path, Value::Null, format!("may not be more than {max} bytes"))
    }

    /// A list has more than `max` items.
    pub fn too_many(path: &FieldPath, actual: usize, max: usize) -> Self {
        Self::new(FieldErrorKind::TooMany, path, json!(actual), format!("must have at most {max} items"))
    }

    /// The check itself failed.
    pub fn internal(path: &FieldPath, detail: impl Into<String>) -> Self {
        Self::new(FieldErrorKind::Internal, path, Value::Null, detail)
    }

    /// The message without the path: `Invalid value: -1: must be …`.
    pub fn body(&self) -> String {
        let value = match &self.value {
            _ if !self.kind.shows_value() => String::new(),
            Value::String(text) => format!(": {text:?}"),
            other => format!(": {other}"),
        };
        let colon = if self.detail.is_empty() { "" } else { ": " };
        format!("{}{value}{colon}{}", self.kind.texts().0, self.detail)
    }

    /// The cause in `details.causes` of an `Invalid` status.
    pub fn to_cause(&self) -> Value {
        json!({ "reason": self.kind.reason(), "message": self.body(), "field": self.path.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_error_prints_as_the_api_server_prints_it() {
        let path = FieldPath::new("spec").child("replicas");
        let limits = FieldPath::root()
            .child("spec")
            .child("containers")
            .index(0)
            .child("limits")
            .key("nvidia.com/gpu");
        let cases = [
            (
                FieldError::invalid(&path, -1, "must be greater than or equal to 0"),
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                FieldError::invalid(&limits, "0.5", "must be an integer"),
                "spec.containers[0].limits[nvidia.com/gpu]: Invalid value: \"0.5\": must be an integer",
            ),
            (FieldError::required(&path, ""), "spec.replicas: Required value"),
            (FieldError::required(&path, "must be set"), "spec.replicas: Required value: must be set"),
            (
                FieldError::not_supported(&path, "x", ["a", "b"]),
                "spec.replicas: Unsupported value: \"x\": supported values: \"a\", \"b\"",
            ),
            (FieldError::forbidden(&path, "is immutable"), "spec.replicas: Forbidden: is immutable"),
            (FieldError::duplicate(&path, "x"), "spec.replicas: Duplicate value: \"x\""),
            (FieldError::not_found(&path, "x"), "spec.replicas: Not found: \"x\""),
            (FieldError::too_long(&path, 63), "spec.replicas: Too long: may not be more than 63 bytes"),
            (FieldError::too_many(&path, 9, 8), "spec.replicas: Too many: 9: must have at most 8 items"),
            (
                FieldError::type_invalid(&path, json!({"a": 1}), "must be an integer"),
                "spec.replicas: Invalid value: {\"a\":1}: must be an integer",
            ),
            (FieldError::invalid(&FieldPath::root(), "x", "no"), "<nil>: Invalid value: \"x\": no"),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }
}
