//! A cluster: starting it, finding one that runs, stopping it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::api::Api;
use crate::build::{Artefacts, Version};
use crate::cache::Cache;
use crate::control::{Order, send};
use crate::machine::{self, Machine};
use crate::pause;
use crate::pki::Pki;
use crate::plan::{self, NodePlan, Program};
use crate::{cgroups, forward, images};

/// How long a cluster may take to start once everything is built. The fault is then told instead of waited for.
const PATIENCE: Duration = Duration::from_secs(120);

/// The machine of the control plane, which is no node: programs can be started there too.
pub const CONTROL: &str = "control";

/// What a cluster is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Options {
    /// Its name: several may run.
    pub name: String,
    /// The Kubernetes version, as in [`Version::named`].
    pub version: String,
    /// Its nodes, 1 to 16.
    pub nodes: Vec<NodeOptions>,
    /// Whether Kubernetes' own scheduler runs.
    pub scheduler: bool,
}

/// What a node is to be: it has a kubelet and a container runtime of its own.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct NodeOptions {
    /// The name of its `Node` object.
    pub name: String,
    /// For how many GPUs it has device files.
    pub gpus: u32,
    /// What lies at `/run/nvidia/driver`: a driver's files.
    pub driver: Option<PathBuf>,
    /// Labels with which it registers, beside those that a kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// Taints with which it registers, as objects of the API.
    pub taints: Vec<serde_json::Value>,
    /// Whether its container runtime has NRI switched off, as containerd 1 has it.
    pub without_nri: bool,
}

/// A running cluster, as everybody on the machine can use it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cluster {
    /// How it was started.
    pub options: Options,
    /// The administrator's kubeconfig, for programs outside the nodes.
    pub kubeconfig: PathBuf,
    /// The folder with kubectl and the other programs.
    pub bin: PathBuf,
    /// [`CONTROL`], then the nodes.
    machines: Vec<RunningMachine>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct RunningMachine {
    plan: NodePlan,
    pid: u32,
}

impl Cluster {
    /// Builds what is missing, starts a cluster and waits until its nodes are ready. It runs until [`Self::down`].
    ///
    /// # Errors
    /// Where one of this name runs already, or a part of it does not start; what its log says is in the error.
    pub fn up(options: &Options) -> anyhow::Result<Self> {
        let cache = Cache::of_user()?;
        check_name(&options.name)?;
        ensure!((1..=16).contains(&options.nodes.len()), "{} nodes: choose 1 to 16", options.nodes.len());
        for node in &options.nodes {
            check_name(&node.name)?;
            ensure!(node.name != CONTROL, "node name {CONTROL:?}: that is the control plane's machine");
        }
        Artefacts::build(&cache, Version::named(&options.version)?)?;
        if let Ok(running) = Self::open(&options.name) {
            bail!(
                "cluster {} runs already: {}\nhint: cargo xtask kubernetes down --name {}",
                options.name,
                running.kubeconfig.display(),
                options.name
            );
        }
        clean(&cache, &options.name)?;
        let folder = cache.cluster(&options.name);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let log_path = folder.join("supervisor.log");
        let log = File::create(&log_path).with_context(|| format!("create {}", log_path.display()))?;
        // A session of its own: it stays when the terminal is closed.
        let mut supervisor = Command::new("setsid")
            .arg(built("gantry-kubernetes")?)
            .arg("supervise")
            .arg(serde_json::to_string(options)?)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("start setsid")?;
        let mut log = Follow::new(&log_path)?;
        loop {
            log.show();
            if let Ok(cluster) = Self::open(&options.name) {
                return Ok(cluster);
            }
            if supervisor.try_wait()?.is_some() {
                log.show();
                let left = clean(&cache, &options.name);
                bail!(
                    "cluster {} did not start{}",
                    options.name,
                    left.err().map_or(String::new(), |e| format!(" ({e:#})"))
                );
            }
            pause(20);
        }
    }

