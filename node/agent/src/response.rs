//! The answer to `Allocate`: a function of configuration, devices and host. Variables, mounts, annotations and names are those of NVIDIA's
//! device plugin v0.20.0.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use gantry_kit::{fnv1a_64, uuid_v4};
use gantry_nvidia_config::{Config, DeviceIdStrategy, DeviceListStrategy, SharingKind};
use gantry_proto::deviceplugin as api;

use crate::Error;
use crate::state::Part;

/// What the names of CDI devices of the plugin begin with.
const CDI_VENDOR: &str = "k8s.device-plugin.nvidia.com";

/// What the name of the plugin's CDI annotation begins with, after the prefix.
const CDI_ANNOTATION: &str = "nvidia-device-plugin_";

const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Where mounts name devices, in the container.
const MOUNT_ROOT: &str = "/var/run/nvidia-container-devices";

/// Device files that every GPU container has, where the host has them.
const COMMON_FILES: [&str; 4] =
    ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

/// Where MPS keeps its files, in the container.
const MPS_ROOT: &str = "/mps";

/// The number of a card's device file, a GPU instance, and a compute instance of it.
type Instance = (u32, u32, Option<u32>);

/// What the answer needs to know of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Host {
    /// Which of the common device files are there.
    common: Vec<&'static str>,
    /// IMEX channels that are there, of those that are configured.
    channels: Vec<u32>,
    /// The number in `/dev/nvidia-caps/nvidia-cap<n>` by instance.
    capabilities: HashMap<Instance, u32>,
}

impl Host {
    /// Looks at the host, as far as the configuration needs it. `minors` is the text of `/proc/driver/nvidia-caps/mig-minors`.
    pub(crate) fn look(config: &Config, minors: &str) -> Self {
        let there = |path: &str| {
            Path::new(path).exists() || config.dev_root.join(path.trim_start_matches('/')).exists()
        };
        Self {
            common: COMMON_FILES
                .into_iter()
                .filter(|path| config.plugin.pass_device_specs && there(path))
                .collect(),
            channels: config.imex.channel_ids.iter().copied().filter(|id| there(&channel(*id))).collect(),
            capabilities: minors.lines().filter_map(capability).collect(),
        }
    }

    /// A channel that the configuration requires and the host does not have.
    pub(crate) fn missing_channel(&self, config: &Config) -> Option<u32> {
        let missing = |id: &u32| !self.channels.contains(id);
        config.imex.channel_ids.iter().copied().find(missing).filter(|_| config.imex.required)
    }
}

/// A line such as `gpu0/gi1/ci0/access 13`. Other lines of the file are of no concern.
fn capability(line: &str) -> Option<(Instance, u32)> {
    let (path, minor) = line.split_once(' ')?;
    let mut parts = path.split('/');
    let mut number = |prefix| parts.next()?.strip_prefix(prefix)?.parse().ok();
    let (gpu, instance) = (number("gpu")?, number("gi")?);
    let compute = match parts.next()? {
        "access" => None,
        compute => Some(compute.strip_prefix("ci")?.parse().ok()?),
    };
    Some(((gpu, instance, compute), minor.trim().parse().ok()?))
}

fn channel(id: u32) -> String {
    format!("/dev/nvidia-caps-imex-channels/channel{id}")
}

/// The strategies in force. Where none was configured, Gantry's own: a container runtime needs nothing of NVIDIA's for it.
fn strategies(config: &Config) -> BTreeSet<DeviceListStrategy> {
    if config.is_set("device-list-strategy") {
        config.plugin.device_list_strategies.clone()
    } else {
        BTreeSet::from([DeviceListStrategy::CdiCri])
    }
}

