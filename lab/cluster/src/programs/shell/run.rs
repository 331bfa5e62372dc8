//! Running a command list.

use std::collections::BTreeMap;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::parse::{Command, List, Piece, Redirect, When, Word, parse};
use crate::programs::{Process, Sink, Stdin, files};
use crate::runtime::{File, normalize};

/// Commands that change the shell itself.
const BUILTINS: &[&str] = &[":", "cd", "command", "exec", "exit", "export", "set", "unset"];

/// Whether a shell can run a command of this name.
pub(super) fn is_known(name: &str) -> bool {
    BUILTINS.contains(&name) || crate::programs::find(name).is_some()
}

/// A shell's state between commands.
pub(super) struct Shell {
    process: Process,
    status: i32,
    exited: bool,
    /// Ends the script at the first failure (`set -e`).
    stop_on_failure: bool,
}

impl Shell {
    /// A shell that takes over the streams of `process`.
    pub(super) fn new(process: &mut Process) -> Self {
        let argv = process.argv.clone();
        let process = process.successor(argv);
        Self { process, status: 0, exited: false, stop_on_failure: false }
    }

    pub(super) fn status(&self) -> i32 {
        self.status
    }

    /// The exit code, once `exit` ran.
    pub(super) fn exited(&self) -> Option<i32> {
        self.exited.then_some(self.status)
    }

    pub(super) fn prompt(&self) {
        let Process { view, cwd, stdout, .. } = &self.process;
        stdout.write(format!("root@{}:{cwd}# ", view.hostname()));
    }

    /// Runs a script and gives its exit code.
    pub(super) async fn script(&mut self, script: &str) -> i32 {
        match parse(script) {
            Ok(list) => {
                let (stdout, stderr) = (self.process.stdout.clone(), self.process.stderr.clone());
                self.list(&list, &stdout, &stderr).await;
            }
            Err(error) => self.status = self.process.fail(super::SYNTAX_ERROR, error.to_string()),
        }
        self.status
    }

    fn list<'a>(&'a mut self, list: &'a List, stdout: &'a Sink, stderr: &'a Sink) -> BoxFuture<'a, ()> {
        async move {
            for (number, (when, pipeline)) in list.0.iter().enumerate() {
                let run = match when {
                    When::Always => true,
                    When::AfterSuccess => self.status == 0,
                    When::AfterFailure => self.status != 0,
                };
                if !run {
                    continue;
                }
                self.pipeline(pipeline, stdout, stderr).await;
                let tested = list.0.get(number + 1).is_some_and(|(next, _)| *next != When::Always);
                if self.stop_on_failure && self.status != 0 && !tested {
                    self.exited = true;
                }
                if self.exited {
                    return;
                }
            }
        }
        .boxed()
    }

    async fn pipeline(&mut self, pipeline: &[Command], stdout: &Sink, stderr: &Sink) {
        let [first @ .., last] = pipeline else { return };
        if first.is_empty() {
            let stdin = std::mem::take(&mut self.process.stdin);
            self.command(last, stdin, stdout, stderr).await;
            return;
        }
        // All stages run at once. A stage whose reader ended is stopped, as SIGPIPE would.
        let mut stdin = std::mem::take(&mut self.process.stdin);
        let mut writers: BoxFuture<'static, ()> = std::future::ready(()).boxed();
        for command in first {
            let (sink, reader) = Sink::pipe();
            let mut stage = self.fork(std::mem::replace(&mut stdin, reader));
            let (command, stderr, before) = (command.clone(), stderr.clone(), writers);
            writers = async move {
                let run = async {
                    let stdin = std::mem::take(&mut stage.process.stdin);
                    stage.command(&command, stdin, &sink, &stderr).await;
                };
                alongside(run, before).await;
                drop(sink);
            }
            .boxed();
        }
        let run = self.command(last, stdin, stdout, stderr);
        alongside(run, writers).await;
    }

    fn fork(&self, stdin: Stdin) -> Self {
        let Process { argv, env, cwd, view, stdout, stderr, tty, .. } = &self.process;
        Self {
            process: Process {
                argv: argv.clone(),
                env: env.clone(),
                cwd: cwd.clone(),
                view: view.clone(),
                stdin,
                stdout: stdout.clone(),
                stderr: stderr.clone(),
                tty: *tty,
            },
            status: self.status,
            exited: false,
            stop_on_failure: self.stop_on_failure,
        }
    }

    async fn command(&mut self, command: &Command, stdin: Stdin, stdout: &Sink, stderr: &Sink) {
        let (mut out, mut error) = (stdout.clone(), stderr.clone());
        for redirect in &command.redirects {
            match redirect {
                Redirect::StdoutNull => out = Sink::null(),
                Redirect::StderrNull => error = Sink::null(),
                Redirect::StderrToStdout => error = out.clone(),
                Redirect::StdoutToStderr => out = error.clone(),
            }
        }
        let mut assigned = BTreeMap::new();
        for (name, word) in &command.assignments {
            let value = self.expand(word, &error).await.join(" ");
            assigned.insert(name.clone(), value);
        }
        let mut argv = Vec::new();
        for word in &command.words {
            argv.extend(self.expand(word, &error).await);
        }
        if argv.is_empty() {
            if !command.words.is_empty() || command.assignments.is_empty() {
                self.status = 0;
            }
            // A plain assignment keeps the status of its command substitution.
            self.process.env.extend(assigned);
            return;
        }
        if BUILTINS.contains(&argv[0].as_str()) && !(argv[0] == "exec" && argv.len() > 1) {
            self.process.env.extend(assigned);
            self.status = self.builtin(&argv, &out, &error);
            return;
        }
        let exec = argv[0] == "exec";
        if exec {
            argv.remove(0);
        }
        let Process { env, cwd, view, tty, .. } = &self.process;
        let mut env = env.clone();
        env.extend(assigned);
        if !crate::programs::exists(view, &argv[0]) {
            error.line(format!("{}: {}: not found", self.process.argv[0], argv[0]));
            self.status = crate::programs::NOT_FOUND;
            return;
        }
        self.status = crate::programs::run(Process {
            argv,
            env,
            cwd: cwd.clone(),
            view: view.clone(),
            stdin,
            stdout: out,
            stderr: error,
            tty: *tty,
        })
        .await;
        self.exited |= exec;
    }

