//! DELETE.

use std::sync::Arc;

use gantry_apimachinery::{FieldError, FieldPath, ResourceName};
use gantry_kubetypes::Types;
use http::Response;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::filter::Filter;
use super::{meta, view, webhooks, write};
use crate::Status;
use crate::http::{Body, Call, decode, is_dry_run, json_response};
use crate::json::{items, map_at, text};
use crate::store::{CommitError, Object, ObjectKey, to_bytes};

/// `metav1.DeleteOptions`, as far as they matter here.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    grace_seconds: Option<i64>,
    uid: Option<String>,
    pub(super) revision: Option<String>,
    propagation: Option<Propagation>,
    pub(super) dry_run: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Propagation {
    Background,
    Foreground,
    Orphan,
}

impl Propagation {
    /// Who must act before the object may go.
    fn finalizer(self) -> Option<&'static str> {
        match self {
            Self::Background => None,
            Self::Foreground => Some("foregroundDeletion"),
            Self::Orphan => Some("orphan"),
        }
    }
}

impl DeleteOptions {
    /// Those of a request: in its query, else in its body, which may be empty.
    fn read(call: &Call, bytes: &[u8]) -> Result<Self, Status> {
        let body = if bytes.iter().all(u8::is_ascii_whitespace) {
            Value::Null
        } else {
            decode(&call.headers, bytes)?.object
        };
        Self::of(call, &body)
    }

    pub(super) fn of(call: &Call, body: &Value) -> Result<Self, Status> {
        // A precondition that cannot be read must not be taken for none.
        let types = Types::builtin();
        if !body.is_null()
            && let Some(kind) = types.kind("meta.k8s.io", "v1", "DeleteOptions")
            && let Some(fault) = types.check(kind, body).mistyped.first()
        {
            return Err(Status::bad_request(format!(
                "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {fault}"
            )));
        }
        let string = |value: &Value| value.as_str().map(str::to_owned);
        let grace = match call.query.get("gracePeriodSeconds") {
            Some(given) => Some(given.parse::<i64>().map_err(|_| {
                Status::bad_request(format!("invalid gracePeriodSeconds: {given:?} is not a number"))
            })?),
            None => body["gracePeriodSeconds"].as_i64(),
        };
        if body["orphanDependents"].is_boolean() && body["propagationPolicy"].is_string() {
            let rule = "orphanDependents and deletionPropagation cannot be both set";
            return Err(Status::invalid(
                ResourceName { group: "meta.k8s.io", resource: "DeleteOptions", name: "" },
                &[FieldError::invalid(
                    &FieldPath::new("propagationPolicy"),
                    body["propagationPolicy"].clone(),
                    rule,
                )],
            ));
        }
        let orphan = body["orphanDependents"].as_bool().map(|o| if o { "Orphan" } else { "Background" });
        let propagation = call
            .query
            .get("propagationPolicy")
            .or_else(|| body["propagationPolicy"].as_str())
            .or(orphan)
            .map(|policy| match policy {
                "Background" => Ok(Propagation::Background),
                "Foreground" => Ok(Propagation::Foreground),
                "Orphan" => Ok(Propagation::Orphan),
                other => Err(Status::invalid(
                    ResourceName { group: "meta.k8s.io", resource: "DeleteOptions", name: "" },
                    &[FieldError::not_supported(
                        &FieldPath::new("propagationPolicy"),
                        other,
                        ["Foreground", "Background", "Orphan", "nil"],
                    )],
                )),
            })
            .transpose()?;
        Ok(Self {
            grace_seconds: grace,
            uid: string(&body["preconditions"]["uid"]),
            revision: string(&body["preconditions"]["resourceVersion"]),
            propagation,
            dry_run: call.dry_run() || is_dry_run(items(&body["dryRun"]).iter().map(text))?,
        })
    }
}

/// How far a deletion got.
enum Deleted {
    /// The object is gone.
    Gone(Arc<Object>),
    /// It waits for its grace period or finalizers.
    Waiting(Arc<Object>),
}

pub(crate) async fn delete(call: &Call, bytes: &[u8]) -> Result<Response<Body>, Status> {
    delete_with(call, &DeleteOptions::read(call, bytes)?).await
}

pub(crate) async fn delete_with(call: &Call, options: &DeleteOptions) -> Result<Response<Body>, Status> {
    match delete_object(call, &call.path.namespace, &call.path.name, options).await? {
        Deleted::Waiting(object) => view::respond(call, 200, &object),
        Deleted::Gone(object) => {
            let status = Status::success(call.resource.named(&call.path.name), object.meta("uid"));
            Ok(json_response(200, to_bytes(&status.to_value())))
        }
    }
}

