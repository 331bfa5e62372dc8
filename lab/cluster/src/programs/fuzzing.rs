//! Command lines, with the properties that they keep, for the targets in `fuzz/`.

use futures::FutureExt as _;

use super::fixture::{container, exec};
use super::{NVIDIA_SMI, shell, smi};

/// Programs that end by themselves and start no others; not `tail`, which may follow a file.
const QUICK: &[&str] = &[
    "[", ":", "cat", "cd", "echo", "exit", "export", "false", "grep", "head", "ls", "printenv", "pwd",
    "test", "true", "wc",
];
/// A variable that is doubled in every command needs memory that doubles as well.
const LONGEST_RUN: usize = 200;

/// A script is refused with words, or it can be run to its end.
pub fn shell_script(data: &[u8]) {
    let script = String::from_utf8_lossy(data);
    match shell::programs(&script) {
        Ok(programs) => {
            let quick = |name: &Option<String>| name.as_deref().is_some_and(|name| QUICK.contains(&name));
            if script.len() <= LONGEST_RUN && programs.iter().all(quick) {
                ended(&["sh", "-c", &script]);
            }
        }
        Err(error) => assert!(!error.is_empty()),
    }
}

/// Arguments, one on each line, get an answer and one of the tool's exit codes.
pub fn nvidia_smi(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let arguments: Vec<String> = text.lines().map(str::to_owned).collect();
    if smi::is_loop(&arguments) {
        return;
    }
    let argv: Vec<&str> = std::iter::once(NVIDIA_SMI).chain(text.lines()).collect();
    let (code, out) = ended(&argv);
    // Without rows and header, a table is empty.
    assert!([0, 2, 6, 15].contains(&code) && (code == 0 || !out.is_empty()), "{code} {out}");
}

/// Runs a program that does not wait for anything: exit code and standard output.
fn ended(argv: &[&str]) -> (i32, String) {
    let view = container(&[0, 3], true);
    let (code, out, _) = exec(&view, argv).now_or_never().expect("nothing waits");
    (code, out)
}
