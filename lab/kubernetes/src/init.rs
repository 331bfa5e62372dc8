//! Pid 1 of a node: makes the node's view of the machine, then starts and stops programs as it is told.
//!
//! It runs in namespaces of its own (mounts, network, processes, IPC, host name, control groups). When it ends, the kernel ends
//! everything in them; when the process that started it ends, it ends.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::{Pid, sethostname};

use crate::cgroups;
use crate::control::{Answer, Order};
use crate::pause;
use crate::plan::{NodePlan, Program, pod_network};

/// Folders in which the node may write without the machine seeing it.
const OVERLAID: [&str; 3] = ["etc", "var/lib", "var/log"];

/// Folders with much in them: on disk, not in memory.
const KEPT: [&str; 5] =
    ["var/lib/kubelet", "var/lib/containerd", "var/lib/etcd", "var/log/pods", "var/log/containers"];

/// How often a socket is tried before a program that needs it is started all the same; there are 50 ms between.
const PATIENCE: u32 = 200;

/// The file with the identifier of the boot, in a node's folder.
const BOOT_ID: &str = "boot_id";

/// What a kubelet finds: 128 processors, 1 TiB of memory, as the simulated nodes have.
const PROCESSORS: u32 = 128;
const MEMORY_KIB: u64 = 1 << 30;

/// What programs keep in memory: gone when the machine was off.
const RUN_FOLDERS: [&str; 4] = ["/run/containerd", "/run/nri", "/run/cdi", "/run/gantry"];

/// Settings of the whole machine that a kubelet changes. The node sees files that hold what it wants already.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Devices of the machine that the node has too.
const DEVICES: [&str; 10] =
    ["null", "zero", "full", "random", "urandom", "tty", "kmsg", "fuse", "net/tun", "loop-control"];

/// The major number of NVIDIA's devices, and those of nvidia-uvm and nvidia-caps as they often are.
const NVIDIA: u64 = 195;
const NVIDIA_UVM: u64 = 511;
const NVIDIA_CAPS: u64 = 508;

/// Runs a node until it is killed.
pub(crate) fn run(plan: &Path) -> anyhow::Result<()> {
    let text = fs::read(plan).with_context(|| format!("read {}", plan.display()))?;
    let plan: NodePlan =
        serde_json::from_slice(&text).with_context(|| format!("parse {}", plan.display()))?;
    ensure!(Pid::this().as_raw() == 1, "must be the first process of a pid namespace");
    view(&plan)?;
    network(&plan)?;
    let _ = fs::remove_file(plan.control());
    let listener = UnixListener::bind(plan.control())
        .with_context(|| format!("listen on {}", plan.control().display()))?;
    let own_mounts = mounts()?;
    let programs = Arc::new(Programs { plan, own_mounts, state: Mutex::default(), changed: Condvar::new() });
    std::thread::spawn({
        let programs = Arc::clone(&programs);
        move || programs.reap()
    });
    for stream in listener.incoming() {
        let programs = Arc::clone(&programs);
        std::thread::spawn(move || programs.serve(stream?));
    }
    Ok(())
}

