//! Whether the cluster lets a process do what it will have to do, asked before it is refused something in the middle of its work.
//!
//! What it needs stands in the roles of the chart, and nowhere else.

use kube::Client;
use serde_json::{Value, json};

use crate::manifests::{Part, Right};

/// What `part` needs and may not do, as in `create pods/binding`. Whoever can log in may ask this about himself.
pub(crate) async fn missing(client: &Client, part: Part) -> anyhow::Result<Vec<String>> {
    let mut missing = Vec::new();
    for Right { group, resource, verb } in crate::manifests::rights(part)? {
        let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": { "resourceAttributes": {
                "group": group, "resource": resource, "subresource": subresource, "verb": verb,
            } },
        });
        let request = http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(review.to_string().into_bytes())?;
        let answer: Value = client.request(request).await?;
        if answer["status"]["allowed"] != true {
            let slash = if subresource.is_empty() { "" } else { "/" };
            let of = if group.is_empty() { String::new() } else { format!(".{group}") };
            missing.push(format!("{verb} {resource}{of}{slash}{subresource}"));
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gantry_apiserver::{ApiServer, Options};
    use gantry_kit::{SeededIds, VirtualClock};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_missing_is_named_until_the_roles_are_there() {
        let clock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let server = ApiServer::new(Options::new(clock, Arc::new(SeededIds::new(1)))).unwrap();
        let client =
            server.client_as("system:serviceaccount:gantry-system:gantry-agent", &["system:authenticated"]);
        let all = [
            "get nodes",
            "patch nodes",
            "watch nodes",
            "patch nodes/status",
            "list pods",
            "watch pods",
            "create events",
            "create gpunodes.gantry.dev",
            "patch gpunodes.gantry.dev/status",
        ];
        assert_eq!(missing(&client, Part::Agent).await.unwrap(), all);
        let role = json!({
            "metadata": { "name": "x" },
            "rules": [
                { "apiGroups": [""], "resources": ["nodes"], "verbs": ["*"] },
                { "apiGroups": ["gantry.dev"], "resources": ["gpunodes", "gpunodes/status"], "verbs": ["create", "patch"] },
            ],
        });
        let binding = json!({
            "metadata": { "name": "x" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "x" },
            "subjects": [{ "kind": "ServiceAccount", "name": "gantry-agent", "namespace": "gantry-system" }],
        });
        for (plural, mut object, kind) in
            [("clusterroles", role, "ClusterRole"), ("clusterrolebindings", binding, "ClusterRoleBinding")]
        {
            object["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
            object["kind"] = json!(kind);
            let request = http::Request::post(format!("/apis/rbac.authorization.k8s.io/v1/{plural}"))
                .header("content-type", "application/json")
                .body(object.to_string().into_bytes())
                .unwrap();
            server.client().request::<Value>(request).await.unwrap();
        }
        let left = ["patch nodes/status", "list pods", "watch pods", "create events"];
        assert_eq!(missing(&client, Part::Agent).await.unwrap(), left);
    }
}
