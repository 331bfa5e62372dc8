//! Edits on an OCI runtime configuration (`config.json`) as a JSON value.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use serde_json::{Map, Value, json};

use crate::{ContainerEdits, DeviceNode, Error, Hook, Mount};

/// Applies edits to an OCI runtime configuration. What the edits do not name stays as it is, known here or not.
/// On an error nothing is changed.
pub fn apply(edits: &ContainerEdits, config: &mut Value) -> Result<(), Error> {
    let mut changed = config.clone();
    let root = changed.as_object_mut().ok_or(Error::Config { field: "it", expected: "an object" })?;
    add_env(root, &edits.env)?;
    add_devices(root, &edits.device_nodes)?;
    add_mounts(root, &edits.mounts)?;
    for hook in &edits.hooks {
        add_hook(root, hook)?;
    }
    if !edits.net_devices.is_empty() {
        let devices = object(object(root, "linux", "linux")?, "netDevices", "linux.netDevices")?;
        for device in &edits.net_devices {
            devices.insert(device.host_interface_name.clone(), json!({ "name": device.name }));
        }
    }
    if let Some(rdt) = &edits.intel_rdt {
        let value = serde_json::to_value(rdt).expect("invariant: strings and booleans serialise");
        object(root, "linux", "linux")?.insert("intelRdt".to_owned(), value);
    }
    if !edits.additional_gids.is_empty() {
        let user = object(object(root, "process", "process")?, "user", "process.user")?;
        let gids = array(user, "additionalGids", "process.user.additionalGids")?;
        for gid in edits.additional_gids.iter().filter(|gid| **gid != 0).map(|gid| json!(gid)) {
            if !gids.contains(&gid) {
                gids.push(gid);
            }
        }
    }
    *config = changed;
    Ok(())
}

fn object<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
    field: &'static str,
) -> Result<&'a mut Map<String, Value>, Error> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().ok_or(Error::Config { field, expected: "an object" })
}

fn array<'a>(
    parent: &'a mut Map<String, Value>,
    key: &str,
    field: &'static str,
) -> Result<&'a mut Vec<Value>, Error> {
    let value = parent.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Array(Vec::new());
    }
    value.as_array_mut().ok_or(Error::Config { field, expected: "a list" })
}

fn add_env(root: &mut Map<String, Value>, variables: &[String]) -> Result<(), Error> {
    if variables.is_empty() {
        return Ok(());
    }
    let env = array(object(root, "process", "process")?, "env", "process.env")?;
    let name = |variable: &str| variable.split('=').next().unwrap_or_default().to_owned();
    for variable in variables {
        let mut written = false;
        // A name that stands there twice would keep its last value for the process.
        env.retain_mut(|known| {
            let same = known.as_str().is_some_and(|text| name(text) == name(variable));
            let again = same && written;
            if same && !written {
                *known = json!(variable);
                written = true;
            }
            !again
        });
        if !written {
            env.push(json!(variable));
        }
    }
    Ok(())
}

fn add_devices(root: &mut Map<String, Value>, nodes: &[DeviceNode]) -> Result<(), Error> {
    if nodes.is_empty() {
        return Ok(());
    }
    let user = root.get("process").and_then(|process| process.get("user"));
    let of_user =
        |key: &str| user.and_then(|user| user.get(key)).and_then(Value::as_u64).filter(|id| *id > 0);
    let (uid, gid) = (of_user("uid"), of_user("gid"));
    for node in nodes {
        let node = complete(node)?;
        let kind = node.kind.as_deref().unwrap_or_default();
        let mut device =
            Map::from_iter([("path".to_owned(), json!(node.path)), ("type".to_owned(), json!(kind))]);
        let numbered = kind != "p";
        let mut set = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                device.insert(key.to_owned(), value);
            }
        };
        set("major", numbered.then(|| json!(node.major.unwrap_or_default())));
        set("minor", numbered.then(|| json!(node.minor.unwrap_or_default())));
        set("fileMode", node.file_mode.map(|mode| json!(mode)));
        set("uid", node.uid.map(u64::from).or(uid).map(|id| json!(id)));
        set("gid", node.gid.map(u64::from).or(gid).map(|id| json!(id)));
        let linux = object(root, "linux", "linux")?;
        let devices = array(linux, "devices", "linux.devices")?;
        devices.retain(|known| known.get("path").and_then(Value::as_str) != Some(&node.path));
        devices.push(Value::Object(device));
        if matches!(kind, "b" | "c") {
            let access = match node.permissions.as_deref() {
                None | Some("") => "rwm",
                Some("none") => "",
                Some(letters) => letters,
            };
            let rule = json!({ "allow": true, "type": kind, "major": node.major.unwrap_or_default(),
                               "minor": node.minor.unwrap_or_default(), "access": access });
            let resources = object(linux, "resources", "linux.resources")?;
            let rules = array(resources, "devices", "linux.resources.devices")?;
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }
    Ok(())
}

