//! `fake-nvml-ctl` and `nvidia-smi`, as processes over a driver root.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library, which cargo builds in `deps`.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let mut found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("libgantry_fake_nvml.so"))
        .filter(|path| path.exists());
    found.next().expect("cargo builds the library beside the tests")
}

fn ctl(root: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fake-nvml-ctl")).arg("--root").arg(root).args(args).output().unwrap()
}

fn done(root: &Path, args: &[&str]) {
    let output = ctl(root, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn node(options: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_fake-nvml-ctl"))
        .arg("install")
        .arg(folder.path())
        .args(options)
        .arg("--library")
        .arg(library())
        .arg("--nvidia-smi")
        .arg(env!("CARGO_BIN_EXE_nvidia-smi"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    folder
}

/// Runs the installed `nvidia-smi` with the root's libraries, as a container has them.
fn smi(root: &Path, args: &[&str]) -> (i32, String) {
    let libraries = library_folder(root);
    let output = Command::new(root.join("usr/bin/nvidia-smi"))
        .args(args)
        .env("LD_LIBRARY_PATH", libraries)
        .env_remove("MOCK_NVML_CONFIG")
        .env_remove("FAKE_NVML_STATE")
        .output()
        .unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

fn library_folder(root: &Path) -> PathBuf {
    let folders = std::fs::read_dir(root.join("usr/lib")).unwrap();
    folders.map(|entry| entry.unwrap().path()).next().unwrap()
}

#[test]
fn what_one_process_changes_another_shows() {
    let folder = node(&["--model", "a100-40", "--count", "2"]);
    let root = folder.path();
    let (code, list) = smi(root, &["-L"]);
    assert_eq!(code, 0);
    assert!(list.starts_with("GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-"), "{list}");
    assert_eq!(list.lines().count(), 2);
    let query = ["--query-gpu=index,memory.total,temperature.gpu,pstate", "--format=csv,noheader,nounits"];
    assert_eq!(smi(root, &query), (0, "0, 40960, 30, P0\n1, 40960, 31, P0\n".to_owned()));
    done(root, &["set", "--gpu", "1", "thermal.temperature_gpu_c=77"]);
    let process = ["process", "--gpu", "0", "--pid", "42", "--memory-mib", "5000", "--utilization", "50"];
    done(root, &process);
    assert_eq!(smi(root, &query), (0, "0, 40960, 50, P0\n1, 40960, 77, P0\n".to_owned()));
    let apps = ["--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"];
    assert_eq!(smi(root, &apps), (0, "42, python, 5000 MiB\n".to_owned()));
    let (_, table) = smi(root, &[]);
    assert!(table.contains("5000MiB /  40960MiB") && table.contains(" python "), "{table}");
    assert!(
        table.lines().skip(1).filter(|line| !line.trim().is_empty()).all(|line| line.chars().count() == 91),
        "{table}"
    );
    let (_, links) = smi(root, &["topo", "-m"]);
    assert!(links.contains("GPU0\t X \tNV12\t"), "{links}");
    done(root, &["fail", "lost", "--gpu", "1"]);
    let (code, text) = smi(root, &["-L"]);
    assert_eq!(code, 15);
    assert!(text.contains("GPU is lost"), "{text}");
    done(root, &["recover"]);
    assert_eq!(smi(root, &["-L"]), (0, list));
}

#[test]
fn a_driver_root_is_laid_out_as_a_driver_has_it() {
    let folder = node(&["--model", "t4", "--count", "1"]);
    let libraries = library_folder(folder.path());
    for name in
        ["libnvidia-ml.so.1", "libcuda.so", "libcuda.so.1", "libcuda.so.550.54.15", "libnvidia-cfg.so.1"]
    {
        let bytes = std::fs::read(libraries.join(name)).unwrap();
        assert!(bytes.starts_with(b"\x7fELF"), "{name}");
    }
    // The dynamic loader takes every placeholder, and the file with the state.
    let carrier = std::fs::read_dir(&libraries).unwrap().map(|entry| entry.unwrap().path());
    for path in carrier {
        let status = Command::new(folder.path().join("usr/bin/nvidia-smi"))
            .arg("--version")
            .env("LD_PRELOAD", &path)
            .env("LD_LIBRARY_PATH", &libraries)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&status.stderr).into_owned();
        assert!(status.status.success() && error.is_empty(), "{}: {error}", path.display());
    }
    let minors = std::fs::read_to_string(folder.path().join("proc/driver/nvidia-caps/mig-minors")).unwrap();
    assert!(
        minors.starts_with("config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n"),
        "{minors}"
    );
}

#[test]
fn a_program_without_a_driver_says_what_the_real_one_says() {
    let empty = tempfile::tempdir().unwrap();
    let run = |config: Option<&Path>, libraries: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvidia-smi"));
        command.env("LD_LIBRARY_PATH", libraries);
        if let Some(config) = config {
            command.env("MOCK_NVML_CONFIG", config);
        }
        let output = command.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, text, _) = run(None, empty.path());
    assert_eq!(code, Some(12));
    assert!(text.starts_with("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."), "{text}");
    // The library without a configuration, and with one that is wrong: NVML's error, and on standard error which file.
    let bare = empty.path().join("bare");
    std::fs::create_dir(&bare).unwrap();
    std::fs::copy(library(), bare.join("libnvidia-ml.so.1")).unwrap();
    let (code, text, error) = run(None, &bare);
    assert_eq!(code, Some(9));
    assert!(
        text.starts_with("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        "{text}"
    );
    assert_eq!(
        error,
        "simulated libnvidia-ml.so.1: no configuration of the simulated GPUs: looked in MOCK_NVML_CONFIG, \
         /etc/gantry/fake-nvml.yaml; set MOCK_NVML_CONFIG to a YAML file such as \"model: h100\"\n"
    );
    let config = empty.path().join("config.yaml");
    std::fs::write(&config, "model: t4\ncount: 0").unwrap();
    let (code, text, error) = run(Some(&config), &bare);
    assert_eq!((code, text.as_str()), (Some(255), "Failed to initialize NVML: Unknown Error\n"));
    assert_eq!(error, "simulated libnvidia-ml.so.1: configuration: count: Invalid value: 0: use 1 to 16\n");
}

#[test]
fn refusals_say_what_is_possible() {
    let folder = node(&["--model", "l4", "--count", "2"]);
    for (args, expected) in [
        (&["fail", "lost", "--gpu", "2"][..], "--gpu 2: the node has 2 GPUs, counted from 0"),
        (&["fail", "xid", "--gpu", "0"], "fail xid: say which, as in `fail xid 48 --gpu 0`"),
        (&["set", "--gpu", "0", "x"], "x: use path=value, as in thermal.temperature_gpu_c=80"),
        (
            &["set", "--gpu", "0", "thermal.temperature_gpu_c=hot"],
            "configuration: overrides: Invalid value: object: invalid type: string \"hot\", expected u32",
        ),
    ] {
        let output = ctl(folder.path(), args);
        assert!(!output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("fake-nvml-ctl: {expected}\n"));
    }
}
