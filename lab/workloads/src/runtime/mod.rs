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

use gantry_kit::{CancellationToken, SharedClock, catch_panic};
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::{debug, error};

pub use events::{Event, EventRecorder};
pub(crate) use keys::{Controller, Key};
pub(crate) use write::Regarding;

use crate::Options;
use crate::controllers::{self, Planned};
use crate::kinds::Kind;
use crate::plan::Failure;
use crate::store::{Change, Ref, Store};
use queue::Queue;
use watch::News;
use write::{Subject, Writer};

/// How long a follower waits after a panic, lest an object that brings one about keeps the server busy.
const AFTER_PANIC: Duration = Duration::from_secs(1);

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

/// How a key's plan is made.
type Planner = fn(MutexGuard<'_, Store>, &Key, Option<&Failure>, Timestamp) -> Option<Planned>;

/// Runs until cancelled.
pub(crate) async fn run(client: Client, options: Options, cancel: CancellationToken) {
    run_with(client, options, cancel, controllers::plan).await;
}

async fn run_with(client: Client, options: Options, cancel: CancellationToken, planner: Planner) {
    let shared = Arc::new(Shared::default());
    let mut tasks = JoinSet::new();
    let mut listed = Vec::new();
    for kind in Kind::all() {
        let (first, done) = oneshot::channel();
        listed.push(done);
        tasks.spawn(follow(client.clone(), kind, shared.clone(), first));
    }
    let (clock, ids) = (options.clock.clone(), options.ids.clone());
    let (events, recording) = EventRecorder::new(client.clone(), clock, ids);
    tasks.spawn(recording);
    let work = async {
        for done in listed {
            // An error means that the follower was ended with everything else.
            let _ = done.await;
        }
        for _ in 0..options.workers.max(1) {
            let writer = Writer { client: client.clone(), shared: shared.clone(), events: events.clone() };
            tasks.spawn(work(writer, options.clock.clone(), planner));
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

/// Keeps the store up to date with one kind; `first` is told of the first list.
async fn follow(client: Client, kind: Kind, shared: Arc<Shared>, first: oneshot::Sender<()>) {
    let mut first = Some(first);
    loop {
        let following = watch::follow(client.clone(), kind, |news| {
            let is_list = matches!(news, News::Listed(..));
            shared.learn(kind, news);
            if is_list && let Some(first) = first.take() {
                // The receiver is gone only when everything ends.
                let _ = first.send(());
            }
        });
        let Err(panic) = catch_panic(following).await else { return };
        error!(kind = kind.name(), panic, "a follower panicked, listing again");
        tokio::time::sleep(AFTER_PANIC).await;
    }
}

async fn work(writer: Writer, clock: SharedClock, planner: Planner) {
    let shared = writer.shared.clone();
    loop {
        let key = shared.queue.next().await;
        match catch_panic(reconcile(&writer, &clock, planner, &key)).await {
            Ok(outcome) => shared.queue.done(&key, outcome.failed, outcome.again),
            Err(panic) => {
                error!(?key, panic, "a reconciliation panicked, trying again");
                shared.queue.done(&key, true, None);
            }
        }
    }
}

/// How a reconciliation went.
struct Outcome {
    failed: bool,
    /// When to look again even if nothing changes.
    again: Option<Duration>,
}

async fn reconcile(writer: &Writer, clock: &SharedClock, planner: Planner, key: &Key) -> Outcome {
    let shared = &writer.shared;
    let failure = shared.failures().get(key).cloned();
    let Some((regarding, plan)) = planner(shared.store(), key, failure.as_ref(), clock.now()) else {
        shared.failures().remove(key);
        return Outcome { failed: false, again: None };
    };
    let subject = Subject { component: key.controller.component(), regarding };
    let wrote = !plan.is_quiet();
    match writer.run(&subject, plan.steps).await {
        Ok(()) => {
            let had_failed = shared.failures().remove(key).is_some();
            // A status that tells of the failure is put right without waiting for the next change.
            let again = if had_failed && wrote { Some(Duration::ZERO) } else { plan.again_after };
            Outcome { failed: false, again }
        }
        Err(failure) => {
            debug!(?key, message = failure.message, "a write failed, trying again");
            shared.failures().insert(key.clone(), failure);
            Outcome { failed: true, again: None }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use gantry_apiserver::{ApiServer, Options as ServerOptions};
    use gantry_kit::{SeededIds, SharedIds, VirtualClock};
    use kube::core::Request;
    use kube::core::params::{ListParams, PostParams};
    use serde_json::json;

    use super::*;

    static PANICS: AtomicU32 = AtomicU32::new(0);

    fn faulty(
        store: MutexGuard<'_, Store>,
        key: &Key,
        failure: Option<&Failure>,
        now: Timestamp,
    ) -> Option<Planned> {
        let is_bad = key.controller == Controller::Deployment && &*key.id.name == "bad";
        assert!(!is_bad || PANICS.fetch_add(1, Ordering::Relaxed) >= 3, "a fault in the plan of {key:?}");
        controllers::plan(store, key, failure, now)
    }

    #[tokio::test(start_paused = true)]
    async fn a_reconciliation_that_panics_is_tried_again_and_holds_up_no_other() {
        let clock: SharedClock = Arc::new(VirtualClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        let ids: SharedIds = Arc::new(SeededIds::new(1));
        let client = ApiServer::new(ServerOptions::new(clock.clone(), ids.clone())).unwrap().client();
        let cancel = CancellationToken::new();
        let options = Options { workers: 1, ..Options::new(clock, ids) };
        let running = tokio::spawn(run_with(client.clone(), options, cancel.clone(), faulty));
        for name in ["bad", "good"] {
            let deployment = json!({
                "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
                "spec": {"selector": {"matchLabels": {"app": name}}, "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{"name": "main", "image": "x"}]},
                }},
            });
            let body = serde_json::to_vec(&deployment).unwrap();
            let request = Request::new(Kind::Deployment.path("default")).create(&PostParams::default(), body);
            client.request::<Value>(request.unwrap()).await.unwrap();
        }
        for _ in 0..1000 {
            let request = Request::new(Kind::Pod.path("default")).list(&ListParams::default()).unwrap();
            let pods: Value = client.request(request).await.unwrap();
            if pods["items"].as_array().is_some_and(|pods| pods.len() == 2) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(PANICS.load(Ordering::Relaxed) > 3, "the key must be planned again after each panic");
        assert!(!running.is_finished());
        cancel.cancel();
        running.await.unwrap();
    }
}
