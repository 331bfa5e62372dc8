//! How what a container is granted travels from the device plugin to its creation, and what is said there.
//!
//! ```text
//!   device plugin ──Allocate: gantry.dev/devices.nvidia.com_gpu=slot-3,slot-0──▶ kubelet ──▶ runtime ──▶ config.json
//!                                                                                         │ gantry-runtime
//!   node agent ◀──{"v":1,"pod":{…},"container":"train","devices":["slot-3","slot-0"],…}───┤ /run/gantry/agent.sock
//!              ──{"v":1,"cdiDevices":["k8s.device-plugin.nvidia.com/gpu=GPU-…"],…}───────▶│
//! ```
//!
//! One connection carries one [`Request`] and one [`Answer`], each one line of JSON of at most [`MAX_LINE`] bytes. Both name
//! the version first; a side that does not know it says so instead of guessing. What the request says is what the runtime wrote into
//! `config.json`: the agent decides what it is worth.

mod error;
mod granted;
mod message;

pub use error::Error;
pub use granted::{
    DEVICES_ANNOTATION, GPUS_ANNOTATION, MAX_DEVICES, devices_annotation, granted_devices, is_slot,
};
pub use message::{Answer, Image, MAX_LINE, Pod, Request};

/// Where the node agent listens, for root alone.
pub const AGENT_SOCKET: &str = "/run/gantry/agent.sock";
