//! Amounts of everything that a node offers and a pod asks for, except GPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Amounts of CPU, memory, storage, pods and extended resources.
///
/// GPUs are not among them: they are devices, not an amount, and are counted apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Resources {
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Host memory in bytes.
    pub memory_bytes: u64,
    /// Local ephemeral storage in bytes.
    pub ephemeral_bytes: u64,
    /// Pods.
    pub pods: u64,
    /// Every other extended resource, by its full name. An amount of zero is the same as none.
    pub extended: BTreeMap<Arc<str>, u64>,
}

impl Resources {
    /// The sum; `None` where an amount would overflow.
    pub fn checked_add(&self, other: &Self) -> Option<Self> {
        self.zip(other, u64::checked_add)
    }

    /// The difference; `None` where `other` is larger in any amount.
    pub fn checked_sub(&self, other: &Self) -> Option<Self> {
        self.zip(other, u64::checked_sub)
    }

    /// What is left of `self` after `other` is taken, never below zero.
    pub fn saturating_sub(&self, other: &Self) -> Self {
        self.zip(other, |a, b| Some(a.saturating_sub(b))).unwrap_or_default()
    }

    /// The sum, no amount above [`u64::MAX`].
    pub fn saturating_add(&self, other: &Self) -> Self {
        self.zip(other, |a, b| Some(a.saturating_add(b))).unwrap_or_default()
    }

    /// The larger of the two, amount by amount.
    pub fn max(&self, other: &Self) -> Self {
        self.zip(other, |a, b| Some(a.max(b))).unwrap_or_default()
    }

    /// Whether every amount is at most that of `room`.
    pub fn fits_in(&self, room: &Self) -> bool {
        self.cpu_milli <= room.cpu_milli
            && self.memory_bytes <= room.memory_bytes
            && self.ephemeral_bytes <= room.ephemeral_bytes
            && self.pods <= room.pods
            && self.extended.iter().all(|(name, amount)| *amount <= room.extended_amount(name))
    }

    /// The amount of an extended resource, zero where it is not named.
    pub fn extended_amount(&self, name: &str) -> u64 {
        self.extended.get(name).copied().unwrap_or(0)
    }

    fn zip(&self, other: &Self, op: impl Fn(u64, u64) -> Option<u64>) -> Option<Self> {
        let mut extended = BTreeMap::new();
        for name in self.extended.keys().chain(other.extended.keys()) {
            if !extended.contains_key(name) {
                extended.insert(name.clone(), op(self.extended_amount(name), other.extended_amount(name))?);
            }
        }
        Some(Self {
            cpu_milli: op(self.cpu_milli, other.cpu_milli)?,
            memory_bytes: op(self.memory_bytes, other.memory_bytes)?,
            ephemeral_bytes: op(self.ephemeral_bytes, other.ephemeral_bytes)?,
            pods: op(self.pods, other.pods)?,
            extended,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(cpu_milli: u64, fpga: u64) -> Resources {
        Resources {
            cpu_milli,
            extended: BTreeMap::from([("example.com/fpga".into(), fpga)]),
            ..Resources::default()
        }
    }

    #[test]
    fn arithmetic_is_checked_in_every_amount() {
        let (a, b) = (resources(2000, 1), resources(500, 2));
        assert_eq!(a.checked_add(&b), Some(resources(2500, 3)));
        assert_eq!(a.checked_sub(&b), None, "one FPGA is less than two");
        assert_eq!(a.saturating_sub(&b), resources(1500, 0));
        assert_eq!(resources(u64::MAX, 0).checked_add(&resources(1, 0)), None);
        assert_eq!(a.max(&b), resources(2000, 2));
    }

    #[test]
    fn what_is_not_offered_does_not_fit() {
        assert!(!resources(1, 1).fits_in(&Resources { cpu_milli: 5, ..Resources::default() }));
        assert!(resources(1, 0).fits_in(&Resources { cpu_milli: 5, ..Resources::default() }));
    }
}
