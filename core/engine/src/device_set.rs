//! Which GPUs of a node belong together.
//!
//! A set of GPUs is as good as the slowest link of its best ring, because a ring is how collective operations move data; then
//! as good as the sum of its links; then as good as what it leaves to others. Up to 16 GPUs the answer is exact: the best ring
//! of every subset is computed once for each kind of machine, by dynamic programming over subsets.

use std::cmp::Reverse;
use std::collections::HashMap;

use gantry_model::{Gpu, MAX_GPUS, Topology};

/// Beyond this many GPUs a node's sets are chosen greedily: tables over all subsets would be too large.
const EXACT: usize = 16;

/// Sizes of the sets by which the value of remaining GPUs is judged: those that jobs ask for.
const COMMON_SIZES: [u32; 3] = [8, 4, 2];

/// Choices that are remembered before the memory of them starts anew.
const MEMO: usize = 1 << 14;

/// A set of GPUs of one node: bit `i` stands for position `i` in the node's list.
pub type GpuMask = u64;

/// Answers which GPUs to take, for all nodes of one kind.
#[derive(Debug, Clone)]
pub struct DeviceSets {
    topology: Topology,
    numa: Vec<Option<u32>>,
    /// GPUs by NUMA node.
    numa_groups: Vec<GpuMask>,
    /// Distinct bandwidths, ascending; ring values are positions in it plus one.
    bandwidths: Vec<u32>,
    /// By subset. Empty where there are more than [`EXACT`] GPUs.
    table: Vec<Subset>,
    memo: HashMap<(GpuMask, GpuMask, u32), GpuMask>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Subset {
    /// Bottleneck of the best ring through all of the subset.
    ring: u8,
    /// Bottleneck of the best ring among subsets of each common size.
    best: [u8; COMMON_SIZES.len()],
    /// Sum of the bandwidths of all pairs in GB/s.
    pair_sum: u32,
}

impl DeviceSets {
    /// Prepares the tables for nodes with these connections.
    pub fn new(topology: &Topology, gpus: &[Gpu]) -> Self {
        let numa: Vec<_> = (0..topology.len()).map(|i| gpus.get(i).and_then(|gpu| gpu.numa_node)).collect();
        let mut nodes: Vec<u32> = numa.iter().flatten().copied().collect();
        nodes.sort_unstable();
        nodes.dedup();
        let group = |node: &u32| {
            (0..numa.len().min(MAX_GPUS)).filter(|i| numa[*i] == Some(*node)).fold(0, |mask, i| mask | 1 << i)
        };
        let mut bandwidths: Vec<u32> = pairs(topology).map(|(a, b)| bandwidth(topology, a, b)).collect();
        bandwidths.sort_unstable();
        bandwidths.dedup();
        let mut sets = Self {
            topology: topology.clone(),
            numa_groups: nodes.iter().map(group).collect(),
            numa,
            bandwidths,
            table: Vec::new(),
            memo: HashMap::new(),
        };
        if (1..=EXACT).contains(&topology.len()) {
            sets.fill_table();
        }
        sets
    }

    /// Whether nodes with these GPUs are of the kind that the tables were made for.
    pub fn describes(&self, topology: &Topology, gpus: &[Gpu]) -> bool {
        self.topology == *topology
            && self
                .numa
                .iter()
                .enumerate()
                .all(|(i, numa)| gpus.get(i).and_then(|gpu| gpu.numa_node) == *numa)
    }

    /// The best `size` GPUs out of `free` that include all of `must_include`.
    ///
    /// Order: bottleneck of the best ring, sum of the links, worth of the free GPUs that remain, fewest NUMA nodes, fullest
    /// NUMA nodes, lowest positions. `None` where `free` has too few, or `must_include` is not part of it or too large.
    pub fn device_set(&mut self, free: GpuMask, must_include: GpuMask, size: u32) -> Option<GpuMask> {
        let must = must_include;
        if must & !free != 0 || must.count_ones() > size || free.count_ones() < size {
            return None;
        }
        if size == 0 || must.count_ones() == size {
            return Some(must);
        }
        if free.count_ones() == size {
            return Some(free);
        }
        if let Some(known) = self.memo.get(&(free, must, size)) {
            return Some(*known);
        }
        let chosen = if self.table.is_empty() || free >> self.topology.len() != 0 {
            self.greedy(free, must, size)
        } else {
            self.exhaustive(free, must, size)
        };
        if self.memo.len() >= MEMO {
            self.memo.clear();
        }
        self.memo.insert((free, must, size), chosen);
        Some(chosen)
    }

