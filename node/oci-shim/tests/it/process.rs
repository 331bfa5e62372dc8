//! The program, with a script in runc's place that writes down what it was given.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use gantry_shim::Request;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{config, fixture};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_gantry-runtime");

/// A bundle, settings, specifications and a runtime, in a folder of their own.
pub(crate) struct Machine {
    folder: TempDir,
}

impl Machine {
    pub(crate) fn new(config: &Value) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["bundle", "bin", "cdi"] {
            fs::create_dir(machine.at(folder)).unwrap();
        }
        fs::write(machine.at("bundle/config.json"), serde_json::to_vec_pretty(config).unwrap()).unwrap();
        fs::copy(fixture("nvidia.com-gpu.json"), machine.at("cdi/gpu.json")).unwrap();
        let script = format!(
            "#!/bin/sh\nPATH=/usr/bin:/bin\nfor word; do printf '%s\\n' \"$word\"; done > {0}/argv\ncat {0}/bundle/config.json > {0}/seen 2>/dev/null\nexit 7\n",
            machine.folder.path().display()
        );
        machine.script("fake-runc", &script);
        machine.settings("");
        machine
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn script(&self, name: &str, text: &str) {
        let path = self.at("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Writes the settings: these lines, and what keeps the program within the folder.
    pub(crate) fn settings(&self, lines: &str) {
        let here = self.folder.path().display();
        let runtimes = if lines.contains("runtimes") { "" } else { "runtimes = ['none', 'fake-runc']\n" };
        let text = format!(
            "{runtimes}spec-dirs = ['{here}/cdi']\nagent-socket = '{here}/agent.sock'\nlog = '{here}/log'\nnvidia-config = ''\n{lines}"
        );
        fs::write(self.at("runtime.toml"), text).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&OsStr]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .env("GANTRY_RUNTIME_CONFIG", self.at("runtime.toml"))
            .env("PATH", self.at("bin"))
            .current_dir(self.at("bundle"));
        command
    }

    fn run(&self, arguments: &str) -> Output {
        let words: Vec<&OsStr> = arguments.split(' ').map(OsStr::new).collect();
        self.command(&words).output().unwrap()
    }

    fn create(&self) -> Output {
        let log = self.at("log.json").display().to_string();
        let bundle = self.at("bundle").display().to_string();
        self.run(&format!("--root /r --log {log} --log-format json --systemd-cgroup create --bundle {bundle} --pid-file /p c1"))
    }

    /// What the runtime saw as configuration; `None` where it was not run.
    fn seen(&self) -> Option<Value> {
        let text = fs::read(self.at("seen")).ok()?;
        Some(serde_json::from_slice(&text).unwrap())
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap_or_default()
    }
}

fn annotated() -> Value {
    let mut value = config("containerd.json");
    value["annotations"]["cdi.k8s.io/a"] = json!("nvidia.com/gpu=0");
    value
}

fn granted() -> Value {
    let mut value = config("containerd.json");
    value["annotations"]["gantry.dev/devices.nvidia.com_gpu"] = json!("slot-0");
    value
}

#[test]
fn create_edits_the_bundle_and_becomes_the_runtime() {
    let machine = Machine::new(&annotated());
    let bundle = machine.at("bundle");
    fs::set_permissions(bundle.join("config.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let strange = OsString::from_vec(b"c\xff\n1".to_vec());
    let words = [OsStr::new("create"), OsStr::new("--bundle"), bundle.as_os_str(), &strange];
    let output = machine.command(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "the runtime's own: {output:?}");
    let argv = [&b"create\n--bundle\n"[..], bundle.as_os_str().as_bytes(), b"\nc\xff\n1\n"].concat();
    assert_eq!(fs::read(machine.at("argv")).unwrap(), argv);
    let seen = machine.seen().unwrap();
    assert_eq!(seen["linux"]["devices"][1]["path"], "/dev/nvidia0");
    assert_eq!(seen["process"]["rlimits"], annotated()["process"]["rlimits"]);
    assert_eq!(seen["process"]["fieldOfTheFuture"], annotated()["process"]["fieldOfTheFuture"]);
    assert_eq!(fs::metadata(bundle.join("config.json")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(&bundle).unwrap().count(), 1);
    assert!(machine.text("log").contains("container ml/train-0/main: gets nvidia.com/gpu=0"));
}

#[test]
fn the_bundle_is_the_working_folder_where_none_is_named() {
    let machine = Machine::new(&annotated());
    assert_eq!(machine.run("run c1").status.code(), Some(7));
    assert_eq!(machine.seen().unwrap()["linux"]["devices"][1]["path"], "/dev/nvidia0");
}

#[test]
fn a_configuration_without_gpus_stays_byte_for_byte() {
    let machine = Machine::new(&config("containerd.json"));
    let before = fs::read(machine.at("bundle/config.json")).unwrap();
    assert_eq!(machine.create().status.code(), Some(7));
    assert_eq!(fs::read(machine.at("bundle/config.json")).unwrap(), before);
    let told = machine.text("log.json");
    let line: Value = serde_json::from_str(told.trim()).unwrap();
    assert_eq!(line["level"], "warning");
    assert!(line["msg"].as_str().unwrap().contains("NVIDIA_VISIBLE_DEVICES=all is not honoured"), "{told}");
}

#[test]
fn other_commands_are_passed_on_whatever_the_state_of_things() {
    let machine = Machine::new(&annotated());
    machine.settings("unknown = 1");
    let before = fs::read(machine.at("bundle/config.json")).unwrap();
    // Without readable settings the usual names are looked for.
    fs::rename(machine.at("bin/fake-runc"), machine.at("bin/runc")).unwrap();
    for command in ["delete --force c1", "state c1", "kill c1 9", "--version", "exec -p /x c1", "features"] {
        let output = machine.run(command);
        assert_eq!(output.status.code(), Some(7), "{command}: {output:?}");
        assert_eq!(machine.text("argv"), command.replace(' ', "\n") + "\n");
    }
    assert_eq!(fs::read(machine.at("bundle/config.json")).unwrap(), before);
    let output = machine.create();
    assert_eq!(output.status.code(), Some(1));
    let path = machine.at("runtime.toml").display().to_string();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.starts_with(&format!("gantry-runtime: {path}:6: unknown: unknown key; known are ")),
        "{text}"
    );
}

#[test]
fn what_stops_a_container_reaches_its_caller() {
    let mut asked = config("containerd.json");
    asked["annotations"]["cdi.k8s.io/a"] = json!("nvidia.com/gpu=9");
    let machine = Machine::new(&asked);
    let before = fs::read(machine.at("bundle/config.json")).unwrap();
    let output = machine.create();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(machine.seen(), None, "no runtime was run");
    assert_eq!(fs::read(machine.at("bundle/config.json")).unwrap(), before);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = text.trim().strip_prefix("gantry-runtime: ").unwrap().to_owned();
    assert!(said.starts_with("annotations[cdi.k8s.io/a]: no CDI specification in "), "{said}");
    let line: Value = serde_json::from_str(machine.text("log.json").trim()).unwrap();
    assert_eq!((line["level"].as_str(), line["msg"].as_str()), (Some("error"), Some(said.as_str())));
}

#[test]
fn configurations_that_are_none_stop_the_container() {
    let machine = Machine::new(&annotated());
    let path = machine.at("bundle/config.json");
    let refused = |text: &str| {
        let output = machine.create();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.trim(), format!("gantry-runtime: {}: {text}", path.display()));
        assert_eq!(machine.seen(), None);
    };
    fs::write(&path, "{ not json").unwrap();
    refused("not JSON: key must be a string at line 1 column 3");
    fs::File::create(&path).unwrap().set_len(100_000_000).unwrap();
    refused("100000000 bytes is too large: at most 16777216 are read");
    fs::remove_file(&path).unwrap();
    fs::write(machine.at("elsewhere.json"), annotated().to_string()).unwrap();
    symlink(machine.at("elsewhere.json"), &path).unwrap();
    refused("must be a regular file, and not a link to one");
    assert_eq!(machine.text("elsewhere.json"), annotated().to_string());
}

/// An agent that answers every request with these bytes, and the requests that it had.
fn agent(path: &Path, answer: &'static str) -> thread::JoinHandle<Request> {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        stream.write_all(answer.as_bytes()).unwrap();
        Request::decode(line.as_bytes()).unwrap()
    })
}

