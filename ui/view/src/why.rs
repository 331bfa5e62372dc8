//! Why a pod is where it is, or what it waits for.

use std::collections::BTreeMap;

use gantry_api::{ASSIGNMENT_ANNOTATION, GpuNode, decode_assignment};
use gantry_dialect::{advice, parse};
use gantry_engine::{Explanation, Millis, Phase, State};
use gantry_model::{Advice, Entry, Reason};
use gantry_scheduler::{SCHEDULER_NAMES, engine_events};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use serde::Serialize;
use serde_json::Value;

use crate::snapshot::phase;
use crate::{Error, Snapshot};

/// Where a pod stands and why.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// Namespace and name, separated by `/`.
    pub pod: String,
    /// One sentence.
    pub verdict: String,
    /// The node, once it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its GPUs by container.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<String, Vec<String>>,
    /// What keeps it from starting.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<ReasonView>,
    /// The smallest change of the pod after which it would start now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// Pods with GPUs that wait as well and go first.
    pub ahead: usize,
    /// The first few of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub first_ahead: Vec<String>,
    /// What its author should know although it was accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<ReasonView>,
}

/// A reason or an advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasonView {
    /// The stable code.
    pub code: &'static str,
    /// Its name in words.
    pub slug: &'static str,
    /// What is the case, with the numbers.
    pub message: String,
    /// What to do about it.
    pub action: &'static str,
    /// The nodes that it holds for; 0 where it is not about nodes.
    pub nodes: u32,
}

fn view(entry: &Entry, message: String, nodes: u32) -> ReasonView {
    ReasonView { code: entry.code, slug: entry.slug, message, action: entry.action, nodes }
}

fn reason_view(reason: &Reason, nodes: u32) -> ReasonView {
    view(reason.entry(), reason.message(), nodes)
}

impl Snapshot {
    /// Explains a pod with the scheduler's own engine over what was listed: the answer does not depend on which scheduler runs.
    ///
    /// # Errors
    /// Where there is no such pod.
    pub fn why(&self, namespace: &str, name: &str) -> Result<Why, Error> {
        let is_it = |pod: &&Pod| {
            pod.metadata.namespace.as_deref() == Some(namespace) && pod.metadata.name.as_deref() == Some(name)
        };
        let pod = self
            .pods
            .iter()
            .find(is_it)
            .ok_or_else(|| Error::NoPod { namespace: namespace.to_owned(), name: name.to_owned() })?;
        let value = to_value(pod);
        let mut why = Why { pod: format!("{namespace}/{name}"), ..Why::default() };
        why.advice = advice(&value).iter().map(|advice| view(advice.entry(), advice.message(), 0)).collect();
        if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
            placed(&mut why, pod, node);
            why.advice.extend(self.failed_gpus(&why, node));
            return Ok(why);
        }
        if let Err(reason) = parse(&value) {
            "cannot be scheduled as it is written".clone_into(&mut why.verdict);
            why.reasons.push(reason_view(&reason, 0));
            return Ok(why);
        }
        if pod.metadata.deletion_timestamp.is_some() {
            "is being deleted, and will not be placed any more".clone_into(&mut why.verdict);
            return Ok(why);
        }
        let mut state = self.state(value["spec"]["schedulerName"].as_str());
        // Deciding is what tells whether it fits beside those that go first; nothing is written anywhere.
        state.decide(Millis(0));
        let explanation = pod.metadata.uid.as_deref().and_then(|uid| state.explain(uid));
        match explanation {
            Some(explanation) => explained(&mut why, &explanation),
            None => "is not known to the engine".clone_into(&mut why.verdict),
        }
        Ok(why)
    }

    /// The GPUs that a pod has, by its assignment or as its node reports, and that are out of service.
    fn failed_gpus(&self, why: &Why, node: &str) -> Vec<ReasonView> {
        let of_node = |known: &&GpuNode| known.metadata.name.as_deref() == Some(node);
        let Some(status) = self.gpu_nodes.iter().find(of_node).and_then(|known| known.status.as_ref()) else {
            return Vec::new();
        };
        let (namespace, name) = why.pod.split_once('/').unwrap_or_default();
        let used = status.in_use.iter().filter(|used| used.namespace == namespace && used.pod == name);
        let mut containers: BTreeMap<&str, Vec<&str>> = used
            .map(|used| (used.container.as_str(), used.gpus.iter().map(String::as_str).collect()))
            .collect();
        for (container, gpus) in &why.gpus {
            containers.entry(container).or_insert_with(|| gpus.iter().map(String::as_str).collect());
        }
        let mut failed = Vec::new();
        for (container, gpus) in containers {
            for gpu in status.gpus.iter().filter(|gpu| gpus.contains(&gpu.id.as_str())) {
                let Some(fault) = &gpu.fault else { continue };
                let kind = fault.kind().map_or_else(|| fault.kind.clone(), |kind| kind.to_string());
                let advice = Advice::GpuFailed {
                    container: container.into(),
                    gpu: format!("GPU {} ({})", gpu.index, gpu.id),
                    fault: format!("{kind}: {}", fault.message),
                };
                failed.push(view(advice.entry(), advice.message(), 0));
            }
        }
        failed
    }

    /// The state in which a scheduler's engine would be that starts now. Which names the cluster's schedulers serve is not
    /// written anywhere: the usual ones count, and that of the pod in question.
    fn state(&self, scheduler_name: Option<&str>) -> State {
        let names = SCHEDULER_NAMES.into_iter().chain([VOLCANO]).chain(scheduler_name).map(str::to_owned);
        let mut state = State::new();
        let (nodes, pods) = (objects(&self.nodes), objects(&self.pods));
        for event in engine_events(names.collect(), nodes, self.gpu_nodes.clone(), pods) {
            state.apply(event);
        }
        state
    }
}

