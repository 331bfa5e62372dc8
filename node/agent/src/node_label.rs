//! The node's label that names its configuration, and the Event that says that it cannot be used.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Event, EventSource, Node, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, PostParams, WatchEvent, WatchParams};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::handle::Shared;
use crate::node_config::CONFIG_LABEL;

/// Waits after failures: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The label's value, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Label {
    /// The API server has not answered yet.
    Unknown,
    /// What it says; `None` where the node has no such label.
    Known(Option<String>),
}

/// Follows the label until the receiver is gone.
pub(crate) async fn follow(client: kube::Client, node: Arc<str>, label: watch::Sender<Label>) {
    let nodes: Api<Node> = Api::all(client);
    let mut delay = RETRY.0;
    let tell = |metadata: &ObjectMeta| {
        let value = metadata.labels.as_ref().and_then(|labels| labels.get(CONFIG_LABEL)).cloned();
        label.send_if_modified(|known| {
            let news = Label::Known(value);
            let changed = *known != news;
            *known = news;
            changed
        });
    };
    while !label.is_closed() {
        let read = timeout(REQUEST_TIMEOUT, nodes.get_metadata(&node)).await;
        if let Ok(Ok(found)) = read {
            delay = RETRY.0;
            tell(&found.metadata);
            let version = found.metadata.resource_version.unwrap_or_default();
            let parameters = WatchParams::default().fields(&format!("metadata.name={node}")).timeout(290);
            if let Ok(stream) = nodes.watch_metadata(&parameters, &version).await {
                let mut stream = std::pin::pin!(stream);
                loop {
                    let event = tokio::select! {
                        () = label.closed() => return,
                        event = stream.try_next() => event,
                    };
                    match event {
                        Ok(Some(WatchEvent::Added(node) | WatchEvent::Modified(node))) => {
                            tell(&node.metadata);
                        }
                        Ok(Some(WatchEvent::Bookmark(_))) => {}
                        // Deleted, out of date or at an end: what is now is asked for again.
                        Ok(Some(_) | None) | Err(_) => break,
                    }
                }
            }
        }
        tokio::select! {
            () = label.closed() => return,
            () = sleep(delay) => delay = (delay * 2).min(RETRY.1),
        }
    }
}

/// Writes an Event on the node whenever there is something new wrong with its configuration.
pub(crate) async fn complain(
    client: kube::Client,
    node: Arc<str>,
    shared: Arc<Shared>,
    clock: gantry_kit::SharedClock,
) {
    let mut faults = shared.config_fault.subscribe();
    faults.mark_changed();
    let events: Api<Event> = Api::namespaced(client, "default");
    while faults.changed().await.is_ok() {
        let Some(message) = faults.borrow_and_update().clone() else {
            continue;
        };
        let event = event(&node, message, clock.now());
        let mut delay = RETRY.0;
        loop {
            let written = timeout(REQUEST_TIMEOUT, events.create(&PostParams::default(), &event)).await;
            match written {
                Ok(Ok(_)) => break,
                // One that the server will never take is not asked again; the log has it.
                Ok(Err(kube::Error::Api(status)))
                    if (400..500).contains(&status.code) && status.code != 429 =>
                {
                    break;
                }
                _ => {
                    sleep(delay).await;
                    delay = (delay * 2).min(RETRY.1);
                }
            }
        }
    }
}

fn event(node: &str, message: String, now: jiff::Timestamp) -> Event {
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{node}.")),
            namespace: Some("default".to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            // As kubelets do, so that `kubectl describe node` finds it.
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some("InvalidDevicePluginConfig".to_owned()),
        message: Some(message.chars().take(1000).collect()),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some("gantry-agent".to_owned()), host: Some(node.to_owned()) }),
        ..Event::default()
    }
}
