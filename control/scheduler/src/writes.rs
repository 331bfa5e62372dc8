//! What the scheduler writes into the cluster.

use std::fmt::Write as _;

use gantry_api::{ASSIGNMENT_ANNOTATION, encode_assignment};
use gantry_model::{Assignment, PodKey};
use http::Request;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

/// The name under which events are reported.
const COMPONENT: &str = "gantry-scheduler";

/// The longest message that an Event may have.
const MAX_MESSAGE: usize = 1024;

const JSON: &str = "application/json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Whether an Event reports something as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventType {
    Normal,
    Warning,
}

/// An Event about a pod.
#[derive(Debug)]
pub(crate) struct PodEvent {
    pub(crate) pod: PodKey,
    pub(crate) kind: EventType,
    /// In CamelCase, for machines.
    pub(crate) reason: String,
    pub(crate) message: String,
    /// What follows the pod's name in the Event's. An Event of the same name is not written twice.
    pub(crate) suffix: String,
}

pub(crate) async fn bind(client: &Client, pod: &PodKey, assignment: &Assignment) -> Result<(), kube::Error> {
    let mut metadata = json!({ "name": &*pod.name, "namespace": &*pod.namespace, "uid": &*pod.uid });
    if !assignment.containers.is_empty() {
        metadata["annotations"] = json!({ ASSIGNMENT_ANNOTATION: encode_assignment(assignment) });
    }
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": { "apiVersion": "v1", "kind": "Node", "name": &*assignment.node },
    });
    send(client, "POST", &format!("{}/binding", pod_path(pod)), JSON, &body).await.map(drop)
}

/// The pod as the API server has it.
pub(crate) async fn read_pod(client: &Client, pod: &PodKey) -> Result<kube::api::DynamicObject, kube::Error> {
    let request = Request::get(pod_path(pod)).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request(request).await
}

/// Sets the condition that says why a pod waits.
pub(crate) async fn set_unscheduled(
    client: &Client,
    pod: &PodKey,
    message: &str,
    since: &str,
) -> Result<(), kube::Error> {
    let body = json!({
        // Refuses to touch another pod of the same name.
        "metadata": { "uid": &*pod.uid },
        "status": { "conditions": [{
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastProbeTime": null,
            "lastTransitionTime": since,
        }] },
    });
    send(client, "PATCH", &format!("{}/status", pod_path(pod)), STRATEGIC, &body).await.map(drop)
}

pub(crate) async fn write_event(
    client: &Client,
    event: &PodEvent,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let PodEvent { pod, kind, reason, message, suffix } = event;
    let now = whole_seconds(now);
    let body = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": event_name(&pod.name, suffix), "namespace": &*pod.namespace },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod",
            "namespace": &*pod.namespace, "name": &*pod.name, "uid": &*pod.uid,
        },
        "type": match kind { EventType::Normal => "Normal", EventType::Warning => "Warning" },
        "reason": reason,
        "message": shortened(message),
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": { "component": COMPONENT },
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
    });
    let path = format!("/api/v1/namespaces/{}/events", pod.namespace);
    send(client, "POST", &path, JSON, &body).await.map(drop)
}

/// Time stamps of the core API carry no fractions.
pub(crate) fn whole_seconds(now: Timestamp) -> String {
    Timestamp::from_second(now.as_second()).map_or_else(|_| now.to_string(), |seconds| seconds.to_string())
}

/// `memory-is-host-memory` becomes `MemoryIsHostMemory`.
pub(crate) fn camel_case(slug: &str) -> String {
    let words = slug.split('-').map(|word| {
        let (first, rest) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
        first.to_uppercase() + rest
    });
    words.collect()
}

fn event_name(pod: &str, suffix: &str) -> String {
    // 253 bytes are the limit of a name; a pod's own name may already be that long.
    let room = 253_usize.saturating_sub(suffix.len() + 1);
    let mut name: String = pod.chars().take(room).collect();
    let _ = write!(name, ".{suffix}");
    name
}

fn shortened(message: &str) -> String {
    if message.len() <= MAX_MESSAGE {
        return message.to_owned();
    }
    let end = message.floor_char_boundary(MAX_MESSAGE - '…'.len_utf8());
    format!("{}…", &message[..end])
}

fn pod_path(pod: &PodKey) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

async fn send(
    client: &Client,
    method: &str,
    path: &str,
    content_type: &str,
    body: &Value,
) -> Result<Value, kube::Error> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content_type)
        .body(body.to_string().into_bytes())
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_to_what_an_event_holds() {
        assert_eq!(shortened("short"), "short");
        let long = shortened(&"ü".repeat(1000));
        assert!(long.len() <= MAX_MESSAGE && long.ends_with("ü…"), "{}", long.len());
        assert_eq!(event_name(&"p".repeat(253), "0011").len(), 253);
        assert_eq!(camel_case("memory-is-host-memory"), "MemoryIsHostMemory");
    }
}
