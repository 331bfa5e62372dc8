//! Events, written as client libraries of Kubernetes write them: the same event again raises a count, many that
//! differ only in their text become one, and an object that is too chatty is cut short.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

use gantry_kit::{SharedClock, SharedIds};
use jiff::Timestamp;
use kube::Client;
use kube::core::Request;
use kube::core::params::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tracing::debug;

use crate::Error;
use crate::json::{Fields as _, seconds_between, stamp};
use crate::kinds::Kind;
use crate::plan::Note;

/// Different texts of one reason before they are combined (client-go's default).
const COMBINE_ABOVE: usize = 10;
/// Seconds without an event of the reason after which counting texts starts anew (client-go's default).
const COMBINE_WINDOW_S: i64 = 600;
/// Events about one object that may come at once (client-go's default).
const BURST: i64 = 25;
/// Seconds until one more is allowed (client-go's default).
const REFILL_S: i64 = 300;
/// Objects and texts that are remembered.
const REMEMBERED: usize = 4096;

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Regarding {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) version: String,
}

impl Regarding {
    pub(crate) fn object(kind: Kind, object: &Value) -> Self {
        Self {
            kind,
            namespace: object.namespace().to_owned(),
            name: object.name().to_owned(),
            uid: object.uid().to_owned(),
            version: object.text("/metadata/resourceVersion").to_owned(),
        }
    }
}

/// Something that happened.
#[derive(Debug)]
pub(crate) struct Occurrence {
    pub(crate) component: &'static str,
    pub(crate) regarding: Regarding,
    pub(crate) note: Note,
}

/// A map that forgets what came first when it is full.
#[derive(Debug)]
struct Recent<K, V> {
    values: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    fn new() -> Self {
        Self { values: HashMap::new(), order: VecDeque::new() }
    }

    fn get_or(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        if !self.values.contains_key(&key) {
            self.order.push_back(key.clone());
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.values.remove(&oldest);
            }
        }
        self.values.entry(key).or_insert_with(make)
    }
}

type GroupKey = (String, &'static str, &'static str);

#[derive(Debug)]
struct Group {
    texts: BTreeSet<String>,
    last: Timestamp,
}

#[derive(Debug)]
struct Bucket {
    tokens: i64,
    refilled: Timestamp,
}

#[derive(Debug, Default)]
struct Known {
    name: String,
    count: i64,
}

/// What to write for an occurrence.
#[derive(Debug, PartialEq)]
enum Write {
    Create(Value),
    Patch { name: String, patch: Value },
    Nothing,
}

/// Remembers what was written.
#[derive(Debug)]
struct Correlator {
    ids: SharedIds,
    groups: Recent<GroupKey, Group>,
    buckets: Recent<(String, &'static str), Bucket>,
    known: Recent<(GroupKey, String), Known>,
}

impl Correlator {
    fn new(ids: SharedIds) -> Self {
        Self { ids, groups: Recent::new(), buckets: Recent::new(), known: Recent::new() }
    }

    fn write(&mut self, occurrence: &Occurrence, now: Timestamp) -> Write {
        let Occurrence { component, regarding, note } = occurrence;
        let group_key = (regarding.uid.clone(), *component, note.reason);
        let group = self.groups.get_or(group_key.clone(), || Group { texts: BTreeSet::new(), last: now });
        if seconds_between(group.last, now) > COMBINE_WINDOW_S {
            group.texts.clear();
        }
        group.last = now;
        group.texts.insert(note.message.clone());
        let combined = group.texts.len() > COMBINE_ABOVE;
        if combined {
            // Which texts there were no longer matters, only that there are many.
            group.texts.remove(&note.message);
            group.texts.insert(String::new());
        }
        let bucket = self
            .buckets
            .get_or((regarding.uid.clone(), component), || Bucket { tokens: BURST, refilled: now });
        let refills = seconds_between(bucket.refilled, now).max(0) / REFILL_S;
        if refills > 0 {
            bucket.tokens = (bucket.tokens + refills).min(BURST);
            bucket.refilled = now;
        }
        if bucket.tokens == 0 {
            return Write::Nothing;
        }
        bucket.tokens -= 1;
        let (text, message) = if combined {
            (String::new(), format!("(combined from similar events): {}", note.message))
        } else {
            (note.message.clone(), note.message.clone())
        };
        let known = self.known.get_or((group_key, text), Known::default);
        known.count += 1;
        if known.count > 1 {
            let patch = json!({"count": known.count, "lastTimestamp": stamp(now), "message": message});
            return Write::Patch { name: known.name.clone(), patch };
        }
        known.name = format!("{}.{:016x}", regarding.name, self.ids.next());
        Write::Create(event(occurrence, &known.name, &message, now))
    }

