//! GPU models that can be simulated: one row each.

use gantry_model::{Link, LinkKind};

use crate::mig::{self, MigProfile};
use crate::{DriverInfo, Error};

/// A node's driver as a table can state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Driver {
    version: &'static str,
    cuda: (u32, u32),
}

const R550: Driver = Driver { version: "550.54.15", cuda: (12, 4) };
/// The first branch that knows Blackwell.
const R570: Driver = Driver { version: "570.86.15", cuda: (12, 8) };

/// How the GPUs of a machine are connected beside PCIe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabric {
    /// PCIe only.
    Pcie,
    /// Every GPU reaches every other through NVSwitch, with this many lanes and GB/s in both directions together.
    NvSwitch {
        /// NVLink lanes of one GPU.
        lanes: u8,
        /// Bandwidth of one GPU.
        gb_per_s: u32,
    },
    /// GPUs 2n and 2n+1 carry a bridge.
    Bridge {
        /// NVLink lanes over the bridge.
        lanes: u8,
        /// Bandwidth over the bridge.
        gb_per_s: u32,
    },
}

/// Power, heat and clocks: at rest, and with every multiprocessor busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Power {
    /// Watts at rest.
    pub idle_watts: u32,
    /// Default power limit in watts.
    pub limit_watts: u32,
    /// Multiprocessor clock in MHz at rest and at most.
    pub sm_mhz: (u32, u32),
    /// Memory clock in MHz at rest and at most.
    pub memory_mhz: (u32, u32),
    /// Performance state at rest: data-centre cards with HBM stay in P0.
    pub idle_state: u8,
    /// Whether the card has a fan of its own.
    pub fan: bool,
}

/// What a card's sensors read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readings {
    /// Core temperature in degrees Celsius.
    pub temperature_celsius: u32,
    /// Power drawn, in milliwatts.
    pub power_milliwatts: u32,
    /// Clock of the multiprocessors in MHz.
    pub sm_clock_mhz: u32,
    /// Clock of the memory in MHz.
    pub memory_clock_mhz: u32,
    /// Fan speed in percent; `None` where the machine's fans cool.
    pub fan_percent: Option<u32>,
    /// Performance state: 0 is the fastest.
    pub performance_state: u8,
}

/// What is left of a PCIe bandwidth between two GPUs: what crosses host bridges shares them, and what crosses sockets shares the
/// interconnect besides.
pub(crate) fn shared_pcie(kind: LinkKind, gb_per_s: u32) -> u32 {
    match kind {
        LinkKind::NvLink(_) | LinkKind::SingleSwitch | LinkKind::MultiSwitch => gb_per_s,
        LinkKind::HostBridge | LinkKind::Node => gb_per_s * 3 / 4,
        LinkKind::System => gb_per_s / 2,
    }
}

/// A GPU model in the machine in which it usually comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// The name on our command line, such as `a100-80`.
    pub name: &'static str,
    /// NVML's product name.
    pub product: &'static str,
    /// Version of the video BIOS of one such card; others have other versions.
    pub vbios: &'static str,
    /// PCI device number; the vendor is 10de.
    pub pci_device_id: u16,
    /// NVML's total memory in MiB.
    pub memory_mib: u64,
    /// CUDA compute capability.
    pub compute_capability: (u32, u32),
    /// The machine's DMI product name.
    pub machine: &'static str,
    /// NVLink.
    pub fabric: Fabric,
    /// PCIe bandwidth of one GPU in GB/s, both directions together.
    pub pcie_gb_per_s: u32,
    /// PCI bus numbers in index order; a machine with more GPUs continues with free ones.
    pub buses: &'static [u8],
    /// GPUs behind one PCIe switch; 1 where each has a root port of its own.
    pub per_switch: u32,
    /// CPU sockets, over which the GPUs are spread in index order.
    pub sockets: u32,
    /// Power, heat and clocks.
    pub power: Power,
    /// What MIG can cut; empty where the hardware has no MIG.
    pub mig: &'static [MigProfile],
    driver: Driver,
}

/// Bus numbers of a DGX A100.
const DGX_A100: &[u8] = &[0x07, 0x0f, 0x47, 0x4e, 0x87, 0x90, 0xb7, 0xbd];
/// Bus numbers of a DGX H100 and its successors.
const DGX_H100: &[u8] = &[0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf];
/// Bus numbers of a two-socket PCIe server.
const PCIE: &[u8] = &[0x17, 0x31, 0x4b, 0x65, 0x98, 0xb1, 0xca, 0xe3];

