//! `gantry up` and `gantry down`: a cluster in this process, or in one that this process leaves behind.

mod detach;
mod down;
mod live;
pub(crate) mod nodes;

use std::io::IsTerminal as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gantry_apiserver::pki::ServerIdentity;
use gantry_cluster::{Cluster, ClusterOptions, NodeGroup};
use gantry_kit::{CancellationToken, RandomIds, SystemClock, init_logging, shutdown_signal};
use tokio::net::TcpListener;

use crate::args::UpOptions;
use crate::fault;
use crate::hint::WithHint as _;
use crate::instance::{Claim, Info};
pub(crate) use detach::detach;
pub(crate) use down::{down, list};
use nodes::Group;

/// A cluster that answers, and what ends it.
struct Running {
    cluster: Cluster,
    cancel: CancellationToken,
    serving: tokio::task::JoinHandle<anyhow::Result<()>>,
}

/// Runs a cluster until SIGINT or SIGTERM.
pub(crate) async fn run(options: &UpOptions, kubeconfig: Option<PathBuf>) -> anyhow::Result<()> {
    init_logging("warn", false);
    let claim = Claim::take(options.name.as_deref())?;
    let groups = groups(options)?;
    let faults = fault::listen(claim.folder())?;
    let mut stop = std::pin::pin!(shutdown_signal());
    // Entries in a file of the user's lead nowhere once a cluster that nobody keeps has ended.
    let borrowed = kubeconfig.clone().filter(|_| options.state.is_none());
    let mut running = tokio::select! {
        running = start(options, kubeconfig, &claim, &groups) => running?,
        () = &mut stop => {
            eprintln!("\nstopped before {} was ready", claim.name());
            return Ok(());
        }
    };
    let mut outcome = Ok(());
    tokio::select! {
        () = stop => {}
        ended = &mut running.serving => outcome = Err(unreachable(ended)),
        () = fault::serve(faults, &running.cluster) => {}
        () = live::show(running.cluster.client(), std::io::stdout().is_terminal()) => {}
    }
    eprintln!("\nstopping {} …", claim.name());
    running.cluster.shutdown().await;
    running.cancel.cancel();
    // The listener has nothing to lose: whatever it reports on the way out is not the user's concern.
    if outcome.is_ok() {
        let _ = tokio::time::timeout(Duration::from_secs(2), running.serving).await;
    }
    if let Some(path) = borrowed {
        gantry_apiserver::remove_from_kubeconfig(&path, claim.name())?;
    }
    outcome
}

/// Why nobody can reach the API server: its listener has ended by itself.
fn unreachable(ended: Result<anyhow::Result<()>, tokio::task::JoinError>) -> anyhow::Error {
    let cause = match ended {
        Ok(Ok(())) => anyhow::anyhow!("it was closed"),
        Ok(Err(error)) => error,
        Err(panic) => panic.into(),
    };
    cause.context("the API server's listener ended")
}

/// Starts the cluster, waits until it is ready and says where it is.
async fn start(
    options: &UpOptions,
    kubeconfig: Option<PathBuf>,
    claim: &Claim,
    groups: &[Group],
) -> anyhow::Result<Running> {
    let started = tokio::time::Instant::now();
    let cancel = CancellationToken::new();

    // The port is taken first: a cluster that nobody can reach is not worth starting.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}"))
        .hint(|| "leave out --port to get a free one".to_owned())?;
    let server = format!("https://{}", listener.local_addr()?);
    // Credentials live with the state, so that a kubeconfig stays good across runs.
    let credentials = options.state.as_deref().unwrap_or_else(|| claim.folder()).join("pki");
    let identity = ServerIdentity::load_or_create(&credentials)?;
    let kubeconfig = kubeconfig.unwrap_or_else(|| claim.folder().join("kubeconfig"));
    identity.write_kubeconfig(&kubeconfig, claim.name(), &server)?;

    let cluster = Cluster::start(
        ClusterOptions {
            nodes: groups.iter().map(node_group).collect(),
            dir: claim.folder().join("run"),
            state_dir: options.state.clone(),
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds::default()),
        },
        cancel.clone(),
    )
    .await?;
    let mut serving = tokio::spawn({
        let (api, cancel) = (cluster.api().clone(), cancel.clone());
        async move { Ok(api.serve_tls(listener, &identity, cancel).await?) }
    });
    let answering = started.elapsed();
    tokio::select! {
        ready = cluster.ready() => ready?,
        ended = &mut serving => return Err(unreachable(ended)),
    }
    greet(claim, groups, &server, &kubeconfig, answering, started.elapsed());
    // Last: `--detach` shows what was printed until then.
    claim.publish(&Info {
        name: claim.name().to_owned(),
        pid: i32::try_from(std::process::id()).context("read this process's number")?,
        server,
        kubeconfig,
    })?;
    Ok(Running { cluster, cancel, serving })
}

fn groups(options: &UpOptions) -> anyhow::Result<Vec<Group>> {
    match (&options.nodes, &options.file) {
        (Some(flag), _) => Ok(flag.0.clone()),
        (None, Some(path)) => nodes::from_file(path),
        (None, None) => Ok(nodes::default_nodes()),
    }
}

fn node_group(group: &Group) -> NodeGroup {
    NodeGroup {
        profile: group.profile.clone(),
        count: group.count,
        gpus_per_node: group.gpus,
        labels: group.labels.clone(),
        taints: group.taints.iter().map(nodes::NodeTaint::to_api).collect(),
        ..NodeGroup::default()
    }
}

/// `1 node`, `2 nodes`.
fn counted(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn greet(
    claim: &Claim,
    groups: &[Group],
    server: &str,
    kubeconfig: &Path,
    answering: Duration,
    ready: Duration,
) {
    let nodes: u32 = groups.iter().map(|group| group.count).sum();
    let gpus: u32 = groups.iter().map(|group| group.count * group.gpus).sum();
    outln!(
        "cluster {} is ready: {}, {} (API after {:.1} s, nodes after {:.1} s)",
        claim.name(),
        counted(nodes, "node"),
        counted(gpus, "GPU"),
        answering.as_secs_f64(),
        ready.as_secs_f64()
    );
    outln!("  API server  {server}");
    outln!("  kubeconfig  {}", kubeconfig.display());
    outln!();
    outln!("try next:");
    outln!("  export KUBECONFIG={}", kubeconfig.display());
    outln!("  kubectl get nodes -L nvidia.com/gpu.product");
    outln!("  kubectl apply -f examples/torch-gpu-pod.yaml");
    outln!("  kubectl exec torch-gpu-pod -- nvidia-smi");
    outln!("  gantry get gpus");
    outln!();
}

/// Asks again and again whether another process has got there; false if it has not within `patience`.
#[expect(
    clippy::disallowed_methods,
    reason = "no runtime runs in this process, which only waits for another"
)]
fn poll(patience: Duration, mut probe: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<bool> {
    let step = Duration::from_millis(50);
    for _ in 0..patience.as_millis() / step.as_millis() {
        if probe()? {
            return Ok(true);
        }
        std::thread::sleep(step);
    }
    Ok(false)
}
