//! The way of an operator: the image, the chart, an upgrade, and away again, by the commands of the README and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use gantry_cluster::NodeGroup;
use gantry_testkit::{Lab, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::faults::{assigned_to_pod, create, pod, running, text, visible};

const NAMESPACE: &str = "gantry-system";
const GPUS: u32 = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_readme_installs_upgrades_and_removes() {
    if crate::left_out_on_embedded("the_readme_installs_upgrades_and_removes", "it has no pods of images") {
        return;
    }
    let groups = vec![NodeGroup { count: 2, gpus_per_node: GPUS, ..NodeGroup::default() }];
    let lab = Lab::start_bare(groups).await.unwrap();
    let outcome = everything(&lab).await;
    lab.stop().await;
    outcome.unwrap();
}

async fn everything(lab: &Lab) -> anyhow::Result<()> {
    let mut operator = Operator::new(lab)?;
    operator.shell("helm lint --strict charts/gantry --namespace gantry-system").await?;
    operator.shell("helm template gantry charts/gantry --namespace gantry-system >/dev/null").await?;
    let page = std::fs::read_to_string(root().join("README.md"))?;
    let blocks = blocks(&page, "## On a real cluster");
    let mut workloads = BTreeMap::new();
    let mut seen = Vec::new();
    for block in &blocks {
        let said = operator.run(block).await?;
        if block.contains("helm install") {
            ensure!(said.contains("Helm leaves"), "NOTES.txt does not tell what stays:\n{said}");
            installed(&operator).await?;
            workloads = start_workloads(lab).await?;
            seen.push("install");
        } else if block.contains("helm upgrade") {
            upgraded(&operator).await?;
            seen.push("upgrade");
        } else if block.contains("helm uninstall") {
            gone(&operator).await?;
            seen.push("uninstall");
        } else if block.contains("gantry manifests --image") {
            remembered(lab, &workloads).await?;
            seen.push("manifests");
        }
        unharmed(lab, &workloads).await.with_context(|| format!("after\n{block}"))?;
    }
    ensure!(seen == ["install", "upgrade", "uninstall", "manifests"], "the README has blocks for {seen:?}");
    Ok(())
}

/// Nodes have their GPUs and labels; processes may do what they do, and not more.
async fn installed(operator: &Operator<'_>) -> anyhow::Result<()> {
    let lab = operator.lab;
    for node in lab.node_names() {
        let expected = format!("nvidia.com/gpu: {GPUS}");
        eventually(&format!("kubectl describe node {node} shows GPUs"), async || {
            let described = operator.shell(&format!("kubectl describe node {node}")).await?;
            let words = described.split_whitespace().collect::<Vec<_>>().join(" ");
            for part in [&*expected, "nvidia.com/gpu.product=NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count=4"]
            {
                ensure!(words.contains(part), "no {part:?} in\n{described}");
            }
            Ok(())
        })
        .await?;
    }
    let can = "kubectl auth can-i --as system:serviceaccount:gantry-system:gantry";
    for forbidden in
        ["agent list secrets", "agent delete pods", "scheduler list secrets", "scheduler delete pods"]
    {
        let (role, what) = forbidden.split_once(' ').context("a role and a right")?;
        let answer = operator.shell(&format!("{can}-{role} {what} --all-namespaces || true")).await?;
        ensure!(answer.trim().ends_with("no"), "{forbidden}: {answer}");
    }
    operator.shell("gantry manifests | kubectl apply --dry-run=server -f -").await.map(drop)
}

/// A pod of each scheduler; gives each pod's own GPUs.
async fn start_workloads(lab: &Lab) -> anyhow::Result<BTreeMap<String, Workload>> {
    let mut workloads = BTreeMap::new();
    for (name, scheduler) in [("of-gantry", "gantry-scheduler"), ("of-kubernetes", "default-scheduler")] {
        let mut pod = pod(name, 2);
        pod["spec"]["schedulerName"] = json!(scheduler);
        create(lab, &pod).await?;
        let pod = running(lab, name).await?;
        let gpus = visible(lab, name, "main").await?;
        ensure!(gpus.len() == 2, "{name} sees {gpus:?}");
        let assigned = assigned_to_pod(&pod)?;
        ensure!(
            scheduler == "default-scheduler" || assigned == gpus,
            "{name} sees {gpus:?} instead of {assigned:?}"
        );
        workloads.insert(name.to_owned(), Workload { container: container(&pod), gpus });
    }
    let distinct: BTreeSet<_> = workloads.values().flat_map(|workload| &workload.gpus).collect();
    ensure!(distinct.len() == 4, "two pods see the same GPU");
    Ok(workloads)
}

/// A pod that runs: the id of its container, and what it sees.
struct Workload {
    container: String,
    gpus: BTreeSet<String>,
}

fn container(pod: &Value) -> String {
    text(pod, "/status/containerStatuses/0/containerID").to_owned()
}

/// Every workload still is the same container with the same GPUs; no process of Gantry was refused anything.
async fn unharmed(lab: &Lab, workloads: &BTreeMap<String, Workload>) -> anyhow::Result<()> {
    for (name, before) in workloads {
        let pod = running(lab, name).await?;
        ensure!(container(&pod) == before.container, "{name} was started again: {}", pod["status"]);
        let gpus = visible(lab, name, "main").await?;
        ensure!(gpus == before.gpus, "{name} saw {:?} and sees {gpus:?}", before.gpus);
    }
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    for pod in lab.list(&pods).await? {
        let name = text(&pod, "/metadata/name");
        // One that is just created or just gone has none.
        let log = lab.text(&format!("{pods}/{name}/log")).await.unwrap_or_default();
        ensure!(!log.contains("orbidden"), "{name} was refused something:\n{log}");
    }
    Ok(())
}

/// The new value has come to every pod.
async fn upgraded(operator: &Operator<'_>) -> anyhow::Result<()> {
    for rollout in ["daemonset/gantry-agent", "deployment/gantry-scheduler"] {
        operator.shell(&format!("kubectl -n {NAMESPACE} rollout status {rollout} --timeout 60s")).await?;
    }
    let pods = operator.lab.list(&format!("/api/v1/namespaces/{NAMESPACE}/pods")).await?;
    let debug = |pod: &&Value| pod["spec"].to_string().contains("debug");
    let left = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    ensure!(left.clone().count() > 0 && left.clone().all(|pod| debug(&pod)), "not every pod was replaced");
    Ok(())
}

/// Agents that are installed anew, and whose files were taken away before, know whose GPUs are in use.
async fn remembered(lab: &Lab, workloads: &BTreeMap<String, Workload>) -> anyhow::Result<()> {
    eventually("GPUs of pods from before are in use", async || {
        let mut users = BTreeMap::new();
        for report in lab.list("/apis/gantry.dev/v1alpha1/gpunodes").await? {
            for user in report["status"]["inUse"].as_array().into_iter().flatten() {
                let gpus: BTreeSet<String> = serde_json::from_value(user["gpus"].clone())?;
                users.insert(text(user, "/pod").to_owned(), gpus);
            }
        }
        for (name, workload) in workloads {
            ensure!(users.get(name) == Some(&workload.gpus), "{name} has {:?}: {users:?}", workload.gpus);
        }
        Ok(())
    })
    .await
}

/// Nothing of the release is left but definitions.
async fn gone(operator: &Operator<'_>) -> anyhow::Result<()> {
    eventually("nothing is left", async || {
        let kinds = "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,configmaps,secrets,leases,\
                     runtimeclasses,daemonsets,deployments,replicasets,pods,controllerrevisions";
        let left = operator.shell(&format!("kubectl get {kinds} --all-namespaces -o name")).await?;
        let left: Vec<_> = left.lines().filter(|name| name.contains("gantry")).collect();
        let ours = |name: &&&str| !name.ends_with("/of-gantry");
        ensure!(left.iter().filter(ours).count() == 0, "{left:?}");
        Ok(())
    })
    .await
}

/// Somebody with kubectl, helm, cargo and gantry, and nothing else.
struct Operator<'a> {
    lab: &'a Lab,
    /// The working folder, as a checkout: `charts` and `target` are there.
    folder: TempDir,
    path: String,
    /// Assignments of the blocks that have run.
    variables: String,
}

