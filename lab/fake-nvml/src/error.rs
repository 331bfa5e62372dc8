//! What can go wrong before NVML's error codes.

use std::path::PathBuf;

/// A configuration, a state file or an installation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read or written.
    #[error("{action} {path}")]
    Io {
        /// What was done, such as `read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No configuration was found.
    #[error(
        "no configuration of the simulated GPUs: looked in {tried}; set MOCK_NVML_CONFIG to a YAML file such as \"model: h100\""
    )]
    NoConfig {
        /// Where was looked, separated by commas.
        tried: String,
    },
    /// The configuration is no YAML, or a value has the wrong type.
    #[error("configuration: {0}")]
    Yaml(String),
    /// Neither a model nor anything that names one.
    #[error(
        "configuration: model: not set, and device_defaults.name is no product that is known: set model to one of {known}"
    )]
    NoModel {
        /// Every name, separated by commas.
        known: String,
    },
    /// A value is not possible.
    #[error("configuration: {field}: Invalid value: {value}: {rule}")]
    Value {
        /// The field.
        field: String,
        /// Its value.
        value: String,
        /// What is possible.
        rule: String,
    },
    /// The state file is damaged.
    #[error("state file {path}: {reason}: remove it to start with cards that are well")]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The model is not known.
    #[error(transparent)]
    Gpu(#[from] gantry_gpu::Error),
}
