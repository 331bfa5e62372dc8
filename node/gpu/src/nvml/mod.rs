//! The backend over NVIDIA's library.
//!
//! ```text
//!   inventory(), sample() ──▶ a worker for each card ──▶ NVML      each with one deadline: a card that hangs holds up nobody
//!   driver(), links       ──▶ a worker for the node  ──▶ NVML
//!   event thread          ──▶ nvmlEventSetWait       ──▶ XIDs, memory errors ─┐
//!   poll thread           ──▶ the workers            ──▶ gone? back? reset? ──┴─▶ health of each card ──▶ subscribers
//! ```
//!
//! Functions that an older driver lacks, and what a card does not support, are `None`. A call that fails makes its own card a
//! [`FailedGpu`] and touches no other.

mod card;
mod health;
mod host;
mod library;
mod mig;
mod topology;
mod watch;
mod worker;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_model::{Gpu, GpuId, Link, Partition, Topology};

use card::{Facts, Signals, Unreadable};
use health::Condition;
use library::{Code, Nvml, SONAME};
pub use mig::{MigChange, MigOffer};
use worker::{Deadline, NoAnswer, Worker};

use crate::{
    DriverInfo, Error, EventSink, FailedGpu, GpuBackend, GpuDetails, GpuSample, HealthEvent, Inventory,
    MigPlacement, Subscribers, Subscription, Vgpu,
};

/// Where the driver is, and how long its answers may take.
#[derive(Debug, Clone)]
pub struct NvmlOptions {
    /// Where the driver is installed: `/`, or the root of a driver container such as `/run/nvidia/driver`.
    pub driver_root: PathBuf,
    /// The library itself, instead of looking for it below `driver_root`.
    pub library: Option<PathBuf>,
    /// Where `sysfs` is mounted, usually `/sys`.
    pub sysfs: PathBuf,
    /// Where `proc` is mounted, usually `/proc`.
    pub proc: PathBuf,
    /// How long the driver may take to start.
    pub start: Duration,
    /// How long a card may take to answer.
    pub answer: Duration,
    /// How long a change of partitions may take.
    pub change: Duration,
    /// How often cards are looked at for what no event tells.
    pub poll: Duration,
}

impl Default for NvmlOptions {
    fn default() -> Self {
        Self {
            driver_root: "/".into(),
            library: None,
            sysfs: "/sys".into(),
            proc: "/proc".into(),
            // Without a persistence daemon the driver starts every card first, a second or two each.
            start: Duration::from_secs(60),
            answer: Duration::from_secs(5),
            change: Duration::from_secs(60),
            poll: Duration::from_secs(5),
        }
    }
}

/// The GPUs of the machine, through `libnvidia-ml.so.1`.
#[derive(Debug)]
pub struct NvmlGpus {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    nvml: Arc<Nvml>,
    options: NvmlOptions,
    /// For questions about the node.
    node: Worker,
    cards: Mutex<Vec<Arc<Slot>>>,
    /// By pair of indices, the lower first.
    links: Mutex<BTreeMap<(u32, u32), Link>>,
    subscribers: Subscribers,
    /// Counts cards that came back or were read for the first time.
    arrivals: AtomicU64,
    watch: Mutex<watch::State>,
    stopped: Condvar,
}

/// A card, whether it answers or not.
struct Slot {
    index: u32,
    worker: Worker,
    facts: Mutex<Option<Facts>>,
    condition: Mutex<Condition>,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("index", &self.index).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slot {
    fn facts(&self) -> Option<Facts> {
        lock(&self.facts).clone()
    }

    fn condition(&self) -> MutexGuard<'_, Condition> {
        lock(&self.condition)
    }
}

/// A card that answered.
struct Reading {
    gpu: Gpu,
    signals: Signals,
}

/// Starts of the driver that did not return in time and are still running. Another would only hang as well.
static HANGING: AtomicUsize = AtomicUsize::new(0);

