use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use super::parser;
use crate::{Error, FieldError, FieldPath, validate_label_value, validate_qualified_name};

/// Something that labels can be looked up in.
pub trait Labels {
    /// The value of the label, if it is there.
    fn label(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl Labels for Map<String, Value> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

/// The map of labels itself, not the object that has them; anything but an object has no labels.
impl Labels for Value {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

/// What a requirement asks of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// The label is there and its value is one of those given (`=`, `==`, `in`).
    In,
    /// The label is not there, or its value is none of those given (`!=`, `notin`).
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
    /// The label is there, a whole number, and greater than the one given.
    Gt,
    /// The label is there, a whole number, and less than the one given.
    Lt,
}

/// One condition on one label. It always holds that its key, its values and their number suit its operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    /// A condition, checked as the API server does; errors name `key` and `values` under `path`.
    pub fn new(
        key: &str,
        operator: Operator,
        values: Vec<String>,
        path: &FieldPath,
    ) -> Result<Self, FieldError> {
        let (key_path, values_path) = (path.child("key"), path.child("values"));
        if let Some(fault) = validate_qualified_name(key).into_iter().next() {
            return Err(FieldError::invalid(&key_path, key, fault));
        }
        let list = || Value::from(values.clone());
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                let rule = "for 'in', 'notin' operators, values set can't be empty";
                return Err(FieldError::invalid(&values_path, list(), rule));
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                let rule = "values set must be empty for exists and does not exist";
                return Err(FieldError::invalid(&values_path, list(), rule));
            }
            Operator::Gt | Operator::Lt => match &values[..] {
                [value] if value.parse::<i64>().is_ok() => {}
                [value] => {
                    let rule = "for 'Gt', 'Lt' operators, the value must be an integer";
                    return Err(FieldError::invalid(&values_path.index(0), value.as_str(), rule));
                }
                _ => {
                    let rule = "for 'Gt', 'Lt' operators, exactly one value is required";
                    return Err(FieldError::invalid(&values_path, list(), rule));
                }
            },
            _ => {}
        }
        for (index, value) in values.iter().enumerate() {
            if let Some(fault) = validate_label_value(value).into_iter().next() {
                return Err(FieldError::invalid(&values_path.index(index).key(key), value.as_str(), fault));
            }
        }
        Ok(Self { key: key.to_owned(), operator, values })
    }

    /// The label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What is asked.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// The values that it is asked of.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether a label with this value, or without one, meets the condition.
    pub fn accepts(&self, label: Option<&str>) -> bool {
        let is_listed = || label.is_some_and(|label| self.values.iter().any(|value| value == label));
        let compare = |holds: fn(&i64, &i64) -> bool| {
            let numbers = (
                label.and_then(|label| label.parse().ok()),
                self.values.first().and_then(|v| v.parse().ok()),
            );
            matches!(numbers, (Some(label), Some(bound)) if holds(&label, &bound))
        };
        match self.operator {
            Operator::In => is_listed(),
            Operator::NotIn => !is_listed(),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::Gt => compare(i64::gt),
            Operator::Lt => compare(i64::lt),
        }
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, first) = (&self.key, self.values.first().map_or("", String::as_str));
        match (self.operator, self.values.len()) {
            (Operator::In, 1) => write!(f, "{key}={first}"),
            (Operator::NotIn, 1) => write!(f, "{key}!={first}"),
            (Operator::In, _) => write!(f, "{key} in ({})", self.values.join(",")),
            (Operator::NotIn, _) => write!(f, "{key} notin ({})", self.values.join(",")),
            (Operator::Exists, _) => write!(f, "{key}"),
            (Operator::DoesNotExist, _) => write!(f, "!{key}"),
            (Operator::Gt, _) => write!(f, "{key}>{first}"),
            (Operator::Lt, _) => write!(f, "{key}<{first}"),
        }
    }
}

/// Conditions on labels that must all hold. The default has none: it matches everything.
///
/// ```
/// use std::collections::BTreeMap;
/// let selector: gantry_apimachinery::Selector = "app=web,tier in (a,b),!legacy".parse()?;
/// let labels = BTreeMap::from([("app".into(), "web".into()), ("tier".into(), "b".into())]);
/// assert!(selector.matches(&labels));
/// # Ok::<(), gantry_apimachinery::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selector {
    requirements: Vec<Requirement>,
    is_nothing: bool,
}

impl Selector {
    /// Matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Matches no object: what an absent `metav1.LabelSelector` means.
    pub fn nothing() -> Self {
        Self { requirements: Vec::new(), is_nothing: true }
    }

