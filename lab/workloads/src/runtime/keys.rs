//! Which controllers have to look again when an object changes. All of this is here, so that what can wake a
//! controller is seen in one place.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::controllers::endpoints::SERVICE_LABEL;
use crate::json::{Fields as _, Owner, selector, selects};
use crate::kinds::Kind;
use crate::pod::Pod;
use crate::store::{Change, Ref, Store};

/// How long changes of pods are gathered before their controllers look at all of them.
const POD_DEBOUNCE: Duration = Duration::from_millis(50);
/// The same for nodes, of which a thousand may come at once: each DaemonSet looks at all of them.
const NODE_DEBOUNCE: Duration = Duration::from_millis(20);
/// The same for what is only derived from pods: endpoints, budgets, quotas.
const DERIVED_DEBOUNCE: Duration = Duration::from_millis(100);

/// A controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Controller {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    /// Takes the finalizer of a Job that is gone off a pod.
    OrphanPod,
    CronJob,
    Endpoints,
    Disruption,
    Autoscaler,
    Quota,
}

impl Controller {
    /// The name under which Kubernetes' own controller emits its events.
    pub(crate) fn component(self) -> &'static str {
        match self {
            Self::Deployment => "deployment-controller",
            Self::ReplicaSet => "replicaset-controller",
            Self::StatefulSet => "statefulset-controller",
            Self::DaemonSet => "daemonset-controller",
            Self::Job | Self::OrphanPod => "job-controller",
            Self::CronJob => "cronjob-controller",
            Self::Endpoints => "endpoint-slice-controller",
            Self::Disruption => "controllermanager",
            Self::Autoscaler => "horizontal-pod-autoscaler",
            Self::Quota => "resourcequota-controller",
        }
    }

    /// The kind that the controller is named after.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Deployment => Kind::Deployment,
            Self::ReplicaSet => Kind::ReplicaSet,
            Self::StatefulSet => Kind::StatefulSet,
            Self::DaemonSet => Kind::DaemonSet,
            Self::Job => Kind::Job,
            Self::OrphanPod => Kind::Pod,
            Self::CronJob => Kind::CronJob,
            Self::Endpoints => Kind::Service,
            Self::Disruption => Kind::PodDisruptionBudget,
            Self::Autoscaler => Kind::HorizontalPodAutoscaler,
            Self::Quota => Kind::ResourceQuota,
        }
    }

    fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Deployment => Some(Self::Deployment),
            Kind::ReplicaSet => Some(Self::ReplicaSet),
            Kind::StatefulSet => Some(Self::StatefulSet),
            Kind::DaemonSet => Some(Self::DaemonSet),
            Kind::Job => Some(Self::Job),
            Kind::CronJob => Some(Self::CronJob),
            Kind::Service | Kind::Endpoints => Some(Self::Endpoints),
            Kind::PodDisruptionBudget => Some(Self::Disruption),
            Kind::HorizontalPodAutoscaler => Some(Self::Autoscaler),
            Kind::ResourceQuota => Some(Self::Quota),
            _ => None,
        }
    }
}

/// One object in the care of one controller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) controller: Controller,
    pub(crate) id: Ref,
}

impl Key {
    pub(crate) fn new(controller: Controller, namespace: &str, name: &str) -> Self {
        Self { controller, id: Ref::new(namespace, name) }
    }
}

/// Keys by the delay after which they are due.
pub(crate) type Due = BTreeMap<Key, Duration>;

fn due(keys: &mut Due, key: Key, delay: Duration) {
    keys.entry(key).and_modify(|known| *known = (*known).min(delay)).or_insert(delay);
}

/// The keys that a change makes due.
pub(crate) fn affected(store: &Store, change: &Change) -> Due {
    let mut keys = Due::new();
    let namespace = &*change.id.namespace;
    if change.kind == Kind::Pod {
        let pod = |entry: Option<&crate::store::Entry>| entry.and_then(|entry| entry.pod()).cloned();
        let (old, new) = (pod(change.old.as_ref()), pod(change.new.as_ref()));
        pod_changed(store, &change.id, old.as_deref(), new.as_deref(), &mut keys);
        return keys;
    }
    let object = |entry: Option<&crate::store::Entry>| entry.and_then(|entry| entry.object()).cloned();
    let (old, new) = (object(change.old.as_ref()), object(change.new.as_ref()));
    if let Some(controller) = Controller::of(change.kind) {
        // What an autoscaler writes into its own status must not wake it: it looks at the metrics periodically.
        let own_status = change.kind == Kind::HorizontalPodAutoscaler
            && old.as_ref().zip(new.as_ref()).is_some_and(|(old, new)| old.generation() == new.generation());
        if !own_status {
            due(&mut keys, Key { controller, id: change.id.clone() }, Duration::ZERO);
        }
    }
    for object in [&old, &new].into_iter().flatten() {
        if let Some(owner) = object.controller()
            && let Some(controller) = Kind::named(&owner.kind).and_then(Controller::of)
        {
            due(&mut keys, Key::new(controller, namespace, &owner.name), Duration::ZERO);
        }
        if change.kind == Kind::EndpointSlice
            && let Some(service) = object.label(SERVICE_LABEL)
        {
            due(&mut keys, Key::new(Controller::Endpoints, namespace, service), Duration::ZERO);
        }
    }
    match change.kind {
        Kind::Node if schedulable_part(old.as_deref()) != schedulable_part(new.as_deref()) => {
            for set in store.all(Kind::DaemonSet) {
                due(&mut keys, Key::new(Controller::DaemonSet, set.namespace(), set.name()), NODE_DEBOUNCE);
            }
        }
        Kind::ReplicaSet if new.as_ref().is_some_and(|new| new.controller().is_none()) => {
            let labels = new.as_ref().map(|new| new.labels()).unwrap_or_default();
            adopters(store, &[Kind::Deployment], namespace, &labels, &mut keys);
        }
        Kind::Job if new.is_none() => {
            let uid = old.as_ref().map_or("", |old| old.uid());
            for pod in store.owned_pods(uid).into_iter().filter(|pod| pod.is_tracked()) {
                due(&mut keys, Key { controller: Controller::OrphanPod, id: pod.id.clone() }, Duration::ZERO);
            }
        }
        _ => {}
    }
    if old.is_some() != new.is_some() {
        quotas(store, namespace, &mut keys);
    }
    keys
}

