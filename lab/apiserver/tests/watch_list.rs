//! Lists that are watches, watches that fall behind, and pasts that are forgotten.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::collections::BTreeSet;

use common::{get, ok, options, server};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use gantry_apiserver::{ApiServer, Options};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// More changes than the server keeps for a watch that does not read.
const FLOOD: usize = 8192 + 100;

async fn create(server: &ApiServer, names: &[&str]) {
    for name in names {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
        ok(server, "POST", MAPS, map).await;
    }
}

/// Changes the map `a` again and again.
async fn flood(server: &ApiServer, changes: usize) {
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    for change in 0..changes {
        let patch = json!({"data": {"change": change.to_string()}});
        maps.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    }
}

/// The events of a watch, which begins when this returns.
async fn watch(server: &ApiServer, query: &str) -> impl Stream<Item = Value> + use<> {
    let request = Request::get(format!("{MAPS}?watch=1&{query}")).body(Full::default()).unwrap();
    let request: Request<Full<bytes::Bytes>> = request;
    let body = server.admin_service().oneshot(request).await.unwrap().into_body();
    let chunks = body.into_data_stream().map(|chunk| chunk.unwrap());
    // The server sends whole events.
    chunks.flat_map(|chunk| {
        let values = serde_json::Deserializer::from_slice(&chunk).into_iter::<Value>();
        futures::stream::iter(values.map(Result::unwrap).collect::<Vec<_>>())
    })
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_a_watch_says_where_the_list_ends() {
    let server = server();
    create(&server, &["a", "b"]).await;
    let at = get(&server, MAPS).await.1["metadata"]["resourceVersion"].clone();
    let query =
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=5";
    let events = watch(&server, query).await;
    create(&server, &["c"]).await;
    let events: Vec<Value> = events.collect().await;
    let seen: Vec<(&str, &str)> = events
        .iter()
        .map(|event| {
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
            (event["type"].as_str().unwrap(), name)
        })
        .collect();
    assert_eq!(seen, [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", ""), ("ADDED", "c")]);
    let bookmark = &events[2]["object"];
    assert_eq!(bookmark["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert_eq!(bookmark["metadata"]["resourceVersion"], at);
    assert_eq!((&bookmark["kind"], &bookmark["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));

    let (code, status) = get(&server, &format!("{MAPS}?watch=1&sendInitialEvents=true")).await;
    assert_eq!((code, &status["reason"]), (422, &json!("Invalid")));
}

#[tokio::test(start_paused = true)]
async fn kube_lists_by_watching() {
    let server = server();
    create(&server, &["a", "b"]).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    let mut events = watcher::watcher(maps, watcher::Config::default().streaming_lists()).boxed();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "applied c") {
        let event = events.try_next().await.unwrap().unwrap();
        if matches!(event, Event::InitDone) {
            create(&server, &["c"]).await;
        }
        seen.push(match event {
            Event::Init => "init".to_owned(),
            Event::InitApply(map) => format!("listed {}", map.name_any()),
            Event::InitDone => "done".to_owned(),
            Event::Apply(map) => format!("applied {}", map.name_any()),
            Event::Delete(map) => format!("deleted {}", map.name_any()),
        });
    }
    assert_eq!(seen, ["init", "listed a", "listed b", "done", "applied c"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_does_not_read_is_cut_off_with_410() {
    let server = server();
    create(&server, &["a"]).await;
    let at = get(&server, MAPS).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let events = watch(&server, &format!("resourceVersion={at}&timeoutSeconds=600")).await;
    flood(&server, FLOOD).await;
    let events: Vec<Value> = events.collect().await;
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last["type"], "ERROR");
    let status = &last["object"];
    assert_eq!(
        (&status["kind"], &status["code"], &status["reason"]),
        (&json!("Status"), &json!(410), &json!("Expired"))
    );
    // What came before is whole: no change is missing up to the cut.
    let changes: Vec<String> =
        before.iter().map(|event| event["object"]["data"]["change"].as_str().unwrap().to_owned()).collect();
    assert!(changes.len() < FLOOD, "the watch must have been cut off");
    assert!(changes.iter().enumerate().all(|(position, change)| *change == position.to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_reflector_that_fell_behind_recovers() {
    for watches_before in [true, false] {
        fall_behind(watches_before).await;
    }
}

/// Lets a reflector fall behind within a watch, or between its list and the watch.
async fn fall_behind(watches_before: bool) {
    let server = server();
    create(&server, &["a", "b"]).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client());
    let (store, writer) = reflector::store();
    let events = watcher::watcher(maps, watcher::Config::default());
    let mut events = reflector::reflector(writer, events).boxed();
    while !matches!(events.try_next().await, Ok(Some(Event::InitDone))) {}
    if watches_before {
        ok(&server, "PATCH", &format!("{MAPS}/b"), json!({"data": {"change": "b"}})).await;
        assert!(matches!(events.try_next().await, Ok(Some(Event::Apply(_)))));
    }
    flood(&server, FLOOD).await;
    create(&server, &["c"]).await;
    ok(&server, "DELETE", &format!("{MAPS}/b"), Value::Null).await;
    let mut expired = 0;
    while !store.state().iter().any(|map| map.name_any() == "c") {
        match events.next().await.unwrap() {
            Err(watcher::Error::WatchError(status)) if status.code == 410 => expired += 1,
            event => drop(event.unwrap()),
        }
    }
    assert_eq!(expired, 1);
    let state: BTreeSet<(String, Option<String>)> = store
        .state()
        .iter()
        .map(|map| (map.name_any(), map.data.as_ref().and_then(|data| data.get("change").cloned())))
        .collect();
    let last = (FLOOD - 1).to_string();
    assert_eq!(state, BTreeSet::from([("a".to_owned(), Some(last)), ("c".to_owned(), None)]));
}

fn forgetful() -> ApiServer {
    ApiServer::new(Options { history: 4, ..options() }).unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_token_that_is_too_old_comes_with_another_that_goes_on() {
    let server = forgetful();
    create(&server, &["a", "b", "c", "d"]).await;
    let first = get(&server, &format!("{MAPS}?limit=2")).await.1;
    assert_eq!(names(&first), ["a", "b"]);
    let token = first["metadata"]["continue"].as_str().unwrap();
    create(&server, &["a2", "e"]).await;
    flood(&server, 8).await;

    let (code, status) = get(&server, &format!("{MAPS}?limit=2&continue={token}")).await;
    assert_eq!((code, &status["reason"], &status["status"]), (410, &json!("Expired"), &json!("Failure")));
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("The provided continue parameter is too old"), "{message}");
    let token = status["metadata"]["continue"].as_str().unwrap();
    let second = get(&server, &format!("{MAPS}?limit=2&continue={token}")).await.1;
    assert_eq!(names(&second), ["c", "d"], "what came before the place is not seen any more");
    let token = second["metadata"]["continue"].as_str().unwrap();
    assert_eq!(names(&get(&server, &format!("{MAPS}?limit=2&continue={token}")).await.1), ["e"]);

    assert_eq!(get(&server, &format!("{MAPS}?continue=nonsense")).await.0, 400);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_forgotten_is_expired() {
    let server = forgetful();
    create(&server, &["a"]).await;
    let old = get(&server, MAPS).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    flood(&server, 8).await;
    let (code, status) =
        get(&server, &format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact")).await;
    assert_eq!((code, &status["reason"]), (410, &json!("Expired")));
    // A watch begins and says so in its first event.
    let events: Vec<Value> = watch(&server, &format!("resourceVersion={old}")).await.collect().await;
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0]["type"], &events[0]["object"]["code"]), (&json!("ERROR"), &json!(410)));
    let message = events[0]["object"]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("too old resource version: {old} (")), "{message}");
    let (code, list) =
        get(&server, &format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!((code, names(&list)), (200, vec!["a"]));
}
