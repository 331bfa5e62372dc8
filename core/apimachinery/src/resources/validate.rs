use std::collections::BTreeMap;

use gantry_units::Quantity;
use serde_json::Value;

use super::read_quantity;
use crate::{FieldError, FieldPath, validate_qualified_name};

const HUGE_PAGES: &str = "hugepages-";
const QUOTA_PREFIX: &str = "requests.";

/// Whether the resource is native to Kubernetes: no domain, or one of `kubernetes.io`.
fn is_native_resource(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether the name is that of an extended resource, such as `nvidia.com/gpu`: counted in whole units, never overcommitted.
pub fn is_extended_resource(name: &str) -> bool {
    !is_native_resource(name)
        && !name.starts_with(QUOTA_PREFIX)
        && validate_qualified_name(&format!("{QUOTA_PREFIX}{name}")).is_empty()
}

/// Whether a pod may request less than its limit.
fn is_overcommit_allowed(name: &str) -> bool {
    is_native_resource(name) && !name.starts_with(HUGE_PAGES)
}

/// Checks the requests and limits of every container of a pod's spec, and the spec's `overhead`; `path` is the spec's.
pub fn validate_pod_resources(pod_spec: &Value, path: &FieldPath) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in
            pod_spec.get(list).and_then(Value::as_array).into_iter().flatten().enumerate()
        {
            if let Some(resources) = container.get("resources") {
                let path = path.child(list).index(index).child("resources");
                errors.extend(validate_resource_requirements(resources, &path));
            }
        }
    }
    let path = path.child("overhead");
    for (name, quantity) in quantities(pod_spec.get("overhead"), &path, &mut errors) {
        errors.extend(validate_entry(&name, &quantity, &path.key(&name)));
    }
    errors
}

/// Checks one `ResourceRequirements` as `ValidateResourceRequirements` of `k8s.io/kubernetes/pkg/apis/core/validation` does.
pub fn validate_resource_requirements(resources: &Value, path: &FieldPath) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !(resources.is_object() || resources.is_null()) {
        errors.push(FieldError::type_invalid(
            path,
            resources.clone(),
            "must be an object with limits and requests",
        ));
        return errors;
    }
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let limits = quantities(resources.get("limits"), &limits_path, &mut errors);
    let requests = quantities(resources.get("requests"), &requests_path, &mut errors);
    for (name, limit) in &limits {
        errors.extend(validate_entry(name, limit, &limits_path.key(name)));
    }
    for (name, request) in &requests {
        errors.extend(validate_entry(name, request, &requests_path.key(name)));
        match limits.get(name) {
            Some(limit) if request != limit && !is_overcommit_allowed(name) => {
                let rule = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(&requests_path, request.to_string(), rule));
            }
            Some(limit) if request > limit => {
                let rule = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(&requests_path, request.to_string(), rule));
            }
            // A limit that is there but is no quantity has its own error.
            None if !is_overcommit_allowed(name)
                && resources.pointer("/limits").is_none_or(|l| l.get(name).is_none()) =>
            {
                errors.push(FieldError::required(
                    &limits_path,
                    "Limit must be set for non overcommitable resources",
                ));
            }
            _ => {}
        }
    }
    let names = || limits.keys().chain(requests.keys());
    if names().any(|name| name.starts_with(HUGE_PAGES))
        && !names().any(|name| name == "cpu" || name == "memory")
    {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
    errors
}

fn quantities(
    list: Option<&Value>,
    path: &FieldPath,
    errors: &mut Vec<FieldError>,
) -> BTreeMap<String, Quantity> {
    let list = match list {
        None | Some(Value::Null) => return BTreeMap::new(),
        Some(Value::Object(list)) => list,
        Some(other) => {
            errors.push(FieldError::type_invalid(
                path,
                other.clone(),
                "must be a map from resource names to quantities",
            ));
            return BTreeMap::new();
        }
    };
    let read = list.iter().filter_map(|(name, value)| match read_quantity(value, &path.key(name)) {
        Ok(quantity) => Some((name.clone(), quantity)),
        Err(error) => {
            errors.push(error);
            None
        }
    });
    read.collect()
}

