//! The node controller: notices nodes that no longer report, taints them, evicts their pods, and collects pods of nodes
//! that are gone.
//!
//! As kube-controller-manager's, it trusts its own clock only: a node is silent when its Lease has not *changed* for the
//! grace period, whatever time stands in it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use gantry_dialect::parse_toleration;
use gantry_kit::{CancellationToken, SharedClock, Tasks, catch_panic, stamp};
use gantry_model::TaintEffect;
use gantry_workloads::{Event, EventRecorder};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::kubelet::{is_terminal, pod_reference};

/// How often nodes are looked at (`--node-monitor-period`).
const PERIOD: Duration = Duration::from_secs(5);
/// How long a node may be silent (`--node-monitor-grace-period`).
const GRACE: Duration = Duration::from_secs(40);
/// Lists of pods are dear: without trouble, pods of nodes that are gone are collected in one look of so many.
const LOOKS_BETWEEN_COLLECTIONS: u64 = 12;
/// What the admission plug-in DefaultTolerationSeconds gives a pod that tolerates neither taint.
const DEFAULT_TOLERATION: Duration = Duration::from_mins(5);

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// What the controller knows of a node.
struct Seen {
    /// The Lease's time as last read, and when that changed.
    renewed: Option<MicroTime>,
    since: Instant,
}

/// The node controller.
pub(crate) struct NodeLifecycle {
    client: Client,
    clock: SharedClock,
    recorder: EventRecorder,
    looks: u64,
    seen: HashMap<String, Seen>,
    /// When a pod is evicted, by UID.
    evictions: HashMap<String, Instant>,
}

