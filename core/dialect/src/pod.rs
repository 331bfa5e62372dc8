//! Pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_apimachinery::{FieldPath, effective_requests, is_extended_resource};
use gantry_model::{
    ContainerKind, ContainerRequest, Group, NodeConstraints, PodKey, Reason, Request, ResourceOrigin,
    Resources,
};
use serde_json::Value;

use crate::fields::{count, enter, get, gpus, invalid, list, object, quantity, refused, text};
use crate::names::sharing;
use crate::placement::{constraints, tolerations};
use crate::{
    GPU_RESOURCE, GROUP_MIN_MEMBER_ANNOTATION, GROUP_NAME_ANNOTATION, VOLCANO_GROUP_NAME_ANNOTATION,
};

/// Reads a `Pod` object: what it asks for, in whatever vocabulary.
///
/// The rules are Kubernetes' own: an extended resource needs a limit, its request defaults to the limit and must equal it, and its
/// amount is a whole number; init containers count at their peak, sidecars beside everything after them. A pod that an API
/// server has stored passes; one from a file may not.
///
/// # Errors
/// The first thing that is wrong, with field, value, rule and fix.
pub fn parse(pod: &Value) -> Result<Request, Reason> {
    read(pod, Stage::Waiting)
}

/// Reads a `Pod` object that has its node. Where it may run is settled, and what it holds must not be hidden by what somebody
/// has written beside that since: constraints are not read, and annotations that name no group say that there is none.
///
/// # Errors
/// As [`parse`].
pub fn parse_bound(pod: &Value) -> Result<Request, Reason> {
    read(pod, Stage::Bound)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Bound,
}

fn read(pod: &Value, stage: Stage) -> Result<Request, Reason> {
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    let [at_metadata, at_spec] = ["metadata", "spec"].map(FieldPath::new);
    let named =
        |field: &str| text(metadata, field, &at_metadata).map(|name| name.filter(|name| !name.is_empty()));
    let key = PodKey {
        namespace: named("namespace")?.unwrap_or("default").into(),
        // Before it is stored, a pod may have no name yet, only the beginning of one.
        name: named("name")?.or(named("generateName")?).unwrap_or_default().into(),
        uid: named("uid")?.unwrap_or_default().into(),
    };
    if object(pod, "spec", &FieldPath::root())?.is_none() {
        return Err(invalid(&at_spec, &Value::Null, "a pod needs a spec"));
    }
    let mut origins = BTreeMap::new();
    let mut containers = Vec::new();
    for (field, always) in [("initContainers", ContainerKind::Init), ("containers", ContainerKind::App)] {
        for (index, value) in list(spec, field, &at_spec)?.iter().enumerate() {
            let path = at_spec.child(field).index(index);
            let restarts = text(value, "restartPolicy", &path)? == Some("Always");
            let kind =
                if restarts && always == ContainerKind::Init { ContainerKind::Sidecar } else { always };
            containers.push(container(value, kind, &path, &mut origins)?);
        }
    }
    let mut total = Resources { pods: 1, ..Resources::default() };
    let mut counted = 0;
    for (name, amount) in effective_requests(spec).map_err(|error| refused(&error))? {
        // A pod is one pod, whatever it says.
        if name != "pods" {
            enter(&mut total, &mut counted, &name, &amount, &at_spec.child("containers").key(&name))?;
        }
    }
    let gates = list(spec, "schedulingGates", &at_spec)?.iter().filter_map(|gate| gate["name"].as_str());
    let gpus = Request::gpus_at_once(&containers).ok_or_else(|| Reason::AmountOutOfRange {
        field: at_spec.child("containers").key(GPU_RESOURCE).to_string(),
        value: counted.to_string(),
    })?;
    let priority = match get(spec, "priority") {
        None => 0,
        Some(value) => value
            .as_i64()
            .and_then(|priority| i32::try_from(priority).ok())
            .ok_or_else(|| invalid(&at_spec.child("priority"), value, "must be a whole number of 32 bits"))?,
    };
    let (is_bound, group) = (stage == Stage::Bound, group(metadata, &at_metadata));
    Ok(Request {
        pod: key,
        scheduler_name: text(spec, "schedulerName", &at_spec)?.unwrap_or("default-scheduler").into(),
        priority,
        created_s: created(metadata, &at_metadata)?,
        containers,
        gpus,
        total,
        constraints: if is_bound { NodeConstraints::default() } else { constraints(spec, &at_spec)? },
        tolerations: if is_bound { Vec::new() } else { tolerations(spec, &at_spec)? },
        node_name: text(spec, "nodeName", &at_spec)?.filter(|name| !name.is_empty()).map(Into::into),
        gates: gates.map(Into::into).collect(),
        group: if is_bound { group.unwrap_or_default() } else { group? },
        origins,
    })
}

