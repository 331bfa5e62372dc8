//! What `kubectl logs`, `exec` and `attach` reach on simulated nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use gantry_apiserver::{
    AttachRequest, Connection, ExecRequest, Exit, LogRequest, NodeBackend, NodeError, PodTarget,
    PortForwardRequest, Session, Streams,
};
use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc, oneshot};

use crate::machine::Machine;
use crate::programs::tty::{Key, Terminal, cooked};
use crate::programs::{self, Process, Sink, Stdin};
use crate::runtime::{Log, LogLine, Record, Sandbox, State};

/// Pieces that may wait in a session's channels.
const CHANNEL: usize = 64;

/// Exit code of a program that Control-C ended.
const INTERRUPTED: i32 = 130;

/// Answers for all nodes of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Backend {
    /// By name; `None` for a machine that is switched off.
    machines: RwLock<BTreeMap<String, Option<Arc<Machine>>>>,
}

impl Backend {
    /// States what answers for a node from now on.
    pub(crate) fn set(&self, node: &str, machine: Option<Arc<Machine>>) {
        let mut machines = self.machines.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        machines.insert(node.to_owned(), machine);
    }

    fn sandbox(&self, target: &PodTarget) -> Result<Arc<Sandbox>, NodeError> {
        let machines = self.machines.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let machine = machines
            .get(&target.node)
            .and_then(Option::as_ref)
            .ok_or_else(|| NodeError::Unreachable { node: target.node.clone() })?;
        machine
            .sandboxes()
            .get(&target.uid)
            .cloned()
            .ok_or_else(|| NodeError::NoPod { namespace: target.namespace.clone(), pod: target.pod.clone() })
    }

    fn record(&self, target: &PodTarget) -> Result<Record, NodeError> {
        let sandbox = self.sandbox(target)?;
        let record = sandbox.containers().get(&target.container).cloned();
        record.ok_or_else(|| waiting(target, "ContainerCreating"))
    }

