//! Filters for pipelines: `head`, `tail`, `grep`, `wc`.

use std::collections::VecDeque;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::Process;
use super::files::read;

/// Where a filter's lines come from: the files named, or standard input.
enum Source {
    Files(VecDeque<String>),
    Stdin,
}

impl Source {
    fn open(process: &Process, operands: &[String]) -> Result<Self, i32> {
        if operands.is_empty() || operands == ["-"] {
            return Ok(Self::Stdin);
        }
        let mut lines = VecDeque::new();
        for operand in operands {
            let content = read(&process.view, &process.cwd, operand).map_err(|reason| {
                process.fail(1, format!("cannot open '{operand}' for reading: {reason}"))
            })?;
            lines.extend(String::from_utf8_lossy(content).lines().map(str::to_owned));
        }
        Ok(Self::Files(lines))
    }

    async fn next(&mut self, process: &mut Process) -> Option<String> {
        match self {
            Self::Files(lines) => lines.pop_front(),
            Self::Stdin => process.stdin.line().await,
        }
    }
}

/// Splits `-n N`, `-nN` and `-N` from the operands; ten lines if none is given.
fn line_count(process: &Process, args: &[String]) -> Result<(usize, Vec<String>), i32> {
    let mut count = 10;
    let mut operands = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let number = match arg.strip_prefix('-') {
            Some("n") => Some(args.next().map_or("", String::as_str)),
            Some(rest) if !rest.is_empty() => Some(rest.strip_prefix('n').unwrap_or(rest)),
            _ => None,
        };
        match number {
            Some(number) => {
                count = number
                    .parse()
                    .map_err(|_| process.fail(1, format!("invalid number of lines: '{number}'")))?;
            }
            None => operands.push(arg.clone()),
        }
    }
    Ok((count, operands))
}

pub(super) fn head(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        let (count, operands) = match line_count(process, process.args()) {
            Ok(parsed) => parsed,
            Err(code) => return code,
        };
        let mut source = match Source::open(process, &operands) {
            Ok(source) => source,
            Err(code) => return code,
        };
        for _ in 0..count {
            let Some(line) = source.next(process).await else { break };
            process.stdout.line(line);
        }
        0
    }
    .boxed()
}

pub(super) fn tail(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        let (follow, args): (Vec<String>, Vec<String>) =
            process.args().iter().cloned().partition(|arg| matches!(arg.as_str(), "-f" | "-F"));
        let (count, operands) = match line_count(process, &args) {
            Ok(parsed) => parsed,
            Err(code) => return code,
        };
        let mut source = match Source::open(process, &operands) {
            Ok(source) => source,
            Err(code) => return code,
        };
        let mut last = VecDeque::new();
        while let Some(line) = source.next(process).await {
            last.push_back(line);
            if last.len() > count {
                last.pop_front();
            }
        }
        for line in last {
            process.stdout.line(line);
        }
        // Nothing in a simulated container writes to a file, so following one is waiting. Entry points end with
        // `tail -f /dev/null` for just that. A pipe that has ended is not followed (POSIX).
        if !follow.is_empty() && matches!(source, Source::Files(_)) {
            return std::future::pending().await;
        }
        0
    }
    .boxed()
}

/// Fixed strings and the `^` and `$` anchors; no other regular expression.
pub(super) fn grep(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        let (mut ignore_case, mut invert, mut count, mut quiet) = (false, false, false, false);
        let mut operands = Vec::new();
        for arg in process.args() {
            match arg.strip_prefix('-') {
                Some(letters) if !letters.is_empty() && operands.is_empty() => {
                    for letter in letters.chars() {
                        match letter {
                            'i' => ignore_case = true,
                            'v' => invert = true,
                            'c' => count = true,
                            'q' => quiet = true,
                            'E' | 'F' | 'e' | 'w' => {}
                            other => return process.fail(2, format!("option -{other} is not simulated")),
                        }
                    }
                }
                _ => operands.push(arg.clone()),
            }
        }
        if operands.is_empty() {
            return process.fail(2, "no pattern given");
        }
        let pattern = operands.remove(0);
        let Ok(mut source) = Source::open(process, &operands) else { return 2 };
        let fold = |text: &str| if ignore_case { text.to_lowercase() } else { text.to_owned() };
        // Alternatives (`a\|b` or `-E 'a|b'`) are the one operator that is both common and cheap.
        let alternatives: Vec<String> =
            fold(&pattern).replace("\\|", "|").split('|').map(str::to_owned).collect();
        let hit = |line: &str| alternatives.iter().any(|pattern| matches_anchored(pattern, line));
        let mut found = 0_u64;
        while let Some(line) = source.next(process).await {
            if hit(&fold(&line)) != invert {
                found += 1;
                if !count && !quiet {
                    process.stdout.line(line);
                }
            }
        }
        if count {
            process.stdout.line(found.to_string());
        }
        i32::from(found == 0)
    }
    .boxed()
}

fn matches_anchored(pattern: &str, line: &str) -> bool {
    let (start, pattern) = pattern.strip_prefix('^').map_or((false, pattern), |rest| (true, rest));
    let (end, pattern) = pattern.strip_suffix('$').map_or((false, pattern), |rest| (true, rest));
    match (start, end) {
        (true, true) => line == pattern,
        (true, false) => line.starts_with(pattern),
        (false, true) => line.ends_with(pattern),
        (false, false) => line.contains(pattern),
    }
}

pub(super) fn wc(process: &mut Process) -> BoxFuture<'_, i32> {
    async {
        let flags: String =
            process.args().iter().filter_map(|arg| arg.strip_prefix('-')).collect::<Vec<_>>().concat();
        let operands: Vec<String> =
            process.args().iter().filter(|arg| !arg.starts_with('-')).cloned().collect();
        let mut source = match Source::open(process, &operands) {
            Ok(source) => source,
            Err(code) => return code,
        };
        let (mut lines, mut words, mut bytes) = (0, 0, 0);
        while let Some(line) = source.next(process).await {
            lines += 1;
            words += line.split_whitespace().count();
            bytes += line.len() + 1;
        }
        let chosen: Vec<String> = [('l', lines), ('w', words), ('c', bytes)]
            .into_iter()
            .filter(|(letter, _)| flags.is_empty() || flags.contains(*letter))
            .map(|(_, value)| value.to_string())
            .collect();
        process.stdout.line(chosen.join(" "));
        0
    }
    .boxed()
}
