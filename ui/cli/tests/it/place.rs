//! A machine of its own for a test's clusters.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A place of its own for clusters, so that tests do not meet each other or the developer's own.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::Builder::new().prefix("gu").tempdir_in("/tmp").unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
        command.args(arguments).env("XDG_RUNTIME_DIR", self.path()).env_remove("KUBECONFIG");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs and gives standard output; fails with what was said if the program failed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "gantry {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs and gives standard error; fails if the program did not.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "gantry {arguments:?} succeeded");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs and gives the last line of standard error; fails if the program did not, or if it wrote to standard output.
    pub(crate) fn hint(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success() && output.stdout.is_empty(), "gantry {arguments:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap().lines().last().unwrap_or_default().to_owned()
    }

    pub(crate) fn gpus(&self, kubeconfig: &str) -> Vec<Value> {
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
pub(crate) fn kubeconfig(printed: &str) -> String {
    printed.lines().find_map(|line| line.trim().strip_prefix("kubeconfig")).unwrap().trim().to_owned()
}

/// Creates a pod with so many GPUs.
pub(crate) fn create_pod(kubeconfig: &str, name: &str, gpus: u32) {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "app", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
    }))
    .unwrap();
    on(kubeconfig, async |client| {
        let pods: Api<Pod> = Api::default_namespaced(client);
        pods.create(&PostParams::default(), &pod).await.unwrap();
    });
}

/// Every object of a kind.
pub(crate) fn list<K>(kubeconfig: &str) -> Vec<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    on(kubeconfig, async |client| Api::<K>::all(client).list(&ListParams::default()).await.unwrap().items)
}

/// Does something with a client of the cluster that a kubeconfig names.
fn on<T>(kubeconfig: &str, work: impl AsyncFnOnce(Client) -> T) -> T {
    gantry_kit::install_crypto();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let file = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        work(Client::try_from(config).unwrap()).await
    })
}

pub(crate) fn eventually(what: &str, mut probe: impl FnMut() -> bool) {
    for _ in 0..600 {
        if probe() {
            return;
        }
        pause();
    }
    panic!("{what}: not within a minute");
}

#[expect(clippy::disallowed_methods, reason = "no runtime in this test")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(100));
}

/// Tells why something is not tried: past the test harness, which shows what a test prints only if it fails.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
