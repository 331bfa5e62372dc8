//! The command line, as `cargo xtask kubernetes` passes it on.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};

use crate::build::{Artefacts, Version};
use crate::cache::Cache;
use crate::cluster::{self, Cluster, NodeOptions, Options};
use crate::init;

/// Real Kubernetes on this machine.
#[derive(Parser)]
#[command(name = "cargo xtask kubernetes", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build what is missing, start a cluster and wait until its nodes are ready.
    Up(Up),
    /// Stop a cluster and remove what it has left.
    Down(Name),
    /// Tell what runs in a cluster.
    Status(Name),
    /// Run a command in a node, with kubectl, crictl and ctr on its path.
    Exec(Exec),
    /// Build what is missing of a version, and tell where its programs are.
    Build {
        /// The Kubernetes version: 1.37, 1.34 or latest.
        #[arg(long, default_value = "latest", env = "GANTRY_KUBERNETES_VERSION")]
        version: String,
    },
    /// Build helm and tell where it is.
    Helm,
    #[command(hide = true)]
    Supervise { options: String },
    #[command(hide = true)]
    Init { plan: PathBuf },
}

#[derive(Args)]
struct Name {
    /// The cluster's name.
    #[arg(long, default_value = "default")]
    name: String,
}

#[derive(Args)]
struct Up {
    #[command(flatten)]
    name: Name,
    /// The Kubernetes version: 1.37, 1.34 or latest.
    #[arg(long, default_value = "latest", env = "GANTRY_KUBERNETES_VERSION")]
    version: String,
    /// How many nodes.
    #[arg(long, default_value_t = 1)]
    nodes: u8,
    /// For how many GPUs each node has device files.
    #[arg(long, default_value_t = 8)]
    gpus: u32,
    /// A folder with a driver's files, which each node sees at /run/nvidia/driver.
    #[arg(long)]
    driver: Option<PathBuf>,
}

#[derive(Args)]
struct Exec {
    #[command(flatten)]
    name: Name,
    /// The node.
    #[arg(long, default_value = "node-1")]
    node: String,
    /// The command.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Does what the command line says, and gives the status to exit with.
///
/// # Errors
/// Whatever keeps it from being done.
#[expect(clippy::print_stdout, reason = "standard output is what was asked for")]
pub fn main() -> anyhow::Result<i32> {
    match Arguments::parse().command {
        Command::Up(Up { name, version, nodes, gpus, driver }) => {
            let driver = driver.map(|path| path.canonicalize().with_context(|| path.display().to_string()));
            let node = NodeOptions { gpus, driver: driver.transpose()?, ..NodeOptions::default() };
            let named = |number| NodeOptions { name: format!("node-{number}"), ..node.clone() };
            let nodes = (1..=nodes).map(named).collect();
            let options = Options { name: name.name, version, nodes, scheduler: true };
            let cluster = Cluster::up(&options)?;
            println!("export KUBECONFIG={}", cluster.kubeconfig.display());
        }
        Command::Down(Name { name }) => Cluster::down(&name)?,
        Command::Status(Name { name }) => {
            let cluster = Cluster::open(&name)?;
            println!("Kubernetes {}, {}", cluster.options.version, cluster.kubeconfig.display());
            for node in cluster.nodes() {
                let programs = cluster.programs(node)?;
                let names: Vec<_> =
                    programs.into_iter().map(|(name, pid)| format!("{name} ({pid})")).collect();
                println!("{node}: {}\n  {}", names.join(", "), cluster.folder(node)?.display());
            }
        }
        Command::Exec(Exec { name, node, command }) => {
            let folder = std::env::current_dir().context("find the working folder")?;
            let status = Cluster::open(&name.name)?.command(&node, &folder)?.args(command).status()?;
            return Ok(status.code().unwrap_or(1));
        }
        Command::Build { version } => {
            let artefacts = Artefacts::build(&Cache::of_user()?, Version::named(&version)?)?;
            println!("{}", artefacts.bin.display());
        }
        Command::Helm => println!("{}", crate::helm()?.display()),
        Command::Supervise { options } => {
            let options = serde_json::from_str(&options).context("read the options")?;
            cluster::supervise(&options)?;
        }
        Command::Init { plan } => init::run(&plan)?,
    }
    Ok(0)
}
