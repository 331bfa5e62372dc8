//! Where messages go: to the machine's log or a file, and, where somebody must know, to the caller's.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use nix::libc::{O_CLOEXEC, O_NONBLOCK};
use serde_json::json;

use crate::args::CommandLine;
use crate::policy::{Level, LogTarget};

/// The machine's log.
const SYSLOG: &str = "/dev/log";

/// Messages of one run.
#[derive(Debug)]
pub(crate) struct Log<'a> {
    pub(crate) target: &'a LogTarget,
    pub(crate) level: Level,
    pub(crate) caller: &'a CommandLine,
}

impl Log<'_> {
    /// Writes a message. That one cannot be written stops nothing.
    pub(crate) fn write(&self, level: Level, text: &str) {
        // A line is a line, whatever a container's author put into its names.
        let text: String = text
            .chars()
            .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
            .collect();
        if level <= self.level {
            match self.target {
                LogTarget::Syslog => syslog(level, &text),
                LogTarget::File(path) => append(path, &line(level, &text)),
                LogTarget::None => {}
            }
        }
        // containerd takes its message from the last error in the file that it named.
        if level <= Level::Warning
            && let Some(path) = &self.caller.log
        {
            let line = if self.caller.log_is_json {
                format!("{}\n", json!({ "level": level.name(), "msg": text, "time": now() }))
            } else {
                line(level, &text)
            };
            append(path, &line);
        }
    }
}

fn line(level: Level, text: &str) -> String {
    let mut line = String::new();
    let _ = writeln!(line, "time={:?} level={} msg={text:?}", now(), level.name());
    line
}

#[expect(
    clippy::disallowed_methods,
    reason = "a message of a program that lives some milliseconds; nothing is decided by it"
)]
fn now() -> String {
    jiff::Timestamp::now().to_string()
}

fn append(path: &Path, line: &str) {
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(O_NONBLOCK | O_CLOEXEC)
        .open(path);
    if let Ok(mut file) = file {
        let _ = file.write_all(line.as_bytes());
    }
}

/// RFC 3164's form with the facility of daemons, as every reader of `/dev/log` takes it.
fn syslog(level: Level, text: &str) {
    let severity = match level {
        Level::Error => 3,
        Level::Warning => 4,
        Level::Info => 6,
        Level::Debug => 7,
    };
    let message = format!("<{}>gantry-runtime[{}]: {text}", 3 * 8 + severity, std::process::id());
    if let Ok(socket) = UnixDatagram::unbound()
        && socket.set_nonblocking(true).is_ok()
    {
        let _ = socket.send_to(message.as_bytes(), SYSLOG);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_and_errors_reach_the_caller() {
        let folder = tempfile::tempdir().unwrap();
        let (own, callers) = (folder.path().join("own"), folder.path().join("callers"));
        let target = LogTarget::File(own.clone());
        let mut caller =
            CommandLine { log: Some(callers.clone()), log_is_json: true, ..CommandLine::default() };
        let write = |caller: &CommandLine, level, text| {
            Log { target: &target, level: Level::Info, caller }.write(level, text);
        };
        write(&caller, Level::Error, "a \"b\"\nc\u{1b}[0m");
        write(&caller, Level::Info, "d");
        write(&caller, Level::Debug, "e");
        caller.log_is_json = false;
        write(&caller, Level::Warning, "f");
        let read = |path| std::fs::read_to_string(path).unwrap();
        let own = read(&own);
        let rest: Vec<&str> = own.lines().map(|line| line.split_once(" level").unwrap().1).collect();
        assert_eq!(
            rest,
            [r#"=error msg="a \"b\"\\nc\\u{1b}[0m""#, r#"=info msg="d""#, r#"=warning msg="f""#]
        );
        let callers = read(&callers);
        let (json, text) = callers.split_once('\n').unwrap();
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!((&json["level"], &json["msg"]), (&json!("error"), &json!("a \"b\"\\nc\\u{1b}[0m")));
        assert!(text.ends_with(" level=warning msg=\"f\"\n"), "{text}");
    }
}
