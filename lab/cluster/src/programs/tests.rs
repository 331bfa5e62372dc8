//! What a user types, and what comes back.

use super::fixture::{container, exec};
use super::is_faithful;

#[tokio::test]
async fn nvidia_smi_shows_the_containers_gpus_in_the_real_tools_table() {
    let (code, out, _) = exec(&container(&[2, 3], true), &["nvidia-smi"]).await;
    assert_eq!(code, 0);
    let expected = "\
Mon Nov 30 06:33:52 2026       
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:17:00.0 Off |                    0 |
| N/A   34C    P0             64W /  400W |    1024MiB /  81920MiB |     42%      Default |
|                                         |                        |             Disabled |
";
    for (line, want) in out.lines().zip(expected.lines()) {
        assert_eq!(line, want);
    }
    for line in out.lines().skip(1) {
        assert!(matches!(line.chars().count(), 89 | 91), "{} wide: {line:?}", line.chars().count());
    }
    assert!(out.contains("No running processes found"));
}

#[tokio::test]
async fn nvidia_smi_answers_queries_in_the_order_asked() {
    let view = container(&[0, 6], true);
    for (args, expected) in [
        (
            &["--query-gpu=utilization.gpu,memory.used,memory.total", "--format=csv,nounits,noheader"][..],
            "40, 1024, 81920\n46, 1024, 81920\n",
        ),
        (
            &["--format=csv", "--query-gpu=index,name,power.draw,temperature.gpu"],
            "index, name, power.draw [W], temperature.gpu\n\
             0, NVIDIA A100-SXM4-80GB, 64.23 W, 34\n1, NVIDIA A100-SXM4-80GB, 64.23 W, 34\n",
        ),
        (&["--query-gpu=gpu_name,count", "--format=noheader,csv", "-i", "1"], "NVIDIA A100-SXM4-80GB, 2\n"),
        (
            &["--query-gpu=timestamp,serial", "--format=csv,noheader", "--id=0"],
            "2026/11/30 06:33:52.125, [N/A]\n",
        ),
        (
            &[
                "--query-gpu=clocks.sm,clocks.current.memory,clocks.gr,clocks.max.sm,clocks.max.mem",
                "--format=csv",
                "-i",
                "0",
            ],
            "clocks.current.sm [MHz], clocks.current.memory [MHz], clocks.current.graphics [MHz], clocks.max.sm [MHz], \
             clocks.max.memory [MHz]\n1155 MHz, 1593 MHz, 1155 MHz, 1410 MHz, 1593 MHz\n",
        ),
        (
            &[
                "--query-gpu=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,pci.device_id,vbios_version",
                "--format=csv,noheader",
                "-i",
                "0",
            ],
            "4, 4, 16, 16, 0x20B210DE, 92.00.45.00.06\n",
        ),
        (
            &[
                "--query-gpu=clocks_throttle_reasons.active,clocks_event_reasons.gpu_idle,fan.speed,retired_pages.pending,driver_model.current",
                "--format=csv",
                "-i",
                "0",
            ],
            "clocks_event_reasons.active, clocks_event_reasons.gpu_idle, fan.speed [%], retired_pages.pending, driver_model.current\n\
             0x0000000000000000, Not Active, [N/A], [N/A], [N/A]\n",
        ),
        (&["--query-compute-apps=pid,used_memory", "--format=csv"], "pid, used_gpu_memory [MiB]\n"),
        (
            &["-L"],
            "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-0000-4000-8000-000000000000)\n\
             GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-00000000-0000-4000-8000-000000000006)\n",
        ),
    ] {
        let argv: Vec<&str> = std::iter::once("nvidia-smi").chain(args.iter().copied()).collect();
        assert_eq!(exec(&view, &argv).await, (0, expected.to_owned(), String::new()), "{args:?}");
    }
}

#[tokio::test]
async fn every_field_that_nvidia_smi_lists_can_be_queried() {
    let view = container(&[0], true);
    let (_, help, _) = exec(&view, &["nvidia-smi", "--help-query-gpu"]).await;
    let names = help.lines().filter(|line| line.starts_with('"'));
    let names: Vec<&str> =
        names.flat_map(|line| line.split(" or ")).map(|name| name.trim_matches('"')).collect();
    assert!(names.len() > 90, "{names:?}");
    let query = format!("--query-gpu={}", names.join(","));
    let (code, out, _) = exec(&view, &["nvidia-smi", &query, "--format=csv,noheader,nounits"]).await;
    assert_eq!((code, out.trim_end().split(", ").count()), (0, names.len()), "{out}");
}

#[tokio::test]
async fn nvidia_smi_tells_links_and_details() {
    let view = container(&[0, 6], true);
    let (code, out, _) = exec(&view, &["nvidia-smi", "topo", "-m"]).await;
    assert_eq!(code, 0);
    assert!(out.contains("GPU0\t X \tNV12\tN/A\t0\t\tN/A\nGPU1\tNV12\t X \tN/A\t1\t\tN/A\n"), "{out}");
    let (code, out, _) = exec(&view, &["nvidia-smi", "-q", "-i", "1"]).await;
    assert_eq!(code, 0);
    assert_eq!(out.matches("GPU UUID").count(), 1);
    assert!(out.contains("\n        SM                                : 1155 MHz\n"), "{out}");
    assert!(out.contains("\nAttached GPUs                             : 2\n"), "{out}");
    let (_, out, _) = exec(&view, &["nvidia-smi", "--version"]).await;
    assert!(out.contains("CUDA Version        : 12.4"), "{out}");
}

