//! A container with two of a node's GPUs, and a way to run commands in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gantry_kit::ManualClock;
use gantry_model::LinkKind;
use serde_json::{Value, json};

use super::{Process, Sink, Stdin, run};
use crate::runtime::{ContainerView, Driver, GpuReading, Hardware};

/// A node with eight cards in which number 5 is lost.
#[derive(Debug)]
pub(crate) struct EightCards;

impl Hardware for EightCards {
    fn driver(&self) -> Driver {
        Driver { version: "550.54.15".to_owned(), cuda: "12.4".to_owned() }
    }

    fn gpu(&self, minor: u32) -> Option<GpuReading> {
        (minor < 8).then(|| GpuReading {
            minor,
            uuid: format!("GPU-00000000-0000-4000-8000-00000000000{minor}"),
            name: "NVIDIA A100-SXM4-80GB".to_owned(),
            bus_id: format!("00000000:{:02X}:00.0", 7 + minor * 8),
            numa_node: Some(minor / 4),
            memory_total_mib: 81_920,
            memory_used_mib: 1_024,
            utilization_gpu: 40 + minor,
            utilization_memory: 12,
            temperature_c: 34,
            power_draw_mw: 64_230,
            power_limit_mw: 400_000,
            fan: None,
            performance_state: 0,
            sm_clock_mhz: 1_155,
            sm_clock_max_mhz: 1_410,
            memory_clock_mhz: 1_593,
            memory_clock_max_mhz: 1_593,
            pcie_generation_max: 4,
            pci_device_id: 0x20b2_10de,
            vbios: "92.00.45.00.06".to_owned(),
            compute_capability: (8, 0),
            ecc: Some(true),
            mig: Some(false),
            lost: minor == 5,
            ..GpuReading::default()
        })
    }

    fn link(&self, _: u32, _: u32) -> Option<LinkKind> {
        Some(LinkKind::NvLink(12))
    }
}

/// A container with the GPUs of these minor numbers; with any, or if `driver`, the tool is mounted.
pub(crate) fn container(minors: &[u32], driver: bool) -> Arc<ContainerView> {
    let mut devices: Vec<Value> = minors
        .iter()
        .map(
            |minor| json!({"path": format!("/dev/nvidia{minor}"), "type": "c", "major": 195, "minor": minor}),
        )
        .collect();
    let mut mounts = Vec::new();
    if driver || !minors.is_empty() {
        devices.push(json!({"path": "/dev/nvidiactl", "type": "c", "major": 195, "minor": 255}));
        mounts.push(
            json!({"destination": "/usr/bin/nvidia-smi", "source": "/usr/bin/nvidia-smi", "options": ["ro"]}),
        );
    }
    let config = json!({
        "hostname": "pod-1",
        "process": {"args": ["sleep", "infinity"], "env": ["PATH=/usr/bin:/bin", "NAME=value", "EMPTY="], "cwd": "/"},
        "mounts": mounts,
        "linux": {"devices": devices},
    });
    let volumes = BTreeMap::from([("/etc/app/config".to_owned(), b"a=1\nb=2\n".to_vec())]);
    let now = "2026-11-30T06:33:52.125Z".parse().expect("a valid instant");
    let clock = Arc::new(ManualClock::new(now));
    Arc::new(ContainerView::new(&config, &volumes, &BTreeSet::new(), Arc::new(EightCards), clock))
}

/// Runs a command line: exit code, standard output, standard error.
pub(crate) async fn exec(view: &Arc<ContainerView>, argv: &[&str]) -> (i32, String, String) {
    let (stdout, out) = Sink::memory();
    let (stderr, error) = Sink::memory();
    let code = run(Process {
        argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
        env: view.env(),
        cwd: view.cwd().to_owned(),
        view: Arc::clone(view),
        stdin: Stdin::empty(),
        stdout,
        stderr,
        tty: false,
    })
    .await;
    (code, out.text(), error.text())
}
