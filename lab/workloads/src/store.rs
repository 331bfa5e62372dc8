//! What is known of the cluster: the objects of each kind, indexed by owner and, for pods, by label.
//!
//! The store takes objects from watches and from the answers to our own writes, whichever come first. A version
//! that is older than the known one is dropped, and so is an object whose deletion was already seen: what a
//! controller has just written, it sees, and no count of expected events is needed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use kube::core::{Expression, Selector};
use serde_json::Value;

use crate::json::{Fields as _, Owner, selects};
use crate::kinds::Kind;
use crate::pod::Pod;

/// Deletions that are remembered, so that an answer that arrives late does not bring an object back.
const TOMBSTONES: usize = 16_384;

/// Namespace (empty for cluster-wide kinds) and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ref {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl Ref {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// An object as it is stored.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Pod(Arc<Pod>),
    Object(Arc<Value>),
}

impl Entry {
    fn uid(&self) -> &str {
        match self {
            Self::Pod(pod) => &pod.uid,
            Self::Object(object) => object.uid(),
        }
    }

    fn version(&self) -> u64 {
        match self {
            Self::Pod(pod) => pod.version,
            Self::Object(object) => object.version(),
        }
    }

    pub(crate) fn owner(&self) -> Option<Owner> {
        match self {
            Self::Pod(pod) => pod.owner.clone(),
            Self::Object(object) => object.controller(),
        }
    }

    pub(crate) fn pod(&self) -> Option<&Arc<Pod>> {
        match self {
            Self::Pod(pod) => Some(pod),
            Self::Object(_) => None,
        }
    }

    pub(crate) fn object(&self) -> Option<&Arc<Value>> {
        match self {
            Self::Object(object) => Some(object),
            Self::Pod(_) => None,
        }
    }
}

/// One object that came, changed or left.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) kind: Kind,
    pub(crate) id: Ref,
    pub(crate) old: Option<Entry>,
    pub(crate) new: Option<Entry>,
}

#[derive(Debug, Default)]
struct Table {
    rows: BTreeMap<Ref, Entry>,
    by_owner: HashMap<String, BTreeSet<Ref>>,
}

/// Every object that the controllers know.
#[derive(Debug, Default)]
pub(crate) struct Store {
    tables: BTreeMap<Kind, Table>,
    /// Pods by namespace, then `key=value`.
    pods_by_label: HashMap<Arc<str>, HashMap<String, BTreeSet<Ref>>>,
    tombstones: HashSet<String>,
    tombstone_order: VecDeque<String>,
}

impl Store {
    /// Takes an object as the API server has it. `None` where nothing new was learnt.
    pub(crate) fn apply(&mut self, kind: Kind, object: Value) -> Option<Change> {
        let id = Ref::new(object.namespace(), object.name());
        if id.name.is_empty() || self.tombstones.contains(object.uid()) {
            return None;
        }
        let old = self.tables.entry(kind).or_default().rows.get(&id).cloned();
        if old.as_ref().is_some_and(|old| old.version() >= object.version()) {
            return None;
        }
        let new = if kind == Kind::Pod {
            Entry::Pod(Arc::new(Pod::read(&object, old.as_ref().and_then(Entry::pod).map(|pod| &**pod))))
        } else {
            Entry::Object(Arc::new(trimmed(kind, object)))
        };
        self.index(kind, &id, old.as_ref(), Some(&new));
        self.tables.entry(kind).or_default().rows.insert(id.clone(), new.clone());
        Some(Change { kind, id, old, new: Some(new) })
    }

    /// Forgets an object that was deleted.
    pub(crate) fn remove(&mut self, kind: Kind, id: &Ref, uid: &str) -> Option<Change> {
        if !uid.is_empty() && self.tombstones.insert(uid.to_owned()) {
            self.tombstone_order.push_back(uid.to_owned());
            if self.tombstone_order.len() > TOMBSTONES
                && let Some(oldest) = self.tombstone_order.pop_front()
            {
                self.tombstones.remove(&oldest);
            }
        }
        let table = self.tables.entry(kind).or_default();
        let old = table.rows.get(id).filter(|old| old.uid() == uid)?.clone();
        table.rows.remove(id);
        self.index(kind, id, Some(&old), None);
        Some(Change { kind, id: id.clone(), old: Some(old), new: None })
    }