/// Fills in what the specification leaves to the host's device file.
fn complete(node: &DeviceNode) -> Result<DeviceNode, Error> {
    let mut node = node.clone();
    let fifo = node.kind.as_deref() == Some("p");
    let described =
        node.kind.as_deref().is_some_and(|kind| !kind.is_empty()) && (node.major.is_some() || fifo);
    let host = node.host_path.as_deref().unwrap_or(&node.path);
    let found = std::fs::symlink_metadata(host).ok().and_then(|file| {
        let kind = file.file_type();
        let letter = match () {
            () if kind.is_block_device() => "b",
            () if kind.is_char_device() => "c",
            () if kind.is_fifo() => "p",
            () => return None,
        };
        Some((letter, file.rdev(), file.mode() & 0o7777))
    });
    match found {
        None if described => {}
        None => return Err(Error::DeviceNode { path: host.to_owned() }),
        Some((letter, number, mode)) => {
            node.file_mode = node.file_mode.or(Some(mode));
            if !described {
                node.kind = Some(letter.to_owned());
                // How Linux packs major and minor numbers, as glibc's gnu_dev_major() and gnu_dev_minor() unpack them.
                let major = ((number >> 8) & 0xfff) | ((number >> 32) & !0xfff);
                let minor = (number & 0xff) | ((number >> 12) & !0xff);
                node.major = node.major.or_else(|| i64::try_from(major).ok());
                node.minor = node.minor.or_else(|| i64::try_from(minor).ok());
            }
        }
    }
    Ok(node)
}

fn add_mounts(root: &mut Map<String, Value>, mounts: &[Mount]) -> Result<(), Error> {
    if mounts.is_empty() {
        return Ok(());
    }
    let list = array(root, "mounts", "mounts")?;
    for mount in mounts {
        list.retain(|known| known.get("destination").and_then(Value::as_str) != Some(&mount.container_path));
        let mut value = json!({ "destination": mount.container_path, "source": mount.host_path });
        if let Some(kind) = &mount.kind {
            value["type"] = json!(kind);
        }
        if !mount.options.is_empty() {
            value["options"] = json!(mount.options);
        }
        list.push(value);
    }
    // A mount over a parent must not hide one below it.
    let depth = |mount: &Value| {
        let path = mount.get("destination").and_then(Value::as_str).unwrap_or_default();
        path.split('/').filter(|part| !part.is_empty()).count()
    };
    list.sort_by_key(depth);
    Ok(())
}

