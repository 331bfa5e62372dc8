//! The GPUs that are described: those of the driver, of a file, or of a profile.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, bail};
use gantry_gpu::{GpuBackend as _, NvmlGpus, NvmlOptions, Profile, SimGpus};
use gantry_model::{Gpu, GpuId, Health, Partition, PartitionAttributes};
use serde::Deserialize;

use super::Generate;
use crate::hint;

/// GPUs of a profile.
#[derive(Clone)]
pub(crate) struct Simulated {
    profile: &'static Profile,
    count: usize,
}

impl FromStr for Simulated {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        let profile = Profile::named(name).map_err(|error| error.to_string())?;
        let count = count.parse().map_err(|_| format!("{count:?} is no number of GPUs"))?;
        Ok(Self { profile, count })
    }
}

impl Simulated {
    pub(crate) fn gpus(&self) -> anyhow::Result<Vec<Gpu>> {
        Ok(SimGpus::new(self.profile, self.count, "localhost", 0)?.inventory()?.gpus)
    }

    pub(crate) fn driver_version(&self) -> anyhow::Result<String> {
        Ok(SimGpus::new(self.profile, self.count, "localhost", 0)?.driver()?.driver_version)
    }
}

/// The form of `--devices`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    gpus: Vec<Card>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Card {
    uuid: String,
    index: u32,
    /// The number in `/dev/nvidia<minor>`; the index, unless it is given.
    minor: Option<u32>,
    #[serde(default)]
    pci_bus_id: String,
    /// The MIG devices; absent while MIG mode is off.
    mig: Option<Vec<Mig>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Mig {
    uuid: String,
    index: u32,
    #[serde(default)]
    profile: String,
    gpu_instance: u32,
    #[serde(default)]
    compute_instance: u32,
}

/// What an error of a file ends with.
const FORM: &str = "gpus: [{uuid: GPU-…, index: 0, minor: 0, pciBusId: \"0000:07:00.0\", mig: [{uuid: MIG-…, index: 0, gpuInstance: 1}]}]";

/// The GPUs of a file.
pub(crate) fn of_file(path: &Path) -> anyhow::Result<Vec<Gpu>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let read = || -> anyhow::Result<Vec<Gpu>> {
        let file: File = serde_saphyr::from_str(&text)?;
        file.gpus.iter().map(Card::gpu).collect()
    };
    read().map_err(|error| {
        hint::error(format!("{}: {error:#}", path.display()), format!("the file's form: {FORM}"))
    })
}

impl Card {
    fn gpu(&self) -> anyhow::Result<Gpu> {
        let mig = self.mig.as_ref().map(|mig| mig.iter().map(Mig::partition).collect::<anyhow::Result<_>>());
        Ok(gpu(
            self.uuid.parse()?,
            self.index,
            self.minor.unwrap_or(self.index),
            &self.pci_bus_id,
            mig.transpose()?,
        ))
    }
}

impl Mig {
    fn partition(&self) -> anyhow::Result<Partition> {
        Ok(Partition {
            id: self.uuid.parse()?,
            index: self.index,
            profile: self.profile.as_str().into(),
            gpu_instance: self.gpu_instance,
            compute_instance: self.compute_instance,
            start: 0,
            size: 0,
            memory_mib: 0,
            attributes: PartitionAttributes::default(),
            health: Health::Healthy,
        })
    }
}

fn gpu(id: GpuId, index: u32, minor: u32, pci_bus_id: &str, partitions: Option<Vec<Partition>>) -> Gpu {
    Gpu {
        id,
        index,
        minor,
        product: "".into(),
        memory_mib: 0,
        pci_bus_id: pci_bus_id.to_owned(),
        numa_node: None,
        compute_capability: (0, 0),
        mig_capable: partitions.is_some(),
        partitions,
        health: Health::Healthy,
    }
}

