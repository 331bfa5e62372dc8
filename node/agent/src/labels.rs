//! The labels by which workloads choose nodes: those of NVIDIA's GPU Feature Discovery.

use std::collections::BTreeMap;

use gantry_gpu::DriverInfo;
use gantry_model::{Gpu, LinkKind, Topology};

const PREFIX: &str = "nvidia.com/";

/// Product names of GPU architectures, by the lowest compute capability.
const FAMILIES: [((u32, u32), &str); 12] = [
    ((13, 0), "rubin"),
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada-lovelace"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((6, 0), "pascal"),
    ((5, 0), "maxwell"),
    ((3, 0), "kepler"),
    ((2, 0), "fermi"),
    ((1, 0), "tesla"),
];

/// The label that tells how the GPUs of a node are connected: `nvlink` and the generation where NVLink joins every pair,
/// else `pcie`. Not one of NVIDIA's: clusters have set it by hand.
const TOPOLOGY_LABEL: &str = "gpu-topology";

/// Generations of NVLink, by the lowest compute capability of the GPUs that have it.
const NVLINK: [((u32, u32), u32); 5] = [((10, 0), 5), ((9, 0), 4), ((8, 0), 3), ((7, 0), 2), ((6, 0), 1)];

/// The labels of a node with these GPUs. On a node with several models the GPU of the lowest index speaks for all.
/// Without GPUs there is nothing to say.
pub fn feature_labels(
    gpus: &[Gpu],
    topology: &Topology,
    driver: &DriverInfo,
    machine: Option<&str>,
) -> BTreeMap<String, String> {
    // A card that does not answer and was never seen has no properties to tell.
    let Some(gpu) = gpus.iter().find(|gpu| gpu.memory_mib > 0) else {
        return BTreeMap::new();
    };
    let (cuda_major, cuda_minor) = driver.cuda_version;
    let mut parts = driver.driver_version.split('.');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let (major, minor, revision) = (part(), part(), part());
    let (capability_major, capability_minor) = gpu.compute_capability;
    let family = FAMILIES.iter().find(|(lowest, _)| gpu.compute_capability >= *lowest);
    [
        ("cuda.driver-version.full", driver.driver_version.clone()),
        ("cuda.driver-version.major", major.clone()),
        ("cuda.driver-version.minor", minor.clone()),
        ("cuda.driver-version.revision", revision.clone()),
        ("cuda.driver.major", major),
        ("cuda.driver.minor", minor),
        ("cuda.driver.rev", revision),
        ("cuda.runtime-version.full", format!("{cuda_major}.{cuda_minor}")),
        ("cuda.runtime-version.major", cuda_major.to_string()),
        ("cuda.runtime-version.minor", cuda_minor.to_string()),
        ("cuda.runtime.major", cuda_major.to_string()),
        ("cuda.runtime.minor", cuda_minor.to_string()),
        ("gpu.compute.major", capability_major.to_string()),
        ("gpu.compute.minor", capability_minor.to_string()),
        ("gpu.count", gpus.len().to_string()),
        ("gpu.family", family.map_or("undefined", |(_, name)| name).to_owned()),
        ("gpu.machine", sanitise(machine.unwrap_or("unknown"))),
        ("gpu.memory", gpu.memory_mib.to_string()),
        ("gpu.present", "true".to_owned()),
        ("gpu.product", sanitise(&gpu.product)),
        ("gpu.replicas", "1".to_owned()),
        ("gpu.sharing-strategy", "none".to_owned()),
        ("mig.capable", gpu.mig_capable.to_string()),
        ("mps.capable", "false".to_owned()),
        ("vgpu.present", "false".to_owned()),
    ]
    .into_iter()
    .map(|(key, value)| (format!("{PREFIX}{key}"), value))
    .chain([(TOPOLOGY_LABEL.to_owned(), connection(gpu, topology))])
    .collect()
}

fn connection(gpu: &Gpu, topology: &Topology) -> String {
    let size = topology.len();
    let mut links = (0..size).flat_map(|a| (a + 1..size).map(move |b| (a, b)));
    let joined =
        links.all(|(a, b)| topology.link(a, b).is_some_and(|link| matches!(link.kind, LinkKind::NvLink(_))));
    let generation = NVLINK.iter().find(|(lowest, _)| gpu.compute_capability >= *lowest);
    match generation {
        Some((_, generation)) if joined && size > 1 => format!("nvlink{generation}"),
        _ => "pcie".to_owned(),
    }
}

/// Makes a label value of a name: drops what a label cannot hold, joins words with `-`, and cuts at 63 characters.
fn sanitise(name: &str) -> String {
    let allowed: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ')).collect();
    let joined = allowed.split_whitespace().collect::<Vec<_>>().join("-");
    let cut: String = joined.chars().take(63).collect();
    cut.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
mod tests {
    use gantry_gpu::{GpuBackend as _, PROFILES, SimGpus};

    use super::*;

    #[test]
    fn every_model_gets_nvidias_labels() {
        let row = |profile| {
            let sim = SimGpus::new(profile, 8, "n", 1).unwrap();
            let inventory = sim.inventory().unwrap();
            let labels = feature_labels(
                &inventory.gpus,
                &inventory.topology,
                &sim.driver().unwrap(),
                sim.machine().as_deref(),
            );
            let of_nvidia = ["product", "memory", "family", "compute.major", "count", "machine"]
                .map(|key| labels[&format!("nvidia.com/gpu.{key}")].clone())
                .join(" ");
            format!("{of_nvidia} {}", labels[TOPOLOGY_LABEL])
        };
        let rows: Vec<_> = PROFILES.iter().map(row).collect();
        assert_eq!(
            rows,
            [
                "NVIDIA-A100-SXM4-40GB 40960 ampere 8 8 DGXA100-920-23687-2530-000 nvlink3",
                "NVIDIA-A100-SXM4-80GB 81920 ampere 8 8 DGXA100-920-23687-2530-000 nvlink3",
                "NVIDIA-H100-80GB-HBM3 81559 hopper 9 8 DGXH100 nvlink4",
                "NVIDIA-H200 143771 hopper 9 8 DGXH200 nvlink4",
                "NVIDIA-B200 183359 blackwell 10 8 DGXB200 nvlink5",
                "NVIDIA-A30 24576 ampere 8 8 PowerEdge-R750xa pcie",
                "NVIDIA-L4 23034 ada-lovelace 8 8 PowerEdge-R760xa pcie",
                "Tesla-T4 15360 turing 7 8 PowerEdge-R740 pcie",
                "NVIDIA-GeForce-RTX-3090 24576 ampere 8 8 AS--4124GS-TNR pcie",
                "NVIDIA-GeForce-RTX-4090 24564 ada-lovelace 8 8 AS--4125GS-TNRT pcie",
            ]
        );
    }

    #[test]
    fn values_are_valid_labels_whatever_the_firmware_says() {
        assert_eq!(sanitise("  (Google) Compute/Engine\n"), "Google-ComputeEngine");
        assert_eq!(sanitise("---"), "");
        let long = sanitise(&"é word ".repeat(30));
        assert!(long.len() <= 63 && long.ends_with(|c: char| c.is_ascii_alphanumeric()), "{long}");
        assert!(
            feature_labels(
                &[],
                &Topology::default(),
                &DriverInfo { driver_version: "1".into(), cuda_version: (1, 0) },
                None
            )
            .is_empty()
        );
    }
}