    /// Takes a full list. What it lacks and is not newer than the list, was deleted.
    pub(crate) fn replace(&mut self, kind: Kind, objects: Vec<Value>, version: u64) -> Vec<Change> {
        let listed: HashSet<Ref> =
            objects.iter().map(|object| Ref::new(object.namespace(), object.name())).collect();
        let table = self.tables.entry(kind).or_default();
        let gone: Vec<(Ref, String)> = table
            .rows
            .iter()
            .filter(|(id, entry)| !listed.contains(*id) && entry.version() <= version)
            .map(|(id, entry)| (id.clone(), entry.uid().to_owned()))
            .collect();
        let mut changes: Vec<Change> =
            gone.iter().filter_map(|(id, uid)| self.remove(kind, id, uid)).collect();
        changes.extend(objects.into_iter().filter_map(|object| self.apply(kind, object)));
        changes
    }

    fn index(&mut self, kind: Kind, id: &Ref, old: Option<&Entry>, new: Option<&Entry>) {
        let owner = |entry: Option<&Entry>| entry.and_then(Entry::owner).map(|owner| owner.uid);
        let (before, after) = (owner(old), owner(new));
        if before != after {
            let by_owner = &mut self.tables.entry(kind).or_default().by_owner;
            if let Some(uid) = before {
                unlink(by_owner, &uid, id);
            }
            if let Some(uid) = after {
                by_owner.entry(uid).or_default().insert(id.clone());
            }
        }
        if kind == Kind::Pod {
            let empty = BTreeMap::new();
            let labels = |entry: Option<&Entry>| entry.and_then(Entry::pod).cloned();
            let (before, after) = (labels(old), labels(new));
            let before = before.as_ref().map_or(&empty, |pod| &pod.labels);
            let after = after.as_ref().map_or(&empty, |pod| &pod.labels);
            if before != after {
                let by_label = self.pods_by_label.entry(id.namespace.clone()).or_default();
                for (key, value) in before {
                    unlink(by_label, &format!("{key}={value}"), id);
                }
                for (key, value) in after {
                    by_label.entry(format!("{key}={value}")).or_default().insert(id.clone());
                }
            }
        }
    }

    fn rows(&self, kind: Kind) -> Option<&BTreeMap<Ref, Entry>> {
        self.tables.get(&kind).map(|table| &table.rows)
    }

    /// The object of this kind and name.
    pub(crate) fn get(&self, kind: Kind, id: &Ref) -> Option<Arc<Value>> {
        self.rows(kind)?.get(id)?.object().cloned()
    }

    /// The pod of this name.
    pub(crate) fn pod(&self, id: &Ref) -> Option<Arc<Pod>> {
        self.rows(Kind::Pod)?.get(id)?.pod().cloned()
    }

    /// Every object of a kind, by namespace and name.
    pub(crate) fn all(&self, kind: Kind) -> impl Iterator<Item = &Arc<Value>> {
        self.rows(kind).into_iter().flatten().filter_map(|(_, entry)| entry.object())
    }

    fn entries_in<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Ref, &'a Entry)> + 'a {
        let rows = self.rows(kind).map(|rows| rows.range(Ref::new(namespace, "")..));
        rows.into_iter().flatten().take_while(move |(id, _)| &*id.namespace == namespace)
    }

    /// The objects of a kind in a namespace, by name.
    pub(crate) fn in_namespace<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Value>> + 'a {
        self.entries_in(kind, namespace).filter_map(|(_, entry)| entry.object())
    }

    /// The pods in a namespace, by name.
    pub(crate) fn pods_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Pod>> + 'a {
        self.entries_in(Kind::Pod, namespace).filter_map(|(_, entry)| entry.pod())
    }

    /// The objects of a kind that the object with this UID controls, by name.
    pub(crate) fn owned(&self, kind: Kind, uid: &str) -> Vec<Arc<Value>> {
        self.owned_entries(kind, uid).filter_map(|entry| entry.object().cloned()).collect()
    }

    /// The pods that the object with this UID controls, by name.
    pub(crate) fn owned_pods(&self, uid: &str) -> Vec<Arc<Pod>> {
        self.owned_entries(Kind::Pod, uid).filter_map(|entry| entry.pod().cloned()).collect()
    }

    fn owned_entries<'a>(&'a self, kind: Kind, uid: &str) -> impl Iterator<Item = &'a Entry> + 'a {
        let table = self.tables.get(&kind);
        let ids = table.and_then(|table| table.by_owner.get(uid)).into_iter().flatten();
        ids.filter_map(move |id| table?.rows.get(id))
    }

    /// The pods of a namespace that fulfil the selector, by name. Looks only at pods that carry the rarest of
    /// the labels asked for.
    pub(crate) fn select_pods(&self, namespace: &str, selector: &Selector) -> Vec<Arc<Pod>> {
        let mut rarest: Option<Option<&BTreeSet<Ref>>> = None;
        for expression in selector.clone() {
            if let Expression::Equal(key, value) = expression {
                let found = self
                    .pods_by_label
                    .get(namespace)
                    .and_then(|by_label| by_label.get(&format!("{key}={value}")));
                let size = |set: Option<&BTreeSet<Ref>>| set.map_or(0, BTreeSet::len);
                if rarest.is_none_or(|known| size(found) < size(known)) {
                    rarest = Some(found);
                }
            }
        }
        match rarest {
            Some(ids) => {
                let pods = ids.into_iter().flatten().filter_map(|id| self.pod(id));
                pods.filter(|pod| selects(selector, &pod.labels)).collect()
            }
            None => self.pods_in(namespace).filter(|pod| selects(selector, &pod.labels)).cloned().collect(),
        }
    }
}

