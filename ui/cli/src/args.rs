//! What can be typed.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};

use crate::manifests::ManifestsOptions;
use crate::serve::agent::AgentOptions;
use crate::serve::control::{ControllersOptions, SchedulerOptions};
use crate::up::nodes::NodesFlag;

/// Gantry makes the GPUs of a Kubernetes cluster schedulable, shareable, isolated and measured.
#[derive(Parser)]
#[command(name = "gantry", version, propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which cluster to talk to.
#[derive(clap::Args)]
pub(crate) struct Connection {
    /// A kubeconfig file. Default: $KUBECONFIG, else the one cluster that `gantry up` runs here, else ~/.kube/config.
    /// For `up`: where to write one.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig.
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// The namespace. Default: the context's.
    #[arg(short, long, global = true)]
    pub(crate) namespace: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Start a Kubernetes cluster with simulated GPU nodes on this machine.
    Up(Box<UpOptions>),
    /// Stop a cluster that `up` started.
    Down(DownOptions),
    /// List the clusters that `up` runs on this machine.
    Clusters,
    /// List things that kubectl does not know.
    #[command(subcommand)]
    Get(Get),
    /// Show one thing in full.
    #[command(subcommand)]
    Describe(Describe),
    /// Tell why a pod is where it is, or why it waits and what would help.
    Why(WhyOptions),
    /// Make a GPU of a cluster that `up` runs here fail, or mend it.
    Fault(FaultOptions),
    /// Run the node agent, which offers the GPUs of this node to its kubelet.
    Agent(Box<AgentOptions>),
    /// Run the scheduler.
    Scheduler(Box<SchedulerOptions>),
    /// Run the controllers of Volcano's Jobs and their PodGroups, where Volcano itself does not run.
    Controllers(Box<ControllersOptions>),
    /// CDI files, by which container runtimes give containers the GPUs of this machine.
    #[command(subcommand)]
    Cdi(crate::cdi::Cdi),
    /// Print what runs in a cluster, for kubectl apply -f -.
    Manifests(Box<ManifestsOptions>),
    /// Make containerd, CRI-O or Docker of this machine know gantry-runtime.
    #[command(subcommand)]
    Runtime(crate::runtime::Runtime),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Subcommand)]
pub(crate) enum Get {
    /// The GPUs of the cluster: model, memory, health and who has them.
    #[command(visible_alias = "gpu")]
    Gpus(GetOptions),
}

#[derive(Subcommand)]
pub(crate) enum Describe {
    /// One GPU, by UUID, a part of it, NODE/INDEX, or as `get gpus -o name` prints it.
    #[command(visible_alias = "gpus")]
    Gpu(DescribeOptions),
}

/// How to print.
#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table.
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Names alone.
    Name,
}

#[derive(clap::Args)]
pub(crate) struct GetOptions {
    /// Only GPUs whose UUID, node, model or pod (NAMESPACE/NAME) contains this.
    pub(crate) filter: Option<String>,
    /// How to print.
    #[arg(short, long, default_value = "table")]
    pub(crate) output: Format,
    /// Leave out the header of a table.
    #[arg(long)]
    pub(crate) no_headers: bool,
}

#[derive(clap::Args)]
pub(crate) struct DescribeOptions {
    /// UUID, a part of it, or NODE/INDEX.
    pub(crate) gpu: String,
    /// How to print.
    #[arg(short, long, default_value = "table")]
    pub(crate) output: Format,
}

#[derive(clap::Args)]
pub(crate) struct WhyOptions {
    /// The pod: NAME, pod/NAME or pod NAME.
    #[arg(required = true, num_args = 1..=2, value_names = ["POD", "NAME"])]
    pub(crate) pod: Vec<String>,
    /// How to print.
    #[arg(short, long, default_value = "table")]
    pub(crate) output: Format,
}

#[derive(clap::Args)]
pub(crate) struct FaultOptions {
    /// The GPU: NODE/INDEX, as in a100-80-1/3.
    pub(crate) gpu: String,
    #[command(flatten)]
    pub(crate) change: FaultChange,
    /// The cluster's name; may be left out when only one runs.
    #[arg(long)]
    pub(crate) name: Option<String>,
}

/// What happens to the GPU.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct FaultChange {
    /// The driver reports this XID error, such as 79. One that applications cause changes nothing.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) xid: Option<u32>,
    /// The card falls off the bus and does not answer.
    #[arg(long)]
    pub(crate) lost: bool,
    /// Its memory has uncorrectable errors.
    #[arg(long)]
    pub(crate) ecc: bool,
    /// It is mended, whatever it had.
    #[arg(long)]
    pub(crate) recover: bool,
}

#[derive(clap::Args)]
pub(crate) struct UpOptions {
    /// Nodes as PROFILE=COUNT[:GPUS], separated by commas; 8 GPUs a node unless told otherwise.
    #[arg(long, value_name = "LIST", conflicts_with = "file")]
    pub(crate) nodes: Option<NodesFlag>,
    /// A YAML file that describes the nodes.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// A name for the cluster, to tell several apart.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Keep the cluster in this folder and continue with what is there.
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// The API server's port on 127.0.0.1; a free one by default.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Return when the API answers and every node is Ready; `gantry down` ends the cluster.
    #[arg(long)]
    pub(crate) detach: bool,
    /// How many seconds `--detach` waits; a cluster that is not ready by then is stopped.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "detach")]
    pub(crate) timeout: u64,
}

#[derive(clap::Args)]
pub(crate) struct DownOptions {
    /// The cluster's name; may be left out when only one runs.
    pub(crate) name: Option<String>,
    /// Stop every cluster that runs here.
    #[arg(long, conflicts_with = "name")]
    pub(crate) all: bool,
}
