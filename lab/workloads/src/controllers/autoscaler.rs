//! HorizontalPodAutoscaler: keeps its target within its bounds, and says plainly that there are no metrics.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::pods::condition;
use crate::json::{Fields as _, stamp, status_diff};
use crate::kinds::Kind;
use crate::plan::{Note, Patch, Plan};
use crate::store::Ref;

/// Seconds between two looks, as kube-controller-manager has it by default.
const PERIOD_S: i64 = 15;

/// What an autoscaler scales.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) id: Ref,
    pub(crate) replicas: i64,
}

/// What to do for an autoscaler whose target, if it was found, is this.
pub(crate) fn plan(scaler: &Value, target: Option<&Target>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    plan.again_in(PERIOD_S);
    if scaler.is_deleting() {
        return plan;
    }
    let id = Ref::new(scaler.namespace(), scaler.name());
    let mut status =
        Status { scaler, now: stamp(now), conditions: scaler.list("/status/conditions").to_vec() };
    let Some(target) = target else {
        let reference = scaler.at("/spec/scaleTargetRef");
        let (kind, name) = (reference.text("/kind"), reference.text("/name"));
        let message = match Kind::named(kind) {
            Some(kind) => {
                let group = kind.group();
                let resource = if group.is_empty() {
                    kind.plural().to_owned()
                } else {
                    format!("{}.{group}", kind.plural())
                };
                format!("{resource} \"{name}\" not found")
            }
            None => format!("no matches for kind \"{kind}\" in group \"{}\"", reference.text("/apiVersion")),
        };
        plan.event(Note::warning("FailedGetScale", message.clone()));
        let message = format!("the HPA controller was unable to get the target's current scale: {message}");
        status.set("AbleToScale", "False", "FailedGetScale", &message);
        let wanted = status.finish(None, None, None);
        write(scaler, &id, &wanted, &mut plan);
        return plan;
    };
    status.set(
        "AbleToScale",
        "True",
        "SucceededGetScale",
        "the HPA controller was able to get the target's current scale",
    );
    let current = target.replicas;
    let min = scaler.int("/spec/minReplicas").unwrap_or(1);
    let max = scaler.int("/spec/maxReplicas").unwrap_or(min);
    let mut desired = current;
    let mut scaled_at = None;
    if current == 0 && min != 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        status.set("ScalingActive", "False", "ScalingDisabled", message);
    } else if current > max || current < min {
        let (bound, reason) = if current > max {
            (max, "Current number of replicas above Spec.MaxReplicas")
        } else {
            (min, "Current number of replicas below Spec.MinReplicas")
        };
        desired = bound;
        scaled_at = Some(status.now.clone());
        let message = format!("the HPA controller was able to update the target scale to {desired}");
        status.set("AbleToScale", "True", "SucceededRescale", &message);
        let patch = json!({"spec": {"replicas": desired}});
        let rescaled = format!("New size: {desired}; reason: {reason}");
        plan.patch(Patch {
            success: Some(Note::normal("SuccessfulRescale", rescaled.clone())),
            failure: Some(Note::warning("FailedRescale", format!("{rescaled}; error: {{error}}"))),
            ..Patch::new(target.kind, &target.id, patch)
        });
    } else {
        let metrics = scaler.list("/spec/metrics");
        if let Some((reason, problem)) = metrics.first().map(missing) {
            let message = format!("the HPA was unable to compute the replica count: {problem}");
            status.set("ScalingActive", "False", reason, &message);
            for (reason, problem) in metrics.iter().map(missing) {
                plan.event(Note::warning(reason, problem));
            }
            let count = metrics.len();
            let message = format!(
                "invalid metrics ({count} invalid out of {count}), first error is: failed to get {} value: {problem}",
                subject(&metrics[0])
            );
            plan.event(Note::warning("FailedComputeMetricsReplicas", message));
        }
    }
    let wanted = status.finish(Some(current), Some(desired), scaled_at);
    write(scaler, &id, &wanted, &mut plan);
    plan
}

fn write(scaler: &Value, id: &Ref, status: &Value, plan: &mut Plan) {
    if let Some(patch) = status_diff(scaler, status) {
        plan.patch(Patch::status(Kind::HorizontalPodAutoscaler, id, patch));
    }
}

/// Why a metric has no value: no metrics API serves any.
fn missing(metric: &Value) -> (&'static str, String) {
    let custom = "no metrics returned from custom metrics API";
    match metric.text("/type") {
        "Pods" => {
            let name = metric.text("/pods/metric/name");
            ("FailedGetPodsMetric", format!("unable to get metric {name}: {custom}"))
        }
        "Object" => {
            let name = metric.text("/object/metric/name");
            ("FailedGetObjectMetric", format!("unable to get metric {name}: {custom}"))
        }
        "External" => {
            let name = metric.text("/external/metric/name");
            let api = "no metrics returned from external metrics API";
            ("FailedGetExternalMetric", format!("unable to get external metric {name}: {api}"))
        }
        kind => {
            let (field, reason) = if kind == "ContainerResource" {
                ("containerResource", "FailedGetContainerResourceMetric")
            } else {
                ("resource", "FailedGetResourceMetric")
            };
            let name = metric.text(&format!("/{field}/name"));
            let target = metric.text(&format!("/{field}/target/type"));
            let problem = format!(
                "unable to get metrics for resource {name}: no metrics returned from resource metrics API"
            );
            if target == "AverageValue" {
                (reason, format!("failed to get {name} usage: {problem}"))
            } else {
                (reason, format!("failed to get {name} utilization: {problem}"))
            }
        }
    }
}

