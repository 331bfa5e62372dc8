//! One watch of pods for all simulated nodes: a thousand nodes must not be a thousand watches.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::TryStreamExt as _;
use gantry_kit::Tasks;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::mpsc;

/// The wait after a failed watch.
const RETRY: Duration = Duration::from_secs(1);

/// What a node hears.
#[derive(Debug)]
pub(crate) enum PodEvent {
    /// All pods of the node; those not in it are gone.
    Sync(Vec<Arc<Pod>>),
    /// A pod that is new or has changed.
    Update(Arc<Pod>),
    /// A pod that is gone from the API server, by UID.
    Gone(String),
}

/// The dispatcher. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hub(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By node, then by UID.
    pods: BTreeMap<String, BTreeMap<String, Arc<Pod>>>,
    nodes: BTreeMap<String, mpsc::UnboundedSender<PodEvent>>,
    synced: bool,
}

impl Hub {
    /// Starts the watch.
    pub(crate) fn start(client: Client, tasks: &Tasks) -> Self {
        let hub = Self::default();
        let task = hub.clone();
        tasks.spawn_until_cancelled(async move { task.run(client).await });
        hub
    }

    /// The events of one node from now on, beginning with all its pods. A later subscription replaces this one.
    pub(crate) fn subscribe(&self, node: &str) -> mpsc::UnboundedReceiver<PodEvent> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.state();
        if state.synced {
            let _ = sender.send(PodEvent::Sync(state.of_node(node)));
        }
        state.nodes.insert(node.to_owned(), sender);
        receiver
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, client: Client) {
        let stream = watcher(Api::<Pod>::all(client), watcher::Config::default());
        futures::pin_mut!(stream);
        let mut listed: Vec<Arc<Pod>> = Vec::new();
        loop {
            match stream.try_next().await {
                Ok(Some(watcher::Event::Init)) => listed.clear(),
                Ok(Some(watcher::Event::InitApply(pod))) => listed.push(Arc::new(pod)),
                Ok(Some(watcher::Event::InitDone)) => self.state().replace(std::mem::take(&mut listed)),
                Ok(Some(watcher::Event::Apply(pod))) => self.state().apply(Arc::new(pod)),
                Ok(Some(watcher::Event::Delete(pod))) => self.state().delete(&pod),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "the watch of pods is started again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

impl State {
    fn of_node(&self, node: &str) -> Vec<Arc<Pod>> {
        self.pods.get(node).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    fn replace(&mut self, pods: Vec<Arc<Pod>>) {
        self.pods.clear();
        for pod in pods {
            if let Some((node, uid)) = placed(&pod) {
                self.pods.entry(node.to_owned()).or_default().insert(uid.to_owned(), pod.clone());
            }
        }
        self.synced = true;
        for (node, sender) in &self.nodes {
            // A node that is off does not listen.
            let _ = sender.send(PodEvent::Sync(self.of_node(node)));
        }
    }

    fn apply(&mut self, pod: Arc<Pod>) {
        let Some((node, uid)) = placed(&pod) else { return };
        let (node, uid) = (node.to_owned(), uid.to_owned());
        if let Some(sender) = self.nodes.get(&node) {
            let _ = sender.send(PodEvent::Update(Arc::clone(&pod)));
        }
        self.pods.entry(node).or_default().insert(uid, pod);
    }

    fn delete(&mut self, pod: &Pod) {
        let Some((node, uid)) = placed(pod) else { return };
        if let Some(pods) = self.pods.get_mut(node) {
            pods.remove(uid);
        }
        if let Some(sender) = self.nodes.get(node) {
            let _ = sender.send(PodEvent::Gone(uid.to_owned()));
        }
    }
}

fn placed(pod: &Pod) -> Option<(&str, &str)> {
    let node = pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())?;
    Some((node, pod.metadata.uid.as_deref()?))
}
