//! What MIG allows: instances by the tables of the board.

use gantry_gpu::{MigPlacement, MigProfile, Profile};
use serde::{Deserialize, Serialize};

use crate::CardState;

/// A GPU instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// Its id: the number of its placement in the tree of halves, as the driver counts.
    pub id: u32,
    /// The id of its profile, as in `nvidia-smi mig -lgip`.
    pub profile: u32,
    /// First memory slice.
    pub start: u8,
    /// Memory slices.
    pub size: u8,
    /// Its compute instances, by id.
    pub compute: Vec<ComputeInstance>,
}

/// A compute instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInstance {
    /// Its id within the GPU instance.
    pub id: u32,
    /// Compute slices, which are also what its profile is called after.
    pub slices: u8,
    /// First compute slice within the GPU instance.
    pub start: u8,
}

/// Why an instance cannot be made or unmade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No such profile or placement.
    Impossible,
    /// Others are where it would be.
    DoesNotFit,
    /// Something runs on it, or is built on it.
    InUse,
    /// There is no such instance.
    Absent,
}

/// The profile with an id.
pub(crate) fn by_id(board: &Profile, id: u32) -> Option<&'static MigProfile> {
    board.mig.iter().find(|row| row.id == id)
}

/// The most MIG devices of a card.
pub(crate) fn max_devices(board: &Profile) -> u32 {
    u32::from(board.mig_slices())
}

/// Whether an instance of `profile` at `place` fits beside `others`.
fn fits(board: &Profile, others: &[GpuInstance], profile: &MigProfile, place: MigPlacement) -> bool {
    let known = |other: &GpuInstance| {
        Some((by_id(board, other.profile)?, MigPlacement { start: other.start, size: other.size }))
    };
    let others: Vec<_> = others.iter().filter_map(known).collect();
    board.mig_fits(&others, profile, place)
}

/// How many more instances of a profile there is room for.
pub(crate) fn remaining(board: &Profile, others: &[GpuInstance], profile: &MigProfile) -> u32 {
    let mut all = others.to_vec();
    let mut count = 0;
    for place in profile.placements {
        if fits(board, &all, profile, *place) {
            all.push(instance(board, profile, *place));
            count += 1;
        }
    }
    count
}

fn instance(board: &Profile, profile: &MigProfile, place: MigPlacement) -> GpuInstance {
    GpuInstance {
        id: board.mig_instance_id(place),
        profile: profile.id,
        start: place.start,
        size: place.size,
        compute: Vec::new(),
    }
}

/// Makes a GPU instance, at a placement or where the driver would: as far up as possible.
pub(crate) fn create(
    board: &Profile,
    card: &mut CardState,
    profile: u32,
    place: Option<MigPlacement>,
) -> Result<u32, Refused> {
    let row = by_id(board, profile).ok_or(Refused::Impossible)?;
    let place = match place {
        Some(place) if !row.placements.contains(&place) => return Err(Refused::Impossible),
        Some(place) => Some(place).filter(|place| fits(board, &card.instances, row, *place)),
        None => row.placements.iter().rev().copied().find(|place| fits(board, &card.instances, row, *place)),
    };
    let made = instance(board, row, place.ok_or(Refused::DoesNotFit)?);
    let id = made.id;
    card.instances.push(made);
    card.instances.sort_by_key(|instance| instance.id);
    Ok(id)
}

/// Ends a GPU instance without compute instances.
pub(crate) fn destroy(card: &mut CardState, id: u32) -> Result<(), Refused> {
    let position = card.instances.iter().position(|one| one.id == id).ok_or(Refused::Absent)?;
    if !card.instances[position].compute.is_empty() {
        return Err(Refused::InUse);
    }
    card.instances.remove(position);
    Ok(())
}

/// NVML's numbers of compute instance profiles, with their slices.
const COMPUTE_PROFILES: [(u32, u8); 5] = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 7)];

