//! The specifications of whole machines, byte for byte. After a wanted change: `GANTRY_BLESS=1 cargo test -p gantry-driver --test golden`,
//! and read the difference.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use gantry_driver::{
    Class, DeviceFile, DeviceFiles, Machine, MigMinors, Root, Running, VENDOR, Wish, discover,
    install_simulated,
};
use gantry_model::{Fault, FaultKind, Gpu, Health, Partition, PartitionAttributes};

const VERSION: &str = "550.54.15";

fn gpu(index: u32) -> Gpu {
    Gpu {
        id: format!("GPU-{index:08x}-0000-4000-8000-000000000000").parse().unwrap(),
        index,
        minor: index,
        product: Arc::from("NVIDIA A100-SXM4-40GB"),
        memory_mib: 40_960,
        pci_bus_id: format!("00000000:{:02X}:00.0", 7 + 8 * index),
        numa_node: None,
        compute_capability: (8, 0),
        mig_capable: true,
        partitions: None,
        health: Health::Healthy,
    }
}

/// MIG devices with one compute instance each.
fn partitions(gpu: u32, profiles: &[(&str, u32)]) -> Vec<Partition> {
    profiles
        .iter()
        .zip(0..)
        .map(|((profile, gpu_instance), index)| Partition {
            id: format!("MIG-{gpu:04x}{index:04x}-0000-5000-8000-000000000000").parse().unwrap(),
            index,
            profile: Arc::from(*profile),
            gpu_instance: *gpu_instance,
            compute_instance: 0,
            start: index,
            size: 1,
            memory_mib: 4_864,
            attributes: PartitionAttributes::default(),
            health: Health::Healthy,
        })
        .collect()
}

fn file(major: u32, minor: u32) -> DeviceFile {
    DeviceFile { major, minor, mode: Some(0o666), gid: 0 }
}

/// The device files of a machine with so many cards, each of which draws through `card<n + 1>`, as where a server's own adapter is first.
fn devices(count: u32) -> DeviceFiles {
    let mut files = DeviceFiles::assumed()
        .with_file("/dev/nvidiactl", file(195, 255))
        .with_file("/dev/nvidia-modeset", file(195, 254))
        .with_file("/dev/nvidia-uvm", file(509, 0))
        .with_file("/dev/nvidia-uvm-tools", file(509, 1));
    for index in 0..count {
        let (card, render) = (format!("card{}", index + 1), format!("renderD{}", 128 + index));
        let group = |minor, gid| DeviceFile { major: 226, minor, mode: Some(0o660), gid };
        files = files
            .with_file(&format!("/dev/nvidia{index}"), file(195, index))
            .with_file(&format!("/dev/dri/{card}"), group(index + 1, 44))
            .with_file(&format!("/dev/dri/{render}"), group(128 + index, 105))
            .with_dri(gpu(index).pci_bus_id.parse().unwrap(), &[&card, &render]);
    }
    files
}

fn machine(disk: &Path, root: &str, devices: DeviceFiles, gpus: Vec<Gpu>) -> Machine {
    let running = Running { version: Some(VERSION.to_owned()), ..Running::default() };
    let driver = discover(&Root::mounted(root, disk), &running).unwrap();
    Machine { driver, devices, minors: MigMinors::assumed(), gpus }
}

