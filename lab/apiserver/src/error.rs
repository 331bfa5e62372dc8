//! What can keep the server from starting or listening. Failed requests are [`Status`](crate::Status).

use std::io;
use std::path::PathBuf;

/// Why the server cannot start, keep its state or listen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder of the state cannot be read or written.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was attempted, as in `open`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another process holds the state folder.
    #[error("the state in {} is in use by another process; stop it or choose another folder", path.display())]
    InUse {
        /// The state folder.
        path: PathBuf,
    },
    /// A state file holds bytes that were never written by the server.
    #[error("{} is corrupt at byte {offset}: {problem}; restore the file or remove the state folder to start anew", path.display())]
    Corrupt {
        /// The damaged file.
        path: PathBuf,
        /// Where the damaged record begins.
        offset: u64,
        /// Which check failed.
        problem: String,
    },
    /// One of the objects that every cluster starts with was refused.
    #[error("cannot create {what}: {status}")]
    Bootstrap {
        /// The object.
        what: String,
        /// Why the server refused it.
        status: crate::Status,
    },
    /// A key or certificate cannot be made or used.
    #[error("cannot {action}: {problem}")]
    Pki {
        /// What was attempted.
        action: &'static str,
        /// What went wrong.
        problem: String,
    },
    /// A file into which a kubeconfig is to go holds something else.
    #[error("{} is no kubeconfig: {problem}; it is left as it is: mend it or name another file", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The listener failed.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address or path.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { action, path: path.into(), source }
    }
}
