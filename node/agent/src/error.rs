//! What the agent can fail at, or refuse.

use std::path::PathBuf;

use gantry_model::{Fault, GpuId, PodKey};

/// A failure or a refusal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kubelet asks for a device that was never offered.
    #[error("unknown device {id:?}: this plugin offers {offered}")]
    UnknownDevice {
        /// The id.
        id: String,
        /// What is offered, in short.
        offered: String,
    },
    /// The kubelet asks for no device at all.
    #[error("an allocation of no device of {resource}: name at least one")]
    NothingAsked {
        /// The resource.
        resource: String,
    },
    /// The kubelet asks for several shares, and the configuration allows one.
    #[error(
        "{resource}: the maximum request size for shared resources is 1; found {asked}: ask for 1, or set sharing's failRequestsGreaterThanOne to false"
    )]
    OneShare {
        /// The resource.
        resource: String,
        /// How many it asks for.
        asked: usize,
    },
    /// A partition's device files are not known.
    #[error(
        "partition {partition}: no device file for GPU instance {gpu_instance}, compute instance {compute_instance} of GPU {minor} in /proc/driver/nvidia-caps/mig-minors; is the driver's MIG support loaded?"
    )]
    NoCapability {
        /// The partition.
        partition: GpuId,
        /// The number in its card's device file.
        minor: u32,
        /// Its GPU instance.
        gpu_instance: u32,
        /// Its compute instance.
        compute_instance: u32,
    },
    /// The kubelet asks for a device that is out of service.
    #[error("device {id} ({gpu}) is unhealthy: {}: {}", .fault.kind, .fault.message)]
    UnhealthyDevice {
        /// The id that the kubelet knows.
        id: String,
        /// The GPU behind it.
        gpu: GpuId,
        /// What is wrong with it.
        fault: Fault,
    },
    /// A preferred allocation is asked for that cannot be.
    #[error(
        "preferred allocation of {size} devices out of {available}, {must_include} of them required: {rule}"
    )]
    Preference {
        /// How many are asked for.
        size: i32,
        /// How many are there to choose from.
        available: usize,
        /// How many must be among them.
        must_include: usize,
        /// What is wrong.
        rule: &'static str,
    },
    /// The pod's assignment cannot be read.
    #[error("pod {pod}: {source}")]
    Assignment {
        /// The pod.
        pod: Box<PodKey>,
        /// What is wrong with its annotation.
        source: Box<gantry_api::Error>,
    },
    /// The pod's assignment is for another node.
    #[error("pod {pod}: its assignment is for node {assigned}, and this is node {node}")]
    WrongNode {
        /// The pod.
        pod: Box<PodKey>,
        /// The node of the assignment.
        assigned: String,
        /// This node.
        node: String,
    },
    /// Scheduler and kubelet do not agree how many GPUs the container has.
    #[error(
        "pod {pod}, container {container}: {assigned} GPUs are assigned and the kubelet granted {granted} devices"
    )]
    Count {
        /// The pod.
        pod: Box<PodKey>,
        /// The container.
        container: String,
        /// GPUs in the assignment.
        assigned: usize,
        /// Devices that the kubelet granted.
        granted: usize,
    },
    /// The assignment names a GPU that the node does not have.
    #[error("pod {pod}, container {container}: no GPU of node {node} is {gpu}")]
    NoSuchGpu {
        /// The pod.
        pod: Box<PodKey>,
        /// The container.
        container: String,
        /// The GPU.
        gpu: GpuId,
        /// This node.
        node: String,
    },
    /// The assignment names a GPU that is not given whole on this node.
    #[error("pod {pod}, container {container}: {gpu} is not offered whole on this node but as {offered}")]
    NotWhole {
        /// The pod.
        pod: Box<PodKey>,
        /// The container.
        container: String,
        /// The GPU.
        gpu: GpuId,
        /// The resources under which it is offered.
        offered: String,
    },
    /// The assignment names a GPU that is out of service.
    #[error("pod {pod}, container {container}: {gpu} is unhealthy: {}: {}", .fault.kind, .fault.message)]
    UnhealthyGpu {
        /// The pod.
        pod: Box<PodKey>,
        /// The container.
        container: String,
        /// The GPU.
        gpu: GpuId,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Another pod owns the GPU, or the share or partition that is meant.
    #[error("pod {pod} (uid {}): {gpu} belongs to pod {owner} (uid {}) until that pod is gone", .pod.uid, .owner.uid)]
    Taken {
        /// The GPU.
        gpu: GpuId,
        /// Who asks.
        pod: Box<PodKey>,
        /// Who has it.
        owner: Box<PodKey>,
    },
    /// No assignment, and fewer free GPUs than devices granted.
    #[error(
        "pod {pod}, container {container}: {wanted} GPUs are wanted and {free} are healthy and free on node {node}"
    )]
    NotEnough {
        /// The pod.
        pod: Box<PodKey>,
        /// The container.
        container: String,
        /// How many are wanted.
        wanted: usize,
        /// How many are free.
        free: u32,
        /// This node.
        node: String,
    },
    /// A device is granted twice to one container.
    #[error("pod {pod}, container {container}: device {id} is granted twice")]
    GrantedTwice {
        /// The pod.
        pod: Box<PodKey>,
        /// The container.
        container: String,
        /// The device.
        id: String,
    },
    /// The name of the resource cannot be served.
    #[error("resource {0:?}: write vendor/name, as in nvidia.com/gpu")]
    Resource(String),
    /// The path of the plugin's socket is too long for a Unix socket.
    #[error(
        "socket path {0} is too long: a Unix socket's path has at most 107 bytes; use a shorter kubelet folder"
    )]
    SocketPath(PathBuf),
    /// The node's configuration cannot be used.
    #[error("{name}: {cause}")]
    Config {
        /// Where it is from, such as `configuration a100`.
        name: String,
        /// What is wrong with it.
        cause: String,
    },
    /// A file or folder cannot be read, written or watched.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system does not let folders be watched.
    #[error("watch folders with inotify: {0}")]
    Watch(std::io::Error),
    /// The kubelet cannot be reached.
    #[error("connect to the kubelet: {0}")]
    Connect(#[from] tonic::transport::Error),
    /// The kubelet refuses the plugin.
    #[error("register with the kubelet: {}", .0.message())]
    Register(Box<tonic::Status>),
    /// The kubelet does not answer.
    #[error("register with the kubelet: no answer within {0} s")]
    RegisterTimeout(u64),
    /// A slot was granted, and nobody says any more which GPU it means.
    #[error(
        "device {id} was granted while the container runtime asked this agent which GPU it stands for, and the node has changed \
         to the kubelet's choice: delete the pod, or turn NRI on again"
    )]
    OrphanedSlot {
        /// The slot.
        id: String,
    },
    /// The container runtime does not ask the agent, so a container would be created without its GPUs.
    #[error(
        "devices {devices} cannot be used yet: the container runtime does not ask this agent which GPUs they stand for ({why}); \
         enable NRI in the runtime (containerd: plugins.'io.containerd.nri.v1.nri'.disable = false), or run the agent with the \
         kubelet's choice of GPUs"
    )]
    NotAsked {
        /// The devices that the kubelet granted.
        devices: String,
        /// Why the runtime does not ask.
        why: String,
    },
    /// The connection to the container runtime cannot be configured.
    #[error(transparent)]
    Nri(#[from] gantry_nri::Error),
    /// The GPUs cannot be asked.
    #[error(transparent)]
    Gpu(#[from] gantry_gpu::Error),
    /// The CDI files cannot be written.
    #[error(transparent)]
    Cdi(#[from] gantry_cdi::Error),
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::UnknownDevice { .. } => Self::not_found(text),
            Error::UnhealthyDevice { .. } | Error::OrphanedSlot { .. } => Self::failed_precondition(text),
            Error::NotAsked { .. } => Self::unavailable(text),
            Error::Preference { .. } | Error::NothingAsked { .. } | Error::OneShare { .. } => {
                Self::invalid_argument(text)
            }
            _ => Self::internal(text),
        }
    }
}
