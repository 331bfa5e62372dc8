//! The types of a specification file, their validation and the version that they need.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Error, name};

/// A specification file: the devices of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The version of the format, such as `0.5.0`.
    pub cdi_version: String,
    /// Vendor and class, such as `nvidia.com/gpu`.
    pub kind: String,
    /// Notes for other tools (since 0.6.0).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// At least one.
    pub devices: Vec<Device>,
    /// What every container with a device of this file needs, once.
    #[serde(default, skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    /// Its name within the kind.
    pub name: String,
    /// Notes for other tools (since 0.6.0).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// What a container with this device needs. Not empty.
    pub container_edits: ContainerEdits,
}

/// Changes to a container's OCI configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerEdits {
    /// `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Network interfaces that move into the container (since 1.1.0).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    /// Programs that the runtime runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Bind mounts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Cache and memory bandwidth control (since 0.7.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<IntelRdt>,
    /// Groups of the container's process (since 0.7.0). 0 is ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// A device file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// Path in the container.
    pub path: String,
    /// Path on the host; `None` = the same (since 0.5.0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// `c`, `u`, `b` or `p`; `None` = that of the host's file.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Major number; `None` = that of the host's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Minor number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// Permission bits of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_mode: Option<u32>,
    /// What the device cgroup allows: letters of `rwm`, or `none`. `None` = all three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    /// Owner; `None` = the container's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group; `None` = the container's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// Path on the host.
    pub host_path: String,
    /// Path in the container.
    pub container_path: String,
    /// Mount options, such as `ro`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Type of the mount (since 0.4.0).
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A program that the runtime runs at a point of the container's life.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// `prestart`, `createRuntime`, `createContainer`, `startContainer`, `poststart` or `poststop`.
    pub hook_name: String,
    /// The program.
    pub path: String,
    /// Its arguments, with its own name first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds after which it is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A network interface that moves into the container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetDevice {
    /// Its name on the host.
    pub host_interface_name: String,
    /// Its name in the container.
    pub name: String,
}

/// Settings of Intel's Resource Director Technology.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntelRdt {
    /// Class of service.
    #[serde(rename = "closID", default, skip_serializing_if = "String::is_empty")]
    pub clos_id: String,
    /// Schema of the L3 cache.
    #[serde(rename = "l3CacheSchema", default, skip_serializing_if = "String::is_empty")]
    pub l3_cache_schema: String,
    /// Schema of the memory bandwidth.
    #[serde(rename = "memBwSchema", default, skip_serializing_if = "String::is_empty")]
    pub mem_bw_schema: String,
    /// Further schemata (since 1.1.0).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schemata: Vec<String>,
    /// Whether the class is monitored (since 1.1.0).
    #[serde(rename = "enableMonitoring", default, skip_serializing_if = "std::ops::Not::not")]
    pub enable_monitoring: bool,
}

/// Released versions, oldest first. Files of the first two need no less than the third.
const VERSIONS: [&str; 10] =
    ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// The points at which hooks run, as the OCI runtime specification calls them.
pub(crate) const HOOK_NAMES: [&str; 6] =
    ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];

impl ContainerEdits {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what `other` does after what `self` does.
    pub fn append(&mut self, other: &Self) {
        self.env.extend_from_slice(&other.env);
        self.device_nodes.extend_from_slice(&other.device_nodes);
        self.net_devices.extend_from_slice(&other.net_devices);
        self.hooks.extend_from_slice(&other.hooks);
        self.mounts.extend_from_slice(&other.mounts);
        if other.intel_rdt.is_some() {
            self.intel_rdt.clone_from(&other.intel_rdt);
        }
        self.additional_gids.extend_from_slice(&other.additional_gids);
    }
}

impl Spec {
    /// A specification of the lowest version that its content needs.
    pub fn new(kind: &str, devices: Vec<Device>, container_edits: ContainerEdits) -> Result<Self, Error> {
        let mut spec = Self {
            cdi_version: String::new(),
            kind: kind.to_owned(),
            annotations: BTreeMap::new(),
            devices,
            container_edits,
        };
        spec.minimum_version().clone_into(&mut spec.cdi_version);
        spec.validate()?;
        Ok(spec)
    }