/// Makes the node's file systems. The order matters: what comes later lies on what came earlier.
fn view(plan: &NodePlan) -> anyhow::Result<()> {
    let none = MsFlags::empty();
    put("proc", "/proc", "proc", none, "")?;
    sethostname(&plan.name).context("set the host name")?;

    // Control groups and devices as the node's own namespaces have them.
    umount2("/sys/fs/cgroup", MntFlags::MNT_DETACH).context("leave the machine's control groups")?;
    put("sysfs", "/sys", "sysfs", none, "")?;
    if !plan.cgroups.iter().any(|group| cgroups_at_root(&group.controller)) {
        put("tmpfs", "/sys/fs/cgroup", "tmpfs", none, "mode=755")?;
    }
    for group in &plan.cgroups {
        let at = cgroups::mount_point(&group.controller);
        folder(&at)?;
        match group.controller.as_str() {
            "" => put("cgroup2", &at, "cgroup2", none, "")?,
            named if named.starts_with("name=") => {
                put("cgroup", &at, "cgroup", none, &format!("none,{named}"))?;
            }
            controller => put("cgroup", &at, "cgroup", none, controller)?,
        }
    }

    let scratch = plan.folder.join("scratch");
    folder(&scratch)?;
    put("tmpfs", &scratch, "tmpfs", none, "")?;
    for name in OVERLAID {
        let (upper, work) = (scratch.join(name).join("upper"), scratch.join(name).join("work"));
        folder(&upper)?;
        folder(&work)?;
        let at = Path::new("/").join(name);
        let options =
            format!("lowerdir={},upperdir={},workdir={}", at.display(), upper.display(), work.display());
        put("overlay", &at, "overlay", none, &options)?;
    }
    put("tmpfs", "/run", "tmpfs", none, "mode=755")?;
    for name in KEPT {
        let (from, to) = (plan.folder.join("disk").join(name), Path::new("/").join(name));
        folder(&from)?;
        bind(&from, &to)?;
    }
    for name in
        ["/run/lock", "/run/cdi", "/etc/cdi", "/etc/cni/net.d", "/etc/containerd/conf.d", "/run/gantry"]
    {
        folder(Path::new(name))?;
    }
    for (path, text) in &plan.files {
        path.parent().map_or(Ok(()), folder)?;
        fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    for (to, from) in &plan.binds {
        bind(from, to)?;
    }
    for (name, value) in SYSCTLS {
        let file = Path::new("/run/sysctl").join(name);
        file.parent().map_or(Ok(()), folder)?;
        fs::write(&file, format!("{value}\n"))?;
        bind(&file, &Path::new("/proc/sys").join(name))?;
    }
    new_boot(&plan.folder)?;
    bind(&plan.folder.join(BOOT_ID), Path::new("/proc/sys/kernel/random/boot_id"))?;
    machine(&scratch.join("machine"))?;
    devices(plan, &scratch.join("dev"))?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SHARED, None::<&str>)
        .context("share the mounts with containers")
}

/// Gives the machine's time from power-on to power-off an identifier of its own, by which kubelets and agents know a reboot.
fn new_boot(folder: &Path) -> anyhow::Result<()> {
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid").context("make an identifier")?;
    // In place, for it is mounted.
    fs::write(folder.join(BOOT_ID), id).context("write the identifier of the boot")
}

/// A machine as GPUs come in, so that pods fit that ask for what such a machine has: its kubelet reads processors and memory here.
fn machine(folder_of: &Path) -> anyhow::Result<()> {
    let processors = folder_of.join("cpu");
    for number in 0..PROCESSORS {
        // Their number alone. With a topology the kubelet would put these processors into control groups, and there they do not exist.
        folder(&processors.join(format!("cpu{number}")))?;
    }
    for file in ["online", "possible", "present"] {
        fs::write(processors.join(file), format!("0-{}\n", PROCESSORS - 1))?;
    }
    bind(&processors, Path::new("/sys/devices/system/cpu"))?;
    // Without NUMA nodes memory is one.
    folder(&folder_of.join("node"))?;
    bind(&folder_of.join("node"), Path::new("/sys/devices/system/node"))?;

    let real = fs::read_to_string("/proc/meminfo").context("read /proc/meminfo")?;
    let (mut memory, total) = (String::new(), format!(": {MEMORY_KIB} kB\n"));
    for line in real.lines() {
        let name = line.split(':').next().unwrap_or_default();
        match name {
            "MemTotal" | "MemFree" | "MemAvailable" => memory = memory + name + &total,
            _ => memory = memory + line + "\n",
        }
    }
    let file = folder_of.join("meminfo");
    fs::write(&file, memory)?;
    bind(&file, Path::new("/proc/meminfo"))
}

fn cgroups_at_root(controller: &str) -> bool {
    cgroups::mount_point(controller) == Path::new("/sys/fs/cgroup")
}

