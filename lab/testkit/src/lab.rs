//! A cluster that lives as long as a test.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gantry_apiserver::PodTarget;
use gantry_cluster::NodeGroup;
use gantry_model::FaultKind;
use kube::Client;
use serde_json::Value;
use tempfile::TempDir;

use crate::Output;
use crate::embedded::Embedded;
use crate::real::Real;
use crate::{RealContainer, truth};

/// How long a test waits for a state that must come. Only a failing test waits that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running cluster with a kubeconfig, of the tier that `GANTRY_TIER` names: `embedded`, the default, or `kubernetes`.
pub struct Lab {
    tier: Tier,
    client: Client,
    folder: TempDir,
}

/// What is not as in every cluster.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Setup {
    /// Kubernetes' own scheduler runs beside Gantry's.
    pub(crate) stock_scheduler: bool,
    /// `gantry-runtime` asks whose GPUs a container gets, in place of NRI.
    pub(crate) runtime_wrapper: bool,
    /// Nothing of Gantry is there: the test installs it.
    pub(crate) bare: bool,
}

enum Tier {
    Embedded(Embedded),
    Kubernetes(Real),
}

impl Lab {
    /// Starts a cluster with `nodes` as pairs of a GPU profile and a number of nodes with eight GPUs each.
    pub async fn start(nodes: &[(&str, u32)]) -> anyhow::Result<Self> {
        Self::start_with(groups(nodes)).await
    }

    /// Starts a cluster with these groups of nodes.
    pub async fn start_with(nodes: Vec<NodeGroup>) -> anyhow::Result<Self> {
        Self::start_tier(nodes, Setup::default()).await
    }

    /// Starts a cluster in which Kubernetes' own scheduler takes the pods that name none, and Gantry's those that name it.
    ///
    /// # Errors
    /// On the embedded tier, which has no other scheduler.
    pub async fn start_beside_the_stock_scheduler(nodes: &[(&str, u32)]) -> anyhow::Result<Self> {
        anyhow::ensure!(Self::on_kubernetes(), "the embedded tier has no other scheduler");
        let setup = Setup { stock_scheduler: true, ..Setup::default() };
        Self::start_tier(groups(nodes), setup).await
    }

    /// Starts a cluster whose container runtimes have NRI switched off and `gantry-runtime` as the runtime `nvidia`, as
    /// `gantry runtime configure` brings it there.
    ///
    /// # Errors
    /// On the embedded tier, whose container runtime knows no other.
    pub async fn start_with_the_runtime_wrapper(nodes: &[(&str, u32)]) -> anyhow::Result<Self> {
        anyhow::ensure!(Self::on_kubernetes(), "the embedded tier has no OCI runtime");
        let setup = Setup { runtime_wrapper: true, ..Setup::default() };
        Self::start_tier(groups(nodes), setup).await
    }

    /// Starts Kubernetes alone: nodes have the driver's files, and nothing of Gantry is installed.
    ///
    /// # Errors
    /// On the embedded tier, which is Gantry's.
    pub async fn start_bare(nodes: Vec<NodeGroup>) -> anyhow::Result<Self> {
        anyhow::ensure!(Self::on_kubernetes(), "the embedded tier is Gantry's own");
        Self::start_tier(nodes, Setup { stock_scheduler: true, bare: true, ..Setup::default() }).await
    }

    async fn start_tier(nodes: Vec<NodeGroup>, setup: Setup) -> anyhow::Result<Self> {
        gantry_kit::install_crypto();
        // Unix socket paths are short: the folder lies directly under /tmp.
        let folder = tempfile::Builder::new().prefix("gl").tempdir_in("/tmp")?;
        let tier = if Self::on_kubernetes() {
            Tier::Kubernetes(Real::start(&nodes, setup).await?)
        } else {
            Tier::Embedded(Embedded::start(nodes, folder.path()).await?)
        };
        let client = match &tier {
            Tier::Embedded(embedded) => embedded.cluster.client(),
            Tier::Kubernetes(real) => real.client(),
        };
        Ok(Self { tier, client, folder })
    }

    /// Whether clusters are real Kubernetes.
    ///
    /// # Panics
    /// For a tier that does not exist.
    pub fn on_kubernetes() -> bool {
        match std::env::var("GANTRY_TIER").as_deref() {
            Err(_) | Ok("embedded") => false,
            Ok("kubernetes") => true,
            Ok(other) => panic!("GANTRY_TIER={other}: must be embedded or kubernetes"),
        }
    }

    /// A client that may do everything.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The names of all nodes, sorted.
    pub fn node_names(&self) -> Vec<String> {
        match &self.tier {
            Tier::Embedded(embedded) => embedded.cluster.node_names(),
            Tier::Kubernetes(real) => real.node_names(),
        }
    }

    /// Makes a GPU fail, by its index on the node.
    pub fn fault(&self, node: &str, index: usize, kind: FaultKind) -> anyhow::Result<()> {
        match &self.tier {
            Tier::Embedded(embedded) => Ok(embedded.cluster.fault(node, index, kind)?),
            Tier::Kubernetes(real) => real.fault(node, index, kind),
        }
    }

