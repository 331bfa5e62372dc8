//! Volcano's resources, as far as they are acted on. Fields that are not named here are kept, so that any manifest of
//! Volcano applies; names, short names and columns are Volcano's own (volcano.sh APIs v1.15).

use serde_json::{Value, json};

use super::{column, count, list, object, string};

/// `batch.volcano.sh/v1alpha1` Job.
pub(super) fn job() -> Value {
    crd(
        ("batch.volcano.sh", "v1alpha1", "Namespaced"),
        json!({"kind": "Job", "listKind": "JobList", "plural": "jobs", "singular": "job", "shortNames": ["vcjob", "vj"]}),
        &[
            column("Status", "string", ".status.state.phase", 0),
            column("minAvailable", "integer", ".status.minAvailable", 0),
            column("Runnings", "integer", ".status.running", 0),
            column("Age", "date", ".metadata.creationTimestamp", 0),
            column("Queue", "string", ".spec.queue", 1),
        ],
        open(object(
            "What is to run.",
            &[],
            json!({
                "schedulerName": string("Scheduler of the pods; volcano if absent."),
                "queue": string("Queue of the job; default if absent."),
                "priorityClassName": string("Priority class of the pods."),
                "minAvailable": count("Pods that must be placed together before any starts."),
                "minSuccess": count("Successes that complete the job."),
                "tasks": list("Pods by role.", open(object("Pods that are alike.", &[], json!({
                    "name": string("Name of the role; part of the pods' names."),
                    "replicas": count("Number of pods."),
                    "minAvailable": count("Pods of this role that must succeed; all if absent."),
                    "template": open(json!({"type": "object", "description": "Template of the pods."})),
                }))), &[]),
            }),
        )),
    )
}

/// `scheduling.volcano.sh/v1beta1` PodGroup.
pub(super) fn pod_group() -> Value {
    crd(
        ("scheduling.volcano.sh", "v1beta1", "Namespaced"),
        json!({
            "kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup",
            "shortNames": ["pg", "podgroup-v1beta1"],
        }),
        &[
            column("STATUS", "string", ".status.phase", 0),
            column("minMember", "integer", ".spec.minMember", 0),
            column("RUNNINGS", "integer", ".status.running", 0),
            column("AGE", "date", ".metadata.creationTimestamp", 0),
            column("QUEUE", "string", ".spec.queue", 1),
        ],
        open(object(
            "Which pods belong together.",
            &[],
            json!({
                "minMember": count("Pods that must be placed together before any starts."),
                "queue": string("Queue of the group; default if absent."),
                "priorityClassName": string("Priority class of the group."),
            }),
        )),
    )
}

/// `scheduling.volcano.sh/v1beta1` Queue.
pub(super) fn queue() -> Value {
    crd(
        ("scheduling.volcano.sh", "v1beta1", "Cluster"),
        json!({
            "kind": "Queue", "listKind": "QueueList", "plural": "queues", "singular": "queue",
            "shortNames": ["q", "queue-v1beta1"],
        }),
        &[
            column("PARENT", "string", ".spec.parent", 0),
            column("AGE", "date", ".metadata.creationTimestamp", 0),
        ],
        open(object(
            "What the queue may have.",
            &[],
            json!({
                "weight": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535, "description": "Share among queues."},
                "parent": string("Queue above this one."),
            }),
        )),
    )
}

fn crd((group, version, scope): (&str, &str, &str), names: Value, columns: &[Value], spec: Value) -> Value {
    let plural = names["plural"].as_str().unwrap_or_default();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": scope,
            "names": names,
            "versions": [{
                "name": version,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": object("", &[], json!({
                    "apiVersion": string("Version of this representation of the object."),
                    "kind": string("Kind of the object."),
                    "metadata": {"type": "object"},
                    "spec": spec,
                    "status": open(json!({"type": "object", "description": "What the controller reports."})),
                }))},
            }],
        },
    })
}

/// A schema that keeps fields which it does not name.
fn open(mut schema: Value) -> Value {
    schema["x-kubernetes-preserve-unknown-fields"] = true.into();
    schema
}
