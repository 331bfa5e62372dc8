//! Tables, JSON and YAML on standard output.

use comfy_table::{Cell, ContentArrangement, Table, presets};
use serde::Serialize;

/// Prints rows the way kubectl does: no lines, columns three spaces apart.
pub(crate) fn table(headers: Option<&[&str]>, rows: &[Vec<String>]) {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if let Some(headers) = headers {
        table.set_header(headers.iter().map(Cell::new));
    }
    for row in rows {
        table.add_row(row.iter().map(Cell::new));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    for line in table.lines() {
        println!("{}", line.trim_end());
    }
}

/// Prints `value` as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints `value` as YAML.
pub(crate) fn yaml(value: &impl Serialize) -> anyhow::Result<()> {
    print!("{}", serde_saphyr::to_string(value)?);
    Ok(())
}
