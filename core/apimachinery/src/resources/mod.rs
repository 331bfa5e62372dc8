//! The resources of pods: how quantities are read and completed, which requests and limits the API server takes, and what a pod as a
//! whole asks of a node.

mod requests;
mod validate;

use gantry_units::Quantity;
use serde_json::{Map, Value};

pub use requests::effective_requests;
pub use validate::{is_extended_resource, validate_pod_resources, validate_resource_requirements};

use crate::{FieldError, FieldPath};

/// Reads a quantity as the API server does: a text, or a plain JSON number.
pub fn read_quantity(value: &Value, path: &FieldPath) -> Result<Quantity, FieldError> {
    let parsed = match value {
        Value::String(text) => text.parse(),
        Value::Number(number) => number.to_string().parse(),
        other => {
            return Err(FieldError::type_invalid(
                path,
                other.clone(),
                "must be a quantity such as 1, 500m or 4Gi",
            ));
        }
    };
    parsed.map_err(|error: gantry_units::Error| FieldError::invalid(path, value.clone(), error.to_string()))
}

/// Writes the quantities of a pod's spec, or of a template's, as the API server stores them: canonical texts (`1024Mi` → `"1Gi"`, the number
/// 1 → `"1"`). What is no quantity stays as it is, for [`validate_pod_resources`] to name.
pub fn canonicalize_pod_resources(pod_spec: &mut Value) {
    for list in ["containers", "initContainers"] {
        for container in pod_spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            canonicalize_requirements(container.get_mut("resources"));
        }
    }
    canonicalize_requirements(pod_spec.get_mut("resources"));
    canonicalize(pod_spec.get_mut("overhead"));
}

fn canonicalize_requirements(resources: Option<&mut Value>) {
    if let Some(resources) = resources.and_then(Value::as_object_mut) {
        canonicalize(resources.get_mut("limits"));
        canonicalize(resources.get_mut("requests"));
    }
}

/// Completes the resources of a pod's spec as the API server stores them: quantities are canonical, and a limit without a request
/// becomes the request too.
pub fn default_pod_resources(pod_spec: &mut Value) {
    canonicalize_pod_resources(pod_spec);
    for list in ["containers", "initContainers"] {
        for container in pod_spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) {
                default_requests(resources);
            }
        }
    }
}

fn default_requests(resources: &mut Map<String, Value>) {
    let limits = match resources.get("limits") {
        Some(Value::Object(limits)) if !limits.is_empty() => limits.clone(),
        _ => return,
    };
    let requests = resources.entry("requests").or_insert(Value::Null);
    if requests.is_null() {
        *requests = Value::Object(Map::new());
    }
    if let Value::Object(requests) = requests {
        for (name, limit) in limits {
            requests.entry(name).or_insert(limit);
        }
    }
}

fn canonicalize(list: Option<&mut Value>) {
    for quantity in list.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        if let Ok(parsed) = read_quantity(quantity, &FieldPath::root()) {
            *quantity = parsed.to_string().into();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_become_canonical_and_limits_become_requests() {
        let mut spec = json!({
            "containers": [
                {"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "1024Mi", "cpu": "2"}, "requests": {"cpu": 0.5}}},
                {"name": "b", "resources": {"limits": {"cpu": "1000m"}, "requests": null}},
                {"name": "c"},
            ],
            "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "bad"}}}],
            "overhead": {"cpu": "250m", "memory": 1024},
        });
        default_pod_resources(&mut spec);
        assert_eq!(
            spec,
            json!({
                "containers": [
                    {"name": "a", "resources": {
                        "limits": {"nvidia.com/gpu": "1", "memory": "1Gi", "cpu": "2"},
                        "requests": {"nvidia.com/gpu": "1", "memory": "1Gi", "cpu": "500m"},
                    }},
                    {"name": "b", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}},
                    {"name": "c"},
                ],
                "initContainers": [{"name": "i", "resources": {"limits": {"cpu": "bad"}, "requests": {"cpu": "bad"}}}],
                "overhead": {"cpu": "250m", "memory": "1024"},
            })
        );
        let once = spec.clone();
        default_pod_resources(&mut spec);
        assert_eq!(spec, once, "completing twice changes nothing");
    }
}
