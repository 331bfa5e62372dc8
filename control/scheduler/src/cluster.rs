//! What has been seen of the cluster, and what it means to the engine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use gantry_api::{ASSIGNMENT_ANNOTATION, GpuNode, IdentityMode, decode_assignment};
use gantry_dialect::{advice, parse, parse_bound, parse_node};
use gantry_engine::{Event, Explanation, Phase};
use gantry_model::{
    Advice, Assignment, ContainerKind, ContainerRequest, Gpu, Node, NodeConstraints, PodKey, Reason, Request,
    Resources, Topology,
};
use kube::ResourceExt;
use kube::api::DynamicObject;
use kube::runtime::watcher;
use serde_json::{Value, json};
use tokio::time::Instant;

type PodName = (Arc<str>, Arc<str>);

/// Something to tell a pod's author.
#[derive(Debug, PartialEq)]
pub(crate) enum Notice {
    /// The pod is accepted, and yet there is something to know.
    Advice(PodKey, Advice),
    /// The pod cannot be scheduled as it is written.
    Refused(PodKey, Reason),
}

/// What is remembered of a pod.
#[derive(Debug)]
struct Pod {
    uid: Arc<str>,
    /// The version of the object that was seen last.
    version: Option<String>,
    /// When its condition `PodScheduled` changed last, as its status says.
    unscheduled_since: Option<String>,
    /// The node that it is bound to.
    node: Option<Arc<str>>,
    annotated: bool,
    /// Whether the engine knows what it holds.
    is_placed: bool,
    refused: Option<Reason>,
}

/// What is remembered of a node: from its `Node`, and from its `GpuNode`.
#[derive(Debug, Default)]
struct NodeEntry {
    node: Option<Node>,
    report: Option<Report>,
    /// Since when the node offers GPUs that no agent has described.
    undescribed: Option<Instant>,
}

/// A node agent's report.
#[derive(Debug)]
struct Report {
    gpus: Vec<Gpu>,
    topology: Topology,
    mode: IdentityMode,
    in_use: BTreeMap<PodName, Assignment>,
}

/// A list that is being received anew. It counts only when it is complete, or half a cluster would look free.
#[derive(Debug)]
struct Relist<T> {
    buffer: Option<Vec<T>>,
    done: bool,
}

impl<T> Default for Relist<T> {
    fn default() -> Self {
        Self { buffer: None, done: false }
    }
}

/// What a watch event amounts to.
enum Seen<T> {
    Nothing,
    Applied(T),
    Deleted(T),
    All(Vec<T>),
}

impl<T> Relist<T> {
    fn step(&mut self, event: watcher::Event<T>) -> Seen<T> {
        match event {
            watcher::Event::Apply(object) => Seen::Applied(object),
            watcher::Event::Delete(object) => Seen::Deleted(object),
            watcher::Event::Init => {
                self.buffer = Some(Vec::new());
                Seen::Nothing
            }
            watcher::Event::InitApply(object) => {
                self.buffer.get_or_insert_default().push(object);
                Seen::Nothing
            }
            watcher::Event::InitDone => {
                self.done = true;
                Seen::All(self.buffer.take().unwrap_or_default())
            }
        }
    }
}

/// Everything that has been seen, kept so that differences can be told to the engine.
#[derive(Debug)]
pub(crate) struct Cluster {
    scheduler_names: BTreeSet<String>,
    /// How long a node's GPUs may be undescribed before they are only counted.
    grace: Duration,
    pods: BTreeMap<PodName, Pod>,
    nodes: BTreeMap<Arc<str>, NodeEntry>,
    pod_list: Relist<DynamicObject>,
    node_list: Relist<DynamicObject>,
    report_list: Relist<GpuNode>,
    /// For the engine, in order.
    pub(crate) events: VecDeque<Event>,
    /// For pods' authors, in order.
    pub(crate) notices: VecDeque<Notice>,
}

impl Cluster {
    pub(crate) fn new(scheduler_names: BTreeSet<String>, grace: Duration) -> Self {
        Self {
            scheduler_names,
            grace,
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            pod_list: Relist::default(),
            node_list: Relist::default(),
            report_list: Relist::default(),
            events: VecDeque::new(),
            notices: VecDeque::new(),
        }
    }

    /// Whether all lists have been received once.
    pub(crate) fn is_complete(&self) -> bool {
        self.pod_list.done && self.node_list.done && self.report_list.done
    }