fn validate_entry(name: &str, quantity: &Quantity, path: &FieldPath) -> Vec<FieldError> {
    let mut errors: Vec<_> = validate_qualified_name(name)
        .into_iter()
        .map(|fault| FieldError::invalid(path, name, fault))
        .collect();
    let is_standard = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with(HUGE_PAGES);
    if !name.contains('/') && !is_standard {
        errors.push(FieldError::invalid(path, name, "must be a standard resource for containers"));
    } else if !is_native_resource(name) && !is_extended_resource(name) {
        errors.push(FieldError::invalid(path, name, "doesn't follow extended resource name standard"));
    }
    if quantity.is_negative() {
        errors.push(FieldError::invalid(path, quantity.to_string(), "must be greater than or equal to 0"));
    }
    if is_extended_resource(name) && !quantity.is_integer() {
        errors.push(FieldError::invalid(path, quantity.to_string(), "must be an integer"));
    }
    if let Some(size) = name.strip_prefix(HUGE_PAGES) {
        let page = size.parse::<Quantity>().map_or(0, |page| page.value());
        if page <= 0 || !quantity.is_integer() || quantity.value() % page != 0 {
            let rule = format!("{quantity} is not positive integer multiple of {name}");
            errors.push(FieldError::invalid(path, quantity.to_string(), rule));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_and_limits_are_held_to_the_rules_of_the_api_server() {
        let cases: [(Value, &[&str]); 18] = [
            (json!({}), &[]),
            (Value::Null, &[]),
            (json!({"limits": {"nvidia.com/gpu": 2, "cpu": "1"}, "requests": {"cpu": "500m"}}), &[]),
            (json!({"limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2000m"}}), &[]),
            (json!({"limits": {"hugepages-2Mi": "4Mi", "cpu": 1}}), &[]),
            (
                json!({"limits": {"nvidia.com/gpu": "0.5"}}),
                &["r.limits[nvidia.com/gpu]: Invalid value: \"500m\": must be an integer"],
            ),
            (
                json!({"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 1}}),
                &["r.requests: Invalid value: \"1\": must be equal to nvidia.com/gpu limit of 2"],
            ),
            (
                json!({"requests": {"nvidia.com/gpu": 1}}),
                &["r.limits: Required value: Limit must be set for non overcommitable resources"],
            ),
            (
                json!({"limits": {"nvidia.com/gpu": -1}}),
                &["r.limits[nvidia.com/gpu]: Invalid value: \"-1\": must be greater than or equal to 0"],
            ),
            (
                json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
                &["r.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"],
            ),
            (
                json!({"limits": {"gpu": 1}}),
                &["r.limits[gpu]: Invalid value: \"gpu\": must be a standard resource for containers"],
            ),
            (
                json!({"limits": {"requests.nvidia.com/gpu": 1}}),
                &[
                    "r.limits[requests.nvidia.com/gpu]: Invalid value: \"requests.nvidia.com/gpu\": doesn't follow \
                   extended resource name standard",
                ],
            ),
            (json!({"limits": {"hugepages-2Mi": "4Mi"}}), &["r: Forbidden: HugePages require cpu or memory"]),
            (
                json!({"limits": {"hugepages-2Mi": "3Mi", "memory": "1Gi"}}),
                &[
                    "r.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of \
                   hugepages-2Mi",
                ],
            ),
            (json!(3), &["r: Invalid value: 3: must be an object with limits and requests"]),
            (
                json!({"limits": [1]}),
                &["r.limits: Invalid value: [1]: must be a map from resource names to quantities"],
            ),
            (
                json!({"limits": {"cpu": true}}),
                &["r.limits[cpu]: Invalid value: true: must be a quantity such as 1, 500m or 4Gi"],
            ),
            (
                json!({"limits": {"nvidia.com/gpu": null}, "requests": {"nvidia.com/gpu": 1}}),
                &["r.limits[nvidia.com/gpu]: Invalid value: null: must be a quantity such as 1, 500m or 4Gi"],
            ),
        ];
        for (resources, expected) in cases {
            let errors = validate_resource_requirements(&resources, &FieldPath::new("r"));
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(texts, expected, "{resources}");
        }
    }

    #[test]
    fn a_text_that_is_no_quantity_is_named_with_the_pattern_and_the_fix() {
        let errors =
            validate_resource_requirements(&json!({"limits": {"memory": "4GB"}}), &FieldPath::new("r"));
        let text = errors[0].to_string();
        assert!(text.starts_with("r.limits[memory]: Invalid value: \"4GB\": "), "{text}");
        assert!(text.contains(Quantity::PATTERN) && text.contains("the suffix is \"G\""), "{text}");
    }

    #[test]
    fn every_container_of_a_pod_is_checked() {
        let bad = json!({"resources": {"limits": {"nvidia.com/gpu": "1.5"}}});
        let spec = json!({"containers": [{}, bad], "initContainers": [bad], "overhead": {"cpu": "-1"}});
        let errors = validate_pod_resources(&spec, &FieldPath::new("spec"));
        let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "spec.initContainers[0].resources.limits[nvidia.com/gpu]",
                "spec.containers[1].resources.limits[nvidia.com/gpu]",
                "spec.overhead[cpu]",
            ]
        );
    }

    #[test]
    fn names_of_extended_resources_have_a_domain_that_is_not_kubernetes_own() {
        let long = format!("example.com/{}", "a".repeat(64));
        for (name, expected) in [
            ("nvidia.com/gpu", true),
            ("nvidia.com/mig-1g.10gb", true),
            ("cpu", false),
            ("kubernetes.io/batch", false),
            ("sub.kubernetes.io/x", false),
            ("requests.nvidia.com/gpu", false),
            ("nvidia.com/", false),
            (&long, false),
        ] {
            assert_eq!(is_extended_resource(name), expected, "{name}");
        }
    }
}
