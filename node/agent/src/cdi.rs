//! The CDI files of a node: what a container needs for each GPU.
//!
//! Kinds, device names, environment and mount options are those of NVIDIA's container toolkit. No hooks: the loader's
//! names of the libraries are mounted themselves, so that nothing has to be run as root in a container's file system.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gantry_cdi::{ContainerEdits, Device, DeviceName, DeviceNode, Mount, Spec};
use gantry_gpu::DriverInfo;
use gantry_model::{FaultKind, Gpu, GpuId, Health};

/// The kind that people and other tools name.
const KIND: &str = "nvidia.com/gpu";
/// The kind that NVIDIA's device plugin names.
const PLUGIN_KIND: &str = "k8s.device-plugin.nvidia.com/gpu";
const KINDS: [&str; 2] = [KIND, PLUGIN_KIND];

/// Where distributions put the driver's libraries.
const LIBRARY_FOLDERS: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];

/// Libraries of the driver whose loader name ends in `.so.1`.
const LOADED_AS_1: [&str; 10] = [
    "libcuda.so",
    "libcudadebugger.so",
    "libnvcuvid.so",
    "libnvidia-cfg.so",
    "libnvidia-encode.so",
    "libnvidia-ml.so",
    "libnvidia-nvvm.so",
    "libnvidia-opencl.so",
    "libnvidia-opticalflow.so",
    "libnvidia-ptxjitcompiler.so",
];

/// Programs of the driver.
const PROGRAMS: [&str; 5] = [
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
];

/// Mount options of everything that is only read.
const READ_ONLY: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];

/// Device files that every GPU container has, with the numbers that they have where the host cannot be asked.
/// 195 is registered for NVIDIA; that of nvidia-uvm is assigned when its module is loaded.
const COMMON_NODES: [(&str, i64, i64); 4] = [
    ("/dev/nvidiactl", 195, 255),
    ("/dev/nvidia-uvm", 511, 0),
    ("/dev/nvidia-uvm-tools", 511, 1),
    ("/dev/nvidia-modeset", 195, 254),
];

/// The name of a GPU as the device plugin hands it out.
pub(crate) fn plugin_device(gpu: &GpuId) -> Result<DeviceName, gantry_cdi::Error> {
    DeviceName::new(PLUGIN_KIND, gpu.as_str())
}

/// Writes the files of a node, or removes them where no GPU can be used: an empty file would be an invalid one.
pub(crate) fn write(
    folder: &Path,
    driver_root: &Path,
    driver: &DriverInfo,
    gpus: &[Gpu],
) -> Result<(), gantry_cdi::Error> {
    let answers =
        |gpu: &&Gpu| !matches!(&gpu.health, Health::Unhealthy(fault) if fault.kind == FaultKind::Lost);
    let present: Vec<&Gpu> = gpus.iter().filter(answers).collect();
    for kind in KINDS {
        let file = kind.replace('/', "-");
        if present.is_empty() {
            gantry_cdi::remove(folder, &file)?;
        } else {
            let spec = Spec::new(kind, devices(&present), common(driver_root, driver))?;
            gantry_cdi::write(folder, &file, &spec)?;
        }
    }
    Ok(())
}

fn devices(gpus: &[&Gpu]) -> Vec<Device> {
    let device = |name: String, nodes: Vec<DeviceNode>| Device {
        name,
        annotations: std::collections::BTreeMap::new(),
        container_edits: ContainerEdits { device_nodes: nodes, ..ContainerEdits::default() },
    };
    let file = |gpu: &Gpu| node(&format!("/dev/nvidia{}", gpu.minor), 195, i64::from(gpu.minor));
    let mut list: Vec<_> = gpus.iter().map(|gpu| device(gpu.index.to_string(), vec![file(gpu)])).collect();
    list.extend(gpus.iter().map(|gpu| device(gpu.id.to_string(), vec![file(gpu)])));
    list.push(device("all".to_owned(), gpus.iter().map(|gpu| file(gpu)).collect()));
    list
}

fn common(driver_root: &Path, driver: &DriverInfo) -> ContainerEdits {
    ContainerEdits {
        // Stops NVIDIA's runtime hook, where one is installed, from injecting a second time.
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".to_owned()],
        device_nodes: COMMON_NODES.iter().map(|(path, major, minor)| node(path, *major, *minor)).collect(),
        mounts: mounts(driver_root, driver),
        ..ContainerEdits::default()
    }
}