/// The slices of a compute instance profile, if a GPU instance with `slices` can have it.
pub(crate) fn compute_slices(slices: u8, kind: u32) -> Option<u8> {
    let (_, wanted) = COMPUTE_PROFILES.into_iter().find(|(number, _)| *number == kind)?;
    // Three slices can be cut from an instance of three or of all seven; the rest from any that is at least as large.
    let possible = wanted <= slices && (wanted != 3 || matches!(slices, 3 | 7));
    possible.then_some(wanted)
}

/// The number of the profile with these slices.
pub(crate) fn compute_kind(slices: u8) -> u32 {
    COMPUTE_PROFILES.into_iter().find(|(_, wanted)| *wanted == slices).map_or(0, |(number, _)| number)
}

/// The first compute slices at which a compute instance can begin.
pub(crate) fn compute_places(slices: u8, wanted: u8) -> Vec<u8> {
    (0..slices / wanted).map(|number| number * wanted).collect()
}

/// The places that are free for a compute instance.
pub(crate) fn compute_free(slices: u8, others: &[ComputeInstance], wanted: u8) -> Vec<u8> {
    let free = |start: &u8| {
        others.iter().all(|other| other.start + other.slices <= *start || start + wanted <= other.start)
    };
    compute_places(slices, wanted).into_iter().filter(free).collect()
}

/// Makes a compute instance.
pub(crate) fn create_compute(
    board: &Profile,
    card: &mut CardState,
    gpu_instance: u32,
    kind: u32,
    start: Option<u8>,
) -> Result<u32, Refused> {
    let parent = card.instances.iter_mut().find(|one| one.id == gpu_instance).ok_or(Refused::Absent)?;
    let slices = by_id(board, parent.profile).ok_or(Refused::Absent)?.compute_slices;
    let wanted = compute_slices(slices, kind).ok_or(Refused::Impossible)?;
    let free = compute_free(slices, &parent.compute, wanted);
    let start = match start {
        Some(start) if !compute_places(slices, wanted).contains(&start) => return Err(Refused::Impossible),
        Some(start) => free.into_iter().find(|place| *place == start),
        None => free.first().copied(),
    };
    let start = start.ok_or(Refused::DoesNotFit)?;
    let id = (0..8).find(|id| parent.compute.iter().all(|other| other.id != *id)).unwrap_or(0);
    parent.compute.push(ComputeInstance { id, slices: wanted, start });
    parent.compute.sort_by_key(|one| one.id);
    Ok(id)
}

/// Ends a compute instance on which nothing runs.
pub(crate) fn destroy_compute(card: &mut CardState, gpu_instance: u32, id: u32) -> Result<(), Refused> {
    if card.processes.iter().any(|process| process.gpu_instance == Some(gpu_instance)) {
        return Err(Refused::InUse);
    }
    let parent = card.instances.iter_mut().find(|one| one.id == gpu_instance).ok_or(Refused::Absent)?;
    let position = parent.compute.iter().position(|one| one.id == id).ok_or(Refused::Absent)?;
    parent.compute.remove(position);
    Ok(())
}