impl NodeLifecycle {
    pub(crate) fn new(client: Client, clock: SharedClock, recorder: EventRecorder) -> Self {
        Self { client, clock, recorder, looks: 0, seen: HashMap::new(), evictions: HashMap::new() }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let mut timer = interval(PERIOD);
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = timer.tick() => {}
            }
            match catch_panic(Box::pin(self.look())).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "nodes could not be looked at"),
                Err(panic) => tracing::error!(panic, "a look at the nodes panicked"),
            }
        }
    }

    async fn look(&mut self) -> Result<(), kube::Error> {
        let nodes = Api::<Node>::all(self.client.clone()).list(&ListParams::default()).await?.items;
        let leases = Api::<Lease>::namespaced(self.client.clone(), "kube-node-lease");
        let renewed: HashMap<String, MicroTime> = leases
            .list(&ListParams::default())
            .await?
            .items
            .into_iter()
            .filter_map(|lease| Some((lease.name_any(), lease.spec?.renew_time?)))
            .collect();
        self.judge_all(&nodes, renewed).await
    }

    /// Judges every node and evicts pods. What fails for one node or pod is tried again at the next look; it
    /// keeps nobody from the others.
    async fn judge_all(
        &mut self,
        nodes: &[Node],
        mut renewed: HashMap<String, MicroTime>,
    ) -> Result<(), kube::Error> {
        let collects = self.looks.is_multiple_of(LOOKS_BETWEEN_COLLECTIONS);
        self.looks += 1;
        let now = Instant::now();
        let mut tainted: BTreeMap<String, Vec<Taint>> = BTreeMap::new();
        for node in nodes {
            let name = node.name_any();
            let latest = renewed.remove(&name);
            let new = !self.seen.contains_key(&name);
            let seen =
                self.seen.entry(name.clone()).or_insert_with(|| Seen { renewed: latest.clone(), since: now });
            if seen.renewed != latest {
                seen.renewed = latest;
                seen.since = now;
            }
            let silent = now.duration_since(seen.since) >= GRACE;
            let taints = match self.judge(node, silent, new).await {
                Ok(taints) => taints,
                Err(error) => {
                    tracing::warn!(node = name, %error, "a node could not be brought in line with what is known");
                    taints_of(node)
                }
            };
            let evicting: Vec<Taint> =
                taints.into_iter().filter(|taint| taint.effect == "NoExecute").collect();
            if !evicting.is_empty() {
                tainted.insert(name, evicting);
            }
        }
        let names: Vec<String> = nodes.iter().map(kube::ResourceExt::name_any).collect();
        self.seen.retain(|name, _| names.contains(name));
        if tainted.is_empty() && self.evictions.is_empty() && !collects {
            return Ok(());
        }
        self.evict(&tainted, &names, now).await
    }

    /// Brings a node's condition and taints in line with what is known; gives the taints that it has then. A new node gets no taint:
    /// it is about to be ready, the scheduler leaves it alone until then, and a taint would stay for a whole period.
    async fn judge(&self, node: &Node, silent: bool, new: bool) -> Result<Vec<Taint>, kube::Error> {
        let api = Api::<Node>::all(self.client.clone());
        let name = node.name_any();
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions
            .clone()
            .find(|condition| condition.type_ == "Ready")
            .map(|condition| condition.status.clone());
        let state = if silent { "Unknown" } else { ready.as_deref().unwrap_or("False") };
        let marked;
        let mut node = node;
        if silent && ready.as_deref() != Some("Unknown") {
            let now = stamp(self.clock.now());
            let unknown: Vec<Value> = conditions
                .map(|condition| {
                    json!({
                        "type": condition.type_,
                        "status": "Unknown",
                        "reason": "NodeStatusUnknown",
                        "message": "Kubelet stopped posting node status.",
                        "lastTransitionTime": now,
                    })
                })
                .collect();
            // First the pods: should that fail, the node is still to be marked, and both are tried again.
            self.mark_pods(&name).await?;
            let patch = Patch::Strategic(json!({"status": {"conditions": unknown}}));
            marked = api.patch_status(&name, &PatchParams::default(), &patch).await?;
            node = &marked;
            self.node_event(node, "NodeNotReady", format!("Node {name} status is now: NodeNotReady"));
        }
        let wanted = match state {
            "True" => None,
            "Unknown" => Some(UNREACHABLE),
            _ => Some(NOT_READY),
        };
        let current = taints_of(node);
        let ours = |taint: &Taint| taint.key == NOT_READY || taint.key == UNREACHABLE;
        let right = match wanted {
            None => !current.iter().any(ours),
            Some(key) => {
                current.iter().filter(|taint| ours(taint)).count() == 2
                    && current.iter().filter(|taint| ours(taint)).all(|taint| taint.key == key)
            }
        };
        if right || (new && wanted.is_some()) {
            return Ok(current);
        }
        let mut taints: Vec<Value> = current
            .iter()
            .filter(|taint| !ours(taint))
            .filter_map(|taint| serde_json::to_value(taint).ok())
            .collect();
        if let Some(key) = wanted {
            let now = stamp(self.clock.now());
            taints.push(json!({"key": key, "effect": "NoSchedule", "timeAdded": now}));
            taints.push(json!({"key": key, "effect": "NoExecute", "timeAdded": now}));
        }
        // The version guards the taints of others: a conflict is looked at again in the next round.
        let patch = json!({
            "metadata": {"resourceVersion": node.resource_version()},
            "spec": {"taints": taints},
        });
        let patched = match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => return Ok(current),
            result => result?,
        };
        Ok(patched.spec.and_then(|spec| spec.taints).unwrap_or_default())
    }

    /// Pods of a silent node are not ready, so that Services leave them out.
    async fn mark_pods(&self, node: &str) -> Result<(), kube::Error> {
        let list = ListParams::default().fields(&format!("spec.nodeName={node}"));
        for pod in Api::<Pod>::all(self.client.clone()).list(&list).await?.items {
            if is_terminal(&pod) {
                continue;
            }
            let now = stamp(self.clock.now());
            let patch = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": now}]}});
            let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            match api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                result => {
                    result?;
                }
            }
        }
        Ok(())
    }

    async fn evict(
        &mut self,
        tainted: &BTreeMap<String, Vec<Taint>>,
        nodes: &[String],
        now: Instant,
    ) -> Result<(), kube::Error> {
        let pods = Api::<Pod>::all(self.client.clone()).list(&ListParams::default()).await?.items;
        let mut due = HashMap::new();
        for pod in &pods {
            let Some(spec) = &pod.spec else { continue };
            let Some(node) = spec.node_name.as_deref().filter(|name| !name.is_empty()) else { continue };
            let Some(uid) = pod.uid() else { continue };
            if !nodes.iter().any(|known| known == node) {
                self.delete(pod, Some(0)).await;
                continue;
            }
            let Some(taints) = tainted.get(node) else { continue };
            if pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let tolerations = spec.tolerations.as_deref().unwrap_or_default();
            let Some(wait) = patience(taints, tolerations) else { continue };
            let at = self.evictions.get(&uid).copied().unwrap_or(now + wait);
            if at <= now {
                self.recorder.note(Event {
                    object: pod_reference(pod, None),
                    component: "taint-eviction-controller",
                    host: String::new(),
                    warning: false,
                    reason: "TaintManagerEviction",
                    message: format!(
                        "Marking for deletion Pod {}/{}",
                        pod.namespace().unwrap_or_default(),
                        pod.name_any()
                    ),
                });
                if !self.delete(pod, None).await {
                    due.insert(uid, at);
                }
            } else {
                due.insert(uid, at);
            }
        }
        self.evictions = due;
        Ok(())
    }

    /// Deletes the pod; whether it is going now.
    async fn delete(&self, pod: &Pod, grace: Option<u32>) -> bool {
        let api = Api::<Pod>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let parameters = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        match api.delete(&pod.name_any(), &parameters).await {
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => true,
            Err(error) => {
                tracing::warn!(namespace = pod.namespace(), pod = pod.name_any(), %error, "a pod could not be deleted");
                false
            }
            Ok(_) => true,
        }
    }

    fn node_event(&self, node: &Node, reason: &'static str, message: String) {
        self.recorder.note(Event {
            object: json!({"apiVersion": "v1", "kind": "Node", "name": node.name_any(), "uid": node.uid()}),
            component: "node-controller",
            host: String::new(),
            warning: false,
            reason,
            message,
        });
    }
}

fn taints_of(node: &Node) -> Vec<Taint> {
    node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default()
}