    /// When a node's GPUs will be counted although nobody has described them.
    pub(crate) fn next_wakeup(&self) -> Option<Instant> {
        self.nodes.values().filter_map(|entry| entry.undescribed).min().map(|since| since + self.grace)
    }

    pub(crate) fn pods(&mut self, event: watcher::Event<DynamicObject>) {
        match self.pod_list.step(event) {
            Seen::Nothing => {}
            Seen::Applied(pod) => self.pod_applied(pod),
            Seen::Deleted(pod) => self.pod_gone(&pod_name(&pod), Some(&pod.uid().unwrap_or_default())),
            Seen::All(pods) => {
                let names: BTreeSet<_> = pods.iter().map(pod_name).collect();
                let gone: Vec<_> = self.pods.keys().filter(|name| !names.contains(*name)).cloned().collect();
                for name in gone {
                    self.pod_gone(&name, None);
                }
                for pod in pods {
                    self.pod_applied(pod);
                }
            }
        }
    }

    pub(crate) fn nodes(&mut self, event: watcher::Event<DynamicObject>) {
        match self.node_list.step(event) {
            Seen::Nothing => {}
            Seen::Applied(node) => self.node_applied(node),
            Seen::Deleted(node) => self.node_gone(&node.name_any()),
            Seen::All(nodes) => {
                let names: BTreeSet<_> = nodes.iter().map(ResourceExt::name_any).collect();
                let gone = self
                    .nodes
                    .iter()
                    .filter(|(name, entry)| entry.node.is_some() && !names.contains(&***name));
                for name in gone.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
                    self.node_gone(&name);
                }
                for node in nodes {
                    self.node_applied(node);
                }
            }
        }
    }

    pub(crate) fn reports(&mut self, event: watcher::Event<GpuNode>) {
        match self.report_list.step(event) {
            Seen::Nothing => {}
            Seen::Applied(report) => self.reported(&report),
            Seen::Deleted(report) => self.report_gone(&report.name_any()),
            Seen::All(reports) => {
                let names: BTreeSet<_> = reports.iter().map(ResourceExt::name_any).collect();
                let gone = self
                    .nodes
                    .iter()
                    .filter(|(name, entry)| entry.report.is_some() && !names.contains(&***name));
                for name in gone.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
                    self.report_gone(&name);
                }
                for report in reports {
                    self.reported(&report);
                }
            }
        }
    }

    /// There is no such kind as `GpuNode` in this cluster: nothing will be reported.
    pub(crate) fn reports_are_unknown(&mut self) {
        self.report_list.done = true;
    }

    /// Takes in that time has passed.
    pub(crate) fn tick(&mut self) {
        let due = |entry: &NodeEntry| entry.undescribed.is_some_and(|since| since.elapsed() >= self.grace);
        let names: Vec<_> = self.nodes.iter().filter(|(_, e)| due(e)).map(|(name, _)| name.clone()).collect();
        for name in names {
            tracing::info!(
                node = &*name,
                "no agent describes the node's GPUs: they are counted, and the kubelet chooses"
            );
            self.refresh(&name);
        }
    }

    /// The UID of the pod of this name.
    pub(crate) fn uid(&self, namespace: &str, name: &str) -> Option<Arc<str>> {
        self.pods.get(&(namespace.into(), name.into())).map(|pod| pod.uid.clone())
    }

    /// When the pod's condition `PodScheduled` became what it is, if its status says so.
    pub(crate) fn unscheduled_since(&self, pod: &PodKey) -> Option<&str> {
        let known = self.pods.get(&(pod.namespace.clone(), pod.name.clone()))?;
        known.unscheduled_since.as_deref().filter(|_| known.uid == pod.uid)
    }

    /// The version of the pod that was seen last: a write that names it does not overwrite what has happened since.
    pub(crate) fn version(&self, pod: &PodKey) -> Option<&str> {
        let known = self.pods.get(&(pod.namespace.clone(), pod.name.clone()))?;
        known.version.as_deref().filter(|_| known.uid == pod.uid)
    }

    /// Where a pod stands that the engine does not know because of how it is written.
    pub(crate) fn explain(&self, namespace: &str, name: &str) -> Option<Explanation> {
        let key = (Arc::from(namespace), Arc::from(name));
        let pod = self.pods.get(&key)?;
        let (namespace, name) = key;
        Some(Explanation {
            pod: PodKey { namespace, name, uid: pod.uid.clone() },
            phase: Phase::Waiting,
            node: None,
            reason: Some(pod.refused.clone()?),
            refusals: None,
            ahead: 0,
            first_ahead: Vec::new(),
        })
    }

    fn pod_applied(&mut self, object: DynamicObject) {
        let name = pod_name(&object);
        let uid: Arc<str> = object.uid().unwrap_or_default().into();
        if self.pods.get(&name).is_some_and(|known| known.uid != uid) {
            self.pod_gone(&name, None);
        }
        let terminating = object.metadata.deletion_timestamp.is_some();
        let (annotation, version) =
            (object.annotations().get(ASSIGNMENT_ANNOTATION).cloned(), object.resource_version());
        let pod = to_value(object);
        let spec = &pod["spec"];
        let bound: Option<Arc<str>> =
            spec["nodeName"].as_str().filter(|node| !node.is_empty()).map(Arc::from);
        let ended = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let scheduler = spec["schedulerName"].as_str().unwrap_or("default-scheduler");
        let ours = self.scheduler_names.contains(scheduler);
        if ended || bound.is_none() && (terminating || !ours) {
            return self.pod_gone(&name, None);
        }
        let is_new = !self.pods.contains_key(&name);
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let scheduled = conditions.into_iter().find(|condition| condition["type"] == "PodScheduled");
        let since =
            scheduled.filter(|c| c["status"] == "False").and_then(|c| c["lastTransitionTime"].as_str());
        let known = self.pods.entry(name.clone()).or_insert_with(|| Pod {
            uid: uid.clone(),
            version: None,
            unscheduled_since: None,
            node: None,
            annotated: false,
            is_placed: false,
            refused: None,
        });
        known.version = version;
        known.unscheduled_since = since.map(str::to_owned);
        known.node.clone_from(&bound);
        let key = PodKey { namespace: name.0.clone(), name: name.1.clone(), uid };
        match bound {
            Some(node) => self.pod_bound(&name, key, node, &pod, annotation.as_deref()),
            None => self.pod_pending(&name, key, &pod, is_new),
        }
    }

    fn pod_pending(&mut self, name: &PodName, key: PodKey, pod: &Value, is_new: bool) {
        if is_new {
            self.notices.extend(advice(pod).into_iter().map(|advice| Notice::Advice(key.clone(), advice)));
        }
        let Some(known) = self.pods.get_mut(name) else { return };
        match parse(pod) {
            Ok(request) => {
                known.refused = None;
                self.events.push_back(Event::PodPending(request));
            }
            Err(reason) => {
                if known.refused.as_ref() != Some(&reason) {
                    self.notices.push_back(Notice::Refused(key.clone(), reason.clone()));
                }
                known.refused = Some(reason);
                self.events.push_back(Event::PodWithdrawn { uid: key.uid });
            }
        }
    }

    fn pod_bound(
        &mut self,
        name: &PodName,
        key: PodKey,
        node: Arc<str>,
        pod: &Value,
        annotation: Option<&str>,
    ) {
        let Some(known) = self.pods.get_mut(name) else { return };
        known.refused = None;
        let assignment = annotation.and_then(|text| match decode_assignment(text) {
            Ok(assignment) => Some(assignment),
            Err(error) => {
                tracing::warn!(pod = %key, %error, "the assignment of a bound pod cannot be read");
                None
            }
        });
        known.annotated = assignment.is_some();
        let request = match parse_bound(pod) {
            Ok(request) => request,
            Err(reason) if known.is_placed => {
                tracing::warn!(pod = %key, %reason, "a bound pod can no longer be read: it keeps what it had");
                return;
            }
            Err(reason) => {
                tracing::warn!(pod = %key, %reason, "a bound pod cannot be read: it is taken to hold its assignment");
                at_least(key, node.clone(), assignment.as_ref())
            }
        };
        known.is_placed = true;
        let has_gpus = request.gpus > 0;
        self.events.push_back(Event::PodBound { request, assignment });
        if has_gpus {
            self.tell_devices(name, &node);
        }
    }

    fn pod_gone(&mut self, name: &PodName, uid: Option<&str>) {
        // A late end of an earlier pod of this name is not the end of this one.
        if uid.is_none_or(|uid| self.pods.get(name).is_some_and(|pod| *pod.uid == *uid))
            && let Some(pod) = self.pods.remove(name)
        {
            self.events.push_back(Event::PodGone { uid: pod.uid });
        }
    }

    fn node_applied(&mut self, object: DynamicObject) {
        let name: Arc<str> = object.name_any().into();
        match parse_node(&to_value(object)) {
            Ok(node) => self.nodes.entry(name.clone()).or_default().node = Some(node),
            Err(reason) => {
                tracing::warn!(node = &*name, %reason, "a node cannot be read: it gets no pods");
                self.nodes.entry(name.clone()).or_default().node = None;
            }
        }
        self.refresh(&name);
    }

    fn node_gone(&mut self, name: &str) {
        let name: Arc<str> = name.into();
        if let Some(entry) = self.nodes.get_mut(&name) {
            entry.node = None;
            self.refresh(&name);
        }
    }

    fn reported(&mut self, object: &GpuNode) {
        let name: Arc<str> = object.name_any().into();
        let Some(status) = &object.status else { return self.report_gone(&name) };
        let (gpus, topology) = match status.to_model(&name) {
            Ok(model) => model,
            Err(error) => {
                tracing::warn!(node = &*name, %error, "a report cannot be read: the last one stays");
                return;
            }
        };
        let mut in_use: BTreeMap<PodName, Assignment> = BTreeMap::new();
        for entry in &status.in_use {
            let ids: Result<Vec<_>, _> = entry.gpus.iter().map(|id| id.parse()).collect();
            let Ok(ids) = ids else { continue };
            let pod = (entry.namespace.as_str().into(), entry.pod.as_str().into());
            let used = in_use
                .entry(pod)
                .or_insert_with(|| Assignment { node: name.clone(), containers: BTreeMap::new() });
            used.containers.insert(entry.container.as_str().into(), ids);
        }
        let pods: Vec<_> = in_use.keys().cloned().collect();
        let report = Report { gpus, topology, mode: status.mode, in_use };
        self.nodes.entry(name.clone()).or_default().report = Some(report);
        self.refresh(&name);
        for pod in pods {
            self.tell_devices(&pod, &name);
        }
    }

    fn report_gone(&mut self, name: &str) {
        let name: Arc<str> = name.into();
        if let Some(entry) = self.nodes.get_mut(&name) {
            entry.report = None;
            self.refresh(&name);
        }
    }

    /// Tells the engine which devices a pod uses, where the node knows better than the annotation.
    fn tell_devices(&mut self, pod: &PodName, node: &Arc<str>) {
        let report = self.nodes.get(node).and_then(|entry| entry.report.as_ref());
        let known = self.pods.get(pod).filter(|known| known.node.as_ref() == Some(node));
        if let (Some(known), Some(report)) = (known, report)
            && (report.mode == IdentityMode::Kubelet || !known.annotated)
            && let Some(assignment) = report.in_use.get(pod)
        {
            let (uid, assignment) = (known.uid.clone(), assignment.clone());
            self.events.push_back(Event::DevicesReported { uid, assignment });
        }
    }

    /// Tells the engine what a node is now, put together from both sources.
    fn refresh(&mut self, name: &Arc<str>) {
        let Some(entry) = self.nodes.get_mut(name) else { return };
        let Some(mut node) = entry.node.clone() else {
            entry.undescribed = None;
            if entry.report.is_none() {
                self.nodes.remove(name);
            }
            self.events.push_back(Event::NodeRemoved { name: name.clone() });
            return;
        };
        if let Some(report) = &entry.report {
            entry.undescribed = None;
            node.gpus.clone_from(&report.gpus);
            node.topology.clone_from(&report.topology);
        } else if node.allocatable_gpus > 0 {
            // The agent's report may come a moment after the kubelet's count. Until it is clear that there is no agent, a pod
            // without an assignment would keep all of the node's GPUs from others.
            let since = *entry.undescribed.get_or_insert_with(Instant::now);
            if since.elapsed() < self.grace {
                node.allocatable_gpus = 0;
            }
        } else {
            entry.undescribed = None;
        }
        self.events.push_back(Event::NodeUpserted(node));
    }
}

