//! The trait between the agent and a driver, in types of our own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use gantry_model::{Fault, FaultKind, Gpu, GpuId, Topology};

use crate::{Error, GpuDetails, Vgpu};

/// Where GPUs come from: a driver, or a simulation. Calls may block for as long as a driver takes to answer.
pub trait GpuBackend: fmt::Debug + Send + Sync + 'static {
    /// The driver's versions.
    fn driver(&self) -> Result<DriverInfo, Error>;

    /// Every card of the node, those that answer and those that do not.
    fn inventory(&self) -> Result<Inventory, Error>;

    /// One sample of every card that answers, in index order.
    fn sample(&self) -> Result<Vec<GpuSample>, Error>;

    /// Calls `sink` for every health event from now on, until the subscription is dropped. The sink may be called
    /// from any thread, must return at once and must not call the backend.
    fn subscribe(&self, sink: EventSink) -> Subscription;

    /// The machine's product name as the firmware gives it (DMI), such as `DGXA100`; `None` if unknown.
    fn machine(&self) -> Option<String>;

    /// What labels and health policy ask beyond the inventory, for the cards that answer. A card that is missing tells nothing.
    fn details(&self) -> Result<BTreeMap<GpuId, GpuDetails>, Error> {
        Ok(BTreeMap::new())
    }

    /// The virtual GPU, where this machine is a guest with one.
    fn vgpu(&self) -> Option<Vgpu> {
        None
    }
}

/// The driver's versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInfo {
    /// Such as `550.54.15`.
    pub driver_version: String,
    /// The newest CUDA version that this driver runs, major and minor.
    pub cuda_version: (u32, u32),
}

/// The cards of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// The cards that answer, in index order, each with its present health.
    pub gpus: Vec<Gpu>,
    /// Links between all cards, by [`Gpu::index`], including those that do not answer now.
    pub topology: Topology,
    /// The cards that do not answer.
    pub failed: Vec<FailedGpu>,
}

/// A card that is there but does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedGpu {
    /// Its index.
    pub index: u32,
    /// Its UUID, if it was ever read.
    pub id: Option<GpuId>,
    /// Its PCI address.
    pub pci_bus_id: String,
    /// What the driver said.
    pub error: String,
}

/// One card at one instant. `None` means that this card or driver does not tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSample {
    /// The card.
    pub id: GpuId,
    /// Its index.
    pub index: u32,
    /// Share of time in which a kernel ran, 0 to 100.
    pub utilization_percent: Option<u8>,
    /// Share of time in which memory was read or written, 0 to 100.
    pub memory_utilization_percent: Option<u8>,
    /// Memory in use by processes, in MiB, as `nvidia-smi` prints it (without what the driver reserves).
    pub memory_used_mib: Option<u64>,
    /// Memory in all, in MiB.
    pub memory_total_mib: u64,
    /// Core temperature in degrees Celsius.
    pub temperature_celsius: Option<u32>,
    /// Power drawn, in milliwatts.
    pub power_milliwatts: Option<u32>,
    /// The power limit in force, in milliwatts.
    pub power_limit_milliwatts: Option<u32>,
    /// Clock of the multiprocessors in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Fan speed in percent; cards cooled by the machine's fans have none.
    pub fan_percent: Option<u8>,
    /// Performance state: 0 is the fastest, 8 or more is idle.
    pub performance_state: Option<u8>,
    /// Processes that hold a context on the card, by pid.
    pub processes: Vec<GpuProcess>,
}

/// A process on a card. The pid is that of the host's pid namespace, as the driver reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProcess {
    /// Host pid.
    pub pid: u32,
    /// The program, where the host tells.
    pub name: Option<String>,
    /// Memory in use in MiB.
    pub memory_used_mib: Option<u64>,
}

/// Something happened to a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthEvent {
    /// The card.
    pub gpu: GpuId,
    /// What happened.
    pub kind: EventKind,
}

/// What can happen to a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// A fault, in the words in which [`GpuBackend::inventory`] reports it from now on. An XID for which
    /// [`is_application_xid`] holds does not make the card unfit.
    Fault(Fault),
    /// The card works again.
    Recovered,
}

/// Receives events.
pub type EventSink = Box<dyn Fn(&HealthEvent) + Send + Sync>;

/// Keeps a sink subscribed; dropping it ends that.
pub struct Subscription {
    _sink: Arc<EventSink>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}

/// The sinks of a backend, for those who write one.
#[derive(Default)]
pub struct Subscribers(Mutex<Vec<Weak<EventSink>>>);

impl fmt::Debug for Subscribers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscribers")
    }
}

impl Subscribers {
    /// Adds a sink.
    pub fn add(&self, sink: EventSink) -> Subscription {
        let sink = Arc::new(sink);
        let mut sinks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sinks.retain(|known| known.strong_count() > 0);
        sinks.push(Arc::downgrade(&sink));
        Subscription { _sink: sink }
    }

    /// Tells every sink, in the order in which they were added.
    pub fn send(&self, event: &HealthEvent) {
        let sinks: Vec<_> =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
        for sink in sinks {
            sink(event);
        }
    }
}

/// Whether an XID is the application's doing and says nothing about the card: 13 graphics engine exception,
/// 31 memory page fault, 43 stopped processing, 45 preemptive cleanup, 68 video processor exception,
/// 109 context switch timeout. The list that NVIDIA's device plugin ignores.
pub fn is_application_xid(xid: u32) -> bool {
    matches!(xid, 13 | 31 | 43 | 45 | 68 | 109)
}

/// What an operator reads of a fault.
pub(crate) fn fault_message(kind: FaultKind) -> String {
    match kind {
        FaultKind::Xid(xid) => format!("the driver reported XID {xid}"),
        FaultKind::Lost => "the card has fallen off the bus and does not answer".to_owned(),
        FaultKind::DoubleBitEcc => "the card has uncorrectable memory errors".to_owned(),
        FaultKind::ResetRequired => "the driver asks for a reset of the card".to_owned(),
        FaultKind::RowRemapPending => "a memory row is to be remapped: the card needs a reset".to_owned(),
        FaultKind::RebootRequired => "the driver asks for a reboot of the machine".to_owned(),
        FaultKind::FabricNotReady => "the card is not registered with its NVLink fabric".to_owned(),
    }
}
