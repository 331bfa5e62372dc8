//! The kubelet's own Unix sockets. Like a real kubelet it leaves them behind when it ends and clears them away when it starts: a
//! socket that is new tells plugins that the kubelet is.

use std::path::Path;

use tokio::net::UnixListener;

use crate::Error;

/// The longest path that fits into `sockaddr_un` with its terminating zero.
const MAX_PATH: usize = 107;

/// Removes every socket of a folder, plugins' too.
pub(super) fn remove_all(folder: &Path) -> Result<(), Error> {
    for entry in std::fs::read_dir(folder).map_err(Error::file("list", folder))? {
        let path = entry.map_err(Error::file("list", folder))?.path();
        if path.extension().is_some_and(|extension| extension == "sock") {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes a socket's file; a plugin that is ending may have done it just now.
fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::File { action: "remove", path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

/// Listens on a Unix socket after making its folder and removing what is left of an earlier one.
pub(super) fn listen(path: &Path) -> Result<UnixListener, Error> {
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        return Err(Error::SocketPath { path: path.to_owned(), length, max: MAX_PATH });
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    }
    remove(path)?;
    UnixListener::bind(path).map_err(Error::file("listen on", path))
}
