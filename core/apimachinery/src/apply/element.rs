//! One step of a path to a field.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

/// One step of a path: a field, or an item of a list told by its keys, its value or its place.
#[derive(Debug, Clone)]
pub enum PathElement {
    /// A field of an object: `f:name`.
    Field(Arc<str>),
    /// An item of a list of objects, by its key fields in the order of their names: `k:{"name":"main"}`.
    Key(Arc<[(Arc<str>, Value)]>),
    /// An item of a set, by its value: `v:"a"`.
    Value(Arc<Value>),
    /// An item by its place, counted from 0: `i:2`.
    Index(i64),
}

impl PathElement {
    /// A field.
    pub fn field(name: &str) -> Self {
        Self::Field(name.into())
    }

    /// An item that has these values in these fields.
    pub(super) fn key(mut fields: Vec<(Arc<str>, Value)>) -> Self {
        fields.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self::Key(fields.into())
    }

    /// The name, if this is a field.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Field(name) => Some(name),
            _ => None,
        }
    }

    /// Reads a key of FieldsV1. `Ok(None)` is a kind of step that a later version may know.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some((kind, rest)) = text.split_at_checked(2).filter(|(kind, _)| kind.ends_with(':')) else {
            return Err(format!(
                "{text:?} is no path element: it begins with \"f:\", \"k:\", \"v:\" or \"i:\""
            ));
        };
        let json = |rest: &str| {
            serde_json::from_str::<Value>(rest)
                .map_err(|error| format!("{text:?} is no path element: {error}"))
        };
        Ok(Some(match kind {
            "f:" => Self::field(rest),
            "v:" => Self::Value(Arc::new(json(rest)?)),
            "k:" => match json(rest)? {
                Value::Object(fields) => {
                    Self::key(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
                }
                _ => return Err(format!("{text:?} is no path element: the keys are not an object")),
            },
            "i:" => Self::Index(
                rest.parse().map_err(|_| format!("{text:?} is no path element: the index is no number"))?,
            ),
            _ => return Ok(None),
        }))
    }

    /// The key of FieldsV1.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Key(fields) => {
                let fields: Map<String, Value> =
                    fields.iter().map(|(name, value)| (name.as_ref().to_owned(), value.clone())).collect();
                format!("k:{}", Value::Object(fields))
            }
            Self::Value(value) => format!("v:{value}"),
            Self::Index(index) => format!("i:{index}"),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

impl fmt::Display for PathElement {
    /// As messages cite it: `.spec`, `[name="main"]`, `[="a"]`, `[2]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                let fields: Vec<String> =
                    fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
                write!(f, "[{}]", fields.join(","))
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Ord for PathElement {
    /// The order in which Kubernetes writes them: fields, keys, values, places.
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(a), Self::Field(b)) => {
                if Arc::ptr_eq(a, b) {
                    Ordering::Equal
                } else {
                    a.cmp(b)
                }
            }
            (Self::Key(a), Self::Key(b)) => {
                let pairs = a.iter().zip(b.iter());
                pairs
                    .map(|((a, x), (b, y))| a.cmp(b).then_with(|| compare_values(x, y)))
                    .find(|order| order.is_ne())
                    .unwrap_or_else(|| a.len().cmp(&b.len()))
            }
            (Self::Value(a), Self::Value(b)) => compare_values(a, b),
            (Self::Index(a), Self::Index(b)) => a.cmp(b),
            (a, b) => a.rank().cmp(&b.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for PathElement {}

/// Orders JSON values: numbers, texts, booleans, lists, objects, null.
pub(super) fn compare_values(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::String(_) => 1,
        Value::Bool(_) => 2,
        Value::Array(_) => 3,
        Value::Object(_) => 4,
        Value::Null => 5,
    };
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => match (x.as_i64(), y.as_i64()) {
            (Some(x), Some(y)) => x.cmp(&y),
            // Numbers of JSON are never NaN.
            _ => x.as_f64().unwrap_or_default().total_cmp(&y.as_f64().unwrap_or_default()),
        },
        (Value::String(x), Value::String(y)) => x.cmp(y),
        (Value::Bool(x), Value::Bool(y)) => x.cmp(y),
        (Value::Array(x), Value::Array(y)) => x
            .iter()
            .zip(y)
            .map(|(x, y)| compare_values(x, y))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| x.len().cmp(&y.len())),
        (Value::Object(x), Value::Object(y)) => x
            .iter()
            .zip(y)
            .map(|((a, x), (b, y))| a.cmp(b).then_with(|| compare_values(x, y)))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| x.len().cmp(&y.len())),
        _ => rank(a).cmp(&rank(b)),
    }
}

/// Whether two values are the same; `1` and `1.0` are.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    a == b || compare_values(a, b).is_eq()
}
