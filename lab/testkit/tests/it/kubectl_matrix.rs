//! One matrix of commands, run with every kubectl on this machine; `docs/compat.md` is made from the outcome.
//!
//! `BLESS=1 cargo test -p gantry-testkit kubectl_matrix` rewrites the page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use gantry_testkit::{Kubectl, Lab, Output, eventually, kubectls};

/// The oldest kubectl that is supported; older ones are run too, and what they cannot do is written down.
const FLOOR: u32 = 27;

/// What is noted for a command that was left out, after a failure or for want of a program.
const NOT_RUN: &str = "not run";

/// The cell of such a command.
const NOTHING: &str = "–";

/// One command of the matrix.
struct Row {
    /// What the page calls it.
    name: &'static str,
    /// What is typed; `{ns}` is the version's namespace, `{root}` the repository, `{node}` a node.
    command: &'static str,
    /// What is printed must contain: standard output; standard error as well, if it is to fail.
    expect: &'static str,
    /// What more standard output must be like.
    shape: Option<fn(&str) -> anyhow::Result<()>>,
    /// How it ends.
    ends: Ends,
}

enum Ends {
    /// With this exit code.
    With(i32),
    /// With exit code 0, once the cluster has got there: tried again until then.
    Eventually,
    /// Not by itself: it is stopped after a while.
    Never,
    /// With exit code 0, at a terminal.
    AtATerminal,
}

const fn row(name: &'static str, command: &'static str, expect: &'static str) -> Row {
    Row { name, command, expect, shape: None, ends: Ends::With(0) }
}

const fn shaped(
    name: &'static str,
    command: &'static str,
    expect: &'static str,
    shape: fn(&str) -> anyhow::Result<()>,
) -> Row {
    Row { name, command, expect, shape: Some(shape), ends: Ends::With(0) }
}

const fn fails(name: &'static str, command: &'static str, expect: &'static str) -> Row {
    Row { name, command, expect, shape: None, ends: Ends::With(1) }
}

const fn soon(name: &'static str, command: &'static str, expect: &'static str) -> Row {
    Row { name, command, expect, shape: None, ends: Ends::Eventually }
}

const fn follow(name: &'static str, command: &'static str, expect: &'static str) -> Row {
    Row { name, command, expect, shape: None, ends: Ends::Never }
}

