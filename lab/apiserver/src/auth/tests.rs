use http::HeaderValue;
use serde_json::{Value, json};

use super::*;
use crate::store::ResourceId;
use crate::user::Review;

/// A store with the default roles, a reader of namespace `a` and a service account there.
fn store() -> Store {
    let store = Store::open(None, 100).unwrap();
    let mut objects = default_objects();
    let api = "rbac.authorization.k8s.io/v1";
    objects.extend([
        json!({"apiVersion": api, "kind": "RoleBinding", "metadata": {"name": "readers", "namespace": "a"},
            "subjects": [{"kind": "User", "name": "ann"}, {"kind": "ServiceAccount", "name": "bot", "namespace": "a"}],
            "roleRef": {"kind": "ClusterRole", "name": "view"}}),
        json!({"apiVersion": api, "kind": "Role", "metadata": {"name": "one", "namespace": "a"},
            "rules": [{"verbs": ["update"], "apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["mine"]},
                {"verbs": ["patch"], "apiGroups": ["*"], "resources": ["*/scale"]}]}),
        json!({"apiVersion": api, "kind": "RoleBinding", "metadata": {"name": "one", "namespace": "a"},
            "subjects": [{"kind": "Group", "name": "devs"}], "roleRef": {"kind": "Role", "name": "one"}}),
        json!({"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": "sum"},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"part": "yes"}}]}}),
        json!({"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": "part", "labels": {"part": "yes"}},
            "rules": [{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users", "groups"]}]}),
        json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": {"name": "sum"},
            "subjects": [{"kind": "User", "name": "root"}], "roleRef": {"kind": "ClusterRole", "name": "sum"}}),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bot", "namespace": "a", "uid": "u1"}}),
    ]);
    for object in objects {
        let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
        let id =
            if object["apiVersion"] == api { format!("{plural}.rbac.authorization.k8s.io") } else { plural };
        store.create(&ResourceId::from(id), object, gantry_apimachinery::ManagedFields::NONE).unwrap();
    }
    store
}

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

fn act<'a>(
    verb: &'a str,
    group: &'a str,
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
) -> Action<'a> {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    Action::Resource { verb, group, resource, subresource, namespace, name }
}

#[test]
fn rbac_grants_what_rules_name_and_nothing_else() {
    let store = store();
    let ann = User::new("ann", &[]);
    let dev = User::new("dee", &["devs"]);
    let node = User::new("system:node:n1", &["system:nodes"]);
    let stranger = User::new("eve", &[]);
    for (user, action, allowed) in [
        (&User::admin(), act("delete", "", "nodes", "", "n"), true),
        (&ann, act("get", "", "pods", "a", "p"), true),
        (&ann, act("get", "", "pods/log", "a", "p"), true),
        (&ann, act("get", "", "pods", "b", "p"), false),
        (&ann, act("list", "", "pods", "", ""), false),
        (&ann, act("delete", "", "pods", "a", "p"), false),
        (&ann, act("get", "", "secrets", "a", "s"), false),
        (&ann, act("create", "", "pods/exec", "a", "p"), false),
        (&ann, act("*", "*", "*", "a", ""), false),
        (&dev, act("update", "", "configmaps", "a", "mine"), true),
        (&dev, act("update", "", "configmaps", "a", "other"), false),
        (&dev, act("update", "", "configmaps", "a", ""), false),
        (&dev, act("patch", "apps", "deployments/scale", "a", "d"), true),
        (&dev, act("patch", "apps", "deployments", "a", "d"), false),
        (&node, act("update", "", "nodes/status", "", "n1"), true),
        (&node, act("delete", "", "nodes", "", "n1"), false),
        (&stranger, act("create", "authorization.k8s.io", "selfsubjectaccessreviews", "", ""), true),
        (&stranger, Action::Path { verb: "get", path: "/apis/apps/v1" }, true),
        (&stranger, Action::Path { verb: "get", path: "/metrics" }, false),
        (&anonymous(), Action::Path { verb: "get", path: "/healthz" }, true),
        (&anonymous(), Action::Path { verb: "get", path: "/apis" }, false),
    ] {
        assert_eq!(authorize(&store, user, &action).is_ok(), allowed, "{user:?} {action:?}");
    }
}

#[test]
fn a_refusal_names_user_verb_resource_and_scope() {
    let store = store();
    let eve = User::new("eve", &[]);
    for (action, message) in [
        (
            act("get", "", "pods", "a", "p"),
            "pods \"p\" is forbidden: User \"eve\" cannot get resource \"pods\" in API group \"\" in the namespace \"a\"",
        ),
        (
            act("patch", "apps", "deployments/scale", "a", "d"),
            "deployments.apps \"d\" is forbidden: User \"eve\" cannot patch resource \"deployments/scale\" in API group \"apps\" in the namespace \"a\"",
        ),
        (
            act("list", "", "nodes", "", ""),
            "nodes is forbidden: User \"eve\" cannot list resource \"nodes\" in API group \"\" at the cluster scope",
        ),
        (
            Action::Path { verb: "get", path: "/metrics" },
            "forbidden: User \"eve\" cannot get path \"/metrics\"",
        ),
    ] {
        let status = authorize(&store, &eve, &action).unwrap_err();
        assert_eq!((status.code, status.message.as_str()), (403, message));
    }
}

