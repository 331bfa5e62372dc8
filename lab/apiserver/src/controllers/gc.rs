//! Garbage collection: who owns whom, and what has to go when an owner goes.
//!
//! The graph follows the store and decides; it does nothing itself. The rules are those of
//! `k8s.io/kubernetes/pkg/controller/garbagecollector`:
//!
//! - an object all of whose owners are gone is deleted; if some remain, only the references to the others go;
//! - an owner deleted in the foreground stays until the dependents that block it are gone;
//! - an owner deleted with orphaning stays until no dependent refers to it any more.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::json::{items, text};
use crate::store::ResourceId;

/// The finalizer of an owner that waits for its dependents.
const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an owner whose dependents are to be let go.
const ORPHAN: &str = "orphan";

pub(super) type Uid = String;

/// Which object; the UID tells it from a later one of the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) resource: ResourceId,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Uid,
}

/// What has to be done to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Delete it with this `propagationPolicy`.
    Delete(Target, &'static str),
    /// Remove its references to these owners.
    RemoveOwners(Target, Vec<Uid>),
    RemoveFinalizer(Target, &'static str),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    uid: Uid,
    api_version: String,
    kind: String,
    blocks: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    target: Target,
    owners: Vec<Owner>,
    deleting: bool,
    foreground: bool,
    orphan: bool,
}

impl Node {
    fn of(resource: &ResourceId, object: &Value) -> Self {
        let metadata = &object["metadata"];
        let field = |name: &str| text(&metadata[name]).to_owned();
        let has = |finalizer| items(&metadata["finalizers"]).iter().any(|present| present == finalizer);
        let owners = items(&metadata["ownerReferences"]).iter().map(|owner| Owner {
            uid: text(&owner["uid"]).to_owned(),
            api_version: text(&owner["apiVersion"]).to_owned(),
            kind: text(&owner["kind"]).to_owned(),
            blocks: owner["blockOwnerDeletion"] == true,
        });
        Self {
            target: Target {
                resource: resource.clone(),
                namespace: field("namespace"),
                name: field("name"),
                uid: field("uid"),
            },
            owners: owners.collect(),
            deleting: !metadata["deletionTimestamp"].is_null(),
            foreground: has(FOREGROUND),
            orphan: has(ORPHAN),
        }
    }

    /// Whether it stays only until its dependents are gone.
    fn waits(&self) -> bool {
        self.deleting && self.foreground
    }

    fn blocks(&self, owner: &str) -> bool {
        self.owners.iter().any(|reference| reference.uid == owner && reference.blocks)
    }
}

/// The objects with their owners. An owner that is referred to need not exist.
#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: BTreeMap<Uid, Node>,
    dependents: BTreeMap<Uid, BTreeSet<Uid>>,
}

