//! A node's cards at this moment: configuration and state together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use gantry_gpu::{Profile, Readings, sim_partition_id};

use crate::config::Device;
use crate::{CardState, Config, Error, Process, State, Store, Visible, install};

/// Where a program looks unless told otherwise.
const CONFIG: &str = "etc/gantry/fake-nvml.yaml";
const STATE: &str = "/run/gantry/fake-nvml/state.json";

/// Where configuration and state are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The configuration; `None` if the state file carries it.
    pub config: Option<PathBuf>,
    /// The state file that the driver root has; `None` without one.
    pub carrier: Option<PathBuf>,
}

impl Paths {
    /// Looks for the configuration of the library at `library`: `MOCK_NVML_CONFIG`, `etc/gantry/fake-nvml.yaml` in the
    /// library's driver root, the same in `/`, the file that [`install`](crate::install()) puts beside the library.
    ///
    /// The state is in the file that `FAKE_NVML_STATE` names, else in `state` of the configuration, else beside the library,
    /// else in `/run/gantry/fake-nvml/state.json`.
    pub fn find(library: Option<&Path>) -> Result<Self, Error> {
        let carrier = library.and_then(Path::parent).and_then(install::carrier);
        if let Some(path) = env::var_os("MOCK_NVML_CONFIG").filter(|path| !path.is_empty()) {
            return Ok(Self { config: Some(PathBuf::from(path)), carrier });
        }
        let mut tried = vec!["MOCK_NVML_CONFIG".to_owned()];
        let roots = library.and_then(root).into_iter().chain([PathBuf::from("/")]);
        for path in roots.map(|root| root.join(CONFIG)) {
            if path.exists() {
                return Ok(Self { config: Some(path), carrier });
            }
            tried.push(path.display().to_string());
        }
        if carrier.is_some() {
            return Ok(Self { config: None, carrier });
        }
        tried.dedup();
        Err(Error::NoConfig { tried: tried.join(", ") })
    }

    /// Those of a driver root that was laid out with [`install`](crate::install()).
    pub fn of_root(root: &Path) -> Result<Self, Error> {
        Self::find(Some(&install::library(root)))
    }
}

/// The driver root of a library in `<root>/usr/lib…` or `<root>/lib…`.
fn root(library: &Path) -> Option<PathBuf> {
    let folder = library
        .ancestors()
        .find(|folder| folder.file_name().is_some_and(|name| name == "lib" || name == "lib64"))?;
    let above = folder.parent()?;
    let root = if above.ends_with("usr") { above.parent()? } else { above };
    Some(root.to_path_buf())
}

/// What a node was made from; the same sources make the same node.
#[derive(Debug, PartialEq)]
struct Sources {
    paths: Paths,
    config: Vec<u8>,
    state: Vec<u8>,
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// The configuration.
    pub config: Config,
    /// What changes.
    pub state: State,
    /// The state's file.
    pub store: Store,
    /// Every card, whether visible or not, by index.
    pub cards: Vec<Card>,
    sources: Sources,
}

/// A card at this moment.
#[derive(Debug)]
pub struct Card {
    /// Its index among all cards of the node.
    pub index: u32,
    /// The model.
    pub profile: &'static Profile,
    /// What differs from the model.
    pub device: Device,
    /// What happened to it.
    pub state: CardState,
}