const MATRIX: &[Row] = &[
    row("version", "version", "Server Version"),
    row("api-resources", "api-resources", "horizontalpodautoscalers"),
    shaped(
        "get pods -n kube-system",
        "get pods -n kube-system",
        "gantry-nvidia-agent",
        agents_are_found_by_grep,
    ),
    row(
        "logs -l",
        "logs -n kube-system -l app.kubernetes.io/name=gantry-nvidia-agent",
        "Registered device plugin for 'nvidia.com/gpu' with Kubelet",
    ),
    row("create namespace", "create namespace {ns}", "namespace/{ns} created"),
    row("apply -f examples/", "apply -f {root}/examples/", "deployment.apps/multi-gpu-app"),
    row("apply again", "apply -f {root}/examples/ai-model-service.yaml", "unchanged"),
    soon("wait", "wait --for=condition=Ready pod/torch-gpu-pod --timeout=20s", "condition met"),
    soon("rollout status", "rollout status deployment/gpu-app --timeout=20s", "successfully rolled out"),
    soon("get -o wide", "get pods -o wide", "a100"),
    row("get -o yaml", "get deployment gpu-app -o yaml", "nvidia.com/gpu: \"1\""),
    row("get -o jsonpath", "get pod torch-gpu-pod -o jsonpath={.status.phase}", "Running"),
    row(
        "get -o custom-columns",
        "get pods -o custom-columns=N:.metadata.name,P:.status.phase",
        "torch-gpu-pod",
    ),
    follow("get -w", "get pods -w", "torch-gpu-pod"),
    row("get hpa", "get hpa", "<unknown>/80%"),
    shaped("describe node", "describe node {node}", "nvidia.com/gpu", gpus_are_in_each_part),
    row("describe pod", "describe pod torch-gpu-pod", "Scheduled"),
    row("describe deployment", "describe deployment gpu-app", "NewReplicaSet"),
    row("logs", "logs torch-gpu-pod", "simulated"),
    follow("logs -f", "logs -f torch-gpu-pod", "simulated"),
    shaped("exec", "exec torch-gpu-pod -- nvidia-smi", "Driver Version: ", one_gpu_is_in_the_table),
    row("exec, list", "exec torch-gpu-pod -- nvidia-smi -L", "GPU 0: "),
    Row {
        name: "exec -it",
        command: "exec -it torch-gpu-pod -- nvidia-smi",
        expect: "Driver Version: ",
        shape: Some(one_gpu_is_in_the_table),
        ends: Ends::AtATerminal,
    },
    shaped("exec ls", "exec torch-gpu-pod -- ls /dev/nvidia*", "/dev/nvidiactl", one_device_is_listed),
    fails("exec, exit code", "exec torch-gpu-pod -- sh -c false", "exit code 1"),
    fails("top", "top pod", "Metrics API not available"),
    row("scale", "scale deployment gpu-app --replicas=3", "scaled"),
    soon("scaled", "get deployment gpu-app -o jsonpath={.status.readyReplicas}", "3"),
    row("rollout restart", "rollout restart deployment/gpu-app", "restarted"),
    soon(
        "rollout status after restart",
        "rollout status deployment/gpu-app --timeout=20s",
        "successfully rolled out",
    ),
    row("rollout history", "rollout history deployment/gpu-app", "REVISION"),
    row("rollout undo", "rollout undo deployment/gpu-app", "rolled back"),
    soon(
        "rollout status after undo",
        "rollout status deployment/gpu-app --timeout=20s",
        "successfully rolled out",
    ),
    row("label", "label pod torch-gpu-pod team=research", "labeled"),
    row("get -l", "get pods -l team=research", "torch-gpu-pod"),
    row("annotate", "annotate pod torch-gpu-pod note=edited-before", "annotate"),
    row("edit", "edit pod torch-gpu-pod", "edited"),
    row("edited", "get pod torch-gpu-pod -o jsonpath={.metadata.annotations.note}", "edited-after"),
    row(
        "patch, strategic",
        r#"patch deployment gpu-app -p {"spec":{"template":{"metadata":{"labels":{"a":"b"}}}}}"#,
        "patched",
    ),
    row(
        "patch, merge",
        r#"patch deployment gpu-app --type=merge -p {"metadata":{"labels":{"a":"b"}}}"#,
        "patched",
    ),
    row(
        "patch, JSON",
        r#"patch deployment gpu-app --type=json -p [{"op":"replace","path":"/spec/replicas","value":1}]"#,
        "patched",
    ),
    row("set image", "set image deployment/gpu-app gpu-app=gpu-app:2", "image updated"),
    row("events", "events", "torch-gpu-pod"),
    row("get events", "get events", "torch-gpu-pod"),
    row("explain", "explain pod.spec.containers.resources", "limits"),
    row("create deployment", "create deployment web --image=web --replicas=1", "created"),
    row("create job", "create job hello --image=busybox -- echo hello", "created"),
    soon("job completes", "wait --for=condition=Complete job/hello --timeout=20s", "condition met"),
    row("logs of a job", "logs job/hello", "hello"),
    row("create configmap", "create configmap settings --from-literal=a=b", "created"),
    row("create quota", "create quota limit --hard=pods=100", "created"),
    row("delete -f", "delete -f {root}/examples/torch-gpu-pod.yaml", "deleted"),
    row("create -f", "create -f {root}/examples/torch-gpu-pod.yaml", "pod/torch-gpu-pod created"),
    fails(
        "create -f, strict",
        "create -n kube-public -f {root}/examples/as-written/torch-gpu-pod.yaml",
        "strict decoding error: unknown field \"spec.containers[0].resources.cpu\"",
    ),
    row(
        "create -f, warn",
        "create -n kube-public -f {root}/examples/as-written/torch-gpu-pod.yaml --validate=warn --dry-run=server",
        "created",
    ),
    row("run", "run once --image=busybox --restart=Never -- true", "created"),
    row("auth can-i", "auth can-i create pods", "yes"),
    Row {
        name: "diff",
        command: "diff -f {root}/examples/gpu-app-deployment.yaml",
        expect: "replicas",
        shape: None,
        ends: Ends::With(1),
    },
    row(
        "run on a node",
        r#"run guarded --image=busybox --labels=guard=yes --overrides={"apiVersion":"v1","spec":{"nodeName":"{node}"}}"#,
        "created",
    ),
    row("create pdb", "create pdb guard --selector=guard=yes --min-available=1", "created"),
    soon("get pdb", "get pdb guard -o jsonpath={.status.currentHealthy}", "1"),
    row("cordon", "cordon {node}", "cordoned"),
    fails(
        "drain against a budget",
        "drain {node} --pod-selector=guard=yes --force --timeout=2s",
        "Cannot evict pod as it would violate the pod's disruption budget",
    ),
    row("delete pdb", "delete pdb guard", "deleted"),
    row("drain", "drain {node} --ignore-daemonsets --force --delete-emptydir-data --timeout=25s", "drained"),
    row("uncordon", "uncordon {node}", "uncordoned"),
    row("delete", "delete deployment web", "deleted"),
    row("delete namespace", "delete namespace {ns}", "deleted"),
];

