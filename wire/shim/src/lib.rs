//! How a container's granted slots travel from the device plugin to its creation, and what is said there.
//!
//! ```text
//!   device plugin ──Allocate: GANTRY_SLOTS=slot-3,slot-0──▶ kubelet ──▶ runtime ──▶ config.json
//!                                                                                      │ gantry-runtime
//!   node agent ◀──{"v":1,"pod":{…},"container":"train","slots":["slot-3","slot-0"],…}──┤ /run/gantry/agent.sock
//!              ──{"v":1,"devices":["k8s.device-plugin.nvidia.com/gpu=GPU-…"]}─────────▶│
//! ```
//!
//! One connection carries one [`Request`] and one [`Answer`], each one line of JSON of at most [`MAX_LINE`] bytes. Both name
//! the version first; a side that does not know it says so instead of guessing. What the request says is what the runtime wrote into
//! `config.json`, part of which a pod's author may write: the agent decides what it is worth.

mod error;
mod message;
mod slots;

pub use error::Error;
pub use message::{Answer, MAX_LINE, Pod, Request};
pub use slots::{MAX_SLOTS, SLOTS_VARIABLE, decode_slots, encode_slots, slots_of};

/// Where the node agent listens, for root alone.
pub const AGENT_SOCKET: &str = "/run/gantry/agent.sock";