fn debian() -> tempfile::TempDir {
    let disk = tempfile::tempdir().unwrap();
    install_simulated(disk.path(), VERSION).unwrap();
    for (path, text) in [
        ("lib/firmware/nvidia/550.54.15/gsp_ga10x.bin", ""),
        ("usr/share/glvnd/egl_vendor.d/10_nvidia.json", "{}"),
        ("etc/vulkan/icd.d/nvidia_icd.json", "{}"),
        ("etc/OpenCL/vendors/nvidia.icd", "libnvidia-opencl.so.1\n"),
    ] {
        let path = disk.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir_all(disk.path().join("tmp/nvidia-mps")).unwrap();
    disk
}

/// Compares a specification with its file, and reads it back.
fn golden(name: &str, machine: &Machine, class: Class, vendor: &str) {
    assert!(machine.problems().is_empty(), "{:?}", machine.problems());
    let spec = machine.spec(class, &format!("{vendor}/{}", class.name()), &Wish::usual()).unwrap();
    let text = gantry_cdi::to_yaml(&spec).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.yaml"));
    if std::env::var_os("GANTRY_BLESS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{} differs from what is written now:\n{text}", path.display());
    let again: gantry_cdi::Spec = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(again, spec);
}

#[test]
fn eight_whole_cards() {
    let disk = debian();
    let machine = machine(disk.path(), "/", devices(8), (0..8).map(gpu).collect());
    golden("a100x8", &machine, Class::Gpu, VENDOR);
}

#[test]
fn one_card_cut_in_seven() {
    let disk = debian();
    let mut card = gpu(0);
    let instances = [
        ("1g.5gb", 7),
        ("1g.5gb", 8),
        ("1g.5gb", 9),
        ("1g.5gb", 10),
        ("1g.5gb", 11),
        ("1g.5gb", 12),
        ("1g.5gb", 13),
    ];
    card.partitions = Some(partitions(0, &instances));
    golden("a100-mig-1g.5gb-x7", &machine(disk.path(), "/", devices(1), vec![card]), Class::Gpu, VENDOR);
}

#[test]
fn whole_cards_beside_cut_ones_and_lost_ones() {
    let disk = debian();
    let mut gpus: Vec<_> = (0..4).map(gpu).collect();
    // Numbers of device files are not always indices.
    gpus[1].minor = 3;
    gpus[3].minor = 1;
    gpus[1].partitions = Some(partitions(1, &[("3g.20gb", 1), ("2g.10gb+gfx", 5)]));
    gpus[2].health = Health::Unhealthy(Fault { kind: FaultKind::Lost, message: String::new() });
    gpus[3].partitions = Some(Vec::new());
    golden("mixed", &machine(disk.path(), "/", devices(4), gpus), Class::Gpu, VENDOR);
}

#[test]
fn a_driver_container_and_its_device_files() {
    let disk = debian();
    let root = "/run/nvidia/driver";
    let machine = machine(disk.path(), root, devices(1).below(Root::new(root)), vec![gpu(0)]);
    golden("driver-container", &machine, Class::Gpu, VENDOR);
}

#[test]
fn libraries_in_lib64() {
    let disk = tempfile::tempdir().unwrap();
    install_simulated(disk.path(), VERSION).unwrap();
    fs::rename(disk.path().join("usr/lib/x86_64-linux-gnu"), disk.path().join("usr/lib64")).unwrap();
    symlink("usr/lib64", disk.path().join("lib64")).unwrap();
    let machine = machine(disk.path(), "/", DeviceFiles::assumed(), vec![gpu(0)]);
    golden("lib64", &machine, Class::Gpu, VENDOR);
}

#[test]
fn what_manages_gpus_gets_every_file() {
    let disk = debian();
    let devices = devices(2)
        .with_file("/dev/nvidia-caps/nvidia-cap1", file(234, 1))
        .with_file("/dev/nvidia-caps/nvidia-cap2", file(234, 2))
        .with_file("/dev/nvidia-nvswitch0", file(510, 0))
        .with_file("/dev/nvidia-nvswitchctl", file(510, 255));
    let machine = machine(disk.path(), "/", devices, Vec::new());
    golden("management", &machine, Class::Management, gantry_driver::MANAGEMENT_VENDOR);
    golden("nvswitch", &machine, Class::Nvswitch, VENDOR);
}

#[test]
fn devices_that_are_asked_for_apart() {
    let disk = debian();
    fs::write(disk.path().join("etc/cufile.json"), "{}").unwrap();
    let devices = devices(1)
        .with_file("/dev/nvidia-fs0", file(400, 0))
        .with_file("/dev/nvidia-fs10", file(400, 10))
        .with_file("/dev/infiniband/rdma_cm", file(10, 57))
        .with_file("/dev/infiniband/uverbs0", file(231, 192))
        .with_file("/dev/infiniband/umad0", file(231, 0))
        .with_file("/dev/gdrdrv", file(401, 0))
        .with_file("/dev/nvidia-caps-imex-channels/channel10", file(235, 10))
        .with_file("/dev/nvidia-caps-imex-channels/channel2", file(235, 2))
        .with_file("/dev/nvidia-caps-imex-channels/channel1048576", file(235, 1_048_576));
    let machine = machine(disk.path(), "/", devices, vec![gpu(0)]);
    for class in [Class::Gds, Class::Mofed, Class::Gdrcopy, Class::ImexChannel] {
        golden(class.name(), &machine, class, VENDOR);
    }
}

#[test]
fn nothing_is_never_described() {
    let disk = debian();
    let lost = Health::Unhealthy(Fault { kind: FaultKind::Lost, message: String::new() });
    let mut gpus = vec![gpu(0), gpu(1)];
    gpus[0].health = lost;
    gpus[1].partitions = Some(Vec::new());
    let machine = machine(disk.path(), "/", DeviceFiles::assumed(), gpus);
    for class in Class::all() {
        let kind = format!("{VENDOR}/{}", class.name());
        let text = machine.spec(class, &kind, &Wish::usual()).unwrap_err().to_string();
        assert!(text.starts_with(&format!("no device for {kind}: no ")), "{text}");
    }
}

#[test]
fn what_is_missing_is_told() {
    let disk = debian();
    let mut card = gpu(0);
    card.partitions = Some(partitions(0, &[("1g.5gb", 7)]));
    let mut machine = machine(disk.path(), "/", DeviceFiles::default(), vec![card, gpu(1)]);
    machine.minors = MigMinors::default();
    let problems = machine.problems();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].starts_with("no device file /dev/nvidia-uvm, without which CUDA does not start"));
    assert!(problems[1].starts_with("MIG device 0:0 has no device files"));
    // A card is described by its path, which the runtime looks up when a container starts.
    let spec = machine.spec(Class::Gpu, "nvidia.com/gpu", &Wish::usual()).unwrap();
    assert_eq!(
        spec.devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(),
        ["1", "GPU-00000001-0000-4000-8000-000000000000", "all"]
    );
    assert_eq!(spec.devices[0].container_edits.device_nodes[0].major, None);
}