    /// The slowest link of the best ring through all GPUs of `set`, in GB/s; `None` for fewer than two GPUs,
    /// or on nodes with so many GPUs that rings are not computed.
    pub fn ring_gb_per_s(&self, set: GpuMask) -> Option<u32> {
        let subset = self.table.get(usize::try_from(set).ok()?)?;
        if set.count_ones() < 2 {
            None
        } else {
            self.bandwidths.get(usize::from(subset.ring).checked_sub(1)?).copied()
        }
    }

    fn fill_table(&mut self) {
        let size = self.topology.len();
        let mut table = vec![Subset::default(); 1 << size];
        for (level, floor) in self.bandwidths.iter().enumerate() {
            let linked = |a: usize| {
                let ends = (0..size).filter(|b| a != *b && bandwidth(&self.topology, a, *b) >= *floor);
                ends.fold(0, |mask, b| mask | 1 << b)
            };
            let neighbours: Vec<usize> = (0..size).map(linked).collect();
            let level = u8::try_from(level + 1).unwrap_or(u8::MAX);
            // Held–Karp without lengths: `ends[set]` are the GPUs at which a path through all of `set` that starts at its
            // lowest GPU may end. A ring is such a path whose end is linked to its start.
            let mut ends = vec![0_usize; 1 << size];
            for set in 1..1_usize << size {
                let start = set.trailing_zeros() as usize;
                if set.is_power_of_two() {
                    ends[set] = set;
                    continue;
                }
                for (end, linked) in neighbours.iter().enumerate() {
                    if end != start && set >> end & 1 == 1 && ends[set ^ 1 << end] & linked != 0 {
                        ends[set] |= 1 << end;
                    }
                }
                if ends[set] & neighbours[start] != 0 {
                    table[set].ring = level;
                }
            }
        }
        for set in 1..1_usize << size {
            let lowest = set.trailing_zeros() as usize;
            let others = set & (set - 1);
            let links =
                (0..size).filter(|b| others >> b & 1 == 1).map(|b| bandwidth(&self.topology, lowest, b));
            table[set].pair_sum = table[others].pair_sum + links.sum::<u32>();
            for (slot, common) in COMMON_SIZES.iter().enumerate() {
                table[set].best[slot] = if set.count_ones() == *common {
                    table[set].ring
                } else {
                    let without =
                        (0..size).filter(|b| set >> b & 1 == 1).map(|b| table[set ^ 1 << b].best[slot]);
                    without.max().unwrap_or(0)
                };
            }
        }
        self.table = table;
    }

    fn exhaustive(&self, free: GpuMask, must: GpuMask, size: u32) -> GpuMask {
        if self.bandwidths.len() < 2 && self.numa.iter().all(Option::is_some) {
            return self.alike(free, must, size);
        }
        self.every_set(free, must, size)
    }

    /// Looks at every set. With 16 GPUs there are up to 12,870: what decides most comparisons is one number for each set.
    fn every_set(&self, free: GpuMask, must: GpuMask, size: u32) -> GpuMask {
        let candidates: Vec<GpuMask> = bits(free & !must).collect();
        let picks = (size - must.count_ones()) as usize;
        let mut best: Option<(u64, Rank, GpuMask)> = None;
        combinations(&candidates, picks, must, &mut |set| {
            let links = self.links(set);
            if best.as_ref().is_some_and(|(known, ..)| links < *known) {
                return;
            }
            let rank = self.rank(set, free);
            // Sets come in ascending order of positions, so that the first of equals is the lowest.
            if best.as_ref().is_none_or(|(known, rest, _)| (links, &rank) > (*known, rest)) {
                best = Some((links, rank, set));
            }
        });
        best.expect("invariant: there are at least as many free GPUs as are to be picked").2
    }

