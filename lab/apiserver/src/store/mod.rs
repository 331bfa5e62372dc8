//! The revisioned store: every object of every resource under one lock and one counter.
//!
//! A commit takes the next revision, appends to the resource's bounded log of changes and hands the change to
//! the watches that may care, all under the lock. Hence a list and the watch that continues it can neither
//! miss a change nor see one twice.

mod disk;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    pub(crate) use super::disk::{State, encode, replay};
}
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use gantry_apimachinery::ManagedFields;
use serde_json::Value;
use tokio::sync::mpsc;

use self::disk::Disk;
use self::watch::Watches;
pub(crate) use self::watch::{Interest, Subscription};
use crate::Error;

/// Names a resource independently of its version, as in `pods` or `deployments.apps`.
pub(crate) type ResourceId = Arc<str>;

/// Where an object lives within its resource; the order is that of lists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectKey {
    /// Empty for cluster-scoped objects.
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
}

impl ObjectKey {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// One state of one object, in its storage version.
#[derive(Debug)]
pub(crate) struct Object {
    /// Without `metadata.managedFields`.
    pub(crate) value: Value,
    /// Who owns which field.
    pub(crate) managed: ManagedFields,
    pub(crate) revision: u64,
    json: OnceLock<Bytes>,
    whole: OnceLock<Bytes>,
}

impl Object {
    pub(crate) fn new(value: Value, managed: ManagedFields, revision: u64) -> Self {
        Self { value, managed, revision, json: OnceLock::new(), whole: OnceLock::new() }
    }

    /// The object as JSON without `metadata.managedFields`, serialised once however many lists and watches send it.
    pub(crate) fn json(&self) -> &Bytes {
        self.json.get_or_init(|| to_bytes(&self.value))
    }

    /// The object as JSON with `metadata.managedFields`, serialised once too.
    pub(crate) fn whole_json(&self) -> &Bytes {
        if self.managed.is_empty() {
            return self.json();
        }
        self.whole.get_or_init(|| {
            let mut out = Vec::with_capacity(4096);
            write_fields(&mut out, &self.value, None, |out, name, value| {
                if name == "metadata" {
                    let managed = (String::from("managedFields"), self.managed.to_json());
                    write_fields(out, value, Some(managed), |out, _, value| write_json(out, value));
                } else {
                    write_json(out, value);
                }
            });
            Bytes::from(out)
        })
    }

    /// The object as a value with `metadata.managedFields`.
    pub(crate) fn whole(&self) -> Value {
        let mut value = self.value.clone();
        if !self.managed.is_empty() {
            value["metadata"]["managedFields"] = self.managed.to_value();
        }
        value
    }

    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(self.meta("namespace"), self.meta("name"))
    }

    /// A string of the metadata; empty if absent.
    pub(crate) fn meta(&self, field: &str) -> &str {
        self.value["metadata"][field].as_str().unwrap_or_default()
    }
}

fn write_json(out: &mut Vec<u8>, value: &Value) {
    serde_json::to_writer(out, value).expect("invariant: a JSON value has string keys");
}

/// Writes an object's fields by `write`, and where its name belongs one more whose JSON is given.
fn write_fields(
    out: &mut Vec<u8>,
    object: &Value,
    mut extra: Option<(String, String)>,
    write: impl Fn(&mut Vec<u8>, &str, &Value),
) {
    out.push(b'{');
    let mut is_first = true;
    let mut key = |out: &mut Vec<u8>, name: &str| {
        if !std::mem::take(&mut is_first) {
            out.push(b',');
        }
        write_json(out, &Value::from(name));
        out.push(b':');
    };
    for (name, value) in object.as_object().into_iter().flatten() {
        if let Some((extra, json)) = extra.take_if(|(extra, _)| *extra < *name) {
            key(out, &extra);
            out.extend_from_slice(json.as_bytes());
        }
        key(out, name);
        write(out, name, value);
    }
    if let Some((extra, json)) = extra {
        key(out, &extra);
        out.extend_from_slice(json.as_bytes());
    }
    out.push(b'}');
}

/// JSON text of a value.
pub(crate) fn to_bytes(value: &Value) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("invariant: a JSON value has string keys"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// One step of a resource's history. A deleted object carries the revision of its deletion.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) kind: ChangeKind,
    pub(crate) object: Arc<Object>,
    pub(crate) previous: Option<Arc<Object>>,
}

/// Why a commit did not happen.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// An object of that name is there already.
    Exists,
    /// The object is gone.
    Missing,
    /// The object is at another revision.
    Stale,
    /// The disk refused the record.
    Disk(Error),
}

/// Why the past cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HistoryError {
    /// Older than the log of changes.
    Compacted { oldest: u64 },
    /// Not written yet.
    Future { current: u64 },
}

#[derive(Default)]
struct Table {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    changes: VecDeque<Arc<Change>>,
    /// The newest revision whose change is no longer in `changes`.
    forgotten: u64,
    watches: Watches,
}

