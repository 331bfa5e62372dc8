//! DaemonSet: one pod on each node that it fits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gantry_dialect::{parse_constraints, parse_node, parse_toleration};
use gantry_model::{TaintEffect, Toleration};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::replicaset::generate_name;
use super::revisions::{self, REVISION_LABEL, Revision};
use crate::json::{Fields as _, controller_reference, entry, int_or_percent, status_diff, without_zeros};
use crate::kinds::Kind;
use crate::plan::{Create, Delete, Failure, Note, Patch, Plan};
use crate::pod::{Phase, Pod, from_template};
use crate::store::Ref;

/// Taints that every pod of a DaemonSet tolerates: key and effect.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// The one that pods on the host's network tolerate besides.
const NETWORK: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

/// What is observed of a DaemonSet.
pub(crate) struct Observed<'a> {
    pub(crate) set: &'a Value,
    pub(crate) nodes: &'a [Arc<Value>],
    /// The pods it controls.
    pub(crate) pods: &'a [Arc<Pod>],
    /// The ControllerRevisions it controls.
    pub(crate) revisions: &'a [Arc<Value>],
    pub(crate) failure: Option<&'a Failure>,
}

/// What to do for a DaemonSet.
pub(crate) fn plan(observed: &Observed<'_>, now: Timestamp) -> Plan {
    let set = observed.set;
    let mut plan = Plan::default();
    let update = revisions::settle(Kind::DaemonSet, set, observed.revisions, observed.failure, &mut plan);
    let run = Run::new(observed, update, now);
    if !set.is_deleting() {
        run.manage(&mut plan);
        if plan.is_quiet() && set.text("/spec/updateStrategy/type") != "OnDelete" {
            run.roll(&mut plan);
        }
    }
    let waits = observed.pods.iter().filter_map(|pod| pod.seconds_to_available(run.min_ready, now));
    if let Some(soonest) = waits.filter(|seconds| *seconds > 0).min() {
        plan.again_in(soonest);
    }
    if let Some(patch) = status_diff(set, &run.status()) {
        plan.patch(Patch::status(Kind::DaemonSet, &Ref::new(set.namespace(), set.name()), patch));
    }
    let in_use = |revision: &Value| {
        let hash = revision.label(REVISION_LABEL).unwrap_or("");
        hash == run.update.hash || observed.pods.iter().any(|pod| pod.label(REVISION_LABEL) == hash)
    };
    revisions::truncate(set, observed.revisions, &in_use, &mut plan);
    plan
}

struct Run<'a> {
    observed: &'a Observed<'a>,
    update: Revision,
    now: Timestamp,
    min_ready: i64,
    tolerations: Vec<Value>,
    by_node: BTreeMap<&'a str, Vec<&'a Arc<Pod>>>,
    /// Each node with whether a pod should be started there, and whether one that runs there may go on.
    nodes: Vec<(&'a Value, bool, bool)>,
}

impl<'a> Run<'a> {
    fn new(observed: &'a Observed<'a>, update: Revision, now: Timestamp) -> Self {
        let spec = observed.set.at("/spec/template/spec");
        let mut by_node: BTreeMap<&str, Vec<&Arc<Pod>>> = BTreeMap::new();
        for pod in observed.pods {
            by_node.entry(pod.target_node.as_str()).or_default().push(pod);
        }
        for pods in by_node.values_mut() {
            // Bound pods come first, then the oldest.
            pods.sort_by_key(|pod| (pod.node.is_empty(), pod.created, pod.id.clone()));
        }
        let tolerations = tolerations(spec);
        Self {
            observed,
            update,
            now,
            min_ready: observed.set.int("/spec/minReadySeconds").unwrap_or(0),
            nodes: wants(spec, &tolerations, observed.nodes),
            tolerations,
            by_node,
        }
    }

