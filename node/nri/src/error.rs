//! What ends a connection, and what cannot be configured.

use std::path::PathBuf;

/// Why there is no connection to the runtime.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name cannot be registered.
    #[error("plugin name {0:?}: use letters, digits, '-', '_' and '.'")]
    Name(String),
    /// The index cannot be registered.
    #[error("plugin index {0:?}: use two digits, as in 10")]
    Index(String),
    /// The socket cannot be dialled.
    #[error("dial {}: {source}", path.display())]
    Dial {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The runtime has closed the connection.
    #[error("the runtime closed the connection")]
    Closed,
    /// The runtime has closed the connection in the middle of a message.
    #[error("the runtime closed the connection in the middle of a message")]
    Cut,
    /// A frame for the connection that is reserved.
    #[error("a frame for connection 0, which is reserved")]
    ReservedConnection,
    /// A frame that is too long.
    #[error("a frame of {length} bytes on connection {connection}: at most {longest} are allowed")]
    FrameLength {
        /// The multiplexed connection.
        connection: u32,
        /// What its header says, in bytes.
        length: u32,
        /// The most that is allowed, in bytes.
        longest: usize,
    },
    /// A message that is too long.
    #[error("a message of {length} bytes in stream {stream}: at most {longest} are allowed")]
    MessageLength {
        /// The stream.
        stream: u32,
        /// What its header says, in bytes.
        length: u32,
        /// The most that is allowed, in bytes.
        longest: usize,
    },
    /// The answer to the registration cannot be read.
    #[error("the runtime's answer to RegisterPlugin: {0}")]
    Answer(prost::DecodeError),
    /// The runtime does not want the plugin.
    #[error("the runtime refuses the plugin: {message} (code {code})")]
    Refused {
        /// A code of gRPC.
        code: i32,
        /// What the runtime says.
        message: String,
    },
    /// The runtime tells of more pods and containers than a node can have.
    #[error("Synchronize has more than {longest} bytes")]
    Snapshot {
        /// The most that is allowed, in bytes.
        longest: usize,
    },
    /// The runtime has not said what it has to say at the beginning.
    #[error("no {awaited} of the runtime within {seconds} s")]
    Handshake {
        /// What was waited for.
        awaited: &'static str,
        /// How long, in seconds.
        seconds: u64,
    },
    /// The runtime does not take its answers.
    #[error("the runtime has not taken an answer for {0} s")]
    Stuck(u64),
    /// The plugin has panicked.
    #[error("the plugin panicked: {0}")]
    Panicked(String),
}
