//! Who makes a request, and whether they may.
//!
//! ```text
//!   connection (client certificate, socket, in process) ─┐
//!   Authorization: Bearer … ─────────────────────────────┴▶ identify ─▶ impersonate ─▶ authorize ─▶ verbs
//!                                                                            │             │
//!                                                                     Roles and their bindings in the store
//! ```
//!
//! `system:masters` may do everything; everybody else what RBAC objects grant ([`rbac`]).

mod defaults;
mod rbac;
mod reviews;
mod tokens;

use gantry_apimachinery::ResourceName;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use serde_json::Map;

pub(crate) use self::defaults::default_objects;
use self::rbac::is_allowed;
pub(crate) use self::reviews::review;
pub(crate) use self::tokens::{Authenticator, answer_token_request};
use crate::store::Store;
use crate::{Status, User};

const MASTERS: &str = "system:masters";
const AUTHENTICATED: &str = "system:authenticated";

/// What somebody wants to do, in the terms of RBAC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action<'a> {
    /// To objects; what is absent is empty, `*` stands for all.
    Resource {
        verb: &'a str,
        group: &'a str,
        resource: &'a str,
        subresource: &'a str,
        namespace: &'a str,
        name: &'a str,
    },
    /// To a path that names no resource. The verb is the HTTP method in lower case.
    Path { verb: &'a str, path: &'a str },
}

/// Finds out who makes a request: the owner of the connection, or of the bearer token, or nobody in particular;
/// then whom they want to be taken for.
pub(crate) fn identify(
    store: &Store,
    authenticator: &Authenticator,
    connection: Option<&User>,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<User, Status> {
    let user = match (connection, bearer(headers)) {
        (Some(user), _) => user.clone(),
        (None, Some(token)) => authenticator.user(store, token, now).ok_or_else(Status::unauthorized)?,
        (None, None) => anonymous(),
    };
    impersonate(store, user, headers)
}

fn anonymous() -> User {
    User { name: "system:anonymous".to_owned(), groups: vec!["system:unauthenticated".to_owned()] }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Follows the `Impersonate-…` headers if the user may.
fn impersonate(store: &Store, user: User, headers: &HeaderMap) -> Result<User, Status> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = header("impersonate-user");
    let groups: Vec<&str> =
        headers.get_all("impersonate-group").iter().filter_map(|value| value.to_str().ok()).collect();
    if name.is_empty() {
        return match groups.first() {
            None => Ok(user),
            Some(group) => Err(Status::bad_request(format!(
                "requested group {group:?} without impersonating a user: send Impersonate-User too"
            ))),
        };
    }
    let check = |resource, namespace, name| {
        let action =
            Action::Resource { verb: "impersonate", group: "", resource, subresource: "", namespace, name };
        authorize(store, &user, &action)
    };
    let mut target = User { name: name.to_owned(), groups: groups.iter().map(|g| (*g).to_owned()).collect() };
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, account)) => {
            check("serviceaccounts", namespace, account)?;
            if groups.is_empty() {
                target.groups = service_account_groups(namespace);
            }
        }
        None => check("users", "", name)?,
    }
    for group in groups {
        check("groups", "", group)?;
    }
    if name != "system:anonymous" && !target.groups.iter().any(|group| group == AUTHENTICATED) {
        target.groups.push(AUTHENTICATED.to_owned());
    }
    Ok(target)
}

fn service_account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

/// Refuses what the user may not do, in the words of kube-apiserver.
pub(crate) fn authorize(store: &Store, user: &User, action: &Action<'_>) -> Result<(), Status> {
    if is_allowed(store, user, action).allowed {
        return Ok(());
    }
    let who = &user.name;
    match *action {
        Action::Path { verb, path } => Err(Status {
            code: 403,
            reason: "Forbidden",
            message: format!("forbidden: User {who:?} cannot {verb} path {path:?}"),
            details: Map::new(),
        }),
        Action::Resource { verb, group, resource, subresource, namespace, name } => {
            let slash = if subresource.is_empty() { "" } else { "/" };
            let scope = if namespace.is_empty() {
                "at the cluster scope".to_owned()
            } else {
                format!("in the namespace {namespace:?}")
            };
            let why = format!(
                "User {who:?} cannot {verb} resource \"{resource}{slash}{subresource}\" in API group {group:?} {scope}"
            );
            Err(Status::forbidden(ResourceName { group, resource, name }, &why))
        }
    }
}

#[cfg(test)]
mod tests;
