//! Who has what. The last line of defence: a device is never in the hands of two owners, whoever says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use gantry_api::{ASSIGNMENT_ANNOTATION, ContainerGpus, IdentityMode, decode_assignment};
use gantry_engine::GpuMask;
use gantry_model::{GpuId, PodKey};

use super::offers::{Unit, compatible, split};
use super::{Container, Held, Pod, Position, State};
use crate::{ContainerIdentity, Error};

/// What a container has now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Created {
    /// GPUs and partitions, each once, in the order in which they were granted.
    pub(crate) devices: Vec<GpuId>,
    /// Those of them that slots stand for: the kubelet's answer does not bring them.
    pub(crate) behind_slots: Vec<GpuId>,
}

impl State {
    /// Everything that containers hold.
    pub(super) fn holds(&self) -> impl Iterator<Item = &Held> {
        self.pods.values().flat_map(|pod| pod.containers.values()).flat_map(|container| &container.held)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn create(&mut self, container: &ContainerIdentity) -> Result<Vec<GpuId>, Error> {
        self.grant(container, BTreeSet::new).map(|created| created.devices)
    }

    /// Decides which devices a container gets, and records it. On an error nothing is changed. `promised` gives the
    /// GPUs that assignments of other pods of this node name; it is asked only for a pod that has none itself.
    pub(crate) fn grant(
        &mut self,
        container: &ContainerIdentity,
        promised: impl FnOnce() -> BTreeSet<GpuId>,
    ) -> Result<Created, Error> {
        let mut units: Vec<Unit> = Vec::with_capacity(container.devices.len());
        for id in &container.devices {
            let unit = self.granted(id)?;
            if units.iter().any(|known| known.id == unit.id) {
                return Err(Error::GrantedTwice {
                    pod: Box::new(container.pod.clone()),
                    container: container.name.clone(),
                    id: id.clone(),
                });
            }
            units.push(unit);
        }
        // The ids of slots, and the slots.
        let slots: Vec<(&String, usize)> =
            container.devices.iter().zip(&units).filter_map(|(id, unit)| Some((id, unit.slot?))).collect();
        if slots.is_empty() {
            self.check_ungranted(container)?;
        }
        if units.is_empty() {
            return Ok(Created::default());
        }
        let positions =
            if slots.is_empty() { Vec::new() } else { self.assigned(container, &slots, promised)? };
        let mut behind = positions.iter();
        let held: Vec<Held> = units
            .iter()
            .map(|unit| {
                let position = match unit.slot {
                    Some(_) => Position {
                        gpu: *behind.next().expect("invariant: a GPU was chosen for each slot"),
                        partition: None,
                    },
                    None => unit.position(),
                };
                Held {
                    resource: Arc::clone(&unit.resource),
                    device: self.device_id(position).clone(),
                    replica: unit.replica,
                }
            })
            .collect();
        for hold in &held {
            self.check(container, hold)?;
        }
        for ((_, slot), position) in slots.iter().zip(&positions) {
            let other = self.slots.iter().position(|behind| behind.as_ref() == Some(position));
            self.slots.swap(*slot, other.expect("invariant: what was chosen is behind a slot"));
        }
        let mut devices: Vec<GpuId> = Vec::with_capacity(held.len());
        for hold in &held {
            if !devices.contains(&hold.device) {
                devices.push(hold.device.clone());
            }
        }
        let behind_slots = positions.iter().map(|position| self.gpus[*position].id.clone()).collect();
        let pod = self
            .pods
            .entry(Arc::clone(&container.pod.uid))
            .or_insert_with(|| Pod { key: container.pod.clone(), containers: BTreeMap::new() });
        let record = Container { devices: container.devices.clone(), held };
        pod.containers.insert(container.name.clone(), record);
        self.arrange();
        Ok(Created { devices, behind_slots })
    }

    /// What the kubelet means by an id: also one that is no longer offered, for a container of earlier days that is started again.
    pub(super) fn granted(&self, id: &str) -> Result<Unit, Error> {
        if let Some(unit) = self.offers.get(id) {
            return Ok(unit.clone());
        }
        let former = split(id).and_then(|(device, replica)| {
            let Position { gpu, partition } = self.position(&device)?;
            let entry = self.plan.entries.iter().find(|entry| entry.device == device);
            let resource =
                entry.map_or_else(|| Arc::clone(&self.primary), |entry| Arc::clone(&entry.resource));
            Some(Unit { id: id.to_owned(), resource, gpu, partition, replica, slot: None })
        });
        former.ok_or_else(|| Error::UnknownDevice {
            id: id.chars().take(80).collect(),
            offered: self.offered(&self.primary),
        })
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
    fn assigned(
        &mut self,
        container: &ContainerIdentity,
        granted: &[(&String, usize)],
        promised: impl FnOnce() -> BTreeSet<GpuId>,
    ) -> Result<Vec<usize>, Error> {
        let ContainerIdentity { pod, name, annotations, .. } = container;
        let Some(text) = annotations.get(ASSIGNMENT_ANNOTATION) else {
            return self.chosen(container, granted, promised);
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
            let position =
                self.gpus.iter().position(|known| known.id == *gpu).ok_or_else(|| Error::NoSuchGpu {
                    pod: Box::new(pod.clone()),
                    container: name.clone(),
                    gpu: gpu.clone(),
                    node: self.node.to_string(),
                })?;
            if self.slots.contains(&Some(position)) {
                return Ok(position);
            }
            // Given whole under its own id: it is no slot until it is free.
            let whole = Held { resource: Arc::clone(&self.primary), device: gpu.clone(), replica: None };
            if let Some(owner) =
                self.other_owner(&pod.uid, &whole).filter(|_| self.holds().any(|held| *held == whole))
            {
                return Err(Error::Taken {
                    gpu: gpu.clone(),
                    pod: Box::new(pod.clone()),
                    owner: Box::new(owner.clone()),
                });
            }
            let units = self.offers.units().filter(|unit| unit.gpu == position);
            let resources: BTreeSet<&str> = units.map(|unit| &*unit.resource).collect();
            Err(Error::NotWhole {
                pod: Box::new(pod.clone()),
                container: name.clone(),
                gpu: gpu.clone(),
                offered: resources.into_iter().collect::<Vec<_>>().join(", "),
            })
        };
        gpus.iter().map(position).collect()
    }

    /// For a pod that another scheduler has bound. A container that is started again, and one that is granted a slot
    /// that an earlier container of its pod had, keep the GPU; the others get the engine's choice of the free ones, and last of those that
    /// are promised to a pod whose containers are still to come: it can have no other.
    fn chosen(
        &mut self,
        container: &ContainerIdentity,
        granted: &[(&String, usize)],
        promised: impl FnOnce() -> BTreeSet<GpuId>,
    ) -> Result<Vec<usize>, Error> {
        let records = self.pods.get(&container.pod.uid).map(|pod| &pod.containers);
        let known: BTreeMap<&str, &GpuId> = records
            .into_iter()
            .flat_map(BTreeMap::values)
            .flat_map(|record| record.devices.iter().map(String::as_str).zip(&record.held))
            .map(|(id, held)| (id, &held.device))
            .collect();
        let kept: Vec<Option<usize>> = granted
            .iter()
            .map(|(id, _)| known.get(id.as_str()))
            .map(|gpu| gpu.and_then(|gpu| self.gpus.iter().position(|known| known.id == **gpu)))
            .map(|position| position.filter(|position| self.slots.contains(&Some(*position))))
            .collect();
        let owned: BTreeSet<usize> = self
            .holds()
            .filter_map(|held| self.position(&held.device))
            .map(|position| position.gpu)
            .collect();
        let slots = self.slots.iter().flatten();
        let free = slots
            .filter(|position| self.gpus[**position].health.is_healthy() && !owned.contains(position))
            .fold(0, |mask: GpuMask, position| mask | 1 << position);
        let wanted = kept.iter().filter(|kept| kept.is_none()).count();
        // GPUs that stay count for how well the set is connected.
        let must = kept.iter().flatten().fold(0, |mask: GpuMask, position| mask | 1 << position);
        let size = u32::try_from(granted.len()).unwrap_or(u32::MAX);
        let promised = promised();
        let unpromised = (0..self.gpus.len())
            .filter(|position| !promised.contains(&self.gpus[*position].id))
            .fold(0, |mask: GpuMask, position| mask | 1 << position);
        let chosen = self.choose(free & unpromised | must, must, size);
        // More was bound here than there is: the kubelet refuses a pod, and it need not be this one.
        let chosen =
            chosen.or_else(|| self.choose(free | must, must, size)).ok_or_else(|| Error::NotEnough {
                pod: Box::new(container.pod.clone()),
                container: container.name.clone(),
                wanted,
                free: free.count_ones(),
                node: self.node.to_string(),
            })?;
        let mut fresh = (0..self.gpus.len()).filter(|position| (chosen & !must) >> position & 1 == 1);
        Ok(kept.into_iter().filter_map(|kept| kept.or_else(|| fresh.next())).collect())
    }

    /// Refuses a device that is out of service, or that another pod has: as a whole, as the same share, or its card or a partition of it.
    fn check(&self, container: &ContainerIdentity, wanted: &Held) -> Result<(), Error> {
        if let Some(owner) = self.other_owner(&container.pod.uid, wanted) {
            return Err(Error::Taken {
                gpu: wanted.device.clone(),
                pod: Box::new(container.pod.clone()),
                owner: Box::new(owner.clone()),
            });
        }
        if let Some(fault) = self.position(&wanted.device).and_then(|position| self.fault(position)) {
            return Err(Error::UnhealthyGpu {
                pod: Box::new(container.pod.clone()),
                container: container.name.clone(),
                gpu: wanted.device.clone(),
                fault: fault.clone(),
            });
        }
        Ok(())
    }

    /// The pod that has a device, as a whole, as the same share, or its card or a partition of it, if it is another than this one.
    pub(super) fn other_owner(&self, uid: &str, wanted: &Held) -> Option<&PodKey> {
        let position = self.position(&wanted.device);
        let related = |held: &&Held| {
            let same = held.device == wanted.device && !compatible(held, wanted);
            same || (held.device != wanted.device
                && self
                    .position(&held.device)
                    .zip(position)
                    .is_some_and(|(a, b)| a.gpu == b.gpu && (a.partition.is_none() || b.partition.is_none())))
        };
        let mut others = self.pods.values().filter(|pod| *pod.key.uid != *uid);
        let owner = others.find(|pod| {
            pod.containers.values().flat_map(|container| &container.held).any(|held| related(&held))
        });
        owner.map(|owner| &owner.key)
    }

    /// Records what a pod's assignment says, for a pod that runs already. `false` where it says nothing for this node.
    pub(crate) fn adopt(&mut self, pod: PodKey, annotation: &str) -> Result<bool, gantry_api::Error> {
        let assignment = decode_assignment(annotation)?;
        if assignment.node != self.node || self.pods.contains_key(&pod.uid) {
            return Ok(false);
        }
        let record = |gpus: Vec<GpuId>| Container {
            devices: Vec::new(),
            held: gpus
                .into_iter()
                .map(|device| Held { resource: Arc::clone(&self.primary), device, replica: None })
                .collect(),
        };
        let containers =
            assignment.containers.into_iter().map(|(name, gpus)| (name.to_string(), record(gpus))).collect();
        self.pods.insert(Arc::clone(&pod.uid), Pod { key: pod, containers });
        self.arrange();
        Ok(true)
    }

    /// Forgets pods that are gone. `true` if there were any.
    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) -> bool {
        let before = self.pods.len();
        self.pods.retain(|uid, _| keep(uid));
        let changed = self.pods.len() != before;
        if changed {
            self.arrange();
        }
        changed
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
                    gpus: container.held.iter().map(|held| held.device.to_string()).collect(),
                })
            })
            .collect();
        list.sort();
        list
    }
}
