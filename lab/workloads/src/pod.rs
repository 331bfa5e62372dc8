//! What the controllers need to know of a pod, read once when the pod changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::controllers::quota::Usage;
use crate::json::{Fields as _, Owner, string_map};
use crate::store::Ref;

/// The finalizer by which a Job makes sure that it counts a pod before it is gone.
pub(crate) const JOB_FINALIZER: &str = "batch.kubernetes.io/job-tracking";

/// Where a pod is in its life. The order is the order of preference for deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Pending,
    Unknown,
    Running,
    Succeeded,
    Failed,
}

/// A port that a container names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) protocol: String,
    pub(crate) number: i64,
}

/// A container that ended, and with which exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) container: String,
    pub(crate) code: i64,
}

/// A pod, reduced to what decisions depend on.
#[derive(Debug, Clone)]
pub(crate) struct Pod {
    pub(crate) id: Ref,
    pub(crate) uid: String,
    pub(crate) version: u64,
    pub(crate) owner: Option<Owner>,
    pub(crate) owner_references: Vec<Value>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) created: Timestamp,
    pub(crate) deleting: bool,
    pub(crate) phase: Phase,
    /// The node it is bound to; empty while it waits.
    pub(crate) node: String,
    /// The node that its affinity names by field, as pods of a DaemonSet have it; else `node`.
    pub(crate) target_node: String,
    pub(crate) ready: bool,
    /// Since when the Ready condition has its status.
    pub(crate) ready_since: Option<Timestamp>,
    /// True conditions by type, as `podFailurePolicy` asks for them.
    pub(crate) true_conditions: Vec<String>,
    pub(crate) restarts: i64,
    pub(crate) restarts_in_place: bool,
    pub(crate) deletion_cost: i64,
    pub(crate) completion_index: Option<u32>,
    pub(crate) exits: Vec<Exit>,
    /// When the last container ended, for pods that ended.
    pub(crate) finished: Option<Timestamp>,
    pub(crate) ips: Vec<String>,
    pub(crate) ports: Vec<Port>,
    pub(crate) hostname: String,
    pub(crate) subdomain: String,
    pub(crate) usage: Arc<Usage>,
}

impl Pod {
    /// Reads a pod. `before` is what was known of it, whose immutable parts are taken over.
    pub(crate) fn read(value: &Value, before: Option<&Self>) -> Self {
        let uid = value.uid();
        let before = before.filter(|before| before.uid == uid);
        let references = value.list("/metadata/ownerReferences");
        let ready = value.condition("Ready");
        let statuses =
            value.list("/status/containerStatuses").iter().chain(value.list("/status/initContainerStatuses"));
        let mut exits = Vec::new();
        let mut finished = None;
        let mut restarts = 0;
        for status in statuses {
            restarts += status.int("/restartCount").unwrap_or(0);
            if let Some(code) = status.int("/state/terminated/exitCode") {
                exits.push(Exit { container: status.text("/name").to_owned(), code });
                finished = finished.max(status.time("/state/terminated/finishedAt"));
            }
        }
        let node = value.text("/spec/nodeName").to_owned();
        Self {
            id: Ref::new(value.namespace(), value.name()),
            uid: uid.to_owned(),
            version: value.version(),
            owner: Owner::controlling(references),
            owner_references: references.to_vec(),
            labels: value.labels(),
            finalizers: texts(value.list("/metadata/finalizers")),
            created: value.created(),
            deleting: value.is_deleting(),
            phase: match value.text("/status/phase") {
                "Running" => Phase::Running,
                "Succeeded" => Phase::Succeeded,
                "Failed" => Phase::Failed,
                "Unknown" => Phase::Unknown,
                _ => Phase::Pending,
            },
            target_node: if node.is_empty() { affinity_node(value) } else { node.clone() },
            node,
            ready: ready.is_some_and(|condition| condition.text("/status") == "True"),
            ready_since: ready.and_then(|condition| condition.time("/lastTransitionTime")),
            true_conditions: value
                .list("/status/conditions")
                .iter()
                .filter(|condition| condition.text("/status") == "True")
                .map(|condition| condition.text("/type").to_owned())
                .collect(),
            restarts,
            restarts_in_place: value.text("/spec/restartPolicy") == "OnFailure",
            deletion_cost: value
                .annotation("controller.kubernetes.io/pod-deletion-cost")
                .and_then(|cost| cost.parse().ok())
                .unwrap_or(0),
            completion_index: value
                .annotation("batch.kubernetes.io/job-completion-index")
                .and_then(|index| index.parse().ok()),
            exits,
            finished,
            ips: match value.list("/status/podIPs") {
                [] => Some(value.text("/status/podIP"))
                    .filter(|ip| !ip.is_empty())
                    .map(str::to_owned)
                    .into_iter()
                    .collect(),
                ips => ips.iter().map(|ip| ip.text("/ip").to_owned()).collect(),
            },
            ports: match before {
                Some(before) => before.ports.clone(),
                None => ports(value),
            },
            hostname: value.text("/spec/hostname").to_owned(),
            subdomain: value.text("/spec/subdomain").to_owned(),
            usage: match before {
                Some(before) => before.usage.clone(),
                None => Arc::new(Usage::of_pod(value)),
            },
        }
    }

