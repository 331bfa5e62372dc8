//! What the agent knows and decides: GPUs, what is offered of them, owners. No I/O.
//!
//! ```text
//!   configuration ──▶ plan ──┐
//!   cards ───────────────────┼──▶ offers: the ids of each resource
//!   ledger (who holds what) ─┘
//! ```
//!
//! A device that somebody holds is offered as it was given until it is free: a GPU that was given whole does not become shares
//! under its owner, nor the other way round.

use std::collections::BTreeMap;
use std::sync::Arc;

use gantry_api::IdentityMode;
use gantry_engine::DeviceSets;
use gantry_gpu::Inventory;
use gantry_model::{Fault, FaultKind, Gpu, GpuId, Health, Link, LinkKind, MAX_GPUS, PodKey, Topology};
use gantry_nvidia_config::Config;

mod follow;
mod ledger;
mod offers;
mod plan;
mod prefer;

pub(crate) use follow::Listed;
pub(crate) use ledger::Created;
pub(crate) use offers::{Lists, Part};
pub(crate) use plan::Misfit;

use offers::Offers;
use plan::Plan;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) node: Arc<str>,
    pub(crate) mode: IdentityMode,
    /// The mode of the run that wrote the checkpoint.
    pub(crate) last_mode: Option<IdentityMode>,
    /// The resource of whole GPUs that no rule names.
    primary: Arc<str>,
    config: Arc<Config>,
    /// By index, which is also the position.
    gpus: Vec<Gpu>,
    topology: Topology,
    /// The position of the GPU behind each slot; a slot whose GPU is gone or shared is empty. No GPU is behind two.
    slots: Vec<Option<usize>>,
    /// By UID.
    pods: BTreeMap<Arc<str>, Pod>,
    /// Made when first needed.
    sets: Option<DeviceSets>,
    plan: Plan,
    /// Why the plan is that of earlier cards.
    misfit: Option<Misfit>,
    /// Follows from all of the above.
    offers: Offers,
}

/// A pod that owns devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) key: PodKey,
    pub(crate) containers: BTreeMap<String, Container>,
}

/// What a container was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    /// The ids that the kubelet granted. Unknown where the record was rebuilt from the pod alone.
    pub(crate) devices: Vec<String>,
    /// What they mean, in the same order.
    pub(crate) held: Vec<Held>,
}

/// A device that a container has, or one share of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Held {
    /// The resource under which it was granted.
    pub(crate) resource: Arc<str>,
    /// The GPU or the partition.
    pub(crate) device: GpuId,
    /// The number of the share; `None` for the whole device.
    pub(crate) replica: Option<u32>,
}

impl State {
    /// A state without GPUs; `primary` is the resource of whole GPUs, usually `nvidia.com/gpu`.
    pub(crate) fn new(node: Arc<str>, mode: IdentityMode, primary: Arc<str>, config: Arc<Config>) -> Self {
        Self {
            node,
            mode,
            last_mode: None,
            primary,
            config,
            gpus: Vec::new(),
            topology: Topology::default(),
            slots: Vec::new(),
            pods: BTreeMap::new(),
            sets: None,
            plan: Plan::default(),
            misfit: None,
            offers: Offers::default(),
        }
    }

    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    pub(crate) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    /// The resource of whole GPUs that no rule names.
    pub(crate) fn primary(&self) -> &Arc<str> {
        &self.primary
    }

    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    /// Why what is offered does not follow the cards any more, if so.
    pub(crate) fn misfit(&self) -> Option<&Misfit> {
        self.misfit.as_ref()
    }

    /// What of the configuration means nothing on this node.
    pub(crate) fn notes(&self) -> &[String] {
        &self.plan.notes
    }

