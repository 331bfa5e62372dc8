//! Events do not last: each goes an hour after it was last written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::server::Inner;
use crate::store::{Object, ObjectKey, ResourceId};

/// How long an event is kept, as kube-apiserver's `--event-ttl` has it.
const LIFETIME: Duration = Duration::from_hours(1);

const EVENTS: &str = "events";

/// What expires, soonest first: all lifetimes are the same, so that the order of writes is that of ends.
///
/// Time is measured from when a write was seen, not by its time stamps: a jump of the clock expires nothing.
#[derive(Default)]
pub(super) struct Expiry(VecDeque<(Instant, ObjectKey, u64)>);

impl Expiry {
    /// Notes a write, if it is of a kind that expires.
    pub(super) fn follow(&mut self, resource: &ResourceId, object: &Object) {
        if &**resource == EVENTS {
            self.0.push_back((Instant::now() + LIFETIME, object.key(), object.revision));
        }
    }

    /// Completes when there may be something to remove; never, if nothing expires.
    pub(super) async fn due(&self) {
        match self.0.front() {
            Some((end, ..)) => tokio::time::sleep_until(*end).await,
            None => std::future::pending().await,
        }
    }

    /// Removes what is over and has not been written again.
    pub(super) fn expire(&mut self, server: &Arc<Inner>) {
        let events = ResourceId::from(EVENTS);
        while let Some((_, key, revision)) = self.0.pop_front_if(|(end, ..)| *end <= Instant::now()) {
            let current = server.store.get(&events, &key).filter(|object| object.revision == revision);
            if let Some(object) = current
                && let Err(error) = server.store.delete(&events, &object)
            {
                // The next write of it, or the next start, gives it an end again.
                tracing::debug!(?error, event = %key.name, "cannot expire");
            }
        }
    }
}
