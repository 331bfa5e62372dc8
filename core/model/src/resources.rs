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
    /// The larger of the two, amount by amount.
    pub fn max(&self, other: &Self) -> Self {
        let names = self.extended.keys().chain(other.extended.keys());
        let larger = |name: &Arc<str>| self.extended_amount(name).max(other.extended_amount(name));
        Self {
            cpu_milli: self.cpu_milli.max(other.cpu_milli),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            ephemeral_bytes: self.ephemeral_bytes.max(other.ephemeral_bytes),
            pods: self.pods.max(other.pods),
            extended: names.map(|name| (name.clone(), larger(name))).collect(),
        }
    }

    /// The amount of an extended resource, zero where it is not named.
    pub fn extended_amount(&self, name: &str) -> u64 {
        self.extended.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_is_taken_of_every_amount() {
        let resources = |cpu_milli, name: &str, amount| Resources {
            cpu_milli,
            extended: BTreeMap::from([(name.into(), amount)]),
            ..Resources::default()
        };
        let (a, b) = (resources(2000, "a", 1), resources(500, "b", 2));
        let max = a.max(&b);
        assert_eq!((max.cpu_milli, max.extended_amount("a"), max.extended_amount("b")), (2000, 1, 2));
        assert_eq!(max, b.max(&a));
    }
}
