//! The pods of this node as the API server knows them, kept in memory: a runtime waits two seconds for an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{StreamExt as _, TryStreamExt as _};
use gantry_api::ASSIGNMENT_ANNOTATION;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};

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
}

/// The pods of the node by UID.
#[derive(Debug, Default)]
pub(crate) struct NodePods(Mutex<BTreeMap<String, Known>>);

impl NodePods {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pod's assignment, as its annotation says it.
    pub(crate) fn assignment(&self, uid: &str) -> Option<String> {
        self.pods().get(uid)?.assignment.clone()
    }

    /// The UID of the pod with this name.
    pub(crate) fn uid(&self, namespace: &str, name: &str) -> Option<String> {
        let pods = self.pods();
        let known = pods.iter().find(|(_, pod)| pod.namespace == namespace && pod.name == name);
        known.map(|(uid, _)| uid.clone())
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
        };
        pods.insert(uid, known);
    }

    fn step(&self, fresh: &mut BTreeMap<String, Known>, event: watcher::Event<Pod>) {
        match event {
            watcher::Event::Init => fresh.clear(),
            watcher::Event::InitApply(pod) => Self::apply(fresh, &pod),
            watcher::Event::InitDone => *self.pods() = std::mem::take(fresh),
            watcher::Event::Apply(pod) => Self::apply(&mut self.pods(), &pod),
            watcher::Event::Delete(pod) => {
                let mut gone = BTreeMap::new();
                Self::apply(&mut gone, &pod);
                self.pods().retain(|uid, _| !gone.contains_key(uid));
            }
        }
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
            Err(error) => tracing::debug!(%error, "cannot watch the node's pods; trying again"),
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
}
