//! What a plan changes, as `diff -u` prints it.

use std::fmt::Write as _;

use crate::Plan;

/// Lines before and after a change that are shown.
const CONTEXT: usize = 3;

impl Plan {
    /// The changes as a unified diff, which `patch` applies.
    pub fn diff(&self) -> String {
        let mut text = String::new();
        for change in &self.changes {
            let path = change.path.display().to_string();
            let name = |there: bool| if there { path.as_str() } else { "/dev/null" };
            let _ =
                writeln!(text, "--- {}\n+++ {}", name(change.before.is_some()), name(change.after.is_some()));
            let (before, after) =
                (change.before.as_deref().unwrap_or(""), change.after.as_deref().unwrap_or(""));
            text.push_str(&hunks(before, after));
        }
        text
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    Same(&'a str),
    Gone(&'a str),
    New(&'a str),
}

fn hunks(before: &str, after: &str) -> String {
    let lines = lines(before, after);
    let changed: Vec<usize> = lines
        .iter()
        .enumerate()
        .filter(|(_, line)| !matches!(line, Line::Same(_)))
        .map(|(at, _)| at)
        .collect();
    let mut text = String::new();
    let mut rest = changed.as_slice();
    while let Some(first) = rest.first() {
        let mut last = 0;
        while last + 1 < rest.len() && rest[last + 1] - rest[last] <= 2 * CONTEXT {
            last += 1;
        }
        let (from, to) = (first.saturating_sub(CONTEXT), (rest[last] + CONTEXT + 1).min(lines.len()));
        let count =
            |part: &[Line<'_>], skip: fn(&Line<'_>) -> bool| part.iter().filter(|line| !skip(line)).count();
        let is_new = |line: &Line<'_>| matches!(line, Line::New(_));
        let is_gone = |line: &Line<'_>| matches!(line, Line::Gone(_));
        let place = |skip: fn(&Line<'_>) -> bool| {
            let (start, length) = (count(&lines[..from], skip), count(&lines[from..to], skip));
            // Of nothing, the line before it is named.
            format!("{},{length}", if length == 0 { start } else { start + 1 })
        };
        let _ = writeln!(text, "@@ -{} +{} @@", place(is_new), place(is_gone));
        for line in &lines[from..to] {
            let (sign, line) = match line {
                Line::Same(line) => (' ', line),
                Line::Gone(line) => ('-', line),
                Line::New(line) => ('+', line),
            };
            text.push(sign);
            text.push_str(line);
            if !line.ends_with('\n') {
                text.push_str("\n\\ No newline at end of file\n");
            }
        }
        rest = &rest[last + 1..];
    }
    text
}

/// The longest common sequence of lines between what is common at both ends. Files of a runtime have some hundred lines.
fn lines<'a>(before: &'a str, after: &'a str) -> Vec<Line<'a>> {
    let old: Vec<&str> = before.split_inclusive('\n').collect();
    let new: Vec<&str> = after.split_inclusive('\n').collect();
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let mut lengths = vec![vec![0_u32; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            lengths[i][j] = if a[i] == b[j] {
                lengths[i + 1][j + 1] + 1
            } else {
                lengths[i + 1][j].max(lengths[i][j + 1])
            };
        }
    }
    let mut lines: Vec<Line<'a>> = old[..head].iter().map(|line| Line::Same(line)).collect();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            lines.push(Line::Same(a[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && (j == b.len() || lengths[i + 1][j] >= lengths[i][j + 1]) {
            lines.push(Line::Gone(a[i]));
            i += 1;
        } else {
            lines.push(Line::New(b[j]));
            j += 1;
        }
    }
    lines.extend(old[old.len() - tail..].iter().map(|line| Line::Same(line)));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hunks_are_those_of_diff() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n";
        let after = "1\n2\nthree\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13";
        assert_eq!(
            hunks(before, after),
            "@@ -1,6 +1,6 @@\n 1\n 2\n-3\n+three\n 4\n 5\n 6\n@@ -10,3 +10,4 @@\n 10\n 11\n 12\n+13\n\\ No newline at end of file\n"
        );
        assert_eq!(hunks("", "a\n"), "@@ -0,0 +1,1 @@\n+a\n");
        assert_eq!(hunks("a\n", ""), "@@ -1,1 +0,0 @@\n-a\n");
        assert_eq!(hunks("a\n", "a\n"), "");
    }
}