/// The GPUs that NVML lists; where it cannot be asked, those of the kernel.
pub(crate) fn of_driver(options: &Generate) -> anyhow::Result<Vec<Gpu>> {
    let nvml = NvmlOptions {
        driver_root: options.driver_root.clone(),
        sysfs: options.sysfs.clone(),
        proc: options.procfs.clone(),
        ..NvmlOptions::default()
    };
    let error = match NvmlGpus::open(nvml).and_then(|gpus| gpus.inventory()) {
        Ok(inventory) => {
            for failed in &inventory.failed {
                eprintln!(
                    "warning: GPU {} does not answer and is left out: {}",
                    failed.pci_bus_id, failed.error
                );
            }
            return Ok(inventory.gpus);
        }
        Err(error) => error,
    };
    match of_kernel(&options.procfs) {
        Ok(gpus) => {
            eprintln!("warning: NVML cannot be asked, the GPUs are those that the kernel lists: {error}");
            Ok(gpus)
        }
        Err(of_kernel) => Err(of_kernel.context(error.to_string())),
    }
}

/// The GPUs that the kernel module lists in `/proc/driver/nvidia/gpus/<PCI address>/information`. NVML counts them in the order of the bus,
/// too. A card in MIG mode is refused: the kernel does not tell the UUIDs of its devices.
pub(crate) fn of_kernel(proc: &Path) -> anyhow::Result<Vec<Gpu>> {
    let folder = proc.join("driver/nvidia/gpus");
    let mut cards: Vec<(String, String)> = Vec::new();
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let Ok(address) = entry.file_name().into_string() else { continue };
        let path = entry.path().join("information");
        cards.push((address, fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?));
    }
    if cards.is_empty() {
        return Err(hint::error(
            format!("no GPUs: {} lists none", folder.display()),
            "load the driver's kernel module, or describe the GPUs: gantry cdi generate --devices FILE",
        ));
    }
    cards.sort();
    let mut gpus = Vec::new();
    for (index, (address, text)) in (0..).zip(&cards) {
        let field = |name: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
            found
                .map(str::trim)
                .with_context(|| format!("{}/{address}/information has no {name:?}", folder.display()))
        };
        let minor = field("Device Minor")?.parse().with_context(|| format!("Device Minor of {address}"))?;
        let instances = proc.join(format!("driver/nvidia/capabilities/gpu{minor}/mig"));
        let cut = fs::read_dir(instances).into_iter().flatten().flatten();
        if cut.filter_map(|entry| entry.file_name().into_string().ok()).any(|name| name.starts_with("gi")) {
            bail!(hint::error(
                format!(
                    "GPU {index} ({address}) is in MIG mode, and the kernel does not tell the UUIDs of its devices"
                ),
                "describe the GPUs: gantry cdi generate --devices FILE",
            ));
        }
        gpus.push(gpu(field("GPU UUID")?.parse()?, index, minor, address, None));
    }
    Ok(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_whole_cards() {
        let proc = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = proc.path().join("driver/nvidia").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let information = |uuid: &str, minor: u32| {
            format!(
                "Model: \t\t NVIDIA H200\nIRQ:   \t\t 100\nGPU UUID: \t {uuid}\nBus Location: \t 0000:3b:00.0\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
            )
        };
        assert!(of_kernel(proc.path()).unwrap_err().to_string().starts_with("no GPUs: "));
        put("gpus/0000:3b:00.0/information", &information("GPU-b", 0));
        put("gpus/0000:07:00.0/information", &information("GPU-a", 1));
        let found: Vec<_> = of_kernel(proc.path())
            .unwrap()
            .into_iter()
            .map(|gpu| (gpu.id.to_string(), gpu.index, gpu.minor, gpu.pci_bus_id))
            .collect();
        assert_eq!(
            found,
            [("GPU-a".into(), 0, 1, "0000:07:00.0".into()), ("GPU-b".into(), 1, 0, "0000:3b:00.0".into())]
        );
        put("capabilities/gpu0/mig/config", "");
        assert_eq!(of_kernel(proc.path()).unwrap().len(), 2);
        put("capabilities/gpu0/mig/gi1/access", "");
        assert_eq!(
            of_kernel(proc.path()).unwrap_err().to_string(),
            "GPU 1 (0000:3b:00.0) is in MIG mode, and the kernel does not tell the UUIDs of its devices"
        );
        put("gpus/0000:3b:00.0/information", "Model: x\n");
        let error = of_kernel(proc.path()).unwrap_err().to_string();
        assert!(error.ends_with("0000:3b:00.0/information has no \"Device Minor\""), "{error}");
    }
}
