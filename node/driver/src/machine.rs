//! CDI specifications from what was found: a pure function.

use std::collections::BTreeSet;
use std::str::FromStr;

use gantry_cdi::{ContainerEdits, Device, DeviceNode, Mount, Spec};
use gantry_model::{FaultKind, Gpu, Health, Partition};

use crate::discover::Place;
use crate::{Capabilities, DeviceFiles, Driver, Error, ImageLayout, MigMinors};

/// The vendor that people and other tools name.
pub const VENDOR: &str = "nvidia.com";
/// The vendor that NVIDIA's device plugin names.
pub const PLUGIN_VENDOR: &str = "k8s.device-plugin.nvidia.com";
/// The vendor of what manages GPUs rather than uses them.
pub const MANAGEMENT_VENDOR: &str = "management.nvidia.com";
/// The vendor of specifications that a runtime makes for one container.
pub const RUNTIME_VENDOR: &str = "runtime.nvidia.com";

/// Mount options of everything that is only read.
const READ_ONLY: [&str; 5] = ["ro", "nosuid", "nodev", "rbind", "rprivate"];
/// Mount options of what is talked through.
const SOCKET: [&str; 5] = ["nosuid", "nodev", "rbind", "rprivate", "noexec"];

/// The devices of a class are described by one specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// GPUs and MIG devices.
    Gpu,
    /// Everything at once, for what manages GPUs.
    Management,
    /// GPUDirect Storage.
    Gds,
    /// Mellanox' RDMA devices.
    Mofed,
    /// GDRCopy.
    Gdrcopy,
    /// Channels of memory that nodes share.
    ImexChannel,
    /// NVSwitches.
    Nvswitch,
}

/// Each class with its word in a CDI kind, and what it consists of.
const CLASSES: [(Class, &str, &str); 7] = [
    (Class::Gpu, "gpu", "no GPU that answers, or only GPUs in MIG mode without MIG devices"),
    (Class::Management, "gpu", "no device file /dev/nvidia*"),
    (Class::Gds, "gds", "no device file /dev/nvidia-fs*"),
    (Class::Mofed, "mofed", "no device file /dev/infiniband/uverbs* or rdma_cm"),
    (Class::Gdrcopy, "gdrcopy", "no device file /dev/gdrdrv"),
    (Class::ImexChannel, "imex-channel", "no device file /dev/nvidia-caps-imex-channels/channel*"),
    (Class::Nvswitch, "nvswitch", "no device file /dev/nvidia-nvswitch*"),
];

impl Class {
    /// Every class.
    pub fn all() -> impl Iterator<Item = Self> {
        CLASSES.iter().map(|(class, ..)| *class)
    }

    /// Its word in a CDI kind, such as `gpu`.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    fn row(self) -> &'static (Self, &'static str, &'static str) {
        CLASSES.iter().find(|(class, ..)| *class == self).expect("invariant: every class has a row")
    }
}

/// How devices are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameStrategy {
    /// `0`, and `0:1` for a MIG device.
    Index,
    /// NVML's UUID.
    Uuid,
    /// `gpu0`, and `mig0:1` for a MIG device.
    TypeIndex,
}

impl NameStrategy {
    /// The strategies of NVIDIA's tool, unless it is told otherwise.
    pub const USUAL: [Self; 2] = [Self::Index, Self::Uuid];

    fn gpu(self, gpu: &Gpu) -> String {
        match self {
            Self::Index => gpu.index.to_string(),
            Self::Uuid => gpu.id.to_string(),
            Self::TypeIndex => format!("gpu{}", gpu.index),
        }
    }

    fn partition(self, gpu: &Gpu, partition: &Partition) -> String {
        match self {
            Self::Index => format!("{}:{}", gpu.index, partition.index),
            Self::Uuid => partition.id.to_string(),
            Self::TypeIndex => format!("mig{}:{}", gpu.index, partition.index),
        }
    }
}

impl FromStr for NameStrategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "index" => Ok(Self::Index),
            "uuid" => Ok(Self::Uuid),
            "type-index" => Ok(Self::TypeIndex),
            _ => Err("use index, uuid or type-index".to_owned()),
        }
    }
}

/// What is described, and how.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// How devices are named.
    pub names: &'a [NameStrategy],
    /// Which parts of the driver come along.
    pub capabilities: Capabilities,
    /// The image that libraries are laid out for; `None` = the machine's own layout.
    pub image: Option<&'a ImageLayout>,
}