/// The group of pods that the pod is placed with.
fn group(metadata: &Value, at_metadata: &FieldPath) -> Result<Option<Group>, Reason> {
    let Some(annotations) = object(metadata, "annotations", at_metadata)? else { return Ok(None) };
    let annotation = |key: &str| annotations.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let names = [VOLCANO_GROUP_NAME_ANNOTATION, GROUP_NAME_ANNOTATION];
    let Some(name) = names.into_iter().find_map(annotation) else { return Ok(None) };
    let namespace = text(metadata, "namespace", at_metadata)?.unwrap_or("default");
    let min_members = match annotation(GROUP_MIN_MEMBER_ANNOTATION) {
        None => 1,
        Some(text) => text.parse().map_err(|_| {
            let field = at_metadata.child("annotations").key(GROUP_MIN_MEMBER_ANNOTATION);
            invalid(&field, &Value::from(text), "must be a whole number of pods")
        })?,
    };
    Ok(Some(Group { name: format!("{namespace}/{name}").into(), min_members }))
}

fn container(
    value: &Value,
    kind: ContainerKind,
    path: &FieldPath,
    origins: &mut BTreeMap<Arc<str>, ResourceOrigin>,
) -> Result<ContainerRequest, Reason> {
    let name = text(value, "name", path)?.unwrap_or_default().into();
    let mut request = ContainerRequest { name, kind, gpus: 0 };
    if object(value, "resources", path)?.is_none() {
        return Ok(request);
    }
    let (resources, path) = (&value["resources"], path.child("resources"));
    let (at_limits, at_requests) = (path.child("limits"), path.child("requests"));
    let limits = object(resources, "limits", &path)?;
    let requests = object(resources, "requests", &path)?;
    for (resource, asked) in requests.into_iter().flatten().filter(|(name, _)| is_extended_resource(name)) {
        let asked_amount = quantity(asked, &at_requests.key(resource))?;
        count(&asked_amount, &at_requests.key(resource))?;
        let Some(limit) = limits.and_then(|limits| limits.get(resource)) else {
            return Err(Reason::LimitMissing { field: path.to_string(), resource: resource.as_str().into() });
        };
        if asked_amount != quantity(limit, &at_limits.key(resource))? {
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            return Err(Reason::RequestDiffersFromLimit {
                field: path.to_string(),
                resource: resource.as_str().into(),
                request: plain(asked),
                limit: plain(limit),
            });
        }
    }
    for (resource, limit) in limits.into_iter().flatten().filter(|(name, _)| is_extended_resource(name)) {
        let path = at_limits.key(resource);
        let amount = quantity(limit, &path)?;
        count(&amount, &path)?;
        if resource == GPU_RESOURCE {
            request.gpus = gpus(&amount, &path)?;
        } else if !amount.is_zero() {
            let origin = ResourceOrigin { field: path.to_string(), vocabulary: sharing(resource) };
            origins.entry(resource.as_str().into()).or_insert(origin);
        }
    }
    Ok(request)
}

/// `creationTimestamp` in seconds since 1970; zero where there is none, as before a pod is stored.
fn created(metadata: &Value, path: &FieldPath) -> Result<i64, Reason> {
    let Some(stamp) = text(metadata, "creationTimestamp", path)? else { return Ok(0) };
    seconds_since_1970(stamp).ok_or_else(|| {
        let rule = "must be a time in UTC as in 2006-01-02T15:04:05Z";
        invalid(&path.child("creationTimestamp"), &Value::from(stamp), rule)
    })
}

/// RFC 3339 in the one form that an API server writes: UTC; a fraction of a second is dropped.
fn seconds_since_1970(stamp: &str) -> Option<i64> {
    let (date, time) = stamp.strip_suffix('Z')?.split_once('T')?;
    let time = time.split_once('.').map_or(time, |(seconds, _)| seconds);
    let numbers = |text: &str, separator: char| -> Option<[i64; 3]> {
        let parts: Vec<i64> = text
            .split(separator)
            .map(|part| part.parse::<u16>().ok().map(i64::from))
            .collect::<Option<_>>()?;
        parts.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) = (numbers(date, '-')?, numbers(time, ':')?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days since 1970-01-01 in the Gregorian calendar, counting years from March so that leap days come last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 719_469;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_the_api_server_are_read() {
        for (stamp, seconds) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2000-02-29T12:00:00Z", Some(951_825_600)),
            ("2026-01-01T00:00:00.999999Z", Some(1_767_225_600)),
            ("1969-12-31T23:59:59Z", Some(-1)),
            ("2026-01-01", None),
            ("2026-13-01T00:00:00Z", None),
            ("2026-01-01T00:00:00+02:00", None),
        ] {
            assert_eq!(seconds_since_1970(stamp), seconds, "{stamp}");
        }
    }
}
