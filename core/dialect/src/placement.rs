//! Node selector, node affinity and tolerations.

use std::collections::BTreeSet;

use gantry_apimachinery::FieldPath;
use gantry_model::{NodeConstraints, NodeSelectorTerm, Reason, Requirement, TaintEffect, Test, Toleration};
use serde_json::Value;

use crate::fields::{get, invalid, labels, list, object, text};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(crate) fn constraints(spec: &Value, path: &FieldPath) -> Result<NodeConstraints, Reason> {
    let mut constraints =
        NodeConstraints { node_selector: labels(spec, "nodeSelector", path)?, ..NodeConstraints::default() };
    let path = path.child("affinity");
    if object(spec, "affinity", &FieldPath::new("spec"))?.is_none() {
        return Ok(constraints);
    }
    let Some(_) = object(&spec["affinity"], "nodeAffinity", &path)? else { return Ok(constraints) };
    let (affinity, path) = (&spec["affinity"]["nodeAffinity"], path.child("nodeAffinity"));
    if let Some(required) = get(affinity, REQUIRED) {
        let path = path.child(REQUIRED);
        let terms = list(required, "nodeSelectorTerms", &path)?;
        let path = path.child("nodeSelectorTerms");
        if terms.is_empty() {
            return Err(invalid(&path, required, "must have at least one term"));
        }
        let terms = terms.iter().enumerate().map(|(index, value)| term(value, &path.index(index)));
        constraints.required = Some(terms.collect::<Result<_, _>>()?);
    }
    for (index, preferred) in list(affinity, PREFERRED, &path)?.iter().enumerate() {
        let path = path.child(PREFERRED).index(index);
        let weight = preferred["weight"].as_u64().and_then(|weight| u8::try_from(weight).ok());
        let weight = weight.filter(|weight| (1..=100).contains(weight)).ok_or_else(|| {
            invalid(&path.child("weight"), &preferred["weight"], "must be a whole number from 1 to 100")
        })?;
        constraints.preferred.push((weight, term(&preferred["preference"], &path.child("preference"))?));
    }
    Ok(constraints)
}

fn term(value: &Value, path: &FieldPath) -> Result<NodeSelectorTerm, Reason> {
    let requirements = |field: &str| -> Result<Vec<Requirement>, Reason> {
        let items = list(value, field, path)?.iter().enumerate();
        items.map(|(index, item)| requirement(item, &path.child(field).index(index))).collect()
    };
    let labels = requirements("matchExpressions")?;
    let name = requirements("matchFields")?;
    if let Some(index) = name.iter().position(|requirement| &*requirement.key != "metadata.name") {
        let path = path.child("matchFields").index(index).child("key");
        return Err(invalid(&path, &Value::from(&*name[index].key), "must be metadata.name"));
    }
    Ok(NodeSelectorTerm { labels, name })
}

fn requirement(value: &Value, path: &FieldPath) -> Result<Requirement, Reason> {
    let key = text(value, "key", path)?.filter(|key| !key.is_empty());
    let key = key.ok_or_else(|| invalid(&path.child("key"), &value["key"], "must be the key of a label"))?;
    let mut values = BTreeSet::new();
    for (index, item) in list(value, "values", path)?.iter().enumerate() {
        let path = path.child("values").index(index);
        values.insert(item.as_str().ok_or_else(|| invalid(&path, item, "must be a string"))?.into());
    }
    let refusal = |rule: &str| invalid(&path.child("values"), &value["values"], rule);
    let number = || match values.first().map(|number: &std::sync::Arc<str>| number.parse::<i64>()) {
        Some(Ok(number)) if values.len() == 1 => Ok(number),
        _ => Err(refusal("must be one integer for Gt and Lt")),
    };
    let test = match (text(value, "operator", path)?.unwrap_or_default(), values.is_empty()) {
        ("In" | "NotIn", true) => return Err(refusal("must have at least one value for In and NotIn")),
        ("In", false) => Test::In(values),
        ("NotIn", false) => Test::NotIn(values),
        ("Exists" | "DoesNotExist", false) => {
            return Err(refusal("must be empty for Exists and DoesNotExist"));
        }
        ("Exists", true) => Test::Exists,
        ("DoesNotExist", true) => Test::DoesNotExist,
        ("Gt", _) => Test::Gt(number()?),
        ("Lt", _) => Test::Lt(number()?),
        _ => {
            let rule = "must be In, NotIn, Exists, DoesNotExist, Gt or Lt";
            return Err(invalid(&path.child("operator"), &value["operator"], rule));
        }
    };
    Ok(Requirement { key: key.into(), test })
}

pub(crate) fn tolerations(spec: &Value, path: &FieldPath) -> Result<Vec<Toleration>, Reason> {
    let items = list(spec, "tolerations", path)?.iter().enumerate();
    items.map(|(index, item)| toleration(item, &path.child("tolerations").index(index))).collect()
}

/// Reads node selector and node affinity of a pod's spec.
///
/// # Errors
/// The first field that is not what Kubernetes' API makes it.
pub fn parse_constraints(spec: &Value) -> Result<NodeConstraints, Reason> {
    constraints(spec, &FieldPath::new("spec"))
}

/// Reads one of a pod's tolerations.
///
/// # Errors
/// The first field that is not what Kubernetes' API makes it.
pub fn parse_toleration(value: &Value) -> Result<Toleration, Reason> {
    toleration(value, &FieldPath::new("toleration"))
}

fn toleration(value: &Value, path: &FieldPath) -> Result<Toleration, Reason> {
    let key = text(value, "key", path)?.filter(|key| !key.is_empty());
    let accepted = text(value, "value", path)?.unwrap_or_default();
    let effect = match text(value, "effect", path)?.filter(|effect| !effect.is_empty()) {
        None => None,
        Some(effect) => Some(TaintEffect::parse(effect).ok_or_else(|| {
            let rule = "must be NoSchedule, PreferNoSchedule or NoExecute, or left out";
            invalid(&path.child("effect"), &value["effect"], rule)
        })?),
    };
    let accepted = match text(value, "operator", path)?.unwrap_or_default() {
        "Exists" => None,
        "Equal" | "" if key.is_some() => Some(accepted.into()),
        "Equal" | "" => {
            return Err(invalid(
                &path.child("operator"),
                &value["operator"],
                "must be Exists when there is no key",
            ));
        }
        _ => return Err(invalid(&path.child("operator"), &value["operator"], "must be Equal or Exists")),
    };
    Ok(Toleration { key: key.map(Into::into), value: accepted, effect })
}
