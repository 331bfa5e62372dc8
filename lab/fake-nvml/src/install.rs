//! A driver root, as a driver container or an installed driver has it.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::{Config, Error, Node, Paths, Store, elf};

/// The library's folder below a root.
#[cfg(target_arch = "aarch64")]
const LIBRARIES: &str = "usr/lib/aarch64-linux-gnu";
#[cfg(not(target_arch = "aarch64"))]
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The file that carries configuration and state. Its name is one of the driver's libraries: whatever mounts these into a
/// container, mounts it too, and the library finds there what it finds on the node.
const CARRIER: &str = "libnvidia-fake-state.so.";

/// Libraries that containers look for; they can be loaded, and there is nothing in them.
const PLACEHOLDERS: [&str; 4] =
    ["libcuda.so", "libnvidia-cfg.so", "libnvidia-nvvm.so", "libnvidia-ptxjitcompiler.so"];

/// GPU instances of a card, and compute instances of each, for which the driver has capability nodes.
const GPU_INSTANCES: u32 = 15;
const COMPUTE_INSTANCES: u32 = 8;

/// The minor of `/dev/nvidia-caps/nvidia-cap<minor>` of a GPU instance, or of a compute instance in it, as the driver
/// numbers them in `/proc/driver/nvidia-caps/mig-minors`. 1 and 2 are `config` and `monitor`.
pub fn cap_minor(gpu_minor: u32, gpu_instance: u32, compute_instance: Option<u32>) -> u32 {
    let base = 3 + (gpu_minor * GPU_INSTANCES + gpu_instance) * (COMPUTE_INSTANCES + 1);
    base + compute_instance.map_or(0, |id| id + 1)
}

/// What to install.
#[derive(Debug, Clone)]
pub struct Options {
    /// The root, which is made if it does not exist.
    pub root: PathBuf,
    /// The library that this crate builds.
    pub library: PathBuf,
    /// The `nvidia-smi` that this crate builds.
    pub nvidia_smi: Option<PathBuf>,
    /// The configuration's text.
    pub config: String,
    /// Functions that the library lacks, as that of an older driver.
    pub without: Vec<String>,
}

/// What was installed.
#[derive(Debug, Clone)]
pub struct Installed {
    /// `libnvidia-ml.so.1` below the root.
    pub library: PathBuf,
    /// Where configuration and state are.
    pub paths: Paths,
    /// The state.
    pub store: Store,
}

/// Lays out `usr/lib/<triple>` with `libnvidia-ml.so.<version>`, its link `.so.1` and placeholders of the other libraries,
/// `usr/bin/nvidia-smi`, and what the kernel would show of the driver and the machine: `proc/driver/nvidia/gpus/*/information`,
/// `proc/driver/nvidia-caps/mig-minors`, `sys/bus/pci/devices/*/numa_node`, `sys/class/dmi/id/product_name`.
///
/// A second installation replaces the library and the configuration, and keeps the state.
pub fn install(options: &Options) -> Result<Installed, Error> {
    let config = Config::parse(&options.config)?;
    let version = &config.driver_version;
    let libraries = options.root.join(LIBRARIES);
    create(&libraries)?;

    let mut library = fs::read(&options.library).map_err(io("read", &options.library))?;
    if let [absent, ..] = elf::remove_symbols(&mut library, &options.without)[..] {
        return Err(Error::Value {
            field: "without".to_owned(),
            value: absent.to_owned(),
            rule: "the library has no such function".to_owned(),
        });
    }
    place(&libraries.join(format!("libnvidia-ml.so.{version}")), &library, 0o755)?;
    link(&libraries, "libnvidia-ml.so.1", &format!("libnvidia-ml.so.{version}"))?;
    for name in PLACEHOLDERS {
        place(&libraries.join(format!("{name}.{version}")), &elf::placeholder(&format!("{name}.1")), 0o755)?;
        link(&libraries, &format!("{name}.1"), &format!("{name}.{version}"))?;
    }
    link(&libraries, "libcuda.so", "libcuda.so.1")?;
    if let Some(program) = &options.nvidia_smi {
        let bytes = fs::read(program).map_err(io("read", program))?;
        create(&options.root.join("usr/bin"))?;
        place(&options.root.join("usr/bin/nvidia-smi"), &bytes, 0o755)?;
    }

    let path = libraries.join(format!("{CARRIER}{version}"));
    if !path.exists() {
        place(&path, &elf::placeholder(CARRIER.trim_end_matches('.')), 0o644)?;
    }
    let store = Store::new(&path);
    store.update::<_, Error>(|state| {
        state.config = Some(options.config.clone());
        Ok(())
    })?;
    let paths = Paths { config: None, carrier: Some(path) };
    let node = Node::load(&paths, None)?;
    kernel(&options.root, &node)?;
    Ok(Installed { library: libraries.join("libnvidia-ml.so.1"), store: node.store.clone(), paths })
}

/// The carrier in a folder of libraries.
pub(crate) fn carrier(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(CARRIER)))
        .collect();
    found.sort();
    found.pop()
}

