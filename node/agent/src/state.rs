//! What the agent knows and decides: GPUs, slots, owners. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gantry_api::{ASSIGNMENT_ANNOTATION, ContainerGpus, IdentityMode, decode_assignment};
use gantry_engine::{DeviceSets, GpuMask};
use gantry_gpu::Inventory;
use gantry_model::{Fault, FaultKind, Gpu, GpuId, Health, Link, LinkKind, MAX_GPUS, PodKey, Topology};
use gantry_proto::deviceplugin::{Device, HEALTHY, NumaNode, TopologyInfo, UNHEALTHY};

use crate::{ContainerIdentity, Error};

/// What the ids of slots begin with.
const SLOT: &str = "slot-";

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) node: Arc<str>,
    pub(crate) mode: IdentityMode,
    /// By index, which is also the position.
    gpus: Vec<Gpu>,
    topology: Topology,
    /// The position of the GPU behind each slot: a permutation.
    slots: Vec<usize>,
    /// By UID.
    pods: BTreeMap<Arc<str>, Pod>,
    /// Made when first needed.
    sets: Option<DeviceSets>,
}

/// A pod that owns GPUs.
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
    pub(crate) gpus: Vec<GpuId>,
}

impl State {
    pub(crate) fn new(node: Arc<str>, mode: IdentityMode) -> Self {
        Self {
            node,
            mode,
            gpus: Vec::new(),
            topology: Topology::default(),
            slots: Vec::new(),
            pods: BTreeMap::new(),
            sets: None,
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

    /// The GPU behind each slot.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &GpuId> {
        self.slots.iter().map(|position| &self.gpus[*position].id)
    }

    /// Takes over what an earlier run of the agent wrote down.
    pub(crate) fn restore(&mut self, gpus: Vec<Gpu>, topology: Topology, slots: &[GpuId], pods: Vec<Pod>) {
        self.gpus = gpus;
        self.topology = topology;
        self.slots = Vec::new();
        self.arrange(slots);
        self.pods = pods.into_iter().map(|pod| (Arc::clone(&pod.key.uid), pod)).collect();
    }

    /// Takes over what the driver says. A card that does not answer keeps its place, unhealthy, with what was
    /// known of it; a card that is new takes the place of the one that had its index.
    pub(crate) fn refresh(&mut self, inventory: Inventory) {
        let order: Vec<GpuId> = self.slots().cloned().collect();
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
        }
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
        self.arrange(&order);
    }

    /// Puts GPUs behind slots in the given order; those that it does not name come in index order where there is room.
    fn arrange(&mut self, order: &[GpuId]) {
        let position = |id: &GpuId| self.gpus.iter().position(|gpu| gpu.id == *id);
        let mut slots: Vec<Option<usize>> = vec![None; self.gpus.len()];
        let mut rest: BTreeSet<usize> = (0..self.gpus.len()).collect();
        for (slot, id) in slots.iter_mut().zip(order) {
            *slot = position(id).filter(|position| rest.remove(position));
        }
        let mut rest = rest.into_iter();
        self.slots = slots.into_iter().filter_map(|slot| slot.or_else(|| rest.next())).collect();
    }

    /// Changes a GPU's health. `None` where nothing changed, else the id that the kubelet knows.
    pub(crate) fn set_health(&mut self, gpu: &GpuId, health: Health) -> Option<String> {
        let position = self.gpus.iter().position(|known| known.id == *gpu)?;
        if self.gpus[position].health == health {
            return None;
        }
        self.gpus[position].health = health;
        let slot = self.slots.iter().position(|behind| *behind == position)?;
        Some(self.device_id(slot))
    }

    fn device_id(&self, slot: usize) -> String {
        match self.mode {
            IdentityMode::Assignment => format!("{SLOT}{slot}"),
            IdentityMode::Kubelet => self.gpus[self.slots[slot]].id.to_string(),
        }
    }

