//! What people see of a device that is out of service: a condition of the node, Events on the node and on the pods that have the
//! device, and, where configured, a taint of a node on which no GPU is fit.

use std::collections::BTreeMap;

use gantry_api::CDI_FILES_CURRENT;
use gantry_kit::{fnv1a_64, stamp};
use gantry_model::{Advice, Gpu, Health, PodKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, NodeCondition};
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::cdi::Trouble;
use crate::health::Verdict;
use crate::report::{Failure, MANAGER, is_code};

/// The condition's type: `True` while every GPU of the node may be used.
const CONDITION: &str = "GpusHealthy";

/// The taint of a node on which no GPU is fit, where that is configured.
const TAINT: &str = "nvidia.com/gpu-unhealthy";

/// Longer messages are cut: an Event's may have 1,024 bytes.
const MESSAGE_BYTES: usize = 1_000;

/// What is told, from one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct News {
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) verdicts: Vec<Verdict>,
    /// The pods with devices, by container.
    pub(crate) owners: Vec<(PodKey, BTreeMap<String, Vec<String>>)>,
    /// Why the CDI files are not up to date, and since when, if so.
    pub(crate) cdi: Option<(Trouble, Timestamp)>,
}

/// What has been told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The condition, without its times.
    condition: Option<NodeCondition>,
    verdicts: Vec<Verdict>,
    cdi: Option<(Trouble, Timestamp)>,
    tainted: Option<bool>,
}

impl Told {
    /// Nothing yet of this life. `returned` were out of service in the last one, which has told that.
    pub(crate) fn new(returned: Vec<Verdict>) -> Self {
        Self { verdicts: returned, ..Self::default() }
    }

    /// Has everything but Events written again, in case somebody changed it.
    pub(crate) fn again(&mut self) {
        self.condition = None;
        self.tainted = None;
    }
}

pub(crate) struct Notifier {
    pub(crate) client: Client,
    pub(crate) node: String,
    pub(crate) taint: bool,
}

impl Notifier {
    /// Tells what is new. `node_uid` is that of the node's object.
    pub(crate) async fn write(
        &self,
        told: &mut Told,
        news: &News,
        node_uid: &str,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let wanted = condition(&news.gpus);
        if told.condition.as_ref() != wanted.as_ref() {
            self.write_condition(wanted.as_ref(), now).await?;
            told.condition.clone_from(&wanted);
        }
        for event in events(&self.node, node_uid, &told.verdicts, news, now) {
            self.send(&event).await?;
        }
        told.verdicts.clone_from(&news.verdicts);
        if let Some(event) = cdi_event(&self.node, node_uid, told.cdi.as_ref(), news.cdi.as_ref(), now) {
            self.send(&event).await?;
        }
        told.cdi.clone_from(&news.cdi);
        let none_fit = !news.gpus.is_empty() && news.gpus.iter().all(|gpu| !gpu.health.is_healthy());
        if self.taint && told.tainted != Some(none_fit) {
            self.write_taint(none_fit).await?;
            told.tainted = Some(none_fit);
        }
        Ok(())
    }

