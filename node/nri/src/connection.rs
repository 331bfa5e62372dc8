//! Keeping a connection to the runtime.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gantry_kit::{CancellationToken, SharedClock, catch_panic};
use jiff::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::{Error, Peer, Plugin, Session};

/// Waits before another attempt: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How long the runtime may take to register and synchronise a plugin. It does so between the creations of pods.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// How long the runtime may take to read an answer.
const STUCK: Duration = Duration::from_secs(10);

/// What is read at once, in bytes.
const READ: usize = 64 << 10;

/// What was configured.
#[derive(Debug, Clone)]
pub struct Options {
    /// The runtime's socket, usually [`crate::SOCKET`].
    pub socket: PathBuf,
    /// The plugin's name.
    pub name: String,
    /// Two digits: plugins are asked in ascending order.
    pub index: String,
    /// The time of [`State::Away`].
    pub clock: SharedClock,
}

/// Where a plugin stands with the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The runtime asks it.
    Connected {
        /// Such as `containerd`.
        runtime: String,
        /// Such as `v2.4.2`.
        version: String,
    },
    /// The runtime does not ask it.
    Away {
        /// Since when.
        since: Timestamp,
        /// The cause, for people.
        why: String,
    },
}

impl State {
    /// Whether the runtime asks the plugin.
    pub fn is_connected(&self) -> bool {
        matches!(self, Self::Connected { .. })
    }
}

/// What others can see of a connection. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(watch::Receiver<State>);

impl Handle {
    /// Where the plugin stands now, and every change of it.
    pub fn state(&self) -> watch::Receiver<State> {
        self.0.clone()
    }
}

/// A plugin that is ready to dial.
#[derive(Debug)]
pub struct Connection<P> {
    options: Options,
    plugin: Arc<P>,
    state: watch::Sender<State>,
}

impl<P: Plugin> Connection<P> {
    /// Checks what was configured.
    ///
    /// # Errors
    /// For a name or an index that no runtime would register.
    pub fn new(options: Options, plugin: Arc<P>) -> Result<(Self, Handle), Error> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if options.name.is_empty() || options.name.len() > 100 || !options.name.chars().all(is_name) {
            return Err(Error::Name(options.name.chars().take(100).collect()));
        }
        if options.index.len() != 2 || !options.index.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Error::Index(options.index.chars().take(100).collect()));
        }
        let since = options.clock.now();
        let (state, seen) = watch::channel(State::Away { since, why: "not dialled yet".to_owned() });
        Ok((Self { options, plugin, state }, Handle(seen)))
    }

    /// Dials, serves, and dials again, until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let _ = cancel.run_until_cancelled(self.keep()).await;
        self.away("the plugin has ended".to_owned());
    }

    async fn keep(&self) {
        let mut delay = RETRY.0;
        loop {
            let why = match catch_panic(self.serve()).await {
                Ok(error) => error,
                Err(panic) => Error::Panicked(panic),
            };
            if self.away(why.to_string()) {
                delay = RETRY.0;
            }
            sleep(delay).await;
            delay = (delay * 2).min(RETRY.1);
        }
    }

    /// Says that the runtime does not ask the plugin. Whether it did until now.
    fn away(&self, why: String) -> bool {
        let now = self.options.clock.now();
        let mut was = false;
        self.state.send_if_modified(|state| {
            let next = match state {
                State::Connected { .. } => {
                    was = true;
                    State::Away { since: now, why }
                }
                State::Away { since, .. } => State::Away { since: *since, why },
            };
            let changed = *state != next;
            *state = next;
            changed
        });
        was
    }

    /// One connection, from dial to end.
    async fn serve(&self) -> Error {
        match self.exchange().await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn exchange(&self) -> Result<std::convert::Infallible, Error> {
        let path = &self.options.socket;
        let dial = |source| Error::Dial { path: path.clone(), source };
        let mut socket = timeout(STUCK, UnixStream::connect(path))
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(dial)?;
        let (mut session, mut out) = Session::start(&self.options.name, &self.options.index);
        let mut buffer = vec![0; READ];
        let until = Instant::now() + HANDSHAKE;
        let mut connected = false;
        loop {
            if !out.is_empty() {
                // Nothing is read meanwhile: a runtime that does not take its answers cannot make us hold more of them.
                let sent = timeout(STUCK, socket.write_all(&out)).await;
                sent.map_err(|_| Error::Stuck(STUCK.as_secs()))??;
                out.clear();
            }
            // Once the answer to the last part of Synchronize is out.
            if !connected && let Some(Peer { runtime, version, .. }) = session.connected() {
                connected = true;
                let (runtime, version) = (runtime.clone(), version.clone());
                self.state.send_replace(State::Connected { runtime, version });
            }
            let read = if connected {
                socket.read(&mut buffer).await?
            } else {
                let awaited = session.awaited();
                let read = timeout_at(until, socket.read(&mut buffer)).await;
                read.map_err(|_| Error::Handshake { awaited, seconds: HANDSHAKE.as_secs() })??
            };
            if read == 0 {
                return Err(if session.is_whole() { Error::Closed } else { Error::Cut });
            }
            session.receive(&*self.plugin, &buffer[..read], &mut out)?;
        }
    }
}
