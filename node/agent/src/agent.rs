//! The agent's life: start, keep registered, follow health, end.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use gantry_driver::Root;
use gantry_gpu::{DriverInfo, EventKind, GpuBackend, HealthEvent, is_application_xid};
use gantry_kit::{CancellationToken, SharedClock};
use gantry_model::{FaultKind, Gpu, Health};
use gantry_proto::deviceplugin::KUBELET_SOCKET;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::checkpoint::{Checkpoint, Restored};
use crate::facts::{Facts, Look};
use crate::handle::Shared;
use crate::log::Log;
use crate::plugin::{self, Plugin};
use crate::report::Reporter;
use crate::socket::{self, Server, SocketId};
use crate::state::State;
use crate::watch::FolderEvents;
use crate::{DeviceRoots, Error, FeatureOptions, FolderWatch, Handle, IdentityMode, LabelSink, cdi, sink};

/// How often the kubelet's folder is looked at where it cannot be watched, for instance because it is not there yet.
const POLL: Duration = Duration::from_millis(200);

/// Waits between attempts to register, or to read the GPUs: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long no card may be listed until that is believed.
const ABSENCE: Duration = Duration::from_secs(10);

/// What was configured.
#[derive(Clone)]
pub struct Options {
    /// The name of this node's `Node` object.
    pub node_name: String,
    /// The GPUs.
    pub backend: Arc<dyn GpuBackend>,
    /// Who decides which GPU a container gets.
    pub identity: IdentityMode,
    /// The resource that is offered, usually `nvidia.com/gpu`.
    pub resource: String,
    /// The kubelet's folder for device plugins, with its `kubelet.sock`; `<root-dir>/device-plugins`.
    pub kubelet_dir: PathBuf,
    /// Where CDI files go, usually `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// Where the driver is installed, `/` if it is in the host's own file system.
    pub driver_root: Root,
    /// Where device files are; `None` for a machine that is simulated.
    pub devices: Option<DeviceRoots>,
    /// Where the checkpoint goes. Must outlive the agent.
    pub state_dir: PathBuf,
    /// The API server; without, labels and `GpuNode` are not written.
    pub client: Option<kube::Client>,
    /// The time of log lines.
    pub clock: SharedClock,
    /// Shared by the agents of one process; without, the agent makes its own.
    pub watch: Option<FolderWatch>,
    /// Labels.
    pub features: FeatureOptions,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("node_name", &self.node_name)
            .field("identity", &self.identity)
            .field("resource", &self.resource)
            .field("kubelet_dir", &self.kubelet_dir)
            .finish_non_exhaustive()
    }
}

/// An agent that is ready to run.
#[derive(Debug)]
pub struct Agent {
    options: Options,
    driver: DriverInfo,
    cdi: cdi::Keeper,
    /// Whether a change has not been published, because a device that would be offered is not described yet.
    held: bool,
    /// The plugin's file name in the kubelet's folder.
    endpoint: String,
    /// Whether owners have to be read from the API server, because no checkpoint told them.
    adopt: bool,
    /// When feature discovery started, in seconds since 1970.
    started: i64,
    shared: Arc<Shared>,
}

impl Agent {
    /// Reads the checkpoint and the GPUs, and writes the CDI files. The handle works from now on.
    ///
    /// # Errors
    /// Where the driver does not answer, or a folder cannot be used. CDI files that cannot be written are tried again: no device is offered until they
    /// are there.
    pub fn new(options: Options) -> Result<(Self, Handle), Error> {
        let endpoint = socket::file_name(&options.resource)?;
        socket::check_path(&options.kubelet_dir.join(&endpoint))?;
        let log = Log::new(Arc::clone(&options.clock));
        let driver = options.backend.driver()?;
        let mut state = State::new(options.node_name.as_str().into(), options.identity);
        let checkpoint = Checkpoint::new(options.state_dir.join(&endpoint).with_extension("checkpoint"));
        let restored = checkpoint.restore(&mut state)?;
        if let Restored::SetAside(path, cause) = &restored {
            tracing::warn!(node = options.node_name, path = %path.display(), cause, "unusable checkpoint set aside");
            log.write(format!("The checkpoint cannot be used and was moved to {}: {cause}", path.display()));
        }
        let look = Look::take(&*options.backend)?;
        let mut facts = Facts::new(&*options.backend, driver.clone());
        facts.update(&look);
        let unconfirmed = look.is_empty() && !state.gpus().is_empty();
        if !unconfirmed {
            state.refresh(look.inventory);
        }
        let (gpus, healthy) = count(state.gpus());
        log.write(format!(
            "Starting on node {}: driver {}, {gpus} GPUs, {healthy} healthy",
            options.node_name, driver.driver_version
        ));
        let mut cdi =
            cdi::Keeper::new(options.cdi_dir.clone(), options.driver_root.clone(), options.devices.clone());
        for line in cdi.update(&driver, state.gpus()) {
            log.write(line);
        }
        let shared = Arc::new(Shared::new(state, checkpoint, facts, log));
        shared.publish(&shared.state());
        *shared.cdi() = cdi.known.clone();
        let handle = Handle(Arc::clone(&shared));
        let adopt = restored != Restored::Whole;
        let started = options.clock.now().as_second();
        Ok((Self { options, driver, cdi, held: false, endpoint, adopt, started, shared }, handle))
    }

