//! `gantry up`, `down`, and what they leave behind.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A place of its own for clusters, so that tests do not meet each other or the developer's own.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::Builder::new().prefix("gu").tempdir_in("/tmp").unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
        command.args(arguments).env("XDG_RUNTIME_DIR", self.path()).env_remove("KUBECONFIG");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs and gives standard output; fails with what was said if the program failed.
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "gantry {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs and gives standard error; fails if the program did not.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "gantry {arguments:?} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }

    fn gpus(&self, kubeconfig: &str) -> Vec<Value> {
        let text = self.ok(&["--kubeconfig", kubeconfig, "get", "gpus", "-o", "json"]);
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.run(&["down", "--all"]);
    }
}

/// The kubeconfig path that `up` printed.
fn kubeconfig(printed: &str) -> String {
    printed.lines().find_map(|line| line.trim().strip_prefix("kubeconfig")).unwrap().trim().to_owned()
}

/// Creates a pod with one GPU.
fn create_pod(kubeconfig: &str, name: &str) {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "app", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }))
    .unwrap();
    gantry_kit::install_crypto();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let file = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        let pods: Api<Pod> = Api::default_namespaced(Client::try_from(config).unwrap());
        pods.create(&PostParams::default(), &pod).await.unwrap();
    });
}

fn eventually(what: &str, mut probe: impl FnMut() -> bool) {
    for _ in 0..600 {
        if probe() {
            return;
        }
        pause();
    }
    panic!("{what}: not within a minute");
}

#[expect(clippy::disallowed_methods, reason = "no runtime in this test")]
fn pause() {
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn two_clusters_run_side_by_side_and_end_one_by_one() {
    let place = Place::new();
    let one = kubeconfig(&place.ok(&["up", "--detach", "--nodes", "a100-80=1"]));
    let two = kubeconfig(&place.ok(&["up", "--detach", "--nodes", "t4=2:4"]));
    assert_ne!(one, two);
    assert_eq!(place.gpus(&one).len(), 8);
    // As kubectl's plugin it follows kubectl's rules and asks no other cluster.
    let plugin = place.path().join("kubectl-gpu");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gantry"), &plugin).unwrap();
    let plugin = |kubeconfig: Option<&str>| {
        let mut command = Command::new(&plugin);
        command
            .args(["get", "gpus", "-o", "name"])
            .env("XDG_RUNTIME_DIR", place.path())
            .env("HOME", place.path());
        match kubeconfig {
            Some(path) => command.env("KUBECONFIG", path),
            None => command.env_remove("KUBECONFIG"),
        };
        command.output().unwrap()
    };
    assert_eq!(String::from_utf8(plugin(Some(&one)).stdout).unwrap().lines().count(), 8);
    assert!(!plugin(None).status.success());
    assert_eq!(place.gpus(&two).len(), 8);
    assert!(place.refused(&["get", "gpus"]).contains("hint: export KUBECONFIG="));
    assert!(place.refused(&["down"]).contains("hint: gantry down gantry"));
    place.ok(&["down", "gantry"]);
    // One is left, so nothing needs to be said.
    assert!(
        place.ok(&["get", "gpus"]).contains("Tesla-T4") || place.ok(&["get", "gpus"]).contains("Tesla T4")
    );
    place.ok(&["down"]);
    assert_eq!(place.ok(&["down"]).trim(), "no cluster runs here");
}

#[test]
fn a_state_folder_keeps_the_cluster_across_a_kill() {
    let place = Place::new();
    let state = place.path().join("state");
    let state = state.to_str().unwrap();
    let up = ["up", "--detach", "--nodes", "rtx3090=1:2", "--state", state];
    let first = kubeconfig(&place.ok(&up));
    create_pod(&first, "keeper");
    let owner = |config: &str| {
        place.gpus(config).iter().find_map(|gpu| {
            let pods = gpu["pods"].as_array()?;
            pods.first().map(|_| gpu["id"].as_str().unwrap_or_default().to_owned())
        })
    };
    eventually("the pod has a GPU", || owner(&first).is_some());
    let before = owner(&first);
    let clusters = place.ok(&["clusters"]);
    let pid = clusters.lines().nth(1).unwrap().split_whitespace().nth(1).unwrap().to_owned();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let second = loop {
        // The lock is free as soon as the kernel has buried the process.
        let output = place.run(&up);
        if output.status.success() {
            break kubeconfig(&String::from_utf8(output.stdout).unwrap());
        }
        pause();
    };
    eventually("the pod has its GPU again", || owner(&second) == before);
}

#[test]
fn an_interrupt_ends_the_cluster_and_cleans_up() {
    let place = Place::new();
    let mut child =
        place.command(&["up", "--nodes", "l4=1:1"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    eventually("the cluster is listed", || place.run(&["clusters"]).stdout.starts_with(b"NAME"));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut status = None;
    eventually("the process ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    let left: Vec<_> = std::fs::read_dir(place.path().join("gantry/gantry"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != "lock")
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn bad_flags_are_told_what_to_write() {
    let place = Place::new();
    for (arguments, expected) in [
        (&["up", "--nodes", "gtx9999=1"][..], "is not known: use one of a100-40, a100-80"),
        (&["up", "--nodes", "a100-80=1:99"], "use 0 to 16"),
        (&["up", "--name", "A b"], "as in --name lab-2"),
        (&["up", "--file", "/nowhere.yaml"], "read /nowhere.yaml"),
        (&["down", "nobody"], "hint: gantry clusters"),
        (&["why", "pod/x"], "hint: gantry up --detach"),
    ] {
        let text = place.refused(arguments);
        assert!(text.contains(expected), "gantry {arguments:?}: {text}");
    }
}
