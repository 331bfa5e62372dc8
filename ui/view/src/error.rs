//! What can go wrong with a query.

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cluster did not answer a list.
    #[error("list {what}")]
    List {
        /// The resource.
        what: &'static str,
        /// What the client says.
        source: Box<kube::Error>,
    },
    /// There is no such pod.
    #[error("pod {namespace}/{name} not found")]
    NoPod {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// No GPU fits what was typed.
    #[error("no GPU matches {text:?}")]
    NoGpu {
        /// What was typed.
        text: String,
    },
    /// Several GPUs fit what was typed.
    #[error("{text:?} matches {count} GPUs: write more of the UUID, or NODE/INDEX")]
    ManyGpus {
        /// What was typed.
        text: String,
        /// How many fit.
        count: usize,
        /// One of them.
        first: String,
    },
}

impl Error {
    /// A command that helps, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::List { .. } => None,
            Self::NoPod { namespace, .. } => Some(format!("kubectl get pods -n {namespace}")),
            Self::NoGpu { .. } => Some("gantry get gpus".to_owned()),
            Self::ManyGpus { first, .. } => Some(format!("gantry describe gpu {first}")),
        }
    }
}
