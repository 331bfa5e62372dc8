//! The programs that a simulated container can run, each in terms of [`ContainerView`] alone.
//!
//! A program is a row of [`PROGRAMS`]; adding one is adding a row. What is not in the table is not pretended:
//! as a container's command it runs as a [`workload`] which says so in its log, and for
//! `kubectl exec` it does not exist.

mod basic;
mod files;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod io;
mod shell;
mod smi;
mod text;
pub(crate) mod tty;
pub(crate) mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::runtime::ContainerView;
pub(crate) use io::{Sink, Stdin};

/// The one program that a container has only if the node agent mounted it.
pub(crate) const NVIDIA_SMI: &str = "nvidia-smi";

/// Exit code for a command that does not exist (POSIX shells, `kubectl exec`).
pub(crate) const NOT_FOUND: i32 = 127;

/// A running program: what `main` gets in a real one.
#[derive(Debug)]
pub(crate) struct Process {
    /// The command line; the first is the program.
    pub(crate) argv: Vec<String>,
    /// The environment.
    pub(crate) env: BTreeMap<String, String>,
    /// The working directory, absolute.
    pub(crate) cwd: String,
    /// The container.
    pub(crate) view: Arc<ContainerView>,
    /// Standard input.
    pub(crate) stdin: Stdin,
    /// Standard output.
    pub(crate) stdout: Sink,
    /// Standard error.
    pub(crate) stderr: Sink,
    /// Whether a terminal is attached, for prompts and column layouts.
    pub(crate) tty: bool,
}

impl Process {
    /// A program with the command line `argv` in this one's place: it takes over the streams, standard input included.
    pub(crate) fn successor(&mut self, argv: Vec<String>) -> Self {
        Self {
            argv,
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            view: self.view.clone(),
            stdin: std::mem::take(&mut self.stdin),
            stdout: self.stdout.clone(),
            stderr: self.stderr.clone(),
            tty: self.tty,
        }
    }

    /// The arguments after the program's name.
    pub(crate) fn args(&self) -> &[String] {
        self.argv.get(1..).unwrap_or_default()
    }

    /// Writes `PROGRAM: text` to standard error and gives `code` back.
    fn fail(&self, code: i32, text: impl AsRef<str>) -> i32 {
        self.stderr.line(format!(
            "{}: {}",
            base_name(self.argv.first().map_or("", String::as_str)),
            text.as_ref()
        ));
        code
    }
}

/// How a program runs: to its end at once, or with time passing.
#[derive(Clone, Copy)]
enum Body {
    Now(fn(&mut Process) -> i32),
    Later(for<'a> fn(&'a mut Process) -> BoxFuture<'a, i32>),
}

/// Every program, sorted by name.
const PROGRAMS: &[(&str, Body)] = &[
    ("[", Body::Now(basic::test)),
    ("bash", Body::Later(shell::main)),
    ("cat", Body::Later(files::cat)),
    ("date", Body::Now(basic::date)),
    ("echo", Body::Now(basic::echo)),
    ("env", Body::Later(basic::env)),
    ("false", Body::Now(|_| 1)),
    ("grep", Body::Later(text::grep)),
    ("head", Body::Later(text::head)),
    ("hostname", Body::Now(basic::hostname)),
    ("id", Body::Now(basic::id)),
    ("kill", Body::Now(basic::kill)),
    ("ls", Body::Now(files::ls)),
    (NVIDIA_SMI, Body::Later(smi::main)),
    ("printenv", Body::Now(basic::printenv)),
    ("ps", Body::Now(basic::ps)),
    ("pwd", Body::Now(basic::pwd)),
    ("sh", Body::Later(shell::main)),
    ("sleep", Body::Later(basic::sleep)),
    ("tail", Body::Later(text::tail)),
    ("test", Body::Now(basic::test)),
    ("true", Body::Now(|_| 0)),
    ("uname", Body::Now(basic::uname)),
    ("wc", Body::Later(text::wc)),
    ("which", Body::Now(basic::which)),
];

/// The names of all programs, sorted.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PROGRAMS.iter().map(|(name, _)| *name)
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn find(name: &str) -> Option<Body> {
    let name = base_name(name);
    PROGRAMS.iter().find(|(known, _)| *known == name).map(|(_, body)| *body)
}

/// Whether `argv` can run faithfully as a container's command: the program is in the table and, for a shell, so
/// is all that its script uses.
pub(crate) fn is_faithful(argv: &[String]) -> bool {
    let Some(program) = argv.first() else { return false };
    match base_name(program) {
        // A shell without a script waits for input that a container's first process does not get.
        "sh" | "bash" => shell::script(argv).is_some_and(shell::is_supported),
        name => find(name).is_some(),
    }
}

/// Whether the container has the program `name`.
pub(crate) fn exists(view: &ContainerView, name: &str) -> bool {
    find(name).is_some() && view.has_executable(name)
}

/// The error of an OCI runtime for a program that the container has not.
pub(crate) fn not_found_message(name: &str) -> String {
    format!("exec: {name:?}: executable file not found in $PATH: unknown")
}

/// Runs a program to its end and gives its exit code. Dropping the future kills it.
pub(crate) fn run(mut process: Process) -> BoxFuture<'static, i32> {
    Box::pin(async move {
        let name = process.argv.first().cloned().unwrap_or_default();
        match find(&name).filter(|_| process.view.has_executable(&name)) {
            Some(Body::Now(body)) => body(&mut process),
            Some(Body::Later(body)) => body(&mut process).await,
            None => {
                process.stderr.line(not_found_message(&name));
                NOT_FOUND
            }
        }
    })
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