    /// The selector that asks for exactly these labels: a Service's or a ReplicationController's `spec.selector`, a pod's `nodeSelector`.
    pub fn from_map(labels: &Value, path: &FieldPath) -> Result<Self, FieldError> {
        let mut selector = Self::everything();
        selector.extend_with_labels(labels, path)?;
        Ok(selector)
    }

    /// A `metav1.LabelSelector`: null matches nothing, an empty one everything.
    pub fn from_label_selector(selector: &Value, path: &FieldPath) -> Result<Self, FieldError> {
        let fields = match selector {
            Value::Null => return Ok(Self::nothing()),
            Value::Object(fields) => fields,
            other => {
                return Err(FieldError::type_invalid(path, other.clone(), "must be a label selector object"));
            }
        };
        let mut parsed = Self::everything();
        parsed.extend_with_labels(
            fields.get("matchLabels").unwrap_or(&Value::Null),
            &path.child("matchLabels"),
        )?;
        let expressions = fields.get("matchExpressions").unwrap_or(&Value::Null);
        parsed.requirements.extend(parse_expressions(expressions, &path.child("matchExpressions"))?);
        Ok(parsed)
    }

    pub(super) fn from_requirements(requirements: Vec<Requirement>) -> Self {
        Self { requirements, is_nothing: false }
    }

    fn extend_with_labels(&mut self, labels: &Value, path: &FieldPath) -> Result<(), FieldError> {
        let labels = match labels {
            Value::Null => return Ok(()),
            Value::Object(labels) => labels,
            other => return Err(FieldError::type_invalid(path, other.clone(), "must be a map of strings")),
        };
        for (key, value) in labels {
            let Value::String(value) = value else {
                return Err(FieldError::type_invalid(&path.key(key), value.clone(), "must be a string"));
            };
            let checked = Requirement::new(key, Operator::In, vec![value.clone()], path);
            self.requirements.push(checked.map_err(|error| FieldError { path: path.key(key), ..error })?);
        }
        Ok(())
    }

    /// The conditions, in the order in which they were given.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether there is no condition.
    pub fn is_everything(&self) -> bool {
        !self.is_nothing && self.requirements.is_empty()
    }

    /// Whether every condition holds for these labels.
    pub fn matches(&self, labels: &(impl Labels + ?Sized)) -> bool {
        !self.is_nothing
            && self.requirements.iter().all(|requirement| requirement.accepts(labels.label(&requirement.key)))
    }

    /// Whether every condition holds for the `metadata.labels` of an object.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches(object.pointer("/metadata/labels").unwrap_or(&Value::Null))
    }
}

/// `matchExpressions`: a list of `{key, operator, values}`.
fn parse_expressions(expressions: &Value, path: &FieldPath) -> Result<Vec<Requirement>, FieldError> {
    let expressions = match expressions {
        Value::Null => return Ok(Vec::new()),
        Value::Array(expressions) => expressions,
        other => return Err(FieldError::type_invalid(path, other.clone(), "must be a list")),
    };
    expressions.iter().enumerate().map(|(index, item)| parse_expression(item, &path.index(index))).collect()
}

fn parse_expression(item: &Value, path: &FieldPath) -> Result<Requirement, FieldError> {
    const NAMES: [(&str, Operator); 4] = [
        ("In", Operator::In),
        ("NotIn", Operator::NotIn),
        ("Exists", Operator::Exists),
        ("DoesNotExist", Operator::DoesNotExist),
    ];
    let text = |field: &str| match item.get(field) {
        Some(Value::String(text)) => Ok(text.as_str()),
        None | Some(Value::Null) => Err(FieldError::required(&path.child(field), "")),
        Some(other) => Err(FieldError::type_invalid(&path.child(field), other.clone(), "must be a string")),
    };
    let (key, name) = (text("key")?, text("operator")?);
    let Some((_, operator)) = NAMES.iter().find(|(known, _)| *known == name) else {
        return Err(FieldError::not_supported(&path.child("operator"), name, NAMES.map(|(name, _)| name)));
    };
    let values_path = path.child("values");
    let values: Vec<String> = match item.get("values") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) => {
            let texts = values.iter().enumerate().map(|(index, value)| {
                let wrong =
                    || FieldError::type_invalid(&values_path.index(index), value.clone(), "must be a string");
                value.as_str().map(str::to_owned).ok_or_else(wrong)
            });
            texts.collect::<Result<_, _>>()?
        }
        Some(other) => {
            return Err(FieldError::type_invalid(&values_path, other.clone(), "must be a list of strings"));
        }
    };
    match operator {
        Operator::In | Operator::NotIn if values.is_empty() => {
            Err(FieldError::required(&values_path, "must be specified when `operator` is 'In' or 'NotIn'"))
        }
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
            let rule = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            Err(FieldError::forbidden(&values_path, rule))
        }
        operator => Requirement::new(key, *operator, values, path),
    }
}

