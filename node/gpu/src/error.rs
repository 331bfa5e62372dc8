//! What can go wrong below the agent.

use gantry_model::GpuId;

/// A question to a GPU, or an order to a simulated one, that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No row of the profile table has this name.
    #[error("GPU model {name:?} is not known: use one of {known}")]
    UnknownProfile {
        /// What was asked for.
        name: String,
        /// Every name, separated by commas.
        known: String,
    },
    /// A node cannot have this many simulated GPUs.
    #[error("{count} GPUs on one node: use 1 to {max}")]
    Count {
        /// What was asked for.
        count: usize,
        /// The most that is possible.
        max: usize,
    },
    /// There is no GPU with this index.
    #[error("no GPU has index {index}: the node has {count}, counted from 0")]
    NoSuchIndex {
        /// What was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A call into the driver crashed.
    #[error("a call into the driver ended without an answer")]
    Aborted,
    /// There is no GPU with this UUID.
    #[error("no GPU of this node is {0}")]
    NoSuchGpu(GpuId),
    /// The card does not answer.
    #[error("GPU {0} is lost: it does not answer")]
    Lost(GpuId),
    /// A process asked for more memory than the card has left, as CUDA would refuse it.
    #[error("out of memory on {gpu}: tried to use {asked_mib} MiB, {free_mib} MiB are free")]
    OutOfMemory {
        /// The card.
        gpu: GpuId,
        /// What the process would use in all, in MiB.
        asked_mib: u64,
        /// What the other processes leave, in MiB.
        free_mib: u64,
    },
}
