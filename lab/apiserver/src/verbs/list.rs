//! GET of a collection.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gantry_apimachinery::{FieldError, FieldPath, ResourceName};
use http::Response;
use serde_json::{Value, json};

use super::filter::Filter;
use super::view::View;
use crate::Status;
use crate::http::{Body, Call, encoded, json_response, status_response};
use crate::store::{HistoryError, Object, ObjectKey, to_bytes};

/// Where a list goes on: opaque to clients.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Continue {
    /// Of which revision; `None` after the revision of the first page was forgotten.
    revision: Option<u64>,
    after: ObjectKey,
}

impl Continue {
    pub(crate) fn encode(&self) -> String {
        let token = json!({"r": self.revision, "ns": &*self.after.namespace, "n": &*self.after.name});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    pub(crate) fn decode(token: &str) -> Result<Self, Status> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok();
        let value: Option<Value> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let parts = value.as_ref().and_then(|v| Some((v["ns"].as_str()?, v["n"].as_str()?, v["r"].as_u64())));
        let (namespace, name, revision) =
            parts.ok_or_else(|| Status::bad_request("continue key is not valid"))?;
        Ok(Self { revision, after: ObjectKey::new(namespace, name) })
    }
}

pub(crate) fn list(call: &Call) -> Result<Response<Body>, Status> {
    let view = View::of(call)?;
    let filter = Filter::of(call)?;
    let limit = match call.query.get("limit") {
        None => usize::MAX,
        Some(text) => match text.parse::<usize>() {
            Ok(0) => usize::MAX,
            Ok(limit) => limit,
            Err(_) => {
                return Err(Status::bad_request(format!(
                    "strconv.ParseInt: parsing {text:?}: invalid syntax"
                )));
            }
        },
    };
    let start = call.query.get("continue").map(Continue::decode).transpose()?;
    let revision = wanted_revision(call, start.as_ref())?;
    let namespace = Some(call.path.namespace.as_str()).filter(|namespace| !namespace.is_empty());
    let listed = call.server.store.list(&call.resource.id, namespace, revision);
    let (objects, revision) = match listed {
        Ok(listed) => listed,
        Err(HistoryError::Future { current }) => {
            return Err(too_large_revision(revision.unwrap_or_default(), current));
        }
        Err(HistoryError::Compacted { .. }) => return Ok(expired(start)),
    };
    let from = match &start {
        None => 0,
        Some(start) => objects.partition_point(|object| object.key() <= start.after),
    };
    let mut selected: Vec<&Object> = Vec::new();
    let mut more = None;
    for (i, object) in objects.iter().enumerate().skip(from) {
        if !filter.matches(object) {
            continue;
        }
        if selected.len() == limit {
            more = selected.last().map(|last| (last.key(), objects.len() - i));
            break;
        }
        selected.push(object);
    }
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if let Some((after, remaining)) = more {
        metadata["continue"] = Continue { revision: Some(revision), after }.encode().into();
        if filter.is_everything() {
            metadata["remainingItemCount"] = remaining.into();
        }
    }
    encoded(200, view.encoding, view.list(&metadata, &selected))
}

/// The revision at which to read; `None` is now.
fn wanted_revision(call: &Call, start: Option<&Continue>) -> Result<Option<u64>, Status> {
    let given = call.query.get("resourceVersion");
    let exact = match call.query.get("resourceVersionMatch") {
        None | Some("NotOlderThan") => false,
        Some("Exact") => true,
        Some(other) => {
            let path = FieldPath::new("resourceVersionMatch");
            return Err(invalid_options(FieldError::not_supported(
                &path,
                other,
                ["Exact", "NotOlderThan", ""],
            )));
        }
    };
    if given.is_none() && call.query.get("resourceVersionMatch").is_some() && start.is_none() {
        let rule = "resourceVersionMatch is forbidden unless resourceVersion is provided";
        return Err(invalid_options(FieldError::forbidden(&FieldPath::new("resourceVersionMatch"), rule)));
    }
    let parsed = given.map(|text| text.parse::<u64>().map_err(|_| invalid_revision(text))).transpose()?;
    if let Some(start) = start {
        if parsed.is_some_and(|revision| revision > 0) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        return Ok(start.revision);
    }
    match parsed {
        Some(revision) if exact => Ok(Some(revision)),
        Some(revision) if revision > call.server.store.revision() => Ok(Some(revision)),
        _ => Ok(None),
    }
}

/// 410. A list that had begun gets a token with which it can go on, at the price of consistency.
fn expired(start: Option<Continue>) -> Response<Body> {
    let Some(start) = start else {
        return status_response(&Status::expired("The resourceVersion for the provided list is too old."));
    };
    let status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new \
         list without the continue parameter, or use the continue token in this response to retrieve the \
         remainder of the results. Continuing with the provided token results in an inconsistent list - objects \
         that were created, modified, or deleted between the time the first chunk was returned and now may show \
         up in the list.",
    );
    let mut value = status.to_value();
    value["metadata"]["continue"] = Continue { revision: None, ..start }.encode().into();
    json_response(status.code, to_bytes(&value))
}

/// 504: the client has seen a state that this server has not.
pub(super) fn too_large_revision(wanted: u64, current: u64) -> Status {
    Status::timeout(&format!("Too large resource version: {wanted}, current: {current}"))
}

pub(super) fn invalid_revision(text: &str) -> Status {
    Status::bad_request(format!("invalid resource version: {}", unreadable_revision(text)))
}

pub(super) fn unreadable_revision(text: &str) -> String {
    format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax")
}

/// 422: options of a list or watch that contradict each other.
pub(super) fn invalid_options(error: FieldError) -> Status {
    Status::invalid(ResourceName { group: "meta.k8s.io", resource: "ListOptions", name: "" }, &[error])
}