/// The pods of a Volcano Job carry this name, and a lab cluster serves it.
const VOLCANO: &str = "volcano";

fn objects(typed: &[impl Serialize]) -> Vec<DynamicObject> {
    let object = |object| serde_json::from_value(to_value(object));
    let is_one = "invariant: Kubernetes objects have metadata and are JSON objects";
    typed.iter().map(|typed| object(typed).expect(is_one)).collect()
}

/// Fills in a pod that has its node.
fn placed(why: &mut Why, pod: &Pod, node: &str) {
    why.node = Some(node.to_owned());
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(ASSIGNMENT_ANNOTATION));
    if let Some(Ok(assignment)) = annotation.map(|text| decode_assignment(text)) {
        let ids = |gpus: &Vec<gantry_model::GpuId>| gpus.iter().map(ToString::to_string).collect();
        why.gpus = assignment.containers.iter().map(|(name, gpus)| (name.to_string(), ids(gpus))).collect();
    }
    let status = pod.status.clone().unwrap_or_default();
    let waiting = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten()
        .find_map(|container| Some((container, container.state.as_ref()?.waiting.as_ref()?)));
    why.verdict = match (phase(pod), waiting) {
        ("Pending", Some((container, state))) => format!(
            "is placed on {node}, and container {} waits: {}",
            container.name,
            [state.reason.as_deref(), state.message.as_deref()]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join(": ")
        ),
        ("Pending", None) => format!("is placed on {node}, and its containers have not started yet"),
        ("Failed", _) => {
            let told: Vec<&str> =
                [status.reason.as_deref(), status.message.as_deref()].into_iter().flatten().collect();
            if told.is_empty() {
                format!("failed on {node}")
            } else {
                format!("failed on {node}: {}", told.join(": "))
            }
        }
        ("Succeeded", _) => format!("ended on {node}"),
        (_, Some((container, state))) => format!(
            "runs on {node}, and container {} waits: {}",
            container.name,
            state.reason.as_deref().unwrap_or("no reason given")
        ),
        (_, None) => format!("runs on {node}"),
    };
}

