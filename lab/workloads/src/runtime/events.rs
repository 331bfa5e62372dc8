//! Events, written as client libraries of Kubernetes write them: the same event again raises a count, many that
//! differ only in their text become one, and an object that is too chatty is cut short.
//!
//! Rules: `tools/record/events_cache.go` of k8s.io/client-go.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use gantry_kit::{SharedClock, SharedIds, catch_panic};
use jiff::Timestamp;
use kube::Client;
use kube::core::Request;
use kube::core::params::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::Instant;
use tracing::{debug, error};

use crate::Error;
use crate::json::{Fields as _, stamp};

/// Events that wait to be written. More come only when thousands of objects change at once; they are dropped, as
/// client-go drops them.
const QUEUE: usize = 1024;
/// Different texts of one reason before they are combined (client-go's default).
const COMBINE_ABOVE: usize = 10;
/// Time without an event of the reason after which counting texts starts anew (client-go's default).
const COMBINE_WINDOW: Duration = Duration::from_mins(10);
/// Events about one object that may come at once (client-go's default).
const BURST: u32 = 25;
/// Time until one more is allowed (client-go's default).
const REFILL: Duration = Duration::from_mins(5);
/// Objects and texts that are remembered.
const REMEMBERED: usize = 4096;

/// Something that happened to an object.
#[derive(Debug, Clone)]
pub struct Event {
    /// The `involvedObject`: an object reference.
    pub object: Value,
    /// Who tells it, such as `kubelet`.
    pub component: &'static str,
    /// The node on which the component runs; empty for components of the control plane.
    pub host: String,
    /// Whether something is not as it should be.
    pub warning: bool,
    /// Why, in CamelCase, for machines.
    pub reason: &'static str,
    /// What happened, for humans.
    pub message: String,
}

/// Takes events to be written in the background. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EventRecorder(Sender<Event>);

impl EventRecorder {
    /// A recorder, and the work behind it, which ends with the last clone of the recorder.
    pub fn new(
        client: Client,
        clock: SharedClock,
        ids: SharedIds,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, events) = mpsc::channel(QUEUE);
        (Self(sender), record(client, clock, ids, events))
    }

    /// Notes an event; drops it if too many wait.
    pub fn note(&self, event: Event) {
        if self.0.try_send(event).is_err() {
            debug!("an event is dropped: too many wait, or the recorder has ended");
        }
    }
}

/// A map that forgets what was first put in when it is full.
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

/// Who says something about which object.
type SourceKey = (String, &'static str, String);
/// The same, and the reason.
type GroupKey = (SourceKey, &'static str);

#[derive(Debug)]
struct Group {
    texts: BTreeSet<String>,
    last: Instant,
}

#[derive(Debug)]
struct Bucket {
    tokens: u32,
    refilled: Instant,
}

#[derive(Debug, Default)]
struct Known {
    name: String,
    count: i64,
}

/// What to write for an event.
#[derive(Debug, PartialEq)]
enum Write {
    Create(Value),
    Patch { name: String, patch: Value },
    Nothing,
}

/// Remembers what was written. Distances are measured in tokio's time: a jump of the clock neither cuts an object
/// short nor lets it flood.
#[derive(Debug)]
struct Correlator {
    ids: SharedIds,
    groups: Recent<GroupKey, Group>,
    buckets: Recent<SourceKey, Bucket>,
    known: Recent<(GroupKey, String), Known>,
}

impl Correlator {
    fn new(ids: SharedIds) -> Self {
        Self { ids, groups: Recent::new(), buckets: Recent::new(), known: Recent::new() }
    }

    fn write(&mut self, event: &Event, now: Timestamp, at: Instant) -> Write {
        let fields = ["kind", "namespace", "name", "uid", "fieldPath"];
        let object = fields.map(|field| event.object.text(&format!("/{field}"))).join("/");
        let source: SourceKey = (object, event.component, event.host.clone());
        let group_key = (source.clone(), event.reason);
        let group = self.groups.get_or(group_key.clone(), || Group { texts: BTreeSet::new(), last: at });
        if at.duration_since(group.last) > COMBINE_WINDOW {
            group.texts.clear();
        }
        group.last = at;
        group.texts.insert(event.message.clone());
        let combined = group.texts.len() > COMBINE_ABOVE;
        if combined {
            // Which texts there were no longer matters, only that there are many.
            group.texts.remove(&event.message);
            group.texts.insert(String::new());
        }
        let bucket = self.buckets.get_or(source, || Bucket { tokens: BURST, refilled: at });
        let refills = at.duration_since(bucket.refilled).as_secs() / REFILL.as_secs();
        if refills > 0 {
            let refills = u32::try_from(refills).unwrap_or(BURST);
            bucket.tokens = bucket.tokens.saturating_add(refills).min(BURST);
            bucket.refilled = at;
        }
        if bucket.tokens == 0 {
            return Write::Nothing;
        }
        bucket.tokens -= 1;
        let (text, message) = if combined {
            (String::new(), format!("(combined from similar events): {}", event.message))
        } else {
            (event.message.clone(), event.message.clone())
        };
        let known = self.known.get_or((group_key, text), Known::default);
        known.count += 1;
        if known.count > 1 {
            let patch = json!({"count": known.count, "lastTimestamp": stamp(now), "message": message});
            return Write::Patch { name: known.name.clone(), patch };
        }
        known.name = format!("{}.{:016x}", event.object.text("/name"), self.ids.next());
        Write::Create(to_object(event, &known.name, &message, now))
    }

    /// The event that was counted up no longer exists: write it anew.
    fn again(&mut self, event: &Event, name: &str, patch: &Value, now: Timestamp) -> Value {
        for known in self.known.values.values_mut().filter(|known| known.name == name) {
            known.count = 1;
        }
        to_object(event, name, patch.text("/message"), now)
    }
}

/// Events about what is in no namespace are in `default`.
fn namespace(event: &Event) -> &str {
    Some(event.object.text("/namespace")).filter(|name| !name.is_empty()).unwrap_or("default")
}

fn to_object(event: &Event, name: &str, message: &str, now: Timestamp) -> Value {
    let now = stamp(now);
    let mut source = json!({"component": event.component});
    if !event.host.is_empty() {
        source["host"] = event.host.as_str().into();
    }
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": name, "namespace": namespace(event)},
        "involvedObject": event.object,
        "type": if event.warning { "Warning" } else { "Normal" },
        "reason": event.reason, "message": message, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now,
        "source": source,
        "reportingComponent": event.component, "reportingInstance": event.host,
    })
}