    /// The nodes on which a pod should run.
    fn wanted(&self) -> impl Iterator<Item = &'a Value> {
        self.nodes.iter().filter(|(_, should_run, _)| *should_run).map(|(node, ..)| *node)
    }

    fn surge(&self) -> i64 {
        self.bound("maxSurge", 0)
    }

    fn bound(&self, field: &str, default: i64) -> i64 {
        let nodes = i64::try_from(self.wanted().count()).unwrap_or(i64::MAX);
        let value = self.observed.set.at(&format!("/spec/updateStrategy/rollingUpdate/{field}"));
        int_or_percent(value, nodes, true).unwrap_or(default)
    }

    fn pods_on(&self, node: &str) -> &[&'a Arc<Pod>] {
        self.by_node.get(node).map_or(&[], Vec::as_slice)
    }

    fn is_updated(&self, pod: &Pod) -> bool {
        pod.label(REVISION_LABEL) == self.update.hash
    }

    fn is_available(&self, pod: &Pod) -> bool {
        !pod.deleting && pod.is_available(self.min_ready, self.now)
    }

    /// Puts one pod on each node that wants one, and takes away what is elsewhere, ended or too many.
    fn manage(&self, plan: &mut Plan) {
        let (mut creates, mut deletes) = (Vec::new(), Vec::new());
        let surges = self.surge() > 0;
        for (node, should_run, may_go_on) in self.nodes.iter().filter(|(node, ..)| !node.is_deleting()) {
            let pods = self.pods_on(node.name());
            if !*may_go_on {
                deletes.extend(
                    pods.iter().filter(|pod| !pod.deleting).map(|pod| Delete::pod(&pod.id, &pod.uid)),
                );
                continue;
            }
            if pods.is_empty() {
                if *should_run {
                    creates.push(Create::pod(self.pod(node.name())));
                }
                continue;
            }
            for pod in pods.iter().filter(|pod| pod.has_ended() && !pod.deleting) {
                let (namespace, name, node) = (&pod.id.namespace, &pod.id.name, node.name());
                let (reason, kind) = if pod.phase == Phase::Failed {
                    ("FailedDaemonPod", "failed")
                } else {
                    ("SucceededDaemonPod", "succeeded")
                };
                let message =
                    format!("Found {kind} daemon pod {namespace}/{name} on node {node}, will try to kill it");
                plan.event(Note { warning: kind == "failed", reason, message });
                deletes.push(Delete::pod(&pod.id, &pod.uid));
            }
            let mut active = pods.iter().filter(|pod| pod.is_active());
            if !surges {
                deletes.extend(active.skip(1).map(|pod| Delete::pod(&pod.id, &pod.uid)));
            } else if let Some(first) = active.next() {
                // While surging, one pod of each revision may be there.
                let twins = active.filter(|pod| self.is_updated(pod) == self.is_updated(first));
                deletes.extend(twins.map(|pod| Delete::pod(&pod.id, &pod.uid)));
            }
        }
        let known: BTreeSet<&str> = self.nodes.iter().map(|(node, ..)| node.name()).collect();
        let stray = self.observed.pods.iter().filter(|pod| {
            !pod.deleting && !pod.target_node.is_empty() && !known.contains(pod.target_node.as_str())
        });
        deletes.extend(stray.map(|pod| Delete::pod(&pod.id, &pod.uid)));
        plan.deletes(deletes);
        plan.creates(creates);
    }

    /// Replaces pods of another revision within the bounds of the strategy.
    fn roll(&self, plan: &mut Plan) {
        if self.surge() > 0 {
            self.roll_surging(plan);
            return;
        }
        let mut unavailable = 0;
        let (mut broken, mut candidates) = (Vec::new(), Vec::new());
        for node in self.wanted() {
            let pods = self.pods_on(node.name());
            let old = pods.iter().find(|pod| !self.is_updated(pod));
            match (pods.iter().find(|pod| self.is_updated(pod)), old) {
                (Some(new), _) if self.is_available(new) => {}
                (Some(_), _) | (None, None) => unavailable += 1,
                (None, Some(old)) if self.is_available(old) => candidates.push(*old),
                (None, Some(old)) => {
                    unavailable += 1;
                    if !old.deleting {
                        broken.push(*old);
                    }
                }
            }
        }
        let room = usize::try_from(self.bound("maxUnavailable", 1) - unavailable).unwrap_or(0);
        candidates.truncate(room);
        let pods = broken.into_iter().chain(candidates);
        plan.deletes(pods.map(|pod| Delete::pod(&pod.id, &pod.uid)).collect());
    }

    /// The new pod comes first; the old one goes when the new one is available.
    fn roll_surging(&self, plan: &mut Plan) {
        let (mut deletes, mut waiting, mut surging) = (Vec::new(), Vec::new(), 0);
        for node in self.wanted() {
            let pods = self.pods_on(node.name());
            let old = pods.iter().find(|pod| !self.is_updated(pod));
            let Some(old) = old else { continue };
            match pods.iter().find(|pod| self.is_updated(pod)) {
                Some(new) if self.is_available(new) && !old.deleting => {
                    deletes.push(Delete::pod(&old.id, &old.uid));
                }
                Some(_) => surging += 1,
                None if self.is_available(old) => waiting.push(node.name()),
                None if !old.deleting => deletes.push(Delete::pod(&old.id, &old.uid)),
                None => {}
            }
        }
        let room = usize::try_from(self.surge() - surging).unwrap_or(0);
        let creates = waiting.into_iter().take(room).map(|node| Create::pod(self.pod(node)));
        let creates = creates.collect();
        plan.deletes(deletes);
        plan.creates(creates);
    }

    fn pod(&self, node: &str) -> Value {
        let set = self.observed.set;
        let owner = controller_reference(Kind::DaemonSet, set);
        let mut pod = from_template(set.at("/spec/template"), set.namespace(), &owner);
        let metadata = entry(&mut pod, "metadata");
        metadata["generateName"] = generate_name(set.name()).into();
        let labels = entry(metadata, "labels");
        labels[REVISION_LABEL] = self.update.hash.clone().into();
        labels["pod-template-generation"] =
            set.annotation("deprecated.daemonset.template.generation").unwrap_or("1").into();
        let spec = entry(&mut pod, "spec");
        spec["tolerations"] = self.tolerations.clone().into();
        // The scheduler binds the pod to this node and no other. What the template asked for was checked here.
        entry(entry(spec, "affinity"), "nodeAffinity")["requiredDuringSchedulingIgnoredDuringExecution"] = json!({
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]},
            ],
        });
        pod
    }

    fn status(&self) -> Value {
        let set = self.observed.set;
        let (mut desired, mut current, mut misplaced) = (0, 0, 0);
        let (mut ready, mut available, mut updated) = (0, 0, 0);
        for (node, should_run, _) in &self.nodes {
            let pods = self.pods_on(node.name());
            if !*should_run {
                misplaced += i64::from(!pods.is_empty());
                continue;
            }
            desired += 1;
            current += i64::from(!pods.is_empty());
            ready += i64::from(pods.iter().any(|pod| pod.ready));
            available += i64::from(pods.iter().any(|pod| self.is_available(pod)));
            updated += i64::from(pods.iter().any(|pod| self.is_updated(pod)));
        }
        let mut status = without_zeros(json!({
            "observedGeneration": set.generation(), "updatedNumberScheduled": updated,
            "numberAvailable": available, "numberUnavailable": desired - available,
            "collisionCount": self.update.collisions,
        }));
        status.insert("desiredNumberScheduled".to_owned(), desired.into());
        status.insert("currentNumberScheduled".to_owned(), current.into());
        status.insert("numberMisscheduled".to_owned(), misplaced.into());
        status.insert("numberReady".to_owned(), ready.into());
        Value::Object(status)
    }
}

