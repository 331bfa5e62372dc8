//! Files as users have them, and what becomes of them.
#![cfg(test)]

mod files;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gantry_runtime_config::{Engine, Error, Options, Plan, plan};

const CONTAINERD: &str = "/etc/containerd/config.toml";
const DROP_IN: &str = "/etc/containerd/conf.d/99-nvidia.toml";

fn before(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/before").join(name)).unwrap()
}

fn options(engine: Engine) -> Options {
    Options {
        engine,
        config: None,
        drop_in: None,
        dump: None,
        name: "nvidia".into(),
        path: "/usr/bin/gantry-runtime".into(),
        default: false,
        cdi: false,
        remove: false,
    }
}

/// A machine's files by path.
type Files = BTreeMap<PathBuf, String>;

fn files(list: &[(&str, String)]) -> Files {
    list.iter().map(|(path, text)| (PathBuf::from(path), text.clone())).collect()
}

fn planned(options: &Options, files: &Files) -> Result<Plan, Error> {
    plan(options, &|path| Ok(files.get(path).cloned()))
}

fn after(plan: &Plan, files: &Files) -> Files {
    let mut files = files.clone();
    for change in &plan.changes {
        match &change.after {
            Some(text) => files.insert(change.path.clone(), text.clone()),
            None => files.remove(&change.path),
        };
    }
    files
}

/// `BLESS=1` writes the files anew; what has changed is then to be read.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.diff"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap_or_default(), "{}", path.display());
}

#[test]
fn each_file_gets_what_is_missing_once_and_loses_it_again() {
    let containerd = || options(Engine::Containerd);
    let k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
    let crio = ("/etc/crio/crio.conf", before("crio.toml"));
    let daemon = "/etc/docker/daemon.json";
    let default = |options: Options| Options { default: true, cdi: true, ..options };
    let cases: Vec<(&str, Options, Files)> = vec![
        ("kubeadm-v2", containerd(), files(&[(CONTAINERD, before("kubeadm-v2.toml"))])),
        ("kubeadm-v2-default", default(containerd()), files(&[(CONTAINERD, before("kubeadm-v2.toml"))])),
        (
            "kubeadm-v2-drop-in",
            Options { drop_in: Some(DROP_IN.into()), ..containerd() },
            files(&[(CONTAINERD, before("kubeadm-v2.toml"))]),
        ),
        ("docker-package-v1", containerd(), files(&[(CONTAINERD, before("docker-package-v1.toml"))])),
        ("gke-v2", containerd(), files(&[(CONTAINERD, before("gke-v2.toml"))])),
        (
            "k3s-v3",
            Options { config: Some(k3s.into()), ..containerd() },
            files(&[(k3s, before("k3s-v3.toml"))]),
        ),
        ("default-v3", default(containerd()), files(&[(CONTAINERD, before("default-v3.toml"))])),
        (
            "default-v3-main-file",
            Options { drop_in: Some(PathBuf::new()), ..containerd() },
            files(&[(CONTAINERD, before("default-v3.toml"))]),
        ),
        ("dumped-v4", Options { dump: Some(before("dump-v4.toml")), ..containerd() }, Files::new()),
        ("nothing", containerd(), Files::new()),
        (
            "nvidias-drop-in-v3",
            containerd(),
            files(&[
                (CONTAINERD, "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n".into()),
                (DROP_IN, before("nvidias-drop-in-v3.toml")),
            ]),
        ),
        ("crio", options(Engine::Crio), files(std::slice::from_ref(&crio))),
        ("crio-default", default(options(Engine::Crio)), files(&[crio])),
        ("crio-nothing", options(Engine::Crio), Files::new()),
        ("docker", options(Engine::Docker), files(&[(daemon, before("daemon.json"))])),
        ("docker-default", default(options(Engine::Docker)), files(&[(daemon, before("daemon.json"))])),
        ("docker-nothing", options(Engine::Docker), Files::new()),
    ];
    for (name, options, start) in cases {
        let first = planned(&options, &start).unwrap();
        assert_ne!(first.changes, [], "{name}");
        let notes = first.notes.iter().fold(String::new(), |text, note| format!("{text}note: {note}\n"));
        golden(name, &format!("{}{notes}{}\n", first.diff(), first.restart));
        let done = after(&first, &start);
        assert_eq!(planned(&options, &done).unwrap().changes, [], "{name}: a second run");
        // Comments, and every line that had nothing to do with it.
        for (path, text) in &start {
            let comments = text.lines().filter_map(|line| line.split_once('#')).map(|(_, comment)| comment);
            for comment in comments {
                assert!(done[path].contains(comment), "{name}: {comment}");
            }
        }
        let remove = Options { remove: true, ..options };
        let undone = after(&planned(&remove, &done).unwrap(), &done);
        for (path, text) in &undone {
            assert!(!text.contains("gantry-runtime"), "{name}: {} still has it:\n{text}", path.display());
        }
        assert_eq!(planned(&remove, &undone).unwrap().changes, [], "{name}: nothing more to remove");
    }
}

