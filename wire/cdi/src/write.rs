//! Putting a specification into a folder, whole or not at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, Spec};

/// Tells apart the temporary files of one process.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A specification as YAML.
///
/// # Errors
/// Where it is not valid.
pub fn to_yaml(spec: &Spec) -> Result<String, Error> {
    spec.validate()?;
    serde_saphyr::to_string(spec)
        .map_err(|error| Error::Syntax { path: PathBuf::new(), message: error.to_string() })
}

/// Writes `folder/<name>.json` so that a reader sees the old file or the new one. Creates the folder.
/// Returns the path. A specification that is not valid is not written.
pub fn write(folder: &Path, name: &str, spec: &Spec) -> Result<PathBuf, Error> {
    spec.validate()?;
    let path = file(folder, name)?;
    let text = serde_json::to_vec_pretty(spec)
        .map_err(|error| Error::Syntax { path: path.clone(), message: error.to_string() })?;
    // Readers look at names that end in .json or .yaml only.
    let temporary = folder.join(format!(
        ".{name}.{}-{}.tmp",
        std::process::id(),
        COUNTER.fetch_add(1, Ordering::Relaxed)
    ));
    let io = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    };
    fs::create_dir_all(folder).map_err(io("create", folder))?;
    // Not synchronised: the folder does not outlive a reboot, and whoever owns a file writes it again at its start.
    let written = fs::write(&temporary, &text)
        .map_err(io("write", &path))
        .and_then(|()| fs::rename(&temporary, &path).map_err(io("rename", &path)));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map(|()| path)
}

/// Removes `folder/<name>.json`; one that is not there is fine.
pub fn remove(folder: &Path, name: &str) -> Result<(), Error> {
    let path = file(folder, name)?;
    match fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Io { action: "remove", path, source })
        }
        _ => Ok(()),
    }
}

fn file(folder: &Path, name: &str) -> Result<PathBuf, Error> {
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(Error::Invalid {
            field: "file name".to_owned(),
            value: name.to_owned(),
            rule: "must not be empty, begin with '.' or contain '/'",
        });
    }
    Ok(folder.join(format!("{name}.json")))
}
