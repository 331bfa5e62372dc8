//! The roles that every cluster starts with, so that manifests can bind them.

use serde_json::{Value, json};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];

/// The kinds of a namespace that its readers may see. Secrets are not among them.
const NAMESPACED: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "configmaps",
            "endpoints",
            "events",
            "limitranges",
            "persistentvolumeclaims",
            "pods",
            "pods/log",
            "pods/status",
            "replicationcontrollers",
            "replicationcontrollers/scale",
            "resourcequotas",
            "serviceaccounts",
            "services",
        ],
    ),
    (
        "apps",
        &[
            "controllerrevisions",
            "daemonsets",
            "deployments",
            "deployments/scale",
            "replicasets",
            "replicasets/scale",
            "statefulsets",
            "statefulsets/scale",
        ],
    ),
    ("autoscaling", &["horizontalpodautoscalers"]),
    ("batch", &["cronjobs", "jobs"]),
    ("discovery.k8s.io", &["endpointslices"]),
    ("networking.k8s.io", &["ingresses", "networkpolicies"]),
    ("policy", &["poddisruptionbudgets"]),
    ("resource.k8s.io", &["resourceclaims", "resourceclaimtemplates"]),
];

/// What only those who may change a namespace's content reach.
const EDITORS_ONLY: &[&str] = &["pods/attach", "pods/exec", "pods/portforward", "pods/eviction", "secrets"];

/// Kind and name of whom a role is bound to.
type Subject = (&'static str, &'static str);

fn rule(verbs: &[&str], group: &str, resources: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [group], "resources": resources})
}

fn everything() -> Value {
    json!([
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ])
}

fn view() -> Vec<Value> {
    let mut rules: Vec<Value> =
        NAMESPACED.iter().map(|(group, resources)| rule(READ, group, resources)).collect();
    rules.push(rule(READ, "", &["namespaces"]));
    rules
}

fn edit() -> Vec<Value> {
    let mut rules = view();
    rules.extend(NAMESPACED.iter().map(|(group, resources)| rule(WRITE, group, resources)));
    rules.push(rule(&[READ, WRITE].concat(), "", EDITORS_ONLY));
    rules.push(rule(&["impersonate"], "", &["serviceaccounts"]));
    rules
}

fn admin() -> Vec<Value> {
    let mut rules = edit();
    let all = [READ, WRITE].concat();
    rules.push(rule(&all, "rbac.authorization.k8s.io", &["rolebindings", "roles"]));
    rules.push(rule(&["create"], "authorization.k8s.io", &["localsubjectaccessreviews"]));
    rules
}

/// What a kubelet and the agents on its node need.
fn node() -> Vec<Value> {
    vec![
        rule(&["create", "get", "list", "patch", "update", "watch"], "", &["nodes", "nodes/status"]),
        rule(
            READ,
            "",
            &["configmaps", "pods", "secrets", "services", "persistentvolumeclaims", "persistentvolumes"],
        ),
        rule(&["create", "delete"], "", &["pods"]),
        rule(&["patch", "update"], "", &["pods/status"]),
        rule(&["create"], "", &["pods/eviction", "serviceaccounts/token"]),
        rule(&["create", "patch", "update"], "", &["events"]),
        rule(&["create", "patch", "update"], "events.k8s.io", &["events"]),
        rule(&["create", "delete", "get", "patch", "update"], "coordination.k8s.io", &["leases"]),
        rule(READ, "resource.k8s.io", &["resourceclaims", "deviceclasses"]),
        rule(
            &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "resource.k8s.io",
            &["resourceslices"],
        ),
        rule(READ, "node.k8s.io", &["runtimeclasses"]),
        rule(&["create"], "authentication.k8s.io", &["tokenreviews"]),
        rule(&["create"], "authorization.k8s.io", &["subjectaccessreviews"]),
    ]
}

fn discovery() -> Value {
    let paths = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    json!([{"verbs": ["get"], "nonResourceURLs": paths}])
}

fn public_info() -> Value {
    json!([{"verbs": ["get"], "nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version", "/version/"]}])
}

fn basic_user() -> Value {
    json!([
        rule(&["create"], "authorization.k8s.io", &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
        rule(&["create"], "authentication.k8s.io", &["selfsubjectreviews"]),
    ])
}

/// The ClusterRoles and ClusterRoleBindings, in the order of their creation.
pub(crate) fn default_objects() -> Vec<Value> {
    let roles: [(&str, Value, &[Subject]); 10] = [
        ("cluster-admin", everything(), &[("Group", "system:masters")]),
        ("admin", admin().into(), &[]),
        ("edit", edit().into(), &[]),
        ("view", view().into(), &[]),
        ("system:discovery", discovery(), &[("Group", "system:authenticated")]),
        ("system:basic-user", basic_user(), &[("Group", "system:authenticated")]),
        (
            "system:public-info-viewer",
            public_info(),
            &[("Group", "system:authenticated"), ("Group", "system:unauthenticated")],
        ),
        ("system:node", node().into(), &[("Group", "system:nodes")]),
        // The parts of the control plane run in this process; they are trusted as the process is.
        ("system:kube-scheduler", everything(), &[("User", "system:kube-scheduler")]),
        ("system:kube-controller-manager", everything(), &[("User", "system:kube-controller-manager")]),
    ];
    let metadata = |name: &str| {
        json!({
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        })
    };
    let mut objects = Vec::new();
    for (name, rules, subjects) in roles {
        objects.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(name), "rules": rules,
        }));
        if !subjects.is_empty() {
            let subjects: Vec<Value> = subjects
                .iter()
                .map(|(kind, name)| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}))
                .collect();
            objects.push(json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": metadata(name), "subjects": subjects,
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            }));
        }
    }
    objects
}