    /// The running cluster of this name.
    ///
    /// # Errors
    /// Where there is none.
    pub fn open(name: &str) -> anyhow::Result<Self> {
        check_name(name)?;
        let folder = Cache::of_user()?.cluster(name);
        let none = || format!("no cluster {name} runs here\nhint: cargo xtask kubernetes up --name {name}");
        let text = fs::read(folder.join("cluster.json")).with_context(none)?;
        let cluster: Self = serde_json::from_slice(&text).with_context(none)?;
        // The number of a process says nothing: it may be a zombie's, or another's by now.
        for machine in &cluster.machines {
            send(&machine.plan.control(), &Order::List).with_context(none)?;
        }
        Ok(cluster)
    }

    /// Stops the cluster of this name and removes all that it has left, even if it was killed.
    ///
    /// # Errors
    /// Where something cannot be removed.
    pub fn down(name: &str) -> anyhow::Result<()> {
        check_name(name)?;
        clean(&Cache::of_user()?, name)
    }

    /// The names of the nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.machines.iter().map(|machine| machine.plan.name.as_str()).filter(|name| *name != CONTROL)
    }

    /// The folder of a node, or of [`CONTROL`], with what it keeps on disk; see [`Self::log`].
    pub fn folder(&self, node: &str) -> anyhow::Result<&Path> {
        Ok(&self.node(node)?.plan.folder)
    }

    /// A node's file system as this machine reaches it, with what is mounted in the node alone.
    pub fn root(&self, node: &str) -> anyhow::Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/{}/root", self.node(node)?.pid)))
    }

    /// The log of a program of a node.
    pub fn log(&self, node: &str, program: &str) -> anyhow::Result<PathBuf> {
        Ok(self.node(node)?.plan.log(program))
    }

    /// The main file of a node's containerd; what it imports lies in the node's `/etc/containerd/conf.d`.
    pub fn runtime_config(&self, node: &str) -> anyhow::Result<PathBuf> {
        Ok(plan::runtime_config(&self.node(node)?.plan))
    }

    /// A command that runs in a node, in this folder, with the node's programs on its path and the administrator's kubeconfig.
    pub fn command(&self, node: &str, folder: &Path) -> anyhow::Result<Command> {
        let node = self.node(node)?;
        let mut command = machine::enter(node.pid, Some(folder));
        command.envs(&node.plan.environment);
        Ok(command)
    }

    /// Starts a program in a node; it runs until it ends, is killed, or the cluster is stopped.
    pub fn start(&self, node: &str, program: Program) -> anyhow::Result<()> {
        self.order(node, &Order::Start(program)).map(drop)
    }

    /// Starts a program again that was started under this name before, with the same command line.
    pub fn start_again(&self, node: &str, name: &str) -> anyhow::Result<()> {
        self.order(node, &Order::Again(name.to_owned())).map(drop)
    }

    /// Sends a signal to a program: `SIGKILL` and the like wait until it has ended.
    pub fn signal(&self, node: &str, name: &str, signal: i32, wait: bool) -> anyhow::Result<()> {
        self.order(node, &Order::Signal { name: name.to_owned(), signal, wait }).map(drop)
    }

    /// Switches a node off at once: nothing ends in good order, and what was in memory is lost.
    pub fn power_off(&self, node: &str) -> anyhow::Result<()> {
        self.order(node, &Order::PowerOff).map(drop)
    }

    /// Switches a node on again: everything that was ever started there starts.
    pub fn power_on(&self, node: &str) -> anyhow::Result<()> {
        self.revive(node).map(drop)
    }

    /// Starts the programs of a node that have ended by themselves, as a machine's service manager does, and names them.
    pub fn revive(&self, node: &str) -> anyhow::Result<Vec<String>> {
        Ok(self.order(node, &Order::Revive)?.into_iter().map(|(name, _)| name).collect())
    }

    /// The programs that run in a node with their pids there.
    pub fn programs(&self, node: &str) -> anyhow::Result<Vec<(String, i32)>> {
        self.order(node, &Order::List)
    }

    /// Puts an image archive into a node's container runtime.
    pub fn load_image(&self, node: &str, archive: &Path) -> anyhow::Result<()> {
        let mut command = self.command(node, Path::new("/"))?;
        images::import(&mut command, archive)
    }

    fn order(&self, node: &str, order: &Order) -> anyhow::Result<Vec<(String, i32)>> {
        send(&self.node(node)?.plan.control(), order).with_context(|| format!("node {node}"))
    }

    fn node(&self, name: &str) -> anyhow::Result<&RunningMachine> {
        self.machines.iter().find(|machine| machine.plan.name == name).with_context(|| {
            format!("no node {name}: there are {}", self.nodes().collect::<Vec<_>>().join(", "))
        })
    }
}

