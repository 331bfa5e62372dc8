use gantry_cdi::Cache;
use gantry_gpu::{GpuBackend as _, Profile, SimGpus};
use gantry_model::{Fault, FaultKind, Health};
use serde_json::{Value, json};

use super::*;

/// A simulated machine's disk: its driver, its CDI folder.
struct Disk {
    root: tempfile::TempDir,
    sim: Arc<SimGpus>,
}

impl Disk {
    fn new(profile: &str, count: usize) -> Self {
        let sim = SimGpus::new(Profile::named(profile).unwrap(), count, "n", 1).unwrap();
        let disk = Self { root: tempfile::tempdir().unwrap(), sim };
        disk.sim.install_driver(&disk.path("driver")).unwrap();
        disk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn keeper(&self) -> Keeper {
        Keeper::new(self.path("cdi"), Root::new(self.path("driver")), None)
    }

    fn gpus(&self) -> Vec<Gpu> {
        self.sim.inventory().unwrap().gpus
    }

    fn update(&self, keeper: &mut Keeper, gpus: &[Gpu]) -> Vec<String> {
        keeper.update(&self.sim.driver().unwrap(), gpus)
    }

    fn devices(&self) -> usize {
        Cache::load(&[self.path("cdi")]).devices().count()
    }
}

fn lost() -> Health {
    Health::Unhealthy(Fault { kind: FaultKind::Lost, message: String::new() })
}

#[test]
fn a_container_gets_its_gpu_the_driver_and_nothing_else() {
    let disk = Disk::new("a100-80", 4);
    let gpus = disk.gpus();
    let lines = disk.update(&mut disk.keeper(), &gpus);
    let place = disk.path("cdi").display().to_string();
    assert_eq!(lines, [format!("CDI files in {place}: driver 550.54.15, 13 files of it")]);
    let cache = Cache::load(&[disk.path("cdi")]);
    assert_eq!(cache.errors().len(), 0);
    assert_eq!(cache.devices().count(), 2 * (4 + 4 + 1));
    let mut config = json!({});
    cache.inject(&mut config, &[plugin_device(&gpus[2].id).unwrap()]).unwrap();
    let texts = |list: &Value, key: &str| -> Vec<String> {
        list.as_array().unwrap().iter().map(|item| item[key].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        texts(&config["linux"]["devices"], "path"),
        ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia2"]
    );
    let env = config["process"]["env"].as_array().unwrap();
    assert!(env.contains(&json!("NVIDIA_VISIBLE_DEVICES=void")), "{env:?}");
    let mounts = texts(&config["mounts"], "destination");
    for file in [
        "/usr/bin/nvidia-smi",
        "/usr/lib/x86_64-linux-gnu/libcuda.so",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
        "/usr/lib/x86_64-linux-gnu/libnvidia-nvvm.so.4",
    ] {
        assert!(mounts.contains(&file.to_owned()), "{file}");
    }
    assert!(texts(&config["mounts"], "source").iter().all(|path| Path::new(path).is_file()));
    assert!(config.get("hooks").is_none());
}

#[test]
fn lost_cards_leave_the_files_and_the_last_one_takes_them_along() {
    let disk = Disk::new("t4", 2);
    let mut keeper = disk.keeper();
    let mut gpus = disk.gpus();
    for (index, expected) in [(None, 10), (Some(0_usize), 6), (Some(1), 0)] {
        if let Some(index) = index {
            gpus[index].health = lost();
        }
        disk.update(&mut keeper, &gpus);
        assert_eq!((disk.devices(), keeper.known.ready), (expected, true));
    }
    assert_eq!(fs::read_dir(disk.path("cdi")).unwrap().count(), 0);
}

#[test]
fn what_is_in_step_is_not_written_and_what_is_damaged_is() {
    let disk = Disk::new("t4", 1);
    let (mut keeper, gpus) = (disk.keeper(), disk.gpus());
    assert_eq!(disk.update(&mut keeper, &gpus).len(), 1);
    assert!(!keeper.is_stale());
    let file = disk.path("cdi/nvidia.com-gpu.json");
    let before = fs::metadata(&file).unwrap().ino();
    assert!(disk.update(&mut keeper, &gpus).is_empty());
    assert_eq!(fs::metadata(&file).unwrap().ino(), before);
    for damage in
        [&|path: &Path| fs::write(path, "{").unwrap(), &|path: &Path| fs::remove_file(path).unwrap()]
            as [&dyn Fn(&Path); 2]
    {
        damage(&file);
        assert!(keeper.is_stale());
        assert_eq!(disk.update(&mut keeper, &gpus).len(), 1);
        assert_eq!((disk.devices(), keeper.is_stale()), (6, false));
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_told_once_and_files_that_are_there_do() {
    let disk = Disk::new("t4", 2);
    let gpus = disk.gpus();
    // A file where the folder should be: unlike a read-only folder it stops root, too.
    let mut keeper = disk.keeper();
    fs::write(disk.path("cdi"), "").unwrap();
    let lines = disk.update(&mut keeper, &gpus);
    assert!(lines[0].starts_with("Could not bring the CDI files up to date: create "), "{lines:?}");
    assert!(lines[0].ends_with("; trying again") && !keeper.known.ready && keeper.known.error.is_some());
    assert!(disk.update(&mut keeper, &gpus).is_empty(), "the same is not told twice");
    fs::remove_file(disk.path("cdi")).unwrap();
    assert_eq!(disk.update(&mut keeper, &gpus).len(), 1);
    assert!(keeper.known.ready && keeper.known.error.is_none());
    // A file that cannot be replaced, while the one of the device plugin is in step: work goes on.
    let other = disk.path("cdi/nvidia.com-gpu.json");
    fs::remove_file(&other).unwrap();
    fs::create_dir(&other).unwrap();
    let lines = disk.update(&mut keeper, &gpus);
    assert!(lines[0].contains("; those that are there stay in use; to do: ls -la "), "{lines:?}");
    assert!(keeper.known.ready);
    // With a device that no file describes it does not.
    let more = Disk::new("t4", 3).gpus();
    disk.update(&mut keeper, &more);
    assert!(keeper.known.ready, "the file of the device plugin is written first");
    fs::remove_file(disk.path("cdi/k8s.device-plugin.nvidia.com-gpu.json")).unwrap();
    fs::create_dir(disk.path("cdi/k8s.device-plugin.nvidia.com-gpu.json")).unwrap();
    disk.update(&mut keeper, &more);
    assert!(!keeper.known.ready);
    // Unless it is lost: nobody is given it.
    let gone: Vec<Gpu> = more.into_iter().map(|gpu| Gpu { health: lost(), ..gpu }).collect();
    disk.update(&mut keeper, &gone);
    assert!(keeper.known.ready);
}

#[test]
fn files_of_others_are_left_alone() {
    let disk = Disk::new("t4", 1);
    let (mut keeper, gpus) = (disk.keeper(), disk.gpus());
    fs::create_dir(disk.path("cdi")).unwrap();
    fs::write(disk.path("cdi/broken.json"), "{").unwrap();
    fs::write(disk.path("cdi/vendor.yaml"), "cdiVersion: 0.5.0\nkind: vendor.com/net\ndevices: [").unwrap();
    assert_eq!(disk.update(&mut keeper, &gpus).len(), 1);
    assert_eq!(disk.devices(), 6);
    // NVIDIA's own file of the same devices: with both, no name would mean anything.
    let nvidia = |kind: &str| {
        format!(
            "cdiVersion: 0.5.0\nkind: {kind}\ndevices:\n- name: \"0\"\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n"
        )
    };
    let theirs = disk.path("cdi/nvidia.yaml");
    fs::write(&theirs, nvidia("nvidia.com/gpu")).unwrap();
    let lines = disk.update(&mut keeper, &gpus);
    assert_eq!(lines[1..], [format!("CDI kind nvidia.com/gpu is left to {}", theirs.display())]);
    let cache = Cache::load(&[disk.path("cdi")]);
    assert_eq!((cache.devices().count(), cache.conflicts().count()), (3 + 1, 0));
    fs::write(&theirs, nvidia("k8s.device-plugin.nvidia.com/gpu")).unwrap();
    let lines = disk.update(&mut keeper, &gpus);
    assert!(lines[1].ends_with("runtimes refuse devices that two files describe; remove it"), "{lines:?}");
    fs::remove_file(&theirs).unwrap();
    disk.update(&mut keeper, &gpus);
    assert_eq!((disk.devices(), keeper.is_stale()), (6, false));
}

#[test]
fn a_driver_that_is_gone_takes_its_files_along() {
    let disk = Disk::new("t4", 1);
    let (mut keeper, gpus) = (disk.keeper(), disk.gpus());
    disk.update(&mut keeper, &gpus);
    fs::rename(disk.path("driver"), disk.path("elsewhere")).unwrap();
    assert!(keeper.is_stale());
    let lines = disk.update(&mut keeper, &gpus);
    assert!(lines[0].contains("no NVIDIA driver below"), "{lines:?}");
    assert_eq!((disk.devices(), keeper.known.ready), (0, false));
    assert!(keeper.known.machine.is_none());
    // Another driver than NVML speaks of: what is there stays until it is known which one is right.
    fs::rename(disk.path("elsewhere"), disk.path("driver")).unwrap();
    disk.update(&mut keeper, &gpus);
    let newer = DriverInfo { driver_version: "570.86.15".into(), cuda_version: (12, 8) };
    let lines = keeper.update(&newer, &gpus);
    assert!(lines[0].contains("driver version mismatch: the running driver is 570.86.15"), "{lines:?}");
    assert_eq!((disk.devices(), keeper.known.ready), (6, true));
}

#[test]
fn a_daemon_that_comes_or_goes_is_noticed() {
    let disk = Disk::new("t4", 1);
    let (mut keeper, gpus) = (disk.keeper(), disk.gpus());
    disk.update(&mut keeper, &gpus);
    let mounted = || {
        let spec = gantry_cdi::read(&disk.path("cdi/nvidia.com-gpu.json")).unwrap();
        spec.container_edits.mounts.iter().any(|mount| mount.container_path == "/tmp/nvidia-mps")
    };
    assert!(!mounted());
    fs::create_dir_all(disk.path("driver/tmp/nvidia-mps")).unwrap();
    assert!(keeper.is_stale());
    disk.update(&mut keeper, &gpus);
    assert!(mounted());
    // What the daemon does in its folder changes nothing.
    fs::write(disk.path("driver/tmp/nvidia-mps/log"), "").unwrap();
    assert!(!keeper.is_stale());
    fs::remove_dir_all(disk.path("driver/tmp/nvidia-mps")).unwrap();
    assert!(keeper.is_stale());
    disk.update(&mut keeper, &gpus);
    assert!(!mounted());
}

#[test]
fn what_to_do_follows_from_what_the_system_says() {
    let said = |code: i32, ready: bool| {
        let source = std::io::Error::from_raw_os_error(code);
        let error = gantry_cdi::Error::Io { action: "write", path: "/var/run/cdi/a.json".into(), source };
        Trouble::new(&error.into(), Path::new("/var/run/cdi"), ready).message()
    };
    let start = "the CDI files could not be brought up to date: write /var/run/cdi/a.json: ";
    let stay = "devices stay in service as they were described before; to do: ";
    assert_eq!(
        said(30, true),
        format!(
            "{start}Read-only file system (os error 30); {stay}mount /var/run/cdi into the agent's pod writable; where it is, dmesg on the node tells why its disk has become read-only"
        )
    );
    assert_eq!(
        said(28, true),
        format!(
            "{start}No space left on device (os error 28); {stay}free space or inodes on the node: df -h /var/run/cdi; df -i /var/run/cdi"
        )
    );
    assert_eq!(
        said(13, false),
        format!(
            "{start}Permission denied (os error 13); changes are held back until every device is described; to do: let the agent write there, as root and by the node's security module: ls -ldZ /var/run/cdi"
        )
    );
}
