//! Who is told about which change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::mpsc;

use super::Change;

/// Changes that may wait for one slow watch before it is cut off and must list again.
const QUEUE: usize = 8192;

/// What a watch can be interested in at most. Selectors narrow it further, outside the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interest {
    pub(crate) namespace: Option<String>,
    pub(crate) name: Option<String>,
    /// `spec.nodeName`: a thousand kubelets must not be woken for each other's pods.
    pub(crate) node: Option<String>,
}

impl Interest {
    /// Whether the change concerns an object that is, or was, within the interest.
    pub(crate) fn covers(&self, change: &Change) -> bool {
        let is = |wanted: &Option<String>, actual: &str| wanted.as_deref().is_none_or(|w| w == actual);
        is(&self.namespace, change.object.meta("namespace"))
            && is(&self.name, change.object.meta("name"))
            && self.node.as_deref().is_none_or(|wanted| nodes(change).any(|node| node == wanted))
    }

    fn slot(&self) -> Slot {
        if let Some(node) = &self.node {
            Slot::Node(node.clone())
        } else if let Some(name) = &self.name {
            Slot::Name(name.clone())
        } else {
            Slot::Any
        }
    }
}

fn nodes(change: &Change) -> impl Iterator<Item = &str> {
    std::iter::once(&change.object)
        .chain(&change.previous)
        .filter_map(|object| object.value["spec"]["nodeName"].as_str())
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Slot {
    Any,
    Name(String),
    Node(String),
}

struct Watch {
    interest: Interest,
    queue: mpsc::Sender<Arc<Change>>,
}

/// The watches of one resource.
#[derive(Default)]
pub(super) struct Watches {
    next: u64,
    slots: HashMap<Slot, BTreeMap<u64, Watch>>,
}

/// Receives changes in revision order. Ends after the queued ones if the receiver fell too far behind.
pub(crate) type Subscription = mpsc::Receiver<Arc<Change>>;

impl Watches {
    pub(super) fn subscribe(&mut self, interest: Interest) -> Subscription {
        let (queue, subscription) = mpsc::channel(QUEUE);
        self.next += 1;
        let slot = self.slots.entry(interest.slot()).or_default();
        slot.retain(|_, watch| !watch.queue.is_closed());
        slot.insert(self.next, Watch { interest, queue });
        subscription
    }

    pub(super) fn publish(&mut self, change: &Arc<Change>) {
        self.publish_to(&Slot::Any, change);
        self.publish_to(&Slot::Name(change.object.meta("name").to_owned()), change);
        let mut nodes: Vec<String> = nodes(change).map(str::to_owned).collect();
        nodes.dedup();
        for node in nodes {
            self.publish_to(&Slot::Node(node), change);
        }
    }

    fn publish_to(&mut self, slot: &Slot, change: &Arc<Change>) {
        let Some(watches) = self.slots.get_mut(slot) else { return };
        // A full or closed queue ends the watch: dropping the sender is what tells the receiver.
        watches.retain(|_, watch| {
            !watch.interest.covers(change) || watch.queue.try_send(change.clone()).is_ok()
        });
        if watches.is_empty() {
            self.slots.remove(slot);
        }
    }
}
