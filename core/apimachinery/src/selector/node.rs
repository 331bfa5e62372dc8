use serde_json::Value;

use super::labels::{Labels, Operator, Requirement, Selector, parse_expressions};
use crate::{FieldError, FieldPath};

const OPERATORS: [Operator; 6] =
    [Operator::In, Operator::NotIn, Operator::Exists, Operator::DoesNotExist, Operator::Gt, Operator::Lt];

/// A `core/v1 NodeSelector`: terms of which one must hold. A term without conditions matches no node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeSelector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Term {
    labels: Selector,
    /// Conditions on `metadata.name`, the one field that nodes can be selected by.
    names: Vec<Requirement>,
}

impl NodeSelector {
    /// Reads `{nodeSelectorTerms: [{matchExpressions, matchFields}]}`: `requiredDuringSchedulingIgnoredDuringExecution`
    /// of a pod's node affinity, or a volume's.
    pub fn from_value(selector: &Value, path: &FieldPath) -> Result<Self, FieldError> {
        let path = path.child("nodeSelectorTerms");
        match selector.get("nodeSelectorTerms") {
            Some(Value::Array(terms)) if !terms.is_empty() => {
                let terms =
                    terms.iter().enumerate().map(|(index, term)| Term::from_value(term, &path.index(index)));
                Ok(Self { terms: terms.collect::<Result<_, _>>()? })
            }
            None | Some(Value::Null | Value::Array(_)) => {
                Err(FieldError::required(&path, "must have at least one node selector term"))
            }
            Some(other) => Err(FieldError::type_invalid(&path, other.clone(), "must be a list")),
        }
    }

    /// Reads one term alone: the `preference` of a preferred node affinity.
    pub fn from_term(term: &Value, path: &FieldPath) -> Result<Self, FieldError> {
        Ok(Self { terms: vec![Term::from_value(term, path)?] })
    }

    /// Whether some term holds for a node of this name with these labels.
    pub fn matches(&self, node_name: &str, labels: &(impl Labels + ?Sized)) -> bool {
        self.terms.iter().any(|term| {
            let is_empty = term.names.is_empty() && term.labels.is_everything();
            !is_empty
                && term.labels.matches(labels)
                && term.names.iter().all(|name| name.accepts(Some(node_name)))
        })
    }
}

impl Term {
    fn from_value(term: &Value, path: &FieldPath) -> Result<Self, FieldError> {
        let part = |field: &str, operators: &[Operator]| {
            parse_expressions(term.get(field).unwrap_or(&Value::Null), operators, &path.child(field))
        };
        let labels = Selector::from_requirements(part("matchExpressions", &OPERATORS)?);
        let names = part("matchFields", &[Operator::In, Operator::NotIn])?;
        for (index, name) in names.iter().enumerate() {
            if name.key() != "metadata.name" {
                let rule = "not a valid field selector key";
                return Err(FieldError::invalid(
                    &path.child("matchFields").index(index).child("key"),
                    name.key(),
                    rule,
                ));
            }
        }
        Ok(Self { labels, names })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn one_term_suffices_and_all_its_conditions_must_hold() {
        let selector = NodeSelector::from_value(
            &json!({"nodeSelectorTerms": [
                {"matchExpressions": [
                    {"key": "nvidia.com/gpu.count", "operator": "Gt", "values": ["4"]},
                    {"key": "zone", "operator": "In", "values": ["a"]},
                ]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n9"]}]},
                {},
            ]}),
            &FieldPath::root(),
        )
        .unwrap();
        let cases = [
            ("n1", json!({"nvidia.com/gpu.count": "8", "zone": "a"}), true),
            ("n1", json!({"nvidia.com/gpu.count": "4", "zone": "a"}), false),
            ("n1", json!({"nvidia.com/gpu.count": "8"}), false),
            ("n9", json!({}), true),
            ("n1", json!({}), false),
        ];
        for (name, labels, expected) in cases {
            assert_eq!(selector.matches(name, &labels), expected, "{name} {labels}");
        }
    }

    #[test]
    fn faults_are_named_with_their_field() {
        let cases = [
            (json!({}), "a.nodeSelectorTerms: Required value: must have at least one node selector term"),
            (
                json!({"nodeSelectorTerms": [{"matchFields": [{"key": "x", "operator": "In", "values": ["y"]}]}]}),
                "a.nodeSelectorTerms[0].matchFields[0].key: Invalid value: \"x\": not a valid field selector key",
            ),
            (
                json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Lt", "values": ["y"]}]}]}),
                "a.nodeSelectorTerms[0].matchExpressions[0].values[0]: Invalid value: \"y\": for 'Gt', 'Lt' operators, \
                 the value must be an integer",
            ),
        ];
        for (value, text) in cases {
            let error = NodeSelector::from_value(&value, &FieldPath::new("a")).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }
}
