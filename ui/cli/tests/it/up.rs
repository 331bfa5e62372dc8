//! `gantry up`, `down`, and what they leave behind.

use std::process::{Command, Stdio};

use k8s_openapi::api::core::v1::Node;

use crate::place::{Place, create_pod, eventually, kubeconfig, list, pause};

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
    assert_eq!(place.hint(&["get", "gpus"]), format!("hint: export KUBECONFIG={one}"));
    assert_eq!(place.hint(&["down"]), "hint: gantry down gantry");
    assert_eq!(place.ok(&["down", "gantry"]), "cluster gantry is stopped\n");
    // One is left, so nothing needs to be said.
    assert!(place.ok(&["get", "gpus"]).contains("Tesla T4"));
    assert_eq!(place.ok(&["down"]), "cluster gantry-2 is stopped\n");
    // Nothing to do is no failure, and no output.
    let nothing = place.run(&["down"]);
    assert!(nothing.status.success() && nothing.stdout.is_empty(), "{nothing:?}");
    assert_eq!(nothing.stderr, b"no cluster runs here\n");
}

#[test]
fn a_state_folder_keeps_the_cluster_across_a_kill() {
    let place = Place::new();
    let state = place.path().join("state");
    let state = state.to_str().unwrap();
    let up = ["up", "--detach", "--nodes", "rtx3090=1:2", "--state", state];
    let first = kubeconfig(&place.ok(&up));
    create_pod(&first, "keeper", 1);
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
    let mut command = place.command(&["up", "--nodes", "l4=1:1"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("the cluster is ready", || place.ok(&["clusters"]).contains("https://"));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let mut status = None;
    eventually("the process ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    assert_eq!(left_in(&place, "gantry"), Vec::<String>::new());
}

#[test]
fn bad_flags_are_told_what_to_write() {
    let place = Place::new();
    for (arguments, expected) in [
        (&["up", "--nodes", "gtx9999=1"][..], "is not known: use one of a100-40, a100-80"),
        (&["up", "--nodes", "a100-80=1:99"], "use 0 to 16"),
        (&["up", "--name", "A b"], "as in --name lab-2"),
        (&["up", "--file", "/nowhere.yaml"], "read /nowhere.yaml"),
        (&["up", "--timeout", "5"], "--detach"),
    ] {
        let text = place.refused(arguments);
        assert!(text.contains(expected), "gantry {arguments:?}: {text}");
    }
}

#[test]
fn an_error_ends_with_what_can_be_pasted() {
    let place = Place::new();
    for (arguments, expected) in [
        (&["down", "nobody"][..], "hint: gantry clusters"),
        // The reason that follows in the chain does not stand behind the hint.
        (&["why", "pod/x"], "hint: gantry up --detach"),
        (&["why", "deployment/x"], "hint: gantry why pod/NAME"),
    ] {
        assert_eq!(place.hint(arguments), expected, "gantry {arguments:?}");
    }
}

#[test]
fn a_port_can_be_chosen_and_one_in_use_is_refused() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = place.refused(&["up", "--nodes", "t4=1:1", "--port", &port]);
    let expected = format!(
        "error: listen on 127.0.0.1:{port}: Address already in use (os error 98)\nhint: leave out --port"
    );
    assert!(refused.starts_with(&expected), "{refused}");
    // In the background the log has it, and the person sees the log.
    let refused = place.refused(&["up", "--detach", "--nodes", "t4=1:1", "--port", &port]);
    assert!(refused.contains(&expected) && refused.contains("did not start"), "{refused}");
    drop(taken);
    let printed = place.ok(&["up", "--detach", "--nodes", "t4=1:1", "--port", &port]);
    assert!(printed.contains(&format!("API server  https://127.0.0.1:{port}\n")), "{printed}");
    assert_eq!(place.gpus(&kubeconfig(&printed)).len(), 1);
}

#[test]
fn a_file_describes_nodes_with_labels_and_taints() {
    let place = Place::new();
    let file = place.path().join("cluster.yaml");
    let text = "nodes:\n  - profile: h100\n    count: 2\n    gpus: 1\n    labels: {zone: east}\n    \
                taints: [{key: team, value: research, effect: NoSchedule}]\n  - profile: l4\n    gpus: 3\n";
    std::fs::write(&file, text).unwrap();
    let config = kubeconfig(&place.ok(&["up", "--detach", "--file", file.to_str().unwrap()]));
    let gpus = place.gpus(&config);
    assert_eq!(gpus.iter().filter(|gpu| gpu["node"] == "h100-2").count(), 1);
    assert_eq!(gpus.iter().filter(|gpu| gpu["node"] == "l4-1").count(), 3);
    let nodes: Vec<Node> = list(&config);
    let tainted: Vec<_> = nodes
        .iter()
        .filter(|node| {
            node.metadata.labels.iter().flatten().any(|(key, value)| key == "zone" && value == "east")
        })
        .flat_map(|node| node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()))
        .map(|taint| (taint.key.as_str(), taint.value.as_deref(), taint.effect.as_str()))
        .collect();
    assert_eq!(tainted, [("team", Some("research"), "NoSchedule"); 2]);

    std::fs::write(&file, "nodes:\n  - profile: h100\n    taints: [{key: team, effect: Never}]\n").unwrap();
    let refused = place.refused(&["up", "--file", file.to_str().unwrap()]);
    assert!(refused.contains("Never") && refused.contains("NoSchedule"), "{refused}");
}

#[test]
fn the_kubeconfig_is_written_where_it_is_wanted_and_what_is_there_stays() {
    let place = Place::new();
    let wanted = place.path().join("my.kubeconfig");
    let mine = "apiVersion: v1\nkind: Config\nclusters: []\nusers: []\ncontexts:\n- name: mine\n  context: {cluster: c, user: u}\n";
    std::fs::write(&wanted, mine).unwrap();
    let contexts = || {
        let text = std::fs::read_to_string(place.path().join("my.kubeconfig")).unwrap();
        ["name: mine", "name: gantry"].map(|name| text.replace('"', "").contains(name))
    };
    let wanted = wanted.to_str().unwrap();
    let printed = place.ok(&["up", "--detach", "--nodes", "t4=1:1", "--kubeconfig", wanted]);
    assert_eq!(contexts(), [true, true]);
    assert_eq!(kubeconfig(&printed), wanted);
    assert_eq!(place.gpus(wanted).len(), 1);
    assert!(place.ok(&["clusters"]).contains(wanted));
    place.ok(&["down"]);
    assert_eq!(contexts(), [true, false], "a cluster that is gone leaves nothing behind");
}

/// A cluster that never gets ready: its file of nodes is a pipe that nobody writes to.
fn never_ready(place: &Place) -> std::process::Child {
    let pipe = place.path().join("nodes.yaml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let arguments = ["up", "--name", "slow", "--file", pipe.to_str().unwrap()];
    let child = place.command(&arguments).stdout(Stdio::null()).spawn().unwrap();
    eventually("it is listed", || place.run(&["clusters"]).stdout.starts_with(b"NAME"));
    child
}

#[test]
fn a_cluster_that_never_gets_ready_is_seen_and_can_be_stopped() {
    let place = Place::new();
    let mut child = never_ready(&place);
    eventually("it says its process", || place.ok(&["clusters"]).contains(&child.id().to_string()));
    assert!(place.ok(&["clusters"]).contains("<starting>"));
    // It is no cluster to talk to yet, and its name is taken.
    assert_eq!(place.hint(&["get", "gpus"]), "hint: gantry up --detach");
    assert_eq!(place.hint(&["up", "--name", "slow"]), "hint: gantry down slow");
    assert_eq!(place.ok(&["down", "slow"]), "cluster slow is stopped\n");
    child.wait().unwrap();
    assert!(place.run(&["clusters"]).stdout.is_empty());
    assert_eq!(left_in(&place, "slow"), Vec::<String>::new());
}

#[test]
fn a_detached_cluster_that_is_given_up_does_not_go_on() {
    let place = Place::new();
    let refused = place.refused(&["up", "--detach", "--timeout", "0", "--name", "late"]);
    assert!(refused.contains("was not ready after 0 s and is stopped\nhint: cat "), "{refused}");
    assert!(place.run(&["clusters"]).stdout.is_empty());
    assert_eq!(left_in(&place, "late"), Vec::<String>::new());
}

#[test]
fn the_first_lines_tell_what_to_try_and_the_last_follows_the_cluster() {
    let place = Place::new();
    let (out, talk) = (place.path().join("out"), place.path().join("talk"));
    let mut child = place
        .command(&["up", "--nodes", "rtx3090=1:2"])
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(std::fs::File::create(&talk).unwrap())
        .spawn()
        .unwrap();
    let printed = || std::fs::read_to_string(&out).unwrap();
    eventually("the line is there", || {
        printed().contains("nodes 1/1 ready · GPUs 0/2 assigned · pods 1 running, 0 pending\n")
    });
    let config = kubeconfig(&printed());
    assert!(printed().starts_with("cluster gantry is ready: 1 node, 2 GPUs (API after "), "{}", printed());
    let next = format!("\ntry next:\n  export KUBECONFIG={config}\n  kubectl get nodes");
    assert!(printed().contains(&next), "{}", printed());
    create_pod(&config, "runs", 2);
    create_pod(&config, "waits", 1);
    eventually("the line follows", || printed().contains("GPUs 2/2 assigned · pods 2 running, 1 pending\n"));
    assert_eq!(std::fs::read_to_string(&talk).unwrap(), "");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(&talk).unwrap(), "\nstopping gantry …\n");
}

/// What a cluster left in its folder, besides the lock.
fn left_in(place: &Place, name: &str) -> Vec<String> {
    let entries = std::fs::read_dir(place.path().join("gantry").join(name)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "lock").collect()
}