    /// Mends a GPU, whatever it had.
    pub fn recover(&self, node: &str, index: usize) -> anyhow::Result<()> {
        match &self.tier {
            Tier::Embedded(embedded) => Ok(embedded.cluster.recover(node, index)?),
            Tier::Kubernetes(real) => real.recover(node, index),
        }
    }

    /// Kills a node's agent; it is started again.
    pub fn restart_agent(&self, node: &str) -> anyhow::Result<()> {
        match &self.tier {
            Tier::Embedded(embedded) => Ok(embedded.cluster.restart_agent(node)?),
            Tier::Kubernetes(real) => real.restart_agent(node),
        }
    }

    /// Restarts a node's kubelet; its containers go on.
    pub async fn restart_kubelet(&self, node: &str) -> anyhow::Result<()> {
        match &self.tier {
            Tier::Embedded(embedded) => Ok(embedded.cluster.restart_kubelet(node).await?),
            Tier::Kubernetes(real) => real.restart_kubelet(node),
        }
    }

    /// Kills the scheduler and starts it anew.
    pub async fn restart_scheduler(&self) -> anyhow::Result<()> {
        match &self.tier {
            Tier::Embedded(embedded) => Ok(embedded.cluster.restart_scheduler().await?),
            Tier::Kubernetes(real) => real.restart_scheduler(),
        }
    }

    /// Switches a node off at once: no process ends in good order and nobody tells the API server.
    pub async fn stop_node(&self, node: &str) -> anyhow::Result<()> {
        match &self.tier {
            Tier::Embedded(embedded) => Ok(embedded.cluster.stop_node(node).await?),
            Tier::Kubernetes(real) => real.stop_node(node),
        }
    }

    /// Switches a node on again.
    pub async fn start_node(&self, node: &str) -> anyhow::Result<()> {
        match &self.tier {
            Tier::Embedded(embedded) => Ok(embedded.cluster.start_node(node).await?),
            Tier::Kubernetes(real) => real.start_node(node),
        }
    }

    /// Kills a program of a real node, or of the control plane on [`gantry_kubernetes::CONTROL`], and starts it again.
    ///
    /// # Errors
    /// On the embedded tier, which has no such programs.
    pub fn restart_program(&self, machine: &str, program: &str) -> anyhow::Result<()> {
        self.real()?.restart(machine, program)
    }

    /// Kills a program of a machine of the Kubernetes tier, if it runs.
    ///
    /// # Errors
    /// On the embedded tier, which has no such programs.
    pub fn kill_program(&self, machine: &str, program: &str) -> anyhow::Result<()> {
        self.real()?.kill(machine, program)
    }

    /// Starts what does not run on a machine of the Kubernetes tier, as its service manager would, and names it.
    ///
    /// # Errors
    /// On the embedded tier, and where a program cannot be started.
    pub fn revive(&self, machine: &str) -> anyhow::Result<Vec<String>> {
        self.real()?.revive(machine)
    }

    /// What the containers of a real node really have.
    ///
    /// # Errors
    /// On the embedded tier, and where the node's runtime cannot be read.
    pub fn containers(&self, node: &str) -> anyhow::Result<Vec<RealContainer>> {
        truth::containers(&self.real()?.root(node)?)
    }

