use gantry_gpu::{FabricInfo, FabricState, GpuBackend as _, Profile, SimGpus};
use gantry_model::{Health, PartitionAttributes};

use super::*;

/// A node as its backend describes it, to be changed before it is labelled.
struct Node {
    gpus: Vec<Gpu>,
    topology: Topology,
    driver: DriverInfo,
    machine: Option<String>,
    details: BTreeMap<GpuId, GpuDetails>,
    vgpu: Option<Vgpu>,
    offer: Offer,
}

impl Node {
    fn new(profile: &str, count: usize) -> Self {
        let sim = SimGpus::new(Profile::named(profile).unwrap(), count, "n", 1).unwrap();
        let inventory = sim.inventory().unwrap();
        Self {
            gpus: inventory.gpus,
            topology: inventory.topology,
            driver: sim.driver().unwrap(),
            machine: sim.machine(),
            details: sim.details().unwrap(),
            vgpu: sim.vgpu(),
            offer: Offer::default(),
        }
    }

    /// Puts a GPU into MIG mode with these partitions.
    fn split(&mut self, gpu: usize, profiles: &[&str]) {
        let partition = |(index, profile): (usize, &&str)| {
            let index = u32::try_from(index).unwrap();
            let (slices, decoders) =
                (u32::from(profile.as_bytes()[0] - b'0'), u32::from(!profile.ends_with("1g.5gb")));
            Partition {
                id: format!("MIG-{gpu}-{index}").parse().unwrap(),
                index,
                profile: (*profile).into(),
                gpu_instance: index + 1,
                compute_instance: 0,
                start: index,
                size: slices,
                memory_mib: if slices == 1 { 4_864 } else { 9_856 },
                attributes: PartitionAttributes {
                    multiprocessors: 14 * slices,
                    gpu_instance_slices: slices,
                    compute_instance_slices: slices,
                    copy_engines: slices,
                    decoders,
                    ..PartitionAttributes::default()
                },
                health: Health::Healthy,
            }
        };
        self.gpus[gpu].partitions = Some(profiles.iter().enumerate().map(partition).collect());
    }

    fn share(&mut self, kind: SharingKind, resource: &str, count: u32, renamed: bool) {
        self.offer.sharing = Some(kind);
        self.offer.shared.insert(resource.to_owned(), Replicas { count, renamed });
    }

    fn labels(&self) -> BTreeMap<String, String> {
        feature_labels(&LabelInput {
            gpus: &self.gpus,
            topology: &self.topology,
            driver: &self.driver,
            machine: self.machine.as_deref(),
            details: &self.details,
            vgpu: self.vgpu.as_ref(),
            timestamp: Some(1_724_195_852),
            offer: &self.offer,
        })
    }

    fn label(&self, key: &str) -> String {
        self.labels().remove(&format!("nvidia.com/{key}")).unwrap_or_else(|| "absent".to_owned())
    }

    fn text(&self) -> String {
        lines(&self.labels())
    }
}

macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!("golden/", $name, ".txt"))
    };
}

#[test]
fn nodes_of_one_model_have_the_labels_of_nvidias_program() {
    for (model, golden) in [
        ("a100-40", golden!("a100-40")),
        ("a100-80", golden!("a100-80")),
        ("h100", golden!("h100")),
        ("h200", golden!("h200")),
        ("b200", golden!("b200")),
        ("a30", golden!("a30")),
        ("l4", golden!("l4")),
        ("t4", golden!("t4")),
        ("rtx3090", golden!("rtx3090")),
        ("rtx4090", golden!("rtx4090")),
    ] {
        assert_eq!(Node::new(model, 8).text(), golden, "{model}");
    }
}

#[test]
fn partitions_are_labelled_by_strategy() {
    let mut node = Node::new("a100-40", 8);
    (0..8).for_each(|gpu| node.split(gpu, &["1g.5gb"; 7]));
    node.offer.mig = MigStrategy::Single;
    assert_eq!(node.text(), golden!("mig-single"));
    node.share(SharingKind::TimeSlicing, "nvidia.com/gpu", 2, false);
    assert_eq!(node.text(), golden!("mig-single-shared"));
    node.offer = Offer { mig: MigStrategy::Mixed, ..Offer::default() };
    node.share(SharingKind::TimeSlicing, "nvidia.com/mig-1g.5gb", 3, false);
    assert_eq!(node.text(), golden!("mig-mixed-shared"));
    let mut node = Node::new("a100-40", 8);
    node.offer.mig = MigStrategy::Mixed;
    node.split(0, &["2g.10gb", "1g.5gb"]);
    node.split(5, &["1g.5gb+me", "1g.5gb"]);
    node.split(6, &[]);
    assert_eq!(node.text(), golden!("mig-mixed"));
}