fn with(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

#[test]
fn callers_are_known_by_connection_or_token_or_not_at_all() {
    let (store, authenticator) = (store(), Authenticator::new());
    authenticator.insert("secret", User::new("ann", &[]));
    let identify = |connection: Option<&User>, headers: &HeaderMap| {
        identify(&store, &authenticator, connection, headers, now())
    };
    assert_eq!(identify(Some(&User::admin()), &with(&[])).unwrap(), User::admin());
    assert_eq!(identify(None, &with(&[("authorization", "Bearer secret")])).unwrap().name, "ann");
    assert_eq!(identify(None, &with(&[])).unwrap().name, "system:anonymous");
    assert_eq!(identify(None, &with(&[("authorization", "Bearer wrong")])).unwrap_err().code, 401);
}

#[test]
fn only_those_who_may_can_be_taken_for_others() {
    let (store, authenticator) = (store(), Authenticator::new());
    let identify = |user: &User, pairs: &[(&'static str, &str)]| {
        identify(&store, &authenticator, Some(user), &with(pairs), now())
    };
    let ann =
        identify(&User::admin(), &[("impersonate-user", "ann"), ("impersonate-group", "devs")]).unwrap();
    assert_eq!((ann.name.as_str(), ann.groups), ("ann", vec!["devs".to_owned(), AUTHENTICATED.to_owned()]));
    let bot = identify(&User::admin(), &[("impersonate-user", "system:serviceaccount:a:bot")]).unwrap();
    assert!(bot.groups.contains(&"system:serviceaccounts:a".to_owned()));
    // Collected from another role by its label.
    assert!(identify(&User::new("root", &[]), &[("impersonate-user", "ann")]).is_ok());
    let status = identify(&User::new("eve", &[]), &[("impersonate-user", "ann")]).unwrap_err();
    assert_eq!(
        status.message,
        "users \"ann\" is forbidden: User \"eve\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope"
    );
    assert_eq!(identify(&User::admin(), &[("impersonate-group", "devs")]).unwrap_err().code, 400);
}

#[test]
fn a_service_accounts_token_is_good_until_it_expires_or_the_account_goes() {
    let (store, authenticator) = (store(), Authenticator::new());
    let account = json!({"metadata": {"name": "bot", "namespace": "a", "uid": "u1"}});
    let token = authenticator.issue(&account, &[], now(), 60);
    let user = authenticator.user(&store, &token, now()).unwrap();
    assert_eq!(user.name, "system:serviceaccount:a:bot");
    assert!(authorize(&store, &user, &act("get", "", "pods", "a", "p")).is_ok());
    let later = Timestamp::from_second(60).unwrap();
    assert_eq!(authenticator.user(&store, &token, later), None);
    assert_eq!(Authenticator::new().user(&store, &token, now()), None);
    let mut forged = token.clone();
    forged.insert(forged.find('.').unwrap() + 2, 'A');
    assert_eq!(authenticator.user(&store, &forged, now()), None);
    let gone = json!({"metadata": {"name": "bot", "namespace": "a", "uid": "u0"}});
    assert_eq!(authenticator.user(&store, &authenticator.issue(&gone, &[], now(), 60), now()), None);
    for nonsense in ["", ".", "..", "a.b.c", "é"] {
        assert_eq!(authenticator.user(&store, nonsense, now()), None);
    }
}

#[test]
fn reviews_answer_what_the_server_would_do() {
    let (store, authenticator) = (store(), Authenticator::new());
    let ask = |user: &User, kind: Review, spec: Value| {
        review(&store, &authenticator, user, kind, "a", json!({"spec": spec}), now())
            .map(|r| r["status"].clone())
    };
    let ann = User::new("ann", &[]);
    let get = json!({"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "a"}});
    let allowed = ask(&ann, Review::SelfSubjectAccess, get.clone()).unwrap();
    assert_eq!(allowed["allowed"], true);
    assert_eq!(
        allowed["reason"],
        "RBAC: allowed by RoleBinding \"readers/a\" of ClusterRole \"view\" to User \"ann\""
    );
    let mut other = get.clone();
    other["user"] = "eve".into();
    assert_eq!(ask(&User::admin(), Review::SubjectAccess, other.clone()).unwrap(), json!({"allowed": false}));
    assert_eq!(ask(&User::admin(), Review::LocalSubjectAccess, other).unwrap(), json!({"allowed": false}));
    assert!(ask(&ann, Review::SelfSubjectAccess, json!({})).is_err());
    assert_eq!(ask(&ann, Review::SelfSubject, json!({})).unwrap()["userInfo"]["username"], "ann");
    let rules = ask(&ann, Review::SelfSubjectRules, json!({"namespace": "a"})).unwrap();
    assert!(
        rules["resourceRules"]
            .as_array()
            .unwrap()
            .iter()
            .any(|r| r["resources"][0] == "horizontalpodautoscalers")
    );
    let rules = ask(&User::admin(), Review::SelfSubjectRules, json!({"namespace": "a"})).unwrap();
    assert_eq!(rules["resourceRules"][0], json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
    let unknown = ask(&ann, Review::Token, json!({"token": "x"})).unwrap();
    assert_eq!(unknown["authenticated"], false);
    authenticator.insert("x", User::new("eve", &[]));
    assert_eq!(ask(&ann, Review::Token, json!({"token": "x"})).unwrap()["user"]["username"], "eve");
}
