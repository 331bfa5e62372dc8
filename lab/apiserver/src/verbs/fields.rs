//! Field validation: what an object has that its type does not.

use gantry_apimachinery::{FieldError, FieldPath, ResourceName};
use gantry_kubetypes::Types;
use serde_json::Value;

use crate::Status;
use crate::http::Call;

/// What happens to fields that are unknown or occur twice: `fieldValidation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldValidation {
    Strict,
    Warn,
    Ignore,
}

impl FieldValidation {
    fn of(call: &Call) -> Result<Self, Status> {
        match call.query.get("fieldValidation") {
            Some("Strict") => Ok(Self::Strict),
            None | Some("Warn") => Ok(Self::Warn),
            Some("Ignore") => Ok(Self::Ignore),
            Some(other) => Err(Status::invalid(
                ResourceName { group: "meta.k8s.io", resource: "CreateOptions", name: "" },
                &[FieldError::not_supported(
                    &FieldPath::new("fieldValidation"),
                    other,
                    ["", "Ignore", "Strict", "Warn"],
                )],
            )),
        }
    }
}

/// Removes what the kind does not have, after an error or warnings as the client asked, and null fields of
/// built-in kinds, which are absent ones. Returns the values that their fields do not allow.
///
/// The object is in the version of the request; `duplicates` are the fields that occurred again in its text.
pub(crate) fn check(
    call: &Call,
    object: &mut Value,
    duplicates: &[String],
) -> Result<Vec<FieldError>, Status> {
    let resource = &call.resource;
    let validation = FieldValidation::of(call)?;
    let mut problems: Vec<String> =
        duplicates.iter().map(|path| format!("duplicate field \"{path}\"")).collect();
    let cannot_handle = |why: &str| {
        Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {why}",
            kind = resource.kind,
            version = resource.version
        ))
    };
    let mut errors = Vec::new();
    let types = Types::builtin();
    if let Some(custom) = &resource.custom {
        problems.extend(custom.prune(object).into_iter().map(|path| format!("unknown field \"{path}\"")));
    } else if let Some(kind) = types.kind(&resource.group, &resource.version, &resource.kind) {
        drop_nulls(object);
        let findings = types.check(kind, object);
        if let Some(first) = findings.mistyped.first() {
            return Err(cannot_handle(first));
        }
        problems.extend(findings.warnings());
        if !findings.unknown.is_empty() {
            types.prune(kind, object);
        }
        errors.extend(findings.unsupported.into_iter().map(|found| {
            FieldError::not_supported(
                &FieldPath::new(found.path),
                found.value,
                found.supported.iter().copied(),
            )
        }));
    }
    match validation {
        FieldValidation::Strict if !problems.is_empty() => {
            Err(cannot_handle(&format!("strict decoding error: {}", problems.join(", "))))
        }
        FieldValidation::Warn => {
            problems.into_iter().for_each(|problem| call.warn(problem));
            Ok(errors)
        }
        _ => Ok(errors),
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
