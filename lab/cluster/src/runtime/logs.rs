//! A container's log: its last lines, each with its time.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gantry_kit::SharedClock;
use jiff::Timestamp;
use tokio::sync::watch;

/// What is kept of one run of a container, in bytes of text. A kubelet rotates at 10 MiB; a thousand simulated
/// nodes share one process.
const CAPACITY: usize = 256 * 1024;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogLine {
    pub(crate) at: Timestamp,
    /// Without its line feed.
    pub(crate) text: Vec<u8>,
}

/// The log of one run of a container.
#[derive(Debug)]
pub(crate) struct Log {
    clock: SharedClock,
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    lines: VecDeque<LogLine>,
    /// Number of the first line that is kept.
    first: u64,
    bytes: usize,
    partial: Vec<u8>,
    closed: bool,
}

impl Log {
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self { clock, inner: Mutex::default(), changed: watch::Sender::new(0) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what a process wrote; lines are what ends with a line feed.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let at = self.clock.now();
        {
            let mut inner = self.inner();
            for part in bytes.split_inclusive(|byte| *byte == b'\n') {
                inner.partial.extend_from_slice(part);
                if part.ends_with(b"\n") {
                    inner.partial.pop();
                    inner.flush(at);
                }
            }
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// Ends the log: a last line without a line feed counts, and followers end.
    pub(crate) fn close(&self) {
        let at = self.clock.now();
        {
            let mut inner = self.inner();
            if !inner.partial.is_empty() {
                inner.flush(at);
            }
            inner.closed = true;
        }
        self.changed.send_modify(|count| *count += 1);
    }

    /// The lines from number `from` on, the number of the next line, and whether there will be no more.
    pub(crate) fn read(&self, from: u64) -> (Vec<LogLine>, u64, bool) {
        let inner = self.inner();
        let skip = usize::try_from(from.saturating_sub(inner.first)).unwrap_or(usize::MAX);
        let next = inner.first + inner.lines.len() as u64;
        (inner.lines.iter().skip(skip).cloned().collect(), next, inner.closed)
    }

    /// A channel that changes with the log.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

impl Inner {
    fn flush(&mut self, at: Timestamp) {
        let text = std::mem::take(&mut self.partial);
        self.bytes += text.len();
        self.lines.push_back(LogLine { at, text });
        while self.bytes > CAPACITY && self.lines.len() > 1 {
            if let Some(old) = self.lines.pop_front() {
                self.bytes -= old.text.len();
                self.first += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gantry_kit::ManualClock;

    use super::*;

    #[test]
    fn lines_are_numbered_and_old_ones_go() {
        let log = Log::new(Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH)));
        log.write(b"one\ntw");
        log.write(b"o\nend");
        assert_eq!(log.read(0).1, 2);
        log.close();
        let (lines, next, closed) = log.read(1);
        assert_eq!((lines.len(), next, closed), (2, 3, true));
        assert_eq!(lines[1].text, b"end");
        let log = Log::new(Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH)));
        for _ in 0..3_000 {
            log.write(&[[b'x'; 100].as_slice(), b"\n"].concat());
        }
        let (lines, next, _) = log.read(0);
        assert!(lines.len() <= CAPACITY / 100 && next == 3_000);
    }
}