    fn edits(&self) -> impl Iterator<Item = &ContainerEdits> {
        self.devices.iter().map(|device| &device.container_edits).chain([&self.container_edits])
    }

    /// The lowest version with every feature that the content uses.
    pub fn minimum_version(&self) -> &'static str {
        let rdt = |test: fn(&IntelRdt) -> bool| self.edits().any(|e| e.intel_rdt.as_ref().is_some_and(test));
        if rdt(|rdt| !rdt.schemata.is_empty() || rdt.enable_monitoring)
            || self.edits().any(|edits| !edits.net_devices.is_empty())
        {
            "1.1.0"
        } else if rdt(|_| true) || self.edits().any(|edits| !edits.additional_gids.is_empty()) {
            "0.7.0"
        } else if !self.annotations.is_empty()
            || self.devices.iter().any(|device| !device.annotations.is_empty())
            || self.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'))
        {
            "0.6.0"
        } else if self.devices.iter().any(|device| device.name.starts_with(|c: char| c.is_ascii_digit()))
            || self.edits().flat_map(|edits| &edits.device_nodes).any(|node| node.host_path.is_some())
        {
            "0.5.0"
        } else if self.edits().flat_map(|edits| &edits.mounts).any(|mount| mount.kind.is_some()) {
            "0.4.0"
        } else {
            "0.3.0"
        }
    }

    /// Checks everything that the specification asks of a file.
    pub fn validate(&self) -> Result<(), Error> {
        let rank = |version: &str| VERSIONS.iter().position(|known| *known == version);
        let stated = self.cdi_version.strip_prefix('v').unwrap_or(&self.cdi_version);
        let Some(stated_rank) = rank(stated) else {
            return Err(invalid(
                "cdiVersion",
                &self.cdi_version,
                "must be a released version from 0.1.0 to 1.1.0",
            ));
        };
        let needed = self.minimum_version();
        // 0.3.0 is the least that is ever asked for, yet older files are read.
        if needed != "0.3.0" && Some(stated_rank) < rank(needed) {
            return Err(Error::Version { stated: self.cdi_version.clone(), needed });
        }
        name::check_kind(&self.kind).map_err(|rule| invalid("kind", &self.kind, rule))?;
        if self.devices.is_empty() {
            return Err(invalid("devices", "[]", "must have at least one device"));
        }
        let mut names = BTreeSet::new();
        for (index, device) in self.devices.iter().enumerate() {
            let field = |rest: &str| format!("devices[{index}].{rest}");
            name::check_device(&device.name).map_err(|rule| invalid(&field("name"), &device.name, rule))?;
            if !names.insert(&device.name) {
                return Err(invalid(&field("name"), &device.name, "must be unique in the file"));
            }
            if device.container_edits.is_empty() {
                return Err(invalid(&field("containerEdits"), "{}", "must not be empty"));
            }
            device.container_edits.validate(&field("containerEdits"))?;
        }
        self.container_edits.validate("containerEdits")
    }
}

