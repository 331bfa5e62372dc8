use std::sync::Arc;

use gantry_model::{Gpu, Health, Partition, PartitionAttributes};

use super::*;
use crate::{DeviceFile, DeviceFiles, MigMinors, Root, Running, discover, install_simulated};

fn gpu(index: u32) -> Gpu {
    Gpu {
        id: format!("GPU-{index}").parse().unwrap(),
        index,
        minor: index,
        product: Arc::from("NVIDIA A100-SXM4-40GB"),
        memory_mib: 40_960,
        pci_bus_id: format!("00000000:0{index}:00.0"),
        numa_node: None,
        compute_capability: (8, 0),
        mig_capable: true,
        partitions: None,
        health: Health::Healthy,
    }
}

/// Two whole cards, and one with two MIG devices.
fn machine() -> Machine {
    let root = tempfile::tempdir().unwrap();
    install_simulated(root.path(), "550.54.15").unwrap();
    let driver = discover(&Root::mounted("/", root.path()), &Running::default()).unwrap();
    let render = DeviceFile { major: 226, minor: 128, mode: Some(0o660), gid: 44 };
    let open = DeviceFile { major: 500, minor: 7, mode: Some(0o666), gid: 0 };
    let devices = DeviceFiles::assumed()
        .with_file("/dev/dri/renderD128", render)
        .with_file("/dev/infiniband/uverbs0", open)
        .with_dri("0000:00:00.0".parse().unwrap(), &["renderD128"]);
    let part = |index| Partition {
        id: format!("MIG-{index}").parse().unwrap(),
        index,
        profile: Arc::from("3g.20gb"),
        gpu_instance: index + 1,
        compute_instance: 0,
        start: index * 4,
        size: 4,
        memory_mib: 19_968,
        attributes: PartitionAttributes::default(),
        health: Health::Healthy,
    };
    let mut gpus: Vec<Gpu> = (0..3).map(gpu).collect();
    gpus[2].partitions = Some(vec![part(0), part(1)]);
    Machine { driver, devices, minors: MigMinors::assumed(), gpus }
}

fn edits(machine: &Machine, env: &[&str], devices: &[&str]) -> Result<ContainerEdits, String> {
    let own = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let (env, devices) = (own(env), own(devices));
    machine
        .container_edits(&ContainerRequest {
            env: &env,
            devices: &devices,
            image: None,
            supported: Capabilities::ALL,
        })
        .map_err(|error| error.to_string())
}

fn nodes(edits: &ContainerEdits) -> Vec<&str> {
    edits.device_nodes.iter().map(|node| node.path.trim_start_matches("/dev/")).collect()
}

fn mounts(edits: &ContainerEdits) -> Vec<&str> {
    edits.mounts.iter().map(|mount| mount.container_path.rsplit('/').next().unwrap()).collect()
}

#[test]
fn a_container_gets_its_devices_under_any_of_their_names() {
    let machine = machine();
    let always = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];
    for (names, expected) in [
        (&["1"][..], &["nvidia1"][..]),
        (&["GPU-1"], &["nvidia1"]),
        (&["gpu1"], &["nvidia1"]),
        (&["nvidia.com/gpu=1", "k8s.device-plugin.nvidia.com/gpu=GPU-1"], &["nvidia1"]),
        (&["1", "0"], &["nvidia1", "nvidia0"]),
        (&["2:1"], &["nvidia2", "nvidia-caps/nvidia-cap291", "nvidia-caps/nvidia-cap292"]),
        (&["MIG-0"], &["nvidia2", "nvidia-caps/nvidia-cap282", "nvidia-caps/nvidia-cap283"]),
        (
            &["runtime.nvidia.com/gpu=mig2:0"],
            &["nvidia2", "nvidia-caps/nvidia-cap282", "nvidia-caps/nvidia-cap283"],
        ),
        (&["none"], &[]),
        (&["nvidia.com/gpu=none"], &[]),
        (&["0", "nvidia.com/mofed=all"], &["nvidia0", "infiniband/uverbs0"]),
    ] {
        let edits = edits(&machine, &[], names).unwrap();
        assert_eq!(nodes(&edits), [&always, expected].concat(), "{names:?}");
    }
    assert_eq!(nodes(&edits(&machine, &[], &["all"]).unwrap()).len(), 3 + 3 + 4);
    assert_eq!(edits(&machine, &[], &[]).unwrap(), ContainerEdits::default());
    // The card in MIG mode is no device.
    assert_eq!(
        edits(&machine, &[], &["0", "2", "9", "nvidia.com/gds=all", "amd.com/gpu=0"]).unwrap_err(),
        "no such device: 2, 9, nvidia.com/gds=all, amd.com/gpu=0; this node has GPUs 0, 1, 2:0, 2:1"
    );
}

