//! PATCH in its four forms.

use gantry_apimachinery::{
    Error, FieldError, FieldPath, ResourceName, json_patch, merge_patch, strategic_merge_patch,
};
use gantry_kubetypes::Types;
use http::Response;
use serde_json::Value;

use super::create::create_object;
use super::update::{Part, modify};
use super::view;
use crate::Status;
use crate::http::{Body, Call, content_type, parse_json, parse_yaml};
use crate::json::{map_at, text};

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Merge,
    Strategic,
    Apply,
}

/// A patch that was read and not yet applied.
pub(crate) struct Patch {
    form: Form,
    body: Value,
}

pub(crate) async fn patch(call: &Call, bytes: &[u8]) -> Result<Response<Body>, Status> {
    let patch = Patch::of(call, bytes)?;
    let updated = modify(call, Part::Main, &[], |current| patch.apply(call, current)).await;
    match updated {
        Err(status) if status.code == 404 && patch.form == Form::Apply => {
            let mut object = patch.body;
            map_at(&mut object, &["metadata"]).insert("name".into(), call.path.name.as_str().into());
            let created = create_object(call, object, &[]).await?;
            view::respond(call, 201, &created)
        }
        updated => view::respond(call, 200, &*updated?),
    }
}

impl Patch {
    pub(crate) fn of(call: &Call, bytes: &[u8]) -> Result<Self, Status> {
        let form = match content_type(&call.headers) {
            JSON => Form::Json,
            MERGE => Form::Merge,
            // Custom resources have no Go types from which merge keys could be known.
            STRATEGIC if call.resource.custom.is_none() => Form::Strategic,
            APPLY => Form::Apply,
            _ if call.resource.custom.is_some() => {
                return Err(Status::unsupported_media_type(&[JSON, MERGE, APPLY]));
            }
            _ => return Err(Status::unsupported_media_type(&[JSON, MERGE, STRATEGIC, APPLY])),
        };
        let body = if form == Form::Apply { parse_yaml(bytes)? } else { parse_json(bytes)? };
        if form == Form::Apply {
            check_apply(call, &body)?;
        }
        Ok(Self { form, body })
    }

    /// The patched object, in the version of the request.
    pub(crate) fn apply(&self, call: &Call, current: &Value) -> Result<Value, Status> {
        let resource = &call.resource;
        self.apply_as(builtin_type(&resource.group, &resource.version, &resource.kind), current)
    }

    pub(crate) fn apply_to_scale(&self, scale: &Value) -> Result<Value, Status> {
        self.apply_as(builtin_type("autoscaling", "v1", "Scale"), scale)
    }

    /// `type_name` is `None` for custom resources.
    fn apply_as(&self, type_name: Option<&str>, current: &Value) -> Result<Value, Status> {
        let patched = match (self.form, type_name) {
            (Form::Json, _) => json_patch(current, &self.body),
            (Form::Strategic | Form::Apply, Some(name)) => {
                strategic_merge_patch(Types::builtin(), name, current, &self.body)
            }
            (Form::Merge | Form::Strategic | Form::Apply, _) => merge_patch(current, &self.body),
        };
        patched.map_err(|error| match error {
            Error::MalformedPatch { .. } => Status::bad_request(error.to_string()),
            _ => {
                let mut status = Status::bad_request(format!(
                    "the server rejected our request due to an error in our request: {error}"
                ));
                (status.code, status.reason) = (422, "Invalid");
                status
            }
        })
    }
}

fn check_apply(call: &Call, body: &Value) -> Result<(), Status> {
    let mut errors = Vec::new();
    if call.query.get("fieldManager").is_none() {
        errors.push(FieldError::required(&FieldPath::new("fieldManager"), "is required for apply patch"));
    }
    if !errors.is_empty() {
        return Err(Status::invalid(
            ResourceName { group: "meta.k8s.io", resource: "PatchOptions", name: "" },
            &errors,
        ));
    }
    for (field, expected) in
        [("apiVersion", call.resource.api_version()), ("kind", call.resource.kind.clone())]
    {
        // A Scale is applied with its own kind; everything else must say what it is.
        if call.path.subresource != "scale" && text(&body[field]) != expected {
            return Err(Status::bad_request(format!(
                "the {field} in the data ({}) does not match the expected {field} ({expected})",
                text(&body[field])
            )));
        }
    }
    let name = text(&body["metadata"]["name"]);
    if !name.is_empty() && name != call.path.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            call.path.name
        )));
    }
    Ok(())
}

/// The name of a built-in kind's type.
fn builtin_type(group: &str, version: &str, kind: &str) -> Option<&'static str> {
    let types = Types::builtin();
    types.kind(group, version, kind).map(|kind| types.type_of(kind.type_id).name.as_str())
}