/// How long a pod may stay on a node with these `NoExecute` taints; `None` for ever.
fn patience(taints: &[Taint], tolerations: &[Toleration]) -> Option<Duration> {
    let tolerations: Vec<(gantry_model::Toleration, Option<i64>)> = tolerations
        .iter()
        .filter_map(|toleration| {
            let value = serde_json::to_value(toleration).ok()?;
            Some((parse_toleration(&value).ok()?, toleration.toleration_seconds))
        })
        .collect();
    let waits = taints.iter().filter_map(|taint| {
        let read = gantry_model::Taint {
            key: taint.key.as_str().into(),
            value: taint.value.as_deref().unwrap_or_default().into(),
            effect: TaintEffect::NoExecute,
        };
        let matching: Vec<Option<i64>> = tolerations
            .iter()
            .filter(|(toleration, _)| toleration.tolerates(&read))
            .map(|(_, seconds)| *seconds)
            .collect();
        if matching.is_empty() {
            let default = taint.key == NOT_READY || taint.key == UNREACHABLE;
            return Some(if default { DEFAULT_TOLERATION } else { Duration::ZERO });
        }
        let shortest = matching.into_iter().flatten().min()?;
        Some(Duration::from_secs(u64::try_from(shortest).unwrap_or(0)))
    });
    waits.min()
}

/// Starts the controller.
pub(crate) fn start(client: Client, clock: SharedClock, recorder: EventRecorder, tasks: &Tasks) {
    tasks.spawn(NodeLifecycle::new(client, clock, recorder).run(tasks.token().clone()));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gantry_apiserver::{ApiServer, Options};
    use gantry_kit::{ManualClock, SeededIds};
    use kube::api::PostParams;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_fails_keeps_nobody_from_the_others() {
        let clock: SharedClock = Arc::new(ManualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let ids = Arc::new(SeededIds::new(1));
        let api = ApiServer::new(Options::new(clock.clone(), ids.clone())).unwrap();
        let (client, cancel) = (api.client(), CancellationToken::new());
        let (recorder, recording) = EventRecorder::new(client.clone(), clock.clone(), ids);
        Tasks::new(cancel.clone()).spawn_until_cancelled(recording);
        let mut lifecycle = NodeLifecycle::new(client.clone(), clock, recorder);
        let nodes = Api::<Node>::all(client.clone());
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let node = |name: &str| -> Node {
            let value = json!({"metadata": {"name": name}, "status": ready});
            serde_json::from_value(value).unwrap()
        };
        nodes.create(&PostParams::default(), &node("b-real")).await.unwrap();
        let patch = Patch::Merge(json!({"status": ready}));
        nodes.patch_status("b-real", &PatchParams::default(), &patch).await.unwrap();
        let pods = Api::<Pod>::namespaced(client, "default");
        let orphan = serde_json::from_value(json!({
            "metadata": {"name": "orphan"},
            "spec": {"nodeName": "gone", "containers": [{"name": "c", "image": "i"}]},
        }))
        .unwrap();
        pods.create(&PostParams::default(), &orphan).await.unwrap();
        // The first was deleted after the nodes were listed.
        let listed = [node("a-deleted"), nodes.get("b-real").await.unwrap()];
        lifecycle.looks = 1;
        lifecycle.judge_all(&listed, HashMap::new()).await.unwrap();
        assert!(pods.get_opt("orphan").await.unwrap().is_some(), "not every look collects");
        tokio::time::advance(GRACE).await;
        lifecycle.judge_all(&listed, HashMap::new()).await.unwrap();
        let keys = |node: &Node| taints_of(node).iter().map(|taint| taint.key.clone()).collect::<Vec<_>>();
        assert_eq!(keys(&nodes.get("b-real").await.unwrap()), [UNREACHABLE; 2]);
        assert!(pods.get_opt("orphan").await.unwrap().is_none());
        cancel.cancel();
    }

    #[test]
    fn tolerations_say_how_long_a_pod_stays() {
        let taint = |key: &str| -> Taint {
            serde_json::from_value(json!({"key": key, "effect": "NoExecute"})).unwrap()
        };
        let read = |text: &str| -> Vec<Toleration> { serde_json::from_str(text).unwrap() };
        let seconds = |n: u64| Some(Duration::from_secs(n));
        let unreachable = |rest: &str| format!(r#"[{{"key": "{UNREACHABLE}", "operator": "Exists"{rest}}}]"#);
        for (key, tolerations, expected) in [
            (UNREACHABLE, "[]".to_owned(), seconds(300)),
            ("other", "[]".to_owned(), seconds(0)),
            (UNREACHABLE, unreachable(r#", "tolerationSeconds": 30"#), seconds(30)),
            (UNREACHABLE, unreachable(r#", "effect": "NoExecute""#), None),
            (UNREACHABLE, unreachable(r#", "effect": "NoSchedule""#), seconds(300)),
            (UNREACHABLE, r#"[{"operator": "Exists"}]"#.to_owned(), None),
            ("other", r#"[{"key": "other", "value": "x"}]"#.to_owned(), seconds(0)),
        ] {
            assert_eq!(patience(&[taint(key)], &read(&tolerations)), expected, "{key} {tolerations}");
        }
    }
}