impl ContainerEdits {
    fn validate(&self, field: &str) -> Result<(), Error> {
        let at = |list: &str, index: usize, rest: &str| format!("{field}.{list}[{index}]{rest}");
        let env = |list: &[String], place: &dyn Fn(usize) -> String| {
            let bad = list.iter().position(|variable| !matches!(variable.find('='), Some(1..)));
            bad.map_or(Ok(()), |index| Err(invalid(&place(index), &list[index], "must be NAME=value")))
        };
        env(&self.env, &|index| at("env", index, ""))?;
        for (index, node) in self.device_nodes.iter().enumerate() {
            if node.path.is_empty() {
                return Err(invalid(&at("deviceNodes", index, ".path"), "", "must not be empty"));
            }
            if let Some(kind) =
                node.kind.as_deref().filter(|kind| !matches!(*kind, "" | "b" | "c" | "u" | "p"))
            {
                return Err(invalid(&at("deviceNodes", index, ".type"), kind, "must be b, c, u or p"));
            }
            let permissions = node.permissions.as_deref().unwrap_or_default();
            if permissions != "none" && !permissions.bytes().all(|letter| b"rwm".contains(&letter)) {
                let rule = "must have only the letters r, w and m, or be none";
                return Err(invalid(&at("deviceNodes", index, ".permissions"), permissions, rule));
            }
        }
        for (index, hook) in self.hooks.iter().enumerate() {
            if !HOOK_NAMES.contains(&hook.hook_name.as_str()) {
                let rule =
                    "must be prestart, createRuntime, createContainer, startContainer, poststart or poststop";
                return Err(invalid(&at("hooks", index, ".hookName"), &hook.hook_name, rule));
            }
            if hook.path.is_empty() {
                return Err(invalid(&at("hooks", index, ".path"), "", "must not be empty"));
            }
            env(&hook.env, &|variable| at("hooks", index, &format!(".env[{variable}]")))?;
        }
        for (index, mount) in self.mounts.iter().enumerate() {
            for (name, path) in [("hostPath", &mount.host_path), ("containerPath", &mount.container_path)] {
                if path.is_empty() {
                    return Err(invalid(&at("mounts", index, &format!(".{name}")), "", "must not be empty"));
                }
            }
        }
        if let Some(rdt) = &self.intel_rdt {
            let id = &rdt.clos_id;
            if id.len() >= 4096 || id == "." || id == ".." || id.contains(['/', '\n']) {
                return Err(invalid(&format!("{field}.intelRdt.closID"), id, "must be a file name"));
            }
        }
        let (mut hosts, mut names) = (BTreeSet::new(), BTreeSet::new());
        for (index, device) in self.net_devices.iter().enumerate() {
            let ends = [
                ("hostInterfaceName", &device.host_interface_name, &mut hosts),
                ("name", &device.name, &mut names),
            ];
            for (name, value, seen) in ends {
                if value.is_empty() || !seen.insert(value) {
                    let place = at("netDevices", index, &format!(".{name}"));
                    return Err(invalid(&place, value, "must not be empty and must be unique"));
                }
            }
        }
        Ok(())
    }
}

