//! Small programs: environment, time, identity.

use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::tz::TimeZone;

use super::Process;
use crate::runtime::{File, normalize};

pub(super) fn echo(process: &mut Process) -> i32 {
    let mut args = process.args();
    let mut newline = true;
    let mut escapes = false;
    while let Some(flag) = args.first() {
        match flag.as_str() {
            "-n" => newline = false,
            "-e" => escapes = true,
            "-E" => escapes = false,
            _ => break,
        }
        args = &args[1..];
    }
    let mut text = args.join(" ");
    if escapes {
        text = text.replace("\\n", "\n").replace("\\t", "\t");
    }
    if newline {
        text.push('\n');
    }
    process.stdout.write(text);
    0
}

/// `env` lists; `env [NAME=VALUE …] PROGRAM` runs a program.
pub(super) fn env(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        let args = process.args().to_vec();
        let split = args.iter().position(|arg| !arg.contains('=')).unwrap_or(args.len());
        for pair in &args[..split] {
            if let Some((name, value)) = pair.split_once('=') {
                process.env.insert(name.to_owned(), value.to_owned());
            }
        }
        if split == args.len() {
            for (name, value) in &process.env {
                process.stdout.line(format!("{name}={value}"));
            }
            return 0;
        }
        let argv = args[split..].to_vec();
        super::run(process.successor(argv)).await
    }
    .boxed()
}

pub(super) fn printenv(process: &mut Process) -> i32 {
    if process.args().is_empty() {
        for (name, value) in &process.env {
            process.stdout.line(format!("{name}={value}"));
        }
        return 0;
    }
    let mut code = 0;
    for name in process.args() {
        match process.env.get(name) {
            Some(value) => process.stdout.line(value),
            None => code = 1,
        }
    }
    code
}

/// `sleep 5`, `sleep 1.5m`, `sleep infinity`; several are added up, as GNU's does.
pub(super) fn sleep(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        if process.args().is_empty() {
            return process.fail(1, "missing operand");
        }
        let mut total = Duration::ZERO;
        for arg in process.args() {
            match duration(arg) {
                Some(Some(duration)) => total = total.saturating_add(duration),
                Some(None) => return std::future::pending().await,
                None => return process.fail(1, format!("invalid time interval '{arg}'")),
            }
        }
        tokio::time::sleep(total).await;
        0
    }
    .boxed()
}

/// The outer `None` is a text that is no duration, the inner one for ever.
#[expect(clippy::option_option, reason = "for ever is a duration that Duration cannot hold")]
fn duration(text: &str) -> Option<Option<Duration>> {
    if matches!(text, "infinity" | "inf") {
        return Some(None);
    }
    let (number, factor) = match text.as_bytes().last()? {
        b's' => (&text[..text.len() - 1], 1.0),
        b'm' => (&text[..text.len() - 1], 60.0),
        b'h' => (&text[..text.len() - 1], 3_600.0),
        b'd' => (&text[..text.len() - 1], 86_400.0),
        _ => (text, 1.0),
    };
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    let seconds: f64 = number.parse().ok()?;
    // More than tokio's timers hold is for ever.
    Some(Duration::try_from_secs_f64(seconds * factor).ok().filter(|d| d.as_secs() < 3_000_000_000))
}

pub(super) fn date(process: &mut Process) -> i32 {
    let now = process.view.now().to_zoned(TimeZone::UTC);
    let format =
        process.args().iter().find_map(|arg| arg.strip_prefix('+')).unwrap_or("%a %b %e %H:%M:%S UTC %Y");
    match jiff::fmt::strtime::format(format, &now) {
        Ok(text) => {
            process.stdout.line(text);
            0
        }
        Err(_) => process.fail(1, format!("invalid format '+{format}'")),
    }
}

pub(super) fn hostname(process: &mut Process) -> i32 {
    process.stdout.line(process.view.hostname());
    0
}

pub(super) fn pwd(process: &mut Process) -> i32 {
    process.stdout.line(&process.cwd);
    0
}

pub(super) fn uname(process: &mut Process) -> i32 {
    let text = if process.args().iter().any(|arg| arg == "-a") {
        format!("Linux {} 6.1.0-gantry #1 SMP x86_64 GNU/Linux", process.view.hostname())
    } else {
        "Linux".to_owned()
    };
    process.stdout.line(text);
    0
}