/// Every model that can be simulated.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "a100-40",
        product: "NVIDIA A100-SXM4-40GB",
        vbios: "92.00.45.00.03",
        pci_device_id: 0x20b0,
        memory_mib: 40_960,
        compute_capability: (8, 0),
        machine: "DGXA100 920-23687-2530-000",
        fabric: Fabric::NvSwitch { lanes: 12, gb_per_s: 600 },
        pcie_gb_per_s: 64,
        buses: DGX_A100,
        per_switch: 2,
        sockets: 2,
        power: Power {
            idle_watts: 52,
            limit_watts: 400,
            sm_mhz: (210, 1_410),
            memory_mhz: (1_215, 1_215),
            idle_state: 0,
            fan: false,
        },
        mig: mig::A100_40,
        driver: R550,
    },
    Profile {
        name: "a100-80",
        product: "NVIDIA A100-SXM4-80GB",
        vbios: "92.00.45.00.06",
        pci_device_id: 0x20b2,
        memory_mib: 81_920,
        compute_capability: (8, 0),
        machine: "DGXA100 920-23687-2530-000",
        fabric: Fabric::NvSwitch { lanes: 12, gb_per_s: 600 },
        pcie_gb_per_s: 64,
        buses: DGX_A100,
        per_switch: 2,
        sockets: 2,
        power: Power {
            idle_watts: 61,
            limit_watts: 400,
            sm_mhz: (210, 1_410),
            memory_mhz: (1_593, 1_593),
            idle_state: 0,
            fan: false,
        },
        mig: mig::A100_80,
        driver: R550,
    },
    Profile {
        name: "h100",
        product: "NVIDIA H100 80GB HBM3",
        vbios: "96.00.61.00.01",
        pci_device_id: 0x2330,
        memory_mib: 81_559,
        compute_capability: (9, 0),
        machine: "DGXH100",
        fabric: Fabric::NvSwitch { lanes: 18, gb_per_s: 900 },
        pcie_gb_per_s: 128,
        buses: DGX_H100,
        per_switch: 1,
        sockets: 2,
        power: Power {
            idle_watts: 70,
            limit_watts: 700,
            sm_mhz: (345, 1_980),
            memory_mhz: (2_619, 2_619),
            idle_state: 0,
            fan: false,
        },
        mig: mig::H100_80,
        driver: R550,
    },
    Profile {
        name: "h200",
        product: "NVIDIA H200",
        vbios: "96.00.BC.00.02",
        pci_device_id: 0x2335,
        memory_mib: 143_771,
        compute_capability: (9, 0),
        machine: "DGXH200",
        fabric: Fabric::NvSwitch { lanes: 18, gb_per_s: 900 },
        pcie_gb_per_s: 128,
        buses: DGX_H100,
        per_switch: 1,
        sockets: 2,
        power: Power {
            idle_watts: 76,
            limit_watts: 700,
            sm_mhz: (345, 1_980),
            memory_mhz: (3_201, 3_201),
            idle_state: 0,
            fan: false,
        },
        mig: mig::H200,
        driver: R570,
    },
    Profile {
        name: "b200",
        product: "NVIDIA B200",
        vbios: "97.00.88.00.0F",
        pci_device_id: 0x2901,
        memory_mib: 183_359,
        compute_capability: (10, 0),
        machine: "DGXB200",
        fabric: Fabric::NvSwitch { lanes: 18, gb_per_s: 1_800 },
        pcie_gb_per_s: 128,
        buses: DGX_H100,
        per_switch: 1,
        sockets: 2,
        power: Power {
            idle_watts: 140,
            limit_watts: 1_000,
            sm_mhz: (120, 1_965),
            memory_mhz: (3_996, 3_996),
            idle_state: 0,
            fan: false,
        },
        mig: mig::B200,
        driver: R570,
    },
    Profile {
        name: "a30",
        product: "NVIDIA A30",
        vbios: "92.00.66.00.04",
        pci_device_id: 0x20b7,
        memory_mib: 24_576,
        compute_capability: (8, 0),
        machine: "PowerEdge R750xa",
        fabric: Fabric::Bridge { lanes: 4, gb_per_s: 200 },
        pcie_gb_per_s: 64,
        buses: PCIE,
        per_switch: 1,
        sockets: 2,
        power: Power {
            idle_watts: 28,
            limit_watts: 165,
            sm_mhz: (210, 1_440),
            memory_mhz: (1_215, 1_215),
            idle_state: 0,
            fan: false,
        },
        mig: mig::A30,
        driver: R550,
    },
    Profile {
        name: "l4",
        product: "NVIDIA L4",
        vbios: "95.04.29.00.06",
        pci_device_id: 0x27b8,
        memory_mib: 23_034,
        compute_capability: (8, 9),
        machine: "PowerEdge R760xa",
        fabric: Fabric::Pcie,
        pcie_gb_per_s: 64,
        buses: PCIE,
        per_switch: 1,
        sockets: 2,
        power: Power {
            idle_watts: 16,
            limit_watts: 72,
            sm_mhz: (210, 2_040),
            memory_mhz: (405, 6_251),
            idle_state: 8,
            fan: false,
        },
        mig: &[],
        driver: R550,
    },
    Profile {
        name: "t4",
        product: "Tesla T4",
        vbios: "90.04.96.00.01",
        pci_device_id: 0x1eb8,
        memory_mib: 15_360,
        compute_capability: (7, 5),
        machine: "PowerEdge R740",
        fabric: Fabric::Pcie,
        pcie_gb_per_s: 32,
        buses: PCIE,
        per_switch: 1,
        sockets: 2,
        power: Power {
            idle_watts: 9,
            limit_watts: 70,
            sm_mhz: (300, 1_590),
            memory_mhz: (405, 5_001),
            idle_state: 8,
            fan: false,
        },
        mig: &[],
        driver: R550,
    },
    Profile {
        name: "rtx3090",
        product: "NVIDIA GeForce RTX 3090",
        vbios: "94.02.42.00.A9",
        pci_device_id: 0x2204,
        memory_mib: 24_576,
        compute_capability: (8, 6),
        machine: "AS -4124GS-TNR",
        fabric: Fabric::Bridge { lanes: 4, gb_per_s: 112 },
        pcie_gb_per_s: 64,
        buses: PCIE,
        per_switch: 2,
        sockets: 2,
        power: Power {
            idle_watts: 21,
            limit_watts: 350,
            sm_mhz: (210, 2_100),
            memory_mhz: (405, 9_751),
            idle_state: 8,
            fan: true,
        },
        mig: &[],
        driver: R550,
    },
    Profile {
        name: "rtx4090",
        product: "NVIDIA GeForce RTX 4090",
        vbios: "95.02.3C.00.8B",
        pci_device_id: 0x2684,
        memory_mib: 24_564,
        compute_capability: (8, 9),
        machine: "AS -4125GS-TNRT",
        fabric: Fabric::Pcie,
        pcie_gb_per_s: 64,
        buses: PCIE,
        per_switch: 2,
        sockets: 2,
        power: Power {
            idle_watts: 22,
            limit_watts: 450,
            sm_mhz: (210, 3_105),
            memory_mhz: (405, 10_501),
            idle_state: 8,
            fan: true,
        },
        mig: &[],
        driver: R550,
    },
];

