//! The agent's life: start, keep registered, follow health, end.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_driver::Root;
use gantry_engine::DeviceSets;
use gantry_gpu::{DriverInfo, EventKind, GpuBackend, HealthEvent, Inventory};
use gantry_kit::{CancellationToken, SharedClock};
use gantry_model::{Gpu, Health};
use gantry_nvidia_config::Config;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::checkpoint::{Checkpoint, Restored};
use crate::ended::{self, Kubelet};
use crate::facts::{Facts, Look};
use crate::handle::{Choice, Shared};
use crate::health::{self, HealthOptions, Monitor, Outcome, Policy, Verdict};
use crate::links::{Context, Links};
use crate::log::Log;
use crate::node_config::Loaded;
use crate::node_label::{self, Label};
use crate::report::Reporter;
use crate::socket;
use crate::state::State;
use crate::watch::FolderEvents;
use crate::{
    ConfigSource, DeviceRoots, Error, FeatureOptions, FolderWatch, Handle, Identity, IdentityMode, cdi,
    identity, nri, podresources, pods, sink,
};

/// How long what has changed of the driver may go on changing before it is looked at: an installer writes many files.
const SETTLE: Duration = Duration::from_millis(100);

/// How often the kubelet's folder is looked at where it cannot be watched, for instance because it is not there yet.
const POLL: Duration = Duration::from_millis(200);

/// Waits between attempts to register, or to read the GPUs: the first, and the longest.
pub(crate) const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How long a node that never had a configuration waits for its label, where a folder of configurations is given: nothing is offered before,
/// so that a node with shares does not offer whole GPUs first.
pub(crate) const LABEL_PATIENCE: Duration = Duration::from_secs(10);