impl NvmlGpus {
    /// Loads the library and starts the driver. Can be tried again, for a driver that is installed later.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] where the library is not there or cannot be loaded, [`Error::NoDriver`] where it says that it cannot
    /// work, [`Error::NotAnswering`] where it says nothing.
    pub fn open(options: NvmlOptions) -> Result<Arc<Self>, Error> {
        let seconds = options.start.as_secs();
        if HANGING.load(Ordering::Acquire) > 0 {
            return Err(Error::NotAnswering { what: "the start of the driver".to_owned(), seconds });
        }
        let node = Worker::new("nvml").map_err(|error| Error::Thread(error.to_string()))?;
        let (library, root) = (options.library.clone(), options.driver_root.clone());
        // 0 under way, 1 done, 2 nobody waits any more.
        let state = Arc::new(AtomicU8::new(0));
        let own = Arc::clone(&state);
        let start = node.give(move || {
            let started = start(library.as_deref(), &root);
            if own.swap(1, Ordering::AcqRel) == 2 {
                HANGING.fetch_sub(1, Ordering::AcqRel);
            }
            started
        });
        let started = start.wait(Deadline::after(options.start)).map_err(|missing| {
            if missing == NoAnswer::Late
                && state.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire).is_ok()
            {
                HANGING.fetch_add(1, Ordering::AcqRel);
            }
            no_answer(missing, "the start of the driver", options.start)
        })?;
        let (nvml, count) = started?;
        let inner = Inner {
            nvml: Arc::new(nvml),
            options,
            node,
            cards: Mutex::default(),
            links: Mutex::default(),
            subscribers: Subscribers::default(),
            arrivals: AtomicU64::new(0),
            watch: Mutex::default(),
            stopped: Condvar::new(),
        };
        inner.grow(count)?;
        Ok(Arc::new(Self { inner: Arc::new(inner) }))
    }

    /// The file of the library, or its name where the dynamic loader found it.
    pub fn library(&self) -> &std::path::Path {
        &self.inner.nvml.path
    }

    /// What MIG can cut from a card.
    pub fn mig_offers(&self, gpu: &GpuId) -> Result<Vec<MigOffer>, Error> {
        let (slot, facts) = self.inner.known(gpu)?;
        if facts.kinds.is_empty() {
            return Err(Error::NoMig(gpu.clone()));
        }
        let answer =
            self.inner.on(&slot, self.inner.options.answer, move |nvml| mig::offers(nvml, &facts))?;
        answer.map_err(|code| self.inner.refused("nvmlDeviceGetGpuInstanceRemainingCapacity", code))
    }

    /// Turns MIG mode of a card on or off. Nothing may run on it, and no partition may be left.
    pub fn set_mig(&self, gpu: &GpuId, on: bool) -> Result<MigChange, Error> {
        let (slot, facts) = self.inner.known(gpu)?;
        let answer = self
            .inner
            .on(&slot, self.inner.options.change, move |nvml| mig::set_mode(nvml, facts.handle, on))?;
        answer.map_err(|code| match code {
            Code::NOT_SUPPORTED | Code::FUNCTION_NOT_FOUND => Error::NoMig(gpu.clone()),
            Code::IN_USE => Error::InUse(gpu.clone()),
            code => self.inner.refused("nvmlDeviceSetMigMode", code),
        })
    }

    /// Makes a partition of a profile, such as `1g.5gb`, at a memory slice or where the driver likes.
    pub fn create_partition(
        &self,
        gpu: &GpuId,
        profile: &str,
        start: Option<u8>,
    ) -> Result<Partition, Error> {
        let offers = self.mig_offers(gpu)?;
        let offer =
            offers.iter().find(|offer| &*offer.name == profile).ok_or_else(|| Error::NoMigProfile {
                gpu: gpu.clone(),
                profile: profile.chars().take(40).collect(),
                known: offers.iter().map(|offer| &*offer.name).collect::<Vec<_>>().join(", "),
            })?;
        let place = start.map(|start| {
            let found = offer.placements.iter().find(|place| place.start == start).copied();
            found.ok_or_else(|| Error::NoMigPlacement {
                profile: profile.to_owned(),
                start,
                possible: list(&offer.placements),
            })
        });
        let place = place.transpose()?;
        if offer.remaining.is_none() {
            return Err(Error::MigOff(gpu.clone()));
        }
        let (slot, facts) = self.inner.known(gpu)?;
        let offer = offer.clone();
        let answer = self.inner.on(&slot, self.inner.options.change, move |nvml| {
            let made = mig::create(nvml, &facts, &offer, place)?;
            let partitions = mig::partitions(nvml, &facts)?;
            let found = partitions.into_iter().find(|one| (one.gpu_instance, one.compute_instance) == made);
            found.ok_or(Code::NOT_FOUND)
        })?;
        answer.map_err(|code| match code {
            Code::INSUFFICIENT_RESOURCES => {
                Error::NoRoom { gpu: gpu.clone(), profile: profile.to_owned(), start }
            }
            code => self.inner.refused("nvmlDeviceCreateGpuInstance", code),
        })
    }

    /// Ends a partition on which nothing runs.
    pub fn destroy_partition(&self, partition: &GpuId) -> Result<(), Error> {
        let inventory = self.inventory()?;
        let found = inventory.gpus.iter().find_map(|gpu| Some((gpu, mig::of(gpu, partition)?)));
        let (gpu, found) = found.ok_or_else(|| Error::NoSuchPartition(partition.clone()))?;
        let (slot, facts) = self.inner.known(&gpu.id)?;
        let found = found.clone();
        let instance = (found.gpu_instance, found.compute_instance);
        let answer = self
            .inner
            .on(&slot, self.inner.options.change, move |nvml| mig::destroy(nvml, &facts, &found))?;
        answer.map_err(|code| match code {
            Code::IN_USE => Error::InUse(partition.clone()),
            Code::NOT_FOUND => Error::NoSuchPartition(partition.clone()),
            code => self.inner.refused("nvmlComputeInstanceDestroy", code),
        })?;
        slot.condition().forget(instance);
        Ok(())
    }
}