    /// The GPU behind each slot.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Option<&GpuId>> {
        self.slots.iter().map(|slot| slot.map(|position| &self.gpus[position].id))
    }

    /// Takes over what an earlier run of the agent wrote down.
    pub(crate) fn restore(
        &mut self,
        gpus: Vec<Gpu>,
        topology: Topology,
        slots: &[Option<GpuId>],
        pods: Vec<Pod>,
    ) {
        self.gpus = gpus;
        self.topology = topology;
        self.pods = pods.into_iter().map(|pod| (Arc::clone(&pod.key.uid), pod)).collect();
        self.replan();
        self.rebuild(slots);
    }

    /// Changes who decides. What is held stays as it is. `true` if that is a change.
    pub(crate) fn set_mode(&mut self, mode: IdentityMode) -> bool {
        let changed = self.mode != mode;
        self.mode = mode;
        if changed {
            self.arrange();
        }
        changed
    }

    /// Offers the cards as another configuration says. One that does not fit them changes nothing.
    pub(crate) fn configure(&mut self, config: Arc<Config>) -> Result<(), Misfit> {
        self.plan = plan::plan(&config, &self.primary, &self.gpus)?;
        self.misfit = None;
        self.config = config;
        self.arrange();
        Ok(())
    }

    /// The cards after [`Self::refresh`].
    pub(crate) fn cards(&self, inventory: &Inventory) -> Vec<Gpu> {
        let lost = inventory.failed.iter().map(|failed| {
            let known = self.gpus.iter().find(|gpu| match &failed.id {
                Some(id) => gpu.id == *id,
                None => gpu.pci_bus_id == failed.pci_bus_id,
            });
            let mut gpu = known.cloned().unwrap_or_else(|| Gpu {
                id: failed.id.clone().unwrap_or_else(|| placeholder(&failed.pci_bus_id)),
                index: failed.index,
                minor: failed.index,
                product: "unknown".into(),
                memory_mib: 0,
                pci_bus_id: failed.pci_bus_id.clone(),
                numa_node: None,
                compute_capability: (0, 0),
                mig_capable: false,
                partitions: None,
                health: Health::Healthy,
            });
            gpu.health = Health::Unhealthy(Fault { kind: FaultKind::Lost, message: failed.error.clone() });
            gpu
        });
        let mut gpus: Vec<Gpu> = inventory.gpus.iter().cloned().chain(lost).collect();
        gpus.sort_by_key(|gpu| gpu.index);
        gpus.truncate(MAX_GPUS);
        // Reports refer to GPUs by position. A driver counts from 0 without gaps; nothing else may depend on that.
        for (position, gpu) in gpus.iter_mut().enumerate() {
            gpu.index = u32::try_from(position).unwrap_or(u32::MAX);
            if let Health::Unhealthy(Fault { kind: FaultKind::Xid(xid), .. }) = gpu.health
                && self.config.health_checks.ignores(xid, false)
            {
                gpu.health = Health::Healthy;
            }
        }
        gpus
    }

    /// Takes over what the driver says. A card that does not answer keeps its place, unhealthy, with what was
    /// known of it; a card that is new takes the place of the one that had its index.
    pub(crate) fn refresh(&mut self, inventory: Inventory) {
        let order: Vec<Option<GpuId>> = self.slots().map(Option::<&GpuId>::cloned).collect();
        let gpus = self.cards(&inventory);
        let size = gpus.len();
        self.topology = if inventory.topology.len() == size {
            inventory.topology
        } else {
            let unknown = Link { gb_per_s: 0, kind: LinkKind::System };
            Topology::from_fn(size, |a, b| inventory.topology.link(a, b).unwrap_or(unknown))
        };
        if self.sets.as_ref().is_some_and(|sets| !sets.describes(&self.topology, &gpus)) {
            self.sets = None;
        }
        self.gpus = gpus;
        self.replan();
        self.rebuild(&order);
    }

    /// Fits the plan to the cards. Where the configuration does not allow them, the earlier plan stays, for the devices that are left.
    fn replan(&mut self) {
        match plan::plan(&self.config, &self.primary, &self.gpus) {
            Ok(plan) => {
                self.plan = plan;
                self.misfit = None;
            }
            Err(misfit) => self.misfit = Some(misfit),
        }
    }

    /// Offers what follows from plan and ledger.
    fn arrange(&mut self) {
        let order: Vec<Option<GpuId>> = self.slots().map(Option::<&GpuId>::cloned).collect();
        self.rebuild(&order);
    }

    /// Changes the health of a GPU or of a partition, for tests. `None` where nothing changed, else what the kubelet knows of it.
    #[cfg(test)]
    pub(crate) fn set_health(&mut self, device: &GpuId, health: Health) -> Option<String> {
        let place = self.position(device)?;
        let gpu = &mut self.gpus[place.gpu];
        let known = match place.partition {
            None => &mut gpu.health,
            Some(partition) => &mut gpu.partitions.as_mut()?.get_mut(partition)?.health,
        };
        if *known == health {
            return None;
        }
        *known = health;
        let ids: Vec<&str> = self
            .offers
            .units()
            .filter(|unit| {
                unit.gpu == place.gpu && (place.partition.is_none() || unit.partition == place.partition)
            })
            .map(|unit| unit.id.as_str())
            .collect();
        Some(match ids[..] {
            [] => device.to_string(),
            [id] => id.to_owned(),
            [id, .., last] => format!("{id} to {last}"),
        })
    }

    /// Where a GPU or a partition is.
    fn position(&self, device: &GpuId) -> Option<Position> {
        self.gpus.iter().enumerate().find_map(|(gpu, card)| {
            if card.id == *device {
                return Some(Position { gpu, partition: None });
            }
            let partitions = card.partitions.as_deref().unwrap_or_default();
            let partition = partitions.iter().position(|partition| partition.id == *device)?;
            Some(Position { gpu, partition: Some(partition) })
        })
    }

    fn device_id(&self, position: Position) -> &GpuId {
        let gpu = &self.gpus[position.gpu];
        let partition = position.partition.and_then(|at| gpu.partitions.as_ref()?.get(at));
        partition.map_or(&gpu.id, |partition| &partition.id)
    }

    /// What keeps a device from new work: the fault of its card, or its own.
    fn fault(&self, position: Position) -> Option<&Fault> {
        let gpu = &self.gpus[position.gpu];
        let partition = position.partition.and_then(|at| gpu.partitions.as_ref()?.get(at));
        [Some(&gpu.health), partition.map(|partition| &partition.health)].into_iter().flatten().find_map(
            |health| match health {
                Health::Healthy => None,
                Health::Unhealthy(fault) => Some(fault),
            },
        )
    }
}

/// Where a device is in the list of cards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) gpu: usize,
    pub(crate) partition: Option<usize>,
}

/// An id for a card whose UUID was never read.
pub(crate) fn placeholder(pci_bus_id: &str) -> GpuId {
    let plain: String =
        pci_bus_id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(50).collect();
    format!("PCI-{plain}").parse().expect("invariant: letters, digits and hyphens are a GPU id")
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
#[path = "state/tests/sharing.rs"]
mod sharing_tests;
#[cfg(test)]
mod tests;
