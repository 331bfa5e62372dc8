//! What every call does first: the node as it is now, and which card is meant.

#![expect(unsafe_code, reason = "exported symbols")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use super::events::EventSet;
use super::gpm::Sample;
use super::{Code, Result};
use crate::{Card, Error, Loss, Node, Paths, State};

/// What the process has open.
#[derive(Debug, Default)]
pub(crate) struct Library {
    /// Calls of `nvmlInit` without a call of `nvmlShutdown`.
    pub(crate) initialised: u32,
    paths: Option<Paths>,
    node: Option<Arc<Node>>,
    pub(crate) event_sets: BTreeMap<usize, EventSet>,
    pub(crate) samples: BTreeMap<usize, Option<Sample>>,
    next: usize,
}

impl Library {
    /// A number for a handle that is not in use.
    pub(crate) fn next_handle(&mut self) -> usize {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
impl Library {
    /// Says where the configuration is, instead of looking for it.
    pub(crate) fn set_paths(&mut self, paths: Paths) {
        self.paths = Some(paths);
    }
}

static LIBRARY: Mutex<Library> = Mutex::new(Library {
    initialised: 0,
    paths: None,
    node: None,
    event_sets: BTreeMap::new(),
    samples: BTreeMap::new(),
    next: 0,
});

pub(crate) fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<Error> for Code {
    fn from(error: Error) -> Self {
        match error {
            Error::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                Self::NO_PERMISSION
            }
            Error::NoConfig { .. } => Self::DRIVER_NOT_LOADED,
            _ => Self::UNKNOWN,
        }
    }
}

/// A function that is only in the library, to find where the library is.
#[unsafe(no_mangle)]
extern "C" fn gantry_fake_nvml() {}

/// The file that this code was loaded from.
fn own_file() -> Option<PathBuf> {
    let address = (gantry_fake_nvml as extern "C" fn() as *const ()).addr();
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let bounds = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        let path = line.find('/').map(|at| line[at..].trim_end_matches(" (deleted)"))?;
        bounds.contains(&address).then(|| PathBuf::from(path))
    })
}

/// The node as it is now, whether the library is initialised or not. Where its configuration is, is looked for once.
pub(crate) fn load(library: &mut Library) -> std::result::Result<Arc<Node>, Error> {
    let paths = match &library.paths {
        Some(paths) => paths.clone(),
        None => Paths::find(own_file().as_deref())?,
    };
    let node = Node::load(&paths, library.node.as_ref())?;
    library.paths = Some(paths);
    library.node = Some(Arc::clone(&node));
    Ok(node)
}

/// Forgets where the configuration was, so that it is looked for again.
pub(crate) fn forget(library: &mut Library) {
    *library = Library { next: library.next, ..Library::default() };
}

fn current() -> Result<Arc<Node>> {
    let mut library = library();
    if library.initialised == 0 {
        return Err(Code::UNINITIALIZED);
    }
    Ok(load(&mut library)?)
}

/// Runs a function of the interface: without a panic across it, on an initialised library, if this driver has the function.
pub(crate) fn call(name: &str, body: impl FnOnce(&Context) -> Result) -> nvmlReturn_t {
    guard(|| {
        let node = current()?;
        if node.config.missing.iter().chain(&node.state.missing).any(|missing| missing == name) {
            return Err(Code::FUNCTION_NOT_FOUND);
        }
        body(&Context { node })
    })
}

pub(crate) fn guard(body: impl FnOnce() -> Result) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// A handle: a number that says what it stands for. Nothing is behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Device(pub(crate) usize);

/// What a handle stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    Gpu,
    /// A MIG device, by GPU instance and compute instance.
    Mig(u32, u32),
    GpuInstance(u32),
    ComputeInstance(u32, u32),
}

/// Set in every handle, so that stray numbers are told apart.
const TAG: usize = 0x6e76 << 28;

impl Device {
    pub(crate) fn new(card: u32, meaning: Meaning) -> Self {
        let (kind, gpu, compute) = match meaning {
            Meaning::Gpu => (1, 0, 0),
            Meaning::Mig(gpu, compute) => (2, gpu, compute),
            Meaning::GpuInstance(gpu) => (3, gpu, 0),
            Meaning::ComputeInstance(gpu, compute) => (4, gpu, compute),
        };
        Self(TAG | kind << 24 | (card as usize) << 16 | (gpu as usize) << 8 | compute as usize)
    }