#[test]
fn what_breaks_the_rules_of_single_is_labelled_invalid() {
    type Change = fn(&mut Node);
    let breaks: [(&str, Change); 3] = [
        ("a GPU that is not in MIG mode", |node| node.gpus[3].partitions = None),
        ("a GPU without partitions", |node| node.split(3, &[])),
        ("two profiles", |node| node.split(3, &["2g.10gb"])),
    ];
    for (why, broken) in breaks {
        let mut node = Node::new("a100-40", 8);
        (0..8).for_each(|gpu| node.split(gpu, &["1g.5gb"; 7]));
        node.offer.mig = MigStrategy::Single;
        broken(&mut node);
        assert_eq!(node.text(), golden!("mig-single-invalid"), "{why}");
    }
    let mut node = Node::new("a100-40", 8);
    node.offer.mig = MigStrategy::Single;
    let without: BTreeMap<_, _> =
        node.labels().into_iter().filter(|(key, _)| key != "nvidia.com/mig.strategy").collect();
    assert_eq!(without, Node::new("a100-40", 8).labels(), "no GPU in MIG mode: as without the strategy");
}

#[test]
fn shares_are_labelled_by_their_name() {
    let mut node = Node::new("t4", 8);
    node.share(SharingKind::TimeSlicing, "nvidia.com/gpu", 4, false);
    assert_eq!(node.text(), golden!("time-slicing"));
    node.share(SharingKind::TimeSlicing, "nvidia.com/gpu", 4, true);
    assert_eq!(node.text(), golden!("time-slicing-renamed"));
    node.share(SharingKind::Mps, "nvidia.com/gpu", 10, false);
    assert_eq!(node.text(), golden!("mps"));
    let mut node = Node::new("a100-40", 1);
    node.share(SharingKind::Mps, "nvidia.com/gpu", 10, false);
    node.split(0, &["1g.5gb"]);
    assert_eq!((node.label("mps.capable"), node.label("gpu.replicas")), ("false".to_owned(), "0".to_owned()));
}

#[test]
fn on_a_node_of_several_models_the_lowest_index_speaks_and_every_model_has_labels_of_its_own() {
    let mut node = Node::new("t4", 5);
    let l4 = Node::new("l4", 1).gpus.remove(0);
    for index in [1, 3, 4] {
        node.gpus[index].product = l4.product.clone();
        node.gpus[index].memory_mib = l4.memory_mib;
    }
    assert_eq!(node.text(), golden!("mixed-models"));
    node.gpus.swap(0, 1);
    assert_eq!(
        (node.label("gpu.product"), node.label("gpu.count")),
        ("NVIDIA-L4".to_owned(), "3".to_owned())
    );
    let mut node = Node::new("a100-40", 2);
    node.split(0, &["1g.5gb"]);
    assert_eq!(node.label("gpu.replicas"), "1", "a GPU that is offered whole speaks before one in MIG mode");
}

#[test]
fn a_card_that_was_never_seen_says_nothing_and_without_gpus_there_is_no_label() {
    let mut node = Node::new("l4", 3);
    node.gpus[0].memory_mib = 0;
    node.gpus[0].product = "unknown".into();
    assert_eq!(
        (node.label("gpu.product"), node.label("gpu.count")),
        ("NVIDIA-L4".to_owned(), "2".to_owned())
    );
    node.gpus.clear();
    assert!(node.labels().is_empty());
}

#[test]
fn the_mode_is_that_of_the_pci_class_and_unknown_where_classes_differ() {
    let mut node = Node::new("l4", 2);
    assert_eq!(node.label("gpu.mode"), "compute");
    let id = node.gpus[1].id.clone();
    for class in [Some(0x03_0000), Some(0x03_8000), None] {
        node.details.get_mut(&id).unwrap().pci_class = class;
        assert_eq!(node.label("gpu.mode"), "unknown", "{class:?}");
    }
    node.details.clear();
    assert_eq!(node.label("gpu.mode"), "unknown");
}

