//! The OCI runtime configuration of a container, before and after the devices' edits.
//!
//! The format is the OCI runtime specification 1.2 (`config.md`); only what a simulated process can observe is filled in.

use std::collections::BTreeSet;

use gantry_cdi::{DeviceName, Folders};
use gantry_units::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use serde_json::{Value, json};

use crate::device_manager::ContainerDevices;

/// What the configuration is made from.
pub(crate) struct Blueprint<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    /// The command line, after the image's own was put in.
    pub(crate) args: &'a [String],
    pub(crate) env: &'a [(String, String)],
    pub(crate) devices: &'a ContainerDevices,
}

/// The configuration, without CDI edits.
pub(crate) fn config(blueprint: &Blueprint<'_>) -> Value {
    let Blueprint { pod, container, args, env, devices } = blueprint;
    let spec = pod.spec.as_ref();
    let metadata = &pod.metadata;
    let uid = metadata.uid.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let namespace = metadata.namespace.as_deref().unwrap_or_default();

    let mut environment =
        vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
    environment.push(format!("HOSTNAME={}", hostname(pod)));
    environment.extend(devices.envs.iter().map(|(name, value)| format!("{name}={value}")));
    environment.extend(env.iter().map(|(name, value)| format!("{name}={value}")));

    let mut annotations = serde_json::Map::new();
    for (key, value) in &devices.annotations {
        annotations.insert(key.clone(), value.as_str().into());
    }
    // The names under which containerd tells hooks and NRI plugins whose container it is.
    for (key, value) in [
        ("io.kubernetes.cri.container-type", "container"),
        ("io.kubernetes.cri.container-name", container.name.as_str()),
        ("io.kubernetes.cri.image-name", container.image.as_deref().unwrap_or_default()),
        ("io.kubernetes.cri.sandbox-name", name),
        ("io.kubernetes.cri.sandbox-namespace", namespace),
        ("io.kubernetes.cri.sandbox-uid", uid),
    ] {
        annotations.insert(key.to_owned(), value.into());
    }

    let volumes = spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs"}),
        json!({"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]}),
        json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}),
    ];
    for mount in container.volume_mounts.iter().flatten() {
        let read_only = mount.read_only.unwrap_or(false);
        let volume = volumes.iter().find(|volume| volume.name == mount.name);
        mounts.push(json!({
            "destination": mount.mount_path,
            "type": "bind",
            "source": volume.map_or_else(String::new, |volume| volume_source(uid, volume)),
            "options": ["rbind", if read_only { "ro" } else { "rw" }],
        }));
    }
    for (container_path, host_path, read_only) in &devices.mounts {
        mounts.push(json!({
            "destination": container_path,
            "type": "bind",
            "source": host_path,
            "options": ["rbind", if *read_only { "ro" } else { "rw" }],
        }));
    }
    let nodes: Vec<Value> =
        devices.devices.iter().map(|(path, _, _)| json!({"path": path, "type": "c"})).collect();
    let user = container.security_context.as_ref().and_then(|context| context.run_as_user);
    let group = container.security_context.as_ref().and_then(|context| context.run_as_group);
    let mut config = json!({
        "ociVersion": "1.2.0",
        "hostname": hostname(pod),
        "process": {
            "args": args,
            "env": environment,
            "cwd": container.working_dir.as_deref().unwrap_or("/"),
            "terminal": container.tty.unwrap_or(false),
            "user": {"uid": user.unwrap_or(0), "gid": group.unwrap_or(0)},
        },
        "root": {"path": "rootfs", "readonly": false},
        "mounts": mounts,
        "annotations": annotations,
        "linux": {
            "devices": nodes,
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "cgroupsPath": format!("/kubepods/pod{uid}/{}", container.name),
        },
    });
    limits(container, &mut config);
    config
}

/// Applies the edits of CDI devices, as the folders describe them now, and fills in the numbers of device files.
pub(crate) fn inject(
    config: &mut Value,
    folders: &Folders,
    names: &[DeviceName],
) -> Result<(), gantry_cdi::Error> {
    if !names.is_empty() {
        let unique: Vec<DeviceName> = names.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect();
        folders.cache().inject(config, &unique)?;
    }
    if let Some(devices) = config.pointer_mut("/linux/devices").and_then(Value::as_array_mut) {
        devices.iter_mut().for_each(number);
    }
    Ok(())
}

