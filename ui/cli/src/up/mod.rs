//! `gantry up` and `gantry down`: a cluster in this process, or in one that this process leaves behind.

mod live;
pub(crate) mod nodes;

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use gantry_apiserver::pki::ServerIdentity;
use gantry_cluster::{Cluster, ClusterOptions, NodeGroup};
use gantry_kit::{CancellationToken, RandomIds, SystemClock, init_logging, shutdown_signal};
use tokio::net::TcpListener;

use crate::args::{DownOptions, UpOptions};
use crate::instance::{self, Claim, Info};
use nodes::Group;

/// How long `--detach` and `down` wait before they give up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a cluster until SIGINT or SIGTERM.
pub(crate) async fn run(options: &UpOptions, kubeconfig: Option<PathBuf>) -> anyhow::Result<()> {
    init_logging("warn", false);
    let started = tokio::time::Instant::now();
    let claim = Claim::take(options.name.as_deref())?;
    let groups = groups(options)?;
    let cancel = CancellationToken::new();

    // The port is taken first: a cluster that nobody can reach is not worth starting.
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("listen on {address}\nhint: leave out --port to get a free one"))?;
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
    let api = cluster.api().clone();
    let serving = tokio::spawn({
        let (api, cancel) = (api.clone(), cancel.clone());
        async move { api.serve_tls(listener, &identity, cancel).await }
    });
    let answering = started.elapsed();
    cluster.ready().await?;
    claim.publish(&Info {
        name: claim.name().to_owned(),
        pid: i32::try_from(std::process::id()).context("read this process's number")?,
        server: server.clone(),
        kubeconfig: kubeconfig.clone(),
    })?;
    greet(&claim, &groups, &server, &kubeconfig, answering, started.elapsed());

    let client = cluster.client();
    tokio::select! {
        () = shutdown_signal() => {}
        () = live::show(client, std::io::stdout().is_terminal()) => {}
    }
    println!("\nstopping {} …", claim.name());
    cluster.shutdown().await;
    cancel.cancel();
    // The listener has nothing to lose: whatever it reports on the way out is not the user's concern.
    let _ = tokio::time::timeout(Duration::from_secs(2), serving).await;
    Ok(())
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
        ..NodeGroup::default()
    }
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
    println!(
        "cluster {} is ready: {nodes} nodes, {gpus} GPUs (API after {:.1} s, nodes after {:.1} s)",
        claim.name(),
        answering.as_secs_f64(),
        ready.as_secs_f64()
    );
    println!("  API server  {server}");
    println!("  kubeconfig  {}", kubeconfig.display());
    println!();
    println!("try next:");
    println!("  export KUBECONFIG={}", kubeconfig.display());
    println!("  kubectl get nodes -L nvidia.com/gpu.product");
    println!("  kubectl apply -f examples/torch-gpu-pod.yaml");
    println!("  kubectl exec torch-gpu-pod -- nvidia-smi");
    println!("  gantry get gpus");
    println!();
}

/// Starts the same command in a process of its own and returns when its cluster is ready.
pub(crate) fn detach(options: &UpOptions, kubeconfig: Option<&Path>) -> anyhow::Result<()> {
    // Bad flags are told here, where a person looks, and not in a log file.
    groups(options)?;
    // The name is fixed here so that parent and child mean the same cluster; the child takes the lock itself.
    let name = {
        let claim = Claim::take(options.name.as_deref())?;
        claim.name().to_owned()
    };
    let folder = instance::folder(&name)?;
    let log_path = folder.with_extension("log");
    let log = fs::File::create(&log_path).with_context(|| format!("create {}", log_path.display()))?;
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.args(["up", "--name", &name, "--port", &options.port.to_string()]);
    if let Some(flag) = &options.nodes {
        command.args(["--nodes", &flag.to_string()]);
    }
    if let Some(file) = &options.file {
        command.arg("--file").arg(std::path::absolute(file)?);
    }
    if let Some(state) = &options.state {
        command.arg("--state").arg(std::path::absolute(state)?);
    }
    if let Some(kubeconfig) = kubeconfig {
        command.arg("--kubeconfig").arg(std::path::absolute(kubeconfig)?);
    }
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // A process group of its own: Ctrl-C in this terminal is not meant for it.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().context("start the cluster's process")?;

    let ready = poll(|| {
        if let Some(status) = child.try_wait()? {
            let text = fs::read_to_string(&log_path).unwrap_or_default();
            bail!("the cluster did not start ({status}):\n{}", text.trim_end());
        }
        Ok(folder.join("info.json").exists())
    })?;
    if !ready {
        bail!("the cluster is not ready after {} s\nhint: cat {}", PATIENCE.as_secs(), log_path.display());
    }
    print!("{}", fs::read_to_string(&log_path).unwrap_or_default());
    println!("stop it with: gantry down {name}");
    std::io::stdout().flush()?;
    Ok(())
}

/// Asks again and again whether another process has got there; false if it has not within [`PATIENCE`].
#[expect(
    clippy::disallowed_methods,
    reason = "no runtime runs in this process, which only waits for another"
)]
fn poll(mut probe: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<bool> {
    let step = Duration::from_millis(50);
    for _ in 0..PATIENCE.as_millis() / step.as_millis() {
        if probe()? {
            return Ok(true);
        }
        std::thread::sleep(step);
    }
    Ok(false)
}

/// Stops clusters and returns when they are gone.
pub(crate) fn down(options: &DownOptions) -> anyhow::Result<()> {
    let running = instance::running()?;
    let chosen: Vec<&Info> = match (&options.name, options.all) {
        (Some(name), _) => running.iter().filter(|info| &info.name == name).collect(),
        (None, true) => running.iter().collect(),
        (None, false) if running.len() > 1 => {
            let names: Vec<&str> = running.iter().map(|info| info.name.as_str()).collect();
            bail!(
                "{} clusters run here ({}): say which\nhint: gantry down {}",
                names.len(),
                names.join(", "),
                names[0]
            );
        }
        (None, false) => running.iter().collect(),
    };
    if chosen.is_empty() {
        match &options.name {
            Some(name) => bail!("no cluster {name} runs here\nhint: gantry clusters"),
            None => {
                println!("no cluster runs here");
                return Ok(());
            }
        }
    }
    for info in chosen {
        stop(info)?;
    }
    Ok(())
}

fn stop(info: &Info) -> anyhow::Result<()> {
    use nix::sys::signal::{Signal, kill};
    kill(nix::unistd::Pid::from_raw(info.pid), Signal::SIGTERM)
        .with_context(|| format!("signal process {} of cluster {}", info.pid, info.name))?;
    let folder = instance::folder(&info.name)?;
    if !poll(|| Ok(!instance::is_held(&folder)?))? {
        bail!(
            "cluster {} did not stop within {} s\nhint: kill -9 {}",
            info.name,
            PATIENCE.as_secs(),
            info.pid
        );
    }
    println!("cluster {} is stopped", info.name);
    Ok(())
}

/// Prints the clusters that run here.
pub(crate) fn list() -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = instance::running()?
        .into_iter()
        .map(|info| vec![info.name, info.pid.to_string(), info.server, info.kubeconfig.display().to_string()])
        .collect();
    if rows.is_empty() {
        eprintln!("no cluster runs here\nhint: gantry up --detach");
    } else {
        crate::output::table(Some(&["NAME", "PID", "SERVER", "KUBECONFIG"]), &rows);
    }
    Ok(())
}