/// `kubectl get pods -n kube-system | grep nvidia` finds the agents.
fn agents_are_found_by_grep(output: &str) -> anyhow::Result<()> {
    let found = output.lines().filter(|line| line.contains("nvidia") && line.contains("Running")).count();
    anyhow::ensure!(found >= 6, "{found} lines for six nodes in {output}");
    Ok(())
}

/// `kubectl describe node N | grep nvidia.com/gpu` finds them where they count, not only among the labels.
fn gpus_are_in_each_part(output: &str) -> anyhow::Result<()> {
    for (part, count) in
        [("Capacity:", Some("8")), ("Allocatable:", Some("8")), ("Allocated resources:", None)]
    {
        let inside = output.lines().skip_while(|line| *line != part).skip(1);
        let line = inside
            .take_while(|line| line.starts_with(' '))
            .find_map(|line| line.trim().strip_prefix("nvidia.com/gpu"));
        let line = line.with_context(|| format!("no GPUs under {part} in {output}"))?;
        let amount = line.trim_start_matches(':').split_whitespace().next();
        let is_number = amount.is_some_and(|amount| amount.parse::<u32>().is_ok());
        anyhow::ensure!(is_number && count.is_none_or(|count| amount == Some(count)), "{part} {line}");
    }
    Ok(())
}

fn one_gpu_is_in_the_table(output: &str) -> anyhow::Result<()> {
    let cards = output.lines().filter(|line| line.contains("NVIDIA ") && line.contains("00000000:")).count();
    anyhow::ensure!(cards == 1, "{cards} GPUs in {output}");
    Ok(())
}

