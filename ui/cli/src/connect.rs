//! Which cluster a command talks to.

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::args::Connection;
use crate::hint::{self, WithHint as _};
use crate::instance;

/// A client for the cluster that the flags, the environment or this machine name.
///
/// As kubectl's plugin only kubectl's own rules count: a plugin that answered for another cluster than
/// kubectl itself would be a trap.
pub(crate) async fn client(connection: &Connection) -> anyhow::Result<Client> {
    let mut config = config(connection).await?;
    if let Some(namespace) = &connection.namespace {
        config.default_namespace.clone_from(namespace);
    }
    Client::try_from(config).context("set up the connection to the cluster")
}

async fn config(connection: &Connection) -> anyhow::Result<Config> {
    let options = KubeConfigOptions { context: connection.context.clone(), ..KubeConfigOptions::default() };
    if let Some(path) = &connection.kubeconfig {
        let file = Kubeconfig::read_from(path).with_context(|| format!("read {}", path.display()))?;
        return Config::from_custom_kubeconfig(file, &options)
            .await
            .with_context(|| format!("use {}", path.display()));
    }
    if std::env::var_os("KUBECONFIG").is_none() && !is_plugin() {
        let running = instance::running()?;
        match running.as_slice() {
            [] => {}
            [one] => {
                let file = Kubeconfig::read_from(&one.kubeconfig)
                    .with_context(|| format!("read {}", one.kubeconfig.display()))?;
                return Config::from_custom_kubeconfig(file, &options)
                    .await
                    .with_context(|| format!("use {}", one.kubeconfig.display()));
            }
            [first, ..] => {
                let names: Vec<&str> = running.iter().map(|info| info.name.as_str()).collect();
                return Err(hint::error(
                    format!("{} clusters run here ({}): say which", running.len(), names.join(", ")),
                    format!("export KUBECONFIG={}", first.kubeconfig.display()),
                ));
            }
        }
    }
    Config::from_kubeconfig(&options)
        .await
        .context("no cluster to talk to")
        .hint(|| "gantry up --detach".to_owned())
}

/// Whether kubectl started this program as its `gpu` plugin.
fn is_plugin() -> bool {
    let name = std::env::args_os().next().map(std::path::PathBuf::from);
    name.as_deref()
        .and_then(std::path::Path::file_name)
        .and_then(std::ffi::OsStr::to_str)
        .is_some_and(|name| name.starts_with("kubectl-"))
}