fn invalid(field: &str, value: &str, rule: &'static str) -> Error {
    Error::Invalid { field: field.to_owned(), value: value.chars().take(120).collect(), rule }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    type Change<'a> = &'a dyn Fn(&mut Value);

    fn read(value: Value) -> Result<Spec, String> {
        let spec: Spec = serde_json::from_value(value).map_err(|error| error.to_string())?;
        spec.validate().map_err(|error| error.to_string())?;
        Ok(spec)
    }

    fn minimal() -> Value {
        json!({ "cdiVersion": "0.3.0", "kind": "vendor.com/device",
                "devices": [{ "name": "a", "containerEdits": { "env": ["A=1"] } }] })
    }

    #[test]
    fn every_feature_asks_for_its_version() {
        let cases: [(&str, Change<'_>); 11] = [
            ("0.3.0", &|_| {}),
            ("0.4.0", &|s| {
                s["containerEdits"] =
                    json!({"mounts": [{"hostPath": "/a", "containerPath": "/a", "type": "bind"}]});
            }),
            ("0.5.0", &|s| s["devices"][0]["name"] = json!("0")),
            ("0.5.0", &|s| {
                s["containerEdits"] = json!({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]});
            }),
            ("0.6.0", &|s| s["kind"] = json!("vendor.com/class.sub")),
            ("0.6.0", &|s| s["annotations"] = json!({"a": "b"})),
            ("0.6.0", &|s| s["devices"][0]["annotations"] = json!({"a": "b"})),
            ("0.7.0", &|s| s["containerEdits"] = json!({"additionalGids": [5]})),
            ("0.7.0", &|s| s["devices"][0]["containerEdits"]["intelRdt"] = json!({"closID": "x"})),
            ("1.1.0", &|s| s["containerEdits"] = json!({"intelRdt": {"enableMonitoring": true}})),
            ("1.1.0", &|s| {
                s["containerEdits"] = json!({"netDevices": [{"hostInterfaceName": "eth0", "name": "net0"}]});
            }),
        ];
        for (version, change) in cases {
            let mut value = minimal();
            change(&mut value);
            if version != "0.3.0" {
                assert_eq!(
                    read(value.clone()).unwrap_err(),
                    format!("cdiVersion: invalid value \"0.3.0\": the content needs at least {version}")
                );
            }
            value["cdiVersion"] = json!(version);
            let spec = read(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&spec).unwrap(), value, "round trip");
            let again = Spec::new(&spec.kind, spec.devices.clone(), spec.container_edits.clone()).unwrap();
            if spec.annotations.is_empty() {
                assert_eq!(again, spec);
            }
        }
    }

    #[test]
    fn bad_files_are_refused_by_field() {
        let cases: [(Change<'_>, &str); 12] = [
            (&|s| s["extra"] = json!(1), "unknown field `extra`"),
            (&|s| s["devices"][0]["containerEdits"]["deviceNode"] = json!([]), "unknown field `deviceNode`"),
            (&|s| s["cdiVersion"] = json!("2.0.0"), "cdiVersion: invalid value \"2.0.0\""),
            (&|s| s["kind"] = json!("gpu"), "kind: invalid value \"gpu\": the kind has no '/'"),
            (&|s| s["devices"] = json!([]), "devices: invalid value \"[]\": must have at least one device"),
            (&|s| s["devices"][0]["name"] = json!("a b"), "devices[0].name: invalid value \"a b\""),
            (
                &|s| s["devices"][0]["containerEdits"] = json!({}),
                "devices[0].containerEdits: invalid value \"{}\": must not be empty",
            ),
            (
                &|s| s["devices"][0]["containerEdits"]["env"] = json!(["A=1", "=x"]),
                "devices[0].containerEdits.env[1]: invalid value \"=x\": must be NAME=value",
            ),
            (
                &|s| s["containerEdits"] = json!({"deviceNodes": [{"path": "/dev/a", "permissions": "rx"}]}),
                "containerEdits.deviceNodes[0].permissions: invalid value \"rx\"",
            ),
            (
                &|s| s["containerEdits"] = json!({"hooks": [{"hookName": "start", "path": "/a"}]}),
                "containerEdits.hooks[0].hookName: invalid value \"start\"",
            ),
            (
                &|s| s["containerEdits"] = json!({"mounts": [{"hostPath": "", "containerPath": "/a"}]}),
                "containerEdits.mounts[0].hostPath: invalid value \"\"",
            ),
            (
                &|s| {
                    let device = s["devices"][0].clone();
                    s["devices"].as_array_mut().unwrap().push(device);
                },
                "devices[1].name: invalid value \"a\": must be unique in the file",
            ),
        ];
        for (change, expected) in cases {
            let mut value = minimal();
            change(&mut value);
            let error = read(value).unwrap_err();
            assert!(error.starts_with(expected), "{error} instead of {expected}");
        }
    }

    proptest::proptest! {
        /// A file as it should be, with one byte changed: read or refused, never a panic, and what is read is written the same.
        #[test]
        fn no_file_panics(at in 0_usize..200, byte in proptest::prelude::any::<u8>()) {
            let mut bytes = serde_json::to_vec(&minimal()).unwrap();
            let length = bytes.len();
            bytes[at % length] = byte;
            if let Ok(spec) = serde_json::from_slice::<Spec>(&bytes)
                && spec.validate().is_ok()
            {
                let again: Spec = serde_json::from_value(serde_json::to_value(&spec).unwrap()).unwrap();
                proptest::prop_assert_eq!(again, spec);
            }
        }
    }
}
