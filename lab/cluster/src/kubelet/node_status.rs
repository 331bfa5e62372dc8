//! The node's own objects: its Node with capacity and conditions, and its Lease.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_kit::{micro_stamp, stamp};
use gantry_workloads::Event;
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};

use super::agent_pod::{GPU_RESOURCE, NVIDIA_PCI_LABEL};
use super::{KUBELET_VERSION, Kubelet};
use crate::device_manager::{Count, DeviceManager};

/// How often the Lease is renewed: a quarter of its duration, as kubelets do.
const LEASE_PERIOD: Duration = Duration::from_secs(10);
/// `leaseDurationSeconds`.
const LEASE_SECONDS: u32 = 40;
/// How often an unchanged status is written (`nodeStatusReportFrequency`).
const REPORT_PERIOD: Duration = Duration::from_mins(5);
/// How often the status is compared with what the API server shows (`nodeStatusUpdateFrequency`).
const COMPARE_PERIOD: Duration = Duration::from_secs(10);
/// The wait after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// CPUs and memory that a machine has for each of its GPUs, and at least.
const CPUS_PER_GPU: u64 = 16;
const MEMORY_GIB_PER_GPU: u64 = 128;
/// What the kubelet and the system keep for themselves.
const RESERVED_CPU_MILLI: u64 = 500;
const RESERVED_MEMORY_GIB: u64 = 2;
const PODS: u64 = 110;

impl Kubelet {
    /// Registers the node and keeps its status and Lease until the kubelet stops.
    pub(super) async fn report(&self) {
        // From before the first look at the devices, or a change during the registration would go unseen.
        let changes = self.devices.as_ref().map(DeviceManager::changes);
        let uid = self.register().await;
        tokio::join!(self.report_status(changes), self.renew_lease(uid));
    }

    async fn register(&self) -> String {
        let plate = &self.machine.plate;
        let api = self.nodes();
        let node = self.node();
        loop {
            let attempt = async {
                let registered = if let Some(known) = api.get_opt(&plate.name).await? {
                    known
                } else {
                    let node = serde_json::from_value(node.clone()).map_err(kube::Error::SerdeError)?;
                    api.create(&PostParams::default(), &node).await?
                };
                let labels = json!({"metadata": {"labels": node["metadata"]["labels"]}});
                api.patch(&plate.name, &PatchParams::default(), &Patch::Merge(labels)).await?;
                self.write_status(true).await?;
                Ok::<_, kube::Error>(registered.metadata.uid.unwrap_or_default())
            };
            match attempt.await {
                Ok(uid) => {
                    self.node_event("Starting", "Starting kubelet.".to_owned());
                    return uid;
                }
                Err(error) => {
                    tracing::debug!(%error, node = plate.name, "the node is not registered yet");
                    sleep(RETRY).await;
                }
            }
        }
    }

    fn nodes(&self) -> Api<k8s_openapi::api::core::v1::Node> {
        Api::all(self.machine.shared.client.clone())
    }

    /// Writes the status at every change of devices, where the API server shows another, and now and then.
    async fn report_status(&self, mut changes: Option<watch::Receiver<u64>>) {
        let mut reported = Instant::now();
        loop {
            let changed = async {
                match &mut changes {
                    Some(changes) => {
                        // The sender lives as long as the manager.
                        let _ = changes.changed().await;
                    }
                    None => std::future::pending().await,
                }
            };
            let due = tokio::select! {
                () = changed => true,
                () = sleep(COMPARE_PERIOD) => !self.is_shown().await,
            };
            let full = reported.elapsed() >= REPORT_PERIOD;
            if !due && !full {
                continue;
            }
            while let Err(error) = self.write_status(full).await {
                tracing::debug!(%error, node = self.machine.plate.name, "the node's status is not written yet");
                sleep(RETRY).await;
            }
            if full {
                reported = Instant::now();
            }
        }
    }

