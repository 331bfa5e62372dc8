//! What can go wrong while a controller works.

/// Why a reconciliation failed; it is tried again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A Job has a field that cannot be acted on. Trying again helps only after an edit.
    #[error("{field}: invalid value {value}: {rule}")]
    Job {
        /// The field.
        field: String,
        /// Its value, as JSON.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// The API server refused a request.
    #[error("{action} {object}: {source}")]
    Api {
        /// What was tried.
        action: &'static str,
        /// On what.
        object: String,
        /// What the client says.
        source: Box<kube::Error>,
    },
    /// The code gave up on a Job, which is a fault of this program. Others go on.
    #[error("job {job}: panicked: {message}")]
    Panic {
        /// Namespace and name.
        job: String,
        /// What the panic said.
        message: String,
    },
}
