//! A whole day of a controller, a reflector and a lease in a moment, and the same day every time.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use gantry_apiserver::ApiServer;
use gantry_kit::CancellationToken;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

/// Writes into a ConfigMap's label in which minute of the day it was reconciled last. The write wakes the controller once
/// more, which then has nothing to change.
async fn reconcile(map: Arc<ConfigMap>, context: Arc<(Client, Instant)>) -> Result<Action, kube::Error> {
    let maps: Api<ConfigMap> = Api::namespaced(context.0.clone(), "default");
    let minute = context.1.elapsed().as_secs() / 60;
    let patch = json!({"metadata": {"labels": {"seen": minute.to_string()}}});
    maps.patch(&map.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(Action::requeue(Duration::from_secs(600)))
}

fn spawn_reflector(client: Client, log: Arc<Mutex<Vec<String>>>) {
    let (reader, writer) = reflector::store::<Pod>();
    let stream =
        watcher(Api::<Pod>::all(client), watcher::Config::default()).reflect(writer).applied_objects();
    tokio::spawn(async move {
        stream
            .for_each(|pod| {
                let line = match pod {
                    Ok(pod) => format!("pod {} of {}", pod.name_any(), reader.state().len()),
                    Err(error) => format!("{error}"),
                };
                log.lock().unwrap().push(line);
                futures::future::ready(())
            })
            .await;
    });
}

/// Writes down every change of a kind's objects, with the whole object, as a client that watches sees it.
fn record(client: Client, version: &str, kind: &str, log: Arc<Mutex<Vec<String>>>) {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let objects: Api<DynamicObject> = Api::all_with(client, &resource);
    tokio::spawn(watcher(objects, watcher::Config::default()).for_each(move |event| {
        let line = match event {
            Ok(watcher::Event::Apply(object)) => {
                format!("applied {}", serde_json::to_string(&object).unwrap())
            }
            Ok(watcher::Event::Delete(object)) => {
                format!("deleted {}", serde_json::to_string(&object).unwrap())
            }
            other => format!("{other:?}"),
        };
        log.lock().unwrap().push(line);
        futures::future::ready(())
    }));
}

async fn hold_lease(client: Client) {
    let leases: Api<Lease> = Api::namespaced(client, "default");
    let lease = json!({
        "metadata": {"name": "leader"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15},
    });
    leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    for turn in 0u32.. {
        tokio::time::sleep(Duration::from_secs(300)).await;
        let patch = json!({"spec": {"leaseTransitions": turn}});
        leases.patch("leader", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
}

/// Runs a day and returns everything that anybody could have seen of it.
async fn a_day(seed: u64) -> String {
    let server: ApiServer = common::server_of(seed);
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let controllers = CancellationToken::new();
    let _end = controllers.clone().drop_guard();
    tokio::spawn({
        let server = server.clone();
        async move { server.run_controllers(controllers).await }
    });
    for (version, kind) in [("v1", "ConfigMap"), ("v1", "Pod"), ("coordination.k8s.io/v1", "Lease")] {
        record(server.client(), version, kind, log.clone());
    }
    let maps: Api<ConfigMap> = Api::namespaced(server.client(), "default");
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    let context = Arc::new((server.client(), Instant::now()));
    tokio::spawn(
        Controller::new(maps.clone(), watcher::Config::default())
            .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), context)
            .for_each(|_| futures::future::ready(())),
    );
    // Each in a second of its own: kube's scheduler keeps what is due at one instant in a hash set, and takes it from there in an
    // order that no seed decides.
    for name in ["a", "b", "c"] {
        tokio::time::sleep(Duration::from_secs(7)).await;
        let map = json!({"metadata": {"generateName": name}});
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    }
    spawn_reflector(server.client(), log.clone());
    tokio::spawn(hold_lease(server.client()));
    let all = common::ok(&server, "GET", "/api/v1/configmaps", json!(null)).await;
    for hour in 0..24 {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let name = format!("p{}", hour % 5);
        let _ = pods.delete(&name, &DeleteParams::default()).await;
        let pod = serde_json::from_value(common::pod(&name)).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    let mut seen = log.lock().unwrap().join("\n");
    for path in ["configmaps", "pods"] {
        seen += &common::get(&server, &format!("/api/v1/{path}")).await.1.to_string();
    }
    seen += &all.to_string();
    let leases: Api<Lease> = Api::all(server.client());
    let leases = leases.list(&ListParams::default()).await.unwrap();
    seen + &serde_json::to_string(&leases).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_history_byte_for_byte() {
    let run = |seed| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(a_day(seed))
    };
    let first = run(1);
    // 145 times three maps, and the lease every five minutes.
    let of =
        |part: &str| first.lines().filter(|line| line.starts_with("applied") && line.contains(part)).count();
    assert_eq!((of("\"kind\":\"ConfigMap\"") / 100, of("\"kind\":\"Lease\"") / 100), (4, 2), "{first}");
    assert_eq!(first.lines().filter(|line| line.starts_with("deleted")).count(), 19, "{first}");
    assert!(first.contains("pod p4 of 5"), "{first}");
    assert_eq!(first, run(1));
    assert_ne!(first, run(2), "another seed gives other identifiers");
}
