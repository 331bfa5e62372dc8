//! Writing what was planned.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::{Error, Plan};

/// What a file's first form is kept as.
const BACKUP: &str = "gantry-backup";

impl Plan {
    /// Writes the changes, in order: first a backup of what is there, then each file whole. Returns the backups that were made; one that
    /// is there already is an earlier form, and stays.
    ///
    /// # Errors
    /// Where a file cannot be written, or is not any more what was planned with. Files before it are written then.
    pub fn apply(&self) -> Result<Vec<PathBuf>, Error> {
        let mut backups = Vec::new();
        for change in &self.changes {
            // Through links, such as distributions make: the file is written, not the link replaced.
            let path = fs::canonicalize(&change.path).unwrap_or_else(|_| change.path.clone());
            if read(&path)? != change.before {
                let source = std::io::Error::other("it has changed meanwhile; run the command again");
                return Err(Error::Io { action: "replace", path, source });
            }
            if let Some(before) = &change.before {
                let backup = aside(&path, BACKUP);
                if !backup.exists() {
                    write(&backup, before, &path)?;
                    backups.push(backup);
                }
            }
            match &change.after {
                Some(after) => write(&path, after, &path)?,
                None => {
                    fs::remove_file(&path).map_err(|source| Error::Io { action: "remove", path, source })?;
                }
            }
        }
        Ok(backups)
    }
}

/// Reads a file; `None` where it is not there.
pub(crate) fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { action: "read", path: path.to_path_buf(), source }),
    }
}

impl Plan {
    /// The reader of real files, for [`crate::plan`].
    ///
    /// # Errors
    /// Where a file is there and cannot be read.
    pub fn read_file(path: &Path) -> Result<Option<String>, Error> {
        read(path)
    }
}

/// A name beside a file. Runtimes read every file of a folder of drop-ins, so there it is beside the folder.
fn aside(path: &Path, ending: &str) -> PathBuf {
    let name = format!("{}.{ending}", path.file_name().unwrap_or_default().to_string_lossy());
    let folder = path.parent().unwrap_or(Path::new("/"));
    let is_drop_in = folder.file_name().is_some_and(|folder| folder.to_string_lossy().ends_with(".d"));
    let folder = if is_drop_in { folder.parent().unwrap_or(folder) } else { folder };
    folder.join(name)
}

/// Writes a file so that a reader sees the old one or the new one, with the mode of `like`.
fn write(path: &Path, text: &str, like: &Path) -> Result<(), Error> {
    let io = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io("create", folder))?;
    }
    let mode = fs::metadata(like).map_or(0o644, |file| file.permissions().mode() & 0o777);
    let temporary = aside(path, &format!("gantry-{}", std::process::id()));
    let written = fs::write(&temporary, text)
        .and_then(|()| fs::set_permissions(&temporary, fs::Permissions::from_mode(mode)))
        // Configuration outlives a power cut.
        .and_then(|()| fs::File::open(&temporary)?.sync_all())
        .map_err(io("write", &temporary))
        .and_then(|()| fs::rename(&temporary, path).map_err(io("replace", path)));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
