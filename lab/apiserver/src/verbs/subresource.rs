//! Status, scale and the other parts of objects that have paths of their own.

use std::sync::Arc;

use gantry_apimachinery::{FieldError, FieldPath, ResourceName, Selector};
use http::Response;
use serde_json::{Value, json};

use super::delete::{DeleteOptions, check_preconditions, delete_with};
use super::patch::Patch;
use super::update::{Changed, Part, modify};
use super::{get, meta, owners, view};
use crate::Status;
use crate::http::{Body, Call, Decoded, decode, json_response};
use crate::json::{items, map_at, set, text};
use crate::registry::ScalePaths;
use crate::store::{Object, ObjectKey, to_bytes};

/// A read or write of a part whose body is the object itself.
pub(crate) async fn part(
    call: &Call,
    part: Part,
    verb: &str,
    bytes: &[u8],
) -> Result<Response<Body>, Status> {
    let updated = match verb {
        "get" => return get(call),
        "patch" => {
            let patch = Patch::of(call, bytes)?;
            modify(call, part, &[], |current, managed| patch.apply(call, current, managed)).await?
        }
        _ => {
            let Decoded { mut object, duplicates } = decode(&call.headers, bytes)?;
            meta::check_type(call, &mut object)?;
            meta::check_namespace(call, &mut object)?;
            owners::check_options(call, "UpdateOptions", false)?;
            modify(call, part, &duplicates, |_, _| Ok(object.clone().into())).await?
        }
    };
    view::respond(call, 200, &updated)
}

/// `autoscaling/v1 Scale` of any object that has replicas.
pub(crate) async fn scale(
    call: &Call,
    paths: &ScalePaths,
    verb: &str,
    bytes: &[u8],
) -> Result<Response<Body>, Status> {
    let object = match verb {
        "get" => {
            let key = ObjectKey::new(&call.path.namespace, &call.path.name);
            let found = call.server.store.get(&call.resource.id, &key);
            found.ok_or_else(|| call.resource.not_found(&call.path.name))?
        }
        "patch" => {
            let patch = Patch::of(call, bytes)?;
            rescale(call, paths, patch.is_apply(), |scale| patch.apply_to_scale(scale)).await?
        }
        _ => {
            let mut scale = decode(&call.headers, bytes)?.object;
            meta::check_type_is(&mut scale, "autoscaling/v1", "Scale")?;
            owners::check_options(call, "UpdateOptions", false)?;
            rescale(call, paths, false, |_| Ok(scale.clone())).await?
        }
    };
    let mut value = object.value.clone();
    call.resource.to_served(&mut value);
    Ok(json_response(200, to_bytes(&scale_of(paths, &value)?)))
}

async fn rescale(
    call: &Call,
    paths: &ScalePaths,
    is_apply: bool,
    change: impl Fn(&Value) -> Result<Value, Status>,
) -> Result<Arc<Object>, Status> {
    modify(call, Part::Main, &[], |current, managed| {
        let scale = change(&scale_of(paths, current)?)?;
        let field = FieldPath::new("spec.replicas");
        let replicas = match &scale["spec"]["replicas"] {
            Value::Null => 0,
            given => given.as_i64().ok_or_else(|| {
                invalid_scale(call, FieldError::type_invalid(&field, given.clone(), "must be an integer"))
            })?,
        };
        if replicas < 0 {
            return Err(invalid_scale(
                call,
                FieldError::invalid(&field, replicas, "must be greater than or equal to 0"),
            ));
        }
        let path: Vec<&str> = split(&paths.spec_replicas);
        if is_apply {
            // Of the object itself no more is applied than its replicas.
            let mut config = owners::nothing(call);
            set(&mut config, &path, replicas);
            return owners::apply(call, managed, current, &config).map(Changed::applied);
        }
        let mut new = current.clone();
        set(&mut new, &path, replicas);
        // A stale Scale is a stale object.
        if let Some(revision) = scale["metadata"]["resourceVersion"].as_str() {
            set(&mut new, &["metadata", "resourceVersion"], revision);
        }
        Ok(new.into())
    })
    .await
}

