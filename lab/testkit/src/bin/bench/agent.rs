//! How fast the node agent answers its kubelet, over real Unix sockets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gantry_agent::{Agent, ConfigSource, FeatureOptions, HealthOptions, Identity};
use gantry_cluster::{DeviceManager, DeviceManagerOptions};
use gantry_gpu::{Profile, SimGpus};
use gantry_kit::{SystemClock, Tasks};
use gantry_proto::deviceplugin::device_plugin_client::DevicePluginClient;
use gantry_proto::deviceplugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Empty,
    PreferredAllocationRequest,
};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use crate::{Figure, seconds};

const STARTS: usize = 30;
const CALLS: usize = 2_000;

/// Start to registered, `Allocate`, and `GetPreferredAllocation` on nodes with 8 and 16 GPUs.
pub(crate) async fn agent() -> anyhow::Result<Vec<Figure>> {
    let eight = node(8).await?;
    let sixteen = node(16).await?;
    let micros = |time: Duration| seconds(time) * 1e6;
    let call = |name, value: Duration, baseline: Duration| Figure {
        name,
        value: micros(value),
        unit: "us",
        baseline: micros(baseline),
        against: "an empty call",
    };
    Ok(vec![
        Figure {
            name: "agent/start/p50",
            value: seconds(eight.start) * 1e3,
            unit: "ms",
            baseline: seconds(eight.empty_p50) * 1e3,
            against: "an empty call",
        },
        call("agent/allocate/p50", eight.allocate_p50, eight.empty_p50),
        call("agent/preferred/8/p99", eight.preferred_p99, eight.empty_p99),
        call("agent/preferred/16/p99", sixteen.preferred_p99, sixteen.empty_p99),
    ])
}

struct Times {
    start: Duration,
    empty_p50: Duration,
    empty_p99: Duration,
    allocate_p50: Duration,
    preferred_p99: Duration,
}

async fn node(gpus: usize) -> anyhow::Result<Times> {
    let folder = tempfile::Builder::new().prefix("gb").tempdir_in("/tmp")?;
    let root = folder.path();
    let sim = SimGpus::new(Profile::named("a100-80")?, gpus, "node-1", 0)?;
    sim.install_driver(&root.join("driver"))?;
    let options = DeviceManagerOptions { root: root.to_owned(), state: root.join("kubelet") };
    let plugins = options.plugins_dir();
    let kubelet = Tasks::default();
    let _manager = DeviceManager::start(options, kubelet.clone())?;
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let agent = Tasks::default();
        starts.push(start(root, &plugins, Arc::clone(&sim), &agent).await?);
        agent.stop().await;
    }
    let agent = Tasks::default();
    start(root, &plugins, sim, &agent).await?;
    let socket = plugins.join("nvidia-gpu.sock");
    let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))?.connect().await?;
    let client = DevicePluginClient::new(channel);
    let ids: Vec<String> = (0..gpus).map(|slot| format!("slot-{slot}")).collect();
    let empty =
        times(&client, async |mut client| client.get_device_plugin_options(Empty {}).await.map(drop)).await?;
    let allocate = times(&client, async |mut client| {
        let one = ContainerAllocateRequest { devices_ids: vec!["slot-0".to_owned()] };
        client.allocate(AllocateRequest { container_requests: vec![one] }).await.map(drop)
    })
    .await?;
    let preferred = times(&client, async |mut client| {
        let half = ContainerPreferredAllocationRequest {
            available_device_i_ds: ids.clone(),
            must_include_device_i_ds: Vec::new(),
            allocation_size: i32::try_from(gpus / 2).unwrap_or(1),
        };
        let request = PreferredAllocationRequest { container_requests: vec![half] };
        client.get_preferred_allocation(request).await.map(drop)
    })
    .await?;
    agent.stop().await;
    kubelet.stop().await;
    Ok(Times {
        start: percentile(starts, 50),
        empty_p50: percentile(empty.clone(), 50),
        empty_p99: percentile(empty, 99),
        allocate_p50: percentile(allocate, 50),
        preferred_p99: percentile(preferred, 99),
    })
}

/// Starts an agent and gives the time until the kubelet has taken its registration.
async fn start(root: &Path, plugins: &Path, gpus: Arc<SimGpus>, tasks: &Tasks) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    let (agent, handle) = Agent::new(gantry_agent::Options {
        node_name: "node-1".to_owned(),
        backend: gpus,
        identity: Identity::Assignment,
        nri: None,
        pod_resources: None,
        kubelet_pods: None,
        resource: "nvidia.com/gpu".to_owned(),
        config: ConfigSource::default(),
        kubelet_dir: plugins.to_owned(),
        cdi_dir: root.join("cdi"),
        driver_root: root.join("driver").into(),
        devices: None,
        state_dir: root.join("agent"),
        client: None,
        clock: Arc::new(SystemClock),
        watch: None,
        features: FeatureOptions::default(),
        health: HealthOptions::default(),
    })?;
    let token = tasks.token().clone();
    tasks.spawn(agent.run(token));
    handle.registrations().wait_for(|count| *count > 0).await.context("the agent ended")?;
    Ok(begin.elapsed())
}

async fn times<F>(
    client: &DevicePluginClient<Channel>,
    call: impl Fn(DevicePluginClient<Channel>) -> F,
) -> anyhow::Result<Vec<Duration>>
where
    F: Future<Output = Result<(), tonic::Status>>,
{
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let begin = Instant::now();
        call(client.clone()).await?;
        times.push(begin.elapsed());
    }
    Ok(times)
}

/// The value that `percent` of all are not above.
fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}