/// How often configurations are looked at where they cannot be watched, or could not be used.
const CONFIG_POLL: Duration = Duration::from_secs(5);

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
    pub identity: Identity,
    /// The socket of the container runtime's NRI, usually [`gantry_nri::SOCKET`]. Without, somebody else calls [`Handle::create_container`].
    pub nri: Option<PathBuf>,
    /// The socket of the kubelet's podresources service, usually `<root-dir>/pod-resources/kubelet.sock`. Without, the ledger does not
    /// know what the kubelet decides.
    pub pod_resources: Option<PathBuf>,
    /// The kubelet's folder of pods, usually `<root-dir>/pods`, on nodes with `gantry-runtime`: no container runtime tells there that a pod has
    /// ended, and its GPUs are free when its folder is gone.
    pub kubelet_pods: Option<PathBuf>,
    /// The resource of whole GPUs to which the configuration gives no other name, usually `nvidia.com/gpu`.
    pub resource: String,
    /// What is offered, in the format of NVIDIA's device plugin.
    pub config: ConfigSource,
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
    /// Health.
    pub health: HealthOptions,
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
    /// Whether owners have to be read from the API server, because no checkpoint told them.
    adopt: bool,
    /// The devices that were out of service when the last run ended, and are not any more.
    returned: Vec<Verdict>,
    /// The configuration that was known at the start; what is read once is as it says.
    began: Arc<Config>,
    /// What was said of configurations, each once.
    warned: BTreeSet<String>,
    /// When feature discovery started, in seconds since 1970.
    started: i64,
    monitor: Mutex<Monitor>,
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
        let (loaded, fault) = first_config(&options)?;
        let config = match &loaded {
            Some(loaded) => Arc::clone(&loaded.config),
            None => ConfigSource { folder: None, file: None, ..options.config.clone() }.load(None)?.config,
        };
        let (node, resource) = (options.node_name.as_str().into(), options.resource.as_str().into());
        let began = Arc::clone(&config);
        let mut state = State::new(node, IdentityMode::Assignment, resource, config);
        let checkpoint = Checkpoint::new(options.state_dir.join(&endpoint).with_extension("checkpoint"));
        let restored = checkpoint.restore(&mut state)?;
        if let Restored::SetAside(path, cause) = &restored {
            tracing::warn!(node = options.node_name, path = %path.display(), cause, "unusable checkpoint set aside");
            log.write(format!("The checkpoint cannot be used and was moved to {}: {cause}", path.display()));
        }
        // A node that finds out who decides begins as it was; one that was never there before finds out first.
        let (last, auto) = (state.last_mode, options.identity == Identity::Auto && options.nri.is_some());
        let mode = match options.identity {
            Identity::Assignment => IdentityMode::Assignment,
            Identity::Auto if auto => last.unwrap_or_default(),
            Identity::Kubelet | Identity::Auto => IdentityMode::Kubelet,
        };
        state.set_mode(mode);
        let asked = options.nri.is_some() || options.kubelet_pods.is_some();
        let choice = Choice {
            auto,
            nri: options.nri.is_some(),
            pods: asked && options.client.is_some(),
            decided: !auto || last.is_some(),
        };
        let health = options.state_dir.join(&endpoint).with_extension("health");
        let checks = state.config().health_checks.clone();
        let policy = Policy { checks, ..options.health.policy.clone() };
        let (mut monitor, damaged) = Monitor::new(policy, health::boot_id(), health)?;
        if let Some(cause) = damaged {
            log.write(format!(
                "The file of faults cannot be used, so that earlier ones are forgotten: {cause}"
            ));
        }
        let mut look = Look::take(&*options.backend)?;
        let mut returned = monitor.verdicts();
        monitor.look(options.clock.now(), &mut look);
        let verdicts = monitor.verdicts();
        returned.retain(|old| verdicts.iter().all(|new| new.id != old.id));
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
            tracing::info!(node = options.node_name, "{line}");
            log.write(line);
        }
        let kubelet =
            Kubelet { pod_resources: options.pod_resources.clone(), pods: options.kubelet_pods.clone() };
        let shared = Arc::new(Shared::new(state, checkpoint, facts, log, choice, kubelet));
        *shared.cdi() = cdi::Known { since: Some(options.clock.now()), ..cdi.known.clone() };
        shared.publish(&shared.state());
        let handle = Handle(Arc::clone(&shared));
        let adopt = restored != Restored::Whole;
        let started = options.clock.now().as_second();
        *shared.verdicts() = verdicts;
        let monitor = Mutex::new(monitor);
        shared.configured.send_replace(loaded.is_some());
        let warned = BTreeSet::new();
        let mut agent = Self {
            options,
            driver,
            cdi,
            adopt,
            returned,
            began: Arc::clone(&began),
            warned,
            started,
            monitor,
            shared,
        };
        let ConfigSource { file, folder, .. } = &agent.options.config;
        if let Some(loaded) = loaded.filter(|_| file.is_some() || folder.is_some()) {
            agent.log(format!("Using {}", loaded.name));
        }
        let misfit =
            agent.shared.state().misfit().map(|misfit| format!("The configuration does not fit: {misfit}"));
        if let Some(fault) = fault.or(misfit) {
            agent.config_fault(Some(fault));
        }
        agent.warn(&began);
        agent.log_notes();
        Ok((agent, handle))
    }

    /// Serves the kubelet until cancelled. Whatever fails is tried again.
    pub async fn run(mut self, cancel: CancellationToken) {
        let (sender, mut events) = mpsc::unbounded_channel();
        let subscription = self.options.backend.subscribe(Box::new(move |event| {
            let _ = sender.send(event.clone());
        }));
        // Whatever happened between the inventory in `new` and the subscription.
        let mut reading = Reading::new(Arc::clone(&self.options.backend), self.interval());
        reading.start();
        // Ends the reporter with this future, whether it is cancelled or dropped.
        let reporting = cancel.child_token();
        let _end = reporting.clone().drop_guard();
        let (features, started) = (self.options.features.clone(), self.started);
        match self.options.client.clone() {
            Some(client) => {
                let reporter = Reporter {
                    client,
                    shared: Arc::clone(&self.shared),
                    features,
                    started,
                    resource: self.options.resource.clone(),
                    adopt: self.adopt,
                    returned: std::mem::take(&mut self.returned),
                    taint: self.options.health.taint,
                    clock: Arc::clone(&self.options.clock),
                };
                tokio::spawn(reporter.run(reporting.clone()));
            }
            None => {
                let shared = Arc::clone(&self.shared);
                tokio::spawn(reporting.clone().run_until_cancelled_owned(async move {
                    sink::keep(&shared, &features, started).await;
                }));
            }
        }
        self.follow(&reporting);
        let mut decided = self.shared.decided.subscribe();
        let mut label = self.follow_label(&reporting);
        let mut patience = Some(Instant::now() + LABEL_PATIENCE);
        let watch = self.options.watch.clone().or_else(|| {
            FolderWatch::new().inspect_err(|error| tracing::warn!(%error, "polling instead")).ok()
        });
        self.cdi.watch(watch.clone());
        let mut folder: Option<FolderEvents> = None;
        let mut configs = Configs::new(&self.options.config, watch.clone());
        let mut links = Links::default();
        loop {
            // First watch, then look: what happens in between is seen.
            if folder.is_none() {
                folder = watch.as_ref().and_then(|watch| watch.folder(&self.options.kubelet_dir).ok());
            }
            let configured = self.configured();
            if *decided.borrow_and_update() && configured {
                let context = Context {
                    folder: &self.options.kubelet_dir,
                    shared: &self.shared,
                    register: self.shared.state().config().kubelet_socket != Some(None),
                    ready: self.cdi.known.ready,
                };
                links.reconcile(&context, &mut |line| self.log(line));
            }
            let event = tokio::select! {
                () = cancel.cancelled() => Event::Cancelled,
                Some(event) = events.recv() => Event::Health(event),
                watched = next_change(folder.as_mut()) => Event::Folder { watched },
                line = links.next(&self.shared) => Event::Registration(line),
                result = reading.next() => Event::Look(result),
                () = self.cdi.changed() => Event::Driver,
                Ok(()) = label.changed() => Event::Config,
                () = configs.changed() => Event::Config,
                () = wait_until(patience), if !configured => Event::Patience,
                Ok(()) = decided.changed() => Event::Decided,
            };
            match event {
                Event::Cancelled => break,
                Event::Health(event) => self.health(&event, &mut reading),
                Event::Driver if self.cdi.is_stale() => reading.start_in(SETTLE),
                Event::Driver => {}
                Event::Look(Ok(look)) => self.refresh(look, &mut reading),
                Event::Look(Err(error)) => {
                    self.log(format!("Could not read the GPUs: {error}; trying again"));
                }
                Event::Folder { watched: true } | Event::Decided => {}
                Event::Folder { watched: false } => folder = None,
                Event::Registration(None) => {}
                Event::Registration(Some(line)) => {
                    self.log(line);
                    self.prepare_choices();
                }
                Event::Config => {
                    let label = label.borrow_and_update().clone();
                    self.reload(&label);
                    reading.every(self.interval());
                }
                Event::Patience => {
                    patience = None;
                    if *label.borrow() == Label::Unknown {
                        self.log(
                            "The API server does not tell the node's labels: going on without".to_owned(),
                        );
                        self.reload(&Label::Known(None));
                        reading.every(self.interval());
                    }
                }
            }
        }
        drop(subscription);
        links.end(&self.options.kubelet_dir);
        self.log("Stopped".to_owned());
    }

    /// Whether there is a configuration to go by. Without, nothing is offered.
    fn configured(&self) -> bool {
        *self.shared.configured.borrow()
    }

    /// How often the GPUs are read without being told of a change.
    fn interval(&self) -> Option<Duration> {
        self.options.features.under(self.shared.state().config()).interval
    }

    /// Starts what follows runtime, kubelet and API server beside the agent's own loop.
    fn follow(&self, cancel: &CancellationToken) {
        let Options { node_name, client, .. } = &self.options;
        let spawn = |task: Pin<Box<dyn Future<Output = ()> + Send>>| {
            tokio::spawn(cancel.clone().run_until_cancelled_owned(task));
        };
        if let Some(socket) = &self.options.nri {
            let options = nri_options(socket, &self.options.clock);
            let plugin = Arc::new(nri::Plugin::new(Arc::clone(&self.shared)));
            match gantry_nri::Connection::new(options, plugin) {
                Ok((connection, handle)) => {
                    tokio::spawn(connection.run(cancel.clone()));
                    spawn(Box::pin(identity::govern(Arc::clone(&self.shared), handle.state())));
                }
                Err(error) => self.log(format!("NRI cannot be used: {error}")),
            }
        }
        if let Some(client) = client.as_ref().filter(|_| self.shared.choice.pods) {
            let shared = Arc::clone(&self.shared);
            let pods = Arc::clone(&shared.pods);
            spawn(Box::pin(pods::follow(pods, client.clone(), node_name.as_str().into())));
            spawn(Box::pin(async move { ended::free(&shared).await }));
        }
        if let Some(socket) = &self.options.pod_resources {
            spawn(Box::pin(podresources::follow(Arc::clone(&self.shared), socket.clone())));
        }
    }

    fn log(&self, text: String) {
        tracing::info!(node = self.options.node_name, "{text}");
        self.shared.log.write(text);
    }

    /// Computes what choices need, outside of the kubelet's calls and of the lock that they wait for.
    fn prepare_choices(&self) {
        if let Some((topology, gpus)) = self.shared.state().uncomputed() {
            let shared = Arc::clone(&self.shared);
            tokio::task::spawn_blocking(move || {
                let sets = DeviceSets::new(&topology, &gpus);
                shared.state().computed(sets);
            });
        }
    }

    /// Follows the node's label, where it says anything.
    fn follow_label(&self, cancel: &CancellationToken) -> watch::Receiver<Label> {
        let (sender, receiver) = watch::channel(Label::Unknown);
        let node: Arc<str> = self.options.node_name.as_str().into();
        if let Some(client) = self.options.client.clone() {
            let (shared, clock) = (Arc::clone(&self.shared), Arc::clone(&self.options.clock));
            let complain = node_label::complain(client.clone(), Arc::clone(&node), shared, clock);
            tokio::spawn(cancel.clone().run_until_cancelled_owned(complain));
            if self.options.config.folder.is_some() {
                let follow = node_label::follow(client, node, sender);
                tokio::spawn(cancel.clone().run_until_cancelled_owned(follow));
            }
        } else {
            // Nobody tells labels: the node has none.
            sender.send_replace(Label::Known(None));
        }
        receiver
    }

    /// Reads the node's configuration anew and offers its devices as it says. Whatever is wrong with it, the one in force stays.
    fn reload(&mut self, label: &Label) {
        let label = match label {
            // The configuration may have changed; whose it is, is not known.
            Label::Unknown if self.options.config.folder.is_some() => return,
            Label::Unknown => None,
            Label::Known(label) => label.as_deref(),
        };
        let loaded = match self.options.config.load(label) {
            Ok(loaded) => loaded,
            Err(error) => return self.config_fault(Some(error.to_string())),
        };
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        if *state.config() == loaded.config && self.configured() && state.misfit().is_none() {
            drop(state);
            self.keep(&loaded);
            return self.config_fault(None);
        }
        let missing = Shared::host(&loaded.config).missing_channel(&loaded.config);
        if let Some(id) = missing {
            drop(state);
            let fault = format!(
                "{}: imex.required: the node has no IMEX channel {id}; load its driver's channels, or set required to false",
                loaded.name
            );
            return self.config_fault(Some(fault));
        }
        if let Err(misfit) = state.configure(Arc::clone(&loaded.config)) {
            drop(state);
            return self.config_fault(Some(format!("{}: {misfit}", loaded.name)));
        }
        shared.configured.send_replace(true);
        shared.publish(&state);
        drop(state);
        self.log(format!("Using {}", loaded.name));
        self.keep(&loaded);
        self.config_fault(None);
        self.warn(&loaded.config);
        self.log_notes();
    }

    /// Keeps a configuration that is in force for the next start.
    fn keep(&self, loaded: &Loaded) {
        // One file for all is read anew at each start, or refused.
        if self.options.config.folder.is_some()
            && let Err(error) = loaded.keep(&self.options.state_dir)
        {
            self.log(format!("Could not keep the configuration for the next start: {error}"));
        }
    }

    /// Says what is wrong with the configuration, once for each new fault.
    fn config_fault(&self, fault: Option<String>) {
        let news = self.shared.config_fault.send_if_modified(|known| {
            let news = *known != fault;
            known.clone_from(&fault);
            news
        });
        if news && let Some(fault) = fault {
            self.log(format!("Configuration refused, the last good one stays in force: {fault}"));
        }
    }

    /// Says what of a configuration changes nothing, or nothing yet.
    fn warn(&mut self, config: &Config) {
        let later = config.changed_since_start(&self.began).into_iter().map(|setting| {
            let name = setting.path.unwrap_or(setting.flag);
            format!("{name}: is read when the agent starts; delete the agent's pod on this node to use the new value")
        });
        let machine = self.options.features.under(config).machine_type_file;
        let unread = machine.and_then(|path| sink::machine_type(&path).err());
        let unread =
            unread.map(|error| format!("could not {error}; the label nvidia.com/gpu.machine says unknown"));
        let notices = config.notices.iter().map(ToString::to_string);
        let lines: Vec<String> = notices.chain(later).chain(unread).collect();
        for line in lines {
            if self.warned.insert(line.clone()) {
                tracing::warn!(node = self.options.node_name, "{line}");
                self.shared.log.write(format!("Configuration: {line}"));
            }
        }
    }

    fn log_notes(&self) {
        let notes = self.shared.state().notes().to_vec();
        notes.into_iter().for_each(|note| self.log(note));
    }

    fn health(&mut self, event: &HealthEvent, reading: &mut Reading) {
        // What the driver says now decides everything further; an error that means nothing may change what it asks for.
        reading.start();
        let checks = self.shared.state().config().health_checks.clone();
        self.monitor().configure(checks);
        let (outcome, inventory) = self.monitor().event(self.options.clock.now(), event);
        match (&event.kind, outcome) {
            (EventKind::Fault(fault), Outcome::Ignored) => {
                let (kind, reason) = (fault.kind, Monitor::reason(fault.kind));
                self.log(format!("{kind} on {}{reason}: the device stays in service", event.gpu));
            }
            (_, Outcome::Sick) => {
                if let Some(inventory) = inventory {
                    let shared = Arc::clone(&self.shared);
                    let gpus = shared.state().cards(&inventory);
                    if gpus != shared.state().gpus() {
                        self.write_cdi(&gpus);
                        let mut state = shared.state();
                        self.apply(&mut state, inventory);
                        shared.publish(&state);
                    }
                }
            }
            _ => {}
        }
        self.remember(reading);
    }

    fn monitor(&self) -> MutexGuard<'_, Monitor> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what is known of faults, and has the GPUs read when one of them may return.
    fn remember(&self, reading: &mut Reading) {
        let mut monitor = self.monitor();
        if let Err(error) = monitor.save() {
            self.log(format!("Cannot write down the faults of devices: {error}"));
        }
        if let Some(wait) = monitor.next_look(self.options.clock.now()) {
            reading.start_in(wait.unsigned_abs());
        }
    }

    /// Takes over how the cards are now, and logs what has changed; `true` if anything has.
    fn apply(&self, state: &mut State, inventory: Inventory) -> bool {
        let before = state.gpus().to_vec();
        state.refresh(inventory);
        *self.shared.verdicts() = self.monitor().verdicts();
        if state.gpus() == before {
            return false;
        }
        let changed = |gpu: &&Gpu| {
            before.iter().find(|old| old.id == gpu.id).is_none_or(|old| old.health != gpu.health)
        };
        for gpu in state.gpus().iter().filter(changed) {
            match &gpu.health {
                Health::Healthy => self.log(format!("Device {} marked healthy", gpu.id)),
                Health::Unhealthy(fault) => {
                    self.log(format!(
                        "Device {} marked unhealthy: {}: {}",
                        gpu.id, fault.kind, fault.message
                    ));
                }
            }
        }
        let (gpus, healthy) = count(state.gpus());
        self.log(format!("GPUs changed: {gpus} GPUs, {healthy} healthy"));
        true
    }

    /// Takes over what the driver says. That every card is gone is believed when it is said a second time: a driver that is being
    /// replaced says so too. The CDI files come before what is offered: what is offered can be had.
    fn refresh(&mut self, mut look: Look, reading: &mut Reading) {
        let shared = Arc::clone(&self.shared);
        let had_any = !shared.state().gpus().is_empty();
        if look.is_empty() && had_any && !reading.absent {
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
        self.monitor().look(self.options.clock.now(), &mut look);
        // Without the lock: a disk may take its time, and containers are created meanwhile. Only this loop changes the cards.
        let gpus = shared.state().cards(&look.inventory);
        let described = self.cdi.known.ready;
        self.write_cdi(&gpus);
        let mut state = shared.state();
        let (misfit, notes) = (state.misfit().cloned(), state.notes().to_vec());
        if self.apply(&mut state, look.inventory) || described != self.cdi.known.ready {
            shared.publish(&state);
        }
        let now = state.misfit().cloned();
        let notes = (state.notes() != notes).then(|| state.notes().to_vec());
        drop(state);
        if now != misfit {
            self.config_fault(now.map(|misfit| format!("The configuration does not fit: {misfit}")));
        }
        notes.into_iter().flatten().for_each(|note| self.log(note));
        self.remember(reading);
    }

    fn write_cdi(&mut self, gpus: &[Gpu]) {
        for line in self.cdi.update(&self.driver, gpus) {
            self.log(line);
        }
        let mut new = self.cdi.known.clone();
        let news = {
            let mut known = self.shared.cdi();
            let same = known.error.is_some() == new.error.is_some();
            new.since = known.since.filter(|_| same).or_else(|| Some(self.options.clock.now()));
            let news = known.error != new.error;
            *known = new;
            news
        };
        if news {
            self.shared.revision.send_modify(|count| *count += 1);
        }
    }
}