    /// Neither ended nor being deleted.
    pub(crate) fn is_active(&self) -> bool {
        !self.deleting && !self.has_ended()
    }

    /// Succeeded or failed.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Ready for at least `min_ready_seconds`.
    pub(crate) fn is_available(&self, min_ready_seconds: i64, now: Timestamp) -> bool {
        self.ready && self.seconds_to_available(min_ready_seconds, now) == Some(0)
    }

    /// How long until the pod, which is ready, is available; 0 if it is.
    pub(crate) fn seconds_to_available(&self, min_ready_seconds: i64, now: Timestamp) -> Option<i64> {
        if !self.ready {
            return None;
        }
        if min_ready_seconds == 0 {
            return Some(0);
        }
        let since = self.ready_since?;
        Some((min_ready_seconds - (now.as_second() - since.as_second())).max(0))
    }

    /// Whether the Job's finalizer is on it.
    pub(crate) fn is_tracked(&self) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == JOB_FINALIZER)
    }

    pub(crate) fn label(&self, key: &str) -> &str {
        self.labels.get(key).map_or("", String::as_str)
    }
}

fn texts(values: &[Value]) -> Vec<String> {
    values.iter().filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

fn affinity_node(pod: &Value) -> String {
    let terms = pod
        .list("/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
    let fields = terms.iter().flat_map(|term| term.list("/matchFields"));
    let by_name = fields.filter(|field| field.text("/key") == "metadata.name");
    by_name.map(|field| field.text("/values/0")).next().unwrap_or("").to_owned()
}

fn ports(pod: &Value) -> Vec<Port> {
    let sidecars = pod
        .list("/spec/initContainers")
        .iter()
        .filter(|container| container.text("/restartPolicy") == "Always");
    let containers = pod.list("/spec/containers").iter().chain(sidecars);
    containers
        .flat_map(|container| container.list("/ports"))
        .map(|port| Port {
            name: port.text("/name").to_owned(),
            protocol: Some(port.text("/protocol")).filter(|p| !p.is_empty()).unwrap_or("TCP").to_owned(),
            number: port.int("/containerPort").unwrap_or(0),
        })
        .collect()
}

/// Metadata and spec of a pod made from a template by its controller.
pub(crate) fn from_template(template: &Value, namespace: &str, owner: &Value) -> Value {
    let mut metadata = serde_json::json!({"namespace": namespace, "ownerReferences": [owner]});
    for key in ["labels", "annotations"] {
        let entries = string_map(template.at(&format!("/metadata/{key}")));
        if !entries.is_empty() {
            metadata[key] = serde_json::json!(entries);
        }
    }
    let finalizers = template.list("/metadata/finalizers");
    if !finalizers.is_empty() {
        metadata["finalizers"] = finalizers.to_vec().into();
    }
    serde_json::json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.at("/spec"),
    })
}
