//! Events of kubelets and of the node controller: written in the background, repeated ones counted, floods cut.

use std::collections::{BTreeMap, HashMap};

use gantry_kit::{CancellationToken, SharedClock, SharedIds};
use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Client, Resource as _};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Events that wait to be written. More come only when thousands of pods start at once; they are dropped, as client-go
/// drops them.
const QUEUE: usize = 1024;

/// How many events one object may cause at once, and how long until it may cause one more (client-go's spam filter).
const BURST: u32 = 25;
const REFILL_SECONDS: i64 = 300;

/// How many different events are remembered to be counted.
const MEMORY: usize = 4096;

/// Who and what an event is about.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    /// The `involvedObject`.
    pub(crate) object: Value,
    /// `kubelet` or `node-controller`.
    pub(crate) component: &'static str,
    /// The node, for a kubelet's events.
    pub(crate) host: String,
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Takes events. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Recorder(mpsc::Sender<Note>);

impl Recorder {
    /// Starts the writer.
    pub(crate) fn start(
        client: Client,
        clock: SharedClock,
        ids: SharedIds,
        cancel: CancellationToken,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let writer = Writer { client, clock, ids, known: HashMap::new(), buckets: BTreeMap::new() };
        tokio::spawn(async move {
            tokio::select! {
                () = cancel.cancelled() => {}
                () = writer.run(receiver) => {}
            }
        });
        Self(sender)
    }

    /// Notes an event; drops it if too many wait.
    pub(crate) fn note(&self, note: Note) {
        if self.0.try_send(note).is_err() {
            tracing::debug!("an event is dropped: too many wait");
        }
    }
}

struct Writer {
    client: Client,
    clock: SharedClock,
    ids: SharedIds,
    /// The name and count of events by what they say.
    known: HashMap<(String, &'static str, String), (String, u64)>,
    /// Events left and the time of the last refill, by object.
    buckets: BTreeMap<String, (u32, Timestamp)>,
}

impl Writer {
    async fn run(mut self, mut notes: mpsc::Receiver<Note>) {
        while let Some(note) = notes.recv().await {
            if let Err(error) = self.write(note).await {
                tracing::debug!(%error, "an event is not written");
            }
        }
    }

    async fn write(&mut self, note: Note) -> Result<(), kube::Error> {
        let now = self.clock.now();
        let field = |name: &str| note.object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let namespace = match field("namespace") {
            none if none.is_empty() => "default".to_owned(),
            namespace => namespace,
        };
        let object = format!("{}/{}/{}", field("kind"), namespace, field("name"));
        if !self.admit(&object, now) {
            return Ok(());
        }
        let resource = kube::core::ApiResource::erase::<k8s_openapi::api::core::v1::Event>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &namespace, &resource);
        let time = stamp(now);
        let key = (format!("{object}/{}", field("uid")), note.reason, note.message.clone());
        if let Some((name, count)) = self.known.get_mut(&key) {
            *count += 1;
            let patch = json!({"count": *count, "lastTimestamp": time});
            match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {
                    self.known.remove(&key);
                }
                result => return result.map(drop),
            }
        }
        let name = format!("{}.{:016x}", field("name"), self.ids.next());
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": note.object,
            "reason": note.reason,
            "message": note.message,
            "type": if note.warning { "Warning" } else { "Normal" },
            "source": {"component": note.component, "host": note.host},
            "reportingComponent": note.component,
            "reportingInstance": note.host,
            "firstTimestamp": time,
            "lastTimestamp": time,
            "count": 1,
        });
        let event: DynamicObject = serde_json::from_value(event).map_err(kube::Error::SerdeError)?;
        api.create(&PostParams::default(), &event).await?;
        if self.known.len() >= MEMORY {
            self.known.clear();
        }
        self.known.insert(key, (name, 1));
        Ok(())
    }

    /// Whether an object may cause one more event.
    fn admit(&mut self, object: &str, now: Timestamp) -> bool {
        if self.buckets.len() >= MEMORY {
            self.buckets.clear();
        }
        let (left, since) = self.buckets.entry(object.to_owned()).or_insert((BURST, now));
        let refill = (now.as_second() - since.as_second()) / REFILL_SECONDS;
        if refill > 0 {
            *left = BURST.min(left.saturating_add(u32::try_from(refill).unwrap_or(BURST)));
            *since = now;
        }
        if *left == 0 {
            return false;
        }
        *left -= 1;
        true
    }
}

/// A time as `metav1.Time` writes it: RFC 3339 in whole seconds.
pub(crate) fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time as `metav1.MicroTime` writes it.
pub(crate) fn micro_stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// What an event about a pod points to; `field` is a container as in `spec.containers{name}`.
pub(crate) fn pod_reference(pod: &k8s_openapi::api::core::v1::Pod, field: Option<&str>) -> Value {
    let metadata = pod.meta();
    let mut reference = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "name": metadata.name,
        "namespace": metadata.namespace,
        "uid": metadata.uid,
    });
    if let Some(field) = field {
        reference["fieldPath"] = field.into();
    }
    reference
}