impl Graph {
    /// Takes up the state of an object. Returns what to [examine](Self::examine).
    pub(super) fn upsert(&mut self, resource: &ResourceId, object: &Value) -> BTreeSet<Uid> {
        let node = Node::of(resource, object);
        let uid = node.target.uid.clone();
        let old = self.nodes.get(&uid).cloned();
        if old.as_ref() == Some(&node) {
            return BTreeSet::new();
        }
        let mut touched = BTreeSet::from([uid.clone()]);
        if let Some(old) = &old {
            self.forget_owners(old);
            // An owner may have waited for this reference to go.
            touched.extend(old.owners.iter().map(|owner| owner.uid.clone()));
        }
        for owner in &node.owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
            touched.insert(owner.uid.clone());
        }
        if node.waits() && !old.is_some_and(|old| old.waits()) {
            touched.extend(
                self.dependents_of(&uid).filter(|node| node.blocks(&uid)).map(|n| n.target.uid.clone()),
            );
        }
        self.nodes.insert(uid, node);
        touched
    }

    /// Takes an object out. Returns what to [examine](Self::examine).
    pub(super) fn remove(&mut self, uid: &str) -> BTreeSet<Uid> {
        let Some(node) = self.nodes.remove(uid) else { return BTreeSet::new() };
        self.forget_owners(&node);
        let owners = node.owners.into_iter().map(|owner| owner.uid);
        owners.chain(self.dependents.get(uid).into_iter().flatten().cloned()).collect()
    }

    fn forget_owners(&mut self, node: &Node) {
        for owner in &node.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(&node.target.uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
    }

    fn dependents_of(&self, uid: &str) -> impl Iterator<Item = &Node> {
        self.dependents.get(uid).into_iter().flatten().filter_map(|uid| self.nodes.get(uid))
    }

    /// What the object's owners and dependents demand now. An owner of a kind that is not served may well exist
    /// where this server cannot see it, so it counts as present.
    pub(super) fn examine(&self, uid: &str, is_served: impl Fn(&str, &str) -> bool) -> Vec<Action> {
        let Some(node) = self.nodes.get(uid) else { return Vec::new() };
        let target = node.target.clone();
        if node.deleting {
            return self.finish(node);
        }
        let (mut present, mut absent, mut waiting) = (0, Vec::new(), Vec::new());
        for owner in &node.owners {
            match self.nodes.get(&owner.uid) {
                Some(found) if !may_own(found, node) => absent.push(owner.uid.clone()),
                Some(found) if found.waits() => waiting.push(owner.uid.clone()),
                None if is_served(&owner.api_version, &owner.kind) => absent.push(owner.uid.clone()),
                _ => present += 1,
            }
        }
        if absent.is_empty() && waiting.is_empty() {
            return Vec::new();
        }
        if present > 0 {
            absent.append(&mut waiting);
            return vec![Action::RemoveOwners(target, absent)];
        }
        let policy = if node.orphan {
            "Orphan"
        } else if node.foreground || (!waiting.is_empty() && self.dependents_of(uid).next().is_some()) {
            "Foreground"
        } else {
            "Background"
        };
        vec![Action::Delete(target, policy)]
    }

    /// Whether an object that is being deleted can go.
    fn finish(&self, node: &Node) -> Vec<Action> {
        let uid = &node.target.uid;
        if node.orphan {
            let releases: Vec<Action> = self
                .dependents_of(uid)
                .map(|dependent| Action::RemoveOwners(dependent.target.clone(), vec![uid.clone()]))
                .collect();
            if releases.is_empty() {
                return vec![Action::RemoveFinalizer(node.target.clone(), ORPHAN)];
            }
            return releases;
        }
        if node.foreground && !self.dependents_of(uid).any(|dependent| dependent.blocks(uid)) {
            return vec![Action::RemoveFinalizer(node.target.clone(), FOREGROUND)];
        }
        Vec::new()
    }
}

/// Owners are cluster-scoped or of the same namespace. A cluster-scoped object with an owner in a namespace is a
/// mistake that must not cost the object.
fn may_own(owner: &Node, dependent: &Node) -> bool {
    let (owner, dependent) = (&owner.target.namespace, &dependent.target.namespace);
    owner.is_empty() || dependent.is_empty() || owner == dependent
}

/// The object without references to these owners.
pub(super) fn without_owners(object: &Value, owners: &[Uid]) -> Value {
    without(object, "ownerReferences", |reference| owners.iter().any(|uid| reference["uid"] == uid.as_str()))
}

pub(super) fn without_finalizer(object: &Value, finalizer: &str) -> Value {
    without(object, "finalizers", |present| present == finalizer)
}

