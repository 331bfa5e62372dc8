//! PodDisruptionBudget: how many of its pods may be evicted now. The eviction itself is the API server's.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::pods::condition;
use crate::json::{Fields as _, int_or_percent, seconds_between, stamp, status_diff};
use crate::kinds::Kind;
use crate::plan::{Note, Patch, Plan};
use crate::pod::Pod;
use crate::store::Ref;

/// Seconds in which an eviction that was granted must show, or it is taken to have failed.
const EVICTION_TIMEOUT_S: i64 = 120;

/// How many pods the controller of a pod wants, if it is one that can be scaled.
pub(crate) type ScaleOf<'a> = &'a dyn Fn(&Pod) -> Option<(String, i64)>;

/// What to do for a budget that selects these pods.
pub(crate) fn plan(budget: &Value, pods: &[Arc<Pod>], scale_of: ScaleOf<'_>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if budget.is_deleting() {
        return plan;
    }
    if pods.is_empty() {
        plan.event(Note::normal("NoPods", "No matching pods found"));
    }
    let (expected, desired, problem) = match bounds(budget, pods, scale_of) {
        Ok((expected, desired)) => (expected, desired, None),
        Err(problem) => (0, 0, Some(problem)),
    };
    let mut evicting = Map::new();
    for (name, since) in budget.at("/status/disruptedPods").as_object().into_iter().flatten() {
        let since = since.as_str().and_then(|since| since.parse().ok());
        let Some(since) = since.filter(|_| pods.iter().any(|pod| &*pod.id.name == name && !pod.deleting))
        else {
            continue;
        };
        let left = EVICTION_TIMEOUT_S - seconds_between(since, now);
        if left > 0 {
            plan.again_in(left);
            evicting.insert(name.clone(), stamp(since).into());
        }
    }
    let healthy = pods.iter().filter(|pod| {
        pod.ready && !pod.deleting && !pod.has_ended() && !evicting.contains_key(&*pod.id.name)
    });
    let healthy = i64::try_from(healthy.count()).unwrap_or(i64::MAX);
    let allowed = if problem.is_some() || expected == 0 { 0 } else { (healthy - desired).max(0) };
    let (status, reason, message) = match &problem {
        Some(problem) => ("False", "SyncFailed", problem.as_str()),
        None if allowed > 0 => ("True", "SufficientPods", ""),
        None => ("False", "InsufficientPods", ""),
    };
    if let Some(problem) = &problem {
        let message = format!("Failed to calculate the number of expected pods: {problem}");
        plan.event(Note::warning("CalculateExpectedPodCountFailed", message));
    }
    let known = budget.list("/status/conditions");
    let mut allowed_now = condition(known, "DisruptionAllowed", status, reason, message, &stamp(now));
    allowed_now["observedGeneration"] = budget.generation().into();
    let mut wanted = json!({
        "currentHealthy": healthy, "desiredHealthy": desired, "disruptionsAllowed": allowed,
        "expectedPods": expected, "observedGeneration": budget.generation(), "conditions": [allowed_now],
    });
    if !evicting.is_empty() {
        wanted["disruptedPods"] = Value::Object(evicting);
    }
    match status_diff(budget, &wanted) {
        Some(patch) => {
            let id = Ref::new(budget.namespace(), budget.name());
            plan.patch(Patch::status(Kind::PodDisruptionBudget, &id, patch));
        }
        // Said once for each change is enough.
        None => plan.steps.clear(),
    }
    plan
}

/// Pods that there should be, and how many of them must be healthy.
fn bounds(budget: &Value, pods: &[Arc<Pod>], scale_of: ScaleOf<'_>) -> Result<(i64, i64), String> {
    let count = i64::try_from(pods.len()).unwrap_or(i64::MAX);
    let max_unavailable = budget.at("/spec/maxUnavailable");
    if !max_unavailable.is_null() {
        let expected = scale(pods, scale_of)?;
        let unavailable = int_or_percent(max_unavailable, expected, true).unwrap_or(0);
        return Ok((expected, (expected - unavailable).max(0)));
    }
    match budget.at("/spec/minAvailable") {
        Value::Number(number) => Ok((count, number.as_i64().unwrap_or(0))),
        share @ Value::String(_) => {
            let expected = scale(pods, scale_of)?;
            Ok((expected, int_or_percent(share, expected, true).unwrap_or(0)))
        }
        _ => Ok((count, 1)),
    }
}