/// What a container with these devices of a resource gets.
pub(crate) fn response(
    config: &Config,
    resource: &str,
    parts: &[Part<'_>],
    host: &Host,
) -> Result<api::ContainerAllocateResponse, Error> {
    let mut response = api::ContainerAllocateResponse::default();
    let strategies = strategies(config);
    let ids: Vec<String> = parts.iter().map(|part| id(config, part)).collect();
    let has = |strategy| strategies.contains(&strategy);
    if has(DeviceListStrategy::CdiAnnotations) || has(DeviceListStrategy::CdiCri) {
        let names = cdi_names(config, &ids, host);
        if has(DeviceListStrategy::CdiAnnotations) {
            // One answer to one question: the name is made from the devices, which no two containers have at a time.
            let text = names.join(",");
            let uuid = uuid_v4(fnv1a_64(text.as_bytes(), 0), fnv1a_64(text.as_bytes(), 1));
            let key = format!("{}{CDI_ANNOTATION}{uuid}", config.plugin.cdi_annotation_prefix);
            response.annotations.insert(key, text);
        }
        if has(DeviceListStrategy::CdiCri) {
            response.cdi_devices = names.into_iter().map(|name| api::CdiDevice { name }).collect();
        }
    }
    if config.sharing.as_ref().is_some_and(|sharing| sharing.kind == SharingKind::Mps)
        && parts.iter().any(|part| part.is_shared)
    {
        mps(config, resource, &mut response);
    }
    for (enabled, name) in
        [(config.gdrcopy, "NVIDIA_GDRCOPY"), (config.gds, "NVIDIA_GDS"), (config.mofed, "NVIDIA_MOFED")]
    {
        if enabled {
            response.envs.insert(name.to_owned(), "enabled".to_owned());
        }
    }
    let (envvar, mounts) = (has(DeviceListStrategy::Envvar), has(DeviceListStrategy::VolumeMounts));
    if envvar {
        response.envs.insert(VISIBLE_DEVICES.to_owned(), ids.join(","));
        if !host.channels.is_empty() {
            let channels: Vec<String> = host.channels.iter().map(u32::to_string).collect();
            response.envs.insert("NVIDIA_IMEX_CHANNELS".to_owned(), channels.join(","));
        }
    }
    if mounts {
        response.envs.insert(VISIBLE_DEVICES.to_owned(), MOUNT_ROOT.to_owned());
        let names = ids.iter().cloned().chain(host.channels.iter().map(|channel| format!("imex/{channel}")));
        response.mounts.extend(names.map(|name| mount("/dev/null", &format!("{MOUNT_ROOT}/{name}"))));
    }
    if (envvar || mounts) && config.plugin.pass_device_specs {
        response.devices = device_files(config, parts, host)?;
    }
    Ok(response)
}

fn id(config: &Config, part: &Part<'_>) -> String {
    match (config.plugin.device_id_strategy, part.partition) {
        (DeviceIdStrategy::Uuid, _) => part.id().to_string(),
        (DeviceIdStrategy::Index, None) => part.gpu.index.to_string(),
        (DeviceIdStrategy::Index, Some(partition)) => format!("{}:{}", part.gpu.index, partition.index),
    }
}

fn cdi_names(config: &Config, ids: &[String], host: &Host) -> Vec<String> {
    let gpus = ids.iter().map(|id| format!("{CDI_VENDOR}/gpu={id}"));
    let channels = host.channels.iter().map(|channel| format!("{CDI_VENDOR}/imex-channel={channel}"));
    let features = [(config.gdrcopy, "gdrcopy"), (config.gds, "gds"), (config.mofed, "mofed")];
    let features = features.into_iter().filter(|(enabled, _)| *enabled);
    gpus.chain(channels).chain(features.map(|(_, class)| format!("{CDI_VENDOR}/{class}=all"))).collect()
}

fn mps(config: &Config, resource: &str, response: &mut api::ContainerAllocateResponse) {
    let host = config.mps_root.as_deref().unwrap_or(Path::new(MPS_ROOT));
    let pipe = format!("{MPS_ROOT}/{resource}/pipe");
    let on_host = |path: &str| host.join(path).to_string_lossy().into_owned();
    response.mounts.push(mount(&on_host(&format!("{resource}/pipe")), &pipe));
    response.mounts.push(mount(&on_host("shm"), "/dev/shm"));
    response.envs.insert("CUDA_MPS_PIPE_DIRECTORY".to_owned(), pipe);
}

fn mount(host_path: &str, container_path: &str) -> api::Mount {
    api::Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.to_owned(),
        read_only: false,
    }
}

fn device_files(config: &Config, parts: &[Part<'_>], host: &Host) -> Result<Vec<api::DeviceSpec>, Error> {
    let mut paths: Vec<String> = host.common.iter().map(|path| (*path).to_owned()).collect();
    let mut add = |path: String| {
        if !paths.contains(&path) {
            paths.push(path);
        }
    };
    for part in parts {
        let minor = part.gpu.minor;
        add(format!("/dev/nvidia{minor}"));
        let Some(partition) = part.partition else {
            continue;
        };
        for compute in [None, Some(partition.compute_instance)] {
            let number = host.capabilities.get(&(minor, partition.gpu_instance, compute));
            let number = number.ok_or_else(|| Error::NoCapability {
                partition: partition.id.clone(),
                minor,
                gpu_instance: partition.gpu_instance,
                compute_instance: partition.compute_instance,
            })?;
            add(format!("/dev/nvidia-caps/nvidia-cap{number}"));
        }
    }
    paths.extend(host.channels.iter().map(|id| channel(*id)));
    let spec = |path: String| api::DeviceSpec {
        host_path: config.dev_root.join(path.trim_start_matches('/')).to_string_lossy().into_owned(),
        container_path: path,
        permissions: "rw".to_owned(),
    };
    Ok(paths.into_iter().map(spec).collect())
}

/// The parts of an answer that `response` sets, as text: for files that say what is expected.
#[cfg(test)]
fn text(response: &api::ContainerAllocateResponse) -> String {
    let mut lines = Vec::new();
    let sorted = |map: &std::collections::HashMap<String, String>| {
        map.clone().into_iter().collect::<std::collections::BTreeMap<_, _>>()
    };
    lines.extend(sorted(&response.envs).into_iter().map(|(name, value)| format!("env {name}={value}")));
    lines.extend(
        response.mounts.iter().map(|mount| format!("mount {} {}", mount.host_path, mount.container_path)),
    );
    lines.extend(
        response
            .devices
            .iter()
            .map(|d| format!("device {} {} {}", d.host_path, d.container_path, d.permissions)),
    );
    lines.extend(
        sorted(&response.annotations).into_iter().map(|(key, value)| format!("annotation {key}={value}")),
    );
    lines.extend(response.cdi_devices.iter().map(|device| format!("cdi {}", device.name)));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests;
