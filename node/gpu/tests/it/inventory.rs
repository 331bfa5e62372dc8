//! What a node has, and what it reads.

use gantry_fake_nvml::Process;
use gantry_gpu::{Error, GpuBackend as _, NvmlGpus, PROFILES, Profile, SimGpus};

use crate::node::{Node, options};

#[test]
fn every_model_is_seen_as_the_table_has_it() {
    for profile in PROFILES {
        let node = Node::new(&format!("model: {}\ncount: 8\nnode: n1\nseed: 3", profile.name));
        let (real, simulated) = (node.open(), SimGpus::new(profile, 8, "n1", 3).unwrap());
        assert_eq!(real.driver().unwrap(), simulated.driver().unwrap(), "{}", profile.name);
        assert_eq!(real.machine(), simulated.machine());
        let (found, expected) = (real.inventory().unwrap(), simulated.inventory().unwrap());
        assert_eq!(found.gpus, expected.gpus, "{}", profile.name);
        assert_eq!(found.topology, expected.topology, "{}", profile.name);
        assert_eq!(found, expected);
        let mut details = real.details().unwrap();
        for found in details.values_mut() {
            let linked = !matches!(profile.fabric, gantry_gpu::Fabric::Pcie);
            assert_eq!(found.nvlink_generation.take().is_some(), linked, "{}", profile.name);
        }
        assert_eq!(details, simulated.details().unwrap(), "{}", profile.name);
        assert_eq!(real.vgpu(), None);
        assert_eq!(real.sample().unwrap(), simulated.sample().unwrap(), "{}", profile.name);
    }
}

#[test]
fn samples_show_what_runs() {
    let node = Node::new("model: a30\ncount: 2");
    let gpus = node.open();
    node.change(|state| {
        state.card(1).processes.push(Process {
            pid: 41,
            name: "/usr/bin/python".into(),
            memory_mib: 6_000,
            utilization: 60,
            gpu_instance: None,
        });
    });
    let samples = gpus.sample().unwrap();
    let sample = &samples[1];
    assert_eq!(
        (sample.utilization_percent, sample.memory_used_mib, sample.temperature_celsius),
        (Some(60), Some(6_000), Some(30 + 24 + 1))
    );
    let process = &sample.processes[0];
    assert_eq!(
        (process.pid, process.name.as_deref(), process.memory_used_mib),
        (41, Some("python"), Some(6_000))
    );
    assert_eq!((samples[0].utilization_percent, samples[0].processes.len()), (Some(0), 0));
}

#[test]
fn a_driver_that_comes_later_is_found_then() {
    let node = Node::new("model: t4\ncount: 1");
    let root = node.folder.path();
    let library = root.join("usr/lib/x86_64-linux-gnu");
    std::fs::rename(&library, root.join("away")).unwrap();
    let error = NvmlGpus::open(options(root)).unwrap_err();
    let Error::NoLibrary { tried } = &error else { panic!("{error}") };
    let path = library.join("libnvidia-ml.so.1");
    assert!(tried.starts_with(&format!("{} is not there; ", path.display())), "{tried}");
    assert!(tried.contains("/usr/lib64/libnvidia-ml.so.1 is not there"), "{tried}");
    std::fs::rename(root.join("away"), &library).unwrap();
    assert_eq!(NvmlGpus::open(options(root)).unwrap().inventory().unwrap().gpus.len(), 1);
}

#[test]
fn what_is_no_library_or_has_no_driver_is_named() {
    let node = Node::new("model: t4\ncount: 1\nvisible: device-nodes\ndev: /nowhere");
    let library = node.installed.library.clone();
    let error = NvmlGpus::open(node.options()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the NVIDIA driver does not start: {}: Driver Not Loaded", library.display())
    );
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("libnvidia-ml.so.1");
    std::fs::write(&text, "no library").unwrap();
    let options = gantry_gpu::NvmlOptions { library: Some(text.clone()), ..options(folder.path()) };
    let error = NvmlGpus::open(options).unwrap_err().to_string();
    let start = format!("libnvidia-ml.so.1 cannot be loaded: {}", text.display());
    assert!(error.starts_with(&start) && error.contains("too short"), "{error}");
}

#[test]
fn device_nodes_decide_what_a_container_sees() {
    let dev = tempfile::tempdir().unwrap();
    let config = format!("model: h100\nvisible: device-nodes\ndev: {}", dev.path().display());
    let node = Node::new(&config);
    for name in ["nvidiactl", "nvidia3", "nvidia5"] {
        std::fs::write(dev.path().join(name), "").unwrap();
    }
    let inventory = node.open().inventory().unwrap();
    let seen: Vec<_> = inventory.gpus.iter().map(|gpu| (gpu.index, gpu.minor)).collect();
    assert_eq!(seen, [(0, 3), (1, 5)]);
}

#[test]
fn an_old_driver_tells_less_and_is_no_error() {
    let functions = [
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlEventSetWait_v2",
    ];
    let profile = Profile::named("a100-40").unwrap();
    let node = Node::without("model: a100-40\ncount: 2\nnode: n1", &functions);
    let gpus = node.open();
    let inventory = gpus.inventory().unwrap();
    let mut expected = SimGpus::new(profile, 2, "n1", 0).unwrap().inventory().unwrap();
    for gpu in &mut expected.gpus {
        gpu.mig_capable = false;
    }
    assert_eq!(inventory.gpus, expected.gpus);
    assert_eq!(gpus.driver().unwrap().cuda_version, (12, 4));
    assert_eq!(gpus.sample().unwrap()[0].memory_used_mib, Some(0));
    // The same from a library that has the functions over a driver that has not.
    let node = Node::new("model: a100-40\ncount: 2\nnode: n1");
    node.change(|state| state.missing = functions[..6].iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(node.open().inventory().unwrap().gpus, expected.gpus);
}
