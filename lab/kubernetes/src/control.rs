//! What pid 1 of a node is asked to do, over a Unix socket: one JSON line there, one back.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde::{Deserialize, Serialize};

use crate::plan::Program;

/// A request to pid 1.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Start a program; one of this name that still runs is an error.
    Start(Program),
    /// Start again what was started under this name before.
    Again(String),
    /// Send a signal to a program and answer when it has ended, if the signal ends it.
    Signal {
        name: String,
        signal: i32,
        /// Whether to wait for the end.
        wait: bool,
    },
    /// End everything at once and forget what a machine forgets without power: `/run`, mounts, running programs.
    PowerOff,
    /// Start what was ever started and does not run, in that order; answers with what it started.
    Revive,
    /// List the programs that run, with their pids in the node.
    List,
}

/// Pid 1's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Running(Vec<(String, i32)>),
    Refused(String),
}

/// How long an order may take: the kernel ends a killed process at once, except in the middle of input and output.
const PATIENCE: Duration = Duration::from_secs(30);

/// Gives an order and waits for the answer.
pub(crate) fn send(socket: &Path, order: &Order) -> anyhow::Result<Vec<(String, i32)>> {
    let answer = || -> anyhow::Result<Answer> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        stream.write_all(line.as_bytes())?;
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply)?;
        Ok(serde_json::from_str(&reply)?)
    };
    match answer().with_context(|| format!("ask the node at {}", socket.display()))? {
        Answer::Done => Ok(Vec::new()),
        Answer::Running(list) => Ok(list),
        Answer::Refused(problem) => Err(anyhow!(problem)),
    }
}
