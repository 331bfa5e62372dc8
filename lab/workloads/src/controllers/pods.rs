//! What the controllers of pods share: which pods are theirs, and which go first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::core::Selector;
use serde_json::{Value, json};

use crate::json::{Fields as _, controller_reference, selects};
use crate::kinds::Kind;
use crate::plan::Patch;
use crate::pod::{Phase, Pod};

/// The pods of a controller, and the patches that adopt orphans and release strangers.
pub(crate) struct Claim {
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) patches: Vec<Patch>,
}

/// Sorts out whose pods are whose. `owned` have the controller as owner; `matching` fulfil its selector.
pub(crate) fn claim(
    kind: Kind,
    owner: &Value,
    selector: &Selector,
    owned: Vec<Arc<Pod>>,
    matching: &[Arc<Pod>],
) -> Claim {
    let may_change = !owner.is_deleting();
    let mut patches = Vec::new();
    let (pods, strangers): (Vec<_>, Vec<_>) =
        owned.into_iter().partition(|pod| selects(selector, &pod.labels));
    for pod in strangers.iter().filter(|pod| may_change && !pod.deleting) {
        let others: Vec<&Value> =
            pod.owner_references.iter().filter(|reference| reference.text("/uid") != owner.uid()).collect();
        patches.push(ownership(pod, &json!(others)));
    }
    let orphans = matching.iter().filter(|pod| pod.owner.is_none() && !pod.deleting && may_change);
    for pod in orphans {
        let mut references = pod.owner_references.clone();
        references.push(controller_reference(kind, owner));
        patches.push(ownership(pod, &json!(references)));
    }
    Claim { pods, patches }
}

fn ownership(pod: &Pod, references: &Value) -> Patch {
    let metadata = json!({"uid": pod.uid, "ownerReferences": references});
    Patch::new(Kind::Pod, &pod.id, json!({"metadata": metadata}))
}

/// Sorts pods by who is deleted first: what is not placed, not running, not ready, cheap to delete, crowded,
/// young.
///
/// The order is that of kube-controller-manager: ages are compared by orders of magnitude, and pods of one
/// magnitude by UID.
pub(crate) fn sort_for_deletion(pods: &mut [Arc<Pod>], now: Timestamp) {
    let mut crowd: BTreeMap<String, usize> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.is_active() && !pod.node.is_empty()) {
        *crowd.entry(pod.node.clone()).or_default() += 1;
    }
    pods.sort_by_cached_key(|pod| {
        let magnitude = |since: Option<Timestamp>| {
            let age = since.map_or(0, |since| (now.as_second() - since.as_second()).max(0));
            u64::try_from(age).unwrap_or(0).checked_ilog2().map_or(0, |log| log + 1)
        };
        (
            !pod.node.is_empty(),
            match pod.phase {
                Phase::Pending => 0,
                Phase::Unknown => 1,
                _ => 2,
            },
            pod.ready,
            pod.deletion_cost,
            Reverse(crowd.get(&pod.node).copied().unwrap_or(0)),
            magnitude(pod.ready_since.filter(|_| pod.ready)),
            Reverse(pod.restarts),
            magnitude(Some(pod.created)),
            pod.uid.clone(),
        )
    });
}

/// A condition with the time of its last change of status, taken over from `conditions` where the status stayed.
pub(crate) fn condition(
    conditions: &[Value],
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) -> Value {
    let before = conditions.iter().find(|condition| condition.text("/type") == kind);
    let since = before
        .filter(|before| before.text("/status") == status)
        .map(|before| before.text("/lastTransitionTime"))
        .filter(|since| !since.is_empty())
        .unwrap_or(now);
    json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    })
}

#[cfg(test)]
pub(crate) mod make {
    //! Pods for tests.

    use super::*;

    /// A pod from its JSON, with name, namespace and UID filled in.
    pub(crate) fn pod(name: &str, mut value: Value) -> Arc<Pod> {
        let metadata = crate::json::entry(&mut value, "metadata");
        metadata["name"] = name.into();
        metadata["namespace"] = "ml".into();
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("uid-{name}").into();
        }
        Arc::new(Pod::read(&value, None))
    }

    /// A pod that is bound, running and ready since the epoch.
    pub(crate) fn ready(name: &str, labels: Value) -> Arc<Pod> {
        pod(
            name,
            json!({
                "metadata": {"labels": labels, "creationTimestamp": "1970-01-01T00:00:00Z"},
                "spec": {"nodeName": "n1"},
                "status": {"phase": "Running", "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"},
                ]},
            }),
        )
    }

    /// A pod in this phase without conditions.
    pub(crate) fn in_phase(name: &str, labels: Value, phase: &str) -> Arc<Pod> {
        pod(name, json!({"metadata": {"labels": labels}, "status": {"phase": phase}}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_useful_pod_goes_first() {
        let now: Timestamp = "1970-01-02T00:00:00Z".parse().expect("a time");
        let with = |name: &str, node: &str, cost: &str| {
            make::pod(
                name,
                json!({
                    "metadata": {
                        "annotations": {"controller.kubernetes.io/pod-deletion-cost": cost},
                        "creationTimestamp": "1970-01-01T00:00:00Z",
                    },
                    "spec": {"nodeName": node},
                    "status": {"phase": "Running", "conditions": [
                        {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"},
                    ]},
                }),
            )
        };
        let mut pods = vec![
            with("lonely", "n2", "0"),
            with("dear", "n1", "5"),
            with("crowded", "n1", "0"),
            make::in_phase("unplaced", json!({}), "Pending"),
        ];
        sort_for_deletion(&mut pods, now);
        let names: Vec<&str> = pods.iter().map(|pod| &*pod.id.name).collect();
        assert_eq!(names, ["unplaced", "crowded", "lonely", "dear"]);
    }
}
