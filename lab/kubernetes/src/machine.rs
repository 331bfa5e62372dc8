//! Making a node of this machine, and running commands in it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::sched::{CloneFlags, setns};

use crate::control::{Order, send};
use crate::init;
use crate::pause;
use crate::plan::{NodePlan, Program};

/// Namespaces of a node, as flags of nsenter.
const NAMESPACES: [&str; 6] = ["--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup"];

/// A node whose pid 1 runs.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) plan: NodePlan,
    /// The host pid of its pid 1.
    pub(crate) pid: u32,
    /// The process that ends with us and takes pid 1 along.
    _parent: Child,
}

impl Machine {
    /// Makes the namespaces and starts pid 1 in them. Must be called on a thread that lives as long as the node is to.
    pub(crate) fn start(plan: NodePlan) -> anyhow::Result<Self> {
        let file = plan.folder.join("plan.json");
        fs::create_dir_all(plan.folder.join("log"))?;
        fs::write(&file, serde_json::to_vec_pretty(&plan)?)
            .with_context(|| format!("write {}", file.display()))?;
        let log = File::create(plan.log("init"))?;
        let groups = plan.cgroups.iter().map(|group| group.folder.join("cgroup.procs"));
        let program = std::env::current_exe().context("find this program")?;
        // A shell moves itself into the groups and becomes what it starts, so that the new group namespace has them as its root.
        let mut parent = Command::new("setpriv");
        parent
            .args(["--pdeathsig", "KILL", "sh", "-c"])
            .arg(r#"while [ "$1" != -- ]; do echo $$ > "$1" || exit; shift; done; shift; exec "$@""#)
            .arg("sh")
            .args(groups)
            .args(["--", "unshare"])
            .args(NAMESPACES)
            .args(["--fork", "--kill-child"])
            .arg(program)
            .arg("init")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut parent = parent.spawn().context("start setpriv")?;
        let pid = child_of(&mut parent, &plan)?;
        Ok(Self { plan, pid, _parent: parent })
    }

    /// Waits until pid 1 takes orders.
    pub(crate) fn ready(&self) -> anyhow::Result<()> {
        for _ in 0..1000 {
            if send(&self.plan.control(), &Order::List).is_ok() {
                return Ok(());
            }
            if !Path::new(&format!("/proc/{}", self.pid)).exists() {
                break;
            }
            pause(10);
        }
        let log = fs::read_to_string(self.plan.log("init")).unwrap_or_default();
        bail!("node {} did not start: {}", self.plan.name, log.trim())
    }

    /// Starts a program in the node.
    pub(crate) fn run(&self, program: Program) -> anyhow::Result<()> {
        let name = program.name.clone();
        send(&self.plan.control(), &Order::Start(program)).with_context(|| format!("start {name}")).map(drop)
    }

    /// A command in the node.
    pub(crate) fn enter<I, S>(&self, command: I) -> Command
    where
        I: IntoIterator<Item = S>,
        S: AsRef<std::ffi::OsStr>,
    {
        let mut entered = enter(self.pid, None);
        entered.envs(&self.plan.environment).args(command);
        entered
    }

    /// Runs a command in the node and gives what it prints.
    pub(crate) fn output<I, S>(&self, command: I) -> anyhow::Result<String>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<std::ffi::OsStr>,
    {
        let mut command = self.enter(command);
        let output = command.stdin(Stdio::null()).output().context("start nsenter")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
        Ok(text(&output.stdout))
    }
}

/// nsenter into the namespaces of a process; the command is to be added.
pub(crate) fn enter(pid: u32, folder: Option<&Path>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg("--target").arg(pid.to_string()).args(NAMESPACES);
    if let Some(folder) = folder {
        // A changed mount namespace has no working directory but its root.
        command.arg(format!("--wdns={}", folder.display()));
    }
    command.arg("--");
    command
}

/// Does something on a thread of its own in the network of process `pid`, and gives what comes of `prepare`; `serve` then goes on with it
/// until this process ends. Sockets keep the network in which they were made, and threads that the thread starts are in its own.
pub(crate) fn in_network<T: Send + 'static>(
    pid: u32,
    prepare: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    serve: impl FnOnce(T) + Send + 'static,
) -> anyhow::Result<()> {
    let path = format!("/proc/{pid}/ns/net");
    let network = File::open(&path).with_context(|| format!("open {path}"))?;
    let (told, prepared) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let entered = setns(&network, CloneFlags::CLONE_NEWNET).context("enter the node's network");
        let (outcome, value) = match entered.and_then(|()| prepare()) {
            Ok(value) => (Ok(()), Some(value)),
            Err(error) => (Err(error), None),
        };
        let _ = told.send(outcome);
        if let Some(value) = value {
            serve(value);
        }
    });
    prepared.recv().context("the thread in the node's network has ended")?
}

/// Pulls a cable from the first node's bridge to another node, and tells both the way.
pub(crate) fn connect(machines: &[Machine]) -> anyhow::Result<()> {
    let Some((first, others)) = machines.split_first() else { return Ok(()) };
    let indices: Vec<u8> = machines.iter().map(|machine| machine.plan.index).collect();
    let ip = |machine: &Machine, command: &str| {
        let words = std::iter::once("ip").chain(command.split(' '));
        machine.output(words).with_context(|| format!("network of {}", machine.plan.name)).map(drop)
    };
    for other in others {
        let cable = format!("node{}", other.plan.index);
        // The far end is put into the other node by its pid as the machine counts.
        let net = PathBuf::from(format!("/proc/{}/ns/net", other.pid));
        ensure!(net.exists(), "node {} has ended", other.plan.name);
        let command = format!("ip link add {cable} type veth peer name eth0 netns {}", other.pid);
        let output = Command::new("nsenter")
            .args(["--target", &first.pid.to_string(), "--net", "--"])
            .args(command.split(' '))
            .output()
            .context("start nsenter")?;
        ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr).trim());
        ip(first, &format!("link set {cable} master nodes"))?;
        ip(first, &format!("link set {cable} up"))?;
    }
    for machine in machines {
        for command in init::address_commands(machine.plan.index, &indices) {
            ip(machine, &command)?;
        }
    }
    Ok(())
}

/// The process that `unshare` has forked, as this machine counts.
fn child_of(parent: &mut Child, plan: &NodePlan) -> anyhow::Result<u32> {
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    for _ in 0..500 {
        let text = fs::read_to_string(&children).unwrap_or_default();
        if let Some(pid) = text.split_whitespace().next().and_then(|word| word.parse().ok()) {
            return Ok(pid);
        }
        if let Some(status) = parent.try_wait()? {
            let log = fs::read_to_string(plan.log("init")).unwrap_or_default();
            bail!("node {} did not start ({status}): {}", plan.name, log.trim());
        }
        pause(10);
    }
    bail!("node {} did not start within 5 s", plan.name)
}