    /// Serves the kubelet until cancelled. Whatever fails is tried again.
    pub async fn run(mut self, cancel: CancellationToken) {
        let (sender, mut events) = mpsc::unbounded_channel();
        let subscription = self.options.backend.subscribe(Box::new(move |event| {
            let _ = sender.send(event.clone());
        }));
        // Whatever happened between the inventory in `new` and the subscription.
        let mut reading = Reading::new(Arc::clone(&self.options.backend), self.options.features.interval);
        reading.start();
        // Ends the reporter with this future, whether it is cancelled or dropped.
        let reporting = cancel.child_token();
        let _end = reporting.clone().drop_guard();
        let features = self.options.features.clone();
        let timestamp = features.timestamp.then_some(self.started);
        match (self.options.client.clone(), &features.sink) {
            (Some(client), _) => {
                let reporter = Reporter {
                    client,
                    shared: Arc::clone(&self.shared),
                    features,
                    timestamp,
                    resource: self.options.resource.clone(),
                    adopt: self.adopt,
                };
                tokio::spawn(reporter.run(reporting));
            }
            (None, LabelSink::File(path)) => {
                let (shared, path) = (Arc::clone(&self.shared), path.clone());
                tokio::spawn(reporting.run_until_cancelled_owned(async move {
                    sink::keep_file(&shared, &features, timestamp, &path).await;
                }));
            }
            (None, _) => {}
        }
        let watch = self.options.watch.clone().or_else(|| {
            FolderWatch::new().inspect_err(|error| tracing::warn!(%error, "polling instead")).ok()
        });
        self.cdi.watch(watch.clone());
        let mut folder: Option<FolderEvents> = None;
        let mut link = Link::default();
        loop {
            // First watch, then look: what happens in between is seen.
            if folder.is_none() {
                folder = watch.as_ref().and_then(|watch| watch.folder(&self.options.kubelet_dir).ok());
            }
            self.reconcile(&mut link);
            let event = tokio::select! {
                () = cancel.cancelled() => Event::Cancelled,
                Some(event) = events.recv() => Event::Health(event),
                watched = next_change(folder.as_mut()) => Event::Folder { watched },
                result = link.progress.next() => Event::Registration(result),
                result = reading.next() => Event::Look(result),
                () = self.cdi.changed() => Event::Driver,
            };
            match event {
                Event::Cancelled => break,
                Event::Health(event) => self.health(&event, &mut reading),
                Event::Driver if self.cdi.is_stale() => reading.start(),
                Event::Driver => {}
                Event::Look(Ok(look)) => self.refresh(look, &mut reading),
                Event::Look(Err(error)) => {
                    self.log(format!("Could not read the GPUs: {error}; trying again"));
                }
                Event::Folder { watched: true } => {}
                Event::Folder { watched: false } => folder = None,
                Event::Registration(None) => link.progress = Progress::Idle,
                Event::Registration(Some(Ok(()))) => {
                    link.progress = Progress::Done;
                    link.delay = RETRY.0;
                    self.log(format!(
                        "Registered device plugin for '{}' with Kubelet",
                        self.options.resource
                    ));
                    self.shared.registrations.send_modify(|count| *count += 1);
                }
                Event::Registration(Some(Err(error))) => {
                    self.log(format!("Could not {error}; trying again"));
                    link.wait();
                }
            }
        }
        drop(subscription);
        let path = self.socket();
        if link.server.is_some_and(|server| Some(server.id) == SocketId::at(&path)) {
            // The kubelet then reports no device instead of waiting for a plugin that is gone.
            let _ = std::fs::remove_file(path);
        }
        self.log("Stopped".to_owned());
    }

