//! The processes that run in a cluster: `gantry agent`, `gantry scheduler`, `gantry controllers`.
//!
//! ```text
//!   flags, environment ──▶ Process: logs, endpoints, client, signal ──▶ the component, until SIGTERM
//! ```
//!
//! What cannot get better by waiting (no node name, no cluster to talk to, a bad flag) ends the process with an error that says what to do.
//! Everything else is waited for: it stands in `/readyz` and, once, in the log.

pub(crate) mod agent;
pub(crate) mod control;
mod nvidia;
mod rights;

use std::net::SocketAddr;

use anyhow::Context as _;
use gantry_kit::{CancellationToken, Metrics, Readiness, Tasks, serve_endpoints, shutdown_signal};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::net::TcpListener;

use crate::args::Connection;
use crate::hint::{self, WithHint as _};

/// What every process can be told.
#[derive(clap::Args)]
pub(crate) struct ProcessOptions {
    /// Where /healthz, /readyz and /metrics are answered.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080", env = "GANTRY_LISTEN")]
    pub(crate) listen: SocketAddr,
    /// How log lines are written to standard error. GANTRY_LOG or RUST_LOG filters them, as in info,gantry_agent=debug.
    #[arg(long, value_name = "FORMAT", default_value = "text", env = "GANTRY_LOG_FORMAT")]
    pub(crate) log_format: LogFormat,
}

/// How log lines are written.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What every process has.
pub(crate) struct Process {
    pub(crate) metrics: Metrics,
    pub(crate) readiness: Readiness,
    /// Ends with SIGTERM.
    pub(crate) tasks: Tasks,
}

impl Process {
    /// Starts logs, endpoints and the handling of signals. `name` is the command's.
    pub(crate) async fn start(name: &'static str, options: &ProcessOptions) -> anyhow::Result<Self> {
        gantry_kit::init_logging("info,kube=warn", options.log_format == LogFormat::Json);
        let listener = TcpListener::bind(options.listen)
            .await
            .with_context(|| format!("listen on {}", options.listen))
            .hint(|| "give a free one with --listen ADDRESS:PORT".to_owned())?;
        let metrics = Metrics::default();
        let build = [("version", env!("CARGO_PKG_VERSION")), ("command", name)];
        metrics.gauge("gantry_build_info", "Which program this is; always 1.", &build).set(1);
        let readiness = Readiness::default();
        let tasks = Tasks::new(CancellationToken::new());
        tracing::info!(version = env!("CARGO_PKG_VERSION"), endpoints = %options.listen, "gantry {name}");
        tasks.spawn(serve_endpoints(listener, metrics.clone(), readiness.clone(), tasks.token().clone()));
        let stop = tasks.token().clone();
        tasks.spawn_until_cancelled(async move {
            shutdown_signal().await;
            tracing::info!("told to stop");
            stop.cancel();
        });
        Ok(Self { metrics, readiness, tasks })
    }

    /// Ends what is still running.
    pub(crate) async fn stop(&self) {
        self.tasks.stop().await;
        tracing::info!("stopped");
    }
}

/// A client for the cluster that `--kubeconfig`, the pod or `$KUBECONFIG` names, in this order. Nothing is asked yet.
///
/// Unlike for the commands that people type, no cluster is guessed: a process that came to serve another one than was meant would be a trap.
pub(crate) async fn client(connection: &Connection) -> anyhow::Result<Client> {
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let named = connection.kubeconfig.is_some() || std::env::var_os("KUBECONFIG").is_some();
    let config = if connection.kubeconfig.is_none() && in_pod {
        Config::incluster().context("use the pod's service account").hint(|| {
            "set automountServiceAccountToken: true in the pod, or give --kubeconfig FILE".to_owned()
        })?
    } else if named {
        let file = match &connection.kubeconfig {
            Some(path) => Kubeconfig::read_from(path).with_context(|| format!("read {}", path.display()))?,
            None => Kubeconfig::from_env().context("read $KUBECONFIG")?.unwrap_or_default(),
        };
        let options =
            KubeConfigOptions { context: connection.context.clone(), ..KubeConfigOptions::default() };
        Config::from_custom_kubeconfig(file, &options).await.context("use the kubeconfig")?
    } else {
        return Err(hint::error(
            "no cluster to work for: this is no pod of one, and no kubeconfig is given",
            "--kubeconfig FILE, or gantry manifests | kubectl apply -f - to run in the cluster",
        ));
    };
    Client::try_from(config).context("set up the connection to the cluster")
}