    fn counts(&self) -> BTreeMap<String, Count> {
        self.devices.as_ref().map(DeviceManager::counts).unwrap_or_default()
    }

    /// Whether the API server shows the resources that there are. A late write of a kubelet before this one, or of a user, may have
    /// changed them. Where it does not answer, the next comparison will tell.
    async fn is_shown(&self) -> bool {
        let Ok(node) = self.nodes().get(&self.machine.plate.name).await else { return true };
        let shown = serde_json::to_value(node.status).unwrap_or_default();
        let wanted = resources(self.machine.plate.gpu_count, &self.counts());
        ["capacity", "allocatable"].iter().all(|field| shown[field] == wanted[field])
    }

    async fn write_status(&self, full: bool) -> Result<(), kube::Error> {
        let counts = self.counts();
        let mut status = resources(self.machine.plate.gpu_count, &counts);
        if full {
            let now = self.machine.shared.clock.now();
            let known = self.nodes().get(&self.machine.plate.name).await?;
            let before =
                serde_json::to_value(known.status.and_then(|status| status.conditions)).unwrap_or_default();
            status["conditions"] = conditions(&before, now);
            let whole = self.node();
            for field in ["addresses", "daemonEndpoints", "nodeInfo"] {
                status[field] = whole["status"][field].clone();
            }
        }
        let patch = Patch::Strategic(json!({"status": status}));
        self.nodes().patch_status(&self.machine.plate.name, &PatchParams::default(), &patch).await?;
        let expected = usize::try_from(self.machine.plate.gpu_count).unwrap_or(usize::MAX);
        let offered = counts.get(GPU_RESOURCE).map_or(0, |count| count.capacity);
        self.machine.ready.send_replace(offered >= expected);
        Ok(())
    }

    async fn renew_lease(&self, node_uid: String) {
        let name = self.machine.plate.name.clone();
        let api: Api<k8s_openapi::api::coordination::v1::Lease> =
            Api::namespaced(self.machine.shared.client.clone(), "kube-node-lease");
        // Spread over the period: a thousand nodes must not renew at one instant.
        let offset = Duration::from_millis(u64::from(self.machine.plate.index) * 37 % 10_000);
        let mut timer = interval_at(Instant::now() + offset, LEASE_PERIOD);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let renewed = || micro_stamp(self.machine.shared.clock.now());
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": "kube-node-lease",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}],
            },
            "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed()},
        });
        let mut create = true;
        loop {
            let result = if create {
                match serde_json::from_value(lease.clone()) {
                    Ok(lease) => api.create(&PostParams::default(), &lease).await.map(drop),
                    Err(error) => Err(kube::Error::SerdeError(error)),
                }
            } else {
                let patch = json!({"spec": {"holderIdentity": name, "renewTime": renewed()}});
                api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
            };
            match result {
                Ok(()) => create = false,
                Err(kube::Error::Api(status)) if status.code == 409 => {
                    create = false;
                    continue;
                }
                Err(kube::Error::Api(status)) if status.code == 404 && !create => {
                    create = true;
                    continue;
                }
                Err(error) => tracing::debug!(%error, node = name, "the lease is not renewed"),
            }
            timer.tick().await;
        }
    }

    fn node_event(&self, reason: &'static str, message: String) {
        let name = &self.machine.plate.name;
        self.machine.shared.recorder.note(Event {
            // Kubelets refer to their node by name in place of its UID.
            object: json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}),
            component: "kubelet",
            host: name.clone(),
            warning: false,
            reason,
            message,
        });
    }

    /// The Node as a kubelet registers it.
    fn node(&self) -> Value {
        let machine = &self.machine;
        let plate = &machine.plate;
        let mut labels: BTreeMap<String, String> = [
            ("beta.kubernetes.io/arch", "amd64"),
            ("beta.kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("kubernetes.io/os", "linux"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        labels.insert("kubernetes.io/hostname".to_owned(), plate.name.clone());
        if plate.gpu_count > 0 {
            labels.insert(NVIDIA_PCI_LABEL.to_owned(), "true".to_owned());
        }
        labels.extend(plate.labels.clone());
        let uid = |seed: u64| {
            use gantry_kit::IdSource as _;
            gantry_kit::SeededIds::new(u64::from(plate.index) << 8 | seed).uid()
        };
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": plate.name,
                "labels": labels,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "spec": {
                "podCIDR": machine.pod_cidr(),
                "podCIDRs": [machine.pod_cidr()],
                "providerID": format!("gantry://{}", plate.name),
                "taints": plate.taints,
            },
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": machine.host_ip()},
                    {"type": "Hostname", "address": plate.name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10_250}},
                "nodeInfo": {
                    "architecture": "amd64",
                    "bootID": uid(1),
                    "containerRuntimeVersion": "containerd://2.1.4",
                    "kernelVersion": "6.8.0-gantry",
                    "kubeProxyVersion": "",
                    "kubeletVersion": KUBELET_VERSION,
                    "machineID": uid(2).replace('-', ""),
                    "operatingSystem": "linux",
                    "osImage": "Gantry (simulated)",
                    "systemUUID": uid(3),
                },
            },
        })
    }
}

