//! Why a file is not touched.

use std::path::PathBuf;

/// A refusal or a failure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is not of the form that it should have.
    #[error("{path}:{line}:{column}: {detail}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What the parser says.
        detail: String,
    },
    /// A value is of another kind than the runtime's documentation gives it.
    #[error("{path}: {key}: must be {expected}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The key with its tables.
        key: String,
        /// What it must be.
        expected: &'static str,
    },
    /// The configuration is of a version that is not known.
    #[error("{path}: version: {version} is not known: versions 1 to 4 are")]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in it.
        version: i64,
    },
    /// An option cannot be used.
    #[error("{option}: invalid value {value:?}: {rule}")]
    Option {
        /// The option as it is typed.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// A file cannot be read or written.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}
