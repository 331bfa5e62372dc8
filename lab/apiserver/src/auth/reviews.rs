//! Answers to the questions of `authorization.k8s.io` and `authentication.k8s.io`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::rbac::{grants, is_allowed, is_master};
use super::{Action, Authenticator};
use crate::json::{items, map_at, text};
use crate::store::Store;
use crate::user::Review;
use crate::{Status, User};

/// Fills in the `status` of a review. `namespace` is that of the path.
pub(crate) fn review(
    store: &Store,
    authenticator: &Authenticator,
    user: &User,
    kind: Review,
    namespace: &str,
    mut object: Value,
    now: Timestamp,
) -> Result<Value, Status> {
    let spec = object["spec"].clone();
    let status = match kind {
        Review::SelfSubject => json!({"userInfo": user_info(user)}),
        Review::Token => token(store, authenticator, &spec, now),
        Review::SelfSubjectAccess => access(store, user, &spec)?,
        Review::SelfSubjectRules => rules(store, user, &spec)?,
        Review::SubjectAccess => access(store, &subject(&spec)?, &spec)?,
        Review::LocalSubjectAccess => {
            let asked = text(&spec["resourceAttributes"]["namespace"]);
            if asked != namespace {
                return Err(Status::bad_request(format!(
                    "spec.resourceAttributes.namespace: Invalid value: {asked:?}: must match metadata.namespace {namespace:?}"
                )));
            }
            access(store, &subject(&spec)?, &spec)?
        }
    };
    map_at(&mut object, &[]).insert("status".to_owned(), status);
    Ok(object)
}

fn user_info(user: &User) -> Value {
    json!({"username": user.name, "groups": user.groups})
}

fn token(store: &Store, authenticator: &Authenticator, spec: &Value, now: Timestamp) -> Value {
    match authenticator.user(store, text(&spec["token"]), now) {
        Some(user) => {
            json!({"authenticated": true, "user": user_info(&user), "audiences": spec["audiences"]})
        }
        None => json!({"authenticated": false, "error": "invalid bearer token"}),
    }
}

/// The user that a review asks about.
fn subject(spec: &Value) -> Result<User, Status> {
    let groups: Vec<String> = items(&spec["groups"]).iter().map(|group| text(group).to_owned()).collect();
    let name = text(&spec["user"]);
    if name.is_empty() && groups.is_empty() {
        return Err(Status::bad_request(
            "spec.user: Required value: at least one of user or groups must be specified",
        ));
    }
    Ok(User { name: name.to_owned(), groups })
}

fn access(store: &Store, user: &User, spec: &Value) -> Result<Value, Status> {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let action = match (resource.is_object(), path.is_object()) {
        (true, false) => Action::Resource {
            verb: text(&resource["verb"]),
            group: text(&resource["group"]),
            resource: text(&resource["resource"]),
            subresource: text(&resource["subresource"]),
            namespace: text(&resource["namespace"]),
            name: text(&resource["name"]),
        },
        (false, true) => Action::Path { verb: text(&path["verb"]), path: text(&path["path"]) },
        _ => {
            return Err(Status::bad_request(
                "spec: Invalid value: exactly one of nonResourceAttributes or resourceAttributes must be specified",
            ));
        }
    };
    let decision = is_allowed(store, user, &action);
    let mut status = json!({"allowed": decision.allowed});
    if !decision.reason.is_empty() {
        status["reason"] = decision.reason.into();
    }
    Ok(status)
}

/// Everything that the user may do in a namespace.
fn rules(store: &Store, user: &User, spec: &Value) -> Result<Value, Status> {
    let namespace = text(&spec["namespace"]);
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let mut all: Vec<Value> =
        grants(store, user, namespace).into_iter().flat_map(|grant| grant.rules).collect();
    if is_master(user) {
        all.insert(0, json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
        all.insert(1, json!({"verbs": ["*"], "nonResourceURLs": ["*"]}));
    }
    let mut seen = BTreeSet::new();
    all.retain(|rule| seen.insert(rule.to_string()));
    let (paths, resources): (Vec<Value>, Vec<Value>) =
        all.into_iter().partition(|rule| !items(&rule["nonResourceURLs"]).is_empty());
    Ok(json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false}))
}