    /// Writes the condition, or removes it where the node has no GPU; others' conditions stay.
    async fn write_condition(&self, wanted: Option<&NodeCondition>, now: Timestamp) -> Result<(), Failure> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.node).await?;
        let known = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let known = known.into_iter().find(|known| known.type_ == CONDITION);
        let entry = match (wanted, known) {
            (None, None) => return Ok(()),
            (None, Some(_)) => json!({ "$patch": "delete", "type": CONDITION }),
            (Some(wanted), Some(known))
                if (&known.status, &known.reason, &known.message)
                    == (&wanted.status, &wanted.reason, &wanted.message) =>
            {
                return Ok(());
            }
            (Some(wanted), known) => {
                let since = known
                    .filter(|known| known.status == wanted.status)
                    .and_then(|known| known.last_transition_time)
                    .map_or_else(|| stamp(now), |since| stamp(since.0));
                let mut entry = serde_json::to_value(wanted).unwrap_or_default();
                entry["lastTransitionTime"] = json!(since);
                entry["lastHeartbeatTime"] = json!(stamp(now));
                entry
            }
        };
        let patch = Patch::Strategic(json!({ "status": { "conditions": [entry] } }));
        nodes.patch_status(&self.node, &params(), &patch).await?;
        Ok(())
    }

    async fn write_taint(&self, wanted: bool) -> Result<(), Failure> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = nodes.get(&self.node).await?;
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let is_ours =
            |taint: &k8s_openapi::api::core::v1::Taint| taint.key == TAINT && taint.effect == "NoSchedule";
        if taints.iter().any(is_ours) == wanted {
            return Ok(());
        }
        let mut list: Vec<Value> = taints
            .iter()
            .filter(|taint| !is_ours(taint))
            .map(|taint| serde_json::to_value(taint).unwrap_or_default())
            .collect();
        list.extend(wanted.then(|| json!({ "key": TAINT, "effect": "NoSchedule" })));
        // The list is one value: whoever changed it since is not overwritten.
        let version = node.metadata.resource_version;
        let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": list } });
        nodes.patch(&self.node, &params(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Writes an Event. One that was written in an earlier life of the agent is there already; a namespace that ends takes no more.
    async fn send(&self, event: &Event) -> Result<(), Failure> {
        let namespace = event.metadata.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        match events.create(&params, event).await {
            Err(error) if !is_code(&error, 409) && !is_code(&error, 403) && !is_code(&error, 404) => {
                Err(error.into())
            }
            _ => Ok(()),
        }
    }
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

/// The node's condition, without times; `None` where it has no GPU.
fn condition(gpus: &[Gpu]) -> Option<NodeCondition> {
    let sick: Vec<String> = gpus
        .iter()
        .filter_map(|gpu| match &gpu.health {
            Health::Healthy => None,
            Health::Unhealthy(fault) => Some(format!("GPU {} ({}): {}", gpu.index, gpu.id, fault.message)),
        })
        .collect();
    let partitions = gpus.iter().flat_map(|gpu| {
        let of = gpu.partitions.iter().flatten().filter_map(|partition| match &partition.health {
            Health::Unhealthy(fault) => Some((partition, fault)),
            Health::Healthy => None,
        });
        of.map(|(partition, fault)| {
            format!("GPU {} partition {} ({}): {}", gpu.index, partition.index, partition.id, fault.message)
        })
    });
    let all: Vec<String> = sick.iter().cloned().chain(partitions).collect();
    let (status, reason, message) = match (gpus.len(), all.len()) {
        (0, _) => return None,
        (count, 0) => ("True", "EveryGpuHealthy", format!("{count} of {count} GPUs may be used")),
        (count, _) if sick.len() == count => ("False", "NoGpuHealthy", all.join("; ")),
        _ => ("False", "GpuUnhealthy", all.join("; ")),
    };
    Some(NodeCondition {
        type_: CONDITION.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(shortened(message)),
        ..NodeCondition::default()
    })
}

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
        message.push('…');
    }
    message
}

/// Events for devices that are out of service now and were not before, and for those that have returned; on the node, and on
/// the pods that have them.
fn events(node: &str, node_uid: &str, before: &[Verdict], news: &News, now: Timestamp) -> Vec<Event> {
    let mut events = Vec::new();
    let same = |a: &Verdict, b: &Verdict| a.id == b.id && a.since == b.since && a.fault.kind == b.fault.kind;
    for verdict in news.verdicts.iter().filter(|new| !before.iter().any(|old| same(old, new))) {
        let device = describe(&news.gpus, verdict.id.as_str());
        let message = format!("{device}: {}: {}", verdict.fault.kind, verdict.fault.message);
        let key = format!("{}{}{}", verdict.id, verdict.since, verdict.fault.kind);
        events.push(on_node(node, node_uid, "Warning", "GpuUnhealthy", message, &key, now));
        for (pod, container) in holders(news, verdict.id.as_str()) {
            let fault = format!("{}: {}", verdict.fault.kind, verdict.fault.message);
            let advice =
                Advice::GpuFailed { container: container.as_str().into(), gpu: device.clone(), fault };
            events.push(on_pod(pod, &advice, &key, now));
        }
    }
    let is_back = |old: &&Verdict| !news.verdicts.iter().any(|new| new.id == old.id);
    for verdict in before.iter().filter(is_back) {
        let message = format!(
            "{}: back in service after {}",
            describe(&news.gpus, verdict.id.as_str()),
            verdict.fault.kind
        );
        let key = format!("{}{}back", verdict.id, verdict.since);
        events.push(on_node(node, node_uid, "Normal", "GpuHealthy", message, &key, now));
    }
    events
}

