//! `ls` and `cat`.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::tz::TimeZone;

use super::Process;
use crate::runtime::{ContainerView, File, normalize};

#[derive(Debug, Default, Clone, Copy)]
struct Flags {
    long: bool,
    all: bool,
    directory: bool,
    one_per_line: bool,
}

pub(super) fn ls(process: &mut Process) -> i32 {
    let mut flags = Flags::default();
    let mut operands = Vec::new();
    for arg in process.args() {
        match arg.strip_prefix('-') {
            Some(letters) if !letters.is_empty() && !letters.starts_with('-') => {
                for letter in letters.chars() {
                    match letter {
                        'l' => flags.long = true,
                        'a' | 'A' => flags.all = true,
                        'd' => flags.directory = true,
                        '1' => flags.one_per_line = true,
                        // Order, colour, size units: nothing here depends on them.
                        'h' | 'r' | 't' | 'n' | 'F' | 'R' | 'S' => {}
                        other => return process.fail(2, format!("invalid option -- '{other}'")),
                    }
                }
            }
            _ => operands.push(arg.clone()),
        }
    }
    if operands.is_empty() {
        operands.push(process.cwd.clone());
    }
    // `kubectl exec POD -- ls /dev/nvidia*` reaches the container with the star in it: no shell runs there, and the
    // shell before kubectl expands nothing on a machine without GPUs. A real `ls` then fails; since this very line
    // is in every guide to GPU debugging, the simulated one does what its author meant.
    let operands: Vec<String> = operands
        .into_iter()
        .flat_map(|operand| match glob(&process.view, &process.cwd, &operand) {
            matches if matches.is_empty() => vec![operand],
            matches => matches,
        })
        .collect();

    let mut code = 0;
    let mut plain = Vec::new();
    let mut directories = Vec::new();
    for operand in operands {
        match process.view.file(&normalize(&process.cwd, &operand)) {
            Some(File::Directory) if !flags.directory => directories.push(operand),
            Some(_) => plain.push(operand),
            None => {
                code = process.fail(2, format!("cannot access '{operand}': No such file or directory"));
            }
        }
    }
    show(process, flags, "", &plain);
    let several = directories.len() + plain.len() > 1;
    for (number, directory) in directories.iter().enumerate() {
        if several {
            let gap = if number > 0 || !plain.is_empty() { "\n" } else { "" };
            process.stdout.line(format!("{gap}{directory}:"));
        }
        let path = normalize(&process.cwd, directory);
        let names: Vec<String> = process
            .view
            .list(&path)
            .unwrap_or_default()
            .into_iter()
            .filter(|name| flags.all || !name.starts_with('.'))
            .map(str::to_owned)
            .collect();
        if flags.long {
            process.stdout.line("total 0");
        }
        show(process, flags, &path, &names);
    }
    code
}

/// One line a file in long form, and also otherwise unless a terminal is there: what `ls` does when its output is
/// not a terminal.
fn show(process: &Process, flags: Flags, directory: &str, names: &[String]) {
    if names.is_empty() {
        return;
    }
    if !flags.long {
        let separator = if process.tty && !flags.one_per_line { "  " } else { "\n" };
        process.stdout.line(names.join(separator));
        return;
    }
    let time = jiff::fmt::strtime::format("%b %e %H:%M", &process.view.created().to_zoned(TimeZone::UTC))
        .unwrap_or_default();
    for name in names {
        let path = normalize(
            &process.cwd,
            &if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") },
        );
        let Some(file) = process.view.file(&path) else { continue };
        let (mode, size, suffix) = match file {
            File::Directory => ("drwxr-xr-x", "4096".to_owned(), String::new()),
            File::Regular(content) => ("-rw-r--r--", content.len().to_string(), String::new()),
            File::Opaque => ("-rwxr-xr-x", "0".to_owned(), String::new()),
            File::Device { major, minor } => ("crw-rw-rw-", format!("{major}, {minor:>3}"), String::new()),
            File::Link(target) => ("lrwxrwxrwx", target.len().to_string(), format!(" -> {target}")),
        };
        process.stdout.line(format!("{mode} 1 root root {size:>8} {time} {name}{suffix}"));
    }
}

