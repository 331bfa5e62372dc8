//! What the agent reads of the driver, besides health events: the inventory, and what labels and health policy need.

use std::collections::BTreeMap;

use gantry_gpu::{DriverInfo, GpuBackend, GpuDetails, Inventory, Vgpu};
use gantry_model::GpuId;

/// What is known besides the inventory. What can no longer be read stays as it was last read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) driver: DriverInfo,
    /// The machine's product name.
    pub(crate) machine: Option<String>,
    pub(crate) details: BTreeMap<GpuId, GpuDetails>,
    pub(crate) vgpu: Option<Vgpu>,
}

/// One look at the GPUs.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) inventory: Inventory,
    /// `None` where the driver did not say.
    pub(crate) driver: Option<DriverInfo>,
    pub(crate) details: BTreeMap<GpuId, GpuDetails>,
}

impl Look {
    /// Asks the driver. A card, or a question, that gets no answer takes nothing from the others.
    ///
    /// # Errors
    /// Where the driver does not list its cards.
    pub(crate) fn take(backend: &dyn GpuBackend) -> Result<Self, gantry_gpu::Error> {
        Ok(Self {
            inventory: backend.inventory()?,
            driver: backend.driver().ok(),
            details: backend.details().unwrap_or_default(),
        })
    }

    /// Whether the driver says that there is no card.
    pub(crate) fn is_empty(&self) -> bool {
        self.inventory.gpus.is_empty() && self.inventory.failed.is_empty()
    }
}

impl Facts {
    pub(crate) fn new(backend: &dyn GpuBackend, driver: DriverInfo) -> Self {
        Self { driver, machine: backend.machine(), details: BTreeMap::new(), vgpu: backend.vgpu() }
    }

    /// Takes over what a look told. `true` if that changes anything.
    pub(crate) fn update(&mut self, look: &Look) -> bool {
        let before = self.clone();
        self.driver = look.driver.clone().unwrap_or_else(|| before.driver.clone());
        self.details.extend(look.details.iter().map(|(id, details)| (id.clone(), details.clone())));
        if look.is_empty() {
            self.details.clear();
        }
        *self != before
    }
}