    fn start_logs(&self, request: &LogRequest) -> Result<BoxStream<'static, Bytes>, NodeError> {
        let record = self.record(&request.target)?;
        let log = if request.previous {
            record.previous_log.ok_or_else(|| NodeError::NoPrevious {
                container: request.target.container.clone(),
                pod: request.target.pod.clone(),
            })?
        } else {
            match (&record.run, &record.state) {
                (Some(run), _) => Arc::clone(&run.log),
                (None, State::Waiting { reason, .. }) => return Err(waiting(&request.target, reason)),
                (None, _) => return Ok(stream::empty().boxed()),
            }
        };
        Ok(log_stream(log, request))
    }

    fn start_exec(&self, request: ExecRequest) -> Result<Session, NodeError> {
        let record = self.record(&request.target)?;
        let not_running = || NodeError::NotRunning { container: request.target.container.clone() };
        let run = record.run.as_ref().filter(|_| record.is_running()).ok_or_else(not_running)?;
        let view = run.view.clone().ok_or_else(not_running)?;
        let (session, other_end) = session();
        let Streams { stdin, tty, .. } = request.streams;
        let (stdout, stderr) = other_end.sinks(tty);
        let (input, receiver) = mpsc::unbounded_channel();
        let program = request.command.first().cloned().unwrap_or_default();
        if !programs::exists(&view, &program) {
            // The words of containerd and runc; kubectl prints standard error and ends with the code.
            stderr.line(format!(
                "OCI runtime exec failed: exec failed: unable to start container process: {}",
                programs::not_found_message(&program)
            ));
            other_end.finish(Exit::Code(programs::NOT_FOUND));
            return Ok(session);
        }
        let process = Process {
            argv: request.command,
            env: view.env(),
            cwd: view.cwd().to_owned(),
            view,
            stdin: if stdin { Stdin::live(receiver) } else { Stdin::empty() },
            stdout: stdout.clone(),
            stderr,
            tty,
        };
        let container = run.stop.clone();
        tokio::spawn(async move {
            let OtherEnd { mut stdin, resize, exit, out, err, .. } = other_end;
            let keys = async {
                let mut terminal = Terminal::new(stdout, input.clone());
                let mut input = Some(input);
                while let Some(bytes) = stdin.recv().await {
                    if tty {
                        match terminal.keys(&bytes) {
                            Key::Typed => {}
                            Key::Interrupt => return INTERRUPTED,
                            Key::EndOfInput => break,
                        }
                    } else if let Some(input) = &input {
                        // A process that no longer reads is none of the user's concern.
                        let _ = input.send(bytes);
                    }
                }
                drop(terminal);
                input.take();
                std::future::pending().await
            };
            let code = tokio::select! {
                code = programs::run(process) => code,
                code = keys => code,
                // The container's end is the end of all its processes.
                () = container.cancelled() => 137,
                // Nobody listens any more.
                () = hung_up(&out, &err) => return,
            };
            drop(resize);
            far_exit(exit, code);
        });
        Ok(session)
    }

    fn start_attach(&self, request: &AttachRequest) -> Result<Session, NodeError> {
        let record = self.record(&request.target)?;
        let not_running = || NodeError::NotRunning { container: request.target.container.clone() };
        let run = record.run.clone().filter(|_| record.is_running()).ok_or_else(not_running)?;
        let sandbox = self.sandbox(&request.target)?;
        let name = request.target.container.clone();
        let (session, other_end) = session();
        let tty = request.streams.tty;
        let (stdout, _) = other_end.sinks(tty);
        let mut output = run.output.subscribe();
        // What was written before is in the log; a terminal that is attached late still shows its prompt.
        let (before, _, _) = run.log.read(0);
        if tty {
            for line in before {
                stdout.write(&line.text);
                stdout.write("\n");
            }
        }
        tokio::spawn(async move {
            let OtherEnd { mut stdin, exit, out, err, .. } = other_end;
            let keys = async {
                if let Some(input) = run.stdin.clone() {
                    let mut terminal = Terminal::new(stdout.clone(), input.clone());
                    while let Some(bytes) = stdin.recv().await {
                        if tty {
                            match terminal.keys(&bytes) {
                                Key::Typed => {}
                                // A process 1 is ended by neither: what is attached goes on without its user.
                                Key::Interrupt => {}
                                Key::EndOfInput => run.stop.cancel(),
                            }
                        } else {
                            let _ = input.send(bytes);
                        }
                    }
                }
                std::future::pending::<()>().await;
            };
            let copy = async {
                loop {
                    match output.recv().await {
                        Ok(bytes) => stdout.write(bytes),
                        Err(broadcast::error::RecvError::Lagged(_)) => {}
                        Err(broadcast::error::RecvError::Closed) => {
                            return std::future::pending::<()>().await;
                        }
                    }
                }
            };
            let mut changes = sandbox.changes();
            let ended = async {
                loop {
                    let code = match sandbox.containers().get(&name).map(|record| record.state.clone()) {
                        Some(State::Running { .. }) => None,
                        Some(State::Terminated(end)) => Some(end.exit_code),
                        _ => Some(0),
                    };
                    if let Some(code) = code {
                        return code;
                    }
                    if changes.changed().await.is_err() {
                        return 0;
                    }
                }
            };
            let code = tokio::select! {
                biased;
                () = keys => 0,
                () = copy => 0,
                code = ended => code,
                () = hung_up(&out, &err) => return,
            };
            // What was written last is on its way still.
            while let Ok(bytes) = output.try_recv() {
                stdout.write(bytes);
            }
            far_exit(exit, code);
        });
        Ok(session)
    }
}

impl NodeBackend for Backend {
    fn logs(&self, request: LogRequest) -> BoxFuture<'_, Result<BoxStream<'static, Bytes>, NodeError>> {
        Box::pin(async move { self.start_logs(&request) })
    }

    fn exec(&self, request: ExecRequest) -> BoxFuture<'_, Result<Session, NodeError>> {
        Box::pin(async move { self.start_exec(request) })
    }

    fn attach(&self, request: AttachRequest) -> BoxFuture<'_, Result<Session, NodeError>> {
        Box::pin(async move { self.start_attach(&request) })
    }

    fn port_forward(&self, request: PortForwardRequest) -> BoxFuture<'_, Result<Connection, NodeError>> {
        Box::pin(async move {
            self.sandbox(&request.target)?;
            // Nothing listens in a simulated container.
            Err(NodeError::Unsupported {
                operation: "port-forward: programs in its containers are simulated and listen on no port",
            })
        })
    }
}

