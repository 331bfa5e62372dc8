//! One GPU as the scheduler and the node agent see it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The UUID that NVML gives a GPU (`GPU-` and a UUID). Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuId(Arc<str>);

/// A text that cannot be a GPU's identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no GPU id: use 1 to 63 letters, digits or '-', as in GPU-6f1c3a52-0d8e-4b7f-9a35-2c1e5d7b9f04"
)]
pub struct InvalidGpuId(pub String);

impl GpuId {
    /// The identifier as NVML prints it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GpuId {
    type Err = InvalidGpuId;

    fn from_str(text: &str) -> Result<Self, InvalidGpuId> {
        // 63 is the kubelet's limit for a device plugin's device ID.
        let fits = (1..=63).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if fits { Ok(Self(text.into())) } else { Err(InvalidGpuId(text.chars().take(80).collect())) }
    }
}

impl fmt::Display for GpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A whole GPU with everything that placement, device files and labels need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's UUID.
    pub id: GpuId,
    /// NVML's index on this node, from 0, in PCI bus order.
    pub index: u32,
    /// The number in `/dev/nvidia<minor>`; often, but not always, the index.
    pub minor: u32,
    /// NVML's product name, such as `NVIDIA A100-SXM4-80GB`.
    pub product: Arc<str>,
    /// Total memory in MiB as NVML reports it.
    pub memory_mib: u64,
    /// PCI address such as `00000000:07:00.0`.
    pub pci_bus_id: String,
    /// The NUMA node that the card hangs on, where the machine says so.
    pub numa_node: Option<u32>,
    /// CUDA compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Whether the hardware can be partitioned (MIG).
    pub mig_capable: bool,
    /// The partitions by GPU instance, then compute instance; `None` while MIG mode is off. A card in MIG mode runs no work as a whole.
    pub partitions: Option<Vec<Partition>>,
    /// Whether new work may use the card.
    pub health: Health,
}

/// A MIG device: one compute instance in one GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// NVML's UUID, `MIG-` and a UUID.
    pub id: GpuId,
    /// Its index among the MIG devices of its GPU, as NVML and `0:1` in device lists count them.
    pub index: u32,
    /// NVIDIA's name such as `1g.5gb`, `1g.10gb+me` or `1c.3g.20gb`.
    pub profile: Arc<str>,
    /// The GPU instance's id.
    pub gpu_instance: u32,
    /// The compute instance's id within its GPU instance.
    pub compute_instance: u32,
    /// First memory slice of the GPU instance.
    pub start: u32,
    /// Memory slices of the GPU instance.
    pub size: u32,
    /// Memory in MiB that programs can use.
    pub memory_mib: u64,
    /// What it consists of.
    pub attributes: PartitionAttributes,
    /// Whether new work may use it; its GPU must be healthy too.
    pub health: Health,
}

/// What a MIG device consists of: NVML's device attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartitionAttributes {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Compute slices of the GPU instance.
    pub gpu_instance_slices: u32,
    /// Compute slices of the compute instance.
    pub compute_instance_slices: u32,
    /// Copy engines, shared within the GPU instance.
    pub copy_engines: u32,
    /// Decoders, shared within the GPU instance.
    pub decoders: u32,
    /// Encoders, shared within the GPU instance.
    pub encoders: u32,
    /// JPEG engines, shared within the GPU instance.
    pub jpeg_engines: u32,
    /// Optical flow engines, shared within the GPU instance.
    pub ofa_engines: u32,
}

/// Whether new work may use a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Fit for new work.
    Healthy,
    /// Not offered to new work, and why.
    Unhealthy(Fault),
}

impl Health {
    /// Whether new work may use the card.
    pub fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy)
    }
}

/// What is wrong with a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// What an operator should read, one sentence.
    pub message: String,
}

/// Kinds of fault that take a GPU out of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The driver reported a critical XID error with this number.
    Xid(u32),
    /// The card no longer answers ("GPU is lost", fallen off the bus).
    Lost,
    /// Uncorrectable memory errors.
    DoubleBitEcc,
    /// A memory row is to be remapped; the card needs a reset.
    RowRemapPending,
    /// The driver asks for a reset of the card and names no other fault.
    ResetRequired,
    /// The driver asks for a reboot of the machine.
    RebootRequired,
    /// The card is not registered with its NVLink fabric, so that no program can use it.
    FabricNotReady,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid(number) => write!(f, "XID {number}"),
            Self::Lost => f.write_str("GPU lost"),
            Self::DoubleBitEcc => f.write_str("double-bit ECC error"),
            Self::RowRemapPending => f.write_str("row remap pending"),
            Self::ResetRequired => f.write_str("reset required"),
            Self::RebootRequired => f.write_str("reboot required"),
            Self::FabricNotReady => f.write_str("NVLink fabric not ready"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_id_is_bounded_and_plain() {
        assert!("GPU-6f1c3a52-0d8e-4b7f-9a35-2c1e5d7b9f04".parse::<GpuId>().is_ok());
        for bad in ["", "GPU 1", "GPU/1", &"x".repeat(64), "GPU-ü"] {
            assert!(bad.parse::<GpuId>().is_err(), "{bad:?}");
        }
    }
}