#[test]
fn the_clique_is_told_where_all_cards_are_in_one() {
    let mut node = Node::new("b200", 2);
    assert_eq!(node.label("gpu.clique"), "absent", "a fabric that ends at the machine");
    let fabric = |clique, status| {
        let mut cluster = [0x11; 16];
        cluster[15] = 0xfe;
        Some(FabricInfo { state: FabricState::Completed { status }, cluster, clique })
    };
    let ids: Vec<_> = node.gpus.iter().map(|gpu| gpu.id.clone()).collect();
    let mut set = |first, second| {
        node.details.get_mut(&ids[0]).unwrap().fabric = first;
        node.details.get_mut(&ids[1]).unwrap().fabric = second;
        node.label("gpu.clique")
    };
    let name = "11111111-1111-1111-1111-1111111111fe.7";
    assert_eq!(set(fabric(7, 0), fabric(7, 0)), name);
    assert_eq!(set(fabric(7, 0), None), name);
    assert_eq!(set(fabric(7, 0), fabric(7, 3)), name, "one that failed is not attached");
    assert_eq!(set(fabric(7, 0), fabric(8, 0)), "absent");
}

#[test]
fn the_topology_follows_the_links_and_what_the_driver_says_of_them() {
    let mut node = Node::new("h100", 4);
    assert_eq!(node.labels()[TOPOLOGY_LABEL], "nvlink4");
    for (number, details) in node.details.values_mut().enumerate() {
        details.nvlink_generation = Some(if number == 2 { 3 } else { 4 });
    }
    assert_eq!(node.labels()[TOPOLOGY_LABEL], "nvlink3", "no pair is faster than its slower end");
    node.topology = Node::new("t4", 4).topology;
    assert_eq!(node.labels()[TOPOLOGY_LABEL], "pcie");
    assert_eq!(Node::new("h100", 1).labels()[TOPOLOGY_LABEL], "pcie");
}

#[test]
fn a_guest_tells_its_hypervisors_driver() {
    let mut node = Node::new("t4", 1);
    node.vgpu = Some(Vgpu { host_driver_version: Some("460.16".into()), host_driver_branch: None });
    assert_eq!(node.label("vgpu.present"), "true");
    assert_eq!(node.label("vgpu.host-driver-version"), "460.16");
    assert_eq!(node.label("vgpu.host-driver-branch"), "absent");
}

#[test]
fn architectures_have_the_names_that_nvidia_gives_them() {
    for (capability, name) in [
        ((1, 3), "tesla"),
        ((2, 0), "fermi"),
        ((3, 7), "kepler"),
        ((5, 2), "maxwell"),
        ((6, 1), "pascal"),
        ((7, 2), "volta"),
        ((7, 5), "turing"),
        ((8, 7), "ampere"),
        ((8, 9), "ada-lovelace"),
        ((9, 0), "hopper"),
        ((10, 3), "blackwell"),
        ((12, 0), "blackwell"),
        ((13, 0), "rubin"),
        ((4, 0), "undefined"),
        ((11, 0), "undefined"),
        ((14, 0), "undefined"),
    ] {
        assert_eq!(family(capability.0, capability.1), name, "{capability:?}");
    }
}

#[test]
fn values_and_keys_are_valid_whatever_the_firmware_says() {
    assert_eq!(sanitise("  (Google) Compute/Engine\n"), "Google-ComputeEngine");
    assert_eq!(sanitise("---"), "");
    let mut node = Node::new("a100-40", 1);
    node.gpus[0].product = format!("{} 80GB", "é Very Long Name ".repeat(9)).into();
    node.machine = Some(format!("_{}", "x".repeat(200)));
    node.driver.driver_version = "550 (custom)\n".into();
    node.split(0, &["1g.5gb"]);
    node.offer.mig = MigStrategy::Single;
    node.share(SharingKind::TimeSlicing, "nvidia.com/gpu", 2, false);
    assert!(node.label("gpu.product").ends_with("-MIG-1g.5gb-SHARED"), "{}", node.label("gpu.product"));
    for (key, value) in node.labels() {
        let name = key.rsplit('/').next().unwrap();
        assert!(name.len() <= MAX_LENGTH && value.len() <= MAX_LENGTH, "{key}={value}");
        for text in [name, &value] {
            let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
            assert!(edge(text.chars().next()) && edge(text.chars().last()), "{key}={value}");
        }
    }
}