/// A device file with its numbers, so that a runtime need not look: those of the host's file, or the usual ones.
fn node(path: &str, major: i64, minor: i64) -> DeviceNode {
    let on_host = fs::symlink_metadata(path).is_ok_and(|file| file.rdev() != 0);
    let numbers = (!on_host).then_some((major, minor));
    DeviceNode {
        path: path.to_owned(),
        kind: Some("c".to_owned()),
        major: numbers.map(|(major, _)| major),
        minor: numbers.map(|(_, minor)| minor),
        ..DeviceNode::default()
    }
}

fn mounts(driver_root: &Path, driver: &DriverInfo) -> Vec<Mount> {
    let on_host = |path: &str| driver_root.join(path.trim_start_matches('/'));
    let mount = |from: &str, to: &str| Mount {
        host_path: on_host(from).to_string_lossy().into_owned(),
        container_path: to.to_owned(),
        options: READ_ONLY.map(str::to_owned).to_vec(),
        kind: None,
    };
    let mut mounts = Vec::new();
    let ending = format!(".{}", driver.driver_version);
    for folder in LIBRARY_FOLDERS {
        for library in names(&on_host(folder)) {
            let Some(name) = library.strip_suffix(&ending).filter(|name| name.starts_with("lib")) else {
                continue;
            };
            let path = format!("{folder}/{library}");
            mounts.push(mount(&path, &path));
            if LOADED_AS_1.contains(&name) {
                mounts.push(mount(&path, &format!("{folder}/{name}.1")));
            }
        }
    }
    let programs = PROGRAMS.iter().map(|program| format!("/usr/bin/{program}"));
    mounts.extend(programs.filter(|path| on_host(path).is_file()).map(|path| mount(&path, &path)));
    mounts
}

/// The files of a folder in order; none where it cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use gantry_cdi::Cache;
    use gantry_gpu::{GpuBackend as _, Profile, SimGpus};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_container_gets_its_gpu_the_driver_and_nothing_else() {
        let (folder, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sim = SimGpus::new(Profile::named("a100-80").unwrap(), 4, "n", 1).unwrap();
        sim.install_driver(root.path()).unwrap();
        let gpus = sim.inventory().unwrap().gpus;
        write(folder.path(), root.path(), &sim.driver().unwrap(), &gpus).unwrap();
        let cache = Cache::load(&[folder.path()]);
        assert_eq!(cache.errors().len(), 0);
        assert_eq!(cache.devices().count(), 2 * (4 + 4 + 1));
        let mut config = json!({});
        cache.inject(&mut config, &[plugin_device(&gpus[2].id).unwrap()]).unwrap();
        let texts = |list: &Value, key: &str| -> Vec<String> {
            list.as_array().unwrap().iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            texts(&config["linux"]["devices"], "path"),
            [
                "/dev/nvidiactl",
                "/dev/nvidia-uvm",
                "/dev/nvidia-uvm-tools",
                "/dev/nvidia-modeset",
                "/dev/nvidia2"
            ]
        );
        assert_eq!(config["process"]["env"], json!(["NVIDIA_VISIBLE_DEVICES=void"]));
        let mounts = texts(&config["mounts"], "destination");
        for file in [
            "/usr/bin/nvidia-smi",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        ] {
            assert!(mounts.contains(&file.to_owned()), "{file}");
        }
        assert!(texts(&config["mounts"], "source").iter().all(|path| Path::new(path).is_file()));
    }

    #[test]
    fn lost_cards_leave_the_files_and_the_last_one_takes_them_along() {
        let folder = tempfile::tempdir().unwrap();
        let sim = SimGpus::new(Profile::named("t4").unwrap(), 2, "n", 1).unwrap();
        let mut gpus = sim.inventory().unwrap().gpus;
        let lost = Health::Unhealthy(gantry_model::Fault { kind: FaultKind::Lost, message: String::new() });
        let count = |gpus: &[Gpu]| {
            write(folder.path(), Path::new("/nowhere"), &sim.driver().unwrap(), gpus).unwrap();
            Cache::load(&[folder.path()]).devices().count()
        };
        assert_eq!(count(&gpus), 10);
        gpus[0].health = lost.clone();
        assert_eq!(count(&gpus), 6);
        gpus[1].health = lost;
        assert_eq!(count(&gpus), 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
