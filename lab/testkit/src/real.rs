//! The Kubernetes tier: kube-apiserver, kubelets and containerd on this machine, and Gantry's own processes as an operator runs them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use gantry_cluster::{NodeGroup, node_names};
use gantry_fake_nvml::{Fault, InstallOptions, State, Store};
use gantry_kubernetes::{CONTROL, Cluster, NodeOptions, Options, Program, built};
use gantry_model::FaultKind;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::{Mutex, MutexGuard};

use crate::lab::Setup;
use crate::{Output, eventually};

/// The cluster's name: tests take turns, for one cluster is as much as the machine carries.
const NAME: &str = "lab";
static TURN: Mutex<()> = Mutex::const_new(());

const AGENT: &str = "gantry-agent";
const SCHEDULER: &str = "gantry-scheduler";
const CONTROLLERS: &str = "gantry-controllers";

/// Names of schedulers whose pods Gantry's takes: where Kubernetes' own does not run, and beside it.
const SCHEDULER_NAMES: &str = "default-scheduler,gantry-scheduler,volcano";
const OWN_SCHEDULER_NAMES: &str = "gantry-scheduler,volcano";

/// A cluster of real Kubernetes.
pub(crate) struct Real {
    cluster: Cluster,
    client: Client,
    /// What each node's simulated cards have become, by its name.
    cards: BTreeMap<String, Store>,
    /// The drivers' files.
    _drivers: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Real {
    pub(crate) async fn start(groups: &[NodeGroup], setup: Setup) -> anyhow::Result<Self> {
        let turn = TURN.lock().await;
        let gantry = built("gantry")?;
        let drivers = tempfile::Builder::new().prefix("gd").tempdir_in("/tmp")?;
        let (mut nodes, mut cards) = (Vec::new(), BTreeMap::new());
        let mut programs = Vec::new();
        for (group, names) in groups.iter().zip(node_names(groups)) {
            for name in names {
                let driver = (group.gpus_per_node > 0).then(|| drivers.path().join(&name));
                if let Some(root) = &driver {
                    cards.insert(name.clone(), install(root, &gantry, group, &name)?);
                    programs.push((name.clone(), program(AGENT, &gantry, &agent_arguments(&name, setup))));
                }
                nodes.push(NodeOptions {
                    name,
                    gpus: group.gpus_per_node,
                    driver,
                    labels: group.labels.clone(),
                    taints: group.taints.iter().map(serde_json::to_value).collect::<Result<_, _>>()?,
                    without_nri: setup.runtime_wrapper,
                });
            }
        }
        let options = Options {
            name: NAME.to_owned(),
            version: std::env::var("GANTRY_KUBERNETES_VERSION").unwrap_or_else(|_| "latest".to_owned()),
            nodes,
            scheduler: setup.stock_scheduler,
        };
        Cluster::down(NAME)?;
        let cluster = tokio::task::spawn_blocking(move || Cluster::up(&options)).await??;
        let client = connect(&cluster.kubeconfig).await?;
        let real = Self { client, cluster, cards, _drivers: drivers, _turn: turn };
        if setup.bare {
            return Ok(real);
        }
        for definition in gantry_api::crds() {
            real.define(&definition).await?;
        }
        let names = if setup.stock_scheduler { OWN_SCHEDULER_NAMES } else { SCHEDULER_NAMES };
        let scheduler = ["scheduler", "--scheduler-name", names];
        real.cluster.start(CONTROL, program(SCHEDULER, &gantry, &scheduler))?;
        real.cluster
            .start(CONTROL, program(CONTROLLERS, &gantry, &["controllers", "--listen", "0.0.0.0:8081"]))?;
        if setup.runtime_wrapper {
            real.add_runtime(&gantry).await?;
        }
        for (node, program) in programs {
            real.cluster.start(&node, program)?;
        }
        for (group, names) in groups.iter().zip(node_names(groups)) {
            real.offered(group, names).await?;
        }
        Ok(real)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.cluster.kubeconfig
    }

    pub(crate) fn node_names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.cluster.nodes().map(str::to_owned).collect();
        names.sort();
        names
    }

