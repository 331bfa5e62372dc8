//! The processes that run in a cluster, as the `gantry` program.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};

/// A cluster of nobody: no kubeconfig, no pod.
fn gantry(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(arguments).env_clear().env("HOME", "/nonexistent").stdin(Stdio::null());
    command
}

fn fails(arguments: &[&str]) -> String {
    let output = gantry(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_waiting_does_not_mend_ends_the_process_with_what_to_do() {
    assert_eq!(
        fails(&["agent"]),
        "error: the name of this node is not known\nhint: --node-name NAME, or NODE_NAME from the pod's spec.nodeName; kubectl get nodes lists the names\n"
    );
    let no_cluster = "error: no cluster to work for: this is no pod of one, and no kubeconfig is given\nhint: --kubeconfig FILE, or gantry manifests | kubectl apply -f - to run in the cluster\n";
    assert_eq!(fails(&["agent", "--node-name", "n"]), no_cluster);
    assert_eq!(fails(&["scheduler"]), no_cluster);
    assert_eq!(fails(&["controllers"]), no_cluster);
    assert_eq!(
        fails(&["scheduler", "--leader-elect-renew-deadline", "15"]),
        "error: a Lease of 15 s, a renewal deadline of 15 s and a retry period of 2 s do not fit: each must be shorter than the one before\nhint: leave them out, or use 15, 10 and 2\n"
    );
    let missing = fails(&["scheduler", "--kubeconfig", "/no/such/file"]);
    assert!(missing.starts_with("error: read /no/such/file: "), "{missing}");
    let output = gantry(&["agent", "--node-name", "n", "--simulate", "t4:many"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.contains("number of GPUs \"many\" is no whole number; write PROFILE[:COUNT], as in a100-80:4"),
        "{text}"
    );
}

#[test]
fn settings_of_nvidias_programs_are_refused_with_flag_value_rule_and_fix() {
    let hint = "hint: gantry agent --help lists every setting with its flag, variable and key\n";
    let refused = |arguments: &[&str], env: &[(&str, &str)]| {
        let all = [&["agent", "--node-name", "n"], arguments].concat();
        let output = gantry(&all).envs(env.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(
        refused(&["--mig-strategy=any"], &[]),
        format!(
            "error: configuration: flag --mig-strategy: invalid value \"any\": must be one of none, single, mixed\n{hint}"
        )
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, "version: v1\nflags: {deviceDiscoveryStrategy: tegra}\n").unwrap();
    let path = path.to_str().unwrap();
    let tegra = "invalid value \"tegra\": must be one of auto, nvml: Gantry finds devices by NVML alone; leave it out on machines with the driver, and keep NVIDIA's programs on others";
    let file = ("CONFIG_FILE", path);
    assert_eq!(
        refused(&[], &[file]),
        format!("error: configuration file {path}: flags.deviceDiscoveryStrategy (line 2): {tegra}\n{hint}")
    );
    let variable = ("DEVICE_DISCOVERY_STRATEGY", "nvml");
    let past = refused(&["--config-file", path], &[variable]);
    assert!(past.starts_with("error: no cluster to work for"), "the variable counts more: {past}");
    assert_eq!(
        refused(&["--device-discovery-strategy", "tegra"], &[file, variable]),
        format!("error: configuration file {path}: flag --device-discovery-strategy: {tegra}\n{hint}"),
        "and the flag the most"
    );
}

#[test]
fn the_help_has_nvidias_settings_in_a_group_of_their_own() {
    let output = gantry(&["agent", "--help"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (own, nvidias) = text.split_once("Settings of NVIDIA's device plugin and feature discovery").unwrap();
    assert!(own.contains("--node-name") && !own.contains("--mig-strategy"), "{text}");
    for part in [
        "--mig-strategy <WORD>",
        "none, single, mixed [default: none]",
        "[env: GFD_MIG_STRATEGY, MIG_STRATEGY]",
        "[file: flags.migStrategy]",
        "--nvidia-driver-root",
    ] {
        assert!(nvidias.contains(part), "{part}: {text}");
    }
}

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
";

/// A process with endpoints on a free port.
struct Serving {
    child: Child,
    port: u16,
}

impl Serving {
    fn start(folder: &std::path::Path, arguments: &[&str]) -> Self {
        let kubeconfig = folder.join("kubeconfig");
        std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
        // Free a moment ago; nobody else asks for just this one.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = gantry(arguments);
        command.args([
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
            "--listen",
            &format!("127.0.0.1:{port}"),
        ]);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        Self { child, port }
    }

    /// The answer of an endpoint, as soon as there is one that has this text in it.
    async fn answers(&self, path: &str, part: &str) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut last = String::new();
        for _ in 0..600 {
            if let Ok(mut stream) = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await {
                let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
                stream.write_all(request.as_bytes()).await.unwrap();
                last.clear();
                let _ = stream.read_to_string(&mut last).await;
                if last.contains(part) {
                    return last;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("{path} never says {part:?}: {last}");
    }

    /// Ends it as a kubelet does; its log.
    fn stop(mut self) -> String {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{log}");
        log
    }
}

#[tokio::test]
async fn an_agent_without_a_driver_waits_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (kubelet, state, cdi, root) = (path("kubelet"), path("state"), path("cdi"), path("driver"));
    let arguments = [
        "agent",
        "--node-name",
        "n",
        "--log-format",
        "json",
        "--kubelet-root",
        &kubelet,
        "--state-dir",
        &state,
        "--cdi-dir",
        &cdi,
        "--driver-root",
        &root,
    ];
    let agent = Serving::start(folder.path(), &arguments);
    agent.answers("/readyz", "[-]driver failed: ").await;
    agent.answers("/healthz", "HTTP/1.1 200 OK").await;
    let log = agent.stop();
    let lines: Vec<serde_json::Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let waits =
        lines.iter().filter(|line| line["fields"]["message"] == "the GPUs cannot be asked yet; trying again");
    assert_eq!(waits.count(), 1, "{log}");
}

#[test]
fn an_agent_ends_without_a_driver_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, KUBECONFIG).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut command =
        gantry(&["agent", "--node-name", "n", "--listen", "127.0.0.1:0", "--fail-on-init-error"]);
    command.args(["--kubeconfig", &path("kubeconfig"), "--driver-root", &path("driver")]);
    let output = command.args(["--state-dir", &path("state"), "--cdi-dir", &path("cdi")]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("error: the GPUs cannot be asked, and fail-on-init-error is set: "), "{text}");
    assert!(
        text.ends_with("hint: install the driver, or wait for it with --fail-on-init-error=false\n"),
        "{text}"
    );
}

#[tokio::test]
async fn a_simulated_agent_counts_its_gpus_and_needs_no_api_server_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (kubelet, state, cdi) = (path("kubelet"), path("state"), path("cdi"));
    let arguments = [
        "agent",
        "--node-name",
        "n",
        "--simulate",
        "t4:3",
        "--kubelet-root",
        &kubelet,
        "--state-dir",
        &state,
        "--cdi-dir",
        &cdi,
    ];
    let agent = Serving::start(folder.path(), &arguments);
    let metrics = agent.answers("/metrics", "gantry_agent_gpus{health=\"healthy\"} 3\n").await;
    assert!(metrics.contains("gantry_build_info{version=\"0.0.0\",command=\"agent\"} 1\n"), "{metrics}");
    agent.answers("/readyz", "[-]kubelet failed: not registered yet").await;
    let log = agent.stop();
    assert!(log.contains("told to stop") && log.contains("stopped"), "{log}");
}

#[tokio::test]
async fn a_scheduler_waits_for_the_api_server_and_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let scheduler = Serving::start(folder.path(), &["scheduler"]);
    scheduler.answers("/readyz", "[-]api failed: ").await;
    scheduler.stop();
}
