//! Asking the node agent.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gantry_shim::{Answer, MAX_LINE, Request};

/// How long the whole conversation may take.
const DEADLINE: Duration = Duration::from_secs(2);

/// One question, one answer. `Err` tells why there is none.
pub(crate) fn ask(socket: &Path, request: &Request) -> Result<Answer, String> {
    ask_within(socket, request, DEADLINE)
}

fn ask_within(socket: &Path, request: &Request, deadline: Duration) -> Result<Answer, String> {
    let line = request.encode().map_err(|error| error.to_string())?;
    let socket = socket.to_path_buf();
    // Connecting to a Unix socket blocks while its queue is full, and has no deadline of its own. The thread ends with the process.
    let (sender, receiver) = mpsc::channel();
    let asking = thread::Builder::new().spawn(move || {
        let _ = sender.send(talk(&socket, &line));
    });
    asking.map_err(|error| format!("start a thread: {error}"))?;
    receiver
        .recv_timeout(deadline)
        .unwrap_or_else(|_| Err(format!("no answer within {} s", deadline.as_secs_f32())))
}

fn talk(socket: &Path, line: &[u8]) -> Result<Answer, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = UnixStream::connect(socket).map_err(text)?;
    stream.write_all(line).map_err(text)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(MAX_LINE as u64 + 1)).read_until(b'\n', &mut answer).map_err(text)?;
    if answer.is_empty() {
        return Err("it closed the connection".to_owned());
    }
    Answer::decode(&answer).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::net::UnixListener;

    use gantry_shim::Pod;

    use super::*;

    static ENDLESS: [u8; MAX_LINE + 2] = [b' '; MAX_LINE + 2];

    fn request() -> Request {
        let pod = Pod { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        Request::new(pod, "c".into(), vec!["slot-0".into()], BTreeMap::new())
    }

    /// An agent that answers with these bytes and then closes, or not.
    fn answered(bytes: &'static [u8], close: bool) -> Result<Answer, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let agent = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(Request::decode(line.as_bytes()).unwrap(), request());
            let _ = stream.write_all(bytes);
            (!close).then_some(stream)
        });
        let answer = ask_within(&path, &request(), Duration::from_millis(if close { 10_000 } else { 200 }));
        agent.join().unwrap();
        answer
    }

    #[test]
    fn an_answer_ends_with_its_line() {
        let devices = Answer::Devices(vec!["nvidia.com/gpu=0".into()]);
        assert_eq!(
            answered(b"{\"v\":1,\"cdiDevices\":[\"nvidia.com/gpu=0\"]}\n", false),
            Ok(devices.clone())
        );
        assert_eq!(answered(b"{\"v\":1,\"cdiDevices\":[\"nvidia.com/gpu=0\"]}", true), Ok(devices));
        assert_eq!(answered(b"{\"v\":1,\"refused\":\"no\"}\n", true), Ok(Answer::Refused("no".into())));
    }

    #[test]
    fn no_answer_is_told_by_its_cause() {
        assert_eq!(answered(b"", true).unwrap_err(), "it closed the connection");
        assert_eq!(answered(b"{\"v\":1,", false).unwrap_err(), "no answer within 0.2 s");
        assert!(answered(b"{\"v\":9}\n", true).unwrap_err().starts_with("version 9 is not known: "));
        assert_eq!(answered(&ENDLESS, true).unwrap_err(), "a message of more than 262144 bytes is refused");
        let folder = tempfile::tempdir().unwrap();
        let none = ask(&folder.path().join("s"), &request()).unwrap_err();
        assert_eq!(none, "No such file or directory (os error 2)");
    }
}