/// Changes MIG mode. Refused while something runs or instances exist; with `needs_reset` only the pending mode changes.
pub(crate) fn set_mode(card: &mut CardState, on: bool, needs_reset: bool) -> Result<bool, Refused> {
    card.mig_pending = on;
    if card.mig == on {
        return Ok(true);
    }
    if !card.processes.is_empty() || !card.instances.is_empty() {
        return Err(Refused::InUse);
    }
    if !needs_reset {
        card.mig = on;
    }
    Ok(!needs_reset)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn place(start: u8, size: u8) -> MigPlacement {
        MigPlacement { start, size }
    }

    /// Every set of placements that can be reached.
    fn states(board: &Profile, ids: &[u32]) -> BTreeSet<Vec<(u32, u8)>> {
        let mut seen = BTreeSet::from([Vec::new()]);
        let mut open = vec![CardState::default()];
        while let Some(card) = open.pop() {
            for id in ids {
                for at in by_id(board, *id).unwrap().placements {
                    let mut next = card.clone();
                    if create(board, &mut next, *id, Some(*at)).is_err() {
                        continue;
                    }
                    let mut key: Vec<_> = next.instances.iter().map(|one| (one.profile, one.start)).collect();
                    key.sort_unstable();
                    if seen.insert(key) {
                        open.push(next);
                    }
                }
            }
        }
        seen
    }

    #[test]
    fn an_a100_has_as_many_layouts_as_published() {
        let board = Profile::named("a100-40").unwrap();
        assert_eq!(states(board, &[19, 14, 9, 5, 0]).len(), 298);
        assert_eq!(states(board, &[19, 15, 14, 9, 5, 0]).len(), 723);
    }

    #[test]
    fn instances_have_the_drivers_ids() {
        let board = Profile::named("a100-40").unwrap();
        let mut card = CardState::default();
        assert_eq!(create(board, &mut card, 9, Some(place(4, 4))), Ok(2));
        assert_eq!(create(board, &mut card, 14, Some(place(0, 2))), Ok(3));
        assert_eq!(create(board, &mut card, 19, None), Ok(10));
        assert_eq!(create(board, &mut card, 19, None), Ok(9));
        assert_eq!(create(board, &mut card, 19, None), Err(Refused::DoesNotFit));
        assert_eq!(create(board, &mut card, 77, None), Err(Refused::Impossible));
        assert_eq!(create(board, &mut card, 19, Some(place(7, 1))), Err(Refused::Impossible));
        assert_eq!(destroy(&mut card, 9), Ok(()));
        assert_eq!(destroy(&mut card, 9), Err(Refused::Absent));
    }

    #[test]
    fn media_engines_are_given_once() {
        let board = Profile::named("a30").unwrap();
        let mut card = CardState::default();
        create(board, &mut card, 21, None).unwrap();
        assert_eq!(create(board, &mut card, 6, None), Err(Refused::DoesNotFit));
        assert_eq!(create(board, &mut card, 5, None), Ok(1));
    }

    #[test]
    fn compute_instances_share_their_gpu_instance() {
        let board = Profile::named("h100").unwrap();
        let mut card = CardState::default();
        let gpu = create(board, &mut card, 9, None).unwrap();
        assert_eq!(create_compute(board, &mut card, gpu, 1, None), Ok(0));
        assert_eq!(create_compute(board, &mut card, gpu, 1, None), Err(Refused::DoesNotFit));
        assert_eq!(create_compute(board, &mut card, gpu, 0, None), Ok(1));
        assert_eq!(create_compute(board, &mut card, gpu, 4, None), Err(Refused::Impossible));
        assert_eq!(destroy(&mut card, gpu), Err(Refused::InUse));
        card.processes.push(crate::Process { pid: 1, gpu_instance: Some(gpu), ..Default::default() });
        assert_eq!(destroy_compute(&mut card, gpu, 0), Err(Refused::InUse));
        card.processes.clear();
        assert_eq!(destroy_compute(&mut card, gpu, 0), Ok(()));
        assert_eq!(create_compute(board, &mut card, gpu, 0, Some(1)), Ok(0));
    }

    #[test]
    fn the_mode_stays_while_the_card_is_used() {
        let mut card = CardState { processes: vec![crate::Process::default()], ..Default::default() };
        assert_eq!(set_mode(&mut card, true, false), Err(Refused::InUse));
        assert_eq!((card.mig, card.mig_pending), (false, true));
        card.processes.clear();
        assert_eq!(set_mode(&mut card, true, true), Ok(false));
        assert!(!card.mig);
        assert_eq!(set_mode(&mut card, true, false), Ok(true));
        assert!(card.mig);
    }
}
