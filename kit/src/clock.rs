//! Where "now" comes from.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};

/// A source of wall-clock time. Only time stamps come from here; waiting is `tokio::time`.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The current instant. May jump in either direction, as a machine's clock does.
    fn now(&self) -> Timestamp;
}

/// A clock that components can keep and pass on.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clock. Only `main` functions and long-lived processes use it.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one place where wall-clock time enters")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Wall-clock time derived from tokio's clock: an epoch plus what tokio says has passed since.
///
/// On a paused runtime both stand still together, so a simulated day is a pure function of its input.
#[derive(Debug, Clone, Copy)]
pub struct VirtualClock {
    epoch: Timestamp,
    start: tokio::time::Instant,
}

impl VirtualClock {
    /// A clock that reads `epoch` now. Must be called within a tokio runtime if that runtime is paused.
    pub fn new(epoch: Timestamp) -> Self {
        Self { epoch, start: tokio::time::Instant::now() }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        self.epoch.saturating_add(passed).unwrap_or(Timestamp::MAX)
    }
}

/// A clock that stands still until it is set; for tests of clock jumps.
#[derive(Debug)]
pub struct ManualClock(Mutex<Timestamp>);

impl ManualClock {
    /// A clock that reads `now` until told otherwise.
    pub fn new(now: Timestamp) -> Self {
        Self(Mutex::new(now))
    }

    /// Moves the clock to `now`, forwards or backwards.
    pub fn set(&self, now: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn virtual_time_follows_the_paused_runtime() {
        let clock = VirtualClock::new(Timestamp::UNIX_EPOCH);
        tokio::time::sleep(Duration::from_secs(86_400)).await;
        assert_eq!(clock.now().as_second(), 86_400);
    }

    #[test]
    fn a_manual_clock_jumps_both_ways() {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        clock.set(Timestamp::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
        clock.set(Timestamp::MIN);
        assert_eq!(clock.now(), Timestamp::MIN);
    }
}