/// Every change of every resource, in revision order. Its reader must keep up: nothing bounds it.
pub(crate) type Feed = mpsc::UnboundedReceiver<(ResourceId, Arc<Change>)>;

struct Inner {
    revision: u64,
    tables: BTreeMap<ResourceId, Table>,
    disk: Option<Disk>,
    feeds: Vec<mpsc::UnboundedSender<(ResourceId, Arc<Change>)>>,
}

/// See the module's documentation.
pub(crate) struct Store {
    inner: Mutex<Inner>,
    /// How many changes each resource remembers.
    log_capacity: usize,
}

impl Store {
    /// An empty store, or with a folder the state that it holds.
    pub(crate) fn open(state_dir: Option<&Path>, log_capacity: usize) -> Result<Self, Error> {
        let mut inner = Inner { revision: 1, tables: BTreeMap::new(), disk: None, feeds: Vec::new() };
        if let Some(dir) = state_dir {
            let (disk, state) = Disk::open(dir)?;
            inner.disk = Some(disk);
            inner.revision = state.revision.max(1);
            for (resource, objects) in state.objects {
                let objects = objects.into_iter().map(|(key, object)| (key, Arc::new(object))).collect();
                inner
                    .tables
                    .insert(resource, Table { objects, forgotten: inner.revision, ..Table::default() });
            }
        }
        Ok(Self { inner: Mutex::new(inner), log_capacity })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The revision of the newest commit.
    pub(crate) fn revision(&self) -> u64 {
        self.lock().revision
    }

    pub(crate) fn get(&self, resource: &ResourceId, key: &ObjectKey) -> Option<Arc<Object>> {
        self.lock().tables.get(resource)?.objects.get(key).cloned()
    }

    /// The objects of a resource in key order, as of now or of revision `at`, and that revision.
    pub(crate) fn list(
        &self,
        resource: &ResourceId,
        namespace: Option<&str>,
        at: Option<u64>,
    ) -> Result<(Vec<Arc<Object>>, u64), HistoryError> {
        let inner = self.lock();
        let at = at.unwrap_or(inner.revision);
        if at > inner.revision {
            return Err(HistoryError::Future { current: inner.revision });
        }
        let Some(table) = inner.tables.get(resource) else { return Ok((Vec::new(), at)) };
        Ok((table.at(at, namespace)?, at))
    }

    /// The objects as of now and a subscription to everything after, without a gap.
    pub(crate) fn list_and_watch(
        &self,
        resource: &ResourceId,
        interest: Interest,
    ) -> (Vec<Arc<Object>>, u64, Subscription) {
        let mut inner = self.lock();
        let revision = inner.revision;
        let table = inner.tables.entry(resource.clone()).or_default();
        let objects = table.in_namespace(interest.namespace.as_deref()).cloned().collect();
        (objects, revision, table.watches.subscribe(interest))
    }

    /// Everything after revision `from`: what has happened already, then a subscription.
    pub(crate) fn watch(
        &self,
        resource: &ResourceId,
        interest: Interest,
        from: u64,
    ) -> Result<(Vec<Arc<Change>>, Subscription), HistoryError> {
        let mut inner = self.lock();
        if from > inner.revision {
            return Err(HistoryError::Future { current: inner.revision });
        }
        let table = inner.tables.entry(resource.clone()).or_default();
        if from < table.forgotten {
            return Err(HistoryError::Compacted { oldest: table.forgotten });
        }
        let start = table.changes.partition_point(|change| change.object.revision <= from);
        let past = table.changes.range(start..).filter(|change| interest.covers(change)).cloned().collect();
        Ok((past, table.watches.subscribe(interest)))
    }

    /// Everything that there is, and every change from now on, for the server's own controllers.
    pub(crate) fn feed(&self) -> (Vec<(ResourceId, Arc<Object>)>, Feed) {
        let mut inner = self.lock();
        let (sender, feed) = mpsc::unbounded_channel();
        inner.feeds.push(sender);
        let objects = inner.tables.iter().flat_map(|(resource, table)| {
            table.objects.values().map(move |object| (resource.clone(), object.clone()))
        });
        (objects.collect(), feed)
    }

    /// Adds an object under a name that is free. `metadata.resourceVersion` is set here.
    pub(crate) fn create(
        &self,
        resource: &ResourceId,
        value: Value,
        managed: ManagedFields,
    ) -> Result<Arc<Object>, CommitError> {
        self.commit(resource, value, Some(managed), |current| match current {
            Some(_) => Err(CommitError::Exists),
            None => Ok(ChangeKind::Added),
        })
    }

    /// Replaces the object, provided that it is still at `revision`. Its fields stay with their owners.
    pub(crate) fn update(
        &self,
        resource: &ResourceId,
        value: Value,
        revision: u64,
    ) -> Result<Arc<Object>, CommitError> {
        self.commit(resource, value, None, |current| {
            at_revision(current, revision).map(|()| ChangeKind::Modified)
        })
    }

    /// Replaces the object and the owners of its fields, provided that it is still at `revision`.
    pub(crate) fn update_owned(
        &self,
        resource: &ResourceId,
        value: Value,
        managed: ManagedFields,
        revision: u64,
    ) -> Result<Arc<Object>, CommitError> {
        self.commit(resource, value, Some(managed), |current| {
            at_revision(current, revision).map(|()| ChangeKind::Modified)
        })
    }

    /// Removes the object, provided that it is still at `revision`; returns its last state.
    pub(crate) fn delete(&self, resource: &ResourceId, last: &Object) -> Result<Arc<Object>, CommitError> {
        self.commit(resource, last.value.clone(), Some(last.managed.clone()), |current| {
            at_revision(current, last.revision).map(|()| ChangeKind::Deleted)
        })
    }

    fn commit(
        &self,
        resource: &ResourceId,
        mut value: Value,
        managed: Option<ManagedFields>,
        check: impl FnOnce(Option<&Arc<Object>>) -> Result<ChangeKind, CommitError>,
    ) -> Result<Arc<Object>, CommitError> {
        let key = ObjectKey::new(
            value["metadata"]["namespace"].as_str().unwrap_or_default(),
            value["metadata"]["name"].as_str().unwrap_or_default(),
        );
        let mut inner = self.lock();
        let Inner { revision: counter, tables, disk, feeds } = &mut *inner;
        let previous = tables.get(resource).and_then(|table| table.objects.get(&key)).cloned();
        let kind = check(previous.as_ref())?;
        let revision = *counter + 1;
        value["metadata"]["resourceVersion"] = Value::String(revision.to_string());
        let managed = managed.or_else(|| previous.as_ref().map(|previous| previous.managed.clone()));
        let object = Arc::new(Object::new(value, managed.unwrap_or_default(), revision));
        if let Some(disk) = disk {
            let state = (kind != ChangeKind::Deleted).then_some(&*object);
            disk.append(revision, resource, &key, state).map_err(CommitError::Disk)?;
        }
        *counter = revision;
        let table = tables.entry(resource.clone()).or_default();
        if kind == ChangeKind::Deleted {
            table.objects.remove(&key);
        } else {
            table.objects.insert(key, object.clone());
        }
        let change = Arc::new(Change { kind, object: object.clone(), previous });
        table.watches.publish(&change);
        feeds.retain(|feed| feed.send((resource.clone(), change.clone())).is_ok());
        table.changes.push_back(change);
        while table.changes.len() > self.log_capacity {
            if let Some(old) = table.changes.pop_front() {
                table.forgotten = old.object.revision;
            }
        }
        if let Some(disk) = disk
            && disk.wants_compaction()
        {
            let objects = tables.iter().flat_map(|(resource, table)| {
                table.objects.iter().map(move |(key, object)| (resource, key, object.as_ref()))
            });
            // The record is safe in the log already; a failed compaction only leaves that log longer.
            if let Err(error) = disk.compact(revision, objects) {
                tracing::warn!(%error, "cannot compact the state");
            }
        }
        Ok(object)
    }

    /// Forgets a resource's history and ends its watches, as when its definition goes away.
    pub(crate) fn close_watches(&self, resource: &ResourceId) {
        if let Some(table) = self.lock().tables.get_mut(resource) {
            table.watches = Watches::default();
        }
    }
}

fn at_revision(current: Option<&Arc<Object>>, revision: u64) -> Result<(), CommitError> {
    match current {
        None => Err(CommitError::Missing),
        Some(object) if object.revision != revision => Err(CommitError::Stale),
        Some(_) => Ok(()),
    }
}

impl Table {
    fn in_namespace(&self, namespace: Option<&str>) -> Box<dyn Iterator<Item = &Arc<Object>> + '_> {
        match namespace {
            None => Box::new(self.objects.values()),
            Some(namespace) => {
                let namespace: Arc<str> = namespace.into();
                let first = ObjectKey { namespace: namespace.clone(), name: "".into() };
                Box::new(
                    self.objects
                        .range(first..)
                        .take_while(move |(key, _)| key.namespace == namespace)
                        .map(|(_, object)| object),
                )
            }
        }
    }

    /// The past is the present with the newer changes undone.
    fn at(&self, revision: u64, namespace: Option<&str>) -> Result<Vec<Arc<Object>>, HistoryError> {
        let newer = self.changes.partition_point(|change| change.object.revision <= revision);
        if newer == self.changes.len() && revision >= self.forgotten {
            return Ok(self.in_namespace(namespace).cloned().collect());
        }
        if revision < self.forgotten {
            return Err(HistoryError::Compacted { oldest: self.forgotten });
        }
        let mut objects: BTreeMap<ObjectKey, Arc<Object>> =
            self.in_namespace(namespace).map(|object| (object.key(), object.clone())).collect();
        for change in self.changes.range(newer..).rev() {
            let key = change.object.key();
            if namespace.is_some_and(|namespace| *namespace != *key.namespace) {
                continue;
            }
            match &change.previous {
                Some(previous) => objects.insert(key, previous.clone()),
                None => objects.remove(&key),
            };
        }
        Ok(objects.into_values().collect())
    }
}
