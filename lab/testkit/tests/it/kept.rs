//! Clusters whose state is kept: ended at any moment, cut at any byte.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use gantry_cluster::{Cluster, ClusterOptions, NodeGroup};
use gantry_kit::{CancellationToken, RandomIds, SystemClock};
use gantry_testkit::eventually;
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams};
use serde_json::Value;

use crate::faults::{Draws, assigned_to_pod, is_settled, name, no_gpu_has_two_owners, phase, pod, text};

async fn kept_cluster(run: &Path, state: &Path) -> anyhow::Result<Cluster> {
    gantry_kit::install_crypto();
    let options = ClusterOptions {
        nodes: vec![NodeGroup { count: 2, ..NodeGroup::default() }],
        dir: run.to_owned(),
        state_dir: Some(state.to_owned()),
        clock: Arc::new(SystemClock),
        ids: Arc::new(RandomIds::default()),
    };
    // The tasks of the cluster before may not all have ended.
    eventually("a cluster starts", async || {
        Ok(Cluster::start(options.clone(), CancellationToken::new()).await?)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_cluster_that_ends_at_any_moment_comes_back_with_the_same_owners() {
    if crate::left_out_on_kubernetes(
        "a_kept_cluster_that_ends_at_any_moment_comes_back_with_the_same_owners",
        "it is about the state of the embedded cluster",
    ) {
        return;
    }
    let folder = tempfile::Builder::new().prefix("gk").tempdir_in("/tmp").unwrap();
    let state = folder.path().join("state");
    let mut draws = Draws(11);
    let mut before: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for round in 0..6 {
        let cluster = kept_cluster(&folder.path().join(round.to_string()), &state).await.unwrap();
        cluster.ready().await.unwrap();
        let pods = pods_of(&cluster);
        same_owners(&pods, &before).await.with_context(|| format!("round {round}")).unwrap();
        // Some come, some go, and the end comes in the middle of it.
        for i in 0..3 {
            let pod = pod(&format!("r{round}-{i}"), 1 + u32::try_from(draws.below(3)).unwrap());
            pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        }
        if round > 1 {
            let victim = format!("r{}-{}", round - 2, draws.below(3));
            pods.delete(&victim, &DeleteParams::default()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(u64::try_from(draws.below(60)).unwrap())).await;
        before = owners(&pods).await.unwrap();
        if round % 2 == 0 {
            cluster.shutdown().await;
        }
        drop(cluster);
    }
    let cluster = kept_cluster(&folder.path().join("last"), &state).await.unwrap();
    cluster.ready().await.unwrap();
    all_whole(cluster.client(), &before).await.unwrap();
    cluster.shutdown().await;
}

/// The GPUs of each running pod that has some, by its UID.
async fn owners(pods: &Api<DynamicObject>) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let list = values(pods).await?;
    no_gpu_has_two_owners(&list)?;
    let mut owners = BTreeMap::new();
    for pod in
        list.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null() && phase(pod) == "Running")
    {
        let gpus = assigned_to_pod(pod)?;
        if !gpus.is_empty() {
            owners.insert(text(pod, "/metadata/uid").to_owned(), gpus);
        }
    }
    Ok(owners)
}

async fn values(pods: &Api<DynamicObject>) -> anyhow::Result<Vec<Value>> {
    let list = pods.list(&ListParams::default()).await?;
    Ok(list.items.iter().map(serde_json::to_value).collect::<Result<_, _>>()?)
}

/// Waits until every pod runs or waits for GPUs; those of `before` must have what they had.
async fn same_owners(
    pods: &Api<DynamicObject>,
    before: &BTreeMap<String, BTreeSet<String>>,
) -> anyhow::Result<()> {
    eventually("every pod runs or waits", async || {
        for pod in values(pods).await? {
            ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "{} still ends", name(&pod));
            ensure!(is_settled(&pod), "{}: {}", name(&pod), pod["status"]);
        }
        Ok(())
    })
    .await?;
    let now = owners(pods).await?;
    for (uid, gpus) in before {
        ensure!(now.get(uid) == Some(gpus), "{uid} had {gpus:?} and has {:?}", now.get(uid));
    }
    Ok(())
}

async fn all_whole(client: Client, before: &BTreeMap<String, BTreeSet<String>>) -> anyhow::Result<()> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    let pods: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    same_owners(&pods, before).await?;
    pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    for i in 0..2 {
        let whole = serde_json::from_value(pod(&format!("whole-{i}"), 8))?;
        pods.create(&PostParams::default(), &whole).await?;
    }
    eventually("all GPUs are given away again", async || {
        let all = values(&pods).await?;
        ensure!(all.len() == 2 && all.iter().all(|pod| phase(pod) == "Running"), "{} pods", all.len());
        Ok(())
    })
    .await
}

fn pods_of(cluster: &Cluster) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"));
    Api::namespaced_with(cluster.client(), "default", &resource)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// The log of the API server's store that is written to.
fn log_of(state: &Path) -> PathBuf {
    let files = std::fs::read_dir(state.join("api")).unwrap();
    let logs = files.map(|entry| entry.unwrap().path());
    logs.filter(|path| path.file_stem().is_some_and(|stem| stem == "log")).max().expect("a log")
}

/// The API server loses its last writes while kubelets and agents have theirs: bindings are gone whose pods hold GPUs already, and
/// deletions whose GPUs are given away again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_cut_at_any_byte_comes_back_without_a_gpu_lost_or_doubled() {
    if crate::left_out_on_kubernetes(
        "a_state_cut_at_any_byte_comes_back_without_a_gpu_lost_or_doubled",
        "it is about the state of the embedded cluster",
    ) {
        return;
    }
    let folder = tempfile::Builder::new().prefix("gk").tempdir_in("/tmp").unwrap();
    let state = folder.path().join("state");
    let cluster = kept_cluster(&folder.path().join("run"), &state).await.unwrap();
    cluster.ready().await.unwrap();
    let pods = pods_of(&cluster);
    let start = std::fs::metadata(log_of(&state)).unwrap().len();
    for (index, gpus) in [2, 3, 1, 4].into_iter().enumerate() {
        let pod = serde_json::from_value(pod(&format!("p{index}"), gpus)).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    same_owners(&pods, &BTreeMap::new()).await.unwrap();
    pods.delete("p0", &DeleteParams::default()).await.unwrap();
    pods.create(&PostParams::default(), &serde_json::from_value(pod("p4", 2)).unwrap()).await.unwrap();
    eventually("four pods run", async || {
        ensure!(owners(&pods).await?.len() == 4, "not yet");
        Ok(())
    })
    .await
    .unwrap();
    cluster.shutdown().await;
    drop(cluster);
    let end = std::fs::metadata(log_of(&state)).unwrap().len();
    let mut draws = Draws(5);
    let span = usize::try_from(end - start).unwrap();
    for round in 0..12 {
        let cut = end - u64::try_from(draws.below(span)).unwrap();
        let copied = folder.path().join(format!("state-{round}"));
        copy(&state, &copied).unwrap();
        let log = std::fs::OpenOptions::new().write(true).open(log_of(&copied)).unwrap();
        log.set_len(cut).unwrap();
        let cluster = kept_cluster(&folder.path().join(round.to_string()), &copied).await.unwrap();
        cluster.ready().await.unwrap();
        all_whole(cluster.client(), &BTreeMap::new())
            .await
            .with_context(|| format!("cut at byte {cut} of {end}"))
            .unwrap();
        cluster.shutdown().await;
    }
}
