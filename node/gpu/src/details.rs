//! What labels and health policy ask of a card beyond the inventory. Every part may be unknown.

use std::fmt;

/// One card's further properties, as they are now. `None` means that this card, driver or backend does not tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GpuDetails {
    /// PCI class code of 24 bits, as sysfs shows it: `0x030000` a VGA controller, `0x030200` a 3D controller.
    pub pci_class: Option<u32>,
    /// Generation of the NVLink ports: NVML's `nvmlDeviceGetNvLinkVersion`, without its minor number.
    pub nvlink_generation: Option<u32>,
    /// How the card stands with its NVLink fabric (`nvmlDeviceGetGpuFabricInfoV`); `None` also where there is no fabric.
    pub fabric: Option<FabricInfo>,
    /// What the driver says has to be done (NVML field 230, drivers since 565).
    pub recovery: Option<RecoveryAction>,
    /// Whether a memory row waits for a reset to be remapped (`nvmlDeviceGetRemappedRows`).
    pub row_remap_pending: Option<bool>,
}

/// A card's registration with its NVLink fabric, which the fabric manager makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FabricInfo {
    /// How far it is.
    pub state: FabricState,
    /// The NVLink domain's UUID; all zeros where the fabric ends at the machine.
    pub cluster: [u8; 16],
    /// The part of the domain whose cards reach each other.
    pub clique: u32,
}

impl FabricInfo {
    /// The domain's UUID in its usual form.
    pub fn cluster_uuid(&self) -> String {
        let hex = format!("{:032x}", u128::from_be_bytes(self.cluster));
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }
}

/// How far the registration with the fabric is: NVML's `nvmlGpuFabricState_t` and, once completed, its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricState {
    /// The fabric manager has not begun; CUDA does not start on the card.
    NotStarted,
    /// The fabric manager is at it; CUDA does not start on the card yet.
    InProgress,
    /// Done, and usable if the status is 0, NVML's success.
    Completed {
        /// An `nvmlReturn_t`.
        status: u32,
    },
}

impl FabricState {
    /// Whether programs can use the card as far as the fabric is concerned.
    pub fn is_ready(self) -> bool {
        self == Self::Completed { status: 0 }
    }
}

impl fmt::Display for FabricState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted => f.write_str("not started"),
            Self::InProgress => f.write_str("in progress"),
            Self::Completed { status: 0 } => f.write_str("completed"),
            Self::Completed { status } => write!(f, "failed with NVML status {status}"),
        }
    }
}

/// What the driver wants done with a card: `nvmlDeviceGpuRecoveryAction_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecoveryAction {
    /// Nothing: the card can be used.
    None,
    /// Reset the card when its processes have ended.
    Reset,
    /// Reboot the machine.
    Reboot,
    /// End all peer-to-peer traffic, then ask again.
    DrainP2p,
    /// Give the card no new work and reset it when its processes have ended.
    DrainAndReset,
    /// Recover the IMEX domain.
    RecoverImexDomain,
}

impl RecoveryAction {
    /// The action behind NVML's number; `None` for one that this release does not know.
    pub fn from_nvml(number: u64) -> Option<Self> {
        [Self::None, Self::Reset, Self::Reboot, Self::DrainP2p, Self::DrainAndReset, Self::RecoverImexDomain]
            .get(usize::try_from(number).ok()?)
            .copied()
    }
}

/// A virtual GPU in a guest, with what its hypervisor tells of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Vgpu {
    /// The hypervisor's driver, such as `460.16`.
    pub host_driver_version: Option<String>,
    /// Its branch, such as `r460_00`.
    pub host_driver_branch: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fabric_is_named_by_its_uuid_and_ready_when_it_completed_without_an_error() {
        let mut cluster = [0; 16];
        cluster[0] = 0xab;
        cluster[15] = 1;
        let fabric = FabricInfo { state: FabricState::Completed { status: 0 }, cluster, clique: 3 };
        assert_eq!(fabric.cluster_uuid(), "ab000000-0000-0000-0000-000000000001");
        assert!(fabric.state.is_ready());
        for (state, text) in [
            (FabricState::NotStarted, "not started"),
            (FabricState::InProgress, "in progress"),
            (FabricState::Completed { status: 999 }, "failed with NVML status 999"),
        ] {
            assert!(!state.is_ready());
            assert_eq!(state.to_string(), text);
        }
    }

    #[test]
    fn recovery_actions_have_nvmls_numbers() {
        let names: Vec<_> = (0..7).map(RecoveryAction::from_nvml).collect();
        assert_eq!(names[0], Some(RecoveryAction::None));
        assert_eq!(names[4], Some(RecoveryAction::DrainAndReset));
        assert_eq!((names[5], names[6]), (Some(RecoveryAction::RecoverImexDomain), None));
    }
}
