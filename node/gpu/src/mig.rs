//! What MIG can cut from a GPU: one table for each board, as `nvidia-smi mig -lgip` and `-lgipp` list it.

/// Where an instance may lie: memory slices `start .. start + size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigPlacement {
    /// First memory slice.
    pub start: u8,
    /// Number of memory slices.
    pub size: u8,
}

/// A kind of GPU instance that a board offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigProfile {
    /// NVIDIA's name, such as `1g.5gb`.
    pub name: &'static str,
    /// Compute slices; a board has 7, an A30 has 4.
    pub compute_slices: u8,
    /// Memory that a program can use, in MiB. Less than the name says: the name rounds up.
    pub memory_mib: u64,
    /// Where an instance may lie.
    pub placements: &'static [MigPlacement],
    /// The most instances of this profile on one GPU.
    pub max_instances: u8,
}

const fn at(start: u8, size: u8) -> MigPlacement {
    MigPlacement { start, size }
}

// Boards with 7 compute and 8 memory slices.
const ONE: &[MigPlacement] = &[at(0, 1), at(1, 1), at(2, 1), at(3, 1), at(4, 1), at(5, 1), at(6, 1)];
const ONE_DOUBLE: &[MigPlacement] = &[at(0, 2), at(2, 2), at(4, 2), at(6, 2)];
const TWO: &[MigPlacement] = &[at(0, 2), at(2, 2), at(4, 2)];
const THREE: &[MigPlacement] = &[at(0, 4), at(4, 4)];
const FOUR: &[MigPlacement] = &[at(0, 4)];
const SEVEN: &[MigPlacement] = &[at(0, 8)];

// Boards with 4 compute and 4 memory slices.
const QUARTER: &[MigPlacement] = &[at(0, 1), at(1, 1), at(2, 1), at(3, 1)];
const HALF: &[MigPlacement] = &[at(0, 2), at(2, 2)];
const WHOLE: &[MigPlacement] = &[at(0, 4)];

const fn row(
    name: &'static str,
    compute_slices: u8,
    memory_mib: u64,
    placements: &'static [MigPlacement],
    max_instances: u8,
) -> MigProfile {
    MigProfile { name, compute_slices, memory_mib, placements, max_instances }
}

pub(crate) const A100_40: &[MigProfile] = &[
    row("1g.5gb", 1, 4_864, ONE, 7),
    row("1g.5gb+me", 1, 4_864, ONE, 1),
    row("1g.10gb", 1, 9_856, ONE_DOUBLE, 4),
    row("2g.10gb", 2, 9_856, TWO, 3),
    row("3g.20gb", 3, 19_968, THREE, 2),
    row("4g.20gb", 4, 19_968, FOUR, 1),
    row("7g.40gb", 7, 40_192, SEVEN, 1),
];
pub(crate) const A100_80: &[MigProfile] = &[
    row("1g.10gb", 1, 9_728, ONE, 7),
    row("1g.10gb+me", 1, 9_728, ONE, 1),
    row("1g.20gb", 1, 19_712, ONE_DOUBLE, 4),
    row("2g.20gb", 2, 19_712, TWO, 3),
    row("3g.40gb", 3, 40_192, THREE, 2),
    row("4g.40gb", 4, 40_192, FOUR, 1),
    row("7g.80gb", 7, 80_896, SEVEN, 1),
];
pub(crate) const H100_80: &[MigProfile] = &[
    row("1g.10gb", 1, 9_984, ONE, 7),
    row("1g.10gb+me", 1, 9_984, ONE, 1),
    row("1g.20gb", 1, 20_096, ONE_DOUBLE, 4),
    row("2g.20gb", 2, 20_096, TWO, 3),
    row("3g.40gb", 3, 40_448, THREE, 2),
    row("4g.40gb", 4, 40_448, FOUR, 1),
    row("7g.80gb", 7, 81_152, SEVEN, 1),
];
pub(crate) const H200: &[MigProfile] = &[
    row("1g.18gb", 1, 16_384, ONE, 7),
    row("1g.18gb+me", 1, 16_384, ONE, 1),
    row("1g.35gb", 1, 33_280, ONE_DOUBLE, 4),
    row("2g.35gb", 2, 33_280, TWO, 3),
    row("3g.71gb", 3, 71_424, THREE, 2),
    row("4g.71gb", 4, 71_424, FOUR, 1),
    row("7g.141gb", 7, 143_104, SEVEN, 1),
];
pub(crate) const B200: &[MigProfile] = &[
    row("1g.23gb", 1, 22_016, ONE, 7),
    row("1g.23gb+me", 1, 22_016, ONE, 1),
    row("1g.45gb", 1, 45_056, ONE_DOUBLE, 4),
    row("2g.45gb", 2, 45_056, TWO, 3),
    row("3g.90gb", 3, 91_136, THREE, 2),
    row("4g.90gb", 4, 91_136, FOUR, 1),
    row("7g.180gb", 7, 182_528, SEVEN, 1),
];
pub(crate) const A30: &[MigProfile] = &[
    row("1g.6gb", 1, 5_952, QUARTER, 4),
    row("1g.6gb+me", 1, 5_952, QUARTER, 1),
    row("2g.12gb", 2, 11_968, HALF, 2),
    row("2g.12gb+me", 2, 11_968, HALF, 1),
    row("4g.24gb", 4, 24_000, WHOLE, 1),
];