/// Where the library of a driver root is.
pub(crate) fn library(root: &Path) -> PathBuf {
    root.join(LIBRARIES).join("libnvidia-ml.so.1")
}

/// What the kernel shows of driver and machine.
fn kernel(root: &Path, node: &Node) -> Result<(), Error> {
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        create(path.parent().unwrap_or(root))?;
        place(&path, text.as_bytes(), 0o644)
    };
    let version = &node.config.driver_version;
    write(
        "proc/driver/nvidia/version",
        &format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (gantry)\n"
        ),
    )?;
    write("sys/class/dmi/id/product_name", &format!("{}\n", node.config.profile.machine))?;
    let mut minors = "config 1\nmonitor 2\n".to_owned();
    for card in &node.cards {
        let (domain, bus, device) = card.pci();
        let address = format!("{domain:04x}:{bus:02x}:{device:02x}.0");
        let information = format!(
            "Model: \t\t {}\nIRQ:   \t\t 0\nGPU UUID: \t {}\nVideo BIOS: \t {}\nBus Type: \t PCIe\nDMA Size: \t 52 bits\n\
             DMA Mask: \t 0xfffffffffffff\nBus Location: \t {address}\nDevice Minor: \t {}\nGPU Firmware: \t {version}\n\
             GPU Excluded:\t No\n",
            card.name(),
            card.uuid(),
            card.profile.vbios,
            card.minor()
        );
        write(&format!("proc/driver/nvidia/gpus/{address}/information"), &information)?;
        let pci = format!("sys/bus/pci/devices/{address}");
        write(&format!("{pci}/numa_node"), &format!("{}\n", card.device.numa_node.unwrap_or(-1)))?;
        write(&format!("{pci}/vendor"), "0x10de\n")?;
        write(&format!("{pci}/device"), &format!("0x{:04x}\n", card.profile.pci_device_id))?;
        write(&format!("{pci}/class"), &format!("{:#08x}\n", card.profile.pci_class()))?;
        for gpu in 0..GPU_INSTANCES {
            let name = format!("gpu{}/gi{gpu}", card.minor());
            let _ = writeln!(minors, "{name}/access {}", cap_minor(card.minor(), gpu, None));
            for compute in 0..COMPUTE_INSTANCES {
                let _ = writeln!(
                    minors,
                    "{name}/ci{compute}/access {}",
                    cap_minor(card.minor(), gpu, Some(compute))
                );
            }
        }
    }
    write("proc/driver/nvidia-caps/mig-minors", &minors)
}

fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |source| Error::Io { action, path: path.to_path_buf(), source }
}

fn create(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(io("create", folder))
}

/// Puts a file in place at once: who has the old one open keeps it.
fn place(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    fs::write(&new, bytes).map_err(io("write", &new))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).map_err(io("set permissions of", &new))?;
    fs::rename(&new, path).map_err(io("replace", path))
}

fn link(folder: &Path, name: &str, target: &str) -> Result<(), Error> {
    let path = folder.join(name);
    match fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::Io { action: "replace", path, source });
        }
        _ => {}
    }
    symlink(target, &path).map_err(io("link", &path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_minors_are_the_drivers() {
        // Lines of a real /proc/driver/nvidia-caps/mig-minors.
        assert_eq!(cap_minor(0, 0, None), 3);
        assert_eq!(cap_minor(0, 0, Some(0)), 4);
        assert_eq!(cap_minor(0, 1, None), 12);
        assert_eq!(cap_minor(0, 14, Some(7)), 137);
        assert_eq!(cap_minor(1, 0, None), 138);
    }

    #[test]
    fn a_second_installation_keeps_the_state() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("any.so");
        fs::write(&library, b"\x7fELF\0nvmlDeviceGetName\0").unwrap();
        let mut options = Options {
            root: folder.path().join("root"),
            library,
            nvidia_smi: None,
            config: "model: t4\ncount: 2".to_owned(),
            without: Vec::new(),
        };
        let installed = install(&options).unwrap();
        installed
            .store
            .update::<_, Error>(|state| {
                state.card(1).delay_ms = 9;
                Ok(())
            })
            .unwrap();
        options.config = "model: t4\ncount: 4".to_owned();
        options.without = vec!["nvmlDeviceGetName".to_owned()];
        let installed = install(&options).unwrap();
        let node = Node::load(&installed.paths, None).unwrap();
        assert_eq!((node.cards.len(), node.cards[1].state.delay_ms), (4, 9));
        assert_eq!(fs::read(&installed.library).unwrap(), b"\x7fELF\0-vmlDeviceGetName\0");
        let numa = options.root.join("sys/bus/pci/devices/0000:4b:00.0/numa_node");
        assert_eq!(fs::read_to_string(numa).unwrap(), "1\n");
        options.without = vec!["nvmlNothing".to_owned()];
        assert_eq!(
            install(&options).unwrap_err().to_string(),
            "configuration: without: Invalid value: nvmlNothing: the library has no such function"
        );
    }
}
