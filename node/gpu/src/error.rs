//! What can go wrong below the agent.

use std::path::PathBuf;

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
    /// NVIDIA's library is not there, or cannot be loaded.
    #[error(
        "libnvidia-ml.so.1 cannot be loaded: {tried}; install the NVIDIA driver, or name the root of a driver container"
    )]
    NoLibrary {
        /// Each place that was tried, and why it was not it.
        tried: String,
    },
    /// The library was loaded and says that it cannot work.
    #[error("the NVIDIA driver does not start: {library}: {reason}")]
    NoDriver {
        /// The library.
        library: PathBuf,
        /// What it says.
        reason: String,
    },
    /// The driver does not answer in time.
    #[error("{what} does not answer within {seconds} s")]
    NotAnswering {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
    },
    /// The driver refused a call.
    #[error("{call}: {reason}")]
    Driver {
        /// The call.
        call: &'static str,
        /// What the driver says.
        reason: String,
    },
    /// The system has no thread to spare.
    #[error("start a thread: {0}")]
    Thread(String),
    /// The hardware or the driver has no MIG.
    #[error("GPU {0} cannot be partitioned: its hardware or driver has no MIG")]
    NoMig(GpuId),
    /// MIG mode is off.
    #[error("GPU {0} is not in MIG mode: turn it on first")]
    MigOff(GpuId),
    /// The board has no such profile.
    #[error("profile {profile:?} is not one of GPU {gpu}: use one of {known}")]
    NoMigProfile {
        /// The card.
        gpu: GpuId,
        /// What was asked for.
        profile: String,
        /// Every name, separated by commas.
        known: String,
    },
    /// Instances of the profile cannot begin there.
    #[error("{profile} cannot begin at memory slice {start}: use one of {possible}")]
    NoMigPlacement {
        /// The profile.
        profile: String,
        /// What was asked for.
        start: u8,
        /// Where it can begin, separated by commas.
        possible: String,
    },
    /// Other partitions are in the way.
    #[error("GPU {gpu} has no room for {profile}{}", .start.map(|start| format!(" at memory slice {start}")).unwrap_or_default())]
    NoRoom {
        /// The card.
        gpu: GpuId,
        /// The profile.
        profile: String,
        /// The memory slice, if one was asked for.
        start: Option<u8>,
    },
    /// Something runs on the card or partition, or partitions are left.
    #[error("{0} is in use: end what runs on it and remove its partitions first")]
    InUse(GpuId),
    /// There is no partition with this UUID.
    #[error("no partition of this node is {0}")]
    NoSuchPartition(GpuId),
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