impl<'a> Operator<'a> {
    fn new(lab: &'a Lab) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("gi").tempdir_in("/tmp")?;
        let bin = folder.path().join("bin");
        for name in ["bin", "target"] {
            std::fs::create_dir(folder.path().join(name))?;
        }
        std::os::unix::fs::symlink(root().join("charts"), folder.path().join("charts"))?;
        let link = |program: PathBuf, name: &str| std::os::unix::fs::symlink(program, bin.join(name));
        link(lab.cluster()?.bin.join("kubectl"), "kubectl")?;
        link(gantry_kubernetes::helm()?, "helm")?;
        link(gantry_kubernetes::built("gantry")?, "gantry")?;
        write_cargo(&bin, folder.path())?;
        let path = format!("{}:{}", bin.display(), std::env::var("PATH")?);
        Ok(Self { lab, folder, path, variables: String::new() })
    }

    /// Runs a block where it belongs, which its first line may say.
    async fn run(&mut self, block: &str) -> anyhow::Result<String> {
        if block.starts_with("# on each node") {
            let cluster = self.lab.cluster()?;
            let mut said = String::new();
            for node in cluster.nodes() {
                let mut command = Command::from(cluster.command(node, self.folder.path())?);
                command.args(["sh", "-euc", block]);
                said.push_str(&output(command, block).await.with_context(|| format!("on {node}"))?);
            }
            return Ok(said);
        }
        let said = self.shell(block).await?;
        let assigns = |line: &&str| {
            line.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase()))
        };
        for line in block.lines().filter(assigns) {
            self.variables.push_str(line);
            self.variables.push('\n');
        }
        Ok(said)
    }

    async fn shell(&self, script: &str) -> anyhow::Result<String> {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c"]).arg(format!("{}{script}", self.variables));
        command
            .current_dir(self.folder.path())
            .env("PATH", &self.path)
            .env("KUBECONFIG", self.lab.kubeconfig())
            .env("HOME", self.folder.path())
            // Where the simulated driver is.
            .env("DRIVER", "/run/nvidia/driver");
        output(command, script).await
    }
}