impl Wish<'_> {
    /// What a file is written for that has to suit every container: all but 32-bit libraries, which few images have a place for.
    pub const fn usual() -> Self {
        Self {
            names: &NameStrategy::USUAL,
            capabilities: Capabilities::ALL.without(Capabilities::COMPAT32),
            image: None,
        }
    }
}

/// A machine with a driver: everything that its specifications follow from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The driver.
    pub driver: Driver,
    /// The device files.
    pub devices: DeviceFiles,
    /// The device numbers of MIG instances.
    pub minors: MigMinors,
    /// The GPUs.
    pub gpus: Vec<Gpu>,
}

/// A device under construction: each node and group once, in the order in which they come.
#[derive(Default)]
struct Nodes {
    edits: ContainerEdits,
}

impl Nodes {
    fn add(&mut self, (node, group): (DeviceNode, Option<u32>)) {
        if !self.edits.device_nodes.iter().any(|known| known.path == node.path) {
            self.edits.device_nodes.push(node);
        }
        if let Some(group) = group.filter(|group| !self.edits.additional_gids.contains(group)) {
            self.edits.additional_gids.push(group);
        }
    }

    fn append(&mut self, other: &Self) {
        for node in &other.edits.device_nodes {
            self.add((node.clone(), None));
        }
        for group in &other.edits.additional_gids {
            if !self.edits.additional_gids.contains(group) {
                self.edits.additional_gids.push(*group);
            }
        }
        for mount in &other.edits.mounts {
            if !self.edits.mounts.contains(mount) {
                self.edits.mounts.push(mount.clone());
            }
        }
    }

    fn device(self, name: String) -> Device {
        Device { name, annotations: std::collections::BTreeMap::new(), container_edits: self.edits }
    }
}

/// A GPU or a MIG device.
pub(crate) struct Unit<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) partition: Option<&'a Partition>,
}

impl Unit<'_> {
    pub(crate) fn name(&self, strategy: NameStrategy) -> String {
        match self.partition {
            Some(partition) => strategy.partition(self.gpu, partition),
            None => strategy.gpu(self.gpu),
        }
    }
}

impl Machine {
    /// The specification of a class.
    ///
    /// # Errors
    /// [`Error::NoDevices`] where the machine has none: an empty specification would be an invalid one.
    pub fn spec(&self, class: Class, kind: &str, wish: &Wish<'_>) -> Result<Spec, Error> {
        let devices = match class {
            Class::Gpu => self.gpu_devices(wish),
            Class::Management => self.management(),
            Class::ImexChannel => self.channels(),
            _ => self.gated(class),
        };
        if devices.is_empty() {
            return Err(Error::NoDevices { kind: kind.to_owned(), missing: class.row().2 });
        }
        let common = match class {
            Class::Gpu => self.common(wish),
            Class::Management => {
                let mut edits = self.common(wish);
                // Its one device has every file.
                edits.device_nodes.clear();
                edits.additional_gids.clear();
                edits
            }
            _ => ContainerEdits { env: vec![VOID.to_owned()], ..ContainerEdits::default() },
        };
        Ok(Spec::new(kind, devices, common)?)
    }