    /// The same where all links are alike and every GPU has a NUMA node: only those are left to compare, and they are few.
    fn alike(&self, free: GpuMask, must: GpuMask, size: u32) -> GpuMask {
        let groups: Vec<GpuMask> =
            self.numa_groups.iter().map(|group| group & free).filter(|group| *group != 0).collect();
        let mut best: Option<((u32, u32), GpuMask)> = None;
        for chosen in 1_u64..1 << groups.len() {
            let of = (0..groups.len()).filter(|i| chosen >> i & 1 == 1).fold(0, |mask, i| mask | groups[i]);
            if must & !of != 0 || of.count_ones() < size {
                continue;
            }
            let cost = (chosen.count_ones(), of.count_ones() - size);
            let picks = (size - must.count_ones()) as usize;
            let set = bits(of & !must).take(picks).fold(must, |set, bit| set | bit);
            // Of two sets the one with the lowest position that the other lacks comes first.
            let first = |other: &GpuMask| set & (set ^ other) & (set ^ other).wrapping_neg() != 0;
            let better =
                |known: &(u32, u32), other: &GpuMask| cost < *known || cost == *known && first(other);
            if best.as_ref().is_none_or(|(known, other)| better(known, other)) {
                best = Some((cost, set));
            }
        }
        best.expect("invariant: all groups together have enough free GPUs").1
    }

    fn index(mask: GpuMask) -> usize {
        usize::try_from(mask).expect("invariant: tables exist for 16 GPUs at most")
    }

    /// How well a set is linked, as one number: the ring, then the sum.
    fn links(&self, set: GpuMask) -> u64 {
        let subset = &self.table[Self::index(set)];
        u64::from(subset.ring) << 32 | u64::from(subset.pair_sum)
    }

    /// What decides among sets that are linked alike.
    fn rank(&self, set: GpuMask, free: GpuMask) -> Rank {
        let rest = &self.table[Self::index(free & !set)];
        let touched = self.numa_groups.iter().filter(|group| **group & set != 0);
        let (count, left) = touched
            .fold((0, 0), |(count, left), group| (count + 1, left + (group & free & !set).count_ones()));
        (rest.best, rest.pair_sum, Reverse(count), Reverse(left))
    }

    /// Grows a set from its best pair, always by the GPU whose slowest link into the set is fastest.
    fn greedy(&self, free: GpuMask, must: GpuMask, size: u32) -> GpuMask {
        let position = |bit: GpuMask| bit.trailing_zeros() as usize;
        let link = |a: GpuMask, b: GpuMask| bandwidth(&self.topology, position(a), position(b));
        let mut set = must;
        if set == 0 {
            let widest = |a: &GpuMask| bits(free & !a).map(|b| link(*a, b)).max().unwrap_or(0);
            set = bits(free).max_by_key(|a| (widest(a), Reverse(*a))).unwrap_or(0);
        }
        while set.count_ones() < size {
            let next = bits(free & !set).max_by_key(|candidate| {
                let links = bits(set).map(|member| link(*candidate, member));
                let sum: u32 = links.clone().sum();
                (links.min().unwrap_or(0), sum, Reverse(*candidate))
            });
            set |= next.expect("invariant: there are at least as many free GPUs as are to be picked");
        }
        set
    }
}

/// What remains, NUMA nodes touched, free GPUs left on them.
type Rank = ([u8; COMMON_SIZES.len()], u32, Reverse<u32>, Reverse<u32>);

fn bandwidth(topology: &Topology, a: usize, b: usize) -> u32 {
    topology.link(a, b).map_or(0, |link| link.gb_per_s)
}

fn pairs(topology: &Topology) -> impl Iterator<Item = (usize, usize)> {
    let size = topology.len().min(MAX_GPUS);
    (0..size).flat_map(move |a| (a + 1..size).map(move |b| (a, b)))
}

/// The single bits of a mask, ascending.
pub(crate) fn bits(mask: GpuMask) -> impl Iterator<Item = GpuMask> + Clone {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lowest = rest & rest.wrapping_neg();
        rest &= !lowest;
        (lowest != 0).then_some(lowest)
    })
}