/// Fills in a pod that has no node yet.
fn explained(why: &mut Why, explanation: &Explanation) {
    why.ahead = explanation.ahead;
    why.first_ahead = explanation.first_ahead.iter().map(ToString::to_string).collect();
    why.reasons.extend(explanation.reason.as_ref().map(|reason| reason_view(reason, 0)));
    if let Some(refusals) = &explanation.refusals {
        why.reasons.extend(refusals.list.iter().map(|refusal| reason_view(&refusal.reason, refusal.nodes)));
        why.nearest = refusals.nearest.as_ref().map(|nearest| {
            let changes: Vec<String> = nearest.changes.iter().map(ToString::to_string).collect();
            format!("would start now on {} with {}", nearest.node, changes.join(" and "))
        });
    }
    why.verdict = match (explanation.phase, &explanation.node) {
        (Phase::Gated, _) => "waits for its scheduling gates".to_owned(),
        (Phase::Waiting, _) => match &explanation.refusals {
            Some(refusals) if refusals.fitting > 0 => {
                format!("waits, although {} of {} nodes would take it", refusals.fitting, refusals.nodes)
            }
            _ => "waits: no node takes it now".to_owned(),
        },
        (_, Some(node)) => format!("fits on {node} now, and its scheduler has not bound it yet"),
        (_, None) => "is being placed".to_owned(),
    };
}

fn to_value(object: &impl Serialize) -> Value {
    serde_json::to_value(object).expect("invariant: objects read from JSON can be written as JSON")
}

#[cfg(test)]
mod tests {
    use gantry_dialect::{GROUP_MIN_MEMBER_ANNOTATION, GROUP_NAME_ANNOTATION};
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::*;