    fn socket(&self) -> PathBuf {
        self.options.kubelet_dir.join(&self.endpoint)
    }

    fn log(&self, text: String) {
        tracing::info!(node = self.options.node_name, "{text}");
        self.shared.log.write(text);
    }

    /// Serves and registers anew where the kubelet has a new socket, or ours is gone: a kubelet that starts empties the folder.
    fn reconcile(&self, link: &mut Link) {
        let path = self.socket();
        let kubelet = SocketId::at(&self.options.kubelet_dir.join(KUBELET_SOCKET));
        let served = link.server.as_ref().is_some_and(|server| Some(server.id) == SocketId::at(&path));
        let same = kubelet == link.kubelet;
        if kubelet.is_none() {
            link.kubelet = None;
            link.progress = Progress::Idle;
            return;
        }
        if same && served && !matches!(link.progress, Progress::Idle) {
            return;
        }
        if same && matches!(link.progress, Progress::Waiting(_)) {
            return;
        }
        if !self.cdi.ready && link.server.is_none() {
            return;
        }
        if self.shared.devices.borrow().is_empty() {
            if !same {
                self.log("No devices found. Waiting for one.".to_owned());
                link.kubelet = kubelet;
            }
            return;
        }
        if !same {
            link.delay = RETRY.0;
        }
        link.kubelet = kubelet;
        if !(same && served) {
            // The old one ends first: its streams belong to a kubelet that is gone.
            link.server = None;
            match Server::start(&path, |stop| Plugin::new(Arc::clone(&self.shared), stop)) {
                Ok(server) => link.server = Some(server),
                Err(error) => {
                    self.log(format!("Could not {error}; trying again"));
                    link.wait();
                    return;
                }
            }
            self.log(format!("Starting to serve '{}' on {}", self.options.resource, path.display()));
        }
        link.progress = Progress::Calling(Box::pin(socket::register(
            self.options.kubelet_dir.join(KUBELET_SOCKET),
            self.endpoint.clone(),
            self.options.resource.clone(),
            plugin::options(self.options.identity),
        )));
    }

    fn health(&mut self, event: &HealthEvent, reading: &mut Reading) {
        let fault = match &event.kind {
            EventKind::Recovered => return reading.start(),
            EventKind::Fault(fault) => fault,
        };
        match fault.kind {
            FaultKind::Xid(xid) if is_application_xid(xid) => {
                self.log(format!(
                    "XID {xid} on {}: an application's error, the device stays in service",
                    event.gpu
                ));
            }
            kind => {
                let shared = Arc::clone(&self.shared);
                let mut state = shared.state();
                if let Some(id) = state.set_health(&event.gpu, Health::Unhealthy(fault.clone())) {
                    self.log(format!("Device {id} ({}) marked unhealthy: {kind}", event.gpu));
                    if kind == FaultKind::Lost {
                        self.write_cdi(state.gpus());
                    }
                    shared.publish(&state);
                }
            }
        }
    }

    /// Takes over what the driver says. That every card is gone is believed when it is said a second time: a driver that is being
    /// replaced says so too. The CDI files come before what is offered: what is offered can be had.
    fn refresh(&mut self, look: Look, reading: &mut Reading) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let before = state.gpus().to_vec();
        if look.is_empty() && !before.is_empty() && !reading.absent {
            self.log("The driver lists no GPU any more; looking again before that is believed".to_owned());
            reading.absent = true;
            reading.start_in(ABSENCE);
            return;
        }
        reading.absent = false;
        if self.shared.facts().update(&look) {
            self.shared.revision.send_modify(|count| *count += 1);
        }
        self.driver.clone_from(&shared.facts().driver);
        state.refresh(look.inventory);
        let changed = state.gpus() != before;
        if changed {
            let (gpus, healthy) = count(state.gpus());
            self.log(format!("GPUs changed: {gpus} GPUs, {healthy} healthy"));
        }
        self.write_cdi(state.gpus());
        self.held |= changed;
        if self.held && self.cdi.ready {
            self.held = false;
            shared.publish(&state);
        }
    }

    fn write_cdi(&mut self, gpus: &[Gpu]) {
        for line in self.cdi.update(&self.driver, gpus) {
            self.log(line);
        }
        *self.shared.cdi() = self.cdi.known.clone();
    }
}