/// A runtime takes the numbers that a specification leaves out from the host's device file. The host of a simulated
/// node has none, but NVIDIA's numbers are fixed.
fn number(device: &mut Value) {
    if device.get("major").and_then(Value::as_i64).is_some_and(|major| major != 0) {
        return;
    }
    let path = device.get("path").and_then(Value::as_str).unwrap_or_default();
    let (major, minor) = match path.strip_prefix("/dev/nvidia") {
        Some("ctl") => (195, 255),
        Some("-modeset") => (195, 254),
        Some("-uvm") => (511, 0),
        Some("-uvm-tools") => (511, 1),
        Some(number) => match number.parse::<i64>() {
            Ok(minor) => (195, minor),
            Err(_) => return,
        },
        None => return,
    };
    device["major"] = major.into();
    device["minor"] = minor.into();
}

/// The pod's host name: its own, or the pod's name.
pub(crate) fn hostname(pod: &Pod) -> &str {
    let configured = pod.spec.as_ref().and_then(|spec| spec.hostname.as_deref());
    let name = configured.or(pod.metadata.name.as_deref()).unwrap_or("localhost");
    // The kernel's limit.
    name.get(..63).unwrap_or(name).trim_end_matches(['-', '.'])
}

fn volume_source(uid: &str, volume: &Volume) -> String {
    if let Some(host) = &volume.host_path {
        return host.path.clone();
    }
    let kind = if volume.config_map.is_some() {
        "kubernetes.io~configmap"
    } else if volume.secret.is_some() {
        "kubernetes.io~secret"
    } else if volume.projected.is_some() {
        "kubernetes.io~projected"
    } else if volume.persistent_volume_claim.is_some() {
        "kubernetes.io~local-volume"
    } else {
        "kubernetes.io~empty-dir"
    };
    format!("/var/lib/kubelet/pods/{uid}/volumes/{kind}/{}", volume.name)
}

fn limits(container: &Container, config: &mut Value) {
    let resources = container.resources.as_ref();
    let read = |list: Option<&std::collections::BTreeMap<String, _>>, name: &str| {
        let quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity = list?.get(name)?;
        quantity.0.parse::<Quantity>().ok()
    };
    let limits = resources.and_then(|resources| resources.limits.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref()).or(limits);
    let linux = &mut config["linux"]["resources"];
    if let Some(memory) = read(limits, "memory") {
        linux["memory"] = json!({"limit": memory.value()});
    }
    // A CPU is 1024 shares and 100 ms of every 100 ms.
    let mut cpu = serde_json::Map::new();
    if let Some(request) = read(requests, "cpu") {
        cpu.insert("shares".to_owned(), (request.milli_value().saturating_mul(1024) / 1000).max(2).into());
    }
    if let Some(limit) = read(limits, "cpu") {
        cpu.insert("quota".to_owned(), limit.milli_value().saturating_mul(100).into());
        cpu.insert("period".to_owned(), 100_000.into());
    }
    if !cpu.is_empty() {
        linux["cpu"] = Value::Object(cpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_holds_what_the_pod_says_and_the_plugin_adds() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {
                "volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/data"}}],
                "containers": [{
                    "name": "c", "image": "i",
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "h", "mountPath": "/h", "readOnly": true}],
                    "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}, "requests": {"cpu": "1"}},
                }],
            },
        }))
        .unwrap();
        let devices = ContainerDevices {
            envs: [("A".to_owned(), "1".to_owned())].into(),
            devices: vec![("/dev/nvidia3".to_owned(), "/dev/nvidia3".to_owned(), "rw".to_owned())],
            ..ContainerDevices::default()
        };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let env = [("B".to_owned(), "2".to_owned())];
        let args = ["run".to_owned()];
        let mut config =
            config(&Blueprint { pod: &pod, container, args: &args, env: &env, devices: &devices });
        inject(&mut config, &Folders::new(Vec::new()), &[]).unwrap();
        assert_eq!(config["process"]["env"][1], "HOSTNAME=p");
        assert_eq!(config["process"]["env"][3], "B=2");
        assert_eq!(
            config["linux"]["devices"][0],
            json!({"path": "/dev/nvidia3", "type": "c", "major": 195, "minor": 3})
        );
        assert_eq!(config["linux"]["resources"]["memory"]["limit"], 1_i64 << 30);
        assert_eq!(
            config["linux"]["resources"]["cpu"],
            json!({"shares": 1024, "quota": 150_000, "period": 100_000})
        );
        assert_eq!(config["mounts"][5]["source"], "/data");
        assert_eq!(config["mounts"][5]["options"], json!(["rbind", "ro"]));
    }
}