/// The least that a bound pod can have asked for, when nothing but its assignment can be read.
fn at_least(pod: PodKey, node: Arc<str>, assignment: Option<&Assignment>) -> Request {
    let count = |gpus: usize| u32::try_from(gpus).unwrap_or(u32::MAX);
    let containers = assignment.iter().flat_map(|assignment| &assignment.containers);
    let container = |(name, gpus): (&Arc<str>, &Vec<_>)| ContainerRequest {
        name: name.clone(),
        kind: ContainerKind::App,
        gpus: count(gpus.len()),
    };
    Request {
        pod,
        scheduler_name: "".into(),
        priority: 0,
        created_s: 0,
        containers: containers.map(container).collect(),
        gpus: assignment.map_or(0, |assignment| count(assignment.gpus().len())),
        total: Resources { pods: 1, ..Resources::default() },
        constraints: NodeConstraints::default(),
        tolerations: Vec::new(),
        node_name: Some(node),
        gates: Vec::new(),
        group: None,
        origins: BTreeMap::new(),
    }
}

/// What a scheduler that starts now would tell its engine of these objects: for whoever wants the scheduler's answer without
/// asking one. Nodes whose GPUs no agent has described count as such at once.
pub fn engine_events(
    scheduler_names: BTreeSet<String>,
    nodes: Vec<DynamicObject>,
    reports: Vec<GpuNode>,
    pods: Vec<DynamicObject>,
) -> Vec<Event> {
    let mut cluster = Cluster::new(scheduler_names, Duration::ZERO);
    reports.iter().for_each(|report| cluster.reported(report));
    nodes.into_iter().for_each(|node| cluster.node_applied(node));
    pods.into_iter().for_each(|pod| cluster.pod_applied(pod));
    cluster.events.into()
}

