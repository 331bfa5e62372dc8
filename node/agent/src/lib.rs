//! The node agent: it offers the node's GPUs to the kubelet, decides which GPU a container really gets, writes the CDI
//! files that bring it there, and reports what it knows.
//!
//! ```text
//!                 GpuBackend ──inventory, health events──▶ ┌───────────┐ ──CDI files──▶ /var/run/cdi
//!   kubelet ◀──Register, ListAndWatch, Allocate, … (gRPC)──│   state   │ ──GpuNode, labels──▶ API server
//!   runtime ──create_container(pod UID, granted ids)──────▶│  (ledger) │ ──checkpoint──▶ disk
//!           ◀─────────────CDI device names─────────────────└───────────┘
//! ```
//!
//! **Identity.** The kubelet tells a device plugin neither the pod nor the container. So with
//! [`IdentityMode::Assignment`] the ids that the kubelet sees are *slots* (`slot-0` …), a permutation of the node's GPUs:
//! when a container is created, the runtime says whose it is, and the agent puts the GPUs of the pod's
//! assignment behind the granted slots. A slot is as healthy as the GPU behind it. With [`IdentityMode::Kubelet`] the ids
//! are UUIDs, and what the kubelet picks is what the container gets. Shares and partitions are named by UUIDs in both.
//!
//! **Resources.** A [`ConfigSource`] in the format of NVIDIA's device plugin says which devices are offered, under which names
//! and how often. Each resource has a server and a registration of its own. Another configuration changes what is offered and
//! nothing that is held: a GPU that a pod has whole becomes shares when that pod is gone.
//!
//! With [`Identity::Auto`] a node has the first where its runtime asks the agent through NRI, and the second where none does; then the
//! ledger follows the kubelet's podresources service. A device that somebody has is offered under the id under which it was granted,
//! whatever the mode is now: the kubelet counts by ids.
//!
//! **Failing closed.** A runtime without its plugin creates containers without asking. So the kubelet asks first
//! (`PreStartContainer`), and is held up until the runtime is there.
//!
//! **Last line of defence.** A GPU that one pod owns is never given to another, whoever says so; the refusal names both.
//!
//! Everything that decides is in `state` and `response`, which do no I/O. The rest carries: `plugin` the gRPC service, `nri` the
//! questions of the container runtime, `identity` who decides, `agent` the loop, `links` what keeps resources registered, `node_config` and `node_label` the configuration, `report` the API objects, `pods` and
//! `podresources` what API server and kubelet know of pods, `ended` which of them have ended, `cdi`, `checkpoint` and `watch` the file system.

mod agent;
mod cdi;
mod checkpoint;
mod ended;
mod error;
mod facts;
mod files;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod health;
mod identity;
mod labels;
mod links;
mod log;
mod node_config;
mod node_label;
mod notify;
mod nri;
mod plugin;
mod podresources;
mod pods;
mod report;
mod response;
mod shim;
mod sink;
mod socket;
mod state;
mod watch;

pub use agent::{Agent, Options};
pub use cdi::DeviceRoots;
pub use error::Error;
pub use gantry_api::IdentityMode;
pub use gantry_nri::State as NriState;
pub use gantry_nvidia_config::{MigStrategy, SharingKind};
pub use gantry_shim::AGENT_SOCKET as SHIM_SOCKET;
pub use handle::{Adjustment, ContainerIdentity, Handle};
pub use health::{HealthOptions, HealthProfile, InvalidOverrides, Policy, Response};
pub use identity::Identity;
pub use labels::{LabelInput, Offer, Replicas, feature_labels};
pub use log::LogLine;
pub use node_config::{CONFIG_LABEL, ConfigSource, Fallback};
pub use shim::serve_shim;
pub use sink::{FeatureOptions, LabelSink};
pub use watch::FolderWatch;