/// Each node with whether a pod of this spec should be started there, and whether one that runs there may go on, by the
/// rules that the scheduler goes by. Where spec or node break a rule of the API no pod is started, and none is lost.
fn wants<'a>(spec: &Value, tolerations: &[Value], nodes: &'a [Arc<Value>]) -> Vec<(&'a Value, bool, bool)> {
    const STAYS_AS_IT_IS: (bool, bool) = (false, true);
    let Ok(constraints) = parse_constraints(spec) else {
        let (should_run, may_go_on) = STAYS_AS_IT_IS;
        return nodes.iter().map(|node| (&**node, should_run, may_go_on)).collect();
    };
    let tolerations: Vec<Toleration> =
        tolerations.iter().filter_map(|value| parse_toleration(value).ok()).collect();
    let named = spec.text("/nodeName");
    let on = |value: &Value| {
        let Ok(node) = parse_node(value) else { return STAYS_AS_IT_IS };
        if !(named.is_empty() || named == &*node.name) || !constraints.matches(&node.name, &node.labels) {
            return (false, false);
        }
        let keeps_away = |effect: TaintEffect| {
            let taints = node.taints.iter().filter(|taint| taint.effect == effect);
            taints.into_iter().any(|taint| !tolerations.iter().any(|known| known.tolerates(taint)))
        };
        let may_go_on = !keeps_away(TaintEffect::NoExecute);
        (may_go_on && !keeps_away(TaintEffect::NoSchedule), may_go_on)
    };
    let judged = nodes.iter().map(|node| {
        let (should_run, may_go_on) = on(node);
        (&**node, should_run, may_go_on)
    });
    judged.collect()
}