fn scale(pods: &[Arc<Pod>], scale_of: ScaleOf<'_>) -> Result<i64, String> {
    let mut scales = BTreeMap::new();
    for pod in pods {
        let name = &pod.id.name;
        let Some((owner, replicas)) = scale_of(pod) else {
            return Err(match &pod.owner {
                None => format!("found no controllers for pod {name:?}"),
                Some(owner) => {
                    format!("{} {} does not implement the scale subresource", owner.kind, owner.name)
                }
            });
        };
        scales.insert(owner, replicas);
    }
    Ok(scales.values().sum())
}

#[cfg(test)]
mod tests {
    use super::super::pods::make;
    use super::*;
    use crate::plan::read::{lines, status};

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    fn check(spec: Value, ready: usize, waiting: usize, replicas: i64, expect: (i64, i64)) {
        let budget = json!({"metadata": {"name": "b", "namespace": "ml"}, "spec": spec});
        let pods: Vec<Arc<Pod>> = (0..ready)
            .map(|n| make::ready(&format!("r{n}"), json!({})))
            .chain((0..waiting).map(|n| make::in_phase(&format!("w{n}"), json!({}), "Pending")))
            .collect();
        let plan = plan(&budget, &pods, &|_| Some(("d".to_owned(), replicas)), now());
        let status = status(&plan).expect("a status");
        let found = (status.int("/desiredHealthy"), status.int("/disruptionsAllowed"));
        assert_eq!(found, (Some(expect.0), Some(expect.1)), "{spec}", spec = budget["spec"]);
        let reason = if expect.1 > 0 { "SufficientPods" } else { "InsufficientPods" };
        assert_eq!(status["conditions"][0]["reason"], reason);
    }

    #[test]
    fn budgets_allow_what_is_above_the_bound() {
        check(json!({"minAvailable": 2}), 3, 0, 3, (2, 1));
        check(json!({"minAvailable": 2}), 2, 1, 3, (2, 0));
        check(json!({"minAvailable": "50%"}), 5, 0, 5, (3, 2));
        check(json!({"maxUnavailable": 1}), 3, 0, 4, (3, 0));
        check(json!({"maxUnavailable": "30%"}), 10, 0, 10, (7, 3));
        check(json!({"minAvailable": 0}), 0, 0, 0, (0, 0));
    }

    #[test]
    fn a_granted_eviction_counts_until_it_shows_or_times_out() {
        let mut budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1}});
        let pods = [make::ready("a", json!({})), make::ready("b", json!({}))];
        budget["status"]["disruptedPods"] =
            json!({"a": "2025-12-31T23:59:00Z", "gone": "2025-12-31T23:59:00Z"});
        let waiting = plan(&budget, &pods, &|_| None, now());
        let status = status(&waiting).expect("a status");
        assert_eq!(status.int("/disruptionsAllowed"), Some(0));
        assert_eq!(status["disruptedPods"], json!({"gone": null}));
        assert_eq!(waiting.again_after, Some(std::time::Duration::from_mins(1)));
    }

    #[test]
    fn pods_that_nothing_scales_are_named() {
        let budget = json!({"metadata": {"name": "b"}, "spec": {"maxUnavailable": 1}});
        let plan = plan(&budget, &[make::ready("lone", json!({}))], &|_| None, now());
        let text = lines(&plan).join("\n");
        assert!(text.contains("found no controllers for pod \"lone\""), "{text}");
        assert_eq!(status(&plan).expect("a status")["conditions"][0]["reason"], "SyncFailed");
    }
}