/// Deletes what a list with the same selectors would show, and shows it.
pub(crate) async fn delete_collection(call: &Call, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let options = DeleteOptions::read(call, bytes)?;
    let filter = Filter::of(call)?;
    let namespace = Some(call.path.namespace.as_str()).filter(|namespace| !namespace.is_empty());
    let (objects, revision) = call.server.store.list(&call.resource.id, namespace, None).unwrap_or_default();
    let selected: Vec<&Object> =
        objects.iter().map(Arc::as_ref).filter(|object| filter.matches(object)).collect();
    for object in &selected {
        match delete_object(call, object.meta("namespace"), object.meta("name"), &options).await {
            Err(status) if status.code == 404 => {}
            result => {
                result?;
            }
        }
    }
    let view = view::View::of(call)?;
    let metadata = json!({"resourceVersion": revision.to_string()});
    crate::http::encoded(200, view.encoding, view.list(&metadata, &selected))
}

async fn delete_object(
    call: &Call,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted, Status> {
    let resource = &call.resource;
    let store = &call.server.store;
    let key = ObjectKey::new(namespace, name);
    loop {
        let old = store.get(&resource.id, &key).ok_or_else(|| resource.not_found(name))?;
        check_preconditions(call, name, &old, options)?;
        webhooks::validate(call, None, Some(&old.value)).await?;
        let new = mark_deleted(call, &old.value, options);
        let gone = new["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
            && meta::finalizers(&new).is_empty()
            && (new["kind"] != "Namespace" || items(&new["spec"]["finalizers"]).is_empty());
        if options.dry_run {
            let object = write::unsaved(new, old.managed.clone());
            return Ok(if gone { Deleted::Gone(object) } else { Deleted::Waiting(object) });
        }
        let result = if gone {
            // Watches see the object as it was; nobody needs the marks of a deletion that is complete.
            store.delete(&resource.id, &old).map(Deleted::Gone)
        } else if meta::same(&new, &old.value) {
            return Ok(Deleted::Waiting(old));
        } else {
            store.update(&resource.id, new, old.revision).map(Deleted::Waiting)
        };
        match result {
            Err(CommitError::Stale) => {}
            Ok(deleted) => {
                match &deleted {
                    Deleted::Gone(object) => write::committed(call, object, true),
                    Deleted::Waiting(object) => write::committed(call, object, false),
                }
                return Ok(deleted);
            }
            Err(error) => return Err(write::commit_failure(call, name, error)),
        }
    }
}

pub(super) fn check_preconditions(
    call: &Call,
    name: &str,
    old: &Object,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let check = |what: &str, wanted: &Option<String>, actual: &str| match wanted {
        // Kubernetes names the kind here, not the resource.
        Some(wanted) if wanted != actual => Err(Status::conflict(
            ResourceName { resource: &call.resource.kind, ..call.resource.named(name) },
            &format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({actual}). {}",
                if what == "UID" {
                    "The object might have been deleted and then recreated"
                } else {
                    "The object might have been modified"
                }
            ),
        )),
        _ => Ok(()),
    };
    check("UID", &options.uid, old.meta("uid"))?;
    check("ResourceVersion", &options.revision, old.meta("resourceVersion"))
}

/// The object with the marks of its deletion.
fn mark_deleted(call: &Call, old: &Value, options: &DeleteOptions) -> Value {
    let mut new = old.clone();
    let is_pod = &*call.resource.id == "pods";
    let grace = if is_pod { pod_grace(old, options.grace_seconds) } else { 0 };
    let metadata = map_at(&mut new, &["metadata"]);
    let pending = metadata.get("deletionGracePeriodSeconds").and_then(Value::as_i64);
    let marked = metadata.contains_key("deletionTimestamp");
    // A second deletion can only bring the end nearer.
    if !marked || pending.is_some_and(|pending| grace < pending) {
        let now = call.server.options.clock.now();
        let end = now.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(now);
        metadata.insert("deletionTimestamp".into(), gantry_kit::stamp(end).into());
        metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
        if let Some(generation) = metadata.get("generation").and_then(Value::as_u64) {
            metadata.insert("generation".into(), (generation + 1).into());
        }
    }
    if let Some(finalizer) = options.propagation.and_then(Propagation::finalizer) {
        let list = metadata.entry("finalizers").or_insert_with(|| json!([]));
        if let Some(list) = list.as_array_mut()
            && !list.iter().any(|present| present == finalizer)
        {
            list.push(finalizer.into());
        }
    }
    if call.resource.id.as_ref() == "namespaces" {
        map_at(&mut new, &["status"]).insert("phase".into(), "Terminating".into());
    }
    new
}

/// Seconds that a pod has to end. One that runs nowhere needs none.
fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let finished = matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed");
    if text(&pod["spec"]["nodeName"]).is_empty() || finished {
        return 0;
    }
    let default = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    // Negative values mean the least that is not "now", as in Kubernetes.
    match asked.unwrap_or(default) {
        grace if grace < 0 => 1,
        grace => grace,
    }
}
