//! `AdmissionReview` (`admission.k8s.io/v1`): the question and the answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gantry_apimachinery::json_patch;
use serde_json::{Map, Value, json};

use super::{Request, ResourceKind};
use crate::Status;
use crate::json::{items, text};

/// The longest warnings that are passed on, all together, as kube-apiserver bounds them.
const MAX_WARNING: usize = 4096;

/// What a webhook said.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    /// A refusal in the webhook's words.
    pub(crate) denial: Option<Status>,
    /// The changed object, in the version that the webhook saw.
    pub(crate) object: Option<Value>,
    pub(crate) warnings: Vec<String>,
}

/// The question in the version that the webhook's rules name.
pub(super) fn question(request: &Request<'_>, kind: &ResourceKind, uid: &str) -> Value {
    let convert =
        |object: &Value| if object.is_null() { Value::Null } else { (request.convert)(object, kind) };
    let mut body = json!({
        "uid": uid,
        "kind": kind.kind_json(),
        "resource": kind.resource_json(),
        "requestKind": request.kind.kind_json(),
        "requestResource": request.kind.resource_json(),
        "operation": request.operation.name(),
        "userInfo": {"username": request.user.name, "groups": request.user.groups},
        "object": convert(&request.object),
        "oldObject": convert(&request.old),
        "dryRun": request.dry_run,
        "options": request.options,
    });
    for (field, value) in [
        ("subResource", request.subresource),
        ("requestSubResource", request.subresource),
        ("name", request.name),
        ("namespace", request.namespace),
    ] {
        if !value.is_empty() {
            body[field] = value.into();
        }
    }
    json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": body})
}

/// Reads the answer. `Err` is a webhook that does not keep to the protocol, which counts as a failed call.
pub(crate) fn verdict(
    webhook: &str,
    uid: &str,
    body: &[u8],
    seen: &Value,
    mutating: bool,
) -> Result<Verdict, String> {
    let invalid = |why: String| format!("received invalid webhook response: {why}");
    let answer: Value = serde_json::from_slice(body).map_err(|e| invalid(format!("not valid JSON: {e}")))?;
    let kind = (text(&answer["apiVersion"]), text(&answer["kind"]));
    if kind != ("admission.k8s.io/v1", "AdmissionReview") {
        return Err(invalid(format!(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {}, Kind={}",
            kind.0, kind.1
        )));
    }
    let response = &answer["response"];
    if !response.is_object() {
        return Err(invalid("webhook response is absent".to_owned()));
    }
    if response["uid"] != uid {
        return Err(invalid(format!("expected response.uid={uid:?}, got {:?}", text(&response["uid"]))));
    }
    let warnings = bounded(items(&response["warnings"]).iter().map(text));
    if response["allowed"] != true {
        let denial = Some(denial(webhook, &response["status"]));
        return Ok(Verdict { denial, object: None, warnings });
    }
    let patch = text(&response["patch"]);
    if patch.is_empty() || !mutating {
        return Ok(Verdict { denial: None, object: None, warnings });
    }
    match text(&response["patchType"]) {
        "JSONPatch" => {}
        other => {
            return Err(invalid(format!(
                "webhook returned response.patch but patchType {other:?}, must be \"JSONPatch\""
            )));
        }
    }
    let patch = STANDARD.decode(patch).map_err(|e| invalid(format!("response.patch is not base64: {e}")))?;
    let patch =
        serde_json::from_slice(&patch).map_err(|e| invalid(format!("response.patch is not JSON: {e}")))?;
    let object = json_patch(seen, &patch).map_err(|e| e.to_string())?;
    Ok(Verdict { denial: None, object: Some(object), warnings })
}

/// A refusal as kube-apiserver words it (`ToStatusErr`).
fn denial(webhook: &str, status: &Value) -> Status {
    let denied = format!("admission webhook {webhook:?} denied the request");
    let message = match (text(&status["message"]), text(&status["reason"])) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or_default();
    Status {
        code: if (400..600).contains(&code) { code } else { 400 },
        reason: known_reason(text(&status["reason"])),
        message,
        details: status["details"].as_object().cloned().unwrap_or_else(Map::new),
    }
}