#[tokio::test]
async fn nvidia_smi_refuses_with_the_real_tools_texts_and_codes() {
    for (minors, driver, args, code, text) in [
        (
            &[0][..],
            true,
            &["--query-gpu=foo", "--format=csv"][..],
            2,
            "Field \"foo\" is not a valid field to query.",
        ),
        (&[0], true, &["--query-gpu=name"], 2, "\"--format=\" switch is missing"),
        (&[0], true, &["--query-gpu=name", "--format=xml"], 2, "\"xml\" is not a valid format option"),
        (&[0], true, &["--frobnicate"], 2, "Invalid combination of input arguments"),
        (&[0], true, &["-i", "1"], 6, "No devices were found"),
        (&[], true, &[], 6, "No devices were found"),
        (&[4, 5], true, &[], 15, "GPU is lost"),
    ] {
        let argv: Vec<&str> = std::iter::once("nvidia-smi").chain(args.iter().copied()).collect();
        let (got, out, _) = exec(&container(minors, driver), &argv).await;
        assert_eq!(got, code, "{args:?}: {out}");
        assert!(out.contains(text), "{args:?}: {out}");
    }
}

#[tokio::test]
async fn a_container_without_devices_has_no_nvidia_smi() {
    let (code, _, error) = exec(&container(&[], false), &["nvidia-smi"]).await;
    assert_eq!(code, 127);
    assert!(error.contains("exec: \"nvidia-smi\": executable file not found in $PATH"), "{error}");
}

#[tokio::test]
async fn ls_lists_exactly_the_containers_devices() {
    let view = container(&[2, 3], true);
    for argv in [&["ls", "/dev/nvidia*"][..], &["sh", "-c", "ls /dev/nvidia*"]] {
        let (code, out, error) = exec(&view, argv).await;
        assert_eq!(
            (code, out.as_str(), error.as_str()),
            (0, "/dev/nvidia2\n/dev/nvidia3\n/dev/nvidiactl\n", ""),
            "{argv:?}"
        );
    }
    let (_, out, _) = exec(&view, &["ls", "-la", "/dev/nvidia2"]).await;
    assert_eq!(out, "crw-rw-rw- 1 root root 195,   2 Nov 30 06:33 /dev/nvidia2\n");
    let (code, _, error) = exec(&container(&[], false), &["ls", "/dev/nvidia*"]).await;
    assert_eq!((code, error.as_str()), (2, "ls: cannot access '/dev/nvidia*': No such file or directory\n"));
}

#[tokio::test(start_paused = true)]
async fn the_shell_runs_what_one_line_scripts_need() {
    let view = container(&[0], true);
    for (script, expected) in [
        ("echo a; echo b && false || echo c", "a\nb\nc\n"),
        ("false && echo no; echo $?", "1\n"),
        ("A=1 B=\"x $A y\"; echo \"$B\" '$A' ${NOPE:-def} $NAME", "x  y $A def value\n"),
        ("A=1; B=\"x $A y\"; echo \"$B\"", "x 1 y\n"),
        ("env | grep NAME | wc -l", "1\n"),
        ("nvidia-smi -L | head -n 1 | grep -c A100", "1\n"),
        ("ls /nope 2>/dev/null; ls /nope 2>&1 | wc -l", "1\n"),
        ("nvidia-smi -l 1 --query-gpu=index --format=csv,noheader | head -n 3", "0\n0\n0\n"),
        ("[ -c /dev/nvidia0 ] && echo gpu", "gpu\n"),
        ("test -e /dev/nvidia1 || echo none # comment", "none\n"),
        ("cd /etc/app; cat config | tail -1; pwd", "b=2\n/etc/app\n"),
        ("echo piped | tail -f", "piped\n"),
        ("tail -n 1 -f /etc/app/config | head -n 1", "b=2\n"),
        ("echo $(nvidia-smi -L | wc -l) cards", "1 cards\n"),
        ("set -e; false; echo unreachable", ""),
        ("sleep 3600; date +%Y", "2026\n"),
        ("command -v nvidia-smi", "/usr/bin/nvidia-smi\n"),
        ("exec echo done; echo unreachable", "done\n"),
    ] {
        let (_, out, error) = exec(&view, &["sh", "-c", script]).await;
        assert_eq!((out.as_str(), error.as_str()), (expected, ""), "{script}");
    }
}

#[tokio::test]
async fn a_script_that_is_not_simulated_does_not_start() {
    let view = container(&[0], true);
    let (code, out, error) = exec(&view, &["sh", "-c", "echo first; while true; do sleep 1; done"]).await;
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(error.contains("'while' is not simulated"), "{error}");
}

#[test]
fn only_commands_that_run_faithfully_run_as_a_containers_process() {
    for (argv, expected) in [
        (&["nvidia-smi"][..], true),
        (&["sh", "-c", "nvidia-smi; sleep infinity"], true),
        (&["/bin/bash", "-lc", "echo hello"], true),
        (&["sh", "-c", "python train.py"], false),
        (&["sh", "-c", "while true; do date; done"], false),
        (&["sh"], false),
        (&["python", "-c", "import torch"], false),
        (&[], false),
    ] {
        let argv: Vec<String> = argv.iter().map(|arg| (*arg).to_owned()).collect();
        assert_eq!(is_faithful(&argv), expected, "{argv:?}");
    }
}