#[test]
fn slots_are_brought_by_the_agent_and_by_nobody_else() {
    let machine = Machine::new(&granted());
    let output = machine.create();
    assert_eq!((output.status.code(), machine.seen()), (Some(1), None), "no agent, no container");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("pod ml/train-0 has slots (slot-0), and the node agent")
            && said.contains("No such file"),
        "{said}"
    );
    let asked = agent(&machine.at("agent.sock"), "{\"v\":1,\"cdiDevices\":[\"nvidia.com/gpu=GPU-1\"]}\n");
    assert_eq!(machine.create().status.code(), Some(7));
    assert_eq!(asked.join().unwrap().pod.uid, "7f3c0a52-5f0b-4b0e-9d0e-3f6d2c1b0a99");
    let seen = machine.seen().unwrap();
    let paths: Vec<_> =
        seen["linux"]["devices"].as_array().unwrap().iter().map(|device| &device["path"]).collect();
    assert_eq!(paths, ["/dev/nvidiactl", "/dev/nvidia1"]);
}

#[test]
fn a_runtime_that_leads_back_is_noticed() {
    let machine = Machine::new(&annotated());
    machine.settings("runtimes = ['again']");
    machine.script("again", &format!("#!/bin/sh\nexec {PROGRAM} \"$@\"\n"));
    let output = machine.create();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let path = machine.at("bin/again").display().to_string();
    assert_eq!(
        said.trim(),
        format!(
            "gantry-runtime: {path} leads back to this program: set runtimes in /etc/gantry/runtime.toml to runc itself"
        )
    );
    machine.settings("runtimes = ['itself', 'fake-runc']");
    symlink(PROGRAM, machine.at("bin/itself")).unwrap();
    assert_eq!(machine.create().status.code(), Some(7), "itself is passed over");
    machine.settings("runtimes = ['not-there']");
    let said = String::from_utf8_lossy(&machine.create().stderr).into_owned();
    assert!(said.starts_with("gantry-runtime: no OCI runtime: none of not-there is a program in "), "{said}");
}

#[test]
fn a_strict_policy_stops_what_a_lenient_one_starts_without_gpus() {
    let machine = Machine::new(&config("containerd.json"));
    assert_eq!(machine.create().status.code(), Some(7));
    machine.settings("refused = 'fail'");
    assert_eq!(machine.create().status.code(), Some(1));
    machine.settings("refused = 'fail'\naccept-env-when-unprivileged = true");
    assert_eq!(machine.create().status.code(), Some(7));
    let devices = &machine.seen().unwrap()["linux"]["devices"];
    assert_eq!(devices.as_array().unwrap().len(), 3);
}
