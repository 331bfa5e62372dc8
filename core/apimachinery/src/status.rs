//! The answers that are no object: `metav1.Status`, with the codes, reasons and words of `k8s.io/apimachinery/pkg/api/errors`.
//!
//! kubectl prints `message`; clients decide by `reason` and `code`.

use serde_json::{Map, Value, json};

use crate::FieldError;

/// A resource or kind and its group, with the name of the object, as messages cite them: `deployments.apps "web"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceName<'a> {
    /// The API group; empty for the core group.
    pub group: &'a str,
    /// The plural resource (`pods`); the kind (`Pod`) for [`Status::invalid`].
    pub resource: &'a str,
    /// The object's name; empty for the whole collection.
    pub name: &'a str,
}

impl ResourceName<'_> {
    /// `pods`, `deployments.apps`.
    fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    fn details(&self) -> Map<String, Value> {
        [("name", self.name), ("group", self.group), ("kind", self.resource)]
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect()
    }
}

/// A refusal (or, from [`Status::success`], a success) of the API server. It is an error type: a handler returns it as `Err`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason, such as `NotFound`; empty for a success.
    pub reason: &'static str,
    /// What a person reads.
    pub message: String,
    /// `details` of the answer: name, group, kind, uid, causes, retryAfterSeconds; often empty.
    pub details: Map<String, Value>,
}