    /// What is there and cannot be described, one sentence each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.driver.problems.clone();
        if self.devices.file("/dev/nvidia-uvm").is_none() {
            problems.push(
                "no device file /dev/nvidia-uvm, without which CUDA does not start: load the kernel module nvidia-uvm, for \
                 instance with nvidia-modprobe -u -c 0"
                    .to_owned(),
            );
        }
        for unit in self
            .units()
            .filter(|unit| unit.partition.is_some() && self.unit(unit, Capabilities::none()).is_none())
        {
            problems.push(format!(
                "MIG device {} has no device files: /proc/driver/nvidia-caps/mig-minors does not list its instances, or \
                 the major number of nvidia-caps is unknown",
                unit.name(NameStrategy::Index)
            ));
        }
        problems
    }

    /// Every GPU that work can run on and every MIG device, in index order. A card in MIG mode runs nothing as a whole.
    pub(crate) fn units(&self) -> impl Iterator<Item = Unit<'_>> {
        let answers =
            |health: &Health| !matches!(health, Health::Unhealthy(fault) if fault.kind == FaultKind::Lost);
        self.gpus.iter().filter(move |gpu| answers(&gpu.health)).flat_map(|gpu| {
            let whole = gpu.partitions.is_none().then_some(Unit { gpu, partition: None });
            let parts = gpu.partitions.iter().flatten().map(move |part| Unit { gpu, partition: Some(part) });
            whole.into_iter().chain(parts)
        })
    }

    fn gpu_devices(&self, wish: &Wish<'_>) -> Vec<Device> {
        let units: Vec<(Unit<'_>, Nodes)> = self
            .units()
            .filter_map(|unit| self.unit(&unit, wish.capabilities).map(|nodes| (unit, nodes)))
            .collect();
        let mut all = Nodes::default();
        let mut devices = Vec::new();
        let mut taken = BTreeSet::new();
        for strategy in wish.names {
            for (unit, nodes) in &units {
                let name = unit.name(*strategy);
                if taken.insert(name.clone()) {
                    devices.push(Device {
                        name,
                        annotations: std::collections::BTreeMap::new(),
                        container_edits: nodes.edits.clone(),
                    });
                }
            }
        }
        units.iter().for_each(|(_, nodes)| all.append(nodes));
        if !devices.is_empty() && taken.insert("all".to_owned()) {
            devices.push(all.device("all".to_owned()));
        }
        devices
    }

    /// The device files of one unit; `None` for a MIG device whose files nothing tells.
    fn unit(&self, unit: &Unit<'_>, capabilities: Capabilities) -> Option<Nodes> {
        let mut nodes = Nodes::default();
        nodes.add(self.node(&format!("/dev/nvidia{}", unit.gpu.minor)));
        if let Some(part) = unit.partition {
            let gpu = unit.gpu.minor;
            let minors = [
                self.minors.gpu_instance(gpu, part.gpu_instance)?,
                self.minors.compute_instance(gpu, part.gpu_instance, part.compute_instance)?,
            ];
            for minor in minors {
                let path = format!("/dev/nvidia-caps/nvidia-cap{minor}");
                nodes.add(self.devices.node(&path, &path)?);
            }
        }
        let draws = unit.partition.is_none_or(|part| part.profile.contains("+gfx"));
        if draws && capabilities.meets(Capabilities::GRAPHICS | Capabilities::DISPLAY) {
            self.draw(unit.gpu, &mut nodes);
        }
        Some(nodes)
    }

    /// The device files of these together.
    pub(crate) fn nodes(&self, units: &[Unit<'_>], capabilities: Capabilities) -> ContainerEdits {
        let mut all = Nodes::default();
        for nodes in units.iter().filter_map(|unit| self.unit(unit, capabilities)) {
            all.append(&nodes);
        }
        all.edits
    }

    /// The files through which a card draws, also under the names that tell its place on the bus: those are links on the machine.
    fn draw(&self, gpu: &Gpu, nodes: &mut Nodes) {
        let Ok(address) = gpu.pci_bus_id.parse() else { return };
        for path in self.devices.dri(address) {
            let kind = if path.starts_with("/dev/dri/card") { "card" } else { "render" };
            for name in [path.clone(), format!("/dev/dri/by-path/pci-{address}-{kind}")] {
                if let Some(node) = self.devices.node(path, &name) {
                    nodes.add(node);
                }
            }
        }
    }

    /// A file without which the device is none: where nothing tells its numbers, the runtime looks for it.
    fn node(&self, path: &str) -> (DeviceNode, Option<u32>) {
        let bare = || (DeviceNode { path: path.to_owned(), ..DeviceNode::default() }, None);
        self.devices.node(path, path).unwrap_or_else(bare)
    }

    /// What every container with a GPU has.
    pub(crate) fn common(&self, wish: &Wish<'_>) -> ContainerEdits {
        let has = |capabilities| wish.capabilities.meets(capabilities);
        let mut nodes = Nodes::default();
        nodes.add(self.node("/dev/nvidiactl"));
        let computes = has(Capabilities::COMPUTE | Capabilities::VIDEO | Capabilities::NGX);
        let draws = has(Capabilities::GRAPHICS | Capabilities::DISPLAY);
        for (path, wanted) in [
            ("/dev/nvidia-uvm", computes),
            ("/dev/nvidia-uvm-tools", computes),
            ("/dev/nvidia-modeset", draws),
        ] {
            if let Some(node) = self.devices.node(path, path).filter(|_| wanted) {
                nodes.add(node);
            }
        }
        let folder = wish.image.map_or(&self.driver.library_folder, |image| &image.library_folder);
        let mut edits = nodes.edits;
        edits.env = vec![format!("NVIDIA_CTK_LIBCUDA_DIR={folder}"), VOID.to_owned()];
        edits.mounts = self.mounts(wish);
        edits
    }

    fn mounts(&self, wish: &Wish<'_>) -> Vec<Mount> {
        let folders = match wish.image {
            Some(image) => (image.library_folder.as_str(), image.library_folder_32.as_deref()),
            None => (self.driver.library_folder.as_str(), Some(self.driver.library_folder_32.as_str())),
        };
        let wide_only = !wish.capabilities.contains(Capabilities::COMPAT32);
        let mut mounts: Vec<Mount> = Vec::new();
        let mut add = |host: &str, container_path: String, options: [&str; 5]| {
            mounts.push(Mount {
                host_path: host.to_owned(),
                container_path,
                options: options.map(str::to_owned).to_vec(),
                kind: None,
            });
        };
        for file in self.driver.files.iter().filter(|file| file.capabilities.meets(wish.capabilities)) {
            match &file.place {
                Place::File(path) => add(&file.host_path, path.clone(), READ_ONLY),
                Place::Socket(path) => add(&file.host_path, path.clone(), SOCKET),
                Place::Library { is_64_bit: false, .. } if wide_only => {}
                Place::Library { below, names, is_64_bit } => {
                    let folder = if *is_64_bit { Some(folders.0) } else { folders.1 };
                    let Some(folder) = folder else { continue };
                    let between = if below.is_empty() { String::new() } else { format!("{below}/") };
                    for name in names {
                        add(&file.host_path, format!("{folder}/{between}{name}"), READ_ONLY);
                    }
                }
            }
        }
        mounts.sort_by(|a, b| a.container_path.cmp(&b.container_path));
        // Two files of one name: the first is the one that the machine's loader finds.
        mounts.dedup_by(|later, first| later.container_path == first.container_path);
        mounts
    }

    fn management(&self) -> Vec<Device> {
        let mut nodes = Nodes::default();
        for path in self.devices.paths("/dev/nvidia") {
            if let Some(node) = self.devices.node(path, path) {
                nodes.add(node);
            }
        }
        if nodes.edits.device_nodes.is_empty() { Vec::new() } else { vec![nodes.device("all".to_owned())] }
    }

    fn gated(&self, class: Class) -> Vec<Device> {
        let begins: &[&str] = match class {
            Class::Gds => &["/dev/nvidia-fs"],
            Class::Mofed => &["/dev/infiniband/uverbs", "/dev/infiniband/rdma_cm"],
            Class::Gdrcopy => &["/dev/gdrdrv"],
            Class::Nvswitch => &["/dev/nvidia-nvswitch"],
            Class::Gpu | Class::Management | Class::ImexChannel => &[],
        };
        let mut nodes = Nodes::default();
        for path in begins.iter().flat_map(|begin| self.devices.paths(begin)) {
            if let Some(node) = self.devices.node(path, path) {
                nodes.add(node);
            }
        }
        if nodes.edits.device_nodes.is_empty() {
            return Vec::new();
        }
        if class == Class::Gds {
            nodes.edits.mounts = self.driver.storage.iter().map(read_only).collect();
        }
        vec![nodes.device("all".to_owned())]
    }

    fn channels(&self) -> Vec<Device> {
        let begin = "/dev/nvidia-caps-imex-channels/channel";
        let number =
            |path: &str| path.strip_prefix(begin)?.parse::<u32>().ok().filter(|number| *number < 1 << 20);
        let mut channels: Vec<(u32, &str)> =
            self.devices.paths(begin).filter_map(|path| Some((number(path)?, path))).collect();
        channels.sort_unstable();
        let mut all = Nodes::default();
        let mut devices = Vec::new();
        for (number, path) in channels {
            let mut nodes = Nodes::default();
            if let Some(node) = self.devices.node(path, path) {
                nodes.add(node);
                all.append(&nodes);
                devices.push(nodes.device(number.to_string()));
            }
        }
        if !devices.is_empty() {
            devices.push(all.device("all".to_owned()));
        }
        devices
    }
}

/// Stops NVIDIA's runtime hook, where one is installed, from injecting a second time.
const VOID: &str = "NVIDIA_VISIBLE_DEVICES=void";

fn read_only((host_path, container_path): &(String, String)) -> Mount {
    Mount {
        host_path: host_path.clone(),
        container_path: container_path.clone(),
        options: READ_ONLY.map(str::to_owned).to_vec(),
        kind: None,
    }
}
