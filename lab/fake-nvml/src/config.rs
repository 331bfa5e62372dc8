//! The configuration of a simulated node.
//!
//! Own keys: `model`, `count`, `node`, `seed`, `visible`, `dev`, `state`, `missing`, `mig_needs_reset`. Beside them the keys of
//! NVIDIA's public mock of NVML (k8s-test-infra, `mock-nvml-config-*.yaml`): `system`, `device_defaults`, `devices`. Of these,
//! what the simulation can show is read and the rest is ignored, so that their files work as they are.

use std::path::PathBuf;

use gantry_gpu::{PROFILES, Profile, sim_gpu_id};
use serde::Deserialize;
use serde_json::Value;

use crate::Error;

/// The most GPUs of one node.
const MAX_GPUS: usize = 16;

/// Which GPUs a process sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Visible {
    /// By device nodes where `/dev/nvidiactl` or one of the GPUs' nodes exists, all otherwise.
    #[default]
    Auto,
    /// Every GPU of the node.
    All,
    /// Those whose `/dev/nvidia<minor>` exists. Without `/dev/nvidiactl` there is no driver, as in a container that was
    /// given no GPU. Partitions need their nodes in `/dev/nvidia-caps` too.
    DeviceNodes,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    model: Option<String>,
    count: Option<usize>,
    node: Option<String>,
    seed: u64,
    visible: Visible,
    dev: Option<PathBuf>,
    state: Option<PathBuf>,
    missing: Vec<String>,
    mig_needs_reset: bool,
    system: System,
    device_defaults: Value,
    devices: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct System {
    driver_version: Option<String>,
    nvml_version: Option<String>,
    cuda_version: Option<String>,
    cuda_version_major: Option<u32>,
    cuda_version_minor: Option<u32>,
}

/// A node's configuration: a model, and what differs from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The row of the table of models.
    pub profile: &'static Profile,
    /// The driver's version.
    pub driver_version: String,
    /// NVML's own version.
    pub nvml_version: String,
    /// CUDA's version, major and minor.
    pub cuda_version: (u32, u32),
    /// Which GPUs a process sees.
    pub visible: Visible,
    /// The folder of device nodes.
    pub dev: PathBuf,
    /// The state file, if the configuration says.
    pub state: Option<PathBuf>,
    /// Functions that answer `NVML_ERROR_FUNCTION_NOT_FOUND`, as those of an older driver.
    pub missing: Vec<String>,
    /// Whether a change of MIG mode waits for a reset of the GPU.
    pub mig_needs_reset: bool,
    /// Each GPU.
    pub devices: Vec<Device>,
}

/// What a configuration or `fake-nvml-ctl set` says of one GPU; absent values are those of the model.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Device {
    pub name: Option<String>,
    pub serial: Option<String>,
    pub board_part_number: Option<String>,
    pub vbios_version: Option<String>,
    pub uuid: Option<String>,
    pub minor_number: Option<u32>,
    /// The NUMA node; -1 where the machine does not say.
    pub numa_node: Option<i32>,
    pub performance_state: Option<String>,
    pub pci: Pci,
    pub memory: Memory,
    pub power: Power,
    pub thermal: Thermal,
    pub utilization: Utilization,
    pub clocks: Clocks,
    pub ecc: Ecc,
    pub remapped_rows: RemappedRows,
    /// The `Value` before merging, for `set` on top of it.
    #[serde(skip)]
    pub(crate) raw: Value,
}

macro_rules! group {
    ($($name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        #[derive(Debug, Clone, PartialEq, Default, Deserialize)]
        #[serde(default)]
        #[allow(clippy::struct_field_names, reason = "the names are those of the file format; some of the structures are alike")]
        pub struct $name { $(pub $field: Option<$kind>),* }
    )*};
}

group! {
    Pci { bus_id: String, device_id: u32, subsystem_id: u32 }
    Memory { total_bytes: u64, reserved_bytes: u64, used_bytes: u64 }
    Power { current_draw_mw: u32, default_limit_mw: u32, enforced_limit_mw: u32, min_limit_mw: u32, max_limit_mw: u32 }
    Thermal { temperature_gpu_c: u32, temperature_memory_c: u32, shutdown_threshold_c: u32, slowdown_threshold_c: u32 }
    Utilization { gpu: u32, memory: u32, encoder: u32, decoder: u32 }
    Clocks { sm_current: u32, graphics_current: u32, memory_current: u32 }
    Ecc { mode_current: String }
    RemappedRows { correctable: u32, uncorrectable: u32, pending: bool, failure_occurred: bool }
}

fn wrong(field: impl Into<String>, value: impl ToString, rule: impl Into<String>) -> Error {
    Error::Value {
        field: field.into(),
        value: value.to_string().chars().take(80).collect(),
        rule: rule.into(),
    }
}

