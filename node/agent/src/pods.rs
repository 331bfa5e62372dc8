//! The pods of this node as the API server knows them, kept in memory: a runtime waits two seconds for an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use gantry_api::{ASSIGNMENT_ANNOTATION, decode_assignment};
use gantry_model::GpuId;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::watch;
use tokio::time::timeout;

/// Where the kubelet writes the UID of a static pod, in the object that mirrors it.
const STATIC_UID_ANNOTATION: &str = "kubernetes.io/config.hash";

/// The pods that are bound to a node, for a list or a watch.
pub(crate) fn on_node(node: &str) -> String {
    format!("spec.nodeName={node}")
}

/// The UIDs under which a pod's containers may run: a static pod runs under another than that of the object that mirrors it.
pub(crate) fn uids(pod: &Pod) -> impl Iterator<Item = &str> {
    let mirrored = pod.metadata.annotations.as_ref().and_then(|all| all.get(STATIC_UID_ANNOTATION));
    pod.metadata.uid.as_deref().into_iter().chain(mirrored.map(String::as_str))
}

/// Whether a pod's containers have ended for good.
pub(crate) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// What is known of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    namespace: String,
    name: String,
    assignment: Option<String>,
    /// The UID of the object, where its containers run under another.
    mirror: Option<String>,
    /// Whether its containers have ended for good.
    ended: bool,
}

/// The pods of the node.
#[derive(Debug, Default)]
pub(crate) struct NodePods {
    list: Mutex<List>,
    /// Counts changes.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct List {
    /// By the UID under which containers run.
    pods: BTreeMap<String, Known>,
    /// Whether it is what the API server says now, as far as anybody can know: what it does not have is not there.
    current: bool,
}

impl List {
    /// The pods with this UID, of their containers or of the object.
    fn named(&self, uid: &str) -> impl Iterator<Item = &Known> {
        let has = move |(known, pod): &(&String, &Known)| *known == uid || pod.mirror.as_deref() == Some(uid);
        self.pods.iter().filter(has).map(|(_, pod)| pod)
    }
}

/// What is known of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is there; its assignment, if it has one.
    Pod(Option<String>),
    /// The API server knows no such pod on this node.
    None,
    /// The API server does not answer.
    Unknown,
}

impl NodePods {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod's assignment, as its annotation says it.
    pub(crate) fn assignment(&self, uid: &str) -> Option<String> {
        self.list().pods.get(uid)?.assignment.clone()
    }

    /// The GPUs of this node that assignments of other pods name, whether their containers are there or still to come.
    pub(crate) fn promised(&self, node: &str, uid: &str) -> BTreeSet<GpuId> {
        let list = self.list();
        let others = list.pods.iter().filter(|(other, pod)| *other != uid && !pod.ended);
        others
            // An assignment that cannot be read is told when its pod's container comes.
            .filter_map(|(_, pod)| decode_assignment(pod.assignment.as_ref()?).ok())
            .filter(|assignment| *assignment.node == *node)
            .flat_map(|assignment| assignment.containers.into_values().flatten())
            .collect()
    }

    /// The UID of the pod with this name.
    pub(crate) fn uid(&self, namespace: &str, name: &str) -> Option<String> {
        let list = self.list();
        let known = list.pods.iter().find(|(_, pod)| pod.namespace == namespace && pod.name == name);
        known.map(|(uid, _)| uid.clone())
    }