/// The Event for CDI files that cannot be written now, or can be again.
fn cdi_event(
    node: &str,
    node_uid: &str,
    before: Option<&(Trouble, Timestamp)>,
    news: Option<&(Trouble, Timestamp)>,
    now: Timestamp,
) -> Option<Event> {
    match (before, news) {
        (before, Some((trouble, since))) if before.map(|(known, _)| known) != Some(trouble) => {
            let message = trouble.message();
            let key = format!("cdi{since}{message}");
            Some(on_node(node, node_uid, "Warning", "CdiFilesNotCurrent", message, &key, now))
        }
        (Some((_, since)), None) => {
            let message = "the CDI files describe the driver and every device again".to_owned();
            Some(on_node(
                node,
                node_uid,
                "Normal",
                CDI_FILES_CURRENT,
                message,
                &format!("cdi{since}back"),
                now,
            ))
        }
        _ => None,
    }
}

fn describe(gpus: &[Gpu], id: &str) -> String {
    for gpu in gpus {
        if gpu.id.as_str() == id {
            return format!("GPU {} ({id})", gpu.index);
        }
        if let Some(partition) = gpu.partitions.iter().flatten().find(|partition| partition.id.as_str() == id)
        {
            return format!("GPU {} partition {} ({id})", gpu.index, partition.index);
        }
    }
    format!("GPU {id}")
}

/// The pods whose containers have a device, or a partition of it; each once.
fn holders<'a>(news: &'a News, id: &'a str) -> impl Iterator<Item = (&'a PodKey, &'a String)> {
    let whole = news.gpus.iter().find(|gpu| gpu.id.as_str() == id);
    let parts: Vec<&str> =
        whole.iter().flat_map(|gpu| gpu.partitions.iter().flatten()).map(|part| part.id.as_str()).collect();
    let has = move |device: &String| device == id || parts.contains(&device.as_str());
    news.owners.iter().filter_map(move |(pod, containers)| {
        containers.iter().find(|(_, devices)| devices.iter().any(&has)).map(|(container, _)| (pod, container))
    })
}

fn on_node(
    node: &str,
    uid: &str,
    kind: &str,
    reason: &str,
    message: String,
    key: &str,
    now: Timestamp,
) -> Event {
    let object = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid });
    event("default", node, &object, kind, reason, message, key, now)
}

fn on_pod(pod: &PodKey, advice: &Advice, key: &str, now: Timestamp) -> Event {
    let object = json!({ "apiVersion": "v1", "kind": "Pod", "namespace": &*pod.namespace, "name": &*pod.name, "uid": &*pod.uid });
    event(&pod.namespace, &pod.name, &object, "Warning", "GpuFailed", advice.to_string(), key, now)
}

