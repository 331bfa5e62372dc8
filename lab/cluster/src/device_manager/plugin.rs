//! One registered plugin: its connection and the stream of its devices.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_proto::deviceplugin::device_plugin_client::DevicePluginClient;
use gantry_proto::deviceplugin::{self, DevicePluginOptions, Empty};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};

use super::{DeviceManager, Resource};

/// How long the kubelet tries to reach a plugin that has just registered.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// gRPC's default limit, which the kubelet keeps: a plugin with too many devices is not heard.
const MAX_MESSAGE: usize = 4 * 1024 * 1024;

/// A device as the plugin reported it last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) healthy: bool,
    /// NUMA nodes; empty if the plugin does not tell.
    pub(super) numa: Vec<i64>,
}

/// A connection to a plugin. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Plugin(Channel);

impl Plugin {
    pub(super) fn client(&self) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(self.0.clone()).max_decoding_message_size(MAX_MESSAGE)
    }
}

impl DeviceManager {
    /// Takes over a plugin that has registered: replaces the endpoint before, connects, and follows its devices.
    pub(super) fn add_plugin(&self, resource: String, socket: String, options: DevicePluginOptions) {
        let manager = self.clone();
        let generation = {
            let mut state = self.state();
            let known = state.resources.entry(resource.clone()).or_insert_with(|| Resource {
                generation: 0,
                devices: BTreeMap::new(),
                plugin: None,
                options,
                stopped: None,
            });
            known.generation += 1;
            known.options = options;
            known.generation
        };
        self.0.tasks.spawn_until_cancelled(async move {
            if let Err(error) = manager.follow(&resource, generation, &socket).await {
                tracing::debug!(%resource, %socket, error = %error.message(), "device plugin ended");
            }
            manager.plugin_gone(&resource, generation);
        });
    }

    async fn follow(&self, resource: &str, generation: u64, socket: &str) -> Result<(), tonic::Status> {
        let endpoint = Endpoint::from_shared(format!("unix://{socket}"))
            .map_err(|error| tonic::Status::unavailable(error.to_string()))?
            .connect_timeout(CONNECT_TIMEOUT);
        let channel =
            endpoint.connect().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let plugin = Plugin(channel);
        let mut client = plugin.client();
        if !self.update(resource, generation, |known| known.plugin = Some(plugin)) {
            return Ok(());
        }
        let mut stream = client.list_and_watch(Empty {}).await?.into_inner();
        while let Some(message) = stream.message().await? {
            let devices: BTreeMap<String, Device> = message
                .devices
                .into_iter()
                .map(|device| {
                    let numa =
                        device.topology.into_iter().flat_map(|topology| topology.nodes).map(|node| node.id);
                    let healthy = device.health == deviceplugin::HEALTHY;
                    (device.id, Device { healthy, numa: numa.collect() })
                })
                .collect();
            let current = self.update(resource, generation, |known| {
                known.devices = devices;
                known.stopped = None;
            });
            if !current {
                return Ok(());
            }
            self.save();
            self.notify();
        }
        Ok(())
    }

    /// Changes a resource unless another plugin has taken it over.
    fn update(&self, resource: &str, generation: u64, change: impl FnOnce(&mut Resource)) -> bool {
        let mut state = self.state();
        match state.resources.get_mut(resource) {
            Some(known) if known.generation == generation => {
                change(known);
                true
            }
            _ => false,
        }
    }

    /// All devices are unhealthy at once; the resource itself goes after the grace period.
    fn plugin_gone(&self, resource: &str, generation: u64) {
        let current = self.update(resource, generation, |known| {
            known.plugin = None;
            known.stopped = Some(Instant::now());
            for device in known.devices.values_mut() {
                device.healthy = false;
            }
        });
        if !current {
            return;
        }
        self.notify();
        let manager = self.clone();
        self.0.tasks.spawn_until_cancelled(async move {
            tokio::time::sleep(super::ENDPOINT_GRACE).await;
            manager.notify();
        });
    }
}