fn unlink(index: &mut HashMap<String, BTreeSet<Ref>>, key: &str, id: &Ref) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

/// What no controller looks at is not kept: contents of Secrets and ConfigMaps, managed fields.
fn trimmed(kind: Kind, mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if let (Kind::Secret | Kind::ConfigMap, Some(fields)) = (kind, object.as_object_mut()) {
        fields.retain(|key, _| key == "metadata");
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::selector;

    fn pod(name: &str, version: u64, labels: Value, owner: Option<&str>) -> Value {
        let owners: Vec<Value> = owner
            .map(|uid| json!({"kind": "ReplicaSet", "name": uid, "uid": uid, "controller": true}))
            .into_iter()
            .collect();
        json!({"metadata": {
            "namespace": "ml", "name": name, "uid": format!("uid-{name}"), "labels": labels,
            "resourceVersion": version.to_string(), "ownerReferences": owners,
        }})
    }

    #[test]
    fn an_older_version_or_a_deleted_object_does_not_come_back() {
        let mut store = Store::default();
        assert!(store.apply(Kind::Pod, pod("a", 5, json!({}), None)).is_some());
        assert!(store.apply(Kind::Pod, pod("a", 5, json!({}), None)).is_none());
        assert!(store.apply(Kind::Pod, pod("a", 4, json!({}), None)).is_none());
        assert!(store.remove(Kind::Pod, &Ref::new("ml", "a"), "uid-a").is_some());
        assert!(store.apply(Kind::Pod, pod("a", 6, json!({}), None)).is_none());
        assert!(store.pod(&Ref::new("ml", "a")).is_none());
    }

    #[test]
    fn a_list_removes_what_it_lacks_unless_that_is_newer() {
        let mut store = Store::default();
        store.apply(Kind::Pod, pod("old", 5, json!({}), None));
        store.apply(Kind::Pod, pod("ours", 12, json!({}), None));
        let changes = store.replace(Kind::Pod, vec![pod("listed", 9, json!({}), None)], 10);
        let names: Vec<(&str, bool)> =
            changes.iter().map(|change| (&*change.id.name, change.new.is_some())).collect();
        assert_eq!(names, [("old", false), ("listed", true)]);
        assert!(store.pod(&Ref::new("ml", "ours")).is_some());
    }

    #[test]
    fn indexes_follow_owners_and_labels() {
        let mut store = Store::default();
        store.apply(Kind::Pod, pod("a", 1, json!({"app": "x", "tier": "1"}), Some("rs")));
        store.apply(Kind::Pod, pod("b", 2, json!({"app": "x"}), None));
        let x = selector(&json!({"matchLabels": {"app": "x"}})).unwrap();
        let names = |pods: Vec<Arc<Pod>>| pods.iter().map(|pod| pod.id.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(store.select_pods("ml", &x)), ["a", "b"]);
        assert_eq!(names(store.owned_pods("rs")), ["a"]);
        store.apply(Kind::Pod, pod("a", 3, json!({"app": "y"}), None));
        assert_eq!(names(store.select_pods("ml", &x)), ["b"]);
        assert!(store.owned_pods("rs").is_empty());
        let not_y = selector(&json!({"matchExpressions": [
            {"key": "app", "operator": "NotIn", "values": ["y"]},
        ]}))
        .unwrap();
        assert_eq!(names(store.select_pods("ml", &not_y)), ["b"]);
        assert!(store.select_pods("other", &x).is_empty());
    }
}