/// What a metric measures, in the words of the event.
fn subject(metric: &Value) -> String {
    match metric.text("/type") {
        "Pods" => "pods metric".to_owned(),
        "Object" => "object metric".to_owned(),
        "External" => format!("{} external metric", metric.text("/external/metric/name")),
        "ContainerResource" => format!("{} container metric", metric.text("/containerResource/name")),
        _ => format!("{} resource metric", metric.text("/resource/name")),
    }
}

struct Status<'a> {
    scaler: &'a Value,
    now: String,
    conditions: Vec<Value>,
}

impl Status<'_> {
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let new = condition(&self.conditions, kind, status, reason, message, &self.now);
        match self.conditions.iter_mut().find(|condition| condition.text("/type") == kind) {
            Some(known) => *known = new,
            None => self.conditions.push(new),
        }
    }

    fn finish(self, current: Option<i64>, desired: Option<i64>, scaled_at: Option<String>) -> Value {
        let known = |field: &str| self.scaler.int(&format!("/status/{field}"));
        let mut status = json!({
            "currentReplicas": current.or_else(|| known("currentReplicas")).unwrap_or(0),
            "desiredReplicas": desired.or_else(|| known("desiredReplicas")).unwrap_or(0),
            "currentMetrics": self.scaler.at("/status/currentMetrics"),
            "conditions": self.conditions,
        });
        let scaled_at =
            scaled_at.map_or_else(|| self.scaler.at("/status/lastScaleTime").clone(), Value::from);
        if !scaled_at.is_null() {
            status["lastScaleTime"] = scaled_at;
        }
        if let Some(generation) = self.scaler.int("/metadata/generation") {
            status["observedGeneration"] = generation.into();
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::read::{lines, status};

    fn scaler() -> Value {
        json!({
            "metadata": {"name": "h", "namespace": "ml"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "minReplicas": 2, "maxReplicas": 5,
                "metrics": [{"type": "Resource", "resource": {
                    "name": "nvidia.com/gpu", "target": {"type": "Utilization", "averageUtilization": 80},
                }}],
            },
        })
    }

    fn target(replicas: i64) -> Target {
        Target { kind: Kind::Deployment, id: Ref::new("ml", "web"), replicas }
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    #[test]
    fn without_metrics_it_says_so_in_the_words_of_kubernetes() {
        let mut scaler = scaler();
        let first = plan(&scaler, Some(&target(3)), now());
        let text = status(&first).expect("a status").clone();
        let conditions = text.list("/conditions");
        assert_eq!(conditions[0]["reason"], "SucceededGetScale");
        assert_eq!(conditions[1]["reason"], "FailedGetResourceMetric");
        assert_eq!(
            conditions[1]["message"],
            "the HPA was unable to compute the replica count: failed to get nvidia.com/gpu utilization: \
             unable to get metrics for resource nvidia.com/gpu: no metrics returned from resource metrics API"
        );
        assert_eq!((text.int("/currentReplicas"), text.int("/desiredReplicas")), (Some(3), Some(3)));
        assert_eq!(first.again_after, Some(std::time::Duration::from_secs(15)));
        scaler["status"] = text;
        assert_eq!(status(&plan(&scaler, Some(&target(3)), now())), None, "said once");
    }

    #[test]
    fn the_target_is_kept_within_its_bounds() {
        for (replicas, expect) in [(1, Some(2)), (9, Some(5)), (4, None), (0, None)] {
            let plan = plan(&scaler(), Some(&target(replicas)), now());
            let patched = lines(&plan).iter().any(|line| line.starts_with("patch Deployment web"));
            assert_eq!(patched, expect.is_some(), "{replicas}");
            let desired = status(&plan).expect("a status").int("/desiredReplicas");
            assert_eq!(desired, Some(expect.unwrap_or(replicas)));
        }
        let disabled = plan(&scaler(), Some(&target(0)), now());
        assert_eq!(status(&disabled).expect("a status")["conditions"][1]["reason"], "ScalingDisabled");
    }

    #[test]
    fn a_target_that_is_not_there_is_named() {
        let plan = plan(&scaler(), None, now());
        assert_eq!(lines(&plan)[0], "event FailedGetScale deployments.apps \"web\" not found");
        assert_eq!(status(&plan).expect("a status")["conditions"][0]["reason"], "FailedGetScale");
    }
}
