//! What the program adds to the start of a container. It prints, and asserts nothing about time.
#![expect(clippy::print_stderr, reason = "a measurement is there to be read")]

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::config;
use crate::process::Machine;

const RUNS: u32 = 50;

#[expect(clippy::disallowed_methods, reason = "it measures real time")]
fn mean(mut run: impl FnMut()) -> Duration {
    run();
    let start = Instant::now();
    (0..RUNS).for_each(|_| run());
    start.elapsed() / RUNS
}

#[test]
fn what_a_start_costs() {
    let mut annotated: Value = config("containerd.json");
    annotated["annotations"]["cdi.k8s.io/a"] = json!("nvidia.com/gpu=0");
    let direct = mean(|| assert!(Command::new("/bin/true").status().unwrap().success()));
    for (what, value, arguments) in [
        ("delete", &annotated, &["delete", "c1"][..]),
        ("create without GPUs", &config("containerd.json"), &["create", "c1"]),
        ("create with a GPU", &annotated, &["create", "c1"]),
    ] {
        let machine = Machine::new(value);
        machine.settings("runtimes = ['/bin/true']\nlog-level = 'error'");
        let words: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let text = std::fs::read(machine.at("bundle/config.json")).unwrap();
        let through = mean(|| {
            std::fs::write(machine.at("bundle/config.json"), &text).unwrap();
            assert!(machine.command(&words).status().unwrap().success());
        });
        eprintln!(
            "{what}: {:.2} ms more than /bin/true alone ({:.2} ms)",
            ms(through.saturating_sub(direct)),
            ms(direct)
        );
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