/// The life of a cluster: starts it, tells where it is, and stays until it is killed. When it ends, the kernel ends the nodes.
pub(crate) fn supervise(options: &Options) -> anyhow::Result<()> {
    let cache = Cache::of_user()?;
    let clock = Stopwatch::start();
    let folder = cache.cluster(&options.name);
    fs::write(folder.join("supervisor.pid"), std::process::id().to_string())?;
    let version = Version::named(&options.version)?;
    let artefacts = Artefacts::build(&cache, version)?;
    let images = images::prepare(&cache, &artefacts)?;

    let names: Vec<String> = options.nodes.iter().map(|node| node.name.clone()).collect();
    let control = NodeOptions { name: CONTROL.to_owned(), ..NodeOptions::default() };
    let all: Vec<&NodeOptions> = std::iter::once(&control).chain(&options.nodes).collect();
    let addresses: Vec<_> = all.iter().map(|node| node.name.clone()).zip((0..).map(plan::address)).collect();
    let server = format!("https://{}:{}", plan::address(0), plan::API_PORT);
    let pki = Pki::create(&folder.join("pki"), &addresses, &server)?;
    let mut machines = Vec::new();
    for (index, node) in (0..).zip(all) {
        let plan = node_plan(&options.name, version, node, &artefacts, &pki, &folder, index)?;
        machines.push(Machine::start(plan)?);
    }
    machines.iter().try_for_each(Machine::ready)?;
    machine::connect(&machines)?;
    clock.tell("nodes made");

    let (first, nodes) = machines.split_first().context("invariant: the control plane's machine")?;
    for program in plan::api(version, &pki) {
        first.run(program)?;
    }
    for machine in nodes {
        machine.run(plan::runtime(&machine.plan))?;
    }
    for machine in nodes {
        images.registry.serve(machine.pid)?;
    }
    let port = forward::start(first.pid, plan::API_PORT)?;
    let api = Api::new(&folder.join("pki"), port)?;
    for machine in nodes {
        images::import_all(machine, &images.archives)?;
    }
    clock.tell("containerd runs and has its images");
    wait("the API server", &machines, || api.ready())?;
    clock.tell("the API server answers");
    for program in plan::controllers(version, &pki) {
        if options.scheduler || program.name != "kube-scheduler" {
            first.run(program)?;
        }
    }
    // Whoever calls a Service from here, such as the API server a webhook, needs its address to lead somewhere.
    first.run(plan::proxy(&first.plan, &pki))?;
    for (machine, node) in nodes.iter().zip(&options.nodes) {
        machine.run(plan::kubelet(&machine.plan, node, &pki))?;
        machine.run(plan::proxy(&machine.plan, &pki))?;
    }
    wait("the nodes", &machines, || api.nodes_ready(&names))?;
    clock.tell("every node is ready");

    let kubeconfig = folder.join("kubeconfig");
    fs::write(&kubeconfig, pki.kubeconfig_for("admin", &format!("https://127.0.0.1:{port}"))?)?;
    let running = |machine: &Machine| RunningMachine { plan: machine.plan.clone(), pid: machine.pid };
    let running = machines.iter().map(running).collect();
    let cluster = Cluster { options: options.clone(), kubeconfig, bin: artefacts.bin, machines: running };
    // Whoever sees the file sees all of it.
    let unfinished = folder.join("cluster.json.unfinished");
    fs::write(&unfinished, serde_json::to_vec_pretty(&cluster)?)?;
    fs::rename(unfinished, folder.join("cluster.json"))?;
    loop {
        std::thread::park();
    }
}