fn invalid_scale(call: &Call, error: FieldError) -> Status {
    Status::invalid(ResourceName { group: "autoscaling", resource: "Scale", name: &call.path.name }, &[error])
}

fn scale_of(paths: &ScalePaths, object: &Value) -> Result<Value, Status> {
    let number = |path: &str| crate::json::at(object, &split(path)).as_i64().unwrap_or(0);
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            map_at(&mut metadata, &[]).insert(field.to_owned(), value.clone());
        }
    }
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {},
        "status": {"replicas": number(&paths.status_replicas)},
    });
    // Go leaves out what is zero.
    match number(&paths.spec_replicas) {
        0 => {}
        replicas => scale["spec"]["replicas"] = replicas.into(),
    }
    if let Some(path) = &paths.selector {
        let selector = match crate::json::at(object, &split(path)) {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            map if object["kind"] == "ReplicationController" => {
                selector_text(Selector::from_map(map, &FieldPath::new(path)))?
            }
            selector => selector_text(Selector::from_label_selector(selector, &FieldPath::new(path)))?,
        };
        scale["status"]["selector"] = selector.into();
    }
    Ok(scale)
}

fn selector_text(selector: Result<Selector, FieldError>) -> Result<String, Status> {
    selector.map(|selector| selector.to_string()).map_err(Status::internal)
}

fn split(path: &str) -> Vec<&str> {
    path.trim_start_matches('.').split('.').collect()
}

/// `pods/NAME/binding`: the one way in which a pod gets its node.
pub(crate) async fn bind(call: &Call, pod: &str, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let mut binding = decode(&call.headers, bytes)?.object;
    meta::check_type_is(&mut binding, "v1", "Binding")?;
    let named = text(&binding["metadata"]["name"]);
    if !named.is_empty() && named != pod {
        return Err(Status::bad_request(format!(
            "the name of the Binding ({named}) does not match the name of the pod on the URL ({pod})"
        )));
    }
    let node = text(&binding["target"]["name"]).to_owned();
    if node.is_empty() {
        return Err(Status::invalid(
            ResourceName { group: "", resource: "Binding", name: pod },
            &[FieldError::required(&FieldPath::new("target.name"), "")],
        ));
    }
    let conflict =
        |why: &str| Status::conflict(ResourceName { group: "", resource: "pods/binding", name: pod }, why);
    let now = meta::now(&call.server.options.clock);
    modify(call, Part::Everything, &[], |current, _| {
        let uid = text(&binding["metadata"]["uid"]);
        if !uid.is_empty() && uid != text(&current["metadata"]["uid"]) {
            return Err(conflict(&format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                text(&current["metadata"]["uid"])
            )));
        }
        let revision = text(&binding["metadata"]["resourceVersion"]);
        if !revision.is_empty() && revision != text(&current["metadata"]["resourceVersion"]) {
            return Err(conflict("the object has been modified; please apply your changes to the latest version and try again"));
        }
        if current["metadata"].get("deletionTimestamp").is_some() {
            return Err(conflict(&format!("pod {pod} is being deleted, cannot be assigned to a host")));
        }
        let assigned = text(&current["spec"]["nodeName"]);
        if !assigned.is_empty() {
            return Err(conflict(&format!("pod {pod} is already assigned to node {assigned:?}")));
        }
        if !items(&current["spec"]["schedulingGates"]).is_empty() {
            return Err(conflict(&format!("pod {pod} has non-empty .spec.schedulingGates")));
        }
        let mut new = current.clone();
        set(&mut new, &["spec", "nodeName"], node.as_str());
        for field in ["annotations", "labels"] {
            if let Some(given) = binding["metadata"][field].as_object() {
                map_at(&mut new, &["metadata", field])
                    .extend(given.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
        }
        set_condition(
            &mut new,
            json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now}),
        );
        Ok(new.into())
    })
    .await?;
    Ok(created())
}

/// Adds a condition, or replaces the one of its type.
fn set_condition(object: &mut Value, condition: Value) {
    let conditions = map_at(object, &["status"]).entry("conditions").or_insert_with(|| json!([]));
    if let Some(list) = conditions.as_array_mut() {
        list.retain(|present| present["type"] != condition["type"]);
        list.push(condition);
    }
}

