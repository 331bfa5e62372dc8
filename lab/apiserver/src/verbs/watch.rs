//! GET with `watch`: a stream of events, one JSON object a line.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures::stream;
use gantry_apimachinery::{FieldError, FieldPath};
use http::Response;
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use super::filter::{Filter, Transition};
use super::list::{invalid_options, too_large_revision, unreadable_revision};
use super::view::View;
use crate::Status;
use crate::http::{Body, Call, Shape, full, response, stream as stream_body};
use crate::store::{Change, HistoryError, Object, Subscription, to_bytes};

/// How long a watch lasts unless the client says.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// How often a quiet watch learns how far the world has moved on.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
/// Events are sent together up to about this many bytes.
const CHUNK: usize = 64 << 10;

struct Watch {
    call: Call,
    filter: Filter,
    /// What is sent first, before anything is waited for.
    first: Option<Bytes>,
    subscription: Subscription,
    bookmarks: Option<Interval>,
    deadline: Instant,
    ended: bool,
}

pub(crate) fn watch(call: Call) -> Result<Response<Body>, Status> {
    let view = View::of(&call)?;
    let filter = Filter::of(&call)?;
    let interest = filter.interest(&call);
    let bookmarks = call.query.flag("allowWatchBookmarks");
    let timeout = match call.query.get("timeoutSeconds") {
        None => DEFAULT_TIMEOUT,
        Some(text) => match text.parse() {
            Ok(0) => DEFAULT_TIMEOUT,
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => return Err(Status::bad_request(format!("invalid timeoutSeconds: {text:?}"))),
        },
    };
    let from = match call.query.get("resourceVersion") {
        None => 0,
        Some(text) => text.parse::<u64>().map_err(|_| Status::unclassified(unreadable_revision(text)))?,
    };
    let initial = match call.query.get("sendInitialEvents") {
        None => from == 0,
        Some(_) => call.query.flag("sendInitialEvents"),
    };
    let streaming_list = initial && call.query.get("sendInitialEvents").is_some();
    if streaming_list && call.query.get("resourceVersionMatch") != Some("NotOlderThan") {
        let rule = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        return Err(invalid_options(FieldError::forbidden(&FieldPath::new("resourceVersionMatch"), rule)));
    }
    let store = &call.server.store;
    let mut first = BytesMut::new();
    let subscription = if initial {
        let (objects, revision, subscription) = store.list_and_watch(&call.resource.id, interest);
        for object in objects.iter().filter(|object| filter.matches(object)) {
            line(&mut first, "ADDED", &view.object(object));
        }
        if streaming_list && bookmarks {
            line(&mut first, "BOOKMARK", &bookmark(&view, &call, revision, true));
        }
        subscription
    } else if from == 0 {
        store.list_and_watch(&call.resource.id, interest).2
    } else {
        match store.watch(&call.resource.id, interest, from) {
            Ok((past, subscription)) => {
                for change in past {
                    event(&mut first, &view, &filter, &change);
                }
                subscription
            }
            Err(HistoryError::Compacted { oldest }) => {
                // As Kubernetes does it: an event in a watch that began. Clients such as kube's watcher list again
                // after the event; a refused request they would only repeat.
                let mut out = BytesMut::new();
                expired(&mut out, &format!("too old resource version: {from} ({oldest})"));
                return Ok(response(200, "application/json", full(out.freeze())));
            }
            Err(HistoryError::Future { current }) => {
                return Err(too_large_revision(from, current));
            }
        }
    };
    let first = Some(first.freeze()).filter(|bytes| !bytes.is_empty());
    let bookmarks = bookmarks.then(|| {
        let mut interval = interval_at(Instant::now() + BOOKMARK_PERIOD, BOOKMARK_PERIOD);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval
    });
    let deadline = Instant::now() + timeout;
    let watch = Watch { call, filter, first, subscription, bookmarks, deadline, ended: false };
    let events =
        stream::unfold(watch, |mut watch| async move { watch.next().await.map(|chunk| (chunk, watch)) });
    Ok(response(200, "application/json", stream_body(events)))
}

impl Watch {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        while !self.ended {
            let tick = async {
                match &mut self.bookmarks {
                    Some(interval) => interval.tick().await,
                    None => std::future::pending().await,
                }
            };
            let mut out = BytesMut::new();
            tokio::select! {
                biased;
                change = self.subscription.recv() => match change {
                    Some(change) => self.drain(&mut out, &change),
                    None => {
                        self.ended = true;
                        expired(&mut out, "too old resource version: the watch fell behind");
                    }
                },
                _ = tick => {
                    // Everything up to this revision is in the queue already: publishing is part of a commit.
                    let revision = self.call.server.store.revision();
                    while let Ok(change) = self.subscription.try_recv() {
                        self.drain(&mut out, &change);
                    }
                    let view = View::of(&self.call).ok()?;
                    line(&mut out, "BOOKMARK", &bookmark(&view, &self.call, revision, false));
                }
                () = sleep_until(self.deadline) => return None,
            }
            if !out.is_empty() {
                return Some(out.freeze());
            }
        }
        None
    }

    /// Writes a change and those that wait behind it.
    fn drain(&mut self, out: &mut BytesMut, change: &Arc<Change>) {
        let Ok(view) = View::of(&self.call) else { return };
        event(out, &view, &self.filter, change);
        while out.len() < CHUNK
            && let Ok(change) = self.subscription.try_recv()
        {
            event(out, &view, &self.filter, &change);
        }
    }
}

fn event(out: &mut BytesMut, view: &View<'_>, filter: &Filter, change: &Change) {
    match filter.transition(change) {
        None => {}
        Some(Transition::Added) => line(out, "ADDED", &view.object(&change.object)),
        Some(Transition::Modified) => line(out, "MODIFIED", &view.object(&change.object)),
        Some(Transition::Deleted) => {
            // Clients get the last state that was selected, at the revision at which it ceased to be.
            let previous = change.previous.as_ref().unwrap_or(&change.object);
            let mut value = previous.value.clone();
            value["metadata"]["resourceVersion"] = Value::from(change.object.revision.to_string());
            line(
                out,
                "DELETED",
                &view.object(&Object::new(value, previous.managed.clone(), change.object.revision)),
            );
        }
    }
}

/// The last event of a watch that cannot go on.
fn expired(out: &mut BytesMut, why: &str) {
    line(out, "ERROR", &to_bytes(&Status::expired(why).to_value()));
}

fn line(out: &mut BytesMut, kind: &str, object: &[u8]) {
    out.extend_from_slice(br#"{"type":""#);
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(br#"","object":"#);
    out.extend_from_slice(object);
    out.extend_from_slice(b"}");
    out.put_u8(b'\n');
}

/// An object with nothing but a revision. The first of a streaming list says that the list is complete.
fn bookmark(view: &View<'_>, call: &Call, revision: u64, initial_events_end: bool) -> Bytes {
    let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
    if initial_events_end {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let resource = &call.resource;
    let (kind, api_version) = match view.shape {
        Shape::Object => (resource.kind.clone(), resource.api_version()),
        Shape::Metadata => ("PartialObjectMetadata".into(), "meta.k8s.io/v1".into()),
        Shape::Table(_) => {
            return to_bytes(&json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                "columnDefinitions": [], "rows": [],
            }));
        }
    };
    to_bytes(&json!({"kind": kind, "apiVersion": api_version, "metadata": metadata}))
}
