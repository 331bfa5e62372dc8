//! Writes as admission webhooks see them.

use serde_json::Value;

use crate::Status;
use crate::http::Call;
use crate::json::text;
use crate::registry::Resource;
use crate::store::{ObjectKey, ResourceId};
use crate::webhook::{Operation, Request, ResourceKind, options};

const MUTATING: &str = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
const VALIDATING: &str = "validatingwebhookconfigurations.admissionregistration.k8s.io";

/// Lets mutating webhooks change a new state (in storage version). Tells whether any did.
pub(crate) async fn mutate(call: &Call, object: Value, old: Option<&Value>) -> Result<(Value, bool), Status> {
    let configurations = configurations(call, MUTATING);
    if configurations.is_empty() {
        return Ok((object, false));
    }
    let before = object.clone();
    let convert = |object: &Value, kind: &ResourceKind| convert(call, object, kind);
    let operation = if old.is_some() { Operation::Update } else { Operation::Create };
    let mut request = request(call, operation, object, old, &convert);
    let warnings = call.server.webhooks.mutate(&configurations, &mut request).await?;
    warnings.into_iter().for_each(|warning| call.warn(warning));
    let mut object = std::mem::take(&mut request.object);
    // Webhooks are not shown who owns what, and cannot set it.
    crate::json::remove(&mut object, &["metadata", "managedFields"]);
    call.resource.to_storage(&mut object);
    let changed = object != before;
    Ok((object, changed))
}

/// Asks validating webhooks about a write; without a new state it is a deletion.
pub(crate) async fn validate(call: &Call, object: Option<&Value>, old: Option<&Value>) -> Result<(), Status> {
    let configurations = configurations(call, VALIDATING);
    if configurations.is_empty() {
        return Ok(());
    }
    let convert = |object: &Value, kind: &ResourceKind| convert(call, object, kind);
    let operation = match (object, old) {
        (None, _) => Operation::Delete,
        (Some(_), None) => Operation::Create,
        (Some(_), Some(_)) => Operation::Update,
    };
    let request = request(call, operation, object.cloned().unwrap_or_default(), old, &convert);
    let warnings = call.server.webhooks.validate(&configurations, &request).await?;
    warnings.into_iter().for_each(|warning| call.warn(warning));
    Ok(())
}

/// The configurations in order of their names; none for what the server itself writes, and none for
/// configurations, lest one forbid its own removal.
fn configurations(call: &Call, kind: &str) -> Vec<std::sync::Arc<crate::store::Object>> {
    if call.is_internal || call.resource.group == "admissionregistration.k8s.io" {
        return Vec::new();
    }
    call.server.store.list(&ResourceId::from(kind), None, None).unwrap_or_default().0
}

fn request<'a>(
    call: &'a Call,
    operation: Operation,
    mut object: Value,
    old: Option<&Value>,
    convert: crate::webhook::Convert<'a>,
) -> Request<'a> {
    let resource = &call.resource;
    let mut old = old.cloned().unwrap_or_default();
    for state in [&mut object, &mut old] {
        if !state.is_null() {
            resource.to_served(state);
        }
    }
    let served = call.server.registry.served();
    let equivalents = served
        .all()
        .filter(|other| other.id == resource.id && other.api_version() != resource.api_version())
        .map(|other| kind_of(other))
        .collect();
    let namespaces = ResourceId::from("namespaces");
    let namespace_object = if resource.id == namespaces {
        Some(if object.is_null() { old.clone() } else { object.clone() })
    } else {
        let found = call.server.store.get(&namespaces, &ObjectKey::new("", &call.path.namespace));
        found.map(|namespace| namespace.value.clone())
    };
    Request {
        operation,
        kind: kind_of(resource),
        equivalents,
        convert,
        subresource: &call.path.subresource,
        namespace: &call.path.namespace,
        name: &call.path.name,
        namespace_object,
        user: &call.user,
        dry_run: call.dry_run(),
        options: options(operation, call.query.get("fieldManager"), call.dry_run()),
        object,
        old,
    }
}

fn kind_of(resource: &Resource) -> ResourceKind {
    ResourceKind::new(&resource.group, &resource.version, &resource.kind, &resource.plural)
}

/// The object in the version of `kind`, which is one of those that are served.
fn convert(call: &Call, object: &Value, kind: &ResourceKind) -> Value {
    let served = call.server.registry.served();
    let mut object = object.clone();
    let from = text(&object["apiVersion"]).to_owned();
    let (group, version) = from.split_once('/').unwrap_or(("", &from));
    if let Some(source) = served.find(group, version, &kind.resource) {
        source.to_storage(&mut object);
    }
    if let Some(target) = served.find(&kind.group, &kind.version, &kind.resource) {
        target.to_served(&mut object);
    }
    object
}
