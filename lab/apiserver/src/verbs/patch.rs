//! PATCH in its four forms.

use gantry_apimachinery::{Error, ManagedFields, json_patch, merge_patch, strategic_merge_patch};
use gantry_kubetypes::Types;
use http::Response;
use serde_json::Value;

use super::create::create_object;
use super::owners::{self, Owners};
use super::update::{Changed, Part, modify};
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
    let updated = modify(call, Part::Main, &[], |current, managed| patch.apply(call, current, managed)).await;
    match updated {
        Err(status) if status.code == 404 && patch.form == Form::Apply => {
            let (mut object, managed) =
                owners::apply(call, &ManagedFields::NONE, &owners::nothing(call), &patch.body)?;
            map_at(&mut object, &["metadata"]).insert("name".into(), call.path.name.as_str().into());
            let created = create_object(call, object, &[], Owners::Applied(managed)).await?;
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
        owners::check_options(call, "PatchOptions", form == Form::Apply)?;
        if form == Form::Apply {
            check_apply(call, &body)?;
        }
        Ok(Self { form, body })
    }

    /// The patched object, in the version of the request.
    pub(crate) fn apply(
        &self,
        call: &Call,
        current: &Value,
        managed: &ManagedFields,
    ) -> Result<Changed, Status> {
        let resource = &call.resource;
        if self.is_apply() {
            return owners::apply(call, managed, current, &self.body).map(Changed::applied);
        }
        let type_name = builtin_type(&resource.group, &resource.version, &resource.kind);
        if !self.concerns_owners() {
            return self.apply_as(type_name, current).map(Changed::from);
        }
        let mut current = current.clone();
        if !managed.is_empty() {
            map_at(&mut current, &["metadata"]).insert("managedFields".into(), managed.to_value());
        }
        self.apply_as(type_name, &current).map(Changed::from)
    }

    pub(crate) fn is_apply(&self) -> bool {
        self.form == Form::Apply
    }

    /// Whether the patch may read or write `metadata.managedFields`.
    fn concerns_owners(&self) -> bool {
        let reaches = |path: &Value| {
            let path = text(path);
            path.is_empty() || path == "/metadata" || path.starts_with("/metadata/managedFields")
        };
        match self.form {
            Form::Json => crate::json::items(&self.body)
                .iter()
                .any(|operation| reaches(&operation["path"]) || operation.get("from").is_some_and(reaches)),
            _ => self.body["metadata"].get("managedFields").is_some(),
        }
    }

    pub(crate) fn apply_to_scale(&self, scale: &Value) -> Result<Value, Status> {
        self.apply_as(builtin_type("autoscaling", "v1", "Scale"), scale)
    }

    /// `type_name` is `None` for custom resources.
    fn apply_as(&self, type_name: Option<&str>, current: &Value) -> Result<Value, Status> {
        let patched = match (self.form, type_name) {
            (Form::Json, _) => json_patch(current, &self.body),
            (Form::Strategic, Some(name)) => {
                strategic_merge_patch(Types::builtin(), name, current, &self.body)
            }
            // Of a Scale, the replicas are what can be applied; whose they are is told by the object itself.
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
    owners::check_config(call, body)?;
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
