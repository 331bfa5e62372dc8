//! Role-based access control over the Roles and bindings in the store.

use std::sync::Arc;

use gantry_apimachinery::{FieldPath, Selector};
use serde_json::Value;

use super::{Action, MASTERS};
use crate::User;
use crate::json::{items, text};
use crate::store::{Object, ObjectKey, ResourceId, Store};

const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
const CLUSTER_ROLE_BINDINGS: &str = "clusterrolebindings.rbac.authorization.k8s.io";
const ROLES: &str = "roles.rbac.authorization.k8s.io";
const ROLE_BINDINGS: &str = "rolebindings.rbac.authorization.k8s.io";

/// Whether something is allowed, and by which binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) allowed: bool,
    pub(super) reason: String,
}

pub(super) fn is_allowed(store: &Store, user: &User, action: &Action<'_>) -> Decision {
    if is_master(user) {
        return Decision { allowed: true, reason: String::new() };
    }
    let namespace = match action {
        Action::Resource { namespace, .. } => namespace,
        Action::Path { .. } => "",
    };
    for grant in grants(store, user, namespace) {
        if grant.rules.iter().any(|rule| rule_allows(rule, action)) {
            return Decision { allowed: true, reason: grant.reason };
        }
    }
    Decision { allowed: false, reason: String::new() }
}

pub(super) fn is_master(user: &User) -> bool {
    user.groups.iter().any(|group| group == MASTERS)
}

/// The rules that one binding gives to a user.
pub(super) struct Grant {
    pub(super) rules: Vec<Value>,
    reason: String,
}

/// What is granted to the user everywhere and, unless `namespace` is empty, in it.
pub(super) fn grants(store: &Store, user: &User, namespace: &str) -> Vec<Grant> {
    let everywhere = list(store, CLUSTER_ROLE_BINDINGS, None);
    let here = if namespace.is_empty() { Vec::new() } else { list(store, ROLE_BINDINGS, Some(namespace)) };
    everywhere.iter().chain(&here).filter_map(|binding| grant(store, user, binding)).collect()
}

fn grant(store: &Store, user: &User, binding: &Object) -> Option<Grant> {
    let namespace = binding.meta("namespace");
    let subject = items(&binding.value["subjects"]).iter().find(|s| is_subject(s, user, namespace))?;
    let reference = &binding.value["roleRef"];
    let (kind, name) = (text(&reference["kind"]), text(&reference["name"]));
    let rules = match kind {
        "ClusterRole" => cluster_role_rules(store, name),
        _ => get(store, ROLES, namespace, name).map(|role| items(&role.value["rules"]).to_vec()),
    }?;
    let reason = format!(
        "RBAC: allowed by {} {:?} of {kind} {name:?} to {} {:?}",
        if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" },
        if namespace.is_empty() {
            binding.meta("name").to_owned()
        } else {
            format!("{}/{namespace}", binding.meta("name"))
        },
        text(&subject["kind"]),
        subject_name(subject),
    );
    Some(Grant { rules, reason })
}

fn subject_name(subject: &Value) -> String {
    match text(&subject["namespace"]) {
        "" => text(&subject["name"]).to_owned(),
        namespace => format!("{}/{namespace}", text(&subject["name"])),
    }
}

fn is_subject(subject: &Value, user: &User, binding_namespace: &str) -> bool {
    let name = text(&subject["name"]);
    match text(&subject["kind"]) {
        "User" => name == user.name,
        "Group" => user.groups.iter().any(|group| group == name),
        "ServiceAccount" => {
            let namespace = match text(&subject["namespace"]) {
                "" => binding_namespace,
                namespace => namespace,
            };
            user.name == format!("system:serviceaccount:{namespace}:{name}")
        }
        _ => false,
    }
}

/// A cluster role's own rules, or those of the roles that it collects.
fn cluster_role_rules(store: &Store, name: &str) -> Option<Vec<Value>> {
    let role = get(store, CLUSTER_ROLES, "", name)?;
    let selectors: Vec<Selector> = items(&role.value["aggregationRule"]["clusterRoleSelectors"])
        .iter()
        // A selector without meaning collects nothing.
        .filter_map(|selector| Selector::from_label_selector(selector, &FieldPath::new("selector")).ok())
        .collect();
    let mut rules = items(&role.value["rules"]).to_vec();
    if !selectors.is_empty() {
        for other in list(store, CLUSTER_ROLES, None) {
            if other.meta("name") != name && selectors.iter().any(|s| s.matches_object(&other.value)) {
                rules.extend_from_slice(items(&other.value["rules"]));
            }
        }
    }
    Some(rules)
}

fn list(store: &Store, resource: &str, namespace: Option<&str>) -> Vec<Arc<Object>> {
    store.list(&ResourceId::from(resource), namespace, None).map(|(objects, _)| objects).unwrap_or_default()
}

fn get(store: &Store, resource: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
    store.get(&ResourceId::from(resource), &ObjectKey::new(namespace, name))
}

fn rule_allows(rule: &Value, action: &Action<'_>) -> bool {
    let has = |list: &str, wanted: &str| items(&rule[list]).iter().any(|item| item == "*" || item == wanted);
    match *action {
        Action::Path { verb, path } => {
            let urls = items(&rule["nonResourceURLs"]);
            has("verbs", verb) && urls.iter().any(|url| url_matches(text(url), path))
        }
        Action::Resource { verb, group, resource, subresource, name, .. } => {
            let names = items(&rule["resourceNames"]);
            has("verbs", verb)
                && has("apiGroups", group)
                && items(&rule["resources"]).iter().any(|r| resource_matches(text(r), resource, subresource))
                && (names.is_empty() || names.iter().any(|allowed| allowed == name))
        }
    }
}

fn url_matches(pattern: &str, path: &str) -> bool {
    pattern == path || pattern.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

/// Unlike in admission, `*` covers subresources; `*/scale` covers that of all resources.
fn resource_matches(pattern: &str, resource: &str, subresource: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let (left, right) = pattern.split_once('/').unwrap_or((pattern, ""));
    right == subresource && (left == resource || (left == "*" && !right.is_empty()))
}
