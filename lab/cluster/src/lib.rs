//! A Kubernetes cluster of simulated GPU nodes in one process.
//!
//! Everything between a manifest and what a container sees of its GPUs is real code, except the processes inside
//! containers and the hardware below the driver:
//!
//! ```text
//!   ApiServer ◀──── scheduler, controllers (workloads), node lifecycle
//!      │  ▲ status, Node, Lease, Events
//!      ▼  │
//!   Hub ──▶ Kubelet ──▶ DeviceManager ◀── gRPC over Unix sockets ──▶ agent (the real one, in its DaemonSet's pod)
//!             │  one a node    │ devices                                │ CDI files
//!             ▼                ▼                                        ▼
//!          Worker ──▶ OCI configuration ──────────────────────── CDI edits ──▶ ContainerView
//!          (one a pod)                                                           │
//!   kubectl exec, logs, attach ──▶ Backend ──▶ programs: nvidia-smi, ls, sh, … ◀─┘
//! ```
//!
//! - [`Cluster`] is the way in: it starts all of this, and breaks and mends parts of it.
//! - The **device manager** follows the kubelet's in what plugins and users can observe.
//! - The **runtime** makes an OCI configuration, applies CDI edits, and gives a [`ContainerView`] that knows nothing else.
//! - **Programs** answer from that view alone. A program that is not in their table is not pretended: the container's log
//!   says so, and the pod's annotations under `sim.gantry.dev/` say how long it runs, how it exits and what load it makes.
//! - **Kubelets** of all nodes share one watch of pods; planning and status are pure functions.

mod cluster;
mod control;
mod device_manager;
mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod kubelet;
mod machine;
mod node_lifecycle;
mod programs;
mod remote;
mod runtime;

pub use cluster::{Cluster, ClusterOptions, NodeGroup, node_names};
pub use device_manager::{
    AdmissionError, ContainerDevices, ContainerKind, ContainerRequest, Count, DeviceManager,
    DeviceManagerOptions, PodRequest,
};
pub use error::Error;
pub use runtime::{ContainerView, Driver, File, GpuReading, Hardware};
