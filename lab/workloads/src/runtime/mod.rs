//! The one runtime of all controllers: followers fill the store, the queue holds what is due, workers plan and
//! write.

mod events;
mod keys;
mod queue;
mod watch;
mod write;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_kit::CancellationToken;
use kube::Client;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tracing::debug;

pub(crate) use events::Regarding;
pub(crate) use keys::{Controller, Key};

use crate::Options;
use crate::controllers;
use crate::kinds::Kind;
use crate::plan::Failure;
use crate::store::{Change, Ref, Store};
use queue::Queue;
use watch::News;
use write::{Subject, Writer};

/// What followers, workers and writers share.
#[derive(Default)]
pub(crate) struct Shared {
    store: Mutex<Store>,
    queue: Queue,
    failures: Mutex<HashMap<Key, Failure>>,
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<Key, Failure>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, store: &Store, changes: &[Change]) {
        for change in changes {
            for (key, delay) in keys::affected(store, change) {
                self.queue.add(key, delay);
            }
        }
    }

    fn seen(&self, kind: Kind, object: Value) {
        let mut store = self.store();
        let change = store.apply(kind, object);
        self.wake(&store, change.as_slice());
    }

    /// Takes the answer to a patch: the last finalizer may have been what kept the object.
    fn patched(&self, kind: Kind, object: Value) {
        use crate::json::Fields as _;
        if object.is_deleting() && object.list("/metadata/finalizers").is_empty() && kind != Kind::Pod {
            // Whether it is gone already, the watch knows.
            return;
        }
        self.seen(kind, object);
    }

    fn gone(&self, kind: Kind, id: &Ref, uid: &str) {
        let mut store = self.store();
        let change = store.remove(kind, id, uid);
        self.wake(&store, change.as_slice());
    }

    fn learn(&self, kind: Kind, news: News) {
        use crate::json::Fields as _;
        match news {
            News::Seen(object) => self.seen(kind, object),
            News::Gone(object) => {
                self.gone(kind, &Ref::new(object.namespace(), object.name()), object.uid());
            }
            News::Listed(objects, version) => {
                let mut store = self.store();
                let changes = store.replace(kind, objects, version);
                self.wake(&store, &changes);
            }
        }
    }
}

/// Runs until cancelled.
pub(crate) async fn run(client: Client, options: Options, cancel: CancellationToken) {
    let shared = Arc::new(Shared::default());
    let mut tasks = JoinSet::new();
    let mut listed = Vec::new();
    for kind in Kind::all() {
        let (first, done) = oneshot::channel();
        listed.push(done);
        let (client, shared, mut first) = (client.clone(), shared.clone(), Some(first));
        tasks.spawn(async move {
            watch::follow(client, kind, |news| {
                let is_list = matches!(news, News::Listed(..));
                shared.learn(kind, news);
                if is_list && let Some(first) = first.take() {
                    // The receiver is gone only when everything ends.
                    let _ = first.send(());
                }
            })
            .await;
        });
    }
    let (events, occurrences) = mpsc::unbounded_channel();
    let (clock, ids) = (options.clock.clone(), options.ids.clone());
    tasks.spawn(events::record(client.clone(), clock, ids, occurrences));
    let workers = options.workers.max(1);
    let options = Arc::new(options);
    let work = async {
        for done in listed {
            // An error means that the follower was ended with everything else.
            let _ = done.await;
        }
        for _ in 0..workers {
            let writer = Writer { client: client.clone(), shared: shared.clone(), events: events.clone() };
            tasks.spawn(work(writer, options.clone()));
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = cancel.cancelled() => {}
        () = work => {}
    }
    tasks.shutdown().await;
}

async fn work(writer: Writer, options: Arc<Options>) {
    let shared = writer.shared.clone();
    loop {
        let key = shared.queue.next().await;
        let failure = shared.failures().get(&key).cloned();
        let now = options.clock.now();
        let planned = controllers::plan(&shared.store(), &key, failure.as_ref(), &options, now);
        let Some((regarding, plan)) = planned else {
            shared.failures().remove(&key);
            shared.queue.done(&key, false, None);
            continue;
        };
        let subject = Subject { component: key.controller.component(), regarding };
        let wrote = !plan.is_quiet();
        match writer.run(&subject, plan.steps).await {
            Ok(()) => {
                let had_failed = shared.failures().remove(&key).is_some();
                // A status that tells of the failure is put right without waiting for the next change.
                let again = if had_failed && wrote { Some(Duration::ZERO) } else { plan.again_after };
                shared.queue.done(&key, false, again);
            }
            Err(failure) => {
                debug!(?key, message = failure.message, "a write failed, trying again");
                shared.failures().insert(key.clone(), failure);
                shared.queue.done(&key, true, None);
            }
        }
    }
}
