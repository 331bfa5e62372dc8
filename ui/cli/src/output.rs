//! Tables, JSON and YAML on standard output.

use std::fmt::{self, Write as _};
use std::io::{ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

static INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Writes to standard output. That a reader has gone, as `head` does, is no failure; a full disk is, and is told once.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let Err(error) = out.write_fmt(text).and_then(|()| out.flush()) else { return };
    if error.kind() != ErrorKind::BrokenPipe && !INCOMPLETE.swap(true, Ordering::Relaxed) {
        eprintln!("error: write to standard output: {error}");
    }
}

/// Whether everything that was written has been taken, as far as somebody read.
pub(crate) fn is_complete() -> bool {
    !INCOMPLETE.load(Ordering::Relaxed)
}

/// Prints rows the way kubectl does: no lines, columns three spaces apart.
pub(crate) fn table(headers: Option<&[&str]>, rows: &[Vec<String>]) {
    out!("{}", aligned(headers, rows));
}

fn aligned(headers: Option<&[&str]>, rows: &[Vec<String>]) -> String {
    let header = headers.map(|cells| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
    let lines: Vec<&Vec<String>> = header.iter().chain(rows).collect();
    let columns = lines.iter().map(|line| line.len()).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut cells = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(cells, "{cell:<width$}   ");
        }
        text.push_str(cells.trim_end());
        text.push('\n');
    }
    text
}

/// Prints `value` as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    outln!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints `value` as YAML.
pub(crate) fn yaml(value: &impl Serialize) -> anyhow::Result<()> {
    out!("{}", serde_saphyr::to_string(value)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_three_spaces_apart_and_lines_end_with_their_text() {
        let row = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>();
        let text = aligned(Some(&["NAME", "POD"]), &[row(&["a-long-name", "x"]), row(&["ü", ""])]);
        assert_eq!(text, "NAME          POD\na-long-name   x\nü\n");
    }
}