fn one_device_is_listed(output: &str) -> anyhow::Result<()> {
    let number =
        |line: &str| line.strip_prefix("/dev/nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let devices = output.lines().filter(|line| number(line)).count();
    anyhow::ensure!(devices == 1, "{devices} GPUs in {output}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kubectl_passes_the_matrix() {
    if crate::left_out_on_kubernetes(
        "every_kubectl_passes_the_matrix",
        "its rows name versions and nodes of the embedded cluster; the differential test of the API server compares the answers",
    ) {
        return;
    }
    let kubectls = kubectls();
    if kubectls.is_empty() {
        // Past the test harness, which shows what a test prints only if it fails.
        let _ = writeln!(std::io::stderr(), "skipped: every_kubectl_passes_the_matrix: no kubectl on PATH");
        return;
    }
    let lab = Lab::start(&[("a100-80", 2), ("h100", 2), ("rtx3090", 2)]).await.unwrap();
    let mut outcomes: BTreeMap<u32, Vec<Option<String>>> = BTreeMap::new();
    // While mending one version, the others need not run: `KUBECTL=33`.
    let only = std::env::var("KUBECTL").ok().and_then(|minor| minor.parse::<u32>().ok());
    for kubectl in kubectls.iter().filter(|kubectl| only.is_none_or(|only| only == kubectl.minor)) {
        outcomes.insert(kubectl.minor, run_all(&lab, kubectl).await.unwrap());
    }
    lab.stop().await;
    let page = page(&outcomes);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compat.md");
    if std::env::var_os("BLESS").is_some() {
        assert!(only.is_none(), "BLESS writes the whole page: leave out KUBECTL");
        // What differs from a real API server is another test's part, and the last of the page.
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        let rest = written.find("## What differs from a real API server").map_or("", |at| &written[at..]);
        let page = if rest.is_empty() { page.clone() } else { format!("{page}\n{rest}") };
        std::fs::write(&path, page).unwrap();
    }
    let failures: Vec<String> = outcomes
        .iter()
        .filter(|(minor, _)| **minor >= FLOOR)
        .flat_map(|(minor, outcomes)| {
            MATRIX.iter().zip(outcomes).filter_map(move |(row, outcome)| {
                let problem = outcome.as_ref().filter(|problem| !problem.starts_with(NOT_RUN))?;
                Some(format!("1.{minor} {}: {problem}", row.name))
            })
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Another machine may have other versions: only what was run here can be compared.
    let written = cells(&std::fs::read_to_string(&path).unwrap_or_default());
    let known: BTreeSet<&String> = written.keys().map(|(_, version)| version).collect();
    for (cell, measured) in cells(&page) {
        let differs = written.get(&cell).is_none_or(|written| *written != measured && measured != NOTHING);
        assert!(
            !differs || !known.contains(&cell.1),
            "docs/compat.md has {:?} for {cell:?}, and {measured:?} was measured: run this test with BLESS=1",
            written.get(&cell)
        );
    }
}

/// The cells of the page's table by command and version.
fn cells(page: &str) -> BTreeMap<(String, String), String> {
    let mut rows = page.lines().filter(|line| line.starts_with("| ")).map(|line| {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    });
    let versions = rows.next().unwrap_or_default();
    let mut cells = BTreeMap::new();
    for row in rows.filter(|row| row[0] != "---") {
        for (version, cell) in versions.iter().zip(&row).skip(1) {
            cells.insert((row[0].clone(), version.clone()), cell.clone());
        }
    }
    cells
}

/// Runs the matrix with one kubectl; for each row `None`, or what went wrong.
async fn run_all(lab: &Lab, kubectl: &Kubectl) -> anyhow::Result<Vec<Option<String>>> {
    let namespace = format!("matrix-{}", kubectl.minor);
    let kubeconfig = lab.kubeconfig_for(&namespace)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let node = lab.node_names().into_iter().next().context("a node")?;
    let fill = |text: &str| {
        text.replace("{ns}", &namespace)
            .replace("{root}", &root.display().to_string())
            .replace("{node}", &node)
    };
    let mut outcomes = Vec::new();
    for row in MATRIX {
        let arguments: Vec<String> = row.command.split(' ').map(fill).collect();
        let expect = fill(row.expect);
        let run = async |limit: u64| -> anyhow::Result<Output> {
            kubectl.run_for(&kubeconfig, &arguments, Duration::from_secs(limit)).await
        };
        let outcome = match row.ends {
            Ends::With(code) => run(30).await.and_then(|output| check(row, &output, Some(code), &expect)),
            Ends::Never => run(2).await.and_then(|output| check(row, &output, None, &expect)),
            Ends::Eventually => {
                eventually(row.name, async || check(row, &run(30).await?, Some(0), &expect)).await
            }
            Ends::AtATerminal => match kubectl.run_at_a_terminal(&kubeconfig, &arguments).await? {
                Some(output) => check(row, &output, Some(0), &expect),
                None => {
                    outcomes.push(Some(format!("{NOT_RUN}: no program `script` on PATH")));
                    continue;
                }
            },
        };
        if let Err(problem) = &outcome {
            eprintln!("kubectl 1.{} {}: {problem:#}", kubectl.minor, row.name);
            // What comes after builds on what went before: a version that is not supported is not waited for.
            if kubectl.minor < FLOOR {
                outcomes.push(Some(format!("{problem:#}")));
                outcomes.resize(MATRIX.len(), Some(NOT_RUN.to_owned()));
                kubectl.run(&kubeconfig, &["delete", "namespace", &namespace]).await?;
                return Ok(outcomes);
            }
        }
        outcomes.push(outcome.err().map(|problem| format!("{problem:#}")));
    }
    Ok(outcomes)
}

fn check(row: &Row, output: &Output, code: Option<i32>, expect: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        output.code == code,
        "ended with {:?} instead of {code:?}: {}{}",
        output.code,
        output.stderr.trim(),
        output.stdout.trim()
    );
    let fails = code.is_some_and(|code| code != 0);
    let found = output.stdout.contains(expect) || fails && output.stderr.contains(expect);
    anyhow::ensure!(found, "no {expect:?} in {:?} {:?}", output.stdout, output.stderr);
    row.shape.map_or(Ok(()), |shape| shape(&output.stdout))
}

fn page(outcomes: &BTreeMap<u32, Vec<Option<String>>>) -> String {
    let mut page = String::from(
        "# kubectl compatibility\n\n\
         Made by the test `every_kubectl_passes_the_matrix`, which runs each command with every kubectl that it finds\n\
         against an embedded cluster. Do not edit: `BLESS=1 cargo test -p gantry-testkit kubectl_matrix`.\n\n",
    );
    let _ = writeln!(page, "Supported are kubectl 1.{FLOOR} and later.\n");
    page.push_str("| command |");
    for minor in outcomes.keys() {
        let _ = write!(page, " 1.{minor} |");
    }
    page.push_str("\n| --- |");
    page.push_str(&" --- |".repeat(outcomes.len()));
    page.push('\n');
    for (index, row) in MATRIX.iter().enumerate() {
        let _ = write!(page, "| {} |", row.name);
        for outcomes in outcomes.values() {
            page.push_str(match &outcomes[index] {
                None => " yes |",
                Some(problem) if problem.starts_with(NOT_RUN) => " – |",
                Some(_) => " no |",
            });
        }
        page.push('\n');
    }
    let mut notes = String::new();
    for (minor, outcomes) in outcomes {
        for (row, outcome) in MATRIX.iter().zip(outcomes) {
            if let Some(problem) = outcome.as_ref().filter(|problem| !problem.starts_with(NOT_RUN)) {
                let line = problem.lines().next().unwrap_or_default();
                let line: String = line.chars().take(160).collect();
                let _ = writeln!(notes, "- 1.{minor}, {}: {line}", row.name);
            }
        }
    }
    if !notes.is_empty() {
        page.push_str("\n## What fails, and with what words\n\n");
        page.push_str(&notes);
    }
    page
}
