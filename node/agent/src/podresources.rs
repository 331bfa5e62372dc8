//! Which devices the kubelet has given to whom, where the kubelet decides: the ledger follows its podresources service.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_proto::podresources::ListPodResourcesRequest;
use gantry_proto::podresources::pod_resources_lister_client::PodResourcesListerClient;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;

use crate::IdentityMode;
use crate::handle::Shared;
use crate::state::Listed;

/// How often the kubelet is asked where nothing has happened: pods end without a word to device plugins.
const PERIOD: Duration = Duration::from_secs(10);

/// How long after an allocation it is asked: the kubelet tells of a pod once it has admitted it.
const SETTLE: Duration = Duration::from_millis(500);

/// How long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most that it may answer, in bytes: its own limit.
const LONGEST: usize = 16 << 20;

/// Follows the kubelet until dropped.
pub(crate) async fn follow(shared: Arc<Shared>, socket: PathBuf) {
    let (mut told, mut contradictions) = (String::new(), Vec::new());
    loop {
        if shared.state().mode == IdentityMode::Kubelet {
            // What is recorded after the question was asked, the answer does not know.
            let known: BTreeSet<String> = shared.state().pods().map(|pod| pod.key.uid.to_string()).collect();
            match list(&socket, &resources(&shared)).await {
                Ok(listed) => {
                    told.clear();
                    shared.follow(&listed, &known, &mut contradictions);
                }
                Err(error) if error != told => {
                    shared.say(format!(
                        "Could not ask the kubelet who has which device: {error}; trying again"
                    ));
                    told = error;
                }
                Err(_) => {}
            }
        }
        tokio::select! {
            () = shared.allocated.notified() => sleep(SETTLE).await,
            () = sleep(PERIOD) => {}
        }
    }
}

/// The resources that the agent offers, or has offered.
pub(crate) fn resources(shared: &Shared) -> BTreeSet<String> {
    let mut resources: BTreeSet<String> = shared.devices.borrow().keys().map(ToString::to_string).collect();
    resources.insert(shared.state().primary().to_string());
    resources
}

/// The containers that have devices of these resources.
pub(crate) async fn list(socket: &Path, resources: &BTreeSet<String>) -> Result<Vec<Listed>, String> {
    let path = socket.to_path_buf();
    let call = async {
        let channel = Endpoint::from_static("http://localhost")
            .connect_with_connector(tower::service_fn(move |_| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            }))
            .await
            .map_err(|error| format!("connect to {}: {error}", socket.display()))?;
        let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(LONGEST);
        let answer = client.list(ListPodResourcesRequest {}).await;
        answer.map_err(|status| format!("podresources: {}", status.message()))
    };
    let answer = timeout(PATIENCE, call)
        .await
        .unwrap_or_else(|_| Err(format!("podresources: no answer within {} s", PATIENCE.as_secs())))?;
    let mut listed = Vec::new();
    for pod in answer.into_inner().pod_resources {
        for container in pod.containers {
            let devices: Vec<String> = container
                .devices
                .into_iter()
                .filter(|devices| resources.contains(&devices.resource_name))
                .flat_map(|devices| devices.device_ids)
                .collect();
            if !devices.is_empty() {
                listed.push(Listed {
                    namespace: pod.namespace.clone(),
                    pod: pod.name.clone(),
                    container: container.name,
                    devices,
                });
            }
        }
    }
    Ok(listed)
}
