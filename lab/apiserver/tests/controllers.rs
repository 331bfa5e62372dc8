//! Garbage collection and the end of namespaces, through the API, in virtual time.

#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use gantry_apiserver::{ApiServer, Options};
use gantry_kit::{CancellationToken, SeededIds, VirtualClock};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::json;

fn server() -> ApiServer {
    let clock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
    let server = ApiServer::new(Options::new(clock, Arc::new(SeededIds::new(1)))).unwrap();
    let controllers = server.clone();
    tokio::spawn(async move { controllers.run_controllers(CancellationToken::new()).await });
    server
}

/// Creates a config map that `owner` owns and blocks.
async fn create(api: &Api<ConfigMap>, name: &str, owner: Option<&ConfigMap>) -> ConfigMap {
    let owners = owner.map(|owner| {
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner.metadata.name, "uid": owner.metadata.uid,
            "blockOwnerDeletion": true}])
    });
    let object = json!({"metadata": {"name": name, "ownerReferences": owners}});
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

/// Waits for a state that must come.
async fn until<F: Future<Output = bool>>(mut reached: impl FnMut() -> F) {
    let waiting = async {
        while !reached().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), waiting).await.expect("the state is reached");
}

#[tokio::test(start_paused = true)]
async fn dependents_follow_their_owner_however_deep() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().client());
    let root = create(&api, "root", None).await;
    let middle = create(&api, "middle", Some(&root)).await;
    create(&api, "leaf", Some(&middle)).await;
    create(&api, "other", None).await;
    api.delete("root", &DeleteParams::background()).await.unwrap();
    until(|| async { api.get_opt("leaf").await.unwrap().is_none() }).await;
    assert!(api.get_opt("middle").await.unwrap().is_none());
    assert!(api.get_opt("other").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn an_owner_deleted_in_the_foreground_goes_last() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().client());
    let root = create(&api, "root", None).await;
    create(&api, "held", Some(&root)).await;
    let hold = json!({"metadata": {"finalizers": ["x.io/hold"]}});
    api.patch("held", &PatchParams::default(), &Patch::Merge(&hold)).await.unwrap();
    api.delete("root", &DeleteParams::foreground()).await.unwrap();
    until(|| async { api.get("held").await.unwrap().metadata.deletion_timestamp.is_some() }).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(api.get("root").await.unwrap().metadata.deletion_timestamp.is_some());
    let release = json!({"metadata": {"finalizers": null}});
    api.patch("held", &PatchParams::default(), &Patch::Merge(&release)).await.unwrap();
    until(|| async { api.get_opt("root").await.unwrap().is_none() }).await;
    assert!(api.get_opt("held").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn orphans_stay_without_their_owner() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().client());
    let root = create(&api, "root", None).await;
    create(&api, "child", Some(&root)).await;
    api.delete("root", &DeleteParams::orphan()).await.unwrap();
    until(|| async { api.get_opt("root").await.unwrap().is_none() }).await;
    assert_eq!(api.get("child").await.unwrap().metadata.owner_references, None);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_names_an_owner_that_never_was_goes() {
    let api: Api<ConfigMap> = Api::default_namespaced(server().client());
    let mut ghost = create(&api, "ghost", None).await;
    ghost.metadata.uid = Some("another".to_owned());
    create(&api, "child", Some(&ghost)).await;
    until(|| async { api.get_opt("child").await.unwrap().is_none() }).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_goes_when_its_content_is_gone() {
    let client = server().client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "team"}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client, "team");
    create(&api, "plain", None).await;
    create(&api, "held", None).await;
    let hold = json!({"metadata": {"finalizers": ["x.io/hold"]}});
    api.patch("held", &PatchParams::default(), &Patch::Merge(&hold)).await.unwrap();
    namespaces.delete("team", &DeleteParams::default()).await.unwrap();
    until(|| async { api.get_opt("plain").await.unwrap().is_none() }).await;

    let remaining = || async {
        let status = namespaces.get("team").await.unwrap().status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Terminating"));
        let condition = status
            .conditions
            .unwrap_or_default()
            .into_iter()
            .find(|c| c.type_ == "NamespaceContentRemaining");
        condition.and_then(|condition| condition.message)
    };
    until(|| async {
        remaining().await.as_deref()
            == Some("Some resources are remaining: configmaps. has 1 resource instances")
    })
    .await;
    let release = json!({"metadata": {"finalizers": null}});
    api.patch("held", &PatchParams::default(), &Patch::Merge(&release)).await.unwrap();
    until(|| async { namespaces.get_opt("team").await.unwrap().is_none() }).await;
}

#[tokio::test(start_paused = true)]
async fn every_namespace_has_its_default_account() {
    let client = server().client();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "team"}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    for name in ["default", "kube-system", "team"] {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
        until(|| async { accounts.get_opt("default").await.unwrap().is_some() }).await;
        let uid = accounts.get("default").await.unwrap().metadata.uid;
        accounts.delete("default", &DeleteParams::default()).await.unwrap();
        until(|| async {
            accounts.get_opt("default").await.unwrap().is_some_and(|found| found.metadata.uid != uid)
        })
        .await;
    }
    // A namespace that ends is not given another.
    namespaces.delete("team", &DeleteParams::default()).await.unwrap();
    until(|| async { namespaces.get_opt("team").await.unwrap().is_none() }).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_goes_an_hour_after_its_last_write() {
    let api: Api<Event> = Api::default_namespaced(server().client());
    for name in ["quiet", "busy"] {
        let event =
            json!({"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "namespace": "default"}});
        api.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_mins(40)).await;
    api.patch("busy", &PatchParams::default(), &Patch::Merge(json!({"count": 2}))).await.unwrap();
    tokio::time::sleep(Duration::from_mins(40)).await;
    assert!(api.get_opt("quiet").await.unwrap().is_none());
    assert!(api.get_opt("busy").await.unwrap().is_some());
    tokio::time::sleep(Duration::from_mins(40)).await;
    assert!(api.get_opt("busy").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_definition_waits_for_the_finalizers_of_its_objects() {
    let client = server().client();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = json!({
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    definitions.create(&PostParams::default(), &serde_json::from_value(definition).unwrap()).await.unwrap();
    let gvk = GroupVersionKind::gvk("example.com", "v1", "Thing");
    let things: Api<DynamicObject> = Api::all_with(client, &ApiResource::from_gvk(&gvk));
    let thing = json!({"metadata": {"name": "held", "finalizers": ["x.io/hold"]}});
    things.create(&PostParams::default(), &serde_json::from_value(thing).unwrap()).await.unwrap();
    definitions.delete("things.example.com", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = things.get("held").await.unwrap();
    assert!(held.metadata.deletion_timestamp.is_some());
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    things.patch("held", &PatchParams::default(), &release).await.unwrap();
    until(|| async { definitions.get_opt("things.example.com").await.unwrap().is_none() }).await;
}