impl Config {
    /// Reads a configuration.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let value: Value = serde_saphyr::from_str(text).map_err(|error| Error::Yaml(error.to_string()))?;
        // An empty file is null.
        let value = if value.is_null() { Value::Object(serde_json::Map::new()) } else { value };
        let file: File = serde_json::from_value(value).map_err(|error| Error::Yaml(error.to_string()))?;
        let profile = profile(&file)?;
        let count = file.count.unwrap_or(if file.devices.is_empty() { 8 } else { file.devices.len() });
        if !(1..=MAX_GPUS).contains(&count) {
            return Err(wrong("count", count, format!("use 1 to {MAX_GPUS}")));
        }
        let node = file.node.clone().unwrap_or_else(|| "node".to_owned());
        let mut devices = Vec::with_capacity(count);
        for index in 0..count {
            let mut raw = match &file.device_defaults {
                Value::Object(_) => file.device_defaults.clone(),
                _ => Value::Object(serde_json::Map::new()),
            };
            let own = file.devices.iter().enumerate().find(|(position, device)| {
                device
                    .get("index")
                    .and_then(Value::as_u64)
                    .map_or(*position == index, |own| own == index as u64)
            });
            if let Some((_, own)) = own {
                merge(&mut raw, own);
            }
            devices.push(Device::from_value(raw, &format!("devices[{index}]"))?);
        }
        for (index, device) in devices.iter_mut().enumerate() {
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            let id = || sim_gpu_id(&node, file.seed, number).to_string();
            device.uuid.get_or_insert_with(id);
            device.minor_number.get_or_insert(number);
            device.pci.bus_id.get_or_insert_with(|| profile.pci_bus_id(index));
            let numa = i32::try_from(profile.numa_node(index, count)).unwrap_or(-1);
            device.numa_node.get_or_insert(numa);
        }
        unique(&devices)?;
        let driver = profile.driver();
        let system = file.system;
        let cuda = system.cuda_version.as_deref().and_then(|text| {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        let driver_version = system.driver_version.unwrap_or(driver.driver_version);
        if driver_version.is_empty()
            || !driver_version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        {
            return Err(wrong(
                "system.driver_version",
                driver_version,
                "use numbers and dots, as in 550.54.15",
            ));
        }
        let cuda_version = match (system.cuda_version_major, system.cuda_version_minor) {
            (Some(major), minor) => (major, minor.unwrap_or(0)),
            _ => cuda.unwrap_or(driver.cuda_version),
        };
        Ok(Self {
            profile,
            nvml_version: system
                .nvml_version
                .unwrap_or_else(|| format!("{}.{driver_version}", cuda_version.0)),
            driver_version,
            cuda_version,
            visible: file.visible,
            dev: file.dev.unwrap_or_else(|| PathBuf::from("/dev")),
            state: file.state,
            missing: file.missing,
            mig_needs_reset: file.mig_needs_reset,
            devices,
        })
    }
}

impl Device {
    pub(crate) fn from_value(raw: Value, field: &str) -> Result<Self, Error> {
        let mut device: Self =
            serde_json::from_value(raw.clone()).map_err(|error| wrong(field, "object", error.to_string()))?;
        device.raw = raw;
        Ok(device)
    }

    /// This device with `changes` laid over it.
    pub(crate) fn with(&self, changes: &Value) -> Result<Self, Error> {
        let mut raw = self.raw.clone();
        merge(&mut raw, changes);
        let mut device = Self::from_value(raw, "overrides")?;
        // What was derived from the model is not in the raw value.
        device.uuid = device.uuid.or_else(|| self.uuid.clone());
        device.minor_number = device.minor_number.or(self.minor_number);
        device.numa_node = device.numa_node.or(self.numa_node);
        device.pci.bus_id = device.pci.bus_id.or_else(|| self.pci.bus_id.clone());
        Ok(device)
    }
}

/// The row that `model` names, or that the product of the devices belongs to.
fn profile(file: &File) -> Result<&'static Profile, Error> {
    if let Some(model) = &file.model {
        return Ok(Profile::named(model)?);
    }
    let first = file.devices.first().unwrap_or(&Value::Null);
    let text = |value: &Value| value.get("name").and_then(Value::as_str).map(str::to_owned);
    let product = text(first).or_else(|| text(&file.device_defaults));
    let number = file.device_defaults.pointer("/pci/device_id").and_then(Value::as_u64).map(|id| id >> 16);
    PROFILES
        .iter()
        .find(|row| Some(row.product) == product.as_deref() || Some(u64::from(row.pci_device_id)) == number)
        .ok_or_else(|| Error::NoModel {
            known: PROFILES.iter().map(|row| row.name).collect::<Vec<_>>().join(", "),
        })
}

