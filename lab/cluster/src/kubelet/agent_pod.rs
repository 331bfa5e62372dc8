//! The node agent as a pod, and device plugins of others.

use std::sync::Arc;

use gantry_agent::{Agent, ConfigSource, FeatureOptions, Handle, HealthOptions, Identity, Options};
use gantry_kit::CancellationToken;
use serde_json::{Value, json};

use crate::machine::Machine;
use crate::programs::Sink;
use crate::runtime::{Hardware as _, install_driver};

/// The repository of the agent's image. A container of it runs the real agent.
const AGENT_REPOSITORY: &str = "ghcr.io/gantry/agent";

/// The repository of NVIDIA's device plugin.
const NVIDIA_PLUGIN: &str = "k8s-device-plugin";

/// The label by which Node Feature Discovery marks machines with a PCI device of NVIDIA's.
pub(crate) const NVIDIA_PCI_LABEL: &str = "feature.node.kubernetes.io/pci-10de.present";

/// The resource that the agent offers.
pub(super) const GPU_RESOURCE: &str = "nvidia.com/gpu";

/// The name of the agent's DaemonSet; `grep nvidia` finds its pods.
pub(crate) const AGENT_DAEMON_SET: &str = "gantry-nvidia-agent";

fn repository(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or(image);
    image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(image, |(name, _)| name)
}

/// Whether a container of this image runs the node agent.
pub(super) fn is_agent_image(image: &str) -> bool {
    repository(image) == AGENT_REPOSITORY
}

/// Whether a container of this image is NVIDIA's own device plugin, from whatever registry.
pub(super) fn is_foreign_plugin(image: &str) -> bool {
    repository(image).rsplit('/').next() == Some(NVIDIA_PLUGIN)
}

/// The DaemonSet that runs the agent on every node with an NVIDIA card.
pub(crate) fn daemon_set() -> Value {
    let labels = json!({"app.kubernetes.io/name": AGENT_DAEMON_SET, "app.kubernetes.io/part-of": "gantry"});
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": AGENT_DAEMON_SET, "namespace": "kube-system", "labels": labels},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/name": AGENT_DAEMON_SET}},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": "system-node-critical",
                    "nodeSelector": {NVIDIA_PCI_LABEL: "true"},
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [{
                        "name": "agent",
                        "image": format!("{AGENT_REPOSITORY}:v{}", env!("CARGO_PKG_VERSION")),
                        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                        "volumeMounts": [
                            {"name": "device-plugins", "mountPath": "/var/lib/kubelet/device-plugins"},
                            {"name": "cdi", "mountPath": "/var/run/cdi"},
                        ],
                    }],
                    "volumes": [
                        {"name": "device-plugins", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}},
                        {"name": "cdi", "hostPath": {"path": "/var/run/cdi"}},
                    ],
                },
            },
        },
    })
}

/// Runs the real agent as a container's process; what it logs is the container's log. Dropping the future stops it.
pub(super) async fn run_agent(machine: Arc<Machine>, stdout: Sink) -> i32 {
    let Some(gpus) = machine.plate.gpus.clone() else {
        stdout.line("No devices found. Waiting indefinitely.");
        return std::future::pending().await;
    };
    let version = machine.hardware.driver().version;
    let driver_root = machine.plate.drivers_dir.join(&version);
    if let Err(error) = install_driver(&driver_root, &version) {
        stdout.line(format!("the agent cannot start: {error}"));
        return 1;
    }
    let options = Options {
        node_name: machine.plate.name.clone(),
        backend: gpus,
        identity: Identity::Assignment,
        nri: None,
        pod_resources: None,
        kubelet_pods: None,
        resource: GPU_RESOURCE.to_owned(),
        config: ConfigSource::default(),
        kubelet_dir: machine.plate.run_dir.join("device-plugins"),
        cdi_dir: machine.plate.cdi_dir(),
        driver_root: driver_root.into(),
        devices: None,
        state_dir: machine.plate.state_dir.clone(),
        client: Some(machine.shared.client.clone()),
        clock: machine.shared.clock.clone(),
        watch: machine.shared.folder_watch.clone(),
        // Simulated cards tell every change; a thousand agents that look for none would be all that a cluster does.
        features: FeatureOptions { interval: None, ..FeatureOptions::default() },
        health: HealthOptions::default(),
    };
    let (agent, handle) = match Agent::new(options) {
        Ok(pair) => pair,
        Err(error) => {
            stdout.line(format!("the agent cannot start: {error}"));
            return 1;
        }
    };
    let stop = CancellationToken::new();
    let _stop_on_drop = stop.clone().drop_guard();
    let task = tokio::spawn(agent.run(stop));
    let handle = Arc::new(handle);
    machine.agent_started(&handle);
    let _gone_on_drop = Registered { machine: Arc::clone(&machine), handle: Arc::clone(&handle) };
    let mut changes = handle.logs_changed();
    let mut next = 0;
    let copy = async {
        loop {
            let (lines, after) = handle.logs(next);
            next = after;
            for line in lines {
                stdout.line(&line.text);
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    };
    tokio::select! {
        () = copy => 0,
        result = task => match result {
            Ok(()) => 0,
            // A panic is an agent that crashed.
            Err(_) => 2,
        },
    }
}

/// The machine's knowledge of its agent, for as long as that runs.
struct Registered {
    machine: Arc<Machine>,
    handle: Arc<Handle>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.machine.agent_ended(&self.handle);
    }
}

/// NVIDIA's own plugin, which finds its work done.
pub(super) async fn run_foreign_plugin(node: String, stdout: Sink) -> i32 {
    stdout.line("[gantry] this program is simulated, not run: NVIDIA's device plugin");
    stdout.line(format!(
        "[gantry] Gantry's agent already serves nvidia.com/gpu on node {node}: nothing to register"
    ));
    stdout.line(format!(
        "[gantry] see: kubectl logs -n kube-system -l app.kubernetes.io/name={AGENT_DAEMON_SET}"
    ));
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_known_by_their_repository() {
        for (image, agent, foreign) in [
            ("ghcr.io/gantry/agent:v1", true, false),
            ("ghcr.io/gantry/agent@sha256:ab", true, false),
            ("nvcr.io/nvidia/k8s-device-plugin:v0.14.0", false, true),
            ("registry.local:5000/mirror/k8s-device-plugin", false, true),
            ("nvidia/k8s-device-plugin-extras:v1", false, false),
            ("nginx", false, false),
        ] {
            assert_eq!((is_agent_image(image), is_foreign_plugin(image)), (agent, foreign), "{image}");
        }
    }
}
