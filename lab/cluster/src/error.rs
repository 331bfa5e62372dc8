//! What can go wrong when a simulated cluster is set up or told to do something.

use std::path::PathBuf;

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path of a Unix socket does not fit into the kernel's address structure.
    #[error("{path}: {length} bytes is too long for a Unix socket: at most {max}; use a shorter folder")]
    SocketPath {
        /// The socket.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
        /// The most that fits.
        max: usize,
    },
    /// A file or folder could not be used.
    #[error("{action} {path}")]
    File {
        /// What was attempted, such as `create`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A checkpoint cannot be read back.
    #[error("checkpoint {path}: {rule}; delete it to start without the devices that it assigns")]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        rule: &'static str,
    },
    /// There is no node of this name.
    #[error("no node {node}: see kubectl get nodes")]
    NoSuchNode {
        /// The name.
        node: String,
    },
    /// The node has no GPUs.
    #[error("node {node} has no GPUs")]
    NoGpus {
        /// The node.
        node: String,
    },
    /// Nodes did not become ready.
    #[error("nodes {} are not ready after two minutes: see kubectl describe node and the logs of their agents", nodes.join(", "))]
    NotReady {
        /// Their names.
        nodes: Vec<String>,
    },
    /// The API server could not be set up.
    #[error(transparent)]
    ApiServer(#[from] gantry_apiserver::Error),
    /// The API server refused what a cluster starts with.
    #[error("the API server refused an object that every cluster starts with")]
    Api(#[from] kube::Error),
    /// A GPU model or count that cannot be simulated, or no such GPU.
    #[error(transparent)]
    Gpu(#[from] gantry_gpu::Error),
    /// The scheduler could not be set up.
    #[error(transparent)]
    Scheduler(#[from] gantry_scheduler::Error),
}

impl Error {
    /// An error of `action` on `path`, for `map_err`.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}