#[test]
fn a_container_gets_the_capabilities_that_it_asks_for() {
    let machine = machine();
    let smi = ["nvidia-debugdump", "nvidia-persistenced", "nvidia-smi"];
    let ml = [
        "libnvidia-cfg.so.1",
        "libnvidia-cfg.so.550.54.15",
        "libnvidia-ml.so.1",
        "libnvidia-ml.so.550.54.15",
    ];
    let utility = edits(&machine, &["NVIDIA_DRIVER_CAPABILITIES=utility"], &["0"]).unwrap();
    assert_eq!(mounts(&utility), [&smi[..], &ml].concat());
    assert_eq!(nodes(&utility), ["nvidiactl", "nvidia0"]);
    let usual = edits(&machine, &["PATH=/bin"], &["0"]).unwrap();
    assert!(mounts(&usual).contains(&"libcuda.so.1") && mounts(&usual).contains(&"nvidia-smi"));
    assert_eq!(usual, edits(&machine, &["NVIDIA_DRIVER_CAPABILITIES="], &["0"]).unwrap());
    assert_eq!(usual, edits(&machine, &["NVIDIA_DRIVER_CAPABILITIES=compute,utility"], &["0"]).unwrap());
    let graphics = edits(&machine, &["NVIDIA_DRIVER_CAPABILITIES=graphics"], &["0"]).unwrap();
    assert_eq!(mounts(&graphics), ["libnvidia-gpucomp.so.550.54.15"]);
    assert_eq!(
        nodes(&graphics),
        ["nvidiactl", "nvidia-modeset", "nvidia0", "dri/renderD128", "dri/by-path/pci-0000:00:00.0-render"]
    );
    assert_eq!(graphics.additional_gids, [44]);
    // Before the variable was, images got all.
    let legacy = edits(&machine, &["CUDA_VERSION=9.0.176"], &["0"]).unwrap();
    assert_eq!(legacy, edits(&machine, &["NVIDIA_DRIVER_CAPABILITIES=all"], &["0"]).unwrap());
    assert!(
        edits(&machine, &["NVIDIA_DRIVER_CAPABILITIES=gpu"], &["0"])
            .unwrap_err()
            .contains("unknown driver capability \"gpu\"")
    );
}

#[test]
fn an_image_that_requires_more_is_refused_before_it_starts() {
    let machine = machine();
    let require =
        |value: &str, devices: &[&str]| edits(&machine, &[&format!("NVIDIA_REQUIRE_CUDA={value}")], devices);
    assert!(require("cuda>=12.4 brand=tesla,driver>=470", &["0"]).is_ok());
    assert!(require("arch>=8.0,driver>=550.54", &["2:0"]).is_ok());
    let error = require("cuda>=12.8", &["2:0"]).unwrap_err();
    assert!(
        error.starts_with(
            "unsatisfied requirement NVIDIA_REQUIRE_CUDA=\"cuda>=12.8\": this node has driver=550.54.15 cuda=12.4 and GPU 2 \
             (NVIDIA A100-SXM4-40GB) brand=nvidia arch=8.0;"
        ),
        "{error}"
    );
    assert!(
        require("driver>=570", &["none"]).unwrap_err().contains("this node has driver=550.54.15 cuda=12.4;")
    );
    assert!(require("brand=tesla", &["none"]).is_ok());
    assert!(require("cuda~12", &["0"]).unwrap_err().contains("invalid constraint \"cuda~12\""));
    let disabled = ["NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_DISABLE_REQUIRE=true"];
    assert!(edits(&machine, &disabled, &["0"]).is_ok());
    // The pod's word comes after the image's.
    assert!(
        edits(&machine, &["NVIDIA_REQUIRE_CUDA=cuda>=99", "NVIDIA_REQUIRE_CUDA=cuda>=11"], &["0"]).is_ok()
    );
}

#[test]
fn libraries_go_where_the_image_looks() {
    let machine = machine();
    let image =
        ImageLayout { library_folder: "/usr/lib64".into(), library_folder_32: None, lib_c: crate::LibC::Gnu };
    let devices = ["0".to_owned()];
    let edits = machine
        .container_edits(&ContainerRequest {
            env: &[],
            devices: &devices,
            image: Some(&image),
            supported: Capabilities::ALL,
        })
        .unwrap();
    let paths: Vec<_> = edits.mounts.iter().map(|mount| mount.container_path.as_str()).collect();
    assert!(paths.contains(&"/usr/lib64/libcuda.so.1"), "{paths:?}");
    assert!(paths.iter().all(|path| !path.contains("x86_64-linux-gnu")), "{paths:?}");
    assert_eq!(edits.env, ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64", "NVIDIA_VISIBLE_DEVICES=void"]);
    assert!(edits.mounts.iter().all(|mount| mount.host_path.starts_with("/usr/")));
}