/// What a script has said.
async fn output(mut command: Command, script: &str) -> anyhow::Result<String> {
    let output = command.kill_on_drop(true).output().await.with_context(|| format!("start {script}"))?;
    let both = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&both).into_owned();
    ensure!(output.status.success(), "{}:\n{script}\n{said}", output.status);
    Ok(said)
}

/// A `cargo` that puts the programs that are tested into the image, without what debuggers read, in place of a release build.
fn write_cargo(bin: &Path, folder: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;

    let (gantry, runtime) =
        (gantry_kubernetes::built("gantry")?, gantry_kubernetes::built("gantry-runtime")?);
    let script = format!(
        "#!/bin/sh\nset -e\nmkdir -p {folder}/stripped\nstrip -o {folder}/stripped/gantry {gantry}\n\
         strip -o {folder}/stripped/gantry-runtime {runtime}\ncd {root}\nHOME={home} exec {cargo} \"$@\" --uncompressed \
         --program {folder}/stripped/gantry --output {folder}/target/gantry-image.tar\n",
        folder = folder.display(),
        gantry = gantry.display(),
        runtime = runtime.display(),
        root = root().display(),
        home = std::env::var("HOME")?,
        cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()),
    );
    let path = bin.join("cargo");
    std::fs::write(&path, script)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The `sh` blocks of a section.
fn blocks(page: &str, section: &str) -> Vec<String> {
    let body = page.split_once(section).map_or("", |(_, rest)| rest);
    let body = body.split_once("\n## ").map_or(body, |(body, _)| body);
    body.split("\n```sh\n").skip(1).filter_map(|rest| Some(rest.split_once("\n```")?.0.to_owned())).collect()
}