fn combinations(candidates: &[GpuMask], picks: usize, set: GpuMask, visit: &mut impl FnMut(GpuMask)) {
    if picks == 0 {
        return visit(set);
    }
    for (position, bit) in candidates.iter().enumerate().take((candidates.len() + 1).saturating_sub(picks)) {
        combinations(&candidates[position + 1..], picks - 1, set | bit, visit);
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::{Link, LinkKind};
    use proptest::prelude::*;

    use super::*;

    /// NVLink lanes among the eight V100s of a DGX-1: two quads, joined pairwise.
    pub(crate) fn dgx1v() -> Topology {
        const DOUBLE: [(usize, usize); 8] = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)];
        const SINGLE: [(usize, usize); 8] = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)];
        Topology::from_fn(8, |a, b| {
            let lanes = if DOUBLE.contains(&(a, b)) { 2 } else { u8::from(SINGLE.contains(&(a, b))) };
            let kind = if lanes == 0 { LinkKind::System } else { LinkKind::NvLink(lanes) };
            Link { gb_per_s: u32::from(lanes), kind }
        })
    }

    fn uniform(size: usize) -> Topology {
        Topology::from_fn(size, |_, _| Link { gb_per_s: 600, kind: LinkKind::NvLink(12) })
    }

    fn brute_ring(topology: &Topology, set: GpuMask) -> u32 {
        fn extend(topology: &Topology, path: &mut Vec<usize>, rest: GpuMask, floor: u32) -> u32 {
            if rest == 0 {
                return floor.min(bandwidth(topology, path[0], path[path.len() - 1]));
            }
            let mut best = 0;
            for bit in bits(rest) {
                let next = bit.trailing_zeros() as usize;
                let narrowed = floor.min(bandwidth(topology, path[path.len() - 1], next));
                path.push(next);
                best = best.max(extend(topology, path, rest & !bit, narrowed));
                path.pop();
            }
            best
        }
        let start = set & set.wrapping_neg();
        extend(topology, &mut vec![start.trailing_zeros() as usize], set & !start, u32::MAX)
    }

    fn brute_sum(topology: &Topology, set: GpuMask) -> u32 {
        let inside = pairs(topology).filter(|(a, b)| set >> a & set >> b & 1 == 1);
        inside.map(|(a, b)| bandwidth(topology, a, b)).sum()
    }

    /// Reference: means over all free sets of a DGX-1V with at least k GPUs, computed independently
    /// (links of the optimum: pair sum 1.798, 3.858, 6.313; ring bottleneck 1.798, 0.616, 0.472).
    #[test]
    fn sets_on_a_dgx1v_are_the_optimum() {
        let topology = dgx1v();
        let mut sets = DeviceSets::new(&topology, &[]);
        for (size, ring, sum) in [(2, 1.798, 1.798), (3, 0.616, 3.858), (4, 0.472, 6.313)] {
            let frees: Vec<GpuMask> = (0..256).filter(|free: &GpuMask| free.count_ones() >= size).collect();
            let (mut rings, mut best_sums) = (0, 0);
            for free in &frees {
                let set = sets.device_set(*free, 0, size).expect("enough are free");
                assert_eq!((set.count_ones(), set & !free), (size, 0));
                rings += sets.ring_gb_per_s(set).expect("two or more");
                let chosen = (brute_ring(&topology, set), brute_sum(&topology, set));
                let mut best = 0;
                combinations(&bits(*free).collect::<Vec<_>>(), size as usize, 0, &mut |other| {
                    let other = (brute_ring(&topology, other), brute_sum(&topology, other));
                    assert!(other <= chosen, "{free:b}: {set:b} has {chosen:?}, and another has {other:?}");
                    best = best.max(other.1);
                });
                best_sums += best;
            }
            let mean = |total: u32| f64::from(total) / f64::from(u32::try_from(frees.len()).expect("256"));
            assert!((mean(rings) - ring).abs() < 0.0006, "k={size}: ring {}", mean(rings));
            assert!((mean(best_sums) - sum).abs() < 0.0006, "k={size}: sum {}", mean(best_sums));
        }
    }

    #[test]
    fn boards_of_equal_links_have_the_answer_of_a_search_of_every_set() {
        use board::gpu_on;
        for (nodes, gpus) in [(1, 6), (2, 7), (4, 8)] {
            let list: Vec<Gpu> = (0..gpus).map(|i| gpu_on(i, i * nodes / gpus)).collect();
            let sets = DeviceSets::new(&uniform(gpus), &list);
            for free in 1_u64..1 << gpus {
                for size in 1..free.count_ones() {
                    let lowest = free & free.wrapping_neg();
                    let highest = 1 << free.ilog2();
                    for must in [0, lowest, highest] {
                        let found = sets.alike(free, must, size);
                        assert_eq!(found, sets.every_set(free, must, size), "{free:b} {must:b} {size}");
                    }
                }
            }
        }
    }

    /// GPUs of which only the place matters.
    mod board {
        use gantry_model::{Gpu, Health};

        pub(super) fn gpu_on(index: usize, numa: usize) -> Gpu {
            let number = |value: usize| u32::try_from(value).expect("small");
            Gpu {
                id: format!("GPU-{index}").parse().expect("plain"),
                index: number(index),
                minor: number(index),
                product: "any".into(),
                memory_mib: 1,
                pci_bus_id: String::new(),
                numa_node: Some(number(numa)),
                compute_capability: (9, 0),
                mig_capable: false,
                partitions: None,
                health: Health::Healthy,
            }
        }
    }

    #[test]
    fn the_ring_comes_before_the_sum_of_links() {
        // 0-1-2-3 is a ring of medium links; 4-5-6 is a fast chain without a way back.
        let topology = Topology::from_fn(7, |a, b| {
            let ring = b < 4 && (b == a + 1 || (a, b) == (0, 3));
            let chain = a >= 4 && b == a + 1;
            Link {
                gb_per_s: if ring {
                    50
                } else if chain {
                    600
                } else {
                    1
                },
                kind: LinkKind::System,
            }
        });
        let mut sets = DeviceSets::new(&topology, &[]);
        assert_eq!(sets.device_set(0b111_1111, 0, 4), Some(0b000_1111));
    }

    #[test]
    fn a_single_gpu_is_taken_where_it_hurts_least() {
        // Bridged pairs 0-1, 2-3; 1 is in use, so 0 has no partner left.
        let topology = Topology::from_fn(4, |a, b| Link {
            gb_per_s: if b == a + 1 && a % 2 == 0 { 600 } else { 64 },
            kind: LinkKind::HostBridge,
        });
        let mut sets = DeviceSets::new(&topology, &[]);
        assert_eq!(sets.device_set(0b1101, 0, 1), Some(0b0001));
    }

    #[test]
    fn what_must_be_included_is_and_what_cannot_be_is_refused() {
        let mut sets = DeviceSets::new(&dgx1v(), &[]);
        assert_eq!(sets.device_set(0xff, 0b10, 2), Some(0b110), "1 and 2 share two lanes");
        assert_eq!(sets.device_set(0b0110, 0b1, 2), None, "not free");
        assert_eq!(sets.device_set(0b0110, 0b110, 1), None, "too many");
        assert_eq!(sets.device_set(0b0110, 0, 3), None, "too few");
        assert_eq!(sets.device_set(0b0110, 0, 0), Some(0));
    }

    #[test]
    fn more_gpus_than_tables_hold_are_chosen_greedily() {
        let topology = Topology::from_fn(20, |a, b| Link {
            gb_per_s: if a / 5 == b / 5 { 600 } else { 32 },
            kind: LinkKind::System,
        });
        let mut sets = DeviceSets::new(&topology, &[]);
        let free = (1 << 20) - 1 - 1; // the first of the first five is taken
        assert_eq!(sets.device_set(free, 1 << 7, 5), Some(0b11111 << 5));
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_trying_every_ring(
            links in prop::collection::vec(0_u32..4, 21),
            set in 1_u64..128,
        ) {
            let mut next = links.into_iter();
            let topology = Topology::from_fn(7, |_, _| Link {
                gb_per_s: next.next().unwrap_or(0),
                kind: LinkKind::System,
            });
            let sets = DeviceSets::new(&topology, &[]);
            if set.count_ones() >= 2 {
                prop_assert_eq!(sets.ring_gb_per_s(set), Some(brute_ring(&topology, set)));
            }
        }

        #[test]
        fn a_choice_is_free_and_complete(free in 0_u64..65536, must in 0_u64..65536, size in 0_u32..17) {
            let mut sets = DeviceSets::new(&uniform(16), &[]);
            let must = must & free;
            match sets.device_set(free, must, size) {
                Some(set) => {
                    prop_assert_eq!(set & !free, 0);
                    prop_assert_eq!(set & must, must);
                    prop_assert_eq!(set.count_ones(), size);
                }
                None => prop_assert!(free.count_ones() < size || must.count_ones() > size),
            }
        }
    }
}