    /// The ids of `nvidia.com/gpu` that a real node's kubelet says it has granted, by `NAMESPACE/POD/CONTAINER`.
    ///
    /// # Errors
    /// On the embedded tier, and where the kubelet does not answer.
    pub async fn granted(&self, node: &str) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
        truth::kubelet(&self.real()?.root(node)?).await
    }

    /// The real cluster itself.
    ///
    /// # Errors
    /// On the embedded tier.
    pub fn cluster(&self) -> anyhow::Result<&gantry_kubernetes::Cluster> {
        Ok(self.real()?.cluster())
    }

    fn real(&self) -> anyhow::Result<&Real> {
        match &self.tier {
            Tier::Kubernetes(real) => Ok(real),
            Tier::Embedded(_) => bail!("only the Kubernetes tier has programs and containers of its own"),
        }
    }

    /// The kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        match &self.tier {
            Tier::Embedded(embedded) => &embedded.kubeconfig,
            Tier::Kubernetes(real) => real.kubeconfig(),
        }
    }

    /// A kubeconfig whose default namespace is `namespace`.
    pub fn kubeconfig_for(&self, namespace: &str) -> anyhow::Result<PathBuf> {
        let folder = self.folder.path().join(namespace);
        std::fs::create_dir_all(&folder)?;
        let path = folder.join("kubeconfig");
        let text = std::fs::read_to_string(self.kubeconfig())?;
        let mut config: serde_json::Value = serde_saphyr::from_str(&text).context("read the kubeconfig")?;
        config["contexts"][0]["context"]["namespace"] = namespace.into();
        std::fs::write(&path, serde_json::to_vec_pretty(&config)?)?;
        Ok(path)
    }

    /// Sends a request in process as an administrator and gives the answer whatever its status.
    pub async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Answer> {
        let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("Content-Type", "application/json")
            .body(kube::client::Body::from(body))?;
        let response = self.client.send(request).await.with_context(|| format!("{method} {path}"))?;
        let status = response.status().as_u16();
        let warnings = response
            .headers()
            .get_all("warning")
            .iter()
            .filter_map(|value| value.to_str().ok().map(str::to_owned))
            .collect();
        let bytes = http_body_util::BodyExt::collect(response.into_body()).await?.to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok(Answer { status, warnings, body })
    }

    /// An answer that is no JSON, such as a log.
    pub async fn text(&self, path: &str) -> anyhow::Result<String> {
        let request = http::Request::get(path).body(Vec::new())?;
        Ok(self.client.request_text(request).await?)
    }

    /// POST, whatever the answer.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        self.send("POST", path, Some(body)).await
    }

    /// One object.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.send("GET", path, None).await?.ok()
    }

    /// The items of a list.
    pub async fn list(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        match self.get(path).await?["items"].take() {
            Value::Array(items) => Ok(items),
            other => bail!("{path} is no list: {other}"),
        }
    }

    /// Creates every object of a YAML file as `kubectl create -f` would, with strict field validation.
    pub async fn apply(&self, file: &Path) -> anyhow::Result<()> {
        for object in documents(file)? {
            let path = format!("{}?fieldValidation=Strict", collection(&object)?);
            self.post(&path, &object).await?.ok()?;
        }
        Ok(())
    }

    /// Deletes every object of a YAML file.
    pub async fn delete(&self, file: &Path) -> anyhow::Result<()> {
        for object in documents(file)? {
            let name = object["metadata"]["name"].as_str().context("metadata.name")?;
            self.send("DELETE", &format!("{}/{name}", collection(&object)?), None).await?.ok()?;
        }
        Ok(())
    }

    /// Runs a command in the first container of a pod and gives its standard output; fails if it fails.
    pub async fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> anyhow::Result<String> {
        self.exec_in(namespace, pod, None, command).await?.ok()
    }

    /// Runs a command in a container of a pod, the first if none is named, and gives what came of it.
    pub async fn exec_in(
        &self,
        namespace: &str,
        pod: &str,
        container: Option<&str>,
        command: &[&str],
    ) -> anyhow::Result<Output> {
        let object = self.get(&format!("/api/v1/namespaces/{namespace}/pods/{pod}")).await?;
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let container = container.map_or_else(|| text("/spec/containers/0/name"), str::to_owned);
        match &self.tier {
            Tier::Embedded(embedded) => {
                let target = PodTarget {
                    node: text("/spec/nodeName"),
                    namespace: namespace.to_owned(),
                    pod: pod.to_owned(),
                    uid: text("/metadata/uid"),
                    container,
                };
                embedded.exec(target, command).await
            }
            Tier::Kubernetes(real) => real.exec(namespace, pod, &container, command).await,
        }
    }

    /// Ends the cluster and waits until its parts have stopped.
    pub async fn stop(self) {
        match self.tier {
            Tier::Embedded(embedded) => embedded.stop().await,
            Tier::Kubernetes(real) => real.stop(),
        }
    }
}

fn groups(nodes: &[(&str, u32)]) -> Vec<NodeGroup> {
    let group = |&(profile, count): &(&str, u32)| NodeGroup {
        profile: profile.to_owned(),
        count,
        gpus_per_node: 8,
        ..NodeGroup::default()
    };
    nodes.iter().map(group).collect()
}

/// What the API server answered.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The `Warning` headers.
    pub warnings: Vec<String>,
    /// The body; null if it is no JSON.
    pub body: Value,
}

impl Answer {
    /// The body, or an error that tells what the server said.
    pub fn ok(self) -> anyhow::Result<Value> {
        if self.status < 300 {
            return Ok(self.body);
        }
        bail!("{}: {}", self.status, self.body["message"].as_str().unwrap_or("no message"))
    }
}

fn documents(file: &Path) -> anyhow::Result<Vec<Value>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    serde_saphyr::from_multiple(&text).with_context(|| format!("parse {}", file.display()))
}

/// The path of the collection that an object belongs to.
fn collection(object: &Value) -> anyhow::Result<String> {
    let version = object["apiVersion"].as_str().context("apiVersion")?;
    let kind = object["kind"].as_str().context("kind")?;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let root = if version.contains('/') { "apis" } else { "api" };
    let plural = format!("{}s", kind.to_lowercase());
    Ok(format!("/{root}/{version}/namespaces/{namespace}/{plural}"))
}

/// Waits until `probe` gives a value; fails with what it said last if it never does.
pub async fn eventually<T, F>(what: &str, mut probe: impl FnMut() -> F) -> anyhow::Result<T>
where
    F: Future<Output = anyhow::Result<T>>,
{
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let problem = match probe().await {
            Ok(value) => return Ok(value),
            Err(problem) => problem,
        };
        if tokio::time::Instant::now() >= deadline {
            bail!("{what}: not within {} s: {problem:#}", PATIENCE.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
