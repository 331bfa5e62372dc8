//! The tasks of one component, which end together.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catch_panic;

/// A group of tasks with the token that tells them to end. Cheap to clone.
///
/// Whoever replaces a component by another first waits for [`Self::stop`]: two at a time would both write what each takes for its own.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    cancel: CancellationToken,
    tracker: TaskTracker,
}

impl Tasks {
    /// A group without tasks, which `cancel` ends too.
    pub fn new(cancel: CancellationToken) -> Self {
        Self { cancel, tracker: TaskTracker::new() }
    }

    /// The token that the tasks must heed.
    pub fn token(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Starts a task that ends by itself once the token is cancelled.
    pub fn spawn<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tracker.spawn(watched(task));
    }

    /// Starts a task that is dropped, wherever it waits, once the token is cancelled.
    pub fn spawn_until_cancelled<F>(&self, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let cancel = self.cancel.clone();
        self.tracker.spawn(async move {
            cancel.run_until_cancelled_owned(watched(task)).await;
        });
    }

    /// Cancels the token and waits until every task has ended. Must not be called by one of them.
    pub async fn stop(&self) {
        self.cancel.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Nobody joins these tasks: that one has panicked would be known from nothing but what it no longer does.
async fn watched(task: impl Future<Output = ()>) {
    if let Err(panic) = catch_panic(task).await {
        tracing::error!(panic, "a task has ended in a panic");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn to_stop_is_to_wait_for_what_a_task_does_last() {
        let tasks = Tasks::default();
        let done = Arc::new(AtomicBool::new(false));
        let (token, last) = (tasks.token().clone(), Arc::clone(&done));
        tasks.spawn(async move {
            token.cancelled().await;
            tokio::task::yield_now().await;
            last.store(true, Ordering::Relaxed);
        });
        tasks.spawn_until_cancelled(std::future::pending());
        tasks.stop().await;
        assert!(done.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_panic_of_one_task_leaves_the_others() {
        let tasks = Tasks::default();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        tasks.spawn(async { panic!("one") });
        tasks.spawn_until_cancelled(async move {
            tokio::task::yield_now().await;
            let _ = sender.send("the other");
        });
        assert_eq!(receiver.await, Ok("the other"));
        tasks.stop().await;
    }
}
