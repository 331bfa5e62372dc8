//! The controllers over the embedded API server, with pods that run in virtual time.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod harness;

use harness::{Cluster, EXIT, SECONDS, UNREADY, is_ready, names, template};
use serde_json::{Value, json};

const APPS: &str = "/apis/apps/v1/namespaces/default";
const BATCH: &str = "/apis/batch/v1/namespaces/default";
const CORE: &str = "/api/v1/namespaces/default";

fn deployment(replicas: i64, image: &str, spec: &Value) -> Value {
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
            "template": template("web", image, json!({})),
        },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        deployment["spec"][key] = value.clone();
    }
    deployment
}

/// What `kubectl rollout status` waits for.
fn is_rolled_out(deployment: &Value) -> bool {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && status["updatedReplicas"] == spec["replicas"]
        && status["replicas"] == spec["replicas"]
        && status["availableReplicas"] == spec["replicas"]
}

fn reason(object: &Value, kind: &str) -> String {
    let conditions = object["status"]["conditions"].as_array();
    let condition =
        conditions.and_then(|all| all.iter().find(|c| c["type"] == kind && c["status"] == "True"));
    condition.map_or(String::new(), |condition| condition["reason"].as_str().unwrap_or("").to_owned())
}

fn images(pods: &[Value]) -> Vec<&str> {
    let mut images: Vec<&str> =
        pods.iter().map(|pod| pod["spec"]["containers"][0]["image"].as_str().unwrap()).collect();
    images.sort_unstable();
    images.dedup();
    images
}