#[expect(clippy::too_many_arguments, reason = "the parts of an Event, in their order")]
fn event(
    namespace: &str,
    name: &str,
    object: &Value,
    kind: &str,
    reason: &str,
    message: String,
    key: &str,
    now: Timestamp,
) -> Event {
    let now = stamp(now);
    // The same news has the same name, so that it is told once whoever tells it.
    let suffix = format!("{:016x}", fnv1a_64(key.as_bytes(), 0));
    let room = 253 - suffix.len() - 1;
    let name: String = name.chars().take(room).collect();
    let value = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("{name}.{suffix}"), "namespace": namespace },
        "involvedObject": object,
        "type": kind,
        "reason": reason,
        "message": shortened(message),
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": { "component": MANAGER },
        "reportingComponent": MANAGER,
        "reportingInstance": MANAGER,
    });
    serde_json::from_value(value).expect("invariant: an Event of strings and numbers is an Event")
}

#[cfg(test)]
mod tests {
    use gantry_gpu::{GpuBackend as _, Profile, SimGpus};
    use gantry_model::{Fault, FaultKind};

    use super::*;

    fn news() -> News {
        let gpus = SimGpus::new(Profile::named("t4").unwrap(), 2, "n", 1).unwrap().inventory().unwrap().gpus;
        let pod = PodKey { namespace: "team".into(), name: "train".into(), uid: "u".into() };
        let owners = vec![(pod, BTreeMap::from([("main".to_owned(), vec![gpus[1].id.to_string()])]))];
        News { gpus, verdicts: Vec::new(), owners, cdi: None }
    }

    fn fail(news: &mut News, index: usize, message: &str) {
        let fault = Fault { kind: FaultKind::Xid(79), message: message.to_owned() };
        let gpu = &mut news.gpus[index];
        gpu.health = Health::Unhealthy(fault.clone());
        news.verdicts.push(Verdict { id: gpu.id.clone(), fault, since: Timestamp::UNIX_EPOCH });
    }

    #[test]
    fn the_condition_names_each_card_and_what_to_do() {
        let mut news = news();
        let text = |news: &News| {
            let condition = condition(&news.gpus).unwrap();
            format!("{} {} {}", condition.status, condition.reason.unwrap(), condition.message.unwrap())
        };
        assert_eq!(text(&news), "True EveryGpuHealthy 2 of 2 GPUs may be used");
        fail(&mut news, 1, "it broke; to do: mend it");
        let id = news.gpus[1].id.clone();
        assert_eq!(text(&news), format!("False GpuUnhealthy GPU 1 ({id}): it broke; to do: mend it"));
        fail(&mut news, 0, &"é".repeat(2_000));
        let all = text(&news);
        assert!(
            all.starts_with("False NoGpuHealthy GPU 0") && all.ends_with('…') && all.len() < 1_024,
            "{all}"
        );
        assert_eq!(condition(&[]), None);
    }

    #[test]
    fn events_tell_each_change_once_on_the_node_and_on_the_pods_that_have_the_card() {
        let (mut news, now) = (news(), Timestamp::UNIX_EPOCH);
        fail(&mut news, 1, "it broke");
        let told = events("n", "uid", &[], &news, now);
        let text = |event: &Event| {
            let object = &event.involved_object;
            format!(
                "{} {} {}",
                object.kind.as_deref().unwrap(),
                object.name.as_deref().unwrap(),
                event.message.as_deref().unwrap()
            )
        };
        let id = &news.gpus[1].id;
        assert_eq!(told.len(), 2);
        assert_eq!(text(&told[0]), format!("Node n GPU 1 ({id}): XID 79: it broke"));
        assert!(
            text(&told[1]).starts_with(&format!(
                "Pod train G4006 gpu-failed: container main has GPU 1 ({id}), which failed: XID 79: it broke"
            )),
            "{}",
            text(&told[1])
        );
        // Whoever tells it later, tells it under the same name.
        assert_eq!(told[0].metadata.name, events("n", "uid", &[], &news, now)[0].metadata.name);
        let before = std::mem::take(&mut news.verdicts);
        let told = events("n", "uid", &before, &news, now);
        assert_eq!(
            told.iter().map(text).collect::<Vec<_>>(),
            [format!("Node n GPU 1 ({id}): back in service after XID 79")]
        );
        assert_eq!(events("n", "uid", &before, &News { verdicts: before.clone(), ..news }, now), []);
    }
}