fn nri_options(socket: &Path, clock: &SharedClock) -> gantry_nri::Options {
    gantry_nri::Options {
        socket: socket.to_path_buf(),
        name: nri::NAME.to_owned(),
        index: nri::INDEX.to_owned(),
        clock: Arc::clone(clock),
    }
}

fn count(gpus: &[Gpu]) -> (usize, usize) {
    (gpus.len(), gpus.iter().filter(|gpu| gpu.health.is_healthy()).count())
}

/// All that can wake the agent.
enum Event {
    /// It is known who decides.
    Decided,
    Cancelled,
    Health(HealthEvent),
    /// Something happened in the kubelet's folder, or it has to be looked at because it is not watched.
    Folder {
        watched: bool,
    },
    /// A registration has ended, with a line of log, or a wait after a failure.
    Registration(Option<String>),
    /// The node's label or the files of configurations have changed, or have to be looked at.
    Config,
    /// The label has not come in time.
    Patience,
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

    /// Has the GPUs read so often from now on.
    fn every(&mut self, interval: Option<Duration>) {
        if self.interval != interval {
            self.interval = interval;
            interval.into_iter().for_each(|wait| self.start_in(wait));
        }
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

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
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

/// The files of configurations.
struct Configs {
    /// The folder that is watched; `None` where there is nothing to watch.
    folder: Option<PathBuf>,
    watch: Option<FolderWatch>,
    events: Option<FolderEvents>,
}

impl Configs {
    fn new(source: &ConfigSource, watch: Option<FolderWatch>) -> Self {
        let parent = || source.file.as_deref()?.parent().map(PathBuf::from);
        Self { folder: source.folder.clone().or_else(parent), watch, events: None }
    }

    /// Waits until the files may have changed.
    async fn changed(&mut self) {
        let Some(folder) = &self.folder else {
            return std::future::pending().await;
        };
        if self.events.is_none() {
            self.events = self.watch.as_ref().and_then(|watch| watch.folder(folder).ok());
            if self.events.is_some() {
                // First watched, then looked at: what happens in between is seen.
                return;
            }
        }
        match &mut self.events {
            Some(events) => {
                if !events.changed().await {
                    self.events = None;
                }
            }
            None => sleep(CONFIG_POLL).await,
        }
    }
}

/// The configuration to start with, and what is wrong with the one that there should be. `None` where the node's label has to be waited for.
fn first_config(options: &Options) -> Result<(Option<Loaded>, Option<String>), Error> {
    let source = &options.config;
    if source.folder.is_none() {
        // Nothing was in force before that could stay.
        return source.load(None).map(|loaded| (Some(loaded), None));
    }
    if let Some(loaded) = source.last_good(&options.state_dir) {
        return Ok((Some(loaded), None));
    }
    if options.client.is_some() {
        return Ok((None, None));
    }
    match source.load(None) {
        Ok(loaded) => Ok((Some(loaded), None)),
        Err(error) => Ok((None, Some(error.to_string()))),
    }
}