impl Profile {
    /// The profile with this name.
    pub fn named(name: &str) -> Result<&'static Self, Error> {
        PROFILES.iter().find(|profile| profile.name == name).ok_or_else(|| Error::UnknownProfile {
            name: name.chars().take(80).collect(),
            known: PROFILES.iter().map(|profile| profile.name).collect::<Vec<_>>().join(", "),
        })
    }

    /// Generation of the PCIe link; every model has sixteen lanes.
    pub fn pcie_generation(&self) -> u32 {
        match self.pcie_gb_per_s {
            0..64 => 3,
            64..128 => 4,
            _ => 5,
        }
    }

    /// The driver of a node with this model.
    pub fn driver(&self) -> DriverInfo {
        DriverInfo { driver_version: self.driver.version.to_owned(), cuda_version: self.driver.cuda }
    }

    /// PCI class code: cards that people buy for their screens are VGA controllers, the others 3D controllers.
    pub fn pci_class(&self) -> u32 {
        if self.product.contains("GeForce") { 0x03_0000 } else { 0x03_0200 }
    }

    /// The NUMA node of a GPU in a machine with `count` of them.
    pub fn numa_node(&self, index: usize, count: usize) -> u32 {
        let sockets = self.sockets as usize;
        u32::try_from(index * sockets / count.max(sockets)).unwrap_or(0)
    }

    /// The link between two different GPUs of a machine with `count` of them.
    pub fn link(&self, a: usize, b: usize, count: usize) -> Link {
        match self.fabric {
            Fabric::NvSwitch { lanes, gb_per_s } => Link { gb_per_s, kind: LinkKind::NvLink(lanes) },
            Fabric::Bridge { lanes, gb_per_s } if a / 2 == b / 2 => {
                Link { gb_per_s, kind: LinkKind::NvLink(lanes) }
            }
            _ => self.pcie_link(a, b, count),
        }
    }

    /// The link between two different GPUs over PCIe alone, as if there were no NVLink.
    pub fn pcie_link(&self, a: usize, b: usize, count: usize) -> Link {
        let per_switch = self.per_switch as usize;
        let kind = if a / per_switch == b / per_switch {
            LinkKind::SingleSwitch
        } else if self.numa_node(a, count) == self.numa_node(b, count) {
            LinkKind::Node
        } else {
            LinkKind::System
        };
        Link { gb_per_s: shared_pcie(kind, self.pcie_gb_per_s), kind }
    }

    /// What card `index` reads when its multiprocessors are busy for `busy` percent of the time; `in_use` while a process
    /// holds a context.
    pub fn readings(&self, index: u32, busy: u32, in_use: bool) -> Readings {
        let (power, busy) = (self.power, busy.min(100));
        // A card with a context leaves its resting clocks even when no kernel runs.
        let clock = |(rest, most): (u32, u32)| if in_use { most } else { rest };
        Readings {
            temperature_celsius: 30 + busy * 2 / 5 + index % 4,
            power_milliwatts: power.idle_watts * 1_000 + (power.limit_watts - power.idle_watts) * 9 * busy,
            sm_clock_mhz: clock(power.sm_mhz),
            memory_clock_mhz: clock(power.memory_mhz),
            fan_percent: power.fan.then(|| if busy == 0 { 30 } else { 30 + busy / 2 }),
            performance_state: match (in_use, power.idle_state) {
                (false, idle) => idle,
                (true, 0) => 0,
                (true, _) => 2,
            },
        }
    }

    /// The PCI address of a GPU.
    pub fn pci_bus_id(&self, index: usize) -> String {
        match self.buses.get(index) {
            Some(bus) => format!("00000000:{bus:02X}:00.0"),
            // Machines with more GPUs than the usual board have a second PCI segment.
            None => format!("00000001:{:02X}:00.0", 0x10 + (index - self.buses.len()) * 8),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_page_on_simulation_lists_every_model() {
        let page = include_str!("../../../docs/simulation.md");
        for profile in PROFILES {
            assert!(page.contains(&format!("`{}`", profile.name)), "{} is missing", profile.name);
        }
    }

    #[test]
    fn names_are_unique_and_an_unknown_one_lists_them() {
        let names: BTreeSet<_> = PROFILES.iter().map(|profile| profile.name).collect();
        assert_eq!(names.len(), PROFILES.len());
        assert_eq!(
            Profile::named("v100").unwrap_err().to_string(),
            "GPU model \"v100\" is not known: use one of a100-40, a100-80, h100, h200, b200, a30, l4, t4, \
             rtx3090, rtx4090"
        );
    }

    #[test]
    fn every_row_is_possible_hardware() {
        for profile in PROFILES {
            let power = profile.power;
            assert!(power.idle_watts < power.limit_watts, "{}", profile.name);
            assert!(power.sm_mhz.0 < power.sm_mhz.1 && power.memory_mhz.0 <= power.memory_mhz.1);
            assert!(profile.per_switch > 0 && profile.sockets > 0);
            let addresses: BTreeSet<_> = (0..16).map(|index| profile.pci_bus_id(index)).collect();
            assert_eq!(addresses.len(), 16);
        }
    }

    #[test]
    fn mig_tables_cannot_hold_more_than_the_board() {
        for profile in PROFILES {
            let slots = profile.mig.iter().map(|row| row.compute_slices).max().unwrap_or(0);
            let memory_slices =
                profile.mig.iter().flat_map(|row| row.placements).map(|p| p.start + p.size).max();
            for row in profile.mig {
                let count = u64::from(row.max_instances);
                assert!(usize::from(row.max_instances) <= row.placements.len(), "{}", row.name);
                assert!(row.max_instances * row.compute_slices <= slots, "{}", row.name);
                assert!(count * row.memory_mib <= profile.memory_mib, "{} {}", profile.name, row.name);
                assert!(row.placements.iter().all(|p| Some(p.start + p.size) <= memory_slices));
            }
        }
    }

    #[test]
    fn an_a100_40_holds_seven_small_instances_not_eight() {
        let smallest = &Profile::named("a100-40").unwrap().mig[0];
        assert_eq!((smallest.name, smallest.max_instances, smallest.memory_mib), ("1g.5gb", 7, 4_864));
    }

    #[test]
    fn links_fall_off_with_distance() {
        let cards = Profile::named("rtx3090").unwrap();
        let kinds: Vec<_> = (1..8).map(|other| cards.link(0, other, 8).kind).collect();
        assert_eq!(
            kinds,
            [
                LinkKind::NvLink(4),
                LinkKind::Node,
                LinkKind::Node,
                LinkKind::System,
                LinkKind::System,
                LinkKind::System,
                LinkKind::System
            ]
        );
        assert!(cards.link(0, 1, 8) > cards.link(0, 2, 8) && cards.link(0, 2, 8) > cards.link(0, 4, 8));
        assert_eq!(Profile::named("h100").unwrap().link(0, 7, 8).gb_per_s, 900);
    }
}
