//! Files that others read while they are written.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces a file, so that a reader sees the old one or the new one, and so does a machine that loses its power; makes its folder.
pub(crate) fn replace(path: &Path, content: &[u8], mode: fs::Permissions) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new().prefix(".gantry-").suffix(".tmp").tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().set_permissions(mode)?;
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}