    /// A pod whose containers have not ended. The runtime may know it a moment earlier than we do, so that one that is not there
    /// yet is waited for.
    pub(crate) async fn find(&self, uid: &str, patience: Duration) -> Found {
        let mut changed = self.changed.subscribe();
        let found = timeout(patience, async {
            loop {
                if let Some(pod) = self.list().pods.get(uid).filter(|pod| !pod.ended) {
                    return pod.assignment.clone();
                }
                if changed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        });
        match found.await {
            Ok(assignment) => Found::Pod(assignment),
            Err(_) if self.list().current => Found::None,
            Err(_) => Found::Unknown,
        }
    }

    /// Those of the UIDs whose pods have ended or are gone; none while that is not known.
    pub(crate) fn ended<'a>(&self, uids: &'a [Arc<str>]) -> Vec<&'a Arc<str>> {
        let list = self.list();
        uids.iter().filter(|uid| list.current && list.named(uid).all(|pod| pod.ended)).collect()
    }

    /// Whether there is such a pod, whatever its state.
    pub(crate) fn is_there(&self, uid: &str) -> bool {
        self.list().named(uid).next().is_some()
    }

    /// Every change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn apply(pods: &mut BTreeMap<String, Known>, pod: &Pod) {
        let metadata = &pod.metadata;
        let assignment =
            metadata.annotations.as_ref().and_then(|all| all.get(ASSIGNMENT_ANNOTATION).cloned());
        // Of a static pod that is the one that its object mirrors.
        let Some(uid) = uids(pod).last().map(str::to_owned) else { return };
        let known = Known {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            assignment,
            mirror: metadata.uid.clone().filter(|own| *own != uid),
            ended: has_ended(pod),
        };
        pods.insert(uid, known);
    }

    fn step(&self, fresh: &mut BTreeMap<String, Known>, event: watcher::Event<Pod>) {
        {
            let mut list = self.list();
            match event {
                watcher::Event::Init => fresh.clear(),
                watcher::Event::InitApply(pod) => Self::apply(fresh, &pod),
                watcher::Event::InitDone => {
                    *list = List { pods: std::mem::take(fresh), current: true };
                }
                watcher::Event::Apply(pod) => {
                    list.current = true;
                    Self::apply(&mut list.pods, &pod);
                }
                watcher::Event::Delete(pod) => {
                    let mut gone = BTreeMap::new();
                    Self::apply(&mut gone, &pod);
                    list.pods.retain(|uid, _| !gone.contains_key(uid));
                }
            }
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// Nobody tells changes for now.
    fn lost(&self) {
        self.list().current = false;
    }
}

/// Follows the pods of a node until dropped.
pub(crate) async fn follow(pods: Arc<NodePods>, client: kube::Client, node: Arc<str>) {
    let config = watcher::Config::default().fields(&on_node(&node));
    let mut events = watcher(Api::<Pod>::all(client), config).default_backoff().boxed();
    let mut fresh = BTreeMap::new();
    loop {
        match events.try_next().await {
            Ok(Some(event)) => pods.step(&mut fresh, event),
            Ok(None) => return,
            Err(error) => {
                pods.lost();
                tracing::debug!(%error, "cannot watch the node's pods; trying again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, uid: &str, annotations: &serde_json::Value) -> Pod {
        let metadata = json!({ "namespace": "d", "name": name, "uid": uid, "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn a_static_pod_is_known_by_either_uid() {
        let pod: Pod = serde_json::from_value(json!({ "metadata": {
            "uid": "mirror", "annotations": { STATIC_UID_ANNOTATION: "real" } } }))
        .unwrap();
        assert_eq!(
            uids(&pod).collect::<std::collections::BTreeSet<_>>(),
            std::collections::BTreeSet::from(["mirror", "real"])
        );
        assert_eq!(uids(&Pod::default()).count(), 0);
        assert!(!has_ended(&pod));
    }

    #[test]
    fn the_newest_list_counts_and_events_change_it() {
        let (pods, mut fresh) = (NodePods::default(), BTreeMap::new());
        let assigned = json!({ ASSIGNMENT_ANNOTATION: "x" });
        let mirror = json!({ STATIC_UID_ANNOTATION: "real" });
        for event in [
            watcher::Event::Init,
            watcher::Event::InitApply(pod("a", "1", &assigned)),
            watcher::Event::InitApply(pod("s", "mirror", &mirror)),
        ] {
            pods.step(&mut fresh, event);
        }
        assert_eq!(pods.uid("d", "a"), None, "a list counts once it is whole");
        pods.step(&mut fresh, watcher::Event::InitDone);
        assert_eq!(pods.assignment("1").as_deref(), Some("x"));
        assert_eq!(pods.uid("d", "s").as_deref(), Some("real"));
        pods.step(&mut fresh, watcher::Event::Apply(pod("b", "2", &json!({}))));
        pods.step(&mut fresh, watcher::Event::Apply(pod("b", "2", &assigned)));
        assert_eq!(pods.assignment("2").as_deref(), Some("x"));
        pods.step(&mut fresh, watcher::Event::Delete(pod("a", "1", &assigned)));
        assert_eq!((pods.uid("d", "a"), pods.uid("d", "b").as_deref()), (None, Some("2")));
        pods.step(&mut fresh, watcher::Event::Init);
        pods.step(&mut fresh, watcher::Event::InitDone);
        assert_eq!(pods.uid("d", "b"), None);
    }

    #[test]
    fn promised_is_what_assignments_of_other_pods_that_go_on_name_here() {
        let assigned = |node: &str, gpu: &str| {
            let containers = [("main".into(), vec![gpu.parse().unwrap()])].into();
            let text =
                gantry_api::encode_assignment(&gantry_model::Assignment { node: node.into(), containers });
            json!({ ASSIGNMENT_ANNOTATION: text })
        };
        let (pods, mut fresh) = (NodePods::default(), BTreeMap::new());
        let mut done = pod("done", "4", &assigned("here", "GPU-d"));
        done.status = serde_json::from_value(json!({ "phase": "Failed" })).unwrap();
        for pod in [
            pod("a", "1", &assigned("here", "GPU-a")),
            pod("b", "2", &assigned("here", "GPU-b")),
            pod("c", "3", &assigned("there", "GPU-c")),
            pod("x", "5", &json!({ ASSIGNMENT_ANNOTATION: "x" })),
            done,
        ] {
            pods.step(&mut fresh, watcher::Event::Apply(pod));
        }
        assert_eq!(pods.promised("here", "1"), ["GPU-b".parse().unwrap()].into());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_waited_for_and_one_that_has_ended_is_none() {
        let patience = Duration::from_secs(1);
        let (pods, mut fresh) = (NodePods::default(), BTreeMap::new());
        let owners: Vec<Arc<str>> = vec!["1".into(), "2".into(), "real".into()];
        assert_eq!(pods.find("1", patience).await, Found::Unknown);
        assert!(pods.ended(&owners).is_empty(), "nothing is known yet");
        pods.step(&mut fresh, watcher::Event::InitDone);
        assert_eq!(pods.find("1", patience).await, Found::None);
        let (found, ()) = tokio::join!(pods.find("1", patience), async {
            pods.step(
                &mut fresh,
                watcher::Event::Apply(pod("a", "1", &json!({ ASSIGNMENT_ANNOTATION: "x" }))),
            );
        });
        assert_eq!(found, Found::Pod(Some("x".to_owned())));
        let mirror = json!({ STATIC_UID_ANNOTATION: "real" });
        pods.step(&mut fresh, watcher::Event::Apply(pod("s", "2", &mirror)));
        assert!(pods.ended(&owners).is_empty(), "a static pod is known by either UID");
        let mut done = pod("a", "1", &json!({}));
        done.status = serde_json::from_value(json!({ "phase": "Succeeded" })).unwrap();
        pods.step(&mut fresh, watcher::Event::Apply(done));
        assert_eq!(pods.find("1", patience).await, Found::None);
        assert_eq!(pods.ended(&owners), [&owners[0]]);
        assert!(pods.is_there("1") && pods.is_there("2") && pods.is_there("real") && !pods.is_there("3"));
        pods.lost();
        assert!(pods.ended(&owners).is_empty());
        assert_eq!(pods.find("1", patience).await, Found::Unknown);
    }
}