impl Drop for NvmlGpus {
    fn drop(&mut self) {
        lock(&self.inner.watch).stop = true;
        self.inner.stopped.notify_all();
    }
}

fn list(placements: &[MigPlacement]) -> String {
    placements.iter().map(|place| place.start.to_string()).collect::<Vec<_>>().join(", ")
}

fn start(library: Option<&std::path::Path>, root: &std::path::Path) -> Result<(Nvml, u32), Error> {
    let nvml = Nvml::load(library, root)?;
    let no_driver = |code: Code| Error::NoDriver { library: nvml.path.clone(), reason: nvml.describe(code) };
    nvml.init().map_err(no_driver)?;
    let count = nvml.count().map_err(no_driver)?;
    Ok((nvml, count))
}

fn no_answer(missing: NoAnswer, what: &str, limit: Duration) -> Error {
    match missing {
        NoAnswer::Late => Error::NotAnswering { what: what.to_owned(), seconds: limit.as_secs() },
        NoAnswer::Crashed => Error::Aborted,
    }
}

impl Inner {
    fn slots(&self) -> Vec<Arc<Slot>> {
        lock(&self.cards).clone()
    }

    /// Makes slots for new cards. A card that goes away keeps its slot: it does not answer.
    fn grow(&self, count: u32) -> Result<(), Error> {
        let mut cards = lock(&self.cards);
        let known = u32::try_from(cards.len()).unwrap_or(u32::MAX);
        for index in known..count.min(u32::try_from(gantry_model::MAX_GPUS).unwrap_or(0)) {
            let worker =
                Worker::new(&format!("nvml-{index}")).map_err(|error| Error::Thread(error.to_string()))?;
            cards.push(Arc::new(Slot {
                index,
                worker,
                facts: Mutex::default(),
                condition: Mutex::default(),
            }));
        }
        Ok(())
    }

    /// The slot and the facts of a card that was read.
    fn known(&self, gpu: &GpuId) -> Result<(Arc<Slot>, Facts), Error> {
        let find = || {
            let mut slots = self.slots().into_iter().filter_map(|slot| Some((slot.facts()?, slot)));
            slots.find(|(facts, _)| facts.gpu.id == *gpu).map(|(facts, slot)| (slot, facts))
        };
        // Cards are read when somebody asks for them; a first question may be this one.
        find()
            .or_else(|| {
                self.refresh();
                find()
            })
            .ok_or_else(|| Error::NoSuchGpu(gpu.clone()))
    }

    fn refused(&self, call: &'static str, code: Code) -> Error {
        Error::Driver { call, reason: self.nvml.describe(code) }
    }

