//! A stock `kube::Client` against the server in the same process.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use gantry_apiserver::{ApiServer, Options};
use gantry_kit::{SeededIds, VirtualClock};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

fn client() -> Client {
    let clock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
    ApiServer::new(Options::new(clock, Arc::new(SeededIds::new(1)))).unwrap().client()
}

fn config_map(name: &str, text: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"text": text}})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_system_namespaces_are_there() {
    let namespaces: Api<Namespace> = Api::all(client());
    let names: Vec<String> =
        namespaces.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["default", "kube-node-lease", "kube-public", "kube-system"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_created_is_listed_watched_patched_and_deleted() {
    let maps: Api<ConfigMap> = Api::default_namespaced(client());
    maps.create(&PostParams::default(), &config_map("a", "one")).await.unwrap();
    let list = maps.list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 1);
    let revision = list.metadata.resource_version.unwrap();
    let mut events = maps.watch(&WatchParams::default().timeout(10), &revision).await.unwrap().boxed();

    maps.create(&PostParams::default(), &config_map("b", "two")).await.unwrap();
    let patch = Patch::Merge(json!({"data": {"text": "three"}}));
    maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    maps.patch("a", &PatchParams::default(), &patch).await.unwrap();
    maps.delete("b", &DeleteParams::default()).await.unwrap();

    let mut seen = Vec::new();
    while let Some(event) = events.try_next().await.unwrap() {
        seen.push(match event {
            WatchEvent::Added(map) => format!("added {}", map.name_any()),
            WatchEvent::Modified(map) => format!("modified {} {}", map.name_any(), map.data.unwrap()["text"]),
            WatchEvent::Deleted(map) => format!("deleted {}", map.name_any()),
            other => format!("{other:?}"),
        });
    }
    assert_eq!(seen, ["added b", "modified a three", "deleted b"], "a patch without effect is no event");
}

#[tokio::test(start_paused = true)]
async fn a_stale_replace_is_a_conflict_and_a_taken_name_exists() {
    let maps: Api<ConfigMap> = Api::default_namespaced(client());
    let first = maps.create(&PostParams::default(), &config_map("a", "one")).await.unwrap();
    let error = maps.create(&PostParams::default(), &config_map("a", "one")).await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(s) if s.reason == "AlreadyExists" && s.code == 409));

    let mut second = first.clone();
    second.data.as_mut().unwrap().insert("text".into(), "two".into());
    maps.replace("a", &PostParams::default(), &second).await.unwrap();
    let error = maps.replace("a", &PostParams::default(), &second).await.unwrap_err();
    assert!(matches!(error, kube::Error::Api(s) if s.reason == "Conflict" && s.code == 409));
}

#[tokio::test(start_paused = true)]
async fn a_list_goes_on_page_by_page_at_the_revision_of_the_first() {
    let maps: Api<ConfigMap> = Api::default_namespaced(client());
    for name in ["a", "b", "c", "d", "e"] {
        maps.create(&PostParams::default(), &config_map(name, "x")).await.unwrap();
    }
    let mut params = ListParams::default().limit(2);
    let mut pages = Vec::new();
    loop {
        let page = maps.list(&params).await.unwrap();
        pages.push(page.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else { break };
        params = ListParams::default().limit(2).continue_token(&token);
        let _ = maps.delete("d", &DeleteParams::default()).await;
    }
    assert_eq!(pages, [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
}
