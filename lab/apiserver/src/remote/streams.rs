//! A session's channels, apart from the wire protocol that carries them.
//!
//! A protocol's driver turns bytes into [`Input`] and [`Output`] into bytes; [`run_session`] joins them with a
//! [`Session`]. The two directions are independent, so that a process that does not read cannot keep its
//! output from flowing.

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Connection, Exit, Session, Streams, TerminalSize};

/// Channels of `exec` and `attach`.
pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const ERROR: u8 = 3;
pub(super) const RESIZE: u8 = 4;

/// How many pieces may wait in either direction before the sender has to.
pub(super) const PENDING: usize = 16;

/// What a client sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    Data(u8, Bytes),
    Closed(u8),
}

/// What a client is sent. The connection ends when the sender is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Output {
    Data(u8, Bytes),
    Closed(u8),
}

/// What goes over the error channel when a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorStyle {
    /// A `Status` object, since protocol v4.
    Status,
    /// A sentence, and nothing after a success.
    Text,
}

/// Runs until the process ends or the client leaves (which drops the session).
pub(super) async fn run_session(
    session: Session,
    streams: Streams,
    style: ErrorStyle,
    mut inputs: mpsc::Receiver<Input>,
    outputs: mpsc::Sender<Output>,
) {
    let Session { stdin, mut stdout, mut stderr, resize, mut exit } = session;
    let mut stdin = streams.stdin.then_some(stdin);
    let feeding = async {
        while let Some(input) = inputs.recv().await {
            match input {
                Input::Data(STDIN, data) => {
                    if let Some(sender) = &stdin
                        && !data.is_empty()
                        && sender.send(data).await.is_err()
                    {
                        stdin = None;
                    }
                }
                Input::Closed(STDIN) => stdin = None,
                Input::Data(RESIZE, data) => {
                    if let Some(size) = terminal_size(&data) {
                        // The process may have ended; its exit is on the way.
                        let _ = resize.send(size).await;
                    }
                }
                Input::Data(..) | Input::Closed(_) => {}
            }
        }
    };
    let draining = async {
        let (mut out_open, mut err_open) = (true, true);
        while out_open || err_open {
            let (channel, wanted, piece) = tokio::select! {
                piece = stdout.recv(), if out_open => (STDOUT, streams.stdout, piece),
                piece = stderr.recv(), if err_open => (STDERR, streams.stderr, piece),
            };
            match piece {
                Some(data) if wanted => {
                    if outputs.send(Output::Data(channel, data)).await.is_err() {
                        return;
                    }
                }
                Some(_) => {}
                None if channel == STDOUT => out_open = false,
                None => err_open = false,
            }
        }
        let exit =
            (&mut exit).await.unwrap_or_else(|_| Exit::Failed("the node ended the session".to_owned()));
        if let Some(report) = exit_report(&exit, style) {
            let _ = outputs.send(Output::Data(ERROR, report)).await;
        }
        for channel in [STDOUT, STDERR, ERROR] {
            let _ = outputs.send(Output::Closed(channel)).await;
        }
    };
    tokio::select! {
        () = draining => {}
        () = feeding => {}
    }
}

/// Runs one forwarded connection until both directions have ended. `wrap` addresses what comes from the pod;
/// `None` is its end.
pub(super) async fn run_connection<T>(
    connection: Connection,
    mut inputs: mpsc::Receiver<Bytes>,
    outputs: mpsc::Sender<T>,
    wrap: impl Fn(Option<Bytes>) -> T,
) {
    let Connection { to_pod, mut from_pod } = connection;
    let sending = async move {
        while let Some(data) = inputs.recv().await {
            if to_pod.send(data).await.is_err() {
                return;
            }
        }
    };
    let receiving = async move {
        loop {
            let data = from_pod.recv().await;
            let last = data.is_none();
            if outputs.send(wrap(data)).await.is_err() || last {
                return;
            }
        }
    };
    tokio::join!(sending, receiving);
}

pub(super) fn terminal_size(data: &[u8]) -> Option<TerminalSize> {
    let size: Value = serde_json::from_slice(data).ok()?;
    let part = |name: &str| size[name].as_u64().and_then(|n| u16::try_from(n).ok());
    Some(TerminalSize { width: part("Width")?, height: part("Height")? })
}