    /// The event that was counted up no longer exists: write it anew.
    fn again(&mut self, occurrence: &Occurrence, name: &str, patch: &Value, now: Timestamp) -> Value {
        for known in self.known.values.values_mut().filter(|known| known.name == name) {
            known.count = 1;
        }
        event(occurrence, name, patch.text("/message"), now)
    }
}

fn event(occurrence: &Occurrence, name: &str, message: &str, now: Timestamp) -> Value {
    let Occurrence { component, regarding, note } = occurrence;
    let namespace = if regarding.namespace.is_empty() { "default" } else { &regarding.namespace };
    let now = stamp(now);
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": regarding.kind.api_version(), "kind": regarding.kind.name(),
            "namespace": regarding.namespace, "name": regarding.name, "uid": regarding.uid,
            "resourceVersion": regarding.version,
        },
        "type": if note.warning { "Warning" } else { "Normal" },
        "reason": note.reason, "message": message, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now,
        "source": {"component": component},
        "reportingComponent": component, "reportingInstance": "",
    })
}

/// Writes what is sent until all senders are gone.
pub(crate) async fn record(
    client: Client,
    clock: SharedClock,
    ids: SharedIds,
    occurrences: &mut UnboundedReceiver<Occurrence>,
) {
    let mut correlator = Correlator::new(ids);
    while let Some(occurrence) = occurrences.recv().await {
        let now = clock.now();
        let namespace = match occurrence.regarding.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        let result = match correlator.write(&occurrence, now) {
            Write::Nothing => Ok(()),
            Write::Create(event) => create(&client, namespace, &event).await,
            Write::Patch { name, patch } => match patch_event(&client, namespace, &name, &patch).await {
                Err(error) if error.code() == Some(404) => {
                    let event = correlator.again(&occurrence, &name, &patch, now);
                    create(&client, namespace, &event).await
                }
                result => result,
            },
        };
        if let Err(error) = result {
            debug!(%error, reason = occurrence.note.reason, "event not written");
        }
    }
}

fn path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/events")
}

async fn create(client: &Client, namespace: &str, event: &Value) -> Result<(), Error> {
    let body = event.to_string().into_bytes();
    let request =
        Request::new(path(namespace)).create(&PostParams::default(), body).map_err(Error::Request)?;
    client.request::<Value>(request).await?;
    Ok(())
}

async fn patch_event(client: &Client, namespace: &str, name: &str, patch: &Value) -> Result<(), Error> {
    let request = Request::new(path(namespace))
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .map_err(Error::Request)?;
    client.request::<Value>(request).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gantry_kit::SeededIds;

    use super::*;

    fn occurrence(message: &str) -> Occurrence {
        Occurrence {
            component: "job-controller",
            regarding: Regarding {
                kind: Kind::Job,
                namespace: "ml".to_owned(),
                name: "train".to_owned(),
                uid: "u".to_owned(),
                version: "1".to_owned(),
            },
            note: Note::normal("SuccessfulCreate", message),
        }
    }

    #[test]
    fn the_same_event_is_counted_and_many_alike_are_combined() {
        let mut correlator = Correlator::new(Arc::new(SeededIds::new(1)));
        let now = Timestamp::UNIX_EPOCH;
        assert!(matches!(correlator.write(&occurrence("a"), now), Write::Create(_)));
        let Write::Patch { patch, .. } = correlator.write(&occurrence("a"), now) else {
            panic!("the second of the same text must be counted");
        };
        assert_eq!(patch["count"], 2);
        let mut writes = Vec::new();
        for pod in 0..10_000 {
            writes.push(correlator.write(&occurrence(&format!("Created pod: {pod}")), now));
        }
        let created = writes.iter().filter(|write| matches!(write, Write::Create(_))).count();
        let counted = writes.iter().filter(|write| matches!(write, Write::Patch { .. })).count();
        assert_eq!((created, counted), (10, 13), "9 texts and one combined; 25 writes in all");
        let Write::Create(combined) = &writes[9] else { panic!("the tenth text is combined") };
        assert_eq!(combined["message"], "(combined from similar events): Created pod: 9");
    }
}