impl Node {
    /// The node as it is now; `before` is returned again if nothing has changed.
    pub fn load(paths: &Paths, before: Option<&Arc<Self>>) -> Result<Arc<Self>, Error> {
        let fixed = env::var_os("FAKE_NVML_STATE").filter(|path| !path.is_empty()).map(PathBuf::from);
        // Configuration and state come in one file, unless there is a file for the configuration alone.
        let carrier = paths.carrier.as_ref().filter(|_| paths.config.is_none()).map(Store::new);
        let carried = carrier.as_ref().map(Store::text).transpose()?;
        let unchanged = |node: &&Arc<Self>| {
            let same = carrier.as_ref() == Some(&node.store) && carried.as_ref() == Some(&node.sources.state);
            same && fixed.is_none() && node.sources.paths == *paths
        };
        if let Some(node) = before.filter(unchanged) {
            return Ok(Arc::clone(node));
        }
        let text = match (&paths.config, &carrier, &carried) {
            (Some(path), ..) => {
                fs::read(path).map_err(|source| Error::Io { action: "read", path: path.clone(), source })?
            }
            (None, Some(store), Some(bytes)) => store.parse(bytes)?.config.unwrap_or_default().into_bytes(),
            _ => Vec::new(),
        };
        let config = match before.filter(|node| node.sources.config == text) {
            Some(node) => node.config.clone(),
            None => Config::parse(&String::from_utf8_lossy(&text))?,
        };
        let path = fixed.or_else(|| config.state.clone()).or_else(|| paths.carrier.clone());
        let store = Store::new(path.unwrap_or_else(|| PathBuf::from(STATE)));
        let state_text = match carried {
            Some(text) if carrier.as_ref() == Some(&store) => text,
            _ => store.text()?,
        };
        let sources = Sources { paths: paths.clone(), config: text, state: state_text };
        if let Some(node) = before.filter(|node| node.sources == sources && node.store == store) {
            return Ok(Arc::clone(node));
        }
        let state = store.parse(&sources.state)?;
        let mut cards = Vec::with_capacity(config.devices.len());
        for (index, device) in (0_u32..).zip(&config.devices) {
            let own = state.cards.get(&index).cloned().unwrap_or_default();
            let device =
                if own.overrides.is_null() { device.clone() } else { device.with(&own.overrides)? };
            cards.push(Card { index, profile: config.profile, device, state: own });
        }
        Ok(Arc::new(Self { config, state, store, cards, sources }))
    }

    /// The indices of the cards that this process sees, in order; `None` if it sees no driver at all.
    pub fn visible(&self) -> Option<Vec<u32>> {
        let node = |card: &&Card| self.config.dev.join(format!("nvidia{}", card.minor())).exists();
        let control = self.config.dev.join("nvidiactl").exists();
        let all = || self.cards.iter().map(|card| card.index).collect();
        let some = || self.cards.iter().filter(node).map(|card| card.index).collect::<Vec<_>>();
        match self.config.visible {
            Visible::All => Some(all()),
            Visible::DeviceNodes => control.then(some),
            Visible::Auto => {
                let some = some();
                Some(if control || !some.is_empty() { some } else { all() })
            }
        }
    }

    /// Whether this process may use an instance: its nodes are there, or nobody looks at nodes.
    pub fn may_use(&self, card: &Card, gpu_instance: u32, compute_instance: u32) -> bool {
        let filtered = match self.config.visible {
            Visible::All => false,
            Visible::DeviceNodes => true,
            Visible::Auto => self.config.dev.join("nvidiactl").exists(),
        };
        let exists = |minor: u32| self.config.dev.join(format!("nvidia-caps/nvidia-cap{minor}")).exists();
        !filtered
            || exists(install::cap_minor(card.minor(), gpu_instance, None))
                && exists(install::cap_minor(card.minor(), gpu_instance, Some(compute_instance)))
    }
}

impl Card {
    /// The number in `/dev/nvidia<minor>`.
    pub fn minor(&self) -> u32 {
        self.device.minor_number.unwrap_or(self.index)
    }

    /// NVML's UUID.
    pub fn uuid(&self) -> &str {
        self.device.uuid.as_deref().unwrap_or_default()
    }

    /// The UUID of a MIG device: always the same for the same instances.
    pub fn mig_uuid(&self, gpu_instance: u32, compute_instance: u32) -> String {
        sim_partition_id(self.uuid(), gpu_instance, compute_instance).to_string()
    }

    /// The product's name.
    pub fn name(&self) -> &str {
        self.device.name.as_deref().unwrap_or(self.profile.product)
    }