fn tolerations(spec: &Value) -> Vec<Value> {
    let mut tolerations = spec.list("/tolerations").to_vec();
    let network = spec.flag("/hostNetwork").then_some(NETWORK);
    for (key, effect) in TOLERATED.into_iter().chain(network) {
        let toleration = json!({"key": key, "operator": "Exists", "effect": effect});
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    tolerations
}

#[cfg(test)]
mod tests {
    use super::super::pods::make;
    use super::*;
    use crate::plan::read::{created, deleted, status};

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().expect("a time")
    }

    fn set(image: &str, spec: Value) -> Value {
        let mut set = json!({
            "metadata": {"name": "agent", "namespace": "ml", "uid": "d", "generation": 1},
            "spec": {"template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {"nodeSelector": {"gpu": "yes"}, "containers": [{"image": image}]},
            }},
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            set["spec"][key] = value.clone();
        }
        set
    }

    fn node(name: &str, gpu: &str, taints: Value) -> Arc<Value> {
        Arc::new(json!({"metadata": {"name": name, "labels": {"gpu": gpu}}, "spec": {"taints": taints}}))
    }

    fn revision(set: &Value) -> Arc<Value> {
        let mut plan = Plan::default();
        revisions::settle(Kind::DaemonSet, set, &[], None, &mut plan);
        Arc::new(created(&plan)[0].clone())
    }

    fn pod(name: &str, node: &str, revision: &Value, ready: bool) -> Arc<Pod> {
        let status = if ready { "True" } else { "False" };
        make::pod(
            name,
            json!({
                "metadata": {"labels": {REVISION_LABEL: revision.label(REVISION_LABEL)}},
                "spec": {"nodeName": node},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": status}]},
            }),
        )
    }

    fn run(set: &Value, nodes: &[Arc<Value>], pods: &[Arc<Pod>], revisions: &[Arc<Value>]) -> Plan {
        plan(&Observed { set, nodes, pods, revisions, failure: None }, now())
    }

    #[test]
    fn nodes_are_chosen_by_the_rules_of_the_scheduler() {
        let node = Arc::new(json!({
            "metadata": {"name": "n1", "labels": {
                "gpu": "a100", "count": "8", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
            }},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        }));
        let affinity = |term: Value| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [term]}}}})
        };
        let expression = |key: &str, operator: &str, values: Value| {
            affinity(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
        };
        let name = |name: &str| {
            affinity(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}))
        };
        let all = [json!({"operator": "Exists"})];
        let judged = |spec: &Value, tolerations: &[Value], node: &Arc<Value>| {
            let (_, should_run, may_go_on) = wants(spec, tolerations, std::slice::from_ref(node))[0];
            (should_run, may_go_on)
        };
        for (spec, expect) in [
            (json!({}), true),
            (json!({"nodeName": "n2"}), false),
            (json!({"nodeSelector": {"gpu": "a100"}}), true),
            (json!({"nodeSelector": {"gpu": "h100"}}), false),
            (json!({"nodeSelector": {"nvidia.com/gpu.product": "A100-SXM4-80GB"}}), true),
            (expression("nvidia.com/gpu.product", "In", json!(["A100-SXM4-80GB"])), true),
            (expression("gpu", "NotIn", json!(["a100"])), false),
            (expression("count", "Gt", json!(["4"])), true),
            (affinity(json!({})), false),
            (expression("gpu", "Near", json!(["a100"])), false),
            (name("n1"), true),
            (name("n2"), false),
        ] {
            assert_eq!(judged(&spec, &all, &node).0, expect, "{spec}");
        }
        for (tolerations, expect) in [
            (json!([]), false),
            (json!([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]), true),
            (json!([{"key": "nvidia.com/gpu", "value": "x"}]), false),
        ] {
            let tolerations = tolerations.as_array().cloned().unwrap_or_default();
            assert_eq!(judged(&json!({}), &tolerations, &node), (expect, true), "{tolerations:?}");
        }
        let broken =
            Arc::new(json!({"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "many"}}}));
        assert_eq!(judged(&json!({}), &all, &broken), (false, true));
        let misspelt = expression("gpu", "Near", json!(["a100"]));
        assert_eq!(judged(&misspelt, &all, &node), (false, true));
    }

    #[test]
    fn each_fitting_node_gets_one_pod_that_only_it_can_take() {
        let set = set("a", json!({}));
        let nodes = [
            node("n1", "yes", json!([])),
            node("n2", "no", json!([])),
            node("n3", "yes", json!([{"key": "x", "effect": "NoSchedule"}])),
            node("n4", "yes", json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])),
        ];
        let plan = run(&set, &nodes, &[], &[revision(&set)]);
        let term =
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
        let targets: Vec<&str> =
            created(&plan).iter().map(|pod| pod.text(&format!("{term}/matchFields/0/values/0"))).collect();
        assert_eq!(targets, ["n1", "n4"]);
        assert_eq!(created(&plan)[0].list("/spec/tolerations").len(), 6);
        let status = status(&plan).expect("a status");
        assert_eq!((status.int("/desiredNumberScheduled"), status.int("/numberReady")), (Some(2), Some(0)));
    }

    #[test]
    fn pods_go_where_nodes_no_longer_fit_and_where_there_are_two() {
        let set = set("a", json!({}));
        let r = revision(&set);
        let nodes = [node("n1", "yes", json!([])), node("n2", "no", json!([]))];
        let pods = [
            pod("a", "n1", &r, true),
            pod("b", "n1", &r, true),
            pod("c", "n2", &r, true),
            pod("d", "gone", &r, true),
        ];
        assert_eq!(deleted(&run(&set, &nodes, &pods, &[r])), ["b", "c", "d"]);
    }

    #[test]
    fn an_update_replaces_as_many_as_may_be_unavailable() {
        let (old, new) = (set("a", json!({})), set("b", json!({})));
        let (a, b) = (revision(&old), revision(&new));
        let nodes = ["n1", "n2", "n3"].map(|name| node(name, "yes", json!([])));
        let revisions = [a.clone(), b.clone()];
        let all_old = ["n1", "n2", "n3"].map(|name| pod(name, name, &a, true));
        assert_eq!(deleted(&run(&new, &nodes, &all_old, &revisions)), ["n1"]);
        let half = [pod("x", "n1", &b, false), pod("n2", "n2", &a, true), pod("n3", "n3", &a, true)];
        assert!(deleted(&run(&new, &nodes, &half, &revisions)).is_empty());
        // What does not work anyway is replaced beyond the bound.
        let broken = [pod("x", "n1", &b, false), pod("n2", "n2", &a, false), pod("n3", "n3", &a, true)];
        assert_eq!(deleted(&run(&new, &nodes, &broken, &revisions)), ["n2"]);
    }

    #[test]
    fn surging_starts_the_new_pod_before_the_old_one_goes() {
        let surge = json!({"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}});
        let (old, new) = (set("a", surge.clone()), set("b", surge));
        let (a, b) = (revision(&old), revision(&new));
        let nodes = ["n1", "n2"].map(|name| node(name, "yes", json!([])));
        let revisions = [a.clone(), b.clone()];
        let all_old = ["n1", "n2"].map(|name| pod(name, name, &a, true));
        let first = run(&new, &nodes, &all_old, &revisions);
        assert_eq!((created(&first).len(), deleted(&first).len()), (1, 0));
        let both = [all_old[0].clone(), pod("x", "n1", &b, true), all_old[1].clone()];
        assert_eq!(deleted(&run(&new, &nodes, &both, &revisions)), ["n1"]);
    }
}