fn without(object: &Value, list: &str, unwanted: impl Fn(&Value) -> bool) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut()
        && let Some(Value::Array(items)) = metadata.get_mut(list)
    {
        items.retain(|item| !unwanted(item));
        if items.is_empty() {
            metadata.remove(list);
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(uid: &str, owners: &[(&str, bool)]) -> Value {
        let owners: Vec<Value> = owners
            .iter()
            .map(|(uid, blocks)| {
                json!({"apiVersion": "v1", "kind": "Pod", "name": uid, "uid": uid, "blockOwnerDeletion": blocks})
            })
            .collect();
        json!({"metadata": {"name": uid, "uid": uid, "namespace": "a", "ownerReferences": owners}})
    }

    fn deleting(mut object: Value, finalizer: &str) -> Value {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["finalizers"] = json!([finalizer]);
        object
    }

    fn target(uid: &str) -> Target {
        Target { resource: "pods".into(), namespace: "a".into(), name: uid.into(), uid: uid.into() }
    }

    fn graph(objects: &[Value]) -> Graph {
        let mut graph = Graph::default();
        for object in objects {
            graph.upsert(&"pods".into(), object);
        }
        graph
    }

    fn check(objects: &[Value], uid: &str, expected: &[Action]) {
        assert_eq!(graph(objects).examine(uid, |_, kind| kind == "Pod"), expected, "{objects:?}");
    }

    #[test]
    fn an_object_goes_when_its_last_owner_is_gone() {
        let both = object("x", &[("o", false), ("p", false)]);
        check(&[object("o", &[]), object("p", &[]), both.clone()], "x", &[]);
        check(&[object("o", &[]), both.clone()], "x", &[Action::RemoveOwners(target("x"), vec!["p".into()])]);
        check(&[both], "x", &[Action::Delete(target("x"), "Background")]);
        check(&[object("x", &[])], "x", &[]);
    }

    #[test]
    fn an_owner_that_cannot_be_seen_counts_as_present() {
        let mut x = object("x", &[("o", false)]);
        x["metadata"]["ownerReferences"][0]["kind"] = "Elsewhere".into();
        check(&[x], "x", &[]);
    }

    #[test]
    fn an_owner_in_another_namespace_is_none() {
        let mut owner = object("o", &[]);
        owner["metadata"]["namespace"] = "b".into();
        let x = object("x", &[("o", false)]);
        check(&[owner.clone(), x.clone()], "x", &[Action::Delete(target("x"), "Background")]);
        owner["metadata"]["namespace"] = Value::Null;
        check(&[owner, x], "x", &[]);
    }

    #[test]
    fn foreground_deletion_goes_from_the_leaves_to_the_root() {
        let root = deleting(object("root", &[]), FOREGROUND);
        let middle = object("middle", &[("root", true)]);
        let leaf = object("leaf", &[("middle", true)]);
        check(&[root.clone(), middle.clone(), leaf.clone()], "root", &[]);
        check(
            &[root.clone(), middle.clone(), leaf],
            "middle",
            &[Action::Delete(target("middle"), "Foreground")],
        );
        check(&[root.clone(), middle], "middle", &[Action::Delete(target("middle"), "Background")]);
        check(std::slice::from_ref(&root), "root", &[Action::RemoveFinalizer(target("root"), FOREGROUND)]);
        // A dependent that does not block is no reason to wait.
        check(
            &[root, object("other", &[("root", false)])],
            "root",
            &[Action::RemoveFinalizer(target("root"), FOREGROUND)],
        );
    }

    #[test]
    fn orphans_are_let_go_before_their_owner_goes() {
        let owner = deleting(object("o", &[]), ORPHAN);
        let x = object("x", &[("o", true)]);
        check(&[owner.clone(), x], "o", &[Action::RemoveOwners(target("x"), vec!["o".into()])]);
        check(&[owner], "o", &[Action::RemoveFinalizer(target("o"), ORPHAN)]);
    }

    #[test]
    fn changes_name_whom_they_may_concern() {
        let pods = ResourceId::from("pods");
        let mut graph = graph(&[object("o", &[]), object("x", &[("o", true)])]);
        let uids = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(graph.upsert(&pods, &object("x", &[("o", true)])), uids(&[]));
        assert_eq!(graph.upsert(&pods, &deleting(object("o", &[]), FOREGROUND)), uids(&["o", "x"]));
        assert_eq!(graph.upsert(&pods, &object("x", &[])), uids(&["o", "x"]));
        graph.upsert(&pods, &object("x", &[("o", true)]));
        assert_eq!(graph.remove("o"), uids(&["x"]));
        assert_eq!(graph.remove("x"), uids(&["o"]));
        assert!(graph.nodes.is_empty() && graph.dependents.is_empty());
    }

    #[test]
    fn references_and_finalizers_are_taken_out_alone() {
        let x = deleting(object("x", &[("o", true), ("p", true)]), "mine");
        let released = without_owners(&x, &["o".to_owned()]);
        assert_eq!(released["metadata"]["ownerReferences"][0]["uid"], "p");
        assert_eq!(released["metadata"]["finalizers"], json!(["mine"]));
        let done = without_finalizer(&released, "mine");
        assert!(done["metadata"].get("finalizers").is_none());
    }
}