    /// The handle as the pointer that NVML's structures hold.
    pub(crate) fn pointer<T>(self) -> *mut T {
        std::ptr::without_provenance_mut(self.0)
    }

    pub(crate) fn read(self) -> Result<(u32, Meaning)> {
        let byte = |shift: u32| u32::from(u8::try_from(self.0 >> shift & 0xff).unwrap_or(0));
        let (card, gpu, compute) = (byte(16), byte(8), byte(0));
        if self.0 & !0x0fff_ffff != TAG {
            return Err(Code::INVALID_ARGUMENT);
        }
        let meaning = match self.0 >> 24 & 0xf {
            1 => Meaning::Gpu,
            2 => Meaning::Mig(gpu, compute),
            3 => Meaning::GpuInstance(gpu),
            4 => Meaning::ComputeInstance(gpu, compute),
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        Ok((card, meaning))
    }
}

/// One call.
pub(crate) struct Context {
    pub(crate) node: Arc<Node>,
}

impl Context {
    /// The cards that this process sees.
    pub(crate) fn visible(&self) -> Result<Vec<u32>> {
        self.node.visible().ok_or(Code::DRIVER_NOT_LOADED)
    }

    /// A card by its index among all, if it answers. Takes as long as the card's fault says.
    #[expect(clippy::disallowed_methods, reason = "a C caller waits in real time")]
    pub(crate) fn answering(&self, index: u32) -> Result<&Card> {
        let card = self.node.cards.get(index as usize).ok_or(Code::INVALID_ARGUMENT)?;
        thread::sleep(Duration::from_millis(card.state.delay_ms));
        if card.state.hang {
            while current()?.cards.get(index as usize).is_some_and(|card| card.state.hang) {
                thread::sleep(Duration::from_millis(20));
            }
        }
        if card.state.loss.is_some() { Err(Code::GPU_IS_LOST) } else { Ok(card) }
    }

    /// The card of a handle, and what the handle stands for.
    pub(crate) fn any(&self, device: Device) -> Result<(&Card, Meaning)> {
        let (index, meaning) = device.read()?;
        let card = self.answering(index)?;
        let exists = |gpu: u32, compute: Option<u32>| {
            let instance = card.state.instances.iter().find(|one| one.id == gpu);
            instance
                .is_some_and(|one| compute.is_none_or(|id| one.compute.iter().any(|other| other.id == id)))
        };
        let valid = match meaning {
            Meaning::Gpu => true,
            Meaning::GpuInstance(gpu) => exists(gpu, None),
            Meaning::Mig(gpu, compute) | Meaning::ComputeInstance(gpu, compute) => exists(gpu, Some(compute)),
        };
        if valid { Ok((card, meaning)) } else { Err(Code::INVALID_ARGUMENT) }
    }

    /// The card of a handle that must stand for a whole GPU.
    pub(crate) fn gpu(&self, device: Device) -> Result<&Card> {
        match self.any(device)? {
            (card, Meaning::Gpu) => Ok(card),
            (_, Meaning::Mig(..)) => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// The card of a handle of a GPU or a MIG device.
    pub(crate) fn device(&self, device: Device) -> Result<(&Card, Option<(u32, u32)>)> {
        match self.any(device)? {
            (card, Meaning::Gpu) => Ok((card, None)),
            (card, Meaning::Mig(gpu, compute)) => Ok((card, Some((gpu, compute)))),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    }

    /// Changes the state of the node.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        self.node.store.update(change)
    }

    /// How a card is gone, if it is.
    pub(crate) fn loss(&self, index: u32) -> Option<Loss> {
        self.node.cards.get(index as usize)?.state.loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_says_what_it_stands_for() {
        for meaning in
            [Meaning::Gpu, Meaning::Mig(13, 2), Meaning::GpuInstance(255), Meaning::ComputeInstance(0, 6)]
        {
            for card in [0, 15] {
                assert_eq!(Device::new(card, meaning).read(), Ok((card, meaning)));
            }
        }
        for stray in [0, 1, usize::MAX, TAG, TAG | 9 << 24] {
            assert_eq!(Device(stray).read(), Err(Code::INVALID_ARGUMENT), "{stray:x}");
        }
    }

    #[test]
    fn a_panic_is_an_unknown_error() {
        assert_eq!(guard(|| panic!("on purpose")), Code::UNKNOWN.0);
    }
}