    /// Does work on a card's worker.
    fn on<T: Send + 'static>(
        &self,
        slot: &Slot,
        limit: Duration,
        work: impl FnOnce(&Nvml) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let nvml = Arc::clone(&self.nvml);
        let pending = slot.worker.give(move || work(&nvml));
        pending
            .wait(Deadline::after(limit))
            .map_err(|missing| no_answer(missing, &format!("GPU {}", slot.index), limit))
    }

    /// Does the same work for every card at once; the answers in index order.
    fn each<T: Send + 'static>(
        &self,
        work: impl Fn(&Nvml, &Facts) -> Result<T, Unreadable> + Clone + Send + 'static,
    ) -> Vec<(Arc<Slot>, Result<T, String>)> {
        let deadline = Deadline::after(self.options.answer);
        let given: Vec<_> = self
            .slots()
            .into_iter()
            .map(|slot| {
                let (nvml, own, sysfs) =
                    (Arc::clone(&self.nvml), Arc::clone(&slot), self.options.sysfs.clone());
                let work = work.clone();
                let pending = slot.worker.give(move || with_facts(&nvml, &own, &sysfs, work));
                (slot, pending)
            })
            .collect();
        let answers = given.into_iter().map(|(slot, pending)| {
            let answer = match pending.wait(deadline) {
                Ok(answer) => answer.map_err(|why| self.explain(&why)),
                Err(NoAnswer::Late) => {
                    Err(format!("it does not answer within {} s", self.options.answer.as_secs_f32()))
                }
                Err(NoAnswer::Crashed) => Err("a call into the driver crashed".to_owned()),
            };
            (slot, answer)
        });
        answers.collect()
    }

    fn explain(&self, why: &Unreadable) -> String {
        match why {
            Unreadable::Refused(call, code) => format!("{} ({call})", self.nvml.describe(*code)),
            Unreadable::Nonsense(text) => text.clone(),
        }
    }

    /// Reads every card, notes what changed in its health, and tells the subscribers.
    fn refresh(&self) -> Vec<(Arc<Slot>, Result<Gpu, String>)> {
        let count = {
            let nvml = Arc::clone(&self.nvml);
            self.node.give(move || nvml.count()).wait(Deadline::after(self.options.answer))
        };
        if let Ok(Ok(count)) = count {
            // Without threads for more cards, the others are still read.
            let _ = self.grow(count);
        }
        let read = self.each(|nvml, facts| {
            let (gpu, signals) = card::read(nvml, facts)?;
            Ok(Reading { gpu, signals })
        });
        read.into_iter()
            .map(|(slot, reading)| {
                let result = match reading {
                    Ok(reading) => Ok(self.answered(&slot, reading)),
                    Err(why) => {
                        self.lost(&slot, &why);
                        Err(why)
                    }
                };
                (slot, result)
            })
            .collect()
    }

    fn answered(&self, slot: &Slot, Reading { mut gpu, signals }: Reading) -> Gpu {
        let changes = {
            let mut condition = slot.condition();
            let changes = condition.read(signals);
            condition.mark(&mut gpu);
            changes
        };
        if changes.back {
            self.arrivals.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(kind) = changes.card {
            self.subscribers.send(&HealthEvent { gpu: gpu.id.clone(), kind });
        }
        for instance in changes.recovered {
            let partitions = gpu.partitions.iter().flatten();
            let mut found = partitions.filter(|one| (one.gpu_instance, one.compute_instance) == instance);
            if let Some(partition) = found.next() {
                let event = HealthEvent { gpu: partition.id.clone(), kind: crate::EventKind::Recovered };
                self.subscribers.send(&event);
            }
        }
        gpu
    }

    fn lost(&self, slot: &Slot, why: &str) {
        let event = slot.condition().lose(why.to_owned());
        // A card that was never read has no name to tell of.
        if let (Some(kind), Some(facts)) = (event, slot.facts()) {
            self.subscribers.send(&HealthEvent { gpu: facts.gpu.id, kind });
        }
    }

    /// The links between all cards, asking for those that are not known yet where both ends answer.
    fn topology(&self, answering: &[bool]) -> Topology {
        let facts: Vec<Option<Facts>> = self.slots().iter().map(|slot| slot.facts()).collect();
        let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
        let mut links = lock(&self.links);
        let mut asked = Vec::new();
        for (a, one) in facts.iter().enumerate() {
            for (b, other) in facts.iter().enumerate().skip(a + 1) {
                let pair = (number(a), number(b));
                let (Some(one), Some(other)) = (one, other) else { continue };
                if links.contains_key(&pair) {
                    continue;
                }
                if let Some(link) = topology::over_nvlink(&one.wires, (&other.wires, other.address)) {
                    links.insert(pair, link);
                } else if answering.get(a) == Some(&true) && answering.get(b) == Some(&true) {
                    asked.push((pair, one.clone(), other.clone()));
                }
            }
        }
        if !asked.is_empty() {
            let nvml = Arc::clone(&self.nvml);
            let found = self.node.give(move || {
                let ask = |(pair, a, b): ((u32, u32), Facts, Facts)| {
                    let level = nvml.common_ancestor(a.handle, b.handle).ok()?;
                    Some((pair, topology::over_pcie(level, &a.wires, &b.wires)))
                };
                asked.into_iter().filter_map(ask).collect::<Vec<_>>()
            });
            links.extend(found.wait(Deadline::after(self.options.answer)).unwrap_or_default());
        }
        Topology::from_fn(facts.len(), |a, b| {
            links.get(&(number(a), number(b))).copied().unwrap_or_else(topology::unknown)
        })
    }
}