    /// What the kubelet is told.
    pub(crate) fn devices(&self) -> Vec<Device> {
        (0..self.slots.len())
            .map(|slot| {
                let gpu = &self.gpus[self.slots[slot]];
                // The NUMA node of a slot is not known before its GPU is, and a guess would mislead the topology manager.
                let numa = gpu.numa_node.filter(|_| self.mode == IdentityMode::Kubelet);
                Device {
                    id: self.device_id(slot),
                    health: if gpu.health.is_healthy() { HEALTHY } else { UNHEALTHY }.to_owned(),
                    topology: numa.map(|node| TopologyInfo { nodes: vec![NumaNode { id: i64::from(node) }] }),
                }
            })
            .collect()
    }

    fn slot(&self, id: &str) -> Result<usize, Error> {
        let found = match self.mode {
            IdentityMode::Assignment => id
                .strip_prefix(SLOT)
                // Only the form that was offered: not "slot-01", not "slot-+1".
                .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|number| number.parse().ok())
                .filter(|slot| *slot < self.slots.len() && self.device_id(*slot) == id),
            IdentityMode::Kubelet => {
                self.slots.iter().position(|position| self.gpus[*position].id.as_str() == id)
            }
        };
        found.ok_or_else(|| Error::UnknownDevice {
            id: id.chars().take(80).collect(),
            offered: self.offered(),
        })
    }

    fn offered(&self) -> String {
        match (self.slots.len(), self.mode) {
            (0, _) => "no device".to_owned(),
            (count, IdentityMode::Assignment) => format!("{SLOT}0 to {SLOT}{}", count - 1),
            (count, IdentityMode::Kubelet) => format!("the UUIDs of {count} GPUs"),
        }
    }

    /// Checks devices that the kubelet wants to hand to one container: each once, in its order. The GPUs behind them.
    pub(crate) fn allocate(&self, ids: &[String]) -> Result<Vec<&Gpu>, Error> {
        let mut gpus: Vec<&Gpu> = Vec::with_capacity(ids.len());
        for id in ids {
            let gpu = &self.gpus[self.slots[self.slot(id)?]];
            if let Health::Unhealthy(fault) = &gpu.health {
                return Err(Error::UnhealthyDevice {
                    id: id.clone(),
                    gpu: gpu.id.clone(),
                    fault: fault.clone(),
                });
            }
            if !gpus.iter().any(|known| known.id == gpu.id) {
                gpus.push(gpu);
            }
        }
        Ok(gpus)
    }

    /// The best `size` of the available devices, those that must be included first.
    pub(crate) fn preferred(
        &mut self,
        available: &[String],
        must_include: &[String],
        size: i32,
    ) -> Result<Vec<String>, Error> {
        let refuse = |rule| Error::Preference {
            size,
            available: available.len(),
            must_include: must_include.len(),
            rule,
        };
        let count = u32::try_from(size).map_err(|_| refuse("the size must not be negative"))?;
        let free = self.mask(available)?;
        let must = self.mask(must_include)?;
        if must & !free != 0 {
            return Err(refuse("what is required must be available"));
        }
        if must.count_ones() > count {
            return Err(refuse("more are required than asked for"));
        }
        let chosen =
            self.choose(free, must, count).ok_or_else(|| refuse("fewer are available than asked for"))?;
        let mut slots: Vec<usize> =
            (0..self.slots.len()).filter(|slot| chosen >> self.slots[*slot] & 1 == 1).collect();
        slots.sort_by_key(|slot| (must >> self.slots[*slot] & 1 == 0, self.slots[*slot]));
        Ok(slots.into_iter().map(|slot| self.device_id(slot)).collect())
    }

    fn mask(&self, ids: &[String]) -> Result<GpuMask, Error> {
        ids.iter().try_fold(0, |mask, id| Ok(mask | 1 << self.slots[self.slot(id)?]))
    }

    fn choose(&mut self, free: GpuMask, must: GpuMask, size: u32) -> Option<GpuMask> {
        let sets = self.sets.get_or_insert_with(|| DeviceSets::new(&self.topology, &self.gpus));
        sets.device_set(free, must, size)
    }

    /// Decides which GPUs a container gets, and records it. On an error nothing is changed.
    pub(crate) fn create(&mut self, container: &ContainerIdentity) -> Result<Vec<GpuId>, Error> {
        let mut granted: Vec<usize> = Vec::with_capacity(container.devices.len());
        for id in &container.devices {
            let slot = self.slot(id)?;
            if granted.contains(&slot) {
                return Err(Error::GrantedTwice {
                    pod: Box::new(container.pod.clone()),
                    container: container.name.clone(),
                    id: id.clone(),
                });
            }
            granted.push(slot);
        }
        if granted.is_empty() {
            return self.check_ungranted(container).map(|()| Vec::new());
        }
        let positions = match self.mode {
            IdentityMode::Assignment => self.assigned(container, &granted)?,
            IdentityMode::Kubelet => granted.iter().map(|slot| self.slots[*slot]).collect(),
        };
        for position in &positions {
            self.check(container, *position)?;
        }
        if self.mode == IdentityMode::Assignment {
            for (slot, position) in granted.iter().zip(&positions) {
                let other = self.slots.iter().position(|behind| behind == position);
                self.slots.swap(*slot, other.expect("invariant: the slots are a permutation of the GPUs"));
            }
        }
        let gpus: Vec<GpuId> = positions.iter().map(|position| self.gpus[*position].id.clone()).collect();
        let pod = self
            .pods
            .entry(Arc::clone(&container.pod.uid))
            .or_insert_with(|| Pod { key: container.pod.clone(), containers: BTreeMap::new() });
        let record = Container { devices: container.devices.clone(), gpus: gpus.clone() };
        pod.containers.insert(container.name.clone(), record);
        Ok(gpus)
    }

    /// Refuses a container that was assigned GPUs and granted none: a kubelet that admitted it before it knew of the
    /// plugin would let it run without.
    fn check_ungranted(&self, container: &ContainerIdentity) -> Result<(), Error> {
        let ContainerIdentity { pod, name, annotations, .. } = container;
        let assignment = annotations.get(ASSIGNMENT_ANNOTATION).and_then(|text| decode_assignment(text).ok());
        let assigned = assignment
            .filter(|assignment| self.mode == IdentityMode::Assignment && assignment.node == self.node)
            .and_then(|assignment| assignment.containers.get(name.as_str()).map(Vec::len))
            .unwrap_or_default();
        if assigned == 0 {
            return Ok(());
        }
        Err(Error::Count { pod: Box::new(pod.clone()), container: name.clone(), assigned, granted: 0 })
    }

    /// The positions of the GPUs for a container, as many as slots were granted.
    fn assigned(&mut self, container: &ContainerIdentity, granted: &[usize]) -> Result<Vec<usize>, Error> {
        let ContainerIdentity { pod, name, annotations, .. } = container;
        let Some(text) = annotations.get(ASSIGNMENT_ANNOTATION) else {
            return self.chosen(container, granted);
        };
        let assignment = decode_assignment(text)
            .map_err(|source| Error::Assignment { pod: Box::new(pod.clone()), source: Box::new(source) })?;
        if assignment.node != self.node {
            return Err(Error::WrongNode {
                pod: Box::new(pod.clone()),
                assigned: assignment.node.to_string(),
                node: self.node.to_string(),
            });
        }
        let gpus = assignment.containers.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        if gpus.len() != granted.len() {
            return Err(Error::Count {
                pod: Box::new(pod.clone()),
                container: name.clone(),
                assigned: gpus.len(),
                granted: granted.len(),
            });
        }
        let position = |gpu: &GpuId| {
            self.gpus.iter().position(|known| known.id == *gpu).ok_or_else(|| Error::NoSuchGpu {
                pod: Box::new(pod.clone()),
                container: name.clone(),
                gpu: gpu.clone(),
                node: self.node.to_string(),
            })
        };
        gpus.iter().map(position).collect()
    }

    /// For a pod that another scheduler has bound. A container that is started again, and one that is granted a slot
    /// that an earlier container of its pod had, keep the GPU; the others get the engine's choice of the free ones.
    fn chosen(&mut self, container: &ContainerIdentity, granted: &[usize]) -> Result<Vec<usize>, Error> {
        let records = self.pods.get(&container.pod.uid).map(|pod| &pod.containers);
        let known: BTreeMap<&str, &GpuId> = records
            .into_iter()
            .flat_map(BTreeMap::values)
            .flat_map(|record| record.devices.iter().map(String::as_str).zip(&record.gpus))
            .collect();
        let kept: Vec<Option<usize>> = container
            .devices
            .iter()
            .map(|id| known.get(id.as_str()))
            .map(|gpu| gpu.and_then(|gpu| self.gpus.iter().position(|known| known.id == **gpu)))
            .collect();
        let owned: BTreeSet<&GpuId> =
            self.pods.values().flat_map(|pod| pod.containers.values()).flat_map(|c| &c.gpus).collect();
        let is_free = |gpu: &&Gpu| gpu.health.is_healthy() && !owned.contains(&gpu.id);
        let free = self.gpus.iter().filter(is_free).fold(0, |mask: GpuMask, gpu| mask | 1 << gpu.index);
        let wanted = kept.iter().filter(|kept| kept.is_none()).count();
        // GPUs that stay count for how well the set is connected.
        let must = kept.iter().flatten().fold(0, |mask: GpuMask, position| mask | 1 << position);
        let size = u32::try_from(granted.len()).unwrap_or(u32::MAX);
        let chosen = self.choose(free | must, must, size).ok_or_else(|| Error::NotEnough {
            pod: Box::new(container.pod.clone()),
            container: container.name.clone(),
            wanted,
            free: free.count_ones(),
            node: self.node.to_string(),
        })?;
        let mut fresh = (0..self.gpus.len()).filter(|position| (chosen & !must) >> position & 1 == 1);
        Ok(kept.into_iter().filter_map(|kept| kept.or_else(|| fresh.next())).collect())
    }

    /// Refuses a GPU that is out of service or belongs to another pod.
    fn check(&self, container: &ContainerIdentity, position: usize) -> Result<(), Error> {
        let gpu = &self.gpus[position];
        let owns = |pod: &&Pod| pod.containers.values().any(|container| container.gpus.contains(&gpu.id));
        let owner = self.pods.values().filter(|pod| pod.key.uid != container.pod.uid).find(owns);
        if let Some(owner) = owner {
            return Err(Error::Taken {
                gpu: gpu.id.clone(),
                pod: Box::new(container.pod.clone()),
                owner: Box::new(owner.key.clone()),
            });
        }
        if let Health::Unhealthy(fault) = &gpu.health {
            return Err(Error::UnhealthyGpu {
                pod: Box::new(container.pod.clone()),
                container: container.name.clone(),
                gpu: gpu.id.clone(),
                fault: fault.clone(),
            });
        }
        Ok(())
    }

    /// Records what a pod's assignment says, for a pod that runs already. `false` where it says nothing for this node.
    pub(crate) fn adopt(&mut self, pod: PodKey, annotation: &str) -> Result<bool, gantry_api::Error> {
        let assignment = decode_assignment(annotation)?;
        if assignment.node != self.node || self.pods.contains_key(&pod.uid) {
            return Ok(false);
        }
        let record = |gpus: Vec<GpuId>| Container { devices: Vec::new(), gpus };
        let containers =
            assignment.containers.into_iter().map(|(name, gpus)| (name.to_string(), record(gpus))).collect();
        self.pods.insert(Arc::clone(&pod.uid), Pod { key: pod, containers });
        Ok(true)
    }

    /// Forgets pods that are gone. `true` if there were any.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) -> bool {
        let before = self.pods.len();
        self.pods.retain(|uid, _| keep(uid));
        self.pods.len() != before
    }

    /// Who uses what.
    pub(crate) fn in_use(&self) -> Vec<ContainerGpus> {
        let mut list: Vec<_> = self
            .pods
            .values()
            .flat_map(|pod| {
                pod.containers.iter().map(|(name, container)| ContainerGpus {
                    namespace: pod.key.namespace.to_string(),
                    pod: pod.key.name.to_string(),
                    container: name.clone(),
                    gpus: container.gpus.iter().map(GpuId::to_string).collect(),
                })
            })
            .collect();
        list.sort();
        list
    }
}

/// An id for a card whose UUID was never read.
fn placeholder(pci_bus_id: &str) -> GpuId {
    let plain: String =
        pci_bus_id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(50).collect();
    format!("PCI-{plain}").parse().expect("invariant: letters, digits and hyphens are a GPU id")
}

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;