    fn builtin(&mut self, argv: &[String], out: &Sink, error: &Sink) -> i32 {
        let args = &argv[1..];
        match argv[0].as_str() {
            "cd" => {
                let home = self.process.env.get("HOME").map_or("/root", String::as_str);
                let target = args.first().map_or(home, String::as_str);
                let path = normalize(&self.process.cwd, target);
                if self.process.view.file(&path) != Some(&File::Directory) {
                    error.line(format!("cd: {target}: No such file or directory"));
                    return 1;
                }
                self.process.cwd = path;
                0
            }
            "export" => {
                for arg in args {
                    if let Some((name, value)) = arg.split_once('=') {
                        self.process.env.insert(name.to_owned(), value.to_owned());
                    }
                }
                0
            }
            "unset" => {
                for arg in args {
                    self.process.env.remove(arg);
                }
                0
            }
            "set" => {
                for arg in args {
                    match arg.as_bytes() {
                        [b'-', letters @ ..] if letters.contains(&b'e') => self.stop_on_failure = true,
                        [b'+', letters @ ..] if letters.contains(&b'e') => self.stop_on_failure = false,
                        _ => {}
                    }
                }
                0
            }
            "exit" => {
                self.exited = true;
                args.first().map_or(self.status, |code| code.parse::<u8>().map_or(2, i32::from))
            }
            "command" => match args {
                [flag, name] if flag == "-v" => {
                    if BUILTINS.contains(&name.as_str()) {
                        out.line(name);
                        0
                    } else if crate::programs::exists(&self.process.view, name) {
                        out.line(format!("/usr/bin/{name}"));
                        0
                    } else {
                        crate::programs::NOT_FOUND
                    }
                }
                _ => {
                    error.line("command: only 'command -v NAME' is simulated");
                    2
                }
            },
            _ => 0,
        }
    }

    /// Expands a word into fields.
    async fn expand(&mut self, word: &Word, stderr: &Sink) -> Vec<String> {
        let mut fields: Vec<String> = Vec::new();
        let mut current: Option<String> = None;
        let mut pattern = false;
        for piece in word {
            let (text, quoted) = match piece {
                Piece::Text { text, quoted } => {
                    pattern |= !quoted && text.contains(['*', '?', '[']);
                    current.get_or_insert_default().push_str(text);
                    continue;
                }
                Piece::Variable { name, default, quoted } => {
                    (self.variable(name, default.as_deref()), *quoted)
                }
                Piece::Output { list, quoted } => {
                    let (sink, memory) = Sink::memory();
                    let mut inner = self.fork(Stdin::empty());
                    inner.list(list, &sink, stderr).await;
                    self.status = inner.status;
                    (memory.text().trim_end_matches('\n').to_owned(), *quoted)
                }
            };
            if quoted {
                current.get_or_insert_default().push_str(&text);
                continue;
            }
            // Unquoted results are split at white space.
            let starts_with_space = text.starts_with(char::is_whitespace);
            let ends_with_space = text.ends_with(char::is_whitespace);
            for (number, part) in text.split_whitespace().enumerate() {
                if (number > 0 || starts_with_space) && current.is_some() {
                    fields.extend(current.take());
                }
                current.get_or_insert_default().push_str(part);
            }
            if ends_with_space {
                fields.extend(current.take());
            }
        }
        fields.extend(current);
        if pattern && fields.len() == 1 {
            let matches = files::glob(&self.process.view, &self.process.cwd, &fields[0]);
            if !matches.is_empty() {
                return matches;
            }
        }
        fields
    }

    fn variable(&self, name: &str, default: Option<&str>) -> String {
        let value = match name {
            "?" => Some(self.status.to_string()),
            "$" => Some("1".to_owned()),
            "0" => Some(self.process.argv[0].clone()),
            "#" => Some("0".to_owned()),
            "PWD" => Some(self.process.cwd.clone()),
            name => self.process.env.get(name).cloned(),
        };
        match default {
            Some(default) => value.filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned()),
            None => value.unwrap_or_default(),
        }
    }
}

/// Runs `main` to its end with `side` making progress meanwhile; what is left of `side` then is dropped.
async fn alongside(main: impl Future<Output = ()>, side: impl Future<Output = ()>) {
    let side = side.fuse();
    futures::pin_mut!(main, side);
    loop {
        futures::select_biased! {
            () = side => {}
            () = (&mut main).fuse() => return,
            complete => return,
        }
    }
}