    /// The PCI address: domain, bus, device.
    pub fn pci(&self) -> (u32, u32, u32) {
        self.device.pci.bus_id.as_deref().and_then(pci_address).unwrap_or_default()
    }

    /// Share of time in which kernels run.
    pub fn busy(&self) -> u32 {
        let own: u32 = self.state.processes.iter().map(|process| process.utilization).sum();
        self.device.utilization.gpu.unwrap_or(own).min(100)
    }

    /// What its sensors read.
    pub fn readings(&self) -> Readings {
        let mut readings = self.profile.readings(
            self.index,
            self.busy(),
            self.busy() > 0 || !self.state.processes.is_empty(),
        );
        let device = &self.device;
        let set = |value: &mut u32, own: Option<u32>| *value = own.unwrap_or(*value);
        set(&mut readings.temperature_celsius, device.thermal.temperature_gpu_c);
        set(&mut readings.power_milliwatts, device.power.current_draw_mw);
        set(&mut readings.sm_clock_mhz, device.clocks.sm_current.or(device.clocks.graphics_current));
        set(&mut readings.memory_clock_mhz, device.clocks.memory_current);
        let state = device.performance_state.as_deref().and_then(|text| text.strip_prefix('P')?.parse().ok());
        readings.performance_state = state.unwrap_or(readings.performance_state);
        readings
    }

    /// Memory in bytes: all, what the driver keeps, what is used.
    pub fn memory(&self) -> (u64, u64, u64) {
        let own = &self.device.memory;
        let mib = |process: &Process| process.memory_mib << 20;
        let used = self.state.processes.iter().map(mib).fold(0, u64::saturating_add);
        let total = own.total_bytes.unwrap_or(self.profile.memory_mib << 20);
        let reserved = own.reserved_bytes.unwrap_or(0).min(total);
        (total, reserved, own.used_bytes.unwrap_or(used).min(total - reserved))
    }

    /// Whether the card's memory is protected by ECC; `None` where it has none.
    pub fn ecc(&self) -> Option<bool> {
        // Cards for games and workstations of these generations have none.
        let has = !self.profile.product.contains("GeForce");
        has.then(|| self.device.ecc.mode_current.as_deref() != Some("disabled"))
    }

    /// The power limit in force, in milliwatts.
    pub fn power_limit(&self) -> u32 {
        let own = &self.device.power;
        own.enforced_limit_mw.or(own.default_limit_mw).unwrap_or(self.profile.power.limit_watts * 1_000)
    }
}

/// Domain, bus and device of an address such as `00000000:07:00.0`.
pub(crate) fn pci_address(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.split(':');
    let number = |part: &str, digits: usize| {
        let fits = (1..=digits).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        if fits { u32::from_str_radix(part, 16).ok() } else { None }
    };
    let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let (device, function) = rest.split_once('.')?;
    if parts.next().is_some() || function != "0" {
        return None;
    }
    Some((number(domain, 8)?, number(bus, 2)?, number(device, 2)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_knows_its_driver_root() {
        for (library, expected) in [
            ("/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", Some("/run/nvidia/driver")),
            ("/usr/lib64/libnvidia-ml.so.1", Some("/")),
            ("/lib/x86_64-linux-gnu/libnvidia-ml.so.1", Some("/")),
            ("/opt/libnvidia-ml.so.1", None),
        ] {
            assert_eq!(root(Path::new(library)).as_deref(), expected.map(Path::new), "{library}");
        }
    }

    #[test]
    fn pci_addresses_are_read_strictly() {
        assert_eq!(pci_address("00000000:0F:1e.0"), Some((0, 15, 30)));
        for bad in
            ["", "0:0", "0000:00:00.1", "0000:00:00", "0000:100:00.0", "x:00:00.0", "0:0:0.0:0", "+1:00:00.0"]
        {
            assert_eq!(pci_address(bad), None, "{bad:?}");
        }
    }
}
