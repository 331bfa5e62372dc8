//! What `kubectl get` shows of a custom resource: the columns of a CRD version and their cells.

use gantry_units::human_duration;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{FieldError, FieldPath, JsonPath};

const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const FORMATS: [&str; 8] = ["int32", "int64", "float", "double", "byte", "date", "date-time", "password"];

/// A column: a row of `columnDefinitions` of a `meta.k8s.io/v1 Table`, and where its cells come from.
#[derive(Debug, Clone, PartialEq)]
pub struct PrinterColumn {
    name: String,
    kind: String,
    format: String,
    description: String,
    priority: i64,
    path: JsonPath,
}

impl PrinterColumn {
    fn new(name: &str, kind: &str, format: &str, path: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind: kind.to_owned(),
            format: format.to_owned(),
            description: String::new(),
            priority: 0,
            path: path.parse().expect("invariant: the paths of this crate are valid"),
        }
    }

    /// Reads `additionalPrinterColumns` of a CRD version. The name of the object comes first; without further columns, its age is second.
    pub fn from_version(columns: &Value, path: &FieldPath) -> Result<Vec<Self>, FieldError> {
        let mut parsed = vec![Self::new("Name", "string", "name", ".metadata.name")];
        match columns {
            Value::Null => {}
            Value::Array(columns) => {
                for (index, column) in columns.iter().enumerate() {
                    parsed.push(Self::from_value(column, &path.index(index))?);
                }
            }
            other => return Err(FieldError::type_invalid(path, other.clone(), "must be a list of columns")),
        }
        if parsed.len() == 1 {
            parsed.push(Self::new("Age", "date", "", ".metadata.creationTimestamp"));
        }
        Ok(parsed)
    }

    fn from_value(column: &Value, path: &FieldPath) -> Result<Self, FieldError> {
        let text = |field: &str| match &column[field] {
            Value::Null => Ok(""),
            Value::String(text) => Ok(text.as_str()),
            other => Err(FieldError::type_invalid(&path.child(field), other.clone(), "must be a string")),
        };
        let required = |field: &str| match text(field)? {
            "" => Err(FieldError::required(&path.child(field), "")),
            text => Ok(text),
        };
        let (kind, format) = (required("type")?, text("format")?);
        if !TYPES.contains(&kind) {
            return Err(FieldError::not_supported(&path.child("type"), kind, TYPES));
        }
        if !format.is_empty() && !FORMATS.contains(&format) {
            return Err(FieldError::not_supported(&path.child("format"), format, FORMATS));
        }
        let json_path = required("jsonPath")?;
        let refuse =
            |error: crate::Error| FieldError::invalid(&path.child("jsonPath"), json_path, error.to_string());
        let description = match text("description")? {
            "" => format!("Custom resource definition column (in JSONPath format): {json_path}"),
            description => description.to_owned(),
        };
        Ok(Self {
            name: required("name")?.to_owned(),
            kind: kind.to_owned(),
            format: format.to_owned(),
            description,
            priority: column["priority"].as_i64().unwrap_or(0),
            path: json_path.parse().map_err(refuse)?,
        })
    }

    /// The row of `columnDefinitions`.
    pub fn definition(&self) -> Value {
        json!({
            "name": self.name, "type": self.kind, "format": self.format,
            "description": self.description, "priority": self.priority,
        })
    }

    /// The cell of one object: null where the path finds nothing, or nothing of the column's type. A date becomes the age at `now`.
    pub fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = self.path.find(object);
        let Some(value) = found.first() else { return Value::Null };
        match (self.kind.as_str(), value) {
            ("string", Value::String(text)) => text.as_str().into(),
            ("string", Value::Null) => Value::Null,
            ("string", other) => other.to_string().into(),
            ("date", Value::String(text)) => match text.parse::<Timestamp>() {
                Ok(then) => human_duration(now.as_second() - then.as_second()).into(),
                Err(_) => "<invalid>".into(),
            },
            ("integer", Value::Number(number)) => number
                .as_i64()
                .map(Value::from)
                .or_else(|| number.to_string().split('.').next()?.parse::<i64>().ok().map(Value::from))
                .unwrap_or(Value::Null),
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => (*value).clone(),
            _ => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(columns: &Value, object: &Value) -> Vec<Value> {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let columns = PrinterColumn::from_version(columns, &FieldPath::new("c")).unwrap();
        columns.iter().map(|column| column.cell(object, now)).collect()
    }

    #[test]
    fn a_kind_without_columns_shows_name_and_age() {
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-01T23:57:30Z"}});
        assert_eq!(cells(&Value::Null, &object), [json!("x"), json!("2m30s")]);
        let columns = PrinterColumn::from_version(&json!([]), &FieldPath::root()).unwrap();
        assert_eq!(columns[0].definition()["format"], "name");
    }

    #[test]
    fn each_type_has_its_cells() {
        let column =
            |kind: &str, field: &str| json!({"name": "N", "type": kind, "jsonPath": format!(".{field}")});
        let object = json!({
            "metadata": {"name": "x"}, "n": 3, "f": 2.5, "b": true, "s": "t", "l": [1, "a"], "bad": "yesterday",
        });
        let cases = [
            ("integer", "n", json!(3)),
            ("integer", "f", json!(2)),
            ("integer", "s", Value::Null),
            ("number", "f", json!(2.5)),
            ("boolean", "b", json!(true)),
            ("boolean", "n", Value::Null),
            ("string", "s", json!("t")),
            ("string", "n", json!("3")),
            ("string", "l", json!("[1,\"a\"]")),
            ("string", "absent", Value::Null),
            ("date", "bad", json!("<invalid>")),
            ("date", "n", Value::Null),
        ];
        for (kind, field, expected) in cases {
            assert_eq!(cells(&json!([column(kind, field)]), &object)[1], expected, "{kind} of {field}");
        }
    }

    #[test]
    fn a_column_at_fault_is_named() {
        let cases = [
            (json!([{"name": "N", "type": "string"}]), "c[0].jsonPath: Required value"),
            (
                json!([{"name": "N", "type": "time", "jsonPath": ".a"}]),
                "c[0].type: Unsupported value: \"time\": supported values: \"boolean\", \"date\", \"integer\", \
                 \"number\", \"string\"",
            ),
            (json!({}), "c: Invalid value: {}: must be a list of columns"),
        ];
        for (columns, text) in cases {
            let error = PrinterColumn::from_version(&columns, &FieldPath::new("c")).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
        let bad = json!([{"name": "N", "type": "string", "jsonPath": "spec"}]);
        let error = PrinterColumn::from_version(&bad, &FieldPath::new("c")).unwrap_err();
        assert!(error.to_string().starts_with("c[0].jsonPath: Invalid value: \"spec\": "), "{error}");
    }
}
