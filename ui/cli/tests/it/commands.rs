//! What is asked of a cluster that runs: `get`, `describe`, `why`, in each of their forms; completions; kubectl's plugin.

use std::process::Command;
use std::process::Stdio;

use serde_json::Value;

use crate::place::{Place, create_pod, eventually, kubeconfig, say};

/// One node with two GPUs: a pod that has one, and one that waits for three.
fn cluster() -> Place {
    let place = Place::new();
    let config = kubeconfig(&place.ok(&["up", "--detach", "--nodes", "rtx3090=1:2"]));
    create_pod(&config, "runs", 1);
    create_pod(&config, "waits", 3);
    eventually("one runs", || place.ok(&["why", "runs"]).contains("\n  container main: GPU-"));
    place
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn gpus_are_listed_in_every_form() {
    let place = cluster();
    let table = place.ok(&["get", "gpus"]);
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(lines[0], ["NODE", "GPU", "MODEL", "MEMORY", "HEALTH", "POD"]);
    assert_eq!(lines.len(), 3, "{table}");
    let card = ["NVIDIA GeForce RTX 3090", "24576 MiB", "Healthy"];
    let owners: Vec<&str> = lines[1..]
        .iter()
        .map(|line| {
            assert_eq!(line[2..5], card, "{table}");
            line[5]
        })
        .collect();
    assert!(owners.contains(&"default/runs") && owners.contains(&"<none>"), "{table}");

    let wide = place.ok(&["get", "gpus", "-o", "wide"]);
    assert!(
        wide.lines().next().unwrap().ends_with(
            "POD            UUID                                       PCI                NUMA   DRIVER"
        ),
        "{wide}"
    );
    assert!(wide.lines().nth(1).unwrap().ends_with("550.54.15"), "{wide}");

    let document = json(&place.ok(&["get", "gpus", "-o", "json"]));
    assert_eq!(document, yaml(&place.ok(&["get", "gpus", "-o", "yaml"])));
    let gpus = document.as_array().unwrap();
    assert_eq!(gpus.len(), 2);
    assert_eq!((&gpus[0]["memoryMiB"], &gpus[0]["healthy"]), (&24_576.into(), &true.into()));
    let pods = gpus.iter().flat_map(|gpu| gpu["pods"].as_array().unwrap());
    assert_eq!(pods.map(|pod| pod["name"].as_str().unwrap()).collect::<Vec<_>>(), ["runs"]);

    let names = place.ok(&["get", "gpus", "-o", "name"]);
    let ids: Vec<&str> = gpus.iter().map(|gpu| gpu["id"].as_str().unwrap()).collect();
    assert_eq!(names.lines().map(|line| line.strip_prefix("gpu/").unwrap()).collect::<Vec<_>>(), ids);
    assert_eq!(place.ok(&["get", "gpus", "--no-headers"]).lines().count(), 2);
    for (filter, count) in
        [("rtx3090-1", 2), ("GeForce", 2), (gpus[0]["id"].as_str().unwrap(), 1), ("default/runs", 1)]
    {
        assert_eq!(place.ok(&["get", "gpus", "--no-headers", filter]).lines().count(), count, "{filter}");
    }

    // Nothing found is no failure, and nothing is written to standard output.
    let none = place.run(&["get", "gpus", "h100"]);
    assert!(none.status.success() && none.stdout.is_empty(), "{none:?}");
    assert_eq!(String::from_utf8(none.stderr).unwrap(), "no GPUs found\nhint: kubectl get gpunodes\n");
}

#[test]
fn a_gpu_is_described_in_every_form() {
    let place = cluster();
    let names = place.ok(&["get", "gpus", "-o", "name"]);
    let first = names.lines().next().unwrap();
    let id = first.strip_prefix("gpu/").unwrap();
    let text = place.ok(&["describe", "gpu", "rtx3090-1/0"]);
    for line in [
        &format!("UUID:                {id}\n"),
        "Node:                rtx3090-1\n",
        "Index:               0\n",
        "Model:               NVIDIA GeForce RTX 3090\n",
        "Memory:              24576 MiB\n",
        "Compute capability:  8.6\n",
        "Health:              Healthy\n",
        "Links:               1=NV4\n",
    ] {
        assert!(text.contains(line), "no {line:?} in:\n{text}");
    }
    // However it is named, it is the same.
    for name in [id, first, &id[..20]] {
        assert_eq!(place.ok(&["describe", "gpu", name]), text, "{name}");
    }
    assert_eq!(place.ok(&["describe", "gpu", id, "-o", "wide"]), text);
    assert_eq!(place.ok(&["describe", "gpu", id, "-o", "name"]), format!("{first}\n"));
    let document = json(&place.ok(&["describe", "gpu", id, "-o", "json"]));
    assert_eq!(document, yaml(&place.ok(&["describe", "gpu", id, "-o", "yaml"])));
    assert_eq!((document["id"].as_str(), document["index"].as_u64()), (Some(id), Some(0)));
    let described: Vec<String> =
        ["rtx3090-1/0", "rtx3090-1/1"].map(|gpu| place.ok(&["describe", "gpu", gpu])).into();
    assert!(
        described.iter().any(|text| text.ends_with("Pods:\n  default/runs (container main)\n")),
        "{described:?}"
    );
    assert!(described.iter().any(|text| text.ends_with("Pods:                <none>\n")), "{described:?}");

    assert_eq!(place.hint(&["describe", "gpu", "nothing"]), "hint: gantry get gpus");
    assert_eq!(place.hint(&["describe", "gpu", "GPU-"]), "hint: gantry describe gpu rtx3090-1/0");
}

#[test]
fn a_pod_that_runs_and_one_that_waits_are_explained_in_every_form() {
    let place = cluster();
    let runs = place.ok(&["why", "pod/runs"]);
    assert!(runs.starts_with("pod default/runs runs on rtx3090-1"), "{runs}");
    assert!(runs.contains("G4005 gpu-without-cpu-or-memory"), "{runs}");
    let waits = place.ok(&["why", "pod", "waits"]);
    assert!(waits.starts_with("pod default/waits waits: "), "{waits}");
    assert!(waits.contains("  G1001 insufficient-gpu: 1 node: asks for 3 GPUs"), "{waits}");
    assert_eq!(place.ok(&["why", "waits", "-o", "wide"]), waits);
    assert_eq!(place.ok(&["why", "waits", "-o", "name"]), "pod/waits\n");
    let document = json(&place.ok(&["why", "waits", "-o", "json"]));
    assert_eq!(document, yaml(&place.ok(&["why", "waits", "-o", "yaml"])));
    assert_eq!(
        (&document["pod"], &document["reasons"][0]["code"]),
        (&"default/waits".into(), &"G1001".into())
    );
    let document = json(&place.ok(&["why", "runs", "-o", "json"]));
    assert_eq!((&document["node"], &document["reasons"]), (&"rtx3090-1".into(), &Value::Null));
    assert_eq!(document["gpus"]["main"].as_array().unwrap().len(), 1);
    assert_eq!(place.hint(&["why", "pod/nobody"]), "hint: kubectl get pods -n default");
    assert_eq!(place.hint(&["why", "-n", "elsewhere", "runs"]), "hint: kubectl get pods -n elsewhere");
}

#[test]
fn a_gpu_can_be_made_to_fail_and_be_mended() {
    let place = cluster();
    let health = || {
        let gpus = json(&place.ok(&["get", "gpus", "-o", "json"]));
        gpus.as_array().unwrap().iter().map(|gpu| gpu["healthy"] == true).collect::<Vec<_>>()
    };
    assert_eq!(place.ok(&["fault", "rtx3090-1/1", "--xid", "79"]), "gpu rtx3090-1/1 has failed\n");
    eventually("it is unhealthy", || health() == [true, false]);
    let text = place.ok(&["describe", "gpu", "rtx3090-1/1"]);
    assert!(
        text.contains("Health:              Unhealthy\nFault:               ") && text.contains("XID 79"),
        "{text}"
    );
    assert_eq!(place.ok(&["fault", "rtx3090-1/1", "--recover"]), "gpu rtx3090-1/1 is mended\n");
    eventually("it is healthy again", || health() == [true, true]);
    let harmless = place.ok(&["fault", "rtx3090-1/0", "--xid", "31", "--name", "gantry"]);
    assert!(harmless.ends_with("stays in service\n"), "{harmless}");
    for kind in ["--lost", "--ecc"] {
        place.ok(&["fault", "rtx3090-1/0", kind]);
        eventually(kind, || health() == [false, true]);
        place.ok(&["fault", "rtx3090-1/0", "--recover"]);
        eventually("it is healthy again", || health() == [true, true]);
    }
    for gpu in ["nowhere-1/0", "rtx3090-1/2", "rtx3090-1"] {
        assert_eq!(place.hint(&["fault", gpu, "--lost"]), "hint: gantry get gpus", "{gpu}");
    }
    assert_eq!(place.hint(&["fault", "rtx3090-1/0", "--lost", "--name", "x"]), "hint: gantry clusters");
    assert!(place.refused(&["fault", "rtx3090-1/0"]).contains("--recover"));
}

/// `gantry … | head -1` closes the pipe while there is more to write.
#[test]
fn output_that_nobody_reads_to_its_end_is_no_failure() {
    let place = Place::new();
    let mut child = place.command(&["completions", "bash"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    if let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") {
        let output =
            place.command(&["completions", "bash"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.starts_with("error: write to standard output: "), "{said}");
    }
}

#[test]
fn completions_are_scripts_that_their_shells_accept() {
    let place = Place::new();
    for (shell, mark) in
        [("bash", "complete -F _gantry"), ("zsh", "#compdef gantry"), ("fish", "complete -c gantry")]
    {
        let script = place.ok(&["completions", shell]);
        assert!(script.contains(mark), "{shell}: {script}");
        for word in ["up", "down", "clusters", "describe", "why", "detach", "kubeconfig"] {
            assert!(script.contains(word), "{shell} does not complete {word}");
        }
        let file = place.path().join(shell);
        std::fs::write(&file, script).unwrap();
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(output) => assert!(output.status.success(), "{shell}: {output:?}"),
            Err(_) => say(&format!("not tried: completions for {shell}, which is not on PATH")),
        }
    }
}

#[test]
fn kubectl_finds_the_plugin() {
    let place = cluster();
    let config = place.ok(&["clusters"]).split_whitespace().last().unwrap().to_owned();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gantry"), place.path().join("kubectl-gpu")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let kubectl = |arguments: &[&str]| {
        Command::new("kubectl")
            .args(arguments)
            .env("PATH", format!("{}:{path}", place.path().display()))
            .env("HOME", place.path())
            .env("KUBECONFIG", &config)
            .output()
    };
    let Ok(output) = kubectl(&["gpu", "get", "gpus", "-o", "name"]) else {
        say("skipped: kubectl_finds_the_plugin: no kubectl on PATH");
        return;
    };
    assert_eq!(String::from_utf8(output.stdout).unwrap(), place.ok(&["get", "gpus", "-o", "name"]));
    let output = kubectl(&["gpu", "why", "pod/waits"]).unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("G1001"));
}
