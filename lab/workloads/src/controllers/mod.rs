//! The controllers. Each module is a planning function and its tests; what each observes is gathered here.

mod autoscaler;
mod cron;
mod cronjob;
mod daemonset;
mod deployment;
mod disruption;
pub(crate) mod endpoints;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod indexes;
mod job;
mod pods;
pub(crate) mod quota;
mod replicaset;
mod revisions;
mod rollout;
mod statefulset;

use std::sync::{Arc, MutexGuard};

use jiff::Timestamp;
use serde_json::Value;

use crate::json::{Fields as _, selector, selects};
use crate::kinds::Kind;
use crate::plan::{Failure, Plan};
use crate::pod::Pod;
use crate::runtime::{Controller, Key, Regarding};
use crate::store::{Ref, Store};

/// Whom events of a plan are about, and the plan.
pub(crate) type Planned = (Option<Regarding>, Plan);

/// Gathers what the key's controller observes and lets it plan. `None` where there is nothing to look after.
pub(crate) fn plan(
    store: MutexGuard<'_, Store>,
    key: &Key,
    failure: Option<&Failure>,
    now: Timestamp,
) -> Option<Planned> {
    if key.controller == Controller::CronJob {
        let cron = store.get(Kind::CronJob, &key.id)?;
        let jobs = store.owned(Kind::Job, cron.uid());
        // Time zones are files, and nobody should wait for a disk to get at the store.
        drop(store);
        let zone = cronjob::zone(cron.text("/spec/timeZone"));
        let plan = cronjob::plan(&cron, &jobs, &zone, now);
        return Some((Some(Regarding::object(Kind::CronJob, &cron)), plan));
    }
    plan_in(&store, key, failure, now)
}

fn plan_in(store: &Store, key: &Key, failure: Option<&Failure>, now: Timestamp) -> Option<Planned> {
    let namespace = &*key.id.namespace;
    if key.controller == Controller::OrphanPod {
        return Some((None, orphan(store, &key.id)?));
    }
    let kind = key.controller.kind();
    let Some(object) = store.get(kind, &key.id) else {
        let endpoints = store.get(Kind::Endpoints, &key.id);
        return (key.controller == Controller::Endpoints)
            .then(|| (None, endpoints::gone(endpoints.as_deref())));
    };
    let object = &*object;
    let plan = match key.controller {
        Controller::Deployment => deployment(store, object, failure, now),
        Controller::ReplicaSet => match claimed(store, kind, object) {
            Ok(pods) => replicaset::plan(object, &pods, failure, now),
            Err(plan) => plan,
        },
        Controller::Job => match claimed(store, kind, object) {
            Ok(pods) => job::plan(object, &pods, now),
            Err(plan) => plan,
        },
        Controller::StatefulSet => match claimed(store, kind, object) {
            Ok(pods) => {
                let revisions = store.owned(Kind::ControllerRevision, object.uid());
                let has_claim =
                    |name: &str| store.get(Kind::PersistentVolumeClaim, &Ref::new(namespace, name)).is_some();
                let observed = statefulset::Observed {
                    set: object,
                    pods: &pods,
                    revisions: &revisions,
                    has_claim: &has_claim,
                    failure,
                };
                statefulset::plan(&observed, now)
            }
            Err(plan) => plan,
        },
        Controller::DaemonSet => match claimed(store, kind, object) {
            Ok(pods) => {
                let nodes: Vec<Arc<Value>> = store.all(Kind::Node).cloned().collect();
                let revisions = store.owned(Kind::ControllerRevision, object.uid());
                let observed = daemonset::Observed {
                    set: object,
                    nodes: &nodes,
                    pods: &pods,
                    revisions: &revisions,
                    failure,
                };
                daemonset::plan(&observed, now)
            }
            Err(plan) => plan,
        },
        Controller::Endpoints => service(store, object),
        Controller::Disruption => disruption(store, object, now),
        Controller::Autoscaler => autoscaler::plan(object, target(store, object).as_ref(), now),
        Controller::Quota => {
            let pods: Vec<Arc<Pod>> = store.pods_in(namespace).cloned().collect();
            quota::plan(object, &pods, &|resource| quota::count(store, namespace, resource))
        }
        Controller::OrphanPod | Controller::CronJob => return None,
    };
    Some((Some(Regarding::object(kind, object)), plan))
}

