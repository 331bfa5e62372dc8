//! The wrapper over configurations as containerd, CRI-O and Docker write them, and as a process.

#![cfg(test)]

mod edits;
mod process;
mod speed;

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A file beside the tests.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A configuration as a runtime writes it.
fn config(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(name)).unwrap()).unwrap()
}
