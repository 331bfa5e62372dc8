use std::collections::BTreeMap;

use gantry_units::Quantity;
use serde_json::Value;

use super::read_quantity;
use crate::{FieldError, FieldPath};

type Requests = BTreeMap<String, Quantity>;

/// What a pod as a whole asks of a node, given its spec: the sum over its containers and sidecars (init containers with
/// `restartPolicy: Always`), or, where it is more, the peak while init containers run one by one beside the sidecars started before
/// them; plus the pod's `overhead`. `spec.resources.requests` overrides the containers for cpu, memory and huge pages.
///
/// A limit without a request counts as the request, as it would once the API server has stored the pod.
/// The rules are those of `k8s.io/component-helpers/resource.PodRequests`.
pub fn effective_requests(pod_spec: &Value) -> Result<BTreeMap<String, Quantity>, FieldError> {
    let path = FieldPath::new("spec");
    let mut total = Requests::new();
    for (index, container) in containers(pod_spec, "containers") {
        let path = path.child("containers").index(index);
        add(&mut total, &container_requests(container, &path)?, &path)?;
    }
    let (mut sidecars, mut peak) = (Requests::new(), Requests::new());
    for (index, container) in containers(pod_spec, "initContainers") {
        let path = path.child("initContainers").index(index);
        let mut running = container_requests(container, &path)?;
        if container.get("restartPolicy").is_some_and(|policy| policy == "Always") {
            add(&mut total, &running, &path)?;
            add(&mut sidecars, &running, &path)?;
            running.clone_from(&sidecars);
        } else {
            add(&mut running, &sidecars, &path)?;
        }
        raise(&mut peak, running);
    }
    raise(&mut total, peak);

    let pod_level =
        read_list(pod_spec.pointer("/resources/requests"), &path.child("resources").child("requests"))?;
    let overrides =
        |name: &String| matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-");
    total.extend(pod_level.into_iter().filter(|(name, _)| overrides(name)));
    let path = path.child("overhead");
    add(&mut total, &read_list(pod_spec.get("overhead"), &path)?, &path)?;
    Ok(total)
}

fn containers<'a>(pod_spec: &'a Value, list: &str) -> impl Iterator<Item = (usize, &'a Value)> {
    pod_spec.get(list).and_then(Value::as_array).into_iter().flatten().enumerate()
}

fn container_requests(container: &Value, path: &FieldPath) -> Result<Requests, FieldError> {
    let path = path.child("resources");
    let mut requests = read_list(container.pointer("/resources/limits"), &path.child("limits"))?;
    requests.extend(read_list(container.pointer("/resources/requests"), &path.child("requests"))?);
    Ok(requests)
}

fn read_list(list: Option<&Value>, path: &FieldPath) -> Result<Requests, FieldError> {
    let entries = list.and_then(Value::as_object).into_iter().flatten();
    entries.map(|(name, value)| Ok((name.clone(), read_quantity(value, &path.key(name))?))).collect()
}

fn add(total: &mut Requests, more: &Requests, path: &FieldPath) -> Result<(), FieldError> {
    for (name, quantity) in more {
        let sum = total.entry(name.clone()).or_default();
        *sum = sum.checked_add(*quantity).ok_or_else(|| {
            let rule = format!("the pod's requests for {name} add up to more than a quantity can hold");
            FieldError::invalid(path, quantity.to_string(), rule)
        })?;
    }
    Ok(())
}

fn raise(total: &mut Requests, other: Requests) {
    for (name, quantity) in other {
        let current = total.entry(name).or_insert(quantity);
        *current = quantity.max(*current);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container(cpu: &str) -> Value {
        json!({"resources": {"requests": {"cpu": cpu}}})
    }

    fn sidecar(cpu: &str) -> Value {
        json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}})
    }

    fn cpu(spec: &Value) -> String {
        effective_requests(spec).unwrap()["cpu"].to_string()
    }

    #[test]
    fn a_pod_asks_for_the_larger_of_its_sum_and_its_start() {
        let cases = [
            ("containers add up", json!({"containers": [container("1"), container("500m")]}), "1500m"),
            (
                "an init container runs alone",
                json!({"containers": [container("1")], "initContainers": [container("3"), container("2")]}),
                "3",
            ),
            (
                "a small init container costs nothing",
                json!({"containers": [container("4")], "initContainers": [container("3")]}),
                "4",
            ),
            (
                "a sidecar runs beside the containers",
                json!({"containers": [container("1")], "initContainers": [sidecar("2")]}),
                "3",
            ),
            (
                "an init container runs beside the sidecars before it",
                json!({"containers": [container("1")], "initContainers": [sidecar("2"), container("5"), sidecar("1")]}),
                "7",
            ),
            (
                "an init container before the sidecar runs without it",
                json!({"containers": [container("1")], "initContainers": [container("5"), sidecar("2")]}),
                "5",
            ),
            (
                "overhead is added to either",
                json!({"containers": [container("1")], "initContainers": [container("2")], "overhead": {"cpu": "250m"}}),
                "2250m",
            ),
            (
                "the pod's own request overrides its containers",
                json!({"containers": [container("1")], "resources": {"requests": {"cpu": "8"}}}),
                "8",
            ),
        ];
        for (name, spec, expected) in cases {
            assert_eq!(cpu(&spec), expected, "{name}");
        }
    }

    #[test]
    fn a_limit_without_a_request_counts() {
        let spec = json!({"containers": [
            {"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "4"}, "requests": {"cpu": "2"}}},
            {"resources": {"limits": {"nvidia.com/gpu": 1}}},
            {},
        ]});
        let requests = effective_requests(&spec).unwrap();
        let texts: Vec<String> =
            requests.iter().map(|(name, quantity)| format!("{name}={quantity}")).collect();
        assert_eq!(texts, ["cpu=2", "nvidia.com/gpu=2"]);
        assert_eq!(effective_requests(&json!({})).unwrap(), BTreeMap::new());
    }

    #[test]
    fn what_cannot_be_added_is_named() {
        let spec = json!({"containers": [container("1"), container("much")]});
        let error = effective_requests(&spec).unwrap_err();
        assert_eq!(error.path.as_str(), "spec.containers[1].resources.requests[cpu]");
        let spec = json!({"containers": [container("9E"), container("9E")]});
        let error = effective_requests(&spec).unwrap_err();
        assert_eq!(error.path.as_str(), "spec.containers[1]");
        assert!(error.to_string().contains("cpu add up to more"), "{error}");
    }
}
