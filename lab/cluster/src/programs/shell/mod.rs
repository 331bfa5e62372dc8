//! A small shell: enough for the one-line scripts of container commands and `kubectl exec POD -- sh -c '…'`.
//!
//! It knows words, quotes, variables (`$A`, `${A}`, `${A:-default}`, `$?`), `$(command)`, file patterns, `;`, `&&`, `||`, `|`,
//! comments, redirects to `/dev/null` and `2>&1`, and the builtins `cd`, `export`, `set`, `exec`, `exit`, `command -v`.
//! Everything else — loops, conditionals, functions, arithmetic, background jobs, here-documents, writing files — is
//! refused by name, never half-run: a script is parsed wholly before its first command starts.

mod parse;
mod run;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::Process;
use run::Shell;

/// What POSIX shells exit with after a script that they cannot parse.
const SYNTAX_ERROR: i32 = 2;

/// The script in `sh [-flags]c SCRIPT`.
pub(super) fn script(argv: &[String]) -> Option<&str> {
    let at = argv.iter().position(|arg| {
        arg.len() > 1 && arg.starts_with('-') && !arg.starts_with("--") && arg.ends_with('c')
    })?;
    argv.get(at + 1).map(String::as_str)
}

/// Whether every construct and every program of a script is simulated.
pub(super) fn is_supported(script: &str) -> bool {
    parse::parse(script).is_ok_and(|list| list.programs().all(|name| name.is_some_and(run::is_known)))
}

/// The programs that a script would start; `None` for one that is known only at run time.
#[cfg(feature = "fuzzing")]
pub(super) fn programs(script: &str) -> Result<Vec<Option<String>>, String> {
    let list = parse::parse(script).map_err(|error| error.to_string())?;
    Ok(list.programs().map(|name| name.map(str::to_owned)).collect())
}

/// `sh -c SCRIPT`, or a read-eval loop over standard input.
pub(super) fn main(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        if let Some(script) = script(&process.argv).map(str::to_owned) {
            let mut shell = Shell::new(process);
            return shell.script(&script).await;
        }
        if let Some(file) = process.args().iter().find(|arg| !arg.starts_with('-')).cloned() {
            let content = match super::files::read(&process.view, &process.cwd, &file) {
                Ok(content) => String::from_utf8_lossy(content).into_owned(),
                Err(reason) => return process.fail(super::NOT_FOUND, format!("{file}: {reason}")),
            };
            return Shell::new(process).script(&content).await;
        }
        interactive(process).await
    }
    .boxed()
}

async fn interactive(process: &mut Process) -> i32 {
    let tty = process.tty;
    let mut stdin = std::mem::take(&mut process.stdin);
    let mut shell = Shell::new(process);
    loop {
        if tty {
            shell.prompt();
        }
        let Some(line) = stdin.line().await else { break };
        shell.script(line.trim()).await;
        if let Some(code) = shell.exited() {
            return code;
        }
    }
    shell.status()
}