fn node_plan(
    cluster: &str,
    version: Version,
    options: &NodeOptions,
    artefacts: &Artefacts,
    pki: &Pki,
    folder: &Path,
    index: u8,
) -> anyhow::Result<NodePlan> {
    let folder = folder.join(&options.name);
    fs::create_dir_all(&folder)?;
    let mut node = NodePlan {
        name: options.name.clone(),
        index,
        cgroups: cgroups::create(&format!("{}{}", group_prefix(cluster), options.name))?,
        gpus: (0..options.gpus).collect(),
        environment: plan::environment(artefacts, pki, &folder),
        files: BTreeMap::new(),
        binds: BTreeMap::new(),
        folder,
    };
    node.files.insert("/etc/cni/net.d/10-pods.conflist".into(), plan::network_config(&node));
    node.files.insert("/etc/containerd/certs.d/_default/hosts.toml".into(), plan::registry_config());
    if let Some(driver) = &options.driver {
        node.binds.insert("/run/nvidia/driver".into(), driver.clone());
    }
    fs::write(plan::runtime_config(&node), plan::containerd_config(artefacts, options))?;
    fs::write(node.folder.join("kubelet.json"), plan::kubelet_config(version, &node, options, pki))?;
    Ok(node)
}

/// A program that cargo builds beside this one: in its folder, or in the one above for a test.
///
/// # Errors
/// Where it is not built.
pub fn built(name: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let mut beside = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    beside
        .find(|path| path.is_file())
        .with_context(|| format!("no {name} near {}\nhint: cargo build --bin {name}", own.display()))
}

/// Waits for a state; tells what was still missing, and the end of the log of a program that has ended, if it never comes.
fn wait(
    what: &str,
    machines: &[Machine],
    mut ready: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let start = Stopwatch::start();
    loop {
        let Err(error) = ready() else { return Ok(()) };
        if start.elapsed() > PATIENCE {
            let logs = machines.iter().map(|machine| machine.plan.folder.join("log").display().to_string());
            let logs: Vec<_> = logs.collect();
            return Err(error.context(format!(
                "{what} not ready within {} s; logs are in {}",
                PATIENCE.as_secs(),
                logs.join(", ")
            )));
        }
        pause(50);
    }
}

/// Stops what runs under a name and removes what it has left.
fn clean(cache: &Cache, name: &str) -> anyhow::Result<()> {
    let folder = cache.cluster(name);
    if let Ok(text) = fs::read_to_string(folder.join("supervisor.pid"))
        && let Ok(pid) = text.trim().parse()
        && is_supervisor(pid)
    {
        let pid = Pid::from_raw(pid);
        kill(pid, Signal::SIGKILL).with_context(|| format!("end process {pid}"))?;
    }
    // With the supervisor its nodes end, and with them all that is mounted and runs in them.
    cgroups::remove(&cgroups::left_by(&group_prefix(name)))?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    Ok(())
}

/// Whether the process is a supervisor: its number may have gone to another since.
fn is_supervisor(pid: i32) -> bool {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    command.split(|byte| *byte == 0).any(|word| word == b"supervise")
}

fn group_prefix(cluster: &str) -> String {
    format!("gantry-{cluster}-")
}

fn check_name(name: &str) -> anyhow::Result<()> {
    let fits = (1..=20).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    ensure!(fits, "cluster name {name:?}: use 1 to 20 lower-case letters, digits or '-'");
    Ok(())
}

/// Shows a growing file on standard error.
struct Follow(File);

impl Follow {
    fn new(path: &Path) -> anyhow::Result<Self> {
        let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        file.seek(SeekFrom::Start(0))?;
        Ok(Self(file))
    }

    fn show(&mut self) {
        let mut text = Vec::new();
        let _ = self.0.read_to_end(&mut text);
        let _ = std::io::stderr().write_all(&text);
    }
}

/// Tells how long the steps of a start took.
struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "tells a person how long a start took, and ends waits")]
    fn start() -> Self {
        Self(Instant::now())
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    #[expect(clippy::print_stderr, reason = "whoever waits wants to see that something moves")]
    fn tell(&self, what: &str) {
        eprintln!("[{:.1} s] {what}", self.elapsed().as_secs_f64());
    }
}
