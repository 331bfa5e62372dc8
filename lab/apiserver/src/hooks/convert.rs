//! Versions that are served and not stored.

use serde_json::{Map, Value, json};

use crate::json::{items, map_at, remove, set};
use crate::registry::Conversion;

/// Metrics that `autoscaling/v1` cannot express travel in this annotation.
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

/// `autoscaling/v1` knows one metric: the use of CPU in percent of the request.
pub(crate) const HPA_V1: Conversion = Conversion { to_storage: hpa_to_v2, from_storage: hpa_to_v1 };

fn is_cpu(metric: &Value) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && metric["resource"]["target"]["type"] == "Utilization"
}

fn hpa_to_v1(object: &mut Value) {
    let metrics: Vec<Value> = items(&object["spec"]["metrics"]).to_vec();
    remove(object, &["spec", "metrics"]);
    let (cpu, others): (Vec<_>, Vec<_>) = metrics.into_iter().partition(is_cpu);
    if let Some(target) = cpu.first().map(|metric| metric["resource"]["target"]["averageUtilization"].clone())
    {
        set(object, &["spec", "targetCPUUtilizationPercentage"], target);
    }
    if !others.is_empty() {
        set(object, &["metadata", "annotations", METRICS], Value::Array(others).to_string());
    }
    if let Some(behavior) = remove(object, &["spec", "behavior"]) {
        set(object, &["metadata", "annotations", BEHAVIOR], behavior.to_string());
    }
    let current = remove(object, &["status", "currentMetrics"]).unwrap_or_default();
    let cpu = items(&current)
        .iter()
        .find(|metric| metric["type"] == "Resource" && metric["resource"]["name"] == "cpu")
        .map(|metric| metric["resource"]["current"]["averageUtilization"].clone());
    if let Some(percent) = cpu.filter(|percent| !percent.is_null()) {
        set(object, &["status", "currentCPUUtilizationPercentage"], percent);
    }
}

fn hpa_to_v2(object: &mut Value) {
    let mut metrics = Vec::new();
    if let Some(percent) =
        remove(object, &["spec", "targetCPUUtilizationPercentage"]).filter(|p| !p.is_null())
    {
        metrics.push(json!({"type": "Resource", "resource": {
            "name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent},
        }}));
    }
    let parse = |value: Option<Value>| {
        value.and_then(|text| serde_json::from_str::<Value>(text.as_str().unwrap_or_default()).ok())
    };
    if object["metadata"]["annotations"].is_object() {
        if let Some(others) = parse(remove(object, &["metadata", "annotations", METRICS])) {
            metrics.extend(items(&others).iter().cloned());
        }
        if let Some(behavior) = parse(remove(object, &["metadata", "annotations", BEHAVIOR])) {
            set(object, &["spec", "behavior"], behavior);
        }
        if object["metadata"]["annotations"].as_object().is_some_and(Map::is_empty) {
            remove(object, &["metadata", "annotations"]);
        }
    }
    if !metrics.is_empty() {
        set(object, &["spec", "metrics"], metrics);
    }
    if let Some(percent) = remove(object, &["status", "currentCPUUtilizationPercentage"]) {
        let current = json!([{"type": "Resource", "resource": {
            "name": "cpu", "current": {"averageUtilization": percent},
        }}]);
        map_at(object, &["status"]).insert("currentMetrics".into(), current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_autoscaler_survives_the_way_through_v1() {
        let v2 = json!({
            "metadata": {"name": "h"},
            "spec": {
                "maxReplicas": 3, "behavior": {"scaleDown": {"selectPolicy": "Min"}},
                "metrics": [
                    {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}},
                    {"type": "Pods", "pods": {"metric": {"name": "gpu"}, "target": {"type": "AverageValue", "averageValue": "1"}}},
                ],
            },
        });
        let mut object = v2.clone();
        hpa_to_v1(&mut object);
        assert_eq!(object["spec"]["targetCPUUtilizationPercentage"], 60);
        assert!(object["spec"].get("metrics").is_none());
        hpa_to_v2(&mut object);
        assert_eq!(object, v2);
    }
}
