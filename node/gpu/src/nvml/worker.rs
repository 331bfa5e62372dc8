//! Calls that may never return, made where nobody waits for ever.
//!
//! A worker is a thread with a queue. Who gives it work waits until a deadline. If work is not done by then, the worker is stuck:
//! until it is free again, further work is refused at once. A driver that hangs costs one thread and one deadline.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The moment up to which somebody waits. A driver's time is real time, even where the rest of the program has another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(Instant);

#[expect(clippy::disallowed_methods, reason = "a driver takes real time")]
impl Deadline {
    pub(super) fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The deadline passed, or an earlier piece of work is still not done.
    Late,
    /// The work crashed.
    Crashed,
}

type Work = Box<dyn FnOnce() + Send>;

#[derive(Debug, Default)]
struct Progress {
    given: Mutex<u64>,
    done: AtomicU64,
    /// The last piece of work that somebody stopped waiting for.
    late: AtomicU64,
}

/// A thread that does one piece of work after another.
#[derive(Debug)]
pub(super) struct Worker {
    queue: Sender<(u64, Work)>,
    progress: Arc<Progress>,
}

/// Work that was given.
#[derive(Debug)]
pub(super) struct Pending<T> {
    number: u64,
    progress: Arc<Progress>,
    answer: Option<mpsc::Receiver<T>>,
}

impl Worker {
    /// A worker. Its thread ends when the worker is dropped and what it is in returns.
    pub(super) fn new(name: &str) -> std::io::Result<Self> {
        let (queue, work) = mpsc::channel::<(u64, Work)>();
        let progress = Arc::new(Progress::default());
        let own = Arc::clone(&progress);
        thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(move || {
            while let Ok((number, work)) = work.recv() {
                // The answer's channel was moved into the work: a crash drops it, and the waiting side sees that.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                own.done.store(number, Ordering::Release);
            }
        })?;
        Ok(Self { queue, progress })
    }

    fn is_stuck(&self) -> bool {
        self.progress.late.load(Ordering::Acquire) > self.progress.done.load(Ordering::Acquire)
    }

    /// Gives work. A stuck worker takes none.
    pub(super) fn give<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Pending<T> {
        let progress = Arc::clone(&self.progress);
        if self.is_stuck() {
            return Pending { number: 0, progress, answer: None };
        }
        let (sender, answer) = mpsc::channel();
        let work = Box::new(move || {
            let _ = sender.send(work());
        });
        // Held while the work is queued, so that numbers are in the order of the queue.
        let mut given = progress.given.lock().unwrap_or_else(PoisonError::into_inner);
        *given += 1;
        let number = *given;
        let sent = self.queue.send((number, work)).is_ok();
        drop(given);
        Pending { number, progress, answer: sent.then_some(answer) }
    }
}

impl<T> Pending<T> {
    /// Waits for the answer until `deadline`.
    pub(super) fn wait(self, deadline: Deadline) -> Result<T, NoAnswer> {
        let answer = self.answer.ok_or(NoAnswer::Late)?;
        match answer.recv_timeout(deadline.left()) {
            Ok(value) => Ok(value),
            Err(RecvTimeoutError::Disconnected) => Err(NoAnswer::Crashed),
            Err(RecvTimeoutError::Timeout) => {
                self.progress.late.fetch_max(self.number, Ordering::AcqRel);
                Err(NoAnswer::Late)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Deadline {
        Deadline::after(Duration::from_millis(50))
    }

    fn later() -> Deadline {
        Deadline::after(Duration::from_secs(60))
    }

    #[test]
    fn a_stuck_worker_refuses_at_once_and_works_again_when_it_is_free() {
        let worker = Worker::new("test").unwrap();
        assert_eq!(worker.give(|| 1).wait(later()), Ok(1));
        let (release, gate) = mpsc::channel::<()>();
        let first = worker.give(move || gate.recv().is_ok());
        let second = worker.give(|| 2);
        assert_eq!(first.wait(soon()), Err(NoAnswer::Late));
        // With a deadline far away: it does not wait for it.
        assert_eq!(worker.give(|| 3).wait(later()), Err(NoAnswer::Late));
        release.send(()).unwrap();
        assert_eq!(second.wait(later()), Ok(2));
        assert_eq!(worker.give(|| 4).wait(later()), Ok(4));
    }

    #[test]
    fn a_crash_ends_one_piece_of_work() {
        let worker = Worker::new("test").unwrap();
        assert_eq!(worker.give(|| -> u8 { panic!("on purpose") }).wait(later()), Err(NoAnswer::Crashed));
        assert_eq!(worker.give(|| 1).wait(later()), Ok(1));
    }
}
