//! How the GPUs of one node are connected.

/// The most GPUs that one node can have: what a set of them in 64 bits holds.
pub const MAX_GPUS: usize = 64;

/// The nearest thing that two GPUs share, from farthest to nearest.
/// The names in `nvidia-smi topo -m` are SYS, NODE, PHB, PXB, PIX and NV#.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// Through the interconnect between NUMA nodes (SYS).
    System,
    /// Through host bridges within one NUMA node (NODE).
    Node,
    /// Through one PCIe host bridge (PHB).
    HostBridge,
    /// Through several PCIe switches (PXB).
    MultiSwitch,
    /// Through one PCIe switch (PIX).
    SingleSwitch,
    /// Direct NVLink or NVSwitch with this many lanes (NV#).
    NvLink(u8),
}

/// A connection between two GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// Bandwidth in GB/s, both directions together. First, so that links order by what they carry.
    pub gb_per_s: u32,
    /// What carries it.
    pub kind: LinkKind,
}

impl Link {
    /// The most that a link can carry, in GB/s: far beyond any machine, and little enough that all links of a node add up in 32 bits.
    pub const MAX_GB_PER_S: u32 = 100_000;
}

/// The links among the GPUs of one node, by index. Symmetric; a GPU has no link to itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    size: usize,
    /// Row by row, `size * size` entries.
    links: Vec<Option<Link>>,
}

impl Topology {
    /// Builds the matrix for `size` GPUs from `link(a, b)`, asked once for each pair with `a < b`.
    pub fn from_fn(size: usize, mut link: impl FnMut(usize, usize) -> Link) -> Self {
        let mut links = vec![None; size * size];
        for a in 0..size {
            for b in a + 1..size {
                let value = Some(link(a, b));
                links[a * size + b] = value;
                links[b * size + a] = value;
            }
        }
        Self { size, links }
    }

    /// The number of GPUs.
    pub fn len(&self) -> usize {
        self.size
    }

    /// Whether there is no GPU at all.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// The link between two GPUs; `None` for a GPU and itself, or an index out of range.
    pub fn link(&self, a: usize, b: usize) -> Option<Link> {
        if a < self.size && b < self.size { self.links[a * self.size + b] } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_symmetric_and_never_to_oneself() {
        let topology = Topology::from_fn(3, |a, b| Link {
            gb_per_s: u32::try_from(a * 10 + b).expect("small"),
            kind: LinkKind::SingleSwitch,
        });
        assert_eq!(topology.link(0, 2), topology.link(2, 0));
        assert_eq!(topology.link(1, 2).map(|link| link.gb_per_s), Some(12));
        assert_eq!(topology.link(1, 1), None);
        assert_eq!(topology.link(0, 3), None);
    }
}
