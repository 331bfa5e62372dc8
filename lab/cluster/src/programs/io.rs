//! The three streams of a simulated process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;

/// Where a process writes to. Cheap to clone; clones write to the same place.
#[derive(Clone)]
pub(crate) struct Sink(Arc<Write>);

/// What a sink does with each write.
type Write = dyn Fn(&[u8]) + Send + Sync;

impl Sink {
    /// A sink that hands each write to `write`.
    pub(crate) fn new(write: impl Fn(&[u8]) + Send + Sync + 'static) -> Self {
        Self(Arc::new(write))
    }

    /// A sink that forgets, as `/dev/null` does.
    pub(crate) fn null() -> Self {
        Self::new(|_| {})
    }

    /// A sink and the bytes that arrived in it.
    pub(crate) fn memory() -> (Self, Memory) {
        let memory = Memory::default();
        let inner = Arc::clone(&memory.0);
        (
            Self::new(move |bytes| {
                inner.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            }),
            memory,
        )
    }

    /// A sink whose writes the other end reads as its standard input.
    pub(crate) fn pipe() -> (Self, Stdin) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let sink = Self::new(move |bytes| {
            // A reader that went away is no fault: the writer is stopped along with it.
            let _ = sender.send(Bytes::copy_from_slice(bytes));
        });
        (sink, Stdin::live(receiver))
    }

    /// Writes all of it.
    pub(crate) fn write(&self, bytes: impl AsRef<[u8]>) {
        (self.0)(bytes.as_ref());
    }

    /// Writes a line with its line feed.
    pub(crate) fn line(&self, text: impl AsRef<str>) {
        self.write(format!("{}\n", text.as_ref()));
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

/// What arrived in a [`Sink::memory`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    /// The bytes so far, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

/// Where a process reads from.
#[derive(Debug, Default)]
pub(crate) struct Stdin {
    buffer: Vec<u8>,
    live: Option<mpsc::UnboundedReceiver<Bytes>>,
}

impl Stdin {
    /// An input that is at its end.
    pub(crate) fn empty() -> Self {
        Self::default()
    }

    /// An input that lasts as long as the sender lives.
    pub(crate) fn live(receiver: mpsc::UnboundedReceiver<Bytes>) -> Self {
        Self { buffer: Vec::new(), live: Some(receiver) }
    }

    async fn fill(&mut self) -> bool {
        let Some(receiver) = &mut self.live else { return false };
        if let Some(bytes) = receiver.recv().await {
            self.buffer.extend_from_slice(&bytes);
            return true;
        }
        self.live = None;
        false
    }

    /// The next line without its line feed; `None` at the end.
    pub(crate) async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=at).collect();
                return Some(String::from_utf8_lossy(&line[..at]).into_owned());
            }
            if !self.fill().await {
                let rest = std::mem::take(&mut self.buffer);
                return (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned());
            }
        }
    }

    /// The bytes that are there; waits for some if there are none; `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Option<Vec<u8>> {
        if self.buffer.is_empty() && !self.fill().await {
            return None;
        }
        Some(std::mem::take(&mut self.buffer))
    }
}
