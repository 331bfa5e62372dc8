//! The controllers that belong to the API server itself: without them deleted owners leave their dependents
//! behind, deleted namespaces stay for ever, and so do events.
//!
//! ```text
//!   store ─ every change ─▶ ownership graph, terminating namespaces ─▶ what to look at ─▶ deletions, edits
//!     ▲                                                                                         │
//!     └─────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

mod expiry;
mod gc;
mod namespaces;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use gantry_kit::{CancellationToken, catch_panic};
use serde_json::json;
use tokio::time::Instant;

use self::expiry::Expiry;
use self::gc::{Action, Graph, Target, Uid};
use crate::http::Call;
use crate::registry::Resource;
use crate::server::{ApiServer, Inner};
use crate::store::{Change, ChangeKind, Feed, Object, ResourceId};
use crate::verbs::{Part, modify};
use crate::{Status, crd, verbs};

/// How long after a failure it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Something that may have work to do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Object(Uid),
    /// A namespace on its way out.
    Namespace(String),
    /// A namespace whose pods need the account that they run under unless they name another.
    Account(String),
    /// A definition of custom resources on its way out.
    Definition(String),
}

/// What can wake the controllers.
enum Event {
    Change(ResourceId, Arc<Change>),
    Retry,
    /// An event has lived long enough.
    Due,
    Stop,
}

impl ApiServer {
    /// Runs garbage collection, the end of events and of definitions, and what belongs to namespaces (their `default`
    /// ServiceAccount, their end) until cancelled.
    pub async fn run_controllers(&self, cancel: CancellationToken) {
        let server = &self.inner;
        let (objects, mut changes) = server.store.feed();
        let mut state = State::default();
        for (resource, object) in &objects {
            state.take_up(resource, object);
        }
        drop(objects);
        loop {
            state.work(server).await;
            let event = state.next_event(&mut changes, &cancel).await;
            match event {
                Event::Stop => return,
                Event::Due => state.expiry.expire(server),
                Event::Retry => {
                    state.retry_at = None;
                    let failed = std::mem::take(&mut state.failed);
                    state.queue.extend(failed);
                }
                Event::Change(resource, change) => {
                    state.follow(&resource, &change);
                    // What has happened already is taken up before anything is decided.
                    while let Ok((resource, change)) = changes.try_recv() {
                        state.follow(&resource, &change);
                    }
                }
            }
        }
    }
}

#[derive(Default)]
struct State {
    graph: Graph,
    terminating: BTreeSet<String>,
    expiry: Expiry,
    queue: BTreeSet<Work>,
    failed: BTreeSet<Work>,
    /// When what failed is tried again; set while there is any.
    retry_at: Option<Instant>,
}