impl Status {
    fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Map::new() }
    }

    fn about(self, resource: ResourceName<'_>) -> Self {
        Self { details: resource.details(), ..self }
    }

    /// The answer to a deletion that is complete; `uid` is that of the deleted object.
    pub fn success(resource: ResourceName<'_>, uid: &str) -> Self {
        let mut status = Self::new(200, "", "").about(resource);
        if !uid.is_empty() {
            status.details.insert("uid".to_owned(), uid.into());
        }
        status
    }

    /// 404: the object does not exist.
    pub fn not_found(resource: ResourceName<'_>) -> Self {
        let message = format!("{} {:?} not found", resource.qualified(), resource.name);
        Self::new(404, "NotFound", message).about(resource)
    }

    /// 404: no such path or resource.
    pub fn unknown_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    /// 409: an object of this name exists.
    pub fn already_exists(resource: ResourceName<'_>) -> Self {
        let message = format!("{} {:?} already exists", resource.qualified(), resource.name);
        Self::new(409, "AlreadyExists", message).about(resource)
    }

    /// 409: the request contradicts the state of the object, for the reason given.
    pub fn conflict(resource: ResourceName<'_>, reason: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {:?}: {reason}",
            resource.qualified(),
            resource.name
        );
        Self::new(409, "Conflict", message).about(resource)
    }

    /// 409: the request was made from an old `resourceVersion`.
    pub fn stale(resource: ResourceName<'_>) -> Self {
        Self::conflict(
            resource,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// 409: an apply would change fields that others own. `causes` are one for each field.
    pub fn apply_conflict(causes: Vec<Value>, message: String) -> Self {
        let mut status = Self::new(409, "Conflict", message);
        status.details.insert("causes".to_owned(), causes.into());
        status
    }

    /// 500: a failure to which Kubernetes gives no reason.
    pub fn unclassified(message: String) -> Self {
        Self::new(500, "", message)
    }

    /// 422: fields of the object break rules. `kind.resource` is the kind (`Pod`), as the API server cites it here.
    pub fn invalid(kind: ResourceName<'_>, errors: &[FieldError]) -> Self {
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let list = if let [only] = &texts[..] { only.clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{} {:?} is invalid: {list}", kind.qualified(), kind.name);
        let mut status = Self::new(422, "Invalid", message).about(kind);
        status.details.insert("causes".to_owned(), errors.iter().map(FieldError::to_cause).collect());
        status
    }

    /// 400: the request cannot be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401: nobody that the server knows.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: not allowed, by authorisation, admission or quota, for the reason given.
    pub fn forbidden(resource: ResourceName<'_>, reason: &str) -> Self {
        let message = if resource.name.is_empty() {
            format!("{} is forbidden: {reason}", resource.qualified())
        } else {
            format!("{} {:?} is forbidden: {reason}", resource.qualified(), resource.name)
        };
        Self::new(403, "Forbidden", message).about(resource)
    }

    /// 405: the resource does not have this verb (`delete`, `watch` …).
    pub fn method_not_allowed(resource: ResourceName<'_>, verb: &str) -> Self {
        let message = format!("{verb} is not supported on resources of kind {:?}", resource.qualified());
        Self::new(405, "MethodNotAllowed", message).about(resource)
    }

    /// 406: no representation that the client accepts; `supported` are media types.
    pub fn not_acceptable(supported: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", supported.join(", "));
        Self::new(406, "NotAcceptable", message)
    }

    /// 410: a `resourceVersion` or continue token that is too old; the client lists anew.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 413: the body is too large.
    pub fn request_too_large(message: &str) -> Self {
        Self::new(413, "RequestEntityTooLarge", format!("Request entity is too large: {message}"))
    }

    /// 415: a body in a format that the server does not read; `supported` are media types.
    pub fn unsupported_media_type(supported: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            supported.join(", ")
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 429: try again after `retry_after_seconds`; also an eviction that a disruption budget holds up.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        let mut status = Self::new(429, "TooManyRequests", message);
        if retry_after_seconds > 0 {
            status.details.insert("retryAfterSeconds".to_owned(), retry_after_seconds.into());
        }
        status
    }

    /// 500: the server failed.
    pub fn internal(error: impl std::fmt::Display) -> Self {
        let mut status = Self::new(500, "InternalError", format!("Internal error occurred: {error}"));
        status.details.insert("causes".to_owned(), json!([{ "message": error.to_string() }]));
        status
    }

    /// 503: the server, or one that it asks, is not there.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::new(503, "ServiceUnavailable", message)
    }

    /// 504: it took too long.
    pub fn timeout(message: &str) -> Self {
        Self::new(504, "Timeout", format!("Timeout: {message}"))
    }

    /// Whether the status tells of a success.
    pub fn is_success(&self) -> bool {
        self.code < 400
    }

    /// The JSON object `kind: Status` to answer with.
    pub fn to_value(&self) -> Value {
        let outcome = if self.is_success() { "Success" } else { "Failure" };
        let mut object = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": outcome });
        if !self.message.is_empty() {
            object["message"] = self.message.as_str().into();
        }
        if !self.reason.is_empty() {
            object["reason"] = self.reason.into();
        }
        if !self.details.is_empty() {
            object["details"] = Value::Object(self.details.clone());
        }
        if !self.is_success() {
            object["code"] = self.code.into();
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FieldPath;

    const POD: ResourceName<'_> = ResourceName { group: "", resource: "pods", name: "p1" };
    const WEB: ResourceName<'_> = ResourceName { group: "apps", resource: "deployments", name: "web" };

    #[test]
    fn messages_reasons_and_codes_are_those_of_the_api_server() {
        let pods = ResourceName { name: "", ..POD };
        let cases = [
            (Status::not_found(POD), 404, "NotFound", "pods \"p1\" not found"),
            (Status::not_found(WEB), 404, "NotFound", "deployments.apps \"web\" not found"),
            (Status::already_exists(POD), 409, "AlreadyExists", "pods \"p1\" already exists"),
            (
                Status::stale(WEB),
                409,
                "Conflict",
                "Operation cannot be fulfilled on deployments.apps \"web\": the object has been modified; please \
                 apply your changes to the latest version and try again",
            ),
            (
                Status::forbidden(POD, "exceeded quota"),
                403,
                "Forbidden",
                "pods \"p1\" is forbidden: exceeded quota",
            ),
            (Status::forbidden(pods, "no"), 403, "Forbidden", "pods is forbidden: no"),
            (
                Status::method_not_allowed(POD, "delete"),
                405,
                "MethodNotAllowed",
                "delete is not supported on resources of kind \"pods\"",
            ),
            (Status::internal("boom"), 500, "InternalError", "Internal error occurred: boom"),
            (Status::timeout("slow"), 504, "Timeout", "Timeout: slow"),
        ];
        for (status, code, reason, message) in cases {
            assert_eq!((status.code, status.reason, status.message.as_str()), (code, reason, message));
        }
    }

    #[test]
    fn the_json_has_the_form_that_clients_read() {
        assert_eq!(
            Status::not_found(POD).to_value(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "NotFound",
                "code": 404, "message": "pods \"p1\" not found", "details": { "name": "p1", "kind": "pods" },
            })
        );
        assert_eq!(
            Status::success(POD, "u1").to_value(),
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": { "name": "p1", "kind": "pods", "uid": "u1" },
            })
        );
        let busy = Status::too_many_requests("later", 7).to_value();
        assert_eq!(busy["details"], json!({ "retryAfterSeconds": 7 }));
    }

    #[test]
    fn an_invalid_object_lists_every_cause() {
        let kind = ResourceName { group: "apps", resource: "Deployment", name: "web" };
        let one = FieldError::invalid(&FieldPath::new("spec.replicas"), -1, "must be positive");
        let two = FieldError::required(&FieldPath::new("spec.selector"), "");
        let status = Status::invalid(kind, std::slice::from_ref(&one));
        assert_eq!(
            status.message,
            "Deployment.apps \"web\" is invalid: spec.replicas: Invalid value: -1: must be positive"
        );
        let status = Status::invalid(kind, &[one, two]);
        assert_eq!(
            status.message,
            "Deployment.apps \"web\" is invalid: [spec.replicas: Invalid value: -1: must be positive, \
             spec.selector: Required value]"
        );
        assert_eq!(
            status.details["causes"][1],
            json!({ "reason": "FieldValueRequired", "message": "Required value", "field": "spec.selector" })
        );
    }
}