fn count(gpus: &[Gpu]) -> (usize, usize) {
    (gpus.len(), gpus.iter().filter(|gpu| gpu.health.is_healthy()).count())
}

/// All that can wake the agent.
enum Event {
    Cancelled,
    Health(HealthEvent),
    /// Something happened in the kubelet's folder, or it has to be looked at because it is not watched.
    Folder {
        watched: bool,
    },
    /// A call has ended; `None` when a wait has.
    Registration(Option<Result<(), Error>>),
    /// The GPUs were read. After a failure they will be read again, and until then everything stays as it was.
    Look(Result<Look, gantry_gpu::Error>),
    /// Driver, device files or CDI files may have changed, or it is time to try again.
    Driver,
}

/// Reading the GPUs anew: on a thread of its own, for a driver may take its time, and again until it succeeds.
struct Reading {
    backend: Arc<dyn GpuBackend>,
    call: Option<JoinHandle<Result<Look, gantry_gpu::Error>>>,
    /// When to read again: after a failure, or because something has happened since the call began.
    due: Option<Instant>,
    /// How long after a look the next is due in any case.
    interval: Option<Duration>,
    /// The next wait after a failure.
    delay: Duration,
    /// Whether the last look showed no card where there were some.
    absent: bool,
}

impl Reading {
    fn new(backend: Arc<dyn GpuBackend>, interval: Option<Duration>) -> Self {
        Self { backend, call: None, due: None, interval, delay: RETRY.0, absent: false }
    }

    /// Has the GPUs read as they are from now on.
    fn start(&mut self) {
        self.due = Some(Instant::now());
    }

    /// Has the GPUs read after a while, or earlier where that is due.
    fn start_in(&mut self, wait: Duration) {
        let due = Instant::now() + wait;
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }

    /// The end of the next call.
    async fn next(&mut self) -> Result<Look, gantry_gpu::Error> {
        loop {
            if let Some(call) = &mut self.call {
                let ended = call.await;
                self.call = None;
                // A driver call that panics has failed; the panic is on record.
                let result = ended.unwrap_or(Err(gantry_gpu::Error::Aborted));
                if result.is_ok() {
                    self.delay = RETRY.0;
                    if let Some(interval) = self.interval {
                        self.start_in(interval);
                    }
                } else {
                    self.start_in(self.delay);
                    self.delay = (self.delay * 2).min(RETRY.1);
                }
                return result;
            }
            match self.due {
                None => std::future::pending().await,
                Some(due) => {
                    sleep_until(due).await;
                    self.due = None;
                    let backend = Arc::clone(&self.backend);
                    self.call = Some(tokio::task::spawn_blocking(move || Look::take(&*backend)));
                }
            }
        }
    }
}

async fn next_change(folder: Option<&mut FolderEvents>) -> bool {
    if let Some(folder) = folder {
        folder.changed().await
    } else {
        sleep(POLL).await;
        false
    }
}

/// Where the agent stands with the kubelet.
struct Link {
    /// The kubelet's socket when we last acted on it.
    kubelet: Option<SocketId>,
    server: Option<Server>,
    progress: Progress,
    /// The next wait after a failure.
    delay: Duration,
}

impl Default for Link {
    fn default() -> Self {
        Self { kubelet: None, server: None, progress: Progress::Idle, delay: RETRY.0 }
    }
}

impl Link {
    fn wait(&mut self) {
        self.progress = Progress::Waiting(Instant::now() + self.delay);
        self.delay = (self.delay * 2).min(RETRY.1);
    }
}

enum Progress {
    /// There is something to do.
    Idle,
    Calling(Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>),
    Waiting(Instant),
    /// Registered.
    Done,
}

impl Progress {
    /// The end of the call (`Some`) or of the wait (`None`).
    async fn next(&mut self) -> Option<Result<(), Error>> {
        match self {
            Self::Calling(call) => Some(call.await),
            Self::Waiting(until) => {
                sleep_until(*until).await;
                None
            }
            Self::Idle | Self::Done => std::future::pending().await,
        }
    }
}