pub(super) fn id(process: &mut Process) -> i32 {
    let (user, group) = process.view.user();
    let text = match process.args().first().map(String::as_str) {
        Some("-u") => user.to_string(),
        Some("-g") => group.to_string(),
        _ if user == 0 => "uid=0(root) gid=0(root) groups=0(root)".to_owned(),
        _ => format!("uid={user} gid={group} groups={group}"),
    };
    process.stdout.line(text);
    0
}

/// The container's first process and `ps` itself: a process namespace holds no others.
pub(super) fn ps(process: &mut Process) -> i32 {
    let started = process.view.created().to_zoned(TimeZone::UTC);
    let command = process.view.args().join(" ");
    let own = process.argv.join(" ");
    if process.args().is_empty() {
        process.stdout.line("  PID TTY          TIME CMD");
        for (number, command) in [(1, command), (7, own)] {
            let name = super::base_name(command.split(' ').next().unwrap_or_default());
            process.stdout.line(format!("{number:>5} ?        00:00:00 {name}"));
        }
    } else {
        process.stdout.line("USER       PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND");
        for (number, state, command) in [(1, "Ss", command), (7, "R+", own)] {
            process.stdout.line(format!(
                "root     {number:>5}  0.0  0.0   4348  3440 ?        {state:<4} {:02}:{:02}   0:00 {command}",
                started.hour(),
                started.minute()
            ));
        }
    }
    0
}

/// Signals have nobody to reach but the first process, which ignores them as a process 1 without handlers does.
pub(super) fn kill(process: &mut Process) -> i32 {
    let mut code = 0;
    for arg in process.args().iter().filter(|arg| !arg.starts_with('-')) {
        match arg.parse::<u32>() {
            Ok(1) => {}
            Ok(_) => code = process.fail(1, format!("({arg}) - No such process")),
            Err(_) => code = process.fail(1, format!("failed to parse argument: '{arg}'")),
        }
    }
    code
}

pub(super) fn which(process: &mut Process) -> i32 {
    let mut code = 0;
    for name in process.args() {
        let found = ["/usr/bin", "/bin"]
            .iter()
            .map(|directory| format!("{directory}/{name}"))
            .find(|path| process.view.file(path).is_some());
        match found {
            Some(path) => process.stdout.line(path),
            None => code = 1,
        }
    }
    code
}

/// `test` and `[`: the file and string checks that entry-point scripts use.
pub(super) fn test(process: &mut Process) -> i32 {
    let mut args: Vec<&str> = process.args().iter().map(String::as_str).collect();
    if process.argv[0] == "[" && args.pop() != Some("]") {
        return process.fail(2, "missing ']'");
    }
    let negate = args.first() == Some(&"!");
    if negate {
        args.remove(0);
    }
    let file = |path: &str| process.view.file(&normalize(&process.cwd, path));
    let result = match args.as_slice() {
        [] => false,
        [text] => !text.is_empty(),
        ["-n", text] => !text.is_empty(),
        ["-z", text] => text.is_empty(),
        ["-e" | "-r" | "-w", path] => file(path).is_some(),
        ["-f", path] => matches!(file(path), Some(File::Regular(_) | File::Opaque)),
        ["-x", path] => file(path).is_some_and(|file| *file == File::Opaque || *file == File::Directory),
        ["-d", path] => matches!(file(path), Some(File::Directory)),
        ["-c", path] => matches!(file(path), Some(File::Device { .. })),
        [a, "=" | "==", b] => a == b,
        [a, "!=", b] => a != b,
        [a, operator, b] if operator.starts_with('-') => {
            let (Ok(a), Ok(b)) = (a.parse::<i64>(), b.parse::<i64>()) else {
                return process.fail(2, "integer expression expected");
            };
            match *operator {
                "-eq" => a == b,
                "-ne" => a != b,
                "-lt" => a < b,
                "-le" => a <= b,
                "-gt" => a > b,
                "-ge" => a >= b,
                operator => return process.fail(2, format!("{operator}: this operator is not simulated")),
            }
        }
        _ => return process.fail(2, "this expression is not simulated"),
    };
    i32::from(result == negate)
}