/// What kubectl turns into its own exit code.
fn exit_report(exit: &Exit, style: ErrorStyle) -> Option<Bytes> {
    let message = match exit {
        Exit::Code(0) => None,
        Exit::Code(code) => Some(format!("command terminated with non-zero exit code: exit status {code}")),
        Exit::Failed(why) => Some(why.clone()),
    };
    if style == ErrorStyle::Text {
        return message.map(Bytes::from);
    }
    let status = match (exit, message) {
        (Exit::Code(code), Some(message)) => json!({
            "metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        (_, Some(message)) => json!({
            "metadata": {}, "status": "Failure", "message": format!("Internal error occurred: {message}"),
            "reason": "InternalError", "code": 500,
            "details": {"causes": [{"message": message}]},
        }),
        (_, None) => json!({"metadata": {}, "status": "Success"}),
    };
    Some(Bytes::from(status.to_string()))
}

/// A session with both ends, for tests of drivers and backends.
#[cfg(test)]
pub(super) struct Process {
    pub(super) stdin: mpsc::Receiver<Bytes>,
    pub(super) stdout: mpsc::Sender<Bytes>,
    pub(super) stderr: mpsc::Sender<Bytes>,
    pub(super) resize: mpsc::Receiver<TerminalSize>,
    pub(super) exit: tokio::sync::oneshot::Sender<Exit>,
}

#[cfg(test)]
pub(super) fn session() -> (Session, Process) {
    let (stdin, stdin_receiver) = mpsc::channel(4);
    let (stdout_sender, stdout) = mpsc::channel(4);
    let (stderr_sender, stderr) = mpsc::channel(4);
    let (resize, resize_receiver) = mpsc::channel(4);
    let (exit_sender, exit) = tokio::sync::oneshot::channel();
    (
        Session { stdin, stdout, stderr, resize, exit },
        Process {
            stdin: stdin_receiver,
            stdout: stdout_sender,
            stderr: stderr_sender,
            resize: resize_receiver,
            exit: exit_sender,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };

    #[test]
    fn an_exit_code_travels_in_a_status() {
        let report = |exit| exit_report(&exit, ErrorStyle::Status).unwrap();
        let failed: Value = serde_json::from_slice(&report(Exit::Code(7))).unwrap();
        assert_eq!(failed["reason"], "NonZeroExitCode");
        assert_eq!(failed["details"]["causes"][0], json!({"reason": "ExitCode", "message": "7"}));
        let fine: Value = serde_json::from_slice(&report(Exit::Code(0))).unwrap();
        assert_eq!(fine["status"], "Success");
        let broken: Value = serde_json::from_slice(&report(Exit::Failed("no such file".into()))).unwrap();
        assert_eq!(broken["message"], "Internal error occurred: no such file");
        assert_eq!(exit_report(&Exit::Code(0), ErrorStyle::Text), None);
    }

    #[tokio::test]
    async fn a_session_carries_input_output_sizes_and_the_exit() {
        let (session, mut process) = session();
        let (input, inputs) = mpsc::channel(8);
        let (outputs, mut output) = mpsc::channel(8);
        let running = tokio::spawn(run_session(session, ALL, ErrorStyle::Status, inputs, outputs));
        input.send(Input::Data(RESIZE, r#"{"Width":80,"Height":24}"#.into())).await.unwrap();
        input.send(Input::Data(RESIZE, "nonsense".into())).await.unwrap();
        input.send(Input::Data(STDIN, "hello".into())).await.unwrap();
        input.send(Input::Closed(STDIN)).await.unwrap();
        assert_eq!(process.resize.recv().await.unwrap(), TerminalSize { width: 80, height: 24 });
        assert_eq!(process.stdin.recv().await.unwrap(), "hello");
        assert_eq!(process.stdin.recv().await, None);
        process.stdout.send("out".into()).await.unwrap();
        assert_eq!(output.recv().await.unwrap(), Output::Data(STDOUT, "out".into()));
        process.stderr.send("err".into()).await.unwrap();
        assert_eq!(output.recv().await.unwrap(), Output::Data(STDERR, "err".into()));
        process.exit.send(Exit::Code(0)).unwrap();
        drop((process.stdout, process.stderr));
        assert!(matches!(output.recv().await.unwrap(), Output::Data(ERROR, _)));
        running.await.unwrap();
    }

    #[tokio::test]
    async fn a_process_is_dropped_when_its_client_leaves() {
        let (session, process) = session();
        let (input, inputs) = mpsc::channel(8);
        let (outputs, _output) = mpsc::channel(8);
        let running = tokio::spawn(run_session(session, ALL, ErrorStyle::Status, inputs, outputs));
        drop(input);
        running.await.unwrap();
        assert!(process.stdout.is_closed() && process.exit.is_closed());
    }
}