    pub(crate) async fn exec(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> anyhow::Result<Output> {
        let output = Command::new(self.cluster.bin.join("kubectl"))
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(["exec", "--namespace", namespace, pod, "--container", container, "--"])
            .args(command)
            .kill_on_drop(true)
            .output();
        let output = output.await.context("start kubectl")?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Output { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
    }

    /// Kills a program and starts it again, as a machine's init or a kubelet would.
    pub(crate) fn restart(&self, node: &str, program: &str) -> anyhow::Result<()> {
        self.kill(node, program)?;
        self.cluster.start_again(node, program)
    }

    pub(crate) fn kill(&self, node: &str, program: &str) -> anyhow::Result<()> {
        const KILL: i32 = 9;
        let runs = self.cluster.programs(node)?.iter().any(|(name, _)| name == program);
        if runs { self.cluster.signal(node, program, KILL, true) } else { Ok(()) }
    }

    pub(crate) fn revive(&self, node: &str) -> anyhow::Result<Vec<String>> {
        self.cluster.revive(node)
    }

    /// A node's file system.
    pub(crate) fn root(&self, node: &str) -> anyhow::Result<PathBuf> {
        self.cluster.root(node)
    }

    pub(crate) fn restart_agent(&self, node: &str) -> anyhow::Result<()> {
        self.restart(node, AGENT)
    }

    pub(crate) fn restart_kubelet(&self, node: &str) -> anyhow::Result<()> {
        self.restart(node, "kubelet")
    }

    pub(crate) fn restart_scheduler(&self) -> anyhow::Result<()> {
        self.restart(CONTROL, SCHEDULER)
    }

    /// Makes a GPU fail.
    pub(crate) fn fault(&self, node: &str, index: usize, kind: FaultKind) -> anyhow::Result<()> {
        let fault = match kind {
            FaultKind::Xid(xid) => Fault::Xid(u64::from(xid), None),
            FaultKind::Lost => Fault::Lost,
            FaultKind::DoubleBitEcc => Fault::EccDouble(1),
            FaultKind::RowRemapPending => Fault::RemapPending,
            FaultKind::ResetRequired | FaultKind::RebootRequired | FaultKind::FabricNotReady => {
                bail!("the simulated driver does not report {kind}")
            }
        };
        let index = u32::try_from(index)?;
        self.change(node, |state| state.fail(index, fault))
    }

    /// Mends a GPU.
    pub(crate) fn recover(&self, node: &str, index: usize) -> anyhow::Result<()> {
        let index = u32::try_from(index)?;
        self.change(node, |state| state.recover(index))
    }

    fn change(&self, node: &str, change: impl FnOnce(&mut State)) -> anyhow::Result<()> {
        let cards = self.cards.get(node).with_context(|| format!("node {node} has no GPUs"))?;
        cards.update(|state| {
            change(state);
            Ok::<_, gantry_fake_nvml::Error>(())
        })?;
        Ok(())
    }

    pub(crate) fn stop_node(&self, node: &str) -> anyhow::Result<()> {
        self.cluster.power_off(node)
    }

    pub(crate) fn start_node(&self, node: &str) -> anyhow::Result<()> {
        self.cluster.power_on(node)
    }

    /// Ends the cluster. Where that fails the next one says so.
    pub(crate) fn stop(self) {
        drop(Cluster::down(&self.cluster.options.name));
    }

    /// Makes every container runtime know `gantry-runtime`, as an operator does, and pods the class that asks for it.
    async fn add_runtime(&self, gantry: &Path) -> anyhow::Result<()> {
        let program = built("gantry-runtime")?;
        for node in self.cluster.nodes() {
            let mut command = self.cluster.command(node, Path::new("/"))?;
            command.arg(gantry).args(["runtime", "configure", "--runtime", "containerd", "--config"]);
            command.arg(self.cluster.runtime_config(node)?).arg("--nvidia-runtime-path").arg(&program);
            let output = tokio::task::spawn_blocking(move || command.output()).await??;
            ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            self.restart(node, "containerd")?;
        }
        let class = serde_json::json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia",
        });
        let request = http::Request::post("/apis/node.k8s.io/v1/runtimeclasses")
            .header("Content-Type", "application/json")
            .body(serde_json::to_vec(&class)?)?;
        self.client.request::<Value>(request).await.context("create the runtime class")?;
        Ok(())
    }

    /// Makes a definition known, and waits until its objects can be written.
    async fn define(&self, definition: &Value) -> anyhow::Result<()> {
        let name = definition["metadata"]["name"].as_str().context("a definition has a name")?;
        let collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let request = http::Request::post(collection)
            .header("Content-Type", "application/json")
            .body(serde_json::to_vec(definition)?)?;
        self.client.request::<Value>(request).await.with_context(|| format!("create {name}"))?;
        eventually(&format!("{name} is established"), async || {
            let request = http::Request::get(format!("{collection}/{name}")).body(Vec::new())?;
            let object: Value = self.client.request(request).await?;
            let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let established =
                |condition: &&Value| condition["type"] == "Established" && condition["status"] == "True";
            conditions.iter().find(established).map(drop).with_context(|| object["status"].to_string())
        })
        .await
    }

    /// Waits until the nodes of a group offer all their GPUs.
    async fn offered(&self, group: &NodeGroup, names: impl Iterator<Item = String>) -> anyhow::Result<()> {
        for name in names {
            eventually(&format!("{name} offers its GPUs"), async || {
                let request = http::Request::get(format!("/api/v1/nodes/{name}")).body(Vec::new())?;
                let node: Value = self.client.request(request).await?;
                let offered = &node["status"]["allocatable"]["nvidia.com/gpu"];
                let expected = group.gpus_per_node.to_string();
                ensure!(group.gpus_per_node == 0 || *offered == expected, "{offered} of {expected}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}

async fn connect(kubeconfig: &Path) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Installs the simulated driver of a node.
fn install(root: &Path, gantry: &Path, group: &NodeGroup, node: &str) -> anyhow::Result<Store> {
    let built = gantry.parent().context("a program lies in a folder")?;
    let config = serde_json::json!({
        "model": group.profile, "count": group.gpus_per_node, "node": node,
    });
    let installed = gantry_fake_nvml::install(&InstallOptions {
        root: root.to_owned(),
        library: built.join("libgantry_fake_nvml.so"),
        nvidia_smi: Some(built.join("nvidia-smi")).filter(|program| program.is_file()),
        config: config.to_string(),
        without: Vec::new(),
    })
    .with_context(|| format!("install the driver of {node}"))?;
    Ok(installed.store)
}

/// The command line of a node's agent: its driver is laid out as a driver container does it.
fn agent_arguments(node: &str, setup: Setup) -> [&str; 11] {
    [
        "agent",
        "--node-name",
        node,
        "--driver-root",
        "/run/nvidia/driver",
        "--sysfs",
        "/run/nvidia/driver/sys",
        "--procfs",
        "/run/nvidia/driver/proc",
        "--identity",
        if setup.runtime_wrapper { "shim" } else { "auto" },
    ]
}

fn program(name: &str, gantry: &Path, arguments: &[&str]) -> Program {
    let words = std::iter::once(gantry.display().to_string());
    Program::new(name, words.chain(arguments.iter().map(|word| (*word).to_owned())))
}
