//! What the containers of a real node really have, whatever anybody says: read from what the low-level runtime was given.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;
use gantry_proto::podresources::ListPodResourcesRequest;
use gantry_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use serde_json::Value;
use tonic::transport::Endpoint;

/// Where containerd keeps the configurations of running containers, those of Kubernetes.
const BUNDLES: &str = "run/containerd/io.containerd.runtime.v2.task/k8s.io";

/// NVIDIA's major device number; minors from 254 on are not cards.
const NVIDIA: u64 = 195;
const CARDS: u64 = 254;

/// A container that runs on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RealContainer {
    /// Its pod's UID.
    pub pod_uid: String,
    /// `NAMESPACE/NAME` of its pod.
    pub pod: String,
    /// Its name.
    pub name: String,
    /// The minor numbers of the cards whose device files it has.
    pub cards: BTreeSet<u64>,
}

/// The containers of the node whose file system lies at `root`, without sandboxes.
pub(crate) fn containers(root: &Path) -> anyhow::Result<Vec<RealContainer>> {
    let folder = root.join(BUNDLES);
    let mut containers = Vec::new();
    let bundles = match std::fs::read_dir(&folder) {
        // The first container makes it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(containers),
        bundles => bundles.with_context(|| format!("read {}", folder.display()))?,
    };
    for entry in bundles {
        let bundle = entry?.path();
        // A container that is just coming or going has none, or half of one.
        let Ok(text) = std::fs::read(bundle.join("config.json")) else { continue };
        let Ok(config) = serde_json::from_slice::<Value>(&text) else { continue };
        if has_ended(root, &bundle) {
            continue;
        }
        let annotation = |name: &str| {
            config["annotations"][format!("io.kubernetes.cri.{name}")].as_str().unwrap_or_default().to_owned()
        };
        if annotation("container-type") != "container" {
            continue;
        }
        let devices = config["linux"]["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
        let cards = devices
            .iter()
            .filter(|device| device["major"] == NVIDIA)
            .filter_map(|device| device["minor"].as_u64())
            .filter(|minor| *minor < CARDS);
        containers.push(RealContainer {
            pod_uid: annotation("sandbox-uid"),
            pod: format!("{}/{}", annotation("sandbox-namespace"), annotation("sandbox-name")),
            name: annotation("container-name"),
            cards: cards.collect(),
        });
    }
    Ok(containers)
}

/// Whether the process of a container is over. Nobody clears away after it while containerd is down.
fn has_ended(root: &Path, bundle: &Path) -> bool {
    let Ok(pid) = std::fs::read_to_string(bundle.join("init.pid")) else { return false };
    let Ok(stat) = std::fs::read_to_string(root.join("proc").join(pid.trim()).join("stat")) else {
        return true;
    };
    // `PID (NAME) STATE`, and a name may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

/// How many devices of `nvidia.com/gpu` the kubelet says that each container has, by `NAMESPACE/POD/CONTAINER`.
pub(crate) async fn kubelet(root: &Path) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let socket = root.join("var/lib/kubelet/pod-resources/kubelet.sock");
    let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))?.connect().await?;
    let mut client = PodResourcesListerClient::new(channel);
    let list = client.list(ListPodResourcesRequest {}).await?.into_inner();
    let mut found = BTreeMap::new();
    for pod in list.pod_resources {
        for container in pod.containers {
            let devices =
                container.devices.into_iter().filter(|device| device.resource_name == "nvidia.com/gpu");
            let ids: BTreeSet<String> = devices.flat_map(|device| device.device_ids).collect();
            if !ids.is_empty() {
                found.insert(format!("{}/{}/{}", pod.namespace, pod.name, container.name), ids);
            }
        }
    }
    Ok(found)
}
