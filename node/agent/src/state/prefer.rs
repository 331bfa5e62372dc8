//! Which of the free devices the kubelet should take. No call of the driver, and one answer to one question.

use std::cmp::Reverse;
use std::collections::HashMap;

use gantry_engine::{DeviceSets, GpuMask};
use gantry_model::{Gpu, Topology};
use gantry_nvidia_config::AllocationPolicy;

use super::offers::Unit;
use super::{Position, State};
use crate::Error;

/// Up to so many GPUs the tables for choices are made in microseconds.
const QUICK: usize = 8;

impl State {
    /// The devices that the kubelet should take: those that are required first, the others in the order of their GPUs.
    ///
    /// Whole GPUs: the set that is best connected. Shares and partitions: as the policy says, a device that was not chosen yet
    /// before one that was.
    pub(crate) fn preferred(
        &mut self,
        resource: &str,
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
        let free = self.units_of(resource, available)?;
        let must = self.units_of(resource, must_include)?;
        if must.iter().any(|unit| !free.contains(unit)) {
            return Err(refuse("what is required must be available"));
        }
        if must.len() > count as usize {
            return Err(refuse("more are required than asked for"));
        }
        if free.len() < count as usize {
            return Err(refuse("fewer are available than asked for"));
        }
        let is_whole = |unit: &&usize| {
            let unit = self.offered_unit(**unit);
            unit.replica.is_none() && unit.partition.is_none()
        };
        let chosen = if free.iter().all(|unit| is_whole(&unit)) {
            self.connected(&free, &must, count)
        } else {
            self.spread(resource, &free, &must, count as usize)
        };
        Ok(chosen.into_iter().map(|unit| self.offered_unit(unit).id.clone()).collect())
    }

    fn offered_unit(&self, at: usize) -> &Unit {
        self.offers.at(at)
    }

    /// Positions among the offers, in their order, each once.
    fn units_of(&self, resource: &str, ids: &[String]) -> Result<Vec<usize>, Error> {
        let mut list = ids
            .iter()
            .map(|id| self.unit(resource, id).map(|_| self.offers.index(id)))
            .collect::<Result<Vec<_>, _>>()?;
        list.sort_unstable();
        list.dedup();
        Ok(list)
    }

    /// The best connected whole GPUs.
    fn connected(&mut self, free: &[usize], must: &[usize], count: u32) -> Vec<usize> {
        let mask = |state: &Self, units: &[usize]| {
            units.iter().fold(0, |mask: GpuMask, unit| mask | 1 << state.offered_unit(*unit).gpu)
        };
        let required = mask(self, must);
        let chosen = self
            .choose(mask(self, free), required, count)
            .expect("invariant: sizes were checked, and no two ids of whole GPUs mean one GPU");
        let mut units: Vec<usize> =
            free.iter().copied().filter(|unit| chosen >> self.offered_unit(*unit).gpu & 1 == 1).collect();
        units.sort_by_key(|unit| {
            let gpu = self.offered_unit(*unit).gpu;
            (required >> gpu & 1 == 0, gpu)
        });
        units
    }

    /// Devices one after the other, as the policy says.
    fn spread(&self, resource: &str, free: &[usize], must: &[usize], count: usize) -> Vec<usize> {
        #[derive(Default)]
        struct Device {
            /// Free shares, the last first.
            free: Vec<usize>,
            /// How many were chosen in this round.
            chosen: usize,
        }
        // What is offered of a card and not free is taken. By position, for ties to be decided by it.
        let mut taken: HashMap<usize, usize> = HashMap::new();
        for unit in self.offers.of(resource) {
            *taken.entry(unit.gpu).or_default() += 1;
        }
        let mut devices: std::collections::BTreeMap<Position, Device> = std::collections::BTreeMap::new();
        for at in free.iter().rev() {
            let unit = self.offered_unit(*at);
            *taken.entry(unit.gpu).or_default() -= 1;
            let device = devices.entry(unit.position()).or_default();
            if must.contains(at) {
                device.chosen += 1;
                *taken.entry(unit.gpu).or_default() += 1;
            } else {
                device.free.push(*at);
            }
        }
        let mut units = must.to_vec();
        while units.len() < count {
            let key = |position: &Position, device: &Device| {
                let taken = taken.get(&position.gpu).copied().unwrap_or_default();
                let by_policy = match self.config.plugin.allocation_policy {
                    AllocationPolicy::Distributed => (taken, Reverse(0)),
                    AllocationPolicy::Packed => (0, Reverse(taken)),
                };
                (device.chosen, by_policy, *position)
            };
            let best = devices
                .iter_mut()
                .filter(|(_, device)| !device.free.is_empty())
                .min_by_key(|(position, device)| key(position, device));
            let Some((position, device)) = best else {
                break;
            };
            device.chosen += 1;
            *taken.entry(position.gpu).or_default() += 1;
            units.extend(device.free.pop());
        }
        units
    }

    pub(super) fn choose(&mut self, free: GpuMask, must: GpuMask, size: u32) -> Option<GpuMask> {
        let sets = self.sets.get_or_insert_with(|| DeviceSets::new(&self.topology, &self.gpus));
        sets.device_set(free, must, size)
    }

    /// What choices need and has not been computed, where that takes long enough to be done before the kubelet asks.
    pub(crate) fn uncomputed(&self) -> Option<(Topology, Vec<Gpu>)> {
        let slow = self.sets.is_none() && self.gpus.len() > QUICK;
        slow.then(|| (self.topology.clone(), self.gpus.clone()))
    }

    /// Takes over what was computed, unless the cards have changed since.
    pub(crate) fn computed(&mut self, sets: DeviceSets) {
        if self.sets.is_none() && sets.describes(&self.topology, &self.gpus) {
            self.sets = Some(sets);
        }
    }
}