fn waiting(target: &PodTarget, reason: &str) -> NodeError {
    let reason = if reason.is_empty() { "ContainerCreating" } else { reason };
    NodeError::Waiting {
        container: target.container.clone(),
        pod: target.pod.clone(),
        reason: reason.to_owned(),
    }
}

/// The process's end of a session.
struct OtherEnd {
    stdin: mpsc::Receiver<Bytes>,
    resize: mpsc::Receiver<gantry_apiserver::TerminalSize>,
    out: mpsc::Sender<Bytes>,
    err: mpsc::Sender<Bytes>,
    exit: oneshot::Sender<Exit>,
}

fn session() -> (Session, OtherEnd) {
    let (stdin, far_stdin) = mpsc::channel(CHANNEL);
    let (out, stdout) = mpsc::channel(CHANNEL);
    let (err, stderr) = mpsc::channel(CHANNEL);
    let (resize, far_resize) = mpsc::channel(1);
    let (exit, ended) = oneshot::channel();
    let session = Session { stdin, stdout, stderr, resize, exit: ended };
    (session, OtherEnd { stdin: far_stdin, resize: far_resize, out, err, exit })
}

impl OtherEnd {
    /// Sinks for standard output and error; with a terminal both are the first.
    fn sinks(&self, tty: bool) -> (Sink, Sink) {
        let stdout = forward(self.out.clone());
        if tty {
            let stdout = cooked(stdout);
            return (stdout.clone(), stdout);
        }
        (stdout, forward(self.err.clone()))
    }

    fn finish(self, exit: Exit) {
        // A client that hung up does not hear it.
        let _ = self.exit.send(exit);
    }
}

fn far_exit(exit: oneshot::Sender<Exit>, code: i32) {
    let _ = exit.send(Exit::Code(code));
}

/// Programs write at once; a slow client is waited for here.
fn forward(sender: mpsc::Sender<Bytes>) -> Sink {
    let (queue, mut pieces) = mpsc::unbounded_channel::<Bytes>();
    tokio::spawn(async move {
        while let Some(piece) = pieces.recv().await {
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    });
    Sink::new(move |bytes| {
        let _ = queue.send(Bytes::copy_from_slice(bytes));
    })
}

/// Ends when the client has dropped both outputs.
async fn hung_up(out: &mpsc::Sender<Bytes>, err: &mpsc::Sender<Bytes>) {
    tokio::join!(out.closed(), err.closed());
}

fn log_stream(log: Arc<Log>, request: &LogRequest) -> BoxStream<'static, Bytes> {
    let (lines, next, _) = log.read(0);
    let since = request.since;
    let mut first: Vec<LogLine> =
        lines.into_iter().filter(|line| since.is_none_or(|since| line.at >= since)).collect();
    if let Some(tail) = request.tail_lines {
        let tail = usize::try_from(tail).unwrap_or(usize::MAX);
        first.drain(..first.len().saturating_sub(tail));
    }
    let timestamps = request.timestamps;
    let head = stream::iter(first.into_iter().map(move |line| render(&line, timestamps)));
    let pieces = if request.follow {
        let rest = stream::unfold(
            (log.changes(), log, next, false),
            move |(mut changes, log, from, ended)| async move {
                if ended {
                    return None;
                }
                loop {
                    let (lines, next, closed) = log.read(from);
                    if !lines.is_empty() || closed {
                        let text: Vec<u8> = lines.iter().flat_map(|line| render(line, timestamps)).collect();
                        return Some((Bytes::from(text), (changes, log, next, closed)));
                    }
                    if changes.changed().await.is_err() {
                        return None;
                    }
                }
            },
        );
        head.chain(rest).filter(|piece| std::future::ready(!piece.is_empty())).boxed()
    } else {
        head.boxed()
    };
    match request.limit_bytes {
        None => pieces,
        Some(limit) => pieces
            .scan(limit, |left, piece| {
                let take = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
                *left -= take as u64;
                std::future::ready((take > 0).then(|| piece.slice(..take)))
            })
            .boxed(),
    }
}

fn render(line: &LogLine, timestamps: bool) -> Bytes {
    let mut text = if timestamps { nano_stamp(line.at).into_bytes() } else { Vec::new() };
    text.extend_from_slice(&line.text);
    text.push(b'\n');
    text.into()
}

fn nano_stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%9fZ ").to_string()
}