#[test]
fn what_the_default_runtime_says_is_followed_when_it_changes() {
    let options = options(Engine::Containerd);
    let start = files(&[(CONTAINERD, before("gke-v2.toml"))]);
    let mut done = after(&planned(&options, &start).unwrap(), &start);
    let text = done[Path::new(CONTAINERD)].replacen("SystemdCgroup = true", "SystemdCgroup = false", 1);
    done.insert(CONTAINERD.into(), text);
    let again = after(&planned(&options, &done).unwrap(), &done);
    assert_eq!(again[Path::new(CONTAINERD)].matches("SystemdCgroup = false").count(), 2);
}

#[test]
fn refusals() {
    let mut compared: Vec<(String, String)> = Vec::new();
    let containerd = |text: &str| {
        planned(&options(Engine::Containerd), &files(&[(CONTAINERD, text.into())])).unwrap_err().to_string()
    };
    for (text, expected) in [
        (
            "version = 2\n{{ template \"base\" . }}\n",
            "/etc/containerd/config.toml:2:1: not TOML: invalid key-value pair, expected key",
        ),
        (
            "version = 2\n[plugins\n",
            "/etc/containerd/config.toml:2:9: not TOML: unclosed table, expected `]`",
        ),
        ("version = 5\n", "/etc/containerd/config.toml: version: 5 is not known: versions 1 to 4 are"),
        ("version = '2'\n", "/etc/containerd/config.toml: version: must be a number"),
        ("version = 2\nplugins = 3\n", "/etc/containerd/config.toml: plugins: must be a table"),
        (
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\nruntimes = []\n",
            "/etc/containerd/config.toml: runtimes: must be a table",
        ),
        ("version = 3\nimports = 'x'\n", "/etc/containerd/config.toml: imports: must be a list of strings"),
    ] {
        compared.push((containerd(text), expected.to_owned()));
    }
    let docker = |text: &str| {
        let files = files(&[("/etc/docker/daemon.json", text.into())]);
        planned(&options(Engine::Docker), &files).unwrap_err().to_string()
    };
    for (text, expected) in [
        ("{\n  \"a\": 1,\n}", "/etc/docker/daemon.json:3:1: not a JSON object: trailing comma"),
        ("[]", "/etc/docker/daemon.json:1:1: not a JSON object: invalid type: sequence, expected an object"),
        (
            "{\"runtimes\": []}",
            "/etc/docker/daemon.json:1:1: runtimes: not a JSON object: invalid type: sequence, expected an object",
        ),
    ] {
        compared.push((docker(text), expected.to_owned()));
    }
    let (found, expected): (Vec<_>, Vec<_>) = compared.into_iter().unzip();
    assert_eq!(found, expected);
    let option = |change: &dyn Fn(&mut Options), engine| {
        let mut options = options(engine);
        change(&mut options);
        planned(&options, &Files::new()).unwrap_err().to_string()
    };
    assert_eq!(
        option(&|options| options.name = "a b".into(), Engine::Containerd),
        "--nvidia-runtime-name: invalid value \"a b\": must be lower case letters, digits and '-', as a RuntimeClass's handler is"
    );
    assert_eq!(
        option(&|options| options.name = "runc".into(), Engine::Containerd),
        "--nvidia-runtime-name: invalid value \"runc\": is the runtime that does the work; choose another, such as nvidia"
    );
    assert_eq!(
        option(&|options| options.path = "gantry-runtime".into(), Engine::Crio),
        "--nvidia-runtime-path: invalid value \"gantry-runtime\": must be an absolute path"
    );
    assert_eq!(
        option(&|options| options.drop_in = Some("/d".into()), Engine::Docker),
        "--drop-in-config: invalid value \"/d\": Docker reads one file; leave it out"
    );
}
