//! The agent's own log, bounded, for those who show it (`kubectl logs` of the plugin's pod).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use gantry_kit::SharedClock;
use jiff::Timestamp;
use tokio::sync::watch;

/// Lines that are kept.
const CAPACITY: usize = 256;

/// A line of the agent's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// When it was written.
    pub at: Timestamp,
    /// The text, without a line break.
    pub text: String,
}

impl fmt::Display for LogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at, self.text)
    }
}

#[derive(Debug)]
pub(crate) struct Log {
    clock: SharedClock,
    lines: Mutex<VecDeque<LogLine>>,
    /// Lines ever written.
    count: watch::Sender<u64>,
}

impl Log {
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self { clock, lines: Mutex::default(), count: watch::Sender::new(0) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn write(&self, text: impl Into<String>) {
        let line = LogLine { at: self.clock.now(), text: text.into() };
        {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == CAPACITY {
                lines.pop_front();
            }
            lines.push_back(line);
            // Under the lock, so that a reader never sees more lines than were counted.
            self.count.send_modify(|count| *count += 1);
        }
    }

    /// The lines from number `from` on, as far as they are kept, and the number of the next.
    pub(crate) fn read(&self, from: u64) -> (Vec<LogLine>, u64) {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let next = *self.count.borrow();
        let first = next - lines.len() as u64;
        let skip = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
        (lines.iter().skip(skip).cloned().collect(), next)
    }

    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gantry_kit::ManualClock;

    use super::*;

    #[test]
    fn old_lines_go_and_numbers_stay() {
        let log = Log::new(Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH)));
        for number in 0..300 {
            log.write(format!("line {number}"));
        }
        let (lines, next) = log.read(0);
        assert_eq!((lines.len(), next, lines[0].text.as_str()), (CAPACITY, 300, "line 44"));
        assert_eq!(log.read(298).0.len(), 2);
        assert_eq!(log.read(300).0.len(), 0);
        assert_eq!(log.read(9_999).0.len(), 0);
    }
}
