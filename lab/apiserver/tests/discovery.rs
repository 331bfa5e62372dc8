//! What the server tells of itself: the aggregated form says what the older one says.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::collections::BTreeMap;

use bytes::Bytes;
use common::{get, server};
use gantry_apiserver::ApiServer;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

async fn aggregated(server: &ApiServer, path: &str, version: &str) -> Value {
    let media = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
    let request = Request::get(path).header("accept", format!("{media},application/json"));
    let request: Request<Full<Bytes>> = request.body(Full::default()).unwrap();
    let (parts, body) = server.admin_service().oneshot(request).await.unwrap().into_parts();
    assert_eq!(parts.headers["content-type"], media.as_str());
    serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap()
}

/// Kind, scope, verbs, short names and categories of a resource or subresource.
type Facts = (Value, bool, Value, Value, Value);

/// By group, version and name (as in `pods/log`), from the older form.
async fn older(server: &ApiServer) -> BTreeMap<(String, String, String), Facts> {
    let mut groups = vec![(String::new(), "v1".to_owned())];
    for group in get(server, "/apis").await.1["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            groups.push((text(&group["name"]), text(&version["version"])));
        }
    }
    let mut facts = BTreeMap::new();
    for (group, version) in groups {
        let path =
            if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        for resource in get(server, &path).await.1["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap().to_owned();
            let fact = (
                resource["kind"].clone(),
                resource["namespaced"].as_bool().unwrap(),
                resource["verbs"].clone(),
                resource["shortNames"].clone(),
                resource["categories"].clone(),
            );
            facts.insert((group.clone(), version.clone(), name), fact);
        }
    }
    facts
}

/// The same from the aggregated form.
async fn newer(server: &ApiServer, form: &str) -> BTreeMap<(String, String, String), Facts> {
    let mut facts = BTreeMap::new();
    for path in ["/api", "/apis"] {
        let list = aggregated(server, path, form).await;
        assert_eq!(list["kind"], "APIGroupDiscoveryList");
        assert_eq!(list["apiVersion"], format!("apidiscovery.k8s.io/{form}"));
        for group in list["items"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            for version in group["versions"].as_array().unwrap() {
                assert_eq!(version["freshness"], "Current");
                for resource in version["resources"].as_array().unwrap() {
                    let namespaced = resource["scope"] == "Namespaced";
                    let plural = resource["resource"].as_str().unwrap();
                    let key = |resource: String| {
                        (name.to_owned(), version["version"].as_str().unwrap().to_owned(), resource)
                    };
                    let kind = |value: &Value| value["responseKind"]["kind"].clone();
                    let (short, categories) =
                        (resource["shortNames"].clone(), resource["categories"].clone());
                    let fact = (kind(resource), namespaced, resource["verbs"].clone(), short, categories);
                    facts.insert(key(plural.to_owned()), fact);
                    for part in resource["subresources"].as_array().into_iter().flatten() {
                        let full = format!("{plural}/{}", part["subresource"].as_str().unwrap());
                        let fact = (kind(part), namespaced, part["verbs"].clone(), Value::Null, Value::Null);
                        facts.insert(key(full), fact);
                    }
                }
            }
        }
    }
    facts
}

#[tokio::test(start_paused = true)]
async fn the_aggregated_form_says_what_the_older_one_says() {
    let server = server();
    let expected = older(&server).await;
    let find = |group: &str, version: &str, name: &str| {
        expected[&(group.to_owned(), version.to_owned(), name.to_owned())].clone()
    };
    let pods = find("", "v1", "pods");
    assert_eq!((&pods.0, pods.1, &pods.3, &pods.4), (&json!("Pod"), true, &json!(["po"]), &json!(["all"])));
    assert_eq!(find("apps", "v1", "deployments/scale").0, "Scale");
    for form in ["v2", "v2beta1"] {
        assert_eq!(newer(&server, form).await, expected, "{form}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_preferred_version_is_the_first() {
    let server = server();
    let groups = get(&server, "/apis").await.1;
    let list = aggregated(&server, "/apis", "v2").await;
    let (older, newer) = (groups["groups"].as_array().unwrap(), list["items"].as_array().unwrap());
    assert_eq!(older.len(), newer.len());
    for (older, newer) in older.iter().zip(newer) {
        assert_eq!(older["name"], newer["metadata"]["name"]);
        assert_eq!(older["preferredVersion"]["version"], newer["versions"][0]["version"]);
    }
}
