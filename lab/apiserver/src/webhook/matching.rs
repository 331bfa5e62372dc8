//! Whether a webhook is concerned with a request: rules, then selectors.

use gantry_apimachinery::{FieldPath, Selector};
use serde_json::Value;

use super::{Request, ResourceKind};
use crate::Status;
use crate::json::{items, text};

/// The kinds through which admission itself is configured; calling webhooks for them could lock the cluster.
const EXEMPT: &str = "admissionregistration.k8s.io";

/// The kind in which the webhook wants to see the request; `None` if it is not concerned.
pub(super) fn matching_kind<'a>(
    webhook: &Value,
    request: &'a Request<'_>,
) -> Result<Option<&'a ResourceKind>, Status> {
    if request.kind.group == EXEMPT {
        return Ok(None);
    }
    let rules = items(&webhook["rules"]);
    let exact = rules.iter().any(|rule| rule_matches(rule, request, &request.kind)).then_some(&request.kind);
    let equivalent = || {
        // `Exact` sees only what was asked for; `Equivalent`, the default, also the same objects elsewhere.
        if webhook["matchPolicy"] == "Exact" {
            return None;
        }
        request.equivalents.iter().find(|kind| rules.iter().any(|rule| rule_matches(rule, request, kind)))
    };
    let Some(kind) = exact.or_else(equivalent) else { return Ok(None) };
    let selected = namespace_selected(webhook, request)? && object_selected(webhook, request)?;
    Ok(selected.then_some(kind))
}

fn rule_matches(rule: &Value, request: &Request<'_>, kind: &ResourceKind) -> bool {
    let has = |list: &str, wanted: &str| items(&rule[list]).iter().any(|item| item == "*" || item == wanted);
    has("operations", request.operation.name())
        && has("apiGroups", &kind.group)
        && has("apiVersions", &kind.version)
        && scope_matches(text(&rule["scope"]), request)
        && items(&rule["resources"])
            .iter()
            .any(|pattern| resource_matches(text(pattern), &kind.resource, request.subresource))
}

fn scope_matches(scope: &str, request: &Request<'_>) -> bool {
    // A Namespace is itself cluster-scoped although requests for it carry its name as namespace.
    let namespaced = !request.namespace.is_empty() && !is_namespace(request);
    match scope {
        "Namespaced" => namespaced,
        "Cluster" => !namespaced,
        _ => true,
    }
}

fn is_namespace(request: &Request<'_>) -> bool {
    request.kind.group.is_empty() && request.kind.resource == "namespaces"
}

/// `pods`, `pods/status`, `pods/*`, `*`, `*/scale`, `*/*`. Without a slash no subresource is meant.
fn resource_matches(pattern: &str, resource: &str, subresource: &str) -> bool {
    let (left, right) = match pattern {
        "*/*" => return true,
        _ => pattern.split_once('/').unwrap_or((pattern, "")),
    };
    (left == "*" || left == resource) && (right == "*" || right == subresource)
}

fn selector(webhook: &Value, name: &str) -> Result<Selector, Status> {
    if webhook[name].is_null() {
        return Ok(Selector::everything());
    }
    Selector::from_label_selector(&webhook[name], &FieldPath::new(name)).map_err(Status::internal)
}

/// Namespaced objects are selected by their namespace, Namespaces by their own labels, others always.
fn namespace_selected(webhook: &Value, request: &Request<'_>) -> Result<bool, Status> {
    let selector = selector(webhook, "namespaceSelector")?;
    if selector.is_everything() {
        return Ok(true);
    }
    if is_namespace(request) {
        let object = if request.object.is_null() { &request.old } else { &request.object };
        return Ok(selector.matches_object(object));
    }
    match &request.namespace_object {
        Some(namespace) => Ok(selector.matches_object(namespace)),
        None => Ok(request.namespace.is_empty()),
    }
}

/// An object is selected if it is before or after the request.
fn object_selected(webhook: &Value, request: &Request<'_>) -> Result<bool, Status> {
    let selector = selector(webhook, "objectSelector")?;
    let selects = |object: &Value| !object.is_null() && selector.matches_object(object);
    Ok(selector.is_everything() || selects(&request.object) || selects(&request.old))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::User;
    use crate::webhook::Operation;
    use crate::webhook::tests::pod_request;

    #[test]
    fn resources_match_with_their_subresources_only_when_named() {
        for (pattern, resource, subresource, expected) in [
            ("pods", "pods", "", true),
            ("pods", "pods", "status", false),
            ("pods/status", "pods", "status", true),
            ("pods/status", "pods", "", false),
            ("pods/*", "pods", "status", true),
            ("pods/*", "pods", "", true),
            ("*", "nodes", "", true),
            ("*", "nodes", "status", false),
            ("*/scale", "deployments", "scale", true),
            ("*/*", "deployments", "scale", true),
        ] {
            assert_eq!(
                resource_matches(pattern, resource, subresource),
                expected,
                "{pattern} {resource}/{subresource}"
            );
        }
    }

    #[test]
    fn a_webhook_is_concerned_when_rules_and_selectors_say_so() {
        let user = User::admin();
        let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
        let with = |name: &str, value: Value| {
            let mut webhook = json!({"rules": [rule]});
            webhook[name] = value;
            webhook
        };
        let rule_with = |name: &str, value: Value| {
            let mut rule = rule.clone();
            rule[name] = value;
            json!({"rules": [rule]})
        };
        let select = |key: &str, value: &str| json!({"matchLabels": {key: value}});
        for (case, webhook, expected) in [
            ("the rule fits", json!({"rules": [rule]}), true),
            ("no rules", json!({}), false),
            ("another operation", rule_with("operations", json!(["DELETE"])), false),
            ("any operation", rule_with("operations", json!(["*"])), true),
            ("another group", rule_with("apiGroups", json!(["apps"])), false),
            ("any version", rule_with("apiVersions", json!(["*"])), true),
            ("namespaced objects", rule_with("scope", json!("Namespaced")), true),
            ("cluster-scoped objects", rule_with("scope", json!("Cluster")), false),
            ("the namespace is selected", with("namespaceSelector", select("team", "a")), true),
            ("another namespace is selected", with("namespaceSelector", select("team", "b")), false),
            ("the object is selected", with("objectSelector", select("app", "x")), true),
            ("another object is selected", with("objectSelector", select("app", "y")), false),
        ] {
            let request = pod_request(&user, Operation::Create);
            assert_eq!(matching_kind(&webhook, &request).unwrap().is_some(), expected, "{case}");
        }
    }

    #[test]
    fn an_equivalent_version_is_seen_unless_the_match_must_be_exact() {
        let user = User::admin();
        let mut request = pod_request(&user, Operation::Create);
        request.equivalents.push(ResourceKind::new("x.io", "v2", "Pod", "pods"));
        let rule =
            json!({"operations": ["*"], "apiGroups": ["x.io"], "apiVersions": ["v2"], "resources": ["*"]});
        let webhook = json!({"rules": [rule]});
        assert_eq!(matching_kind(&webhook, &request).unwrap().unwrap().version, "v2");
        let webhook = json!({"rules": [rule], "matchPolicy": "Exact"});
        assert_eq!(matching_kind(&webhook, &request).unwrap(), None);
    }

    #[test]
    fn the_configuration_of_admission_is_never_sent_to_webhooks() {
        let user = User::admin();
        let mut request = pod_request(&user, Operation::Create);
        request.kind =
            ResourceKind::new(EXEMPT, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
        let rule =
            json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]});
        assert_eq!(matching_kind(&json!({"rules": [rule]}), &request).unwrap(), None);
    }
}