/// Writes what is sent until all senders are gone.
async fn record(client: Client, clock: SharedClock, ids: SharedIds, mut events: Receiver<Event>) {
    let mut correlator = Correlator::new(ids);
    while let Some(event) = events.recv().await {
        match catch_panic(write(&client, &clock, &mut correlator, &event)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, reason = event.reason, "an event is not written"),
            Err(panic) => error!(panic, reason = event.reason, "the recorder of events panicked, going on"),
        }
    }
}

async fn write(
    client: &Client,
    clock: &SharedClock,
    correlator: &mut Correlator,
    event: &Event,
) -> Result<(), Error> {
    let now = clock.now();
    match correlator.write(event, now, Instant::now()) {
        Write::Nothing => Ok(()),
        Write::Create(object) => create(client, namespace(event), &object).await,
        Write::Patch { name, patch } => match patch_event(client, namespace(event), &name, &patch).await {
            Err(error) if error.code() == Some(404) => {
                let object = correlator.again(event, &name, &patch, now);
                create(client, namespace(event), &object).await
            }
            result => result,
        },
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

    fn event(name: &str, message: &str) -> Event {
        Event {
            object: json!({"kind": "Job", "namespace": "ml", "name": name, "uid": name, "resourceVersion": message}),
            component: "job-controller",
            host: String::new(),
            warning: false,
            reason: "SuccessfulCreate",
            message: message.to_owned(),
        }
    }

    fn correlator() -> Correlator {
        Correlator::new(Arc::new(SeededIds::new(1)))
    }

    fn counts(writes: &[Write]) -> (usize, usize) {
        let created = writes.iter().filter(|write| matches!(write, Write::Create(_))).count();
        let counted = writes.iter().filter(|write| matches!(write, Write::Patch { .. })).count();
        (created, counted)
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_event_is_counted_and_many_alike_are_combined() {
        let (mut correlator, now, at) = (correlator(), Timestamp::UNIX_EPOCH, Instant::now());
        let mut write = |message: &str| correlator.write(&event("train", message), now, at);
        assert!(matches!(write("a"), Write::Create(_)));
        let Write::Patch { patch, .. } = write("a") else {
            panic!("the second of the same text must be counted");
        };
        assert_eq!(patch["count"], 2);
        let writes: Vec<Write> = (0..10_000).map(|pod| write(&format!("Created pod: {pod}"))).collect();
        assert_eq!(counts(&writes), (10, 13), "9 texts and one combined; 25 writes in all");
        let Write::Create(combined) = &writes[9] else { panic!("the tenth text is combined") };
        assert_eq!(combined["message"], "(combined from similar events): Created pod: 9");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_stays_cut_when_many_other_objects_have_events() {
        let (mut correlator, now, at) = (correlator(), Timestamp::UNIX_EPOCH, Instant::now());
        let mut writes = Vec::new();
        for other in 0..REMEMBERED / 2 {
            writes.push(correlator.write(&event("chatty", "again"), now, at));
            correlator.write(&event(&format!("other-{other}"), "once"), now, at);
        }
        assert_eq!(counts(&writes), (1, 24));
        assert!(correlator.buckets.values.len() <= REMEMBERED);
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_of_the_clock_neither_silences_nor_floods() {
        let (mut correlator, start) = (correlator(), Instant::now());
        let day: Timestamp = "2026-01-02T00:00:00Z".parse().expect("a time");
        let mut burst =
            |now, at| (0..100).map(|_| correlator.write(&event("train", "a"), now, at)).collect::<Vec<_>>();
        assert_eq!(counts(&burst(day, start)), (1, 24));
        assert_eq!(counts(&burst("2027-01-01T00:00:00Z".parse().expect("a time"), start)), (0, 0));
        assert_eq!(counts(&burst("2025-01-01T00:00:00Z".parse().expect("a time"), start + REFILL)), (0, 1));
    }
}