/// UUIDs, minors and PCI addresses are how a GPU is found: no two have the same.
fn unique(devices: &[Device]) -> Result<(), Error> {
    for (index, device) in devices.iter().enumerate() {
        let field = |name: &str| format!("devices[{index}].{name}");
        let uuid = device.uuid.as_deref().unwrap_or_default();
        if uuid.parse::<gantry_model::GpuId>().is_err() || !uuid.starts_with("GPU-") {
            return Err(wrong(field("uuid"), uuid, "use GPU- and a UUID"));
        }
        let bus = device.pci.bus_id.as_deref().unwrap_or_default();
        if crate::node::pci_address(bus).is_none() {
            return Err(wrong(
                field("pci.bus_id"),
                bus,
                "use domain:bus:device.function, as in 00000000:07:00.0",
            ));
        }
        for other in &devices[..index] {
            if other.uuid == device.uuid {
                return Err(wrong(field("uuid"), uuid, "another device has it"));
            }
            if other.minor_number == device.minor_number {
                let minor = device.minor_number.unwrap_or_default();
                return Err(wrong(field("minor_number"), minor, "another device has it"));
            }
            let address = other.pci.bus_id.as_deref().and_then(crate::node::pci_address);
            if address == crate::node::pci_address(bus) {
                return Err(wrong(field("pci.bus_id"), bus, "another device has it"));
            }
        }
    }
    Ok(())
}

/// Lays `over` on `value`, objects member by member.
pub(crate) fn merge(value: &mut Value, over: &Value) {
    match (value, over) {
        (Value::Object(members), Value::Object(changes)) => {
            for (name, change) in changes {
                merge(members.entry(name.clone()).or_insert(Value::Null), change);
            }
        }
        (value, over) => *value = over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_alone_is_a_configuration() {
        for profile in PROFILES {
            let config = Config::parse(&format!("model: {}", profile.name)).unwrap();
            assert_eq!((config.profile, config.devices.len()), (profile, 8));
            assert_eq!(config.driver_version, profile.driver().driver_version);
        }
    }

    #[test]
    fn a_file_of_nvidias_mock_is_understood() {
        let text = "\
version: \"1.0\"
system:
  driver_version: \"550.163.01\"
  cuda_version: \"12.4\"
device_defaults:
  name: \"NVIDIA A100-SXM4-40GB\"
  pci: { device_id: 0x20B010DE }
  fan: { speed_percent: \"N/A\" }
  memory: { total_bytes: 42949672960 }
devices:
  - { index: 1, uuid: GPU-12345678-1234-1234-1234-123456780001, pci: { bus_id: \"0000:0F:00.0\" }, minor_number: 1 }
  - { index: 0, uuid: GPU-12345678-1234-1234-1234-123456780000, serial: \"7\", minor_number: 0 }
";
        let config = Config::parse(text).unwrap();
        assert_eq!(config.profile.name, "a100-40");
        assert_eq!(config.driver_version, "550.163.01");
        let device = &config.devices[1];
        assert_eq!(device.uuid.as_deref(), Some("GPU-12345678-1234-1234-1234-123456780001"));
        assert_eq!(device.pci.bus_id.as_deref(), Some("0000:0F:00.0"));
        assert_eq!(config.devices[0].serial.as_deref(), Some("7"));
        assert_eq!(device.memory.total_bytes, Some(40 << 30));
    }

    #[test]
    fn refusals_name_field_value_and_rule() {
        let known = "a100-40, a100-80, h100, h200, b200, a30, l4, t4, rtx3090, rtx4090";
        for (text, expected) in [
            (
                "count: 2",
                format!(
                    "configuration: model: not set, and device_defaults.name is no product that is known: set model to one of {known}"
                ),
            ),
            ("model: v100", format!("GPU model \"v100\" is not known: use one of {known}")),
            ("model: t4\ncount: 17", "configuration: count: Invalid value: 17: use 1 to 16".to_owned()),
            (
                "model: t4\nsystem: { driver_version: ../x }",
                "configuration: system.driver_version: Invalid value: ../x: use numbers and dots, as in 550.54.15"
                    .to_owned(),
            ),
            (
                "model: t4\ndevices: [{uuid: x}]",
                "configuration: devices[0].uuid: Invalid value: x: use GPU- and a UUID".to_owned(),
            ),
            (
                "model: t4\ndevices: [{}, {minor_number: 0}]",
                "configuration: devices[1].minor_number: Invalid value: 0: another device has it".to_owned(),
            ),
            (
                "model: t4\ndevices: [{pci: {bus_id: nowhere}}]",
                "configuration: devices[0].pci.bus_id: Invalid value: nowhere: use domain:bus:device.function, as in \
                 00000000:07:00.0"
                    .to_owned(),
            ),
        ] {
            assert_eq!(Config::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
        assert!(Config::parse("model: [").unwrap_err().to_string().starts_with("configuration: "));
    }
}