#[tokio::test(start_paused = true)]
async fn a_deployment_rolls_forward_and_back_and_scales() {
    let cluster = Cluster::start(&["n1"]).await;
    let path = format!("{APPS}/deployments/web");
    cluster.apply(deployment(4, "a", &json!({}))).await;
    let first = cluster.until(&path, is_rolled_out).await;
    assert_eq!(first["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    assert_eq!(reason(&first, "Progressing"), "NewReplicaSetAvailable");
    assert_eq!(reason(&first, "Available"), "MinimumReplicasAvailable");
    assert_eq!(cluster.pods().await.len(), 4);

    let image = |image: &str| json!({"spec": {"template": template("web", image, json!({}))}});
    cluster.patch(&path, image("b")).await;
    let second = cluster.until(&path, is_rolled_out).await;
    assert_eq!(second["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    let pods = cluster.until_pods(|pods| pods.len() == 4).await;
    assert_eq!(images(&pods), ["b"]);
    let sets = cluster.list(&format!("{APPS}/replicasets")).await;
    assert_eq!(sets.len(), 2);

    // `kubectl rollout undo` puts the template of the older ReplicaSet back.
    let old = sets.iter().find(|set| set["spec"]["template"]["spec"]["containers"][0]["image"] == "a");
    let mut template = old.unwrap()["spec"]["template"].clone();
    template["metadata"]["labels"].as_object_mut().unwrap().remove("pod-template-hash");
    cluster.patch(&path, json!({"spec": {"template": template}})).await;
    let third = cluster.until(&path, is_rolled_out).await;
    assert_eq!(third["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "3");
    assert_eq!(cluster.list(&format!("{APPS}/replicasets")).await.len(), 2, "the old set is used again");
    let pods = cluster.until_pods(|pods| pods.len() == 4).await;
    assert_eq!(images(&pods), ["a"]);

    for replicas in [7, 2, 0] {
        cluster.patch(&path, json!({"spec": {"replicas": replicas}})).await;
        cluster.until_pods(|pods| pods.len() == usize::try_from(replicas).unwrap()).await;
    }
    let reasons = cluster.reasons("web").await;
    assert_eq!(reasons, ["ScalingReplicaSet"]);
}

#[tokio::test(start_paused = true)]
async fn a_rollout_to_pods_that_never_become_ready_keeps_the_old_ones_and_misses_its_deadline() {
    let cluster = Cluster::start(&["n1"]).await;
    let path = format!("{APPS}/deployments/web");
    let strategy = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}, "type": "RollingUpdate"});
    cluster.apply(deployment(3, "a", &json!({"strategy": strategy, "progressDeadlineSeconds": 100}))).await;
    cluster.until(&path, is_rolled_out).await;
    let broken = template("web", "b", json!({UNREADY: "yes"}));
    cluster.patch(&path, json!({"spec": {"template": broken}})).await;
    let stuck = cluster
        .until(&path, |deployment| {
            deployment["status"]["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|c| c["reason"] == "ProgressDeadlineExceeded"))
        })
        .await;
    assert_eq!(stuck["status"]["availableReplicas"], 3);
    assert_eq!(stuck["status"]["unavailableReplicas"], 1);
}

#[tokio::test(start_paused = true)]
async fn recreate_never_runs_old_and_new_together() {
    let cluster = Cluster::start(&["n1"]).await;
    let path = format!("{APPS}/deployments/web");
    cluster.apply(deployment(3, "a", &json!({"strategy": {"type": "Recreate"}}))).await;
    cluster.until(&path, is_rolled_out).await;
    cluster.patch(&path, json!({"spec": {"template": template("web", "b", json!({}))}})).await;
    let mut seen_new = false;
    while !seen_new {
        let pods = cluster.list(&format!("{CORE}/pods")).await;
        assert!(images(&pods).len() <= 1, "{:?}", images(&pods));
        seen_new = images(&pods) == ["b"];
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    cluster.until(&path, is_rolled_out).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_set_adopts_and_releases_by_labels() {
    let cluster = Cluster::start(&["n1"]).await;
    let mut pod = template("web", "a", json!({}));
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    pod["metadata"]["name"] = "lone".into();
    cluster.apply(pod).await;
    let set = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}},
                 "template": template("web", "a", json!({}))},
    });
    cluster.apply(set).await;
    let path = format!("{APPS}/replicasets/web");
    cluster.until(&path, |set| set["status"]["readyReplicas"] == 2).await;
    let lone = cluster.get(&format!("{CORE}/pods/lone")).await.unwrap();
    assert_eq!(lone["metadata"]["ownerReferences"][0]["name"], "web");
    assert_eq!(cluster.pods().await.len(), 2);
    cluster.patch(&format!("{CORE}/pods/lone"), json!({"metadata": {"labels": {"app": "other"}}})).await;
    let pods = cluster.until_pods(|pods| pods.len() == 3).await;
    let lone = pods.iter().find(|pod| pod["metadata"]["name"] == "lone").unwrap();
    assert!(lone["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty));
}

fn job(name: &str, spec: &Value, annotations: Value) -> Value {
    let mut template = template(name, "train", annotations);
    template["spec"]["restartPolicy"] = "Never".into();
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        job["spec"][key] = value.clone();
    }
    job
}

#[tokio::test(start_paused = true)]
async fn a_job_completes_and_keeps_its_counts_when_its_pods_are_deleted() {
    let cluster = Cluster::start(&["n1"]).await;
    let spec = json!({"completions": 6, "parallelism": 2});
    cluster.apply(job("train", &spec, json!({SECONDS: "60"}))).await;
    let path = format!("{BATCH}/jobs/train");
    cluster.until(&path, |job| job["status"]["succeeded"] == 2).await;
    for pod in cluster.pods().await {
        if pod["status"]["phase"] == "Succeeded" {
            cluster.delete(&format!("{CORE}/pods/{}", pod["metadata"]["name"].as_str().unwrap())).await;
        }
    }
    let done = cluster.until(&path, |job| reason(job, "Complete") == "CompletionsReached").await;
    assert_eq!(done["status"]["succeeded"], 6);
    assert_eq!(done["status"]["failed"], Value::Null);
    let pods = cluster.list(&format!("{CORE}/pods")).await;
    assert_eq!(pods.len(), 4, "two were deleted, no more were made");
    assert!(pods.iter().all(|pod| pod["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)));
    assert!(done["status"]["completionTime"].as_str().unwrap() >= "2026-01-01T00:03:00Z");
    assert_eq!(cluster.reasons("train").await, ["Completed", "SuccessfulCreate"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_pods_fail_backs_off_and_gives_up() {
    let cluster = Cluster::start(&["n1"]).await;
    let annotations = json!({SECONDS: "1", EXIT: "1"});
    cluster.apply(job("bad", &json!({"backoffLimit": 2}), annotations)).await;
    let path = format!("{BATCH}/jobs/bad");
    let failed = cluster.until(&path, |job| !reason(job, "Failed").is_empty()).await;
    assert_eq!(reason(&failed, "Failed"), "BackoffLimitExceeded");
    assert_eq!(failed["status"]["failed"], 3);
    let reasons = cluster.reasons("bad").await;
    assert_eq!(reasons, ["BackoffLimitExceeded", "SuccessfulCreate"]);
    let last = failed["status"]["conditions"].as_array().unwrap().last().unwrap();
    // Three runs of a second with pauses of 10 and 20 seconds.
    assert!(last["lastTransitionTime"].as_str().unwrap() >= "2026-01-01T00:00:33Z", "{last}");
}

#[tokio::test(start_paused = true)]
async fn an_indexed_job_runs_each_index_once() {
    let cluster = Cluster::start(&["n1"]).await;
    let spec = json!({"completions": 5, "parallelism": 3, "completionMode": "Indexed"});
    cluster.apply(job("shard", &spec, json!({SECONDS: "10"}))).await;
    let path = format!("{BATCH}/jobs/shard");
    let done = cluster.until(&path, |job| !reason(job, "Complete").is_empty()).await;
    assert_eq!(done["status"]["completedIndexes"], "0-4");
    let mut indexes: Vec<String> = cluster
        .pods()
        .await
        .iter()
        .map(|pod| pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"].to_string())
        .collect();
    indexes.sort();
    assert_eq!(indexes, ["\"0\"", "\"1\"", "\"2\"", "\"3\"", "\"4\""]);
}

#[tokio::test(start_paused = true)]
async fn a_suspended_job_waits_and_a_finished_one_is_tidied_away() {
    let cluster = Cluster::start(&["n1"]).await;
    let spec = json!({"suspend": true, "ttlSecondsAfterFinished": 300});
    cluster.apply(job("later", &spec, json!({SECONDS: "30"}))).await;
    let path = format!("{BATCH}/jobs/later");
    cluster.until(&path, |job| reason(job, "Suspended") == "JobSuspended").await;
    cluster.sleep(3600).await;
    assert!(cluster.pods().await.is_empty());
    cluster.patch(&path, json!({"spec": {"suspend": false}})).await;
    cluster.until(&path, |job| !reason(job, "Complete").is_empty()).await;
    cluster.sleep(310).await;
    assert!(cluster.get(&path).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_cron_job_runs_through_a_day() {
    let cluster = Cluster::start(&["n1"]).await;
    let job = job("report", &json!({}), json!({SECONDS: "20"}));
    cluster
        .apply(json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "report"},
            "spec": {"schedule": "0 */6 * * *", "successfulJobsHistoryLimit": 2, "jobTemplate": {"spec": job["spec"]}},
        }))
        .await;
    cluster.sleep(25 * 3600).await;
    let cron = cluster.get(&format!("{BATCH}/cronjobs/report")).await.unwrap();
    assert_eq!(cron["status"]["lastScheduleTime"], "2026-01-02T00:00:00Z");
    assert!(cron["status"]["lastSuccessfulTime"].as_str().unwrap() >= "2026-01-02T00:00:20Z");
    assert!(cron["status"]["active"].as_array().is_none_or(Vec::is_empty));
    let jobs = cluster.list(&format!("{BATCH}/jobs")).await;
    // Minutes since the epoch: 18:00 and midnight.
    assert_eq!(names(&jobs), ["report-29454840", "report-29455200"]);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_follows_the_nodes_and_updates_node_by_node() {
    let cluster = Cluster::start(&["n1", "n2"]).await;
    cluster
        .apply(json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"},
            "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template("agent", "a", json!({}))},
        }))
        .await;
    let path = format!("{APPS}/daemonsets/agent");
    cluster.until(&path, |set| set["status"]["numberReady"] == 2).await;
    cluster.add_node("n3").await;
    cluster.until(&path, |set| set["status"]["numberReady"] == 3).await;
    let on = |pods: &[Value]| {
        let mut nodes: Vec<String> =
            pods.iter().map(|pod| pod["spec"]["nodeName"].as_str().unwrap_or("").to_owned()).collect();
        nodes.sort();
        nodes
    };
    assert_eq!(on(&cluster.pods().await), ["n1", "n2", "n3"]);
    cluster.patch(&path, json!({"spec": {"template": template("agent", "b", json!({}))}})).await;
    cluster
        .until(&path, |set| {
            set["status"]["updatedNumberScheduled"] == 3 && set["status"]["numberAvailable"] == 3
        })
        .await;
    assert_eq!(images(&cluster.pods().await), ["b"]);
    cluster.delete("/api/v1/nodes/n2").await;
    cluster.until_pods(|pods| on(pods) == ["n1", "n3"]).await;
    assert_eq!(cluster.list(&format!("{APPS}/controllerrevisions")).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_starts_in_order_and_keeps_names_and_claims() {
    let cluster = Cluster::start(&["n1"]).await;
    cluster
        .apply(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
            "spec": {
                "replicas": 3, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
                "template": template("db", "a", json!({})),
                "volumeClaimTemplates": [{
                    "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }],
            },
        }))
        .await;
    let path = format!("{APPS}/statefulsets/db");
    cluster.until(&path, |set| set["status"]["readyReplicas"] == 3).await;
    let pods = cluster.pods().await;
    assert_eq!(names(&pods), ["db-0", "db-1", "db-2"]);
    let versions: Vec<u64> = pods
        .iter()
        .map(|pod| pod["status"]["startTime"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap())
        .map(|time| u64::try_from(time.as_nanosecond()).unwrap())
        .collect();
    assert!(versions.is_sorted(), "{versions:?}");
    let claims = cluster.list(&format!("{CORE}/persistentvolumeclaims")).await;
    assert_eq!(names(&claims), ["data-db-0", "data-db-1", "data-db-2"]);

    cluster.patch(&path, json!({"spec": {"template": template("db", "b", json!({}))}})).await;
    let updated = cluster
        .until(&path, |set| {
            set["status"]["currentRevision"] == set["status"]["updateRevision"]
                && set["status"]["updatedReplicas"] == 3
                && set["status"]["readyReplicas"] == 3
        })
        .await;
    assert_eq!(updated["status"]["currentReplicas"], 3);
    assert_eq!(images(&cluster.pods().await), ["b"]);
    cluster.patch(&path, json!({"spec": {"replicas": 1}})).await;
    let pods = cluster.until_pods(|pods| pods.len() == 1).await;
    assert_eq!(names(&pods), ["db-0"]);
    assert_eq!(cluster.list(&format!("{CORE}/persistentvolumeclaims")).await.len(), 3, "claims outlive pods");
}

#[tokio::test(start_paused = true)]
async fn endpoints_follow_readiness() {
    let cluster = Cluster::start(&["n1"]).await;
    cluster
        .apply(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}]},
        }))
        .await;
    cluster.apply(deployment(3, "a", &json!({}))).await;
    let path = format!("{CORE}/endpoints/web");
    let addresses =
        |endpoints: &Value, list: &str| endpoints["subsets"][0][list].as_array().map_or(0, Vec::len);
    let endpoints = cluster.until(&path, |endpoints| addresses(endpoints, "addresses") == 3).await;
    assert_eq!(endpoints["subsets"][0]["ports"][0]["port"], 8080);
    let pods = cluster.pods().await;
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    assert!(is_ready(&pods[0]));
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let request = kube::core::Request::new(format!("{CORE}/pods"))
        .patch_subresource(
            "status",
            name,
            &kube::api::PatchParams::default(),
            &kube::api::Patch::Merge(&unready),
        )
        .unwrap();
    cluster.client.request::<Value>(request).await.unwrap();
    let endpoints = cluster.until(&path, |endpoints| addresses(endpoints, "addresses") == 2).await;
    assert_eq!(addresses(&endpoints, "notReadyAddresses"), 1);
    let slices = cluster.list("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices").await;
    let slice =
        slices.iter().find(|slice| slice["metadata"]["labels"]["kubernetes.io/service-name"] == "web");
    let ready = slice.unwrap()["endpoints"].as_array().unwrap().iter();
    assert_eq!(ready.filter(|endpoint| endpoint["conditions"]["ready"] == true).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn budgets_quotas_and_autoscalers_have_a_status() {
    let cluster = Cluster::start(&["n1"]).await;
    cluster
        .create(
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            json!({
                "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
                "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            }),
        )
        .await;
    cluster
        .create(
            &format!("{CORE}/resourcequotas"),
            json!({
                "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
                "spec": {"hard": {"pods": "10", "count/deployments.apps": "4"}},
            }),
        )
        .await;
    cluster
        .create("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "minReplicas": 3, "maxReplicas": 5,
                "metrics": [{"type": "Resource", "resource": {
                    "name": "nvidia.com/gpu", "target": {"type": "Utilization", "averageUtilization": 80},
                }}],
            },
        }))
        .await;
    cluster.apply(deployment(1, "a", &json!({}))).await;
    let scaler = cluster
        .until("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers/web", |scaler| {
            scaler["status"]["currentReplicas"] == 3
        })
        .await;
    let active = scaler["status"]["conditions"].as_array().unwrap();
    assert!(active.iter().any(|c| c["type"] == "ScalingActive" && c["reason"] == "FailedGetResourceMetric"));
    cluster
        .until("/apis/policy/v1/namespaces/default/poddisruptionbudgets/web", |budget| {
            budget["status"]["disruptionsAllowed"] == 1 && budget["status"]["expectedPods"] == 3
        })
        .await;
    cluster
        .until(&format!("{CORE}/resourcequotas/q"), |quota| {
            quota["status"]["used"] == json!({"pods": "3", "count/deployments.apps": "1"})
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_on_the_replica_set_and_the_deployment() {
    let cluster = Cluster::start(&["n1"]).await;
    let mut refused = deployment(2, "a", &json!({}));
    refused["spec"]["template"]["spec"]["priorityClassName"] = "no-such-class".into();
    cluster.apply(refused).await;
    let told = |deployment: &Value| {
        let conditions = deployment["status"]["conditions"].as_array();
        conditions
            .is_some_and(|all| all.iter().any(|c| c["type"] == "ReplicaFailure" && c["status"] == "True"))
    };
    let deployment = cluster.until(&format!("{APPS}/deployments/web"), told).await;
    assert!(deployment.to_string().contains("no-such-class"), "{deployment}");
    cluster
        .create(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
                "metadata": {"name": "no-such-class"}, "value": 5,
            }),
        )
        .await;
    let healed = cluster.until(&format!("{APPS}/deployments/web"), is_rolled_out).await;
    assert!(!told(&healed), "the failure is over: {healed}");
}

#[tokio::test(start_paused = true)]
async fn many_pods_cost_few_writes_besides_their_own() {
    let cluster = Cluster::start(&[]).await;
    let spec = json!({"completions": 3000, "parallelism": 3000});
    cluster.apply(job("wide", &spec, json!({}))).await;
    let path = format!("{BATCH}/jobs/wide");
    let wide = cluster.until(&path, |job| job["status"]["active"] == 3000).await;
    assert_eq!(cluster.pods().await.len(), 3000, "never one too many");
    assert_eq!(cluster.reasons("wide").await, ["SuccessfulCreate"]);
    let events = cluster.list(&format!("{CORE}/events")).await;
    assert!(events.len() <= 11, "{} events", events.len());
    let version: u64 = wide["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(version < 3000 + 200, "{version} writes for 3000 pods");
}

#[tokio::test(start_paused = true)]
async fn controllers_that_are_killed_and_started_again_make_no_pod_twice() {
    let mut cluster = Cluster::start(&["n1"]).await;
    cluster.apply(deployment(300, "a", &json!({}))).await;
    cluster.apply(job("train", &json!({"completions": 100, "parallelism": 50}), json!({SECONDS: "5"}))).await;
    for _ in 0..8 {
        // Not a multiple of anything: the kill comes amid whatever is going on.
        tokio::time::sleep(std::time::Duration::from_millis(737)).await;
        cluster.restart();
    }
    cluster.until(&format!("{APPS}/deployments/web"), is_rolled_out).await;
    let done = cluster.until(&format!("{BATCH}/jobs/train"), |job| !reason(job, "Complete").is_empty()).await;
    assert_eq!(done["status"]["succeeded"], 100);
    let pods = cluster.pods().await;
    let of = |app: &str| pods.iter().filter(|pod| pod["metadata"]["labels"]["app"] == app).count();
    assert_eq!((of("web"), of("train")), (300, 100));
}

#[tokio::test(start_paused = true)]
async fn watches_that_expire_are_made_good_by_a_list() {
    let cluster = Cluster::with_history(&["n1"], 4).await;
    cluster.apply(deployment(200, "a", &json!({}))).await;
    let path = format!("{APPS}/deployments/web");
    cluster.until(&path, is_rolled_out).await;
    cluster.patch(&path, json!({"spec": {"template": template("web", "b", json!({}))}})).await;
    cluster.until(&path, is_rolled_out).await;
    assert_eq!(images(&cluster.until_pods(|pods| pods.len() == 200).await), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn the_same_input_gives_the_same_history() {
    let mut histories = Vec::new();
    for _ in 0..2 {
        let cluster = Cluster::start(&["n1", "n2"]).await;
        let path = format!("{APPS}/deployments/web");
        cluster.apply(deployment(5, "a", &json!({}))).await;
        cluster.apply(job("bad", &json!({"backoffLimit": 1}), json!({SECONDS: "3", EXIT: "1"}))).await;
        cluster.until(&path, is_rolled_out).await;
        cluster.patch(&path, json!({"spec": {"template": template("web", "b", json!({}))}})).await;
        cluster.until(&path, is_rolled_out).await;
        cluster.until(&format!("{BATCH}/jobs/bad"), |job| !reason(job, "Failed").is_empty()).await;
        let mut history = Vec::new();
        for resource in ["pods", "events", "endpoints"] {
            history.extend(cluster.list(&format!("{CORE}/{resource}")).await);
        }
        history.extend(cluster.list(&format!("{APPS}/replicasets")).await);
        histories.push(history);
    }
    assert_eq!(histories[0], histories[1], "names, UIDs, versions and time stamps included");
}