/// Does work with a card's facts, reading them first where they are not known, and finding the card again where it does not
/// answer under its old handle.
fn with_facts<T>(
    nvml: &Nvml,
    slot: &Slot,
    sysfs: &std::path::Path,
    work: impl Fn(&Nvml, &Facts) -> Result<T, Unreadable>,
) -> Result<T, Unreadable> {
    let before = slot.facts();
    if let Some(facts) = &before
        && let Ok(value) = work(nvml, facts)
    {
        return Ok(value);
    }
    let handle = card::find(nvml, slot.index, before.as_ref().map(|facts| &facts.gpu.id))?;
    let facts = match before {
        Some(facts) => Facts { handle, ..facts },
        None => card::facts(nvml, slot.index, handle, sysfs)?,
    };
    let value = work(nvml, &facts)?;
    *lock(&slot.facts) = Some(facts);
    Ok(value)
}

impl GpuBackend for NvmlGpus {
    fn driver(&self) -> Result<DriverInfo, Error> {
        let nvml = Arc::clone(&self.inner.nvml);
        let limit = self.inner.options.answer;
        let pending = self.inner.node.give(move || Ok((nvml.driver_version()?, nvml.cuda_version()?)));
        let answer = pending
            .wait(Deadline::after(limit))
            .map_err(|missing| no_answer(missing, "the driver", limit))?;
        let (driver_version, cuda) =
            answer.map_err(|code| self.inner.refused("nvmlSystemGetDriverVersion", code))?;
        let cuda = u32::try_from(cuda).unwrap_or(0);
        Ok(DriverInfo { driver_version, cuda_version: (cuda / 1_000, cuda % 1_000 / 10) })
    }

    fn inventory(&self) -> Result<Inventory, Error> {
        let read = self.inner.refresh();
        let answering: Vec<bool> = read.iter().map(|(_, result)| result.is_ok()).collect();
        let topology = self.inner.topology(&answering);
        let addresses = host::addresses(&self.inner.options.proc);
        let (mut gpus, mut failed) = (Vec::new(), Vec::new());
        for (slot, result) in &read {
            match result {
                Ok(gpu) => gpus.push(gpu.clone()),
                Err(error) => {
                    let facts = slot.facts();
                    let address = facts.as_ref().map(|facts| facts.address).or_else(|| {
                        // The kernel's list is NVML's only if it is as long.
                        let same = addresses.len() == read.len();
                        addresses.get(slot.index as usize).copied().filter(|_| same)
                    });
                    failed.push(FailedGpu {
                        index: slot.index,
                        id: facts.map(|facts| facts.gpu.id),
                        pci_bus_id: address.map_or_else(|| "unknown".to_owned(), host::bus_id),
                        error: error.clone(),
                    });
                }
            }
        }
        Ok(Inventory { gpus, topology, failed })
    }

    fn sample(&self) -> Result<Vec<GpuSample>, Error> {
        let answers = self.inner.each(card::sample);
        Ok(answers.into_iter().filter_map(|(_, sample)| sample.ok()).collect())
    }

    fn subscribe(&self, sink: EventSink) -> Subscription {
        let subscription = self.inner.subscribers.add(sink);
        watch::start(&self.inner);
        subscription
    }

    fn machine(&self) -> Option<String> {
        host::machine(&self.inner.options.sysfs)
    }

    fn details(&self) -> Result<BTreeMap<GpuId, GpuDetails>, Error> {
        let devices = self.inner.options.sysfs.join("bus/pci/devices");
        let answers = self
            .inner
            .each(move |nvml, facts| Ok((facts.gpu.id.clone(), card::details(nvml, facts, &devices)?)));
        Ok(answers.into_iter().filter_map(|(_, answer)| answer.ok()).collect())
    }

    fn vgpu(&self) -> Option<Vgpu> {
        crate::vgpu(&self.inner.options.sysfs.join("bus/pci/devices"))
    }
}

impl fmt::Display for NvmlGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SONAME} at {}", self.inner.nvml.path.display())
    }
}
