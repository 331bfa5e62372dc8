//! Editing TOML so that what is not edited stays as it was typed.

use std::path::Path;

use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value};

use crate::Error;

/// Reads a file.
pub(crate) fn parse(path: &Path, text: &str) -> Result<DocumentMut, Error> {
    text.parse().map_err(|error: toml_edit::TomlError| {
        let (line, column) = position(text, error.span().map_or(0, |span| span.start));
        let detail = error.message().lines().next().unwrap_or_default().to_owned();
        Error::Syntax { path: path.to_path_buf(), line, column, detail: format!("not TOML: {detail}") }
    })
}

/// Line and column, both from 1, of a byte.
pub(crate) fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at.min(text.len())).unwrap_or(text);
    let line = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line..].chars().count() + 1)
}

/// The table at a path, if it is there.
pub(crate) fn table<'a>(
    file: &Path,
    root: &'a dyn TableLike,
    keys: &[&str],
) -> Result<Option<&'a dyn TableLike>, Error> {
    let mut table = root;
    for (depth, key) in keys.iter().enumerate() {
        match table.get(key) {
            None => return Ok(None),
            Some(item) => {
                table = item.as_table_like().ok_or_else(|| no_table(file, &keys[..=depth]))?;
            }
        }
    }
    Ok(Some(table))
}

/// The table at a path, made where it is not there. Tables on the way to it get no header of their own.
pub(crate) fn table_mut<'a>(
    file: &Path,
    root: &'a mut dyn TableLike,
    keys: &[&str],
) -> Result<&'a mut dyn TableLike, Error> {
    let mut table = root;
    for (depth, key) in keys.iter().enumerate() {
        if !table.contains_key(key) {
            let mut made = Table::new();
            made.set_implicit(depth + 1 < keys.len());
            table.insert(key, Item::Table(made));
        }
        let item = table.get_mut(key).ok_or_else(|| no_table(file, &keys[..=depth]))?;
        table = item.as_table_like_mut().ok_or_else(|| no_table(file, &keys[..=depth]))?;
    }
    Ok(table)
}

fn no_table(file: &Path, keys: &[&str]) -> Error {
    Error::Value { path: file.to_path_buf(), key: keys.join("."), expected: "a table" }
}

/// Sets a value where it is another.
pub(crate) fn set(table: &mut dyn TableLike, key: &str, value: impl Into<Value>) {
    let value = value.into();
    let same = table.get(key).and_then(Item::as_value).is_some_and(|known| same(known, &value));
    if same {
        return;
    }
    match table.get_mut(key).and_then(Item::as_value_mut) {
        // The comment behind it stays.
        Some(known) => {
            let decor = known.decor().clone();
            *known = value;
            *known.decor_mut() = decor;
        }
        None => {
            table.insert(key, Item::Value(value));
        }
    }
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a.value() == b.value(),
        (Value::Integer(a), Value::Integer(b)) => a.value() == b.value(),
        (Value::Boolean(a), Value::Boolean(b)) => a.value() == b.value(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
        }
        (a, b) => plain(a.clone()).to_string() == plain(b.clone()).to_string(),
    }
}

/// Adds texts to a list that may not be there.
pub(crate) fn add_to_list(
    file: &Path,
    table: &mut dyn TableLike,
    key: &str,
    texts: &[&str],
) -> Result<(), Error> {
    if !table.contains_key(key) {
        table.insert(key, Item::Value(Value::Array(Array::new())));
    }
    let list = table.get_mut(key).and_then(Item::as_array_mut).ok_or_else(|| Error::Value {
        path: file.to_path_buf(),
        key: key.to_owned(),
        expected: "a list of strings",
    })?;
    for text in texts {
        if !list.iter().any(|value| value.as_str() == Some(text)) {
            list.push(*text);
        }
    }
    Ok(())
}

/// Makes a table say what another says, besides what it says of its own. `skip` names values that stay as they are.
pub(crate) fn follow(
    file: &Path,
    table: &mut dyn TableLike,
    other: &dyn TableLike,
    skip: &[&str],
) -> Result<(), Error> {
    for (key, item) in other.iter().filter(|(key, _)| !skip.contains(key)) {
        if let Some(inner) = item.as_table_like() {
            follow(file, table_mut(file, table, &[key])?, inner, skip)?;
        } else if let Some(value) = item.as_value() {
            set(table, key, plain(value.clone()));
        }
    }
    Ok(())
}

/// A value without the spaces and comments around it where it was.
fn plain(mut value: Value) -> Value {
    value.decor_mut().clear();
    if let Value::Array(list) = &mut value {
        list.iter_mut().for_each(|item| item.decor_mut().clear());
        list.set_trailing("");
        list.set_trailing_comma(false);
        list.fmt();
    }
    value
}
