//! What events about pods point to. They are written by the controllers' recorder.

use kube::Resource as _;
use serde_json::{Value, json};

/// What an event about a pod points to; `field` is a container as in `spec.containers{name}`.
pub(crate) fn pod_reference(pod: &k8s_openapi::api::core::v1::Pod, field: Option<&str>) -> Value {
    let metadata = pod.meta();
    let mut reference = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
    });
    if let Some(field) = field {
        reference["fieldPath"] = field.into();
    }
    reference
}
