//! How fast a large cluster fills.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use gantry_apiserver::{ApiServer, Options};
use gantry_kit::{RandomIds, SystemClock};
use gantry_testkit::Lab;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, timeout};

use crate::{Figure, create_all, pod, request, resident_mib, seconds};

const FILL_NODES: u32 = 1_000;
const FILL_PODS: usize = 10_000;

/// How long the filling may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(300);

/// 10,000 pods on 1,000 nodes with 8 GPUs each, from the first create to the last pod running. 8,000 have a GPU each; the rest
/// ask for none, for there are no more.
pub(crate) async fn fill() -> anyhow::Result<Vec<Figure>> {
    let lab = Lab::start(&[("a100-80", FILL_NODES)]).await?;
    let gpus = usize::try_from(FILL_NODES)? * 8;
    let client = lab.client();
    let all_run = tokio::spawn(all_run(client.clone()));
    let start = Instant::now();
    let pods = (0..FILL_PODS).map(|index| pod(&format!("pod-{index}"), u32::from(index < gpus)));
    create_all(&client, pods).await?;
    timeout(PATIENCE, all_run).await.context("not all pods run after 300 s")???;
    let filled = start.elapsed();
    let resident_mib = resident_mib()?;
    lab.stop().await;

    // The same writes by a client that does not think: create, bind to any node, report running.
    let server = ApiServer::new(Options::new(Arc::new(SystemClock), Arc::new(RandomIds::default())))?;
    let client = server.client();
    let start = Instant::now();
    create_all(&client, (0..FILL_PODS).map(|index| pod(&format!("pod-{index}"), 0))).await?;
    futures::stream::iter((0..FILL_PODS).map(anyhow::Ok))
        .try_for_each_concurrent(64, async |index| {
            let path = format!("/api/v1/namespaces/default/pods/pod-{index}");
            let node = format!("node-{}", index % usize::try_from(FILL_NODES)?);
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": format!("pod-{index}")},
                "target": {"kind": "Node", "name": node},
            });
            request(&client, "POST", &format!("{path}/binding"), "application/json", &binding).await?;
            let status = json!({"status": {"phase": "Running"}});
            request(&client, "PATCH", &format!("{path}/status"), "application/merge-patch+json", &status)
                .await
        })
        .await?;
    let unthinking = start.elapsed();
    let rate = |time: Duration| FILL_PODS as f64 / seconds(time);
    Ok(vec![
        Figure {
            name: "fill/rate",
            value: rate(filled),
            unit: "pods/s",
            baseline: rate(unthinking),
            against: "the same writes without scheduler and kubelets",
        },
        Figure { name: "fill/memory", value: resident_mib, unit: "MiB", baseline: 2048.0, against: "target" },
    ])
}

/// Completes when every pod runs. It counts them from one watch of their metadata, which costs little: to ask again and again would time itself.
async fn all_run(client: Client) -> anyhow::Result<()> {
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client, "default");
    let config = watcher::Config::default().fields("status.phase=Running");
    let mut events = std::pin::pin!(watcher(pods, config));
    let mut running = HashSet::new();
    while running.len() < FILL_PODS {
        match events.next().await.context("the watch ended")?? {
            watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
                running.insert(pod.name_any());
            }
            watcher::Event::Delete(pod) => bail!("{} has stopped running", pod.name_any()),
            watcher::Event::Init | watcher::Event::InitDone => {}
        }
    }
    Ok(())
}
