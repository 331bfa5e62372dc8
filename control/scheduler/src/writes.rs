//! What the scheduler writes into the cluster.

use std::fmt::Write as _;

use gantry_api::{ASSIGNMENT_ANNOTATION, encode_assignment};
use gantry_kit::stamp;
use gantry_model::{Assignment, PodKey};
use http::Request;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use crate::service::is_status;

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

/// Attempts to write a condition while others change the pod.
const ATTEMPTS: u32 = 4;

/// Sets the condition that says why a pod waits, unless it waits no more. `version` is the pod's when it was seen last: a
/// binding that is written meanwhile makes another, and the condition of a bound pod is not overwritten.
pub(crate) async fn set_unscheduled(
    client: &Client,
    pod: &PodKey,
    message: &str,
    since: &str,
    mut version: Option<String>,
) -> Result<(), kube::Error> {
    let path = format!("{}/status", pod_path(pod));
    for _ in 0..ATTEMPTS {
        // The UID refuses to touch another pod of the same name.
        let mut metadata = json!({ "uid": &*pod.uid });
        if let Some(version) = version {
            metadata["resourceVersion"] = version.into();
        }
        let body = json!({
            "metadata": metadata,
            "status": { "conditions": [{
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
                "lastProbeTime": null,
                "lastTransitionTime": since,
            }] },
        });
        match send(client, "PATCH", &path, STRATEGIC, &body).await {
            Err(error) if is_status(&error, 409) => {}
            outcome => return outcome.map(drop),
        }
        let current = read_pod(client, pod).await?;
        let waits = current.data["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
        if !waits || current.metadata.uid.as_deref() != Some(&*pod.uid) {
            return Ok(());
        }
        version = current.metadata.resource_version;
    }
    Ok(())
}

pub(crate) async fn write_event(
    client: &Client,
    event: &PodEvent,
    now: Timestamp,
) -> Result<(), kube::Error> {
    let PodEvent { pod, kind, reason, message, suffix } = event;
    let now = stamp(now);
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