fn add_hook(root: &mut Map<String, Value>, hook: &Hook) -> Result<(), Error> {
    let hooks = object(root, "hooks", "hooks")?;
    let list = array(hooks, &hook.hook_name, "the list of hooks")?;
    let mut value = json!({ "path": hook.path });
    if !hook.args.is_empty() {
        value["args"] = json!(hook.args);
    }
    if !hook.env.is_empty() {
        value["env"] = json!(hook.env);
    }
    if let Some(timeout) = hook.timeout {
        value["timeout"] = json!(timeout);
    }
    list.push(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{IntelRdt, NetDevice};

    fn edits() -> ContainerEdits {
        ContainerEdits {
            env: vec!["NVIDIA_VISIBLE_DEVICES=void".into(), "NEW=1".into()],
            device_nodes: vec![DeviceNode {
                path: "/dev/nvidia0".into(),
                kind: Some("c".into()),
                major: Some(195),
                minor: Some(0),
                ..DeviceNode::default()
            }],
            net_devices: vec![NetDevice { host_interface_name: "ib0".into(), name: "net0".into() }],
            hooks: vec![Hook {
                hook_name: "createContainer".into(),
                path: "/usr/bin/hook".into(),
                args: vec!["hook".into()],
                timeout: Some(5),
                ..Hook::default()
            }],
            mounts: vec![Mount {
                host_path: "/usr/bin/nvidia-smi".into(),
                container_path: "/usr/bin/nvidia-smi".into(),
                options: vec!["ro".into()],
                kind: None,
            }],
            intel_rdt: Some(IntelRdt { clos_id: "gold".into(), ..IntelRdt::default() }),
            additional_gids: vec![0, 44, 44],
        }
    }

    #[test]
    fn every_edit_lands_where_the_runtime_looks_and_unknown_fields_stay() {
        let mut config = json!({
            "ociVersion": "1.2.0", "vendorX": { "a": 1 },
            "process": { "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"], "newField": true,
                         "user": { "uid": 1000, "gid": 0 } },
            "mounts": [{ "destination": "/usr/bin/nvidia-smi/deeper", "source": "x" },
                       { "destination": "/proc", "source": "proc", "type": "proc" },
                       { "destination": "/usr/bin/nvidia-smi", "source": "old" }],
            "linux": { "futureThing": 3, "devices": [{ "path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 1 }] }
        });
        apply(&edits(), &mut config).unwrap();
        assert_eq!(
            config,
            json!({
                "ociVersion": "1.2.0", "vendorX": { "a": 1 },
                "process": { "env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=void", "NEW=1"], "newField": true,
                             "user": { "uid": 1000, "gid": 0, "additionalGids": [44] } },
                "mounts": [{ "destination": "/proc", "source": "proc", "type": "proc" },
                           { "destination": "/usr/bin/nvidia-smi", "source": "/usr/bin/nvidia-smi", "options": ["ro"] },
                           { "destination": "/usr/bin/nvidia-smi/deeper", "source": "x" }],
                "hooks": { "createContainer": [{ "path": "/usr/bin/hook", "args": ["hook"], "timeout": 5 }] },
                "linux": { "futureThing": 3,
                           "devices": [{ "path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "uid": 1000 }],
                           "resources": { "devices": [{ "allow": true, "type": "c", "major": 195, "minor": 0,
                                                        "access": "rwm" }] },
                           "netDevices": { "ib0": { "name": "net0" } },
                           "intelRdt": { "closID": "gold" } }
            })
        );
    }

    #[test]
    fn a_variable_has_one_value_however_often_it_stood_there() {
        let mut config = json!({ "process": { "env": ["NEW=a", "NEW2=b", "NEW=c"] } });
        let edits = ContainerEdits { env: vec!["NEW=1".into()], ..ContainerEdits::default() };
        apply(&edits, &mut config).unwrap();
        assert_eq!(config["process"]["env"], json!(["NEW=1", "NEW2=b"]));
    }

    #[test]
    fn a_device_that_is_not_described_is_looked_up_on_the_host() {
        let node = |path: &str| ContainerEdits {
            device_nodes: vec![DeviceNode { path: path.into(), ..DeviceNode::default() }],
            ..ContainerEdits::default()
        };
        let mut config = json!({});
        apply(&node("/dev/null"), &mut config).unwrap();
        let device = &config["linux"]["devices"][0];
        assert_eq!(
            (&device["type"], &device["major"], &device["minor"]),
            (&json!("c"), &json!(1), &json!(3))
        );
        for missing in ["/dev/nvidia-is-not-here", "/etc/passwd"] {
            let before = config.clone();
            assert!(matches!(apply(&node(missing), &mut config), Err(Error::DeviceNode { .. })));
            assert_eq!(config, before);
        }
    }

    #[test]
    fn a_configuration_of_another_shape_is_refused_unchanged() {
        for (mut config, expected) in [
            (json!([]), "OCI configuration: it must be an object"),
            (json!({ "process": { "env": "A" } }), "OCI configuration: process.env must be a list"),
            (json!({ "linux": 1 }), "OCI configuration: linux must be an object"),
        ] {
            let before = config.clone();
            assert_eq!(apply(&edits(), &mut config).unwrap_err().to_string(), expected);
            assert_eq!(config, before);
        }
    }

    proptest! {
        #[test]
        fn applying_twice_changes_nothing_but_hooks(extra in "[a-z]{1,8}") {
            let mut edits = edits();
            edits.hooks.clear();
            let mut once = json!({ "x": extra });
            apply(&edits, &mut once).unwrap();
            let mut twice = once.clone();
            apply(&edits, &mut twice).unwrap();
            prop_assert_eq!(once, twice);
        }
    }
}