impl State {
    async fn next_event(&self, changes: &mut Feed, cancel: &CancellationToken) -> Event {
        let retry = async {
            match self.retry_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        // What is due at a time goes before changes: on a busy cluster there is always one more of these.
        tokio::select! {
            biased;
            () = cancel.cancelled() => Event::Stop,
            () = retry => Event::Retry,
            () = self.expiry.due() => Event::Due,
            change = changes.recv() => change.map_or(Event::Stop, |(id, change)| Event::Change(id, change)),
        }
    }

    fn follow(&mut self, resource: &ResourceId, change: &Change) {
        let object = &change.object;
        if change.kind == ChangeKind::Deleted {
            self.queue.extend(self.graph.remove(object.meta("uid")).into_iter().map(Work::Object));
            self.queue.insert(Work::Definition(resource.to_string()));
            match &**resource {
                "namespaces" => drop(self.terminating.remove(object.meta("name"))),
                "serviceaccounts" if object.meta("name") == namespaces::DEFAULT_ACCOUNT => {
                    self.queue.insert(Work::Account(object.meta("namespace").to_owned()));
                }
                _ => {}
            }
        } else {
            self.take_up(resource, object);
        }
        let namespace = object.meta("namespace");
        if self.terminating.contains(namespace) {
            self.queue.insert(Work::Namespace(namespace.to_owned()));
        }
    }

    fn take_up(&mut self, resource: &ResourceId, object: &Object) {
        self.expiry.follow(resource, object);
        if &**resource == crd::DEFINITIONS && object.value["metadata"].get("deletionTimestamp").is_some() {
            self.queue.insert(Work::Definition(object.meta("name").to_owned()));
        }
        let object = &object.value;
        self.queue.extend(self.graph.upsert(resource, object).into_iter().map(Work::Object));
        if &**resource == "namespaces" {
            let name = crate::json::text(&object["metadata"]["name"]).to_owned();
            if namespaces::is_terminating(object) {
                self.terminating.insert(name.clone());
                self.queue.insert(Work::Namespace(name));
            } else {
                self.queue.insert(Work::Account(name));
            }
        }
    }

    async fn work(&mut self, server: &Arc<Inner>) {
        for work in std::mem::take(&mut self.queue) {
            match catch_panic(self.work_on(&work, server)).await {
                Ok(Ok(())) => continue,
                // Somebody else changed or removed it; that change is on its way here.
                Ok(Err(status)) if matches!(status.code, 404 | 409) => continue,
                Ok(Err(status)) => tracing::warn!(?work, %status, "trying again"),
                Err(panic) => tracing::error!(?work, panic, "a controller panicked, trying again"),
            }
            self.failed.insert(work);
            self.retry_at.get_or_insert_with(|| Instant::now() + RETRY);
        }
    }

    async fn work_on(&mut self, work: &Work, server: &Arc<Inner>) -> Result<(), Status> {
        match work {
            Work::Namespace(name) => namespaces::terminate(server, name).await,
            Work::Definition(name) => {
                crd::clean_up(server, name);
                Ok(())
            }
            Work::Account(name) => namespaces::ensure_account(server, name).await,
            Work::Object(uid) => {
                let served = server.registry.served();
                let is_served = |api_version: &str, kind: &str| served.by_kind(api_version, kind).is_some();
                let actions = self.graph.examine(uid, is_served);
                perform(server, actions).await
            }
        }
    }
}

async fn perform(server: &Arc<Inner>, actions: Vec<Action>) -> Result<(), Status> {
    for action in actions {
        let (Action::Delete(target, _)
        | Action::RemoveOwners(target, _)
        | Action::RemoveFinalizer(target, _)) = &action;
        let stored = server.registry.served().stored();
        let Some(resource) = stored.iter().find(|resource| resource.id == target.resource) else { continue };
        match &action {
            Action::Delete(Target { namespace, name, uid, .. }, policy) => {
                delete(server, resource, namespace, name, uid, policy).await?;
            }
            Action::RemoveOwners(target, owners) => {
                edit(server, resource, target, |object| gc::without_owners(object, owners)).await?;
            }
            Action::RemoveFinalizer(target, finalizer) => {
                edit(server, resource, target, |object| gc::without_finalizer(object, finalizer)).await?;
            }
        }
    }
    Ok(())
}

/// Deletes this very object. That it is gone already is no failure.
async fn delete(
    server: &Arc<Inner>,
    resource: &Arc<Resource>,
    namespace: &str,
    name: &str,
    uid: &str,
    policy: &str,
) -> Result<(), Status> {
    let call = Call::internal(server, resource, namespace, name);
    let options = json!({"preconditions": {"uid": uid}, "propagationPolicy": policy}).to_string();
    match verbs::delete(&call, options.as_bytes()).await {
        Err(status) if !matches!(status.code, 404 | 409) => Err(status),
        _ => Ok(()),
    }
}

async fn edit(
    server: &Arc<Inner>,
    resource: &Arc<Resource>,
    target: &Target,
    change: impl Fn(&serde_json::Value) -> serde_json::Value,
) -> Result<(), Status> {
    let call = Call::internal(server, resource, &target.namespace, &target.name);
    modify(&call, Part::Everything, &[], |object, _| {
        let same = object["metadata"]["uid"] == target.uid.as_str();
        Ok(if same { change(object) } else { object.clone() }.into())
    })
    .await
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_tried_again_however_busy_the_cluster_is() {
        let (sender, mut changes) = tokio::sync::mpsc::unbounded_channel();
        let object = Arc::new(Object::new(
            json!({"metadata": {"name": "n"}}),
            gantry_apimachinery::ManagedFields::NONE,
            1,
        ));
        let change = Arc::new(Change { kind: ChangeKind::Modified, object, previous: None });
        let mut state = State::default();
        state.failed.insert(Work::Namespace("going".to_owned()));
        state.retry_at = Some(Instant::now() + RETRY);
        let cancel = CancellationToken::new();
        let mut followed = 0;
        loop {
            sender.send((ResourceId::from("pods"), change.clone())).expect("the receiver is there");
            match state.next_event(&mut changes, &cancel).await {
                Event::Retry => break,
                Event::Change(..) => followed += 1,
                Event::Due | Event::Stop => panic!("nothing expires or stops"),
            }
            assert!(followed < 100, "changes must not put the retry off");
            tokio::time::advance(RETRY / 10).await;
        }
        assert_eq!(followed, 10);
    }
}