    fn snapshot(pods: &[Value]) -> Snapshot {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n"},
            "status": {
                "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "4"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))
        .unwrap();
        let pods = pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect();
        Snapshot { nodes: vec![node], gpu_nodes: Vec::new(), pods }
    }

    fn pod(name: &str, gpus: u32) -> Value {
        json!({
            "metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}}]},
        })
    }

    #[test]
    fn a_pod_that_asks_for_too_much_is_told_what_would_fit() {
        let why = snapshot(&[pod("big", 6)]).why("d", "big").unwrap();
        assert_eq!(why.verdict, "waits: no node takes it now");
        assert_eq!(why.reasons[0].code, "G1001");
        assert_eq!(why.nearest.as_deref(), Some("would start now on n with nvidia.com/gpu: 4"));
    }

    #[test]
    fn a_pod_that_fits_waits_for_its_group() {
        let mut member = pod("m", 1);
        member["metadata"]["annotations"] =
            json!({GROUP_NAME_ANNOTATION: "g", GROUP_MIN_MEMBER_ANNOTATION: "2"});
        let why = snapshot(&[member]).why("d", "m").unwrap();
        assert_eq!(why.verdict, "waits, although 1 of 1 nodes would take it");
        assert_eq!((why.reasons.len(), why.reasons[0].code), (1, "G1018"));
    }

    #[test]
    fn a_pod_that_fits_waits_only_for_its_scheduler() {
        let why = snapshot(&[pod("small", 1)]).why("d", "small").unwrap();
        assert_eq!(why.verdict, "fits on n now, and its scheduler has not bound it yet");
        assert!(why.reasons.is_empty());
    }

    #[test]
    fn only_pods_that_the_scheduler_would_place_are_in_the_way() {
        let competitor = |change: &dyn Fn(&mut Value)| {
            let mut other = pod("a", 4);
            other["spec"]["priority"] = 1.into();
            change(&mut other);
            snapshot(&[other, pod("b", 1)]).why("d", "b").unwrap()
        };
        assert_eq!(competitor(&|_| {}).verdict, "waits: no node takes it now");
        let fits = "fits on n now, and its scheduler has not bound it yet";
        assert_eq!(competitor(&|pod| pod["spec"]["schedulerName"] = "other".into()).verdict, fits);
        let deletion = |pod: &mut Value| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(competitor(&deletion).verdict, fits);
        let mut leaving = pod("b", 1);
        deletion(&mut leaving);
        let verdict = snapshot(&[leaving]).why("d", "b").unwrap().verdict;
        assert_eq!(verdict, "is being deleted, and will not be placed any more");
        // A bound pod holds what it has, whatever it says about where it may run.
        let bound = |pod: &mut Value| {
            pod["spec"]["nodeName"] = "n".into();
            pod["spec"]["tolerations"] = json!([{"operator": "Perhaps"}]);
        };
        assert_eq!(competitor(&bound).verdict, "waits: no node takes it now");
    }

    #[test]
    fn devices_that_a_node_reports_in_use_are_not_free() {
        let gpu = |index: u32| {
            json!({
                "id": format!("GPU-{index}"), "index": index, "minor": index, "product": "NVIDIA T4",
                "memoryMiB": 16_384, "pciBusId": "00000000:01:00.0", "computeCapability": "7.5", "health": "Healthy",
            })
        };
        let mut foreign = pod("foreign", 1);
        foreign["spec"]["nodeName"] = "n".into();
        let mut snapshot = snapshot(&[foreign, pod("p", 1)]);
        let mut report = |in_use: Value| {
            let status = json!({"gpus": [gpu(0), gpu(1), gpu(2), gpu(3)], "inUse": in_use});
            snapshot.gpu_nodes = vec![GpuNode::new("n", serde_json::from_value(status).unwrap())];
            snapshot.why("d", "p").unwrap()
        };
        assert_eq!(report(json!([])).reasons[0].code, "G1013");
        let in_use = json!([{"namespace": "d", "pod": "foreign", "container": "c", "gpus": ["GPU-2"]}]);
        assert_eq!(report(in_use).verdict, "fits on n now, and its scheduler has not bound it yet");
    }

    #[test]
    fn a_running_pod_is_told_its_node_and_devices() {
        let mut pod = pod("running", 1);
        pod["spec"]["nodeName"] = "n".into();
        pod["status"] = json!({"phase": "Running"});
        pod["metadata"]["annotations"] =
            json!({ASSIGNMENT_ANNOTATION: r#"{"v":1,"node":"n","containers":{"c":["GPU-1"]}}"#});
        let why = snapshot(&[pod]).why("d", "running").unwrap();
        assert_eq!(
            (why.verdict.as_str(), why.gpus["c"].as_slice()),
            ("runs on n", &["GPU-1".to_owned()][..])
        );
    }

    #[test]
    fn a_running_pod_is_told_of_a_gpu_that_failed_under_it() {
        let gpu = |index: u32, health: Value, fault: Value| {
            json!({
                "id": format!("GPU-{index}"), "index": index, "minor": index, "product": "NVIDIA T4",
                "memoryMiB": 16_384, "pciBusId": "00000000:01:00.0", "computeCapability": "7.5", "health": health, "fault": fault,
            })
        };
        let fault = json!({"kind": "Xid", "xid": 79, "message": "it fell off the bus; to do: reboot"});
        let status = json!({"gpus": [
            gpu(0, "Unhealthy".into(), fault.clone()), gpu(1, "Healthy".into(), Value::Null), gpu(2, "Unhealthy".into(), fault),
        ], "inUse": [{"namespace": "d", "pod": "foreign", "container": "c", "gpus": ["GPU-2"]}]});
        let placed = |name: &str| {
            let mut pod = pod(name, 2);
            pod["spec"]["nodeName"] = "n".into();
            pod["status"] = json!({"phase": "Running"});
            pod
        };
        let mut own = placed("own");
        own["metadata"]["annotations"] =
            json!({ASSIGNMENT_ANNOTATION: r#"{"v":1,"node":"n","containers":{"c":["GPU-1","GPU-0"]}}"#});
        let mut snapshot = snapshot(&[own, placed("foreign"), placed("other")]);
        snapshot.gpu_nodes = vec![GpuNode::new("n", serde_json::from_value(status).unwrap())];
        let told = |name: &str| {
            let advice = snapshot.why("d", name).unwrap().advice;
            advice
                .into_iter()
                .filter(|advice| advice.code == "G4006")
                .map(|advice| advice.message)
                .collect::<Vec<_>>()
        };
        let own = told("own");
        assert_eq!(own.len(), 1);
        assert!(
            own[0].starts_with(
                "container c has GPU 0 (GPU-0), which failed: XID 79: it fell off the bus; to do: reboot. "
            ),
            "{own:?}"
        );
        assert!(told("foreign")[0].contains("GPU-2"), "one that the node reports in use");
        assert_eq!(told("other"), Vec::<String>::new());
    }

    #[test]
    fn a_pod_that_was_written_wrongly_is_told_the_field() {
        let mut pod = pod("wrong", 1);
        pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "0.5".into();
        let why = snapshot(&[pod]).why("d", "wrong").unwrap();
        assert_eq!(why.reasons[0].code, "G2003");
        assert!(matches!(snapshot(&[]).why("d", "x"), Err(Error::NoPod { .. })));
    }
}
