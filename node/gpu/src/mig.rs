//! What MIG can cut from a GPU: one table for each board, as `nvidia-smi mig -lgip` and `-lgipp` list it.
//! Engines are those that NVIDIA's MIG user guide lists for the board.

use crate::Profile;

/// Where an instance may lie: memory slices `start .. start + size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigPlacement {
    /// First memory slice.
    pub start: u8,
    /// Number of memory slices.
    pub size: u8,
}

/// What a GPU instance has besides memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigEngines {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy: u32,
    /// Video decoders.
    pub decoders: u32,
    /// JPEG engines.
    pub jpeg: u32,
    /// Optical flow engines.
    pub ofa: u32,
}

/// A kind of GPU instance that a board offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigProfile {
    /// NVIDIA's name, such as `1g.5gb`.
    pub name: &'static str,
    /// The id that `nvidia-smi mig -lgip` lists, and with which instances are created.
    pub id: u32,
    /// NVML's number of the profile, `NVML_GPU_INSTANCE_PROFILE_…`.
    pub kind: u32,
    /// What an instance has besides memory.
    pub engines: MigEngines,
    /// Compute slices; a board has 7, an A30 has 4.
    pub compute_slices: u8,
    /// Memory that a program can use, in MiB. Less than the name says: the name rounds up.
    pub memory_mib: u64,
    /// Where an instance may lie.
    pub placements: &'static [MigPlacement],
    /// The most instances of this profile on one GPU.
    pub max_instances: u8,
}

impl Profile {
    /// Compute slices of the board; 0 where it has no MIG.
    pub fn mig_slices(&self) -> u8 {
        self.mig.iter().map(|row| row.compute_slices).max().unwrap_or(0)
    }

    /// The id of the GPU instance at a placement, as the driver numbers them: the whole board is 0, its halves 1 and 2, their
    /// halves 3 to 6, and so on.
    pub fn mig_instance_id(&self, place: MigPlacement) -> u32 {
        let all = self.mig.iter().flat_map(|row| row.placements).map(|place| place.start + place.size).max();
        let size = place.size.max(1);
        u32::from((all.unwrap_or(0) / size).saturating_sub(1) + place.start / size)
    }