/// Device files of the node's own: the machine's are shared by everybody, and GPUs have to come and go.
fn devices(plan: &NodePlan, new: &Path) -> anyhow::Result<()> {
    folder(new)?;
    put("tmpfs", new, "tmpfs", MsFlags::empty(), "mode=755")?;
    for name in DEVICES {
        let (from, to) = (Path::new("/dev").join(name), new.join(name));
        if from.exists() {
            to.parent().map_or(Ok(()), folder)?;
            File::create(&to)?;
            bind(&from, &to)?;
        }
    }
    for name in ["pts", "shm", "mqueue"] {
        folder(&new.join(name))?;
    }
    put("devpts", new.join("pts"), "devpts", MsFlags::empty(), "newinstance,ptmxmode=0666,mode=620,gid=5")?;
    put("tmpfs", new.join("shm"), "tmpfs", MsFlags::empty(), "mode=1777")?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        symlink(target, new.join(name)).with_context(|| format!("link /dev/{name}"))?;
    }
    let node = |name: &str, major: u64, minor: u64| -> anyhow::Result<()> {
        let path = new.join(name);
        path.parent().map_or(Ok(()), folder)?;
        mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(major, minor))
            .with_context(|| format!("make /dev/{name}"))
    };
    for minor in &plan.gpus {
        node(&format!("nvidia{minor}"), NVIDIA, u64::from(*minor))?;
    }
    if !plan.gpus.is_empty() {
        node("nvidiactl", NVIDIA, 255)?;
        node("nvidia-modeset", NVIDIA, 254)?;
        node("nvidia-uvm", NVIDIA_UVM, 0)?;
        node("nvidia-uvm-tools", NVIDIA_UVM, 1)?;
        for minor in [1, 2] {
            node(&format!("nvidia-caps/nvidia-cap{minor}"), NVIDIA_CAPS, minor)?;
        }
    }
    mount(Some(new), "/dev", None::<&str>, MsFlags::MS_MOVE, None::<&str>).context("put the devices at /dev")
}

/// The node's network: a bridge with its address on the first node, where the others are plugged in; see `machine::connect`.
fn network(plan: &NodePlan) -> anyhow::Result<()> {
    let ip = |arguments: &str| -> anyhow::Result<()> {
        let output = Command::new("ip").args(arguments.split(' ')).output().context("start ip")?;
        ensure!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(())
    };
    ip("link set lo up")?;
    if plan.index == 0 {
        ip("link add nodes type bridge")?;
        // A bridge without a cable has no carrier, and a kubelet wants an address on a link that is up.
        ip("link add cable type veth peer name cable-end")?;
        ip("link set cable master nodes")?;
        ip("link set cable up")?;
        ip("link set cable-end up")?;
        ip(&format!("addr add {}/24 dev nodes", plan.address()))?;
        ip("link set nodes up")?;
        ip("route add default dev nodes")?;
    }
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("let packets through")
}

/// Gives a node other than the first its address, once its cable is there; the nodes reach each other's pods.
pub(crate) fn address_commands(index: u8, others: &[u8]) -> Vec<String> {
    let address = crate::plan::address;
    let mut commands = Vec::new();
    if index > 0 {
        commands.push(format!("addr add {}/24 dev eth0", address(index)));
        commands.push("link set eth0 up".to_owned());
        commands.push(format!("route add default via {}", address(0)));
    }
    for other in others.iter().filter(|other| **other != index) {
        commands.push(format!("route add {} via {}", pod_network(*other), address(*other)));
    }
    commands
}

fn put(source: &str, at: impl AsRef<Path>, kind: &str, flags: MsFlags, options: &str) -> anyhow::Result<()> {
    let at = at.as_ref();
    mount(Some(source), at, Some(kind), flags, Some(options))
        .with_context(|| format!("mount {kind} at {}", at.display()))
}

/// Shows a file or folder at another place too.
fn bind(from: &Path, to: &Path) -> anyhow::Result<()> {
    if from.is_dir() {
        folder(to)?;
    } else if !to.exists() {
        to.parent().map_or(Ok(()), folder)?;
        File::create(to).with_context(|| format!("create {}", to.display()))?;
    }
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)
        .with_context(|| format!("show {} at {}", from.display(), to.display()))
}

fn folder(path: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))
}

/// The mount points of this namespace, in the order in which they were mounted.
fn mounts() -> anyhow::Result<Vec<String>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("read /proc/self/mountinfo")?;
    Ok(text.lines().filter_map(|line| Some(line.split(' ').nth(4)?.to_owned())).collect())
}

/// Removes what is in a folder, as far as it can be removed.
fn empty(folder: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
    }
}

/// The programs of a node.
struct Programs {
    plan: NodePlan,
    /// What was mounted before any program ran.
    own_mounts: Vec<String>,
    state: Mutex<State>,
    /// A program has ended or started.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: HashMap<i32, String>,
    /// What was started under each name last, in the order of the first start.
    known: Vec<Program>,
}