pub(super) fn cat(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        let mut operands: Vec<String> = process.args().iter().filter(|arg| *arg != "-u").cloned().collect();
        if operands.is_empty() {
            operands.push("-".to_owned());
        }
        let mut code = 0;
        for operand in operands {
            if operand == "-" {
                while let Some(chunk) = process.stdin.chunk().await {
                    process.stdout.write(chunk);
                }
                continue;
            }
            match read(&process.view, &process.cwd, &operand) {
                Ok(content) => process.stdout.write(content),
                Err(reason) => code = process.fail(1, format!("{operand}: {reason}")),
            }
        }
        code
    }
    .boxed()
}

/// The content of a file, or why there is none, as `strerror` says it.
pub(super) fn read<'a>(view: &'a ContainerView, cwd: &str, path: &str) -> Result<&'a [u8], &'static str> {
    let mut path = normalize(cwd, path);
    // The kernel's limit on links followed in one look-up.
    for _ in 0..40 {
        match view.file(&path) {
            Some(File::Regular(content)) => return Ok(content),
            Some(File::Link(target)) => {
                let parent = path.rsplit_once('/').map_or("/", |(parent, _)| parent);
                path = normalize(parent, target);
            }
            Some(File::Directory) => return Err("Is a directory"),
            Some(File::Device { major: 1, minor: 3 }) => return Ok(&[]),
            Some(File::Device { .. }) => return Err("Operation not permitted"),
            Some(File::Opaque) => return Err("the content of this file is not simulated"),
            None => return Err("No such file or directory"),
        }
    }
    Err("Too many levels of symbolic links")
}

/// The paths that a pattern with `*`, `?` or `[…]` matches, sorted, in the form (absolute or relative) of the pattern;
/// none for a text without these.
pub(super) fn glob(view: &ContainerView, cwd: &str, pattern: &str) -> Vec<String> {
    if !pattern.contains(['*', '?', '[']) {
        return Vec::new();
    }
    let absolute = normalize(cwd, pattern);
    let wanted: Vec<Vec<char>> = absolute.split('/').skip(1).map(|part| part.chars().collect()).collect();
    let prefix = if cwd == "/" { "/".to_owned() } else { format!("{cwd}/") };
    view.paths()
        .filter(|path| {
            let parts: Vec<&str> = path.split('/').skip(1).collect();
            parts.len() == wanted.len()
                && parts.iter().zip(&wanted).all(|(part, pattern)| {
                    // A leading dot is matched by a dot only.
                    (!part.starts_with('.') || pattern.first() == Some(&'.'))
                        && matches(pattern, &part.chars().collect::<Vec<_>>())
                })
        })
        .map(|path| if pattern.starts_with('/') { path } else { path.strip_prefix(&prefix).unwrap_or(path) })
        .map(str::to_owned)
        .collect()
}

/// Whether a text matches a pattern wholly.
fn matches(pattern: &[char], text: &[char]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some(('*', rest)) => (0..=text.len()).any(|skip| matches(rest, &text[skip..])),
        Some(('?', rest)) => !text.is_empty() && matches(rest, &text[1..]),
        Some(('[', rest)) => {
            let Some(end) = rest.iter().position(|c| *c == ']').filter(|end| *end > 0) else {
                return text.first() == Some(&'[') && matches(rest, &text[1..]);
            };
            let Some((first, remaining)) = text.split_first() else { return false };
            let (negate, set) =
                if matches!(rest[0], '!' | '^') { (true, &rest[1..end]) } else { (false, &rest[..end]) };
            let mut found = false;
            let mut at = 0;
            while at < set.len() {
                if at + 2 < set.len() && set[at + 1] == '-' {
                    found |= (set[at]..=set[at + 2]).contains(first);
                    at += 3;
                } else {
                    found |= set[at] == *first;
                    at += 1;
                }
            }
            found != negate && matches(&rest[end + 1..], remaining)
        }
        Some((c, rest)) => text.first() == Some(c) && matches(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_a_shell_does() {
        for (pattern, text, expected) in [
            ("nvidia*", "nvidia0", true),
            ("nvidia*", "nvidia", true),
            ("nvidia?", "nvidia", false),
            ("nvidia[0-3]", "nvidia2", true),
            ("nvidia[!0-3]", "nvidia2", false),
            ("nvidia[0-9]*", "nvidia12", true),
            ("[", "[", true),
            ("*a*b*", "xxaxxbxx", true),
        ] {
            let (pattern_chars, text_chars): (Vec<char>, Vec<char>) =
                (pattern.chars().collect(), text.chars().collect());
            assert_eq!(matches(&pattern_chars, &text_chars), expected, "{pattern} {text}");
        }
    }
}
