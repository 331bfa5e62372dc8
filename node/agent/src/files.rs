//! Files that others read while they are written.

use std::fs;
use std::path::Path;

use crate::Error;

/// Replaces a file, so that a reader sees the old one or the new one; makes its folder. Not flushed: it is to outlive the process, not a
/// power cut.
pub(crate) fn replace(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Error> {
    let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io("create the folder of"))?;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Whoever reads all files of a folder, such as Node Feature Discovery, passes over hidden ones.
    let temporary = path.with_file_name(format!(".{name}.new"));
    fs::write(&temporary, content).map_err(io("write beside"))?;
    fs::rename(&temporary, path).map_err(io("replace"))
}
