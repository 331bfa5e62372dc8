//! Whole clusters, in real time.

use gantry_kit::{SeededIds, SystemClock};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use super::*;

async fn start(folder: &std::path::Path, state: Option<PathBuf>) -> Cluster {
    let group = |profile: &str, count, gpus_per_node| NodeGroup {
        profile: profile.to_owned(),
        count,
        gpus_per_node,
        ..NodeGroup::default()
    };
    let options = ClusterOptions {
        nodes: vec![
            group("a100-80", 2, 8),
            group("t4", 1, 2),
            NodeGroup { name_prefix: "cpu".to_owned(), ..group("", 1, 0) },
        ],
        dir: folder.to_owned(),
        state_dir: state,
        clock: Arc::new(SystemClock),
        ids: Arc::new(SeededIds::new(7)),
    };
    for _ in 0..500 {
        match Cluster::start(options.clone(), CancellationToken::new()).await {
            Ok(cluster) => {
                cluster.ready().await.unwrap();
                return cluster;
            }
            // The tasks of the cluster before have not all ended yet.
            Err(Error::ApiServer(gantry_apiserver::Error::InUse { .. })) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the cluster before does not end")
}

fn pod(name: &str, gpus: u32) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"containers": [{
            "name": "c", "image": "i", "command": ["sleep", "infinity"],
            "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
        }]},
    }))
    .unwrap()
}

async fn running(client: &Client, name: &str) -> Pod {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    for _ in 0..1_500 {
        let pod = pods.get(name).await.unwrap();
        if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running") {
            return pod;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{name} does not run: {:?}", pods.get(name).await.unwrap().status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_schedules_and_runs_gpu_pods_through_every_restart() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = start(folder.path(), None).await;
    let client = cluster.client();
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let names: Vec<String> = nodes.iter().map(kube::ResourceExt::name_any).collect();
    assert_eq!(names, ["a100-80-1", "a100-80-2", "cpu-1", "t4-1"]);
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &pod("big", 8)).await.unwrap();
    let big = running(&client, "big").await;
    assert!(big.annotations().contains_key(gantry_api::ASSIGNMENT_ANNOTATION));
    let node = big.spec.unwrap().node_name.unwrap();
    cluster.restart_scheduler().await.unwrap();
    cluster.restart_agent(&node).unwrap();
    cluster.restart_kubelet(&node).await.unwrap();
    pods.create(&PostParams::default(), &pod("other", 8)).await.unwrap();
    assert_ne!(running(&client, "other").await.spec.unwrap().node_name.unwrap(), node);
    pods.delete("big", &DeleteParams::default()).await.unwrap();
    pods.create(&PostParams::default(), &pod("next", 8)).await.unwrap();
    assert_eq!(running(&client, "next").await.spec.unwrap().node_name.unwrap(), node);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_kept_comes_back_with_its_pods() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let cluster = start(&folder.path().join("a"), Some(state.clone())).await;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": serde_json::to_value(pod("x", 1)).unwrap()["spec"]},
        },
    }))
    .unwrap();
    Api::namespaced(cluster.client(), "default").create(&PostParams::default(), &deployment).await.unwrap();
    let ready = async |client: Client| {
        let api: Api<Deployment> = Api::namespaced(client, "default");
        for _ in 0..1_500 {
            if api.get("d").await.unwrap().status.and_then(|status| status.ready_replicas) == Some(2) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{:?}", api.get("d").await.unwrap().status);
    };
    ready(cluster.client()).await;
    let list = async |client: Client| -> Vec<String> {
        let pods = Api::<Pod>::namespaced(client, "default").list(&ListParams::default()).await.unwrap();
        pods.iter().map(|pod| pod.uid().unwrap()).collect()
    };
    let before = list(cluster.client()).await;
    cluster.shutdown().await;
    drop(cluster);

    let cluster = start(&folder.path().join("b"), Some(state)).await;
    ready(cluster.client()).await;
    assert_eq!(list(cluster.client()).await, before);
    let pods =
        Api::<Pod>::namespaced(cluster.client(), "default").list(&ListParams::default()).await.unwrap();
    for pod in pods {
        assert_eq!(running(&cluster.client(), &pod.name_any()).await.metadata.deletion_timestamp, None);
    }
    cluster.shutdown().await;
}

#[tokio::test]
async fn options_that_cannot_be_met_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (group, expected) in [
        (NodeGroup { profile: "gtx-9999".to_owned(), ..NodeGroup::default() }, "gtx-9999"),
        (NodeGroup { gpus_per_node: 17, ..NodeGroup::default() }, "17"),
    ] {
        let options = ClusterOptions {
            nodes: vec![group],
            dir: folder.path().to_owned(),
            state_dir: None,
            clock: Arc::new(SystemClock),
            ids: Arc::new(SeededIds::new(7)),
        };
        let error = Cluster::start(options, CancellationToken::new()).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