    /// Whether an instance of `wanted` at `place` fits beside `others`: compute slices are left, memory slices are free, there are
    /// not too many of its profile, and the one set of media engines of the profiles with `+me` is not taken.
    pub fn mig_fits(
        &self,
        others: &[(&MigProfile, MigPlacement)],
        wanted: &MigProfile,
        place: MigPlacement,
    ) -> bool {
        let taken: u8 = others.iter().map(|(row, _)| row.compute_slices).sum();
        let same = others.iter().filter(|(row, _)| row.id == wanted.id).count();
        let media = |row: &MigProfile| row.name.ends_with("+me");
        wanted.placements.contains(&place)
            && taken + wanted.compute_slices <= self.mig_slices()
            && same < usize::from(wanted.max_instances)
            && !(media(wanted) && others.iter().any(|(row, _)| media(row)))
            && others.iter().all(|(_, other)| {
                other.start + other.size <= place.start || place.start + place.size <= other.start
            })
    }
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

/// Id and NVML number of the profiles, by what is cut. The ids are those of `nvidia-smi mig -lgip`.
const SLICE_1: (u32, u32) = (19, 0);
const SLICE_1_ME: (u32, u32) = (20, 7);
const SLICE_1_DOUBLE: (u32, u32) = (15, 9);
const SLICE_2: (u32, u32) = (14, 1);
const SLICE_3: (u32, u32) = (9, 2);
const SLICE_4: (u32, u32) = (5, 3);
const SLICE_7: (u32, u32) = (0, 4);
const QUARTER_1: (u32, u32) = (14, 0);
const QUARTER_1_ME: (u32, u32) = (21, 7);
const QUARTER_2: (u32, u32) = (5, 1);
const QUARTER_2_ME: (u32, u32) = (6, 8);
const QUARTER_4: (u32, u32) = (0, 3);

const fn row(
    name: &'static str,
    (id, kind): (u32, u32),
    compute_slices: u8,
    memory_mib: u64,
    (placements, max_instances): (&'static [MigPlacement], u8),
    [multiprocessors, copy, decoders, jpeg, ofa]: [u32; 5],
) -> MigProfile {
    let engines = MigEngines { multiprocessors, copy, decoders, jpeg, ofa };
    MigProfile { name, id, kind, engines, compute_slices, memory_mib, placements, max_instances }
}

pub(crate) const A100_40: &[MigProfile] = &[
    row("1g.5gb", SLICE_1, 1, 4_864, (ONE, 7), [14, 1, 0, 0, 0]),
    row("1g.5gb+me", SLICE_1_ME, 1, 4_864, (ONE, 1), [14, 1, 1, 1, 1]),
    row("1g.10gb", SLICE_1_DOUBLE, 1, 9_856, (ONE_DOUBLE, 4), [14, 1, 1, 0, 0]),
    row("2g.10gb", SLICE_2, 2, 9_856, (TWO, 3), [28, 2, 1, 0, 0]),
    row("3g.20gb", SLICE_3, 3, 19_968, (THREE, 2), [42, 3, 2, 0, 0]),
    row("4g.20gb", SLICE_4, 4, 19_968, (FOUR, 1), [56, 4, 2, 0, 0]),
    row("7g.40gb", SLICE_7, 7, 40_192, (SEVEN, 1), [98, 7, 5, 1, 1]),
];
pub(crate) const A100_80: &[MigProfile] = &[
    row("1g.10gb", SLICE_1, 1, 9_728, (ONE, 7), [14, 1, 0, 0, 0]),
    row("1g.10gb+me", SLICE_1_ME, 1, 9_728, (ONE, 1), [14, 1, 1, 1, 1]),
    row("1g.20gb", SLICE_1_DOUBLE, 1, 19_712, (ONE_DOUBLE, 4), [14, 1, 1, 0, 0]),
    row("2g.20gb", SLICE_2, 2, 19_712, (TWO, 3), [28, 2, 1, 0, 0]),
    row("3g.40gb", SLICE_3, 3, 40_192, (THREE, 2), [42, 3, 2, 0, 0]),
    row("4g.40gb", SLICE_4, 4, 40_192, (FOUR, 1), [56, 4, 2, 0, 0]),
    row("7g.80gb", SLICE_7, 7, 80_896, (SEVEN, 1), [98, 7, 5, 1, 1]),
];
pub(crate) const H100_80: &[MigProfile] = &[
    row("1g.10gb", SLICE_1, 1, 9_984, (ONE, 7), [16, 1, 1, 1, 0]),
    row("1g.10gb+me", SLICE_1_ME, 1, 9_984, (ONE, 1), [16, 1, 1, 1, 1]),
    row("1g.20gb", SLICE_1_DOUBLE, 1, 20_096, (ONE_DOUBLE, 4), [26, 1, 1, 1, 0]),
    row("2g.20gb", SLICE_2, 2, 20_096, (TWO, 3), [32, 2, 2, 2, 0]),
    row("3g.40gb", SLICE_3, 3, 40_448, (THREE, 2), [60, 3, 3, 3, 0]),
    row("4g.40gb", SLICE_4, 4, 40_448, (FOUR, 1), [64, 4, 4, 4, 0]),
    row("7g.80gb", SLICE_7, 7, 81_152, (SEVEN, 1), [132, 8, 7, 7, 1]),
];
pub(crate) const H200: &[MigProfile] = &[
    row("1g.18gb", SLICE_1, 1, 16_384, (ONE, 7), [16, 1, 1, 1, 0]),
    row("1g.18gb+me", SLICE_1_ME, 1, 16_384, (ONE, 1), [16, 1, 1, 1, 1]),
    row("1g.35gb", SLICE_1_DOUBLE, 1, 33_280, (ONE_DOUBLE, 4), [26, 1, 1, 1, 0]),
    row("2g.35gb", SLICE_2, 2, 33_280, (TWO, 3), [32, 2, 2, 2, 0]),
    row("3g.71gb", SLICE_3, 3, 71_424, (THREE, 2), [60, 3, 3, 3, 0]),
    row("4g.71gb", SLICE_4, 4, 71_424, (FOUR, 1), [64, 4, 4, 4, 0]),
    row("7g.141gb", SLICE_7, 7, 143_104, (SEVEN, 1), [132, 8, 7, 7, 1]),
];
pub(crate) const B200: &[MigProfile] = &[
    row("1g.23gb", SLICE_1, 1, 22_016, (ONE, 7), [18, 2, 1, 1, 0]),
    row("1g.23gb+me", SLICE_1_ME, 1, 22_016, (ONE, 1), [18, 2, 1, 1, 1]),
    row("1g.45gb", SLICE_1_DOUBLE, 1, 45_056, (ONE_DOUBLE, 4), [18, 2, 1, 1, 0]),
    row("2g.45gb", SLICE_2, 2, 45_056, (TWO, 3), [36, 3, 1, 1, 0]),
    row("3g.90gb", SLICE_3, 3, 91_136, (THREE, 2), [54, 6, 1, 1, 0]),
    row("4g.90gb", SLICE_4, 4, 91_136, (FOUR, 1), [72, 8, 1, 1, 0]),
    row("7g.180gb", SLICE_7, 7, 182_528, (SEVEN, 1), [126, 16, 1, 1, 1]),
];
pub(crate) const A30: &[MigProfile] = &[
    row("1g.6gb", QUARTER_1, 1, 5_952, (QUARTER, 4), [14, 1, 0, 0, 0]),
    row("1g.6gb+me", QUARTER_1_ME, 1, 5_952, (QUARTER, 1), [14, 1, 1, 1, 1]),
    row("2g.12gb", QUARTER_2, 2, 11_968, (HALF, 2), [28, 2, 2, 0, 0]),
    row("2g.12gb+me", QUARTER_2_ME, 2, 11_968, (HALF, 1), [28, 2, 2, 1, 1]),
    row("4g.24gb", QUARTER_4, 4, 24_000, (WHOLE, 1), [56, 4, 4, 1, 1]),
];
