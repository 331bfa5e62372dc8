//! ReplicaSet: as many pods as it asks for.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::pods::{condition, sort_for_deletion};
use crate::json::{Fields as _, controller_reference, stamp, status_diff, string_map, without_zeros};
use crate::kinds::Kind;
use crate::plan::{Create, Delete, Failure, Patch, Plan};
use crate::pod::{Pod, from_template};
use crate::store::Ref;

/// Pods that one run creates or deletes at most; the rest follows at once in the next.
const BURST: usize = 500;

/// What to do for a ReplicaSet that has these pods.
pub(crate) fn plan(set: &Value, pods: &[Arc<Pod>], failure: Option<&Failure>, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let wanted = usize::try_from(set.int("/spec/replicas").unwrap_or(1)).unwrap_or(0);
    let active: Vec<Arc<Pod>> = pods.iter().filter(|pod| pod.is_active()).cloned().collect();
    if !set.is_deleting() {
        if active.len() < wanted {
            let missing = wanted - active.len();
            let create = Create::pod(pod(set));
            plan.creates(vec![create; missing.min(BURST)]);
            if missing > BURST {
                plan.again_in(0);
            }
        } else if active.len() > wanted {
            let mut ranked = active.clone();
            sort_for_deletion(&mut ranked, now);
            let surplus = ranked.len() - wanted;
            plan.deletes(
                ranked.iter().take(surplus.min(BURST)).map(|pod| Delete::pod(&pod.id, &pod.uid)).collect(),
            );
            if surplus > BURST {
                plan.again_in(0);
            }
        }
    }
    let min_ready = set.int("/spec/minReadySeconds").unwrap_or(0);
    let waits = active.iter().filter_map(|pod| pod.seconds_to_available(min_ready, now));
    if let Some(soonest) = waits.filter(|seconds| *seconds > 0).min() {
        plan.again_in(soonest);
    }
    // The writes above wake this controller again, and then the status needs to be written only once.
    if (plan.is_quiet() || failure.is_some())
        && let Some(patch) = status_diff(set, &status(set, &active, failure, wanted, now))
    {
        let patch = Patch::status(Kind::ReplicaSet, &Ref::new(set.namespace(), set.name()), patch);
        plan.steps.insert(0, crate::plan::Step::Patch(vec![patch]));
    }
    plan
}

fn pod(set: &Value) -> Value {
    let owner = controller_reference(Kind::ReplicaSet, set);
    let mut pod = from_template(set.at("/spec/template"), set.namespace(), &owner);
    pod["metadata"]["generateName"] = generate_name(set.name()).into();
    pod
}

/// The prefix of the names of a controller's pods, cut so that the names stay valid.
pub(crate) fn generate_name(owner: &str) -> String {
    let cut: String = owner.chars().take(62).collect();
    format!("{cut}-")
}

fn status(
    set: &Value,
    active: &[Arc<Pod>],
    failure: Option<&Failure>,
    wanted: usize,
    now: Timestamp,
) -> Value {
    let min_ready = set.int("/spec/minReadySeconds").unwrap_or(0);
    let labels = string_map(set.at("/spec/template/metadata/labels"));
    let count = |test: &dyn Fn(&Pod) -> bool| active.iter().filter(|pod| test(pod)).count();
    let fully_labelled = count(&|pod| labels.iter().all(|(key, value)| pod.labels.get(key) == Some(value)));
    let mut status = without_zeros(json!({
        "fullyLabeledReplicas": fully_labelled,
        "readyReplicas": count(&|pod| pod.ready),
        "availableReplicas": count(&|pod| pod.is_available(min_ready, now)),
        "observedGeneration": set.generation(),
    }));
    status.insert("replicas".to_owned(), active.len().into());
    let others = set.list("/status/conditions").iter();
    let mut conditions: Vec<Value> =
        others.filter(|condition| condition.text("/type") != "ReplicaFailure").cloned().collect();
    if let Some(failure) = failure
        && active.len() != wanted
    {
        let reason = if failure.on_create { "FailedCreate" } else { "FailedDelete" };
        let known = set.list("/status/conditions");
        conditions.push(condition(known, "ReplicaFailure", "True", reason, &failure.message, &stamp(now)));
    }
    if !conditions.is_empty() {
        status.insert("conditions".to_owned(), conditions.into());
    }
    Value::Object(status)
}