/// The pods of a controller; or, where some have to change hands first, the plan that does so.
fn claimed(store: &Store, kind: Kind, object: &Value) -> Result<Vec<Arc<Pod>>, Plan> {
    let owned = store.owned_pods(object.uid());
    let Some(selector) = selector(object.at("/spec/selector")) else { return Ok(owned) };
    let matching = store.select_pods(object.namespace(), &selector);
    let claim = pods::claim(kind, object, &selector, owned, &matching);
    if claim.patches.is_empty() {
        return Ok(claim.pods);
    }
    let mut plan = Plan::default();
    plan.patches(claim.patches);
    plan.again_in(0);
    Err(plan)
}

fn orphan(store: &Store, id: &Ref) -> Option<Plan> {
    let pod = store.pod(id)?;
    let owner = pod.owner.as_ref()?;
    let job = store.get(Kind::Job, &Ref::new(&id.namespace, &owner.name));
    job.is_none_or(|job| job.uid() != owner.uid).then(|| job::release(&pod))
}

fn deployment(store: &Store, object: &Value, failure: Option<&Failure>, now: Timestamp) -> Plan {
    let selector = selector(object.at("/spec/selector"));
    let orphans = store.in_namespace(Kind::ReplicaSet, object.namespace()).filter(|set| {
        set.controller().is_none()
            && !set.is_deleting()
            && selector.as_ref().is_some_and(|selector| selects(selector, &set.labels()))
    });
    let has_pods = |set: &Value| store.owned_pods(set.uid()).iter().any(|pod| !pod.has_ended());
    let observed = deployment::Observed {
        deployment: object,
        sets: store.owned(Kind::ReplicaSet, object.uid()),
        orphans: orphans.cloned().collect(),
        has_pods: &has_pods,
        failure,
    };
    deployment::plan(observed, now)
}

fn service(store: &Store, object: &Value) -> Plan {
    let selector = selector(&serde_json::json!({"matchLabels": object.at("/spec/selector")}));
    let pods = selector.map(|selector| store.select_pods(object.namespace(), &selector)).unwrap_or_default();
    let slices = store.in_namespace(Kind::EndpointSlice, object.namespace());
    let slices: Vec<Arc<Value>> = slices
        .filter(|slice| slice.label(endpoints::SERVICE_LABEL) == Some(object.name()) && !slice.is_deleting())
        .cloned()
        .collect();
    let known = store.get(Kind::Endpoints, &Ref::new(object.namespace(), object.name()));
    let zone = |node: &str| {
        let node = store.get(Kind::Node, &Ref::new("", node))?;
        node.label("topology.kubernetes.io/zone").map(str::to_owned)
    };
    endpoints::plan(&endpoints::Observed {
        service: object,
        pods: &pods,
        slices: &slices,
        endpoints: known.as_deref(),
        zone: &zone,
    })
}

fn disruption(store: &Store, object: &Value, now: Timestamp) -> Plan {
    let selector = selector(object.at("/spec/selector"));
    let pods = selector.map(|selector| store.select_pods(object.namespace(), &selector)).unwrap_or_default();
    let scale_of = |pod: &Pod| {
        let mut owner = pod.owner.clone()?;
        loop {
            let kind = Kind::named(&owner.kind)
                .filter(|kind| matches!(kind, Kind::ReplicaSet | Kind::Deployment | Kind::StatefulSet))?;
            let object = store.get(kind, &Ref::new(&pod.id.namespace, &owner.name))?;
            match object.controller() {
                Some(above) if kind == Kind::ReplicaSet => owner = above,
                _ => return Some((object.uid().to_owned(), object.int("/spec/replicas").unwrap_or(1))),
            }
        }
    };
    disruption::plan(object, &pods, &scale_of, now)
}

fn target(store: &Store, scaler: &Value) -> Option<autoscaler::Target> {
    let reference = scaler.at("/spec/scaleTargetRef");
    let kind = Kind::named(reference.text("/kind"))
        .filter(|kind| matches!(kind, Kind::ReplicaSet | Kind::Deployment | Kind::StatefulSet))?;
    let id = Ref::new(scaler.namespace(), reference.text("/name"));
    let object = store.get(kind, &id)?;
    Some(autoscaler::Target { kind, id, replicas: object.int("/spec/replicas").unwrap_or(1) })
}