impl FromStr for Selector {
    type Err = Error;

    /// The syntax of `kubectl -l`: `a=b,c!=d,e in (x,y),f notin (z),g,!h,i>3,j<7`; empty means everything.
    fn from_str(input: &str) -> Result<Self, Error> {
        parser::parse(input)
            .map(Self::from_requirements)
            .map_err(|reason| Error::LabelSelector { input: input.to_owned(), reason })
    }
}

impl fmt::Display for Selector {
    /// The syntax of `kubectl -l`. It is empty for a selector that matches everything, and for one that matches nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            write!(f, "{}{requirement}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn labels(text: &str) -> BTreeMap<String, String> {
        text.split(',').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
    }

    #[test]
    fn a_selector_string_matches_what_kubectl_would_show() {
        let cases = [
            ("", "", true),
            ("a=b", "a=b", true),
            ("a==b", "a=b", true),
            ("a = b", "a=b", true),
            ("a=b", "a=c", false),
            ("a!=b", "a=c", true),
            ("a!=b", "x=y", true),
            ("a in (b,c)", "a=c", true),
            ("a in (b,c)", "x=y", false),
            ("a notin (b,c)", "x=y", true),
            ("a notin (b,c)", "a=b", false),
            ("a", "a=", true),
            ("!a", "a=", false),
            ("!a", "", true),
            ("! a", "", true),
            ("a=", "a=", true),
            ("a=,b=c", "a=,b=c", true),
            ("a in (,b)", "a=", true),
            ("a>5", "a=6", true),
            ("a>5", "a=5", false),
            ("a>5", "a=x", false),
            ("a<5", "a=-1", true),
            ("a<5", "", false),
            ("in=notin", "in=notin", true),
            ("nvidia.com/gpu.product=A100,!x", "nvidia.com/gpu.product=A100", true),
            ("a=b,c!=d,e in (x,y),!f,g", "a=b,e=x,g=1", true),
        ];
        for (selector, set, expected) in cases {
            let parsed: Selector = selector.parse().unwrap();
            assert_eq!(parsed.matches(&labels(set)), expected, "{selector:?} on {set:?}");
            let again: Selector = parsed.to_string().parse().unwrap();
            assert_eq!(again.matches(&labels(set)), expected, "{selector:?} printed as {parsed}");
        }
    }

    #[test]
    fn a_label_selector_object_is_read_with_its_rules() {
        let path = FieldPath::new("spec.selector");
        let read = |value: Value| Selector::from_label_selector(&value, &path);
        let selector = read(json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["old"]}, {"key": "x", "operator": "Exists"}],
        }))
        .unwrap();
        assert_eq!(selector.to_string(), "app=web,tier!=old,x");
        assert!(selector.matches(&json!({"app": "web", "x": ""})));
        assert!(selector.matches_object(&json!({"metadata": {"labels": {"app": "web", "x": ""}}})));
        assert!(!selector.matches_object(&json!({"metadata": {}})));
        assert!(read(json!({})).unwrap().is_everything());
        assert!(!read(Value::Null).unwrap().matches(&json!({})));

        let faults = [
            (json!("x"), "spec.selector: Invalid value: \"x\": must be a label selector object"),
            (
                json!({"matchLabels": {"a": 1}}),
                "spec.selector.matchLabels[a]: Invalid value: 1: must be a string",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}),
                "spec.selector.matchExpressions[0].operator: Unsupported value: \"Gt\": supported values: \"In\", \
                 \"NotIn\", \"Exists\", \"DoesNotExist\"",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
                "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' \
                 or 'NotIn'",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
                "spec.selector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is \
                 'Exists' or 'DoesNotExist'",
            ),
            (
                json!({"matchExpressions": [{"operator": "In"}]}),
                "spec.selector.matchExpressions[0].key: Required value",
            ),
        ];
        for (value, text) in faults {
            assert_eq!(read(value).unwrap_err().to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn no_selector_string_makes_the_parser_panic(text in "\\PC*") {
            let _ = text.parse::<Selector>();
        }

        #[test]
        fn a_printed_selector_reads_back_the_same(text in "[ab](=|!=|==| in | notin |>|<)?[(]?[ab1]?[,]?[ab1]?[)]?(,!?[ab])*") {
            if let Ok(selector) = text.parse::<Selector>() {
                prop_assert_eq!(selector.to_string().parse::<Selector>().unwrap(), selector);
            }
        }
    }
}