/// `pods/NAME/eviction`: a deletion that disruption budgets may refuse.
pub(crate) async fn evict(call: &Call, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let mut eviction = decode(&call.headers, bytes)?.object;
    let version = text(&eviction["apiVersion"]).to_owned();
    let expected = if version == "policy/v1beta1" { "policy/v1beta1" } else { "policy/v1" };
    meta::check_type_is(&mut eviction, expected, "Eviction")?;
    let name = call.path.name.as_str();
    let key = ObjectKey::new(&call.path.namespace, name);
    let pod = call.server.store.get(&call.resource.id, &key).ok_or_else(|| call.resource.not_found(name))?;
    let mut options = DeleteOptions::of(call, &eviction["deleteOptions"])?;
    check_preconditions(call, name, &pod, &options)?;
    // What follows changes the pod itself.
    options.revision = None;
    spend_budget(call, &pod, options.dry_run)?;
    if !options.dry_run {
        let now = meta::now(&call.server.options.clock);
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": now,
        });
        modify(call, Part::Everything, &[], |current, _| {
            let mut new = current.clone();
            set_condition(&mut new, condition.clone());
            Ok(new.into())
        })
        .await?;
    }
    delete_with(call, &options).await?;
    Ok(created())
}

/// Takes one disruption from the pod's budget, if it has one.
fn spend_budget(call: &Call, pod: &Object, dry_run: bool) -> Result<(), Status> {
    let phase = text(&pod.value["status"]["phase"]);
    if matches!(phase, "Succeeded" | "Failed" | "Pending")
        || pod.value["metadata"].get("deletionTimestamp").is_some()
    {
        return Ok(());
    }
    let store = &call.server.store;
    let id = crate::store::ResourceId::from("poddisruptionbudgets.policy");
    loop {
        let (budgets, _) = store.list(&id, Some(&call.path.namespace), None).unwrap_or_default();
        let mut matching = budgets.iter().filter(|budget| {
            Selector::from_label_selector(&budget.value["spec"]["selector"], &FieldPath::new("spec.selector"))
                .is_ok_and(|selector| selector.matches_object(&pod.value))
        });
        let Some(budget) = matching.next() else { return Ok(()) };
        if matching.next().is_some() {
            return Err(Status::internal(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ));
        }
        let status = &budget.value["status"];
        let number = |field: &str| status[field].as_i64().unwrap_or(0);
        if number("observedGeneration") < budget.value["metadata"]["generation"].as_i64().unwrap_or(0) {
            return Err(refused_eviction(
                10,
                &format!(
                    "The disruption budget {} is still being processed by the server.",
                    budget.meta("name")
                ),
            ));
        }
        let allowed = number("disruptionsAllowed");
        if allowed <= 0 {
            return Err(refused_eviction(
                0,
                &format!(
                    "The disruption budget {} needs {} healthy pods and has {} currently",
                    budget.meta("name"),
                    number("desiredHealthy"),
                    number("currentHealthy")
                ),
            ));
        }
        if dry_run {
            return Ok(());
        }
        let mut new = budget.value.clone();
        set(&mut new, &["status", "disruptionsAllowed"], allowed - 1);
        set(&mut new, &["status", "disruptedPods", pod.meta("name")], meta::now(&call.server.options.clock));
        match store.update(&id, new, budget.revision) {
            Err(crate::store::CommitError::Stale | crate::store::CommitError::Missing) => {}
            result => {
                return result
                    .map(|_| ())
                    .map_err(|error| super::write::commit_failure(call, pod.meta("name"), error));
            }
        }
    }
}

fn refused_eviction(retry_seconds: u32, why: &str) -> Status {
    let mut status = Status::too_many_requests(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        retry_seconds,
    );
    status.details.insert("causes".into(), json!([{"reason": "DisruptionBudget", "message": why}]));
    status
}

fn created() -> Response<Body> {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
    json_response(201, to_bytes(&status))
}
