//! The work queue: each key waits once, runs once at a time, and backs off alone.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::keys::Key;

/// First delay after a failure; doubled by each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(5);
/// The longest delay after failures.
const MAX_BACKOFF: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Key>,
    waiting: BTreeSet<(Instant, Key)>,
    due: BTreeMap<Key, Instant>,
    queued: HashSet<Key>,
    running: HashSet<Key>,
    /// Keys that were asked for while they ran.
    asked: HashSet<Key>,
    failures: HashMap<Key, u32>,
}

impl State {
    fn enqueue(&mut self, key: Key) {
        if let Some(due) = self.due.remove(&key) {
            self.waiting.remove(&(due, key.clone()));
        }
        if self.running.contains(&key) {
            self.asked.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn schedule(&mut self, key: Key, due: Instant) {
        if self.queued.contains(&key) {
            return;
        }
        match self.due.get(&key) {
            Some(known) if *known <= due => return,
            Some(known) => {
                self.waiting.remove(&(*known, key.clone()));
            }
            None => {}
        }
        self.due.insert(key.clone(), due);
        self.waiting.insert((due, key));
    }
}

/// Keys to be reconciled.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the key, at once or after a delay; an earlier time that is known already stays.
    pub(crate) fn add(&self, key: Key, delay: Duration) {
        if delay.is_zero() {
            self.state().enqueue(key);
        } else {
            self.state().schedule(key, Instant::now() + delay);
        }
        self.wake.notify_one();
    }

    /// The next key; no other caller gets it until it is done.
    pub(crate) async fn next(&self) -> Key {
        loop {
            let next_due = {
                let mut state = self.state();
                let now = Instant::now();
                while let Some((due, key)) = state.waiting.first().cloned()
                    && due <= now
                {
                    state.enqueue(key);
                }
                if let Some(key) = state.ready.pop_front() {
                    state.queued.remove(&key);
                    state.running.insert(key.clone());
                    if !state.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return key;
                }
                state.waiting.first().map(|(due, _)| *due)
            };
            match next_due {
                Some(due) => tokio::select! {
                    biased;
                    () = self.wake.notified() => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                None => self.wake.notified().await,
            }
        }
    }

    /// Gives the key back after it was reconciled; `failed` makes it wait longer each time.
    pub(crate) fn done(&self, key: &Key, failed: bool, again_after: Option<Duration>) {
        let mut state = self.state();
        state.running.remove(key);
        let asked = state.asked.remove(key);
        if failed {
            let failures = state.failures.entry(key.clone()).or_default();
            let delay = FIRST_BACKOFF.saturating_mul(1 << (*failures).min(20)).min(MAX_BACKOFF);
            *failures += 1;
            state.schedule(key.clone(), Instant::now() + delay);
        } else {
            state.failures.remove(key);
            if asked {
                state.enqueue(key.clone());
            }
            match again_after {
                Some(Duration::ZERO) => state.enqueue(key.clone()),
                Some(after) => state.schedule(key.clone(), Instant::now() + after),
                None => {}
            }
        }
        drop(state);
        self.wake.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::keys::Controller;

    fn key(name: &str) -> Key {
        Key::new(Controller::Job, "ml", name)
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_runs_once_at_a_time() {
        let queue = Queue::default();
        queue.add(key("a"), Duration::ZERO);
        queue.add(key("a"), Duration::ZERO);
        queue.add(key("b"), Duration::ZERO);
        assert_eq!(queue.next().await, key("a"));
        queue.add(key("a"), Duration::ZERO);
        assert_eq!(queue.next().await, key("b"));
        let nothing = tokio::time::timeout(Duration::from_mins(1), queue.next()).await;
        assert!(nothing.is_err(), "a key must not run twice at the same time");
        queue.done(&key("a"), false, None);
        assert_eq!(queue.next().await, key("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_time_wins_and_failures_back_off() {
        let queue = Queue::default();
        let start = Instant::now();
        queue.add(key("a"), Duration::from_secs(9));
        queue.add(key("a"), Duration::from_secs(3));
        queue.add(key("a"), Duration::from_secs(6));
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(start.elapsed().as_secs(), 3);
        for expect in [5, 10, 20] {
            let failed_at = Instant::now();
            queue.done(&key("a"), true, None);
            queue.next().await;
            assert_eq!(failed_at.elapsed().as_millis(), expect);
        }
        queue.done(&key("a"), false, Some(Duration::from_secs(7)));
        let done_at = Instant::now();
        queue.next().await;
        assert_eq!(done_at.elapsed().as_secs(), 7);
    }
}