#[cfg(test)]
mod tests {
    use super::super::pods::make;
    use super::*;
    use crate::plan::read::{created, deleted, lines, status};

    fn set(replicas: i64) -> Value {
        json!({
            "metadata": {"name": "web", "namespace": "ml", "uid": "u", "generation": 3},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}, "annotations": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "futureField": {"x": 1}}]},
                },
            },
        })
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    #[test]
    fn pods_are_made_from_the_template_with_fields_that_we_do_not_know() {
        let plan = plan(&set(2), &[], None, now());
        let pods = created(&plan);
        assert_eq!(pods.len(), 2);
        assert_eq!(pods[0]["spec"]["containers"][0]["futureField"]["x"], 1);
        assert_eq!(pods[0]["metadata"]["generateName"], "web-");
        assert_eq!(pods[0]["metadata"]["annotations"]["a"], "b");
        assert_eq!(pods[0]["metadata"]["ownerReferences"][0]["controller"], true);
    }

    #[test]
    fn ended_pods_are_replaced_and_surplus_ones_deleted_worst_first() {
        let labels = json!({"app": "web"});
        let pods = [make::in_phase("failed", labels.clone(), "Failed"), make::ready("good", labels.clone())];
        assert_eq!(lines(&plan(&set(2), &pods, None, now())), ["create Pod web-"]);
        let pods = [
            make::ready("good", labels.clone()),
            make::in_phase("waiting", labels.clone(), "Pending"),
            make::ready("better", labels),
        ];
        assert_eq!(deleted(&plan(&set(2), &pods, None, now())), ["waiting"]);
    }

    #[test]
    fn large_sets_are_filled_in_bursts() {
        let plan = plan(&set(10_000), &[], None, now());
        assert_eq!(created(&plan).len(), 500);
        assert_eq!(plan.again_after, Some(std::time::Duration::ZERO));
    }

    #[test]
    fn the_status_counts_and_tells_of_failures() {
        let pods = [make::ready("a", json!({"app": "web"}))];
        let quiet = plan(&set(1), &pods, None, now());
        assert_eq!(
            status(&quiet),
            Some(&json!({
                "replicas": 1, "readyReplicas": 1, "availableReplicas": 1, "fullyLabeledReplicas": 1,
                "observedGeneration": 3,
            }))
        );
        let failure =
            Failure { on_create: true, already_exists: false, message: "exceeded quota".to_owned() };
        let failing = plan(&set(2), &pods, Some(&failure), now());
        let condition = &status(&failing).expect("a status")["conditions"][0];
        assert_eq!(condition["type"], "ReplicaFailure");
        assert_eq!(condition["reason"], "FailedCreate");
        assert_eq!(condition["message"], "exceeded quota");
    }

    #[test]
    fn a_ready_pod_becomes_available_after_min_ready_seconds() {
        let mut set = set(1);
        set["spec"]["minReadySeconds"] = 30.into();
        let pods = [make::ready("a", json!({"app": "web"}))];
        let at = |second| plan(&set, &pods, None, Timestamp::from_second(second).expect("a time"));
        assert_eq!(at(10).again_after, Some(std::time::Duration::from_secs(20)));
        assert_eq!(status(&at(10)).expect("a status")["availableReplicas"], Value::Null);
        assert_eq!(status(&at(30)).expect("a status")["availableReplicas"], 1);
    }

    #[test]
    fn a_set_that_is_deleted_makes_no_pods() {
        let mut set = set(2);
        set["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(created(&plan(&set, &[], None, now())).is_empty());
    }
}