fn pod_name(object: &DynamicObject) -> PodName {
    (object.namespace().unwrap_or_default().into(), object.name_any().into())
}

/// The object as JSON, with the part of its metadata that the dialect reads.
fn to_value(object: DynamicObject) -> Value {
    let DynamicObject { metadata, data, .. } = object;
    let mut value = if data.is_object() { data } else { json!({}) };
    value["metadata"] = json!({
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
        "labels": metadata.labels,
        "annotations": metadata.annotations,
        "creationTimestamp": metadata.creation_timestamp,
    });
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(values: &[Value]) -> Vec<DynamicObject> {
        values.iter().map(|value| serde_json::from_value(value.clone()).unwrap()).collect()
    }

    fn events(pods: &[Value]) -> Vec<Event> {
        let names = BTreeSet::from(["default-scheduler".to_owned()]);
        engine_events(names, Vec::new(), Vec::new(), objects(pods))
    }

    /// A bound pod with an amount that no API server would have stored.
    fn unreadable() -> Value {
        let assignment = r#"{"v":1,"node":"n","containers":{"c":["GPU-1","GPU-2"]}}"#;
        json!({
            "metadata": {"namespace": "d", "name": "p", "uid": "u", "annotations": {ASSIGNMENT_ANNOTATION: assignment}},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "0.5"}}}]},
        })
    }

    #[test]
    fn a_bound_pod_that_cannot_be_read_holds_its_assignment() {
        let events = events(&[unreadable()]);
        let [Event::PodBound { request, assignment: Some(assignment) }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!((request.gpus, request.node_name.as_deref()), (2, Some("n")));
        assert_eq!(assignment.gpus().len(), 2);
    }

    #[test]
    fn a_bound_pod_that_can_no_longer_be_read_keeps_what_it_had() {
        let mut good = unreadable();
        good["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = 2.into();
        let events = events(&[good, unreadable()]);
        assert!(matches!(&events[..], [Event::PodBound { .. }]), "{events:?}");
    }

    #[test]
    fn pods_that_are_nobodys_or_on_their_way_out_are_not_told() {
        let pod = |change: &dyn Fn(&mut Value)| {
            let mut pod = json!({
                "metadata": {"namespace": "d", "name": "p", "uid": "u"},
                "spec": {"containers": [{"name": "c"}]},
            });
            change(&mut pod);
            events(&[pod]).len()
        };
        assert_eq!(pod(&|_| {}), 1);
        assert_eq!(pod(&|pod| pod["spec"]["schedulerName"] = "other".into()), 0);
        assert_eq!(pod(&|pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()), 0);
        assert_eq!(pod(&|pod| pod["status"] = json!({"phase": "Failed"})), 0);
    }
}