/// `capacity` and `allocatable`. A resource that is gone stays with zero, as kubelets leave it.
fn resources(gpus: u32, counts: &BTreeMap<String, Count>) -> Value {
    let units = u64::from(gpus.max(1));
    let (cpu, memory) = (CPUS_PER_GPU * units, MEMORY_GIB_PER_GPU * units);
    let mut capacity: Map<String, Value> = Map::new();
    let mut allocatable = Map::new();
    let mut add = |name: &str, all: String, free: String| {
        capacity.insert(name.to_owned(), all.into());
        allocatable.insert(name.to_owned(), free.into());
    };
    let kib = |gib: u64| format!("{}Ki", gib << 20);
    add("cpu", cpu.to_string(), format!("{}m", cpu * 1_000 - RESERVED_CPU_MILLI));
    add("memory", kib(memory), kib(memory - RESERVED_MEMORY_GIB));
    add("ephemeral-storage", kib(1_024), kib(922));
    add("hugepages-1Gi", "0".to_owned(), "0".to_owned());
    add("hugepages-2Mi", "0".to_owned(), "0".to_owned());
    add("pods", PODS.to_string(), PODS.to_string());
    for (name, count) in counts {
        add(name, count.capacity.to_string(), count.allocatable.to_string());
    }
    json!({"capacity": capacity, "allocatable": allocatable})
}

/// The four conditions of a healthy node; `before` holds those that the node has.
fn conditions(before: &Value, now: Timestamp) -> Value {
    const TABLE: &[(&str, &str, &str, &str)] = &[
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ];
    let list = TABLE.iter().map(|(kind, state, reason, message)| {
        let same = before
            .as_array()
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == *kind && condition["status"] == *state);
        let since =
            same.map_or_else(|| stamp(now).into(), |condition| condition["lastTransitionTime"].clone());
        json!({
            "type": kind,
            "status": state,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": stamp(now),
            "lastTransitionTime": since,
        })
    });
    Value::Array(list.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_shows_every_device_and_allocatable_the_healthy_ones() {
        let counts = BTreeMap::from([("nvidia.com/gpu".to_owned(), Count { capacity: 8, allocatable: 7 })]);
        let status = resources(8, &counts);
        assert_eq!(status["capacity"]["nvidia.com/gpu"], "8");
        assert_eq!(status["allocatable"]["nvidia.com/gpu"], "7");
        assert_eq!(status["capacity"]["cpu"], "128");
        assert_eq!(status["allocatable"]["cpu"], "127500m");
        assert_eq!(status["capacity"]["memory"], "1073741824Ki");
    }
}