/// `metav1.StatusReason`; clients act on these only.
fn known_reason(reason: &str) -> &'static str {
    const REASONS: &[&str] = &[
        "AlreadyExists",
        "BadRequest",
        "Conflict",
        "Expired",
        "Forbidden",
        "Gone",
        "InternalError",
        "Invalid",
        "MethodNotAllowed",
        "NotAcceptable",
        "NotFound",
        "RequestEntityTooLarge",
        "ServerTimeout",
        "ServiceUnavailable",
        "Timeout",
        "TooManyRequests",
        "Unauthorized",
        "UnsupportedMediaType",
    ];
    REASONS.iter().find(|known| **known == reason).copied().unwrap_or_default()
}

fn bounded<'a>(warnings: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut left = MAX_WARNING;
    let mut kept = Vec::new();
    for warning in warnings {
        let short: String = warning.chars().take(left).collect();
        left -= short.chars().count();
        if !short.is_empty() {
            kept.push(short);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::User;
    use crate::webhook::Operation;
    use crate::webhook::tests::pod_request;

    fn read(response: Value) -> Result<Verdict, String> {
        let body =
            json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
        verdict("w.x.io", "u1", body.to_string().as_bytes(), &json!({"a": 1}), true)
    }

    #[test]
    fn the_question_tells_who_does_what_to_which_object() {
        let user = User::admin();
        let asked = question(
            &pod_request(&user, Operation::Create),
            &ResourceKind::new("", "v1", "Pod", "pods"),
            "u1",
        );
        let request = &asked["request"];
        assert_eq!(request["uid"], "u1");
        assert_eq!(request["kind"], json!({"group": "", "version": "v1", "kind": "Pod"}));
        assert_eq!(request["resource"], json!({"group": "", "version": "v1", "resource": "pods"}));
        assert_eq!(request["operation"], "CREATE");
        assert_eq!(request["userInfo"]["username"], "system:admin");
        assert_eq!((&request["namespace"], &request["name"]), (&json!("default"), &json!("p")));
        assert_eq!(request["object"]["metadata"]["name"], "p");
        assert!(request["oldObject"].is_null() && request.get("subResource").is_none());
    }

    #[test]
    fn a_denial_keeps_the_webhooks_words() {
        for (status, code, reason, message) in [
            (Value::Null, 400, "", "admission webhook \"w.x.io\" denied the request without explanation"),
            (
                json!({"code": 403, "reason": "Forbidden", "message": "G1203 no"}),
                403,
                "Forbidden",
                "admission webhook \"w.x.io\" denied the request: G1203 no",
            ),
            (
                json!({"reason": "Mine", "code": 200}),
                400,
                "",
                "admission webhook \"w.x.io\" denied the request: Mine",
            ),
        ] {
            let denial =
                read(json!({"uid": "u1", "allowed": false, "status": status})).unwrap().denial.unwrap();
            assert_eq!((denial.code, denial.reason, denial.message.as_str()), (code, reason, message));
        }
    }

    #[test]
    fn a_patch_changes_the_object_and_warnings_are_passed_on() {
        let patch = STANDARD.encode(json!([{"op": "add", "path": "/b", "value": 2}]).to_string());
        let verdict = read(json!({
            "uid": "u1", "allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": ["careful", ""],
        }))
        .unwrap();
        assert_eq!(verdict.object, Some(json!({"a": 1, "b": 2})));
        assert_eq!(verdict.warnings, ["careful"]);
    }

    #[test]
    fn answers_that_break_the_protocol_are_failed_calls() {
        let bad_patch = STANDARD.encode(json!([{"op": "remove", "path": "/absent"}]).to_string());
        for (response, expected) in [
            (json!(null), "webhook response is absent"),
            (json!({"uid": "other", "allowed": true}), "expected response.uid=\"u1\", got \"other\""),
            (json!({"uid": "u1", "allowed": true, "patch": "e30="}), "must be \"JSONPatch\""),
            (json!({"uid": "u1", "allowed": true, "patchType": "JSONPatch", "patch": "?"}), "not base64"),
            (json!({"uid": "u1", "allowed": true, "patchType": "JSONPatch", "patch": bad_patch}), "absent"),
        ] {
            let error = read(response).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let error = verdict("w", "u", b"<html>", &Value::Null, true).unwrap_err();
        assert!(error.contains("not valid JSON"), "{error}");
        let error = verdict("w", "u", b"{}", &Value::Null, true).unwrap_err();
        assert!(error.contains("expected webhook response of admission.k8s.io/v1"), "{error}");
    }
}