/// What of a node decides whether a DaemonSet runs a pod there.
fn schedulable_part(node: Option<&Value>) -> Option<(&Value, &Value, bool)> {
    let node = node?;
    Some((node.at("/metadata/labels"), node.at("/spec/taints"), node.is_deleting()))
}

fn quotas(store: &Store, namespace: &str, keys: &mut Due) {
    for quota in store.in_namespace(Kind::ResourceQuota, namespace) {
        due(keys, Key::new(Controller::Quota, namespace, quota.name()), DERIVED_DEBOUNCE);
    }
}

/// The objects of these kinds whose selector matches labels that nobody controls.
fn adopters(
    store: &Store,
    kinds: &[Kind],
    namespace: &str,
    labels: &BTreeMap<String, String>,
    keys: &mut Due,
) {
    for kind in kinds {
        for object in store.in_namespace(*kind, namespace) {
            if selector(object.at("/spec/selector")).is_some_and(|selector| selects(&selector, labels))
                && let Some(controller) = Controller::of(*kind)
            {
                due(keys, Key::new(controller, namespace, object.name()), POD_DEBOUNCE);
            }
        }
    }
}

fn owner_changed(store: &Store, pod: &Pod, owner: &Owner, leaves: bool, keys: &mut Due) {
    let namespace = &*pod.id.namespace;
    let Some(kind) = Kind::named(&owner.kind) else { return };
    let Some(controller) = Controller::of(kind) else { return };
    due(keys, Key::new(controller, namespace, &owner.name), POD_DEBOUNCE);
    let object = store.get(kind, &Ref::new(namespace, &owner.name));
    if kind == Kind::ReplicaSet
        && leaves
        && let Some(deployment) = object.as_ref().and_then(|set| set.controller())
    {
        // A Deployment that recreates waits for the pods of its old ReplicaSets to end.
        due(keys, Key::new(Controller::Deployment, namespace, &deployment.name), POD_DEBOUNCE);
    }
    if kind == Kind::Job && pod.is_tracked() && object.is_none_or(|job| job.uid() != owner.uid) {
        due(keys, Key { controller: Controller::OrphanPod, id: pod.id.clone() }, Duration::ZERO);
    }
}

fn pod_changed(store: &Store, id: &Ref, old: Option<&Pod>, new: Option<&Pod>, keys: &mut Due) {
    let namespace = &*id.namespace;
    let leaves = new.is_none_or(|pod| !pod.is_active());
    for pod in [old, new].into_iter().flatten() {
        if let Some(owner) = &pod.owner {
            owner_changed(store, pod, owner, leaves, keys);
        }
    }
    if let Some(pod) = new.filter(|pod| pod.owner.is_none() && !pod.deleting)
        && old.is_none_or(|old| old.owner.is_some() || old.labels != pod.labels)
    {
        let kinds = [Kind::ReplicaSet, Kind::StatefulSet, Kind::DaemonSet, Kind::Job];
        adopters(store, &kinds, namespace, &pod.labels, keys);
    }
    let served = |pod: Option<&Pod>| {
        pod.map(|pod| {
            (pod.ready, pod.deleting, pod.phase, pod.ips.clone(), pod.labels.clone(), pod.has_ended())
        })
    };
    if served(old) != served(new) {
        let selected = |labels: &dyn Fn(&Pod) -> bool| [old, new].into_iter().flatten().any(labels);
        for service in store.in_namespace(Kind::Service, namespace) {
            let wanted = service.at("/spec/selector").as_object();
            let matches = |pod: &Pod| {
                wanted.is_some_and(|wanted| {
                    !wanted.is_empty()
                        && wanted.iter().all(|(key, value)| value.as_str() == Some(pod.label(key)))
                })
            };
            if selected(&matches) {
                due(keys, Key::new(Controller::Endpoints, namespace, service.name()), DERIVED_DEBOUNCE);
            }
        }
        for budget in store.in_namespace(Kind::PodDisruptionBudget, namespace) {
            if let Some(selector) = selector(budget.at("/spec/selector"))
                && selected(&|pod: &Pod| selects(&selector, &pod.labels))
            {
                due(keys, Key::new(Controller::Disruption, namespace, budget.name()), DERIVED_DEBOUNCE);
            }
        }
    }
    let counts = |pod: Option<&Pod>| pod.map(Pod::has_ended);
    if counts(old) != counts(new) {
        quotas(store, namespace, keys);
    }
}