impl State {
    fn pid(&self, name: &str) -> Option<Pid> {
        self.running.iter().find(|(_, running)| *running == name).map(|(pid, _)| Pid::from_raw(*pid))
    }
}

impl Programs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, stream: UnixStream) -> std::io::Result<()> {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        let answer = match serde_json::from_str(&line) {
            Ok(order) => self.obey(order).unwrap_or_else(|error| Answer::Refused(format!("{error:#}"))),
            Err(error) => Answer::Refused(format!("not an order: {error}")),
        };
        let mut text = serde_json::to_string(&answer)?;
        text.push('\n');
        (&stream).write_all(text.as_bytes())
    }

    fn obey(&self, order: Order) -> anyhow::Result<Answer> {
        match order {
            Order::Start(program) => drop(self.start(program)?),
            Order::Again(name) => {
                let known = self.state().known.iter().find(|program| program.name == name).cloned();
                self.start(known.with_context(|| format!("{name} was never started"))?)?;
            }
            Order::Signal { name, signal, wait } => {
                let signal = Signal::try_from(signal).with_context(|| format!("signal {signal}"))?;
                let mut state = self.state();
                let Some(pid) = state.pid(&name) else { bail!("{name} does not run") };
                kill(pid, signal).with_context(|| format!("signal {name}"))?;
                while wait && state.running.contains_key(&pid.as_raw()) {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
            Order::PowerOff => self.power_off()?,
            Order::Revive => return self.revive().map(Answer::Running),
            Order::List => {
                let state = self.state();
                let mut list: Vec<_> = state.running.iter().map(|(pid, name)| (name.clone(), *pid)).collect();
                list.sort();
                return Ok(Answer::Running(list));
            }
        }
        Ok(Answer::Done)
    }

    fn start(&self, program: Program) -> anyhow::Result<i32> {
        let path = self.plan.log(&program.name);
        path.parent().map_or(Ok(()), folder)?;
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        let (word, arguments) = program.command.split_first().context("an empty command line")?;
        if let Some(socket) = &program.after {
            (0..PATIENCE).take_while(|_| UnixStream::connect(socket).is_err()).for_each(|_| pause(50));
        }
        // Held while the program is started: the reaper must not take the pid of one that could not be.
        let mut state = self.state();
        ensure!(state.pid(&program.name).is_none(), "{} runs already", program.name);
        let child = Command::new(word)
            .args(arguments)
            .envs(&self.plan.environment)
            .envs(&program.environment)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {word}"))?;
        let pid = i32::try_from(child.id()).context("invariant: a pid fits")?;
        state.running.insert(pid, program.name.clone());
        match state.known.iter_mut().find(|known| known.name == program.name) {
            Some(known) => *known = program,
            None => state.known.push(program),
        }
        Ok(pid)
    }

    fn revive(&self) -> anyhow::Result<Vec<(String, i32)>> {
        let known = self.state().known.clone();
        let mut started = Vec::new();
        for program in known {
            let name = program.name.clone();
            if self.state().pid(&name).is_none() {
                let pid = self.start(program)?;
                started.push((name, pid));
            }
        }
        Ok(started)
    }

    fn power_off(&self) -> anyhow::Result<()> {
        // All but the first process of the namespace, which is this one.
        let everything = Pid::from_raw(-1);
        let mut state = self.state();
        let _ = kill(everything, Signal::SIGKILL);
        while !state.running.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        for mounted in mounts()?.iter().rev().filter(|mounted| !self.own_mounts.contains(mounted)) {
            let _ = umount2(mounted.as_str(), MntFlags::MNT_DETACH);
        }
        RUN_FOLDERS.iter().for_each(|folder| empty(folder));
        new_boot(&self.plan.folder)
    }

    /// Takes leave of every process that ends: our programs, and those whose parents have ended.
    fn reap(&self) {
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        loop {
            let Ok(status) = waitid(Id::All, ended) else {
                pause(20);
                continue;
            };
            let mut state = self.state();
            let Some(pid) = status.pid() else { continue };
            // It is gone already if it was a program that could not be started.
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
            state.running.remove(&pid.as_raw());
            drop(state);
            self.changed.notify_all();
        }
    }
}
