//! The CDI files of a node: kept in step with driver and GPUs, before anybody is told of a device.
//!
//! What is in them is the business of `gantry_driver`. This part says when: at the start, whenever the GPUs, the folders of the driver, its
//! device files or the CDI files themselves have changed, and again until it succeeds.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{self, Either};
use gantry_cdi::{DeviceName, Spec};
use gantry_driver::{
    Class, DeviceFiles, MANAGEMENT_VENDOR, Machine, MigMinors, PLUGIN_VENDOR, Root, Running, SOCKETS, VENDOR,
    Wish, discover,
};
use gantry_gpu::DriverInfo;
use gantry_model::{Gpu, GpuId};
use jiff::Timestamp;
use tokio::time::{Instant, sleep_until};

use crate::FolderWatch;
use crate::watch::FolderEvents;

/// What is described, each in a file of its own. The vendor of the device plugin comes first: the others are a courtesy.
const KINDS: [(&str, Class); 8] = [
    (PLUGIN_VENDOR, Class::Gpu),
    (VENDOR, Class::Gpu),
    (MANAGEMENT_VENDOR, Class::Management),
    (VENDOR, Class::Gds),
    (VENDOR, Class::Mofed),
    (VENDOR, Class::Gdrcopy),
    (VENDOR, Class::ImexChannel),
    (VENDOR, Class::Nvswitch),
];

/// Waits between attempts: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often a machine is looked at for what nobody is told of: a kernel module that was loaded anew, a mount that came or went.
const POLL: Duration = Duration::from_secs(30);

/// The name of a GPU as the device plugin hands it out.
pub(crate) fn plugin_device(gpu: &GpuId) -> Result<DeviceName, gantry_cdi::Error> {
    DeviceName::new(&kind(PLUGIN_VENDOR, Class::Gpu), gpu.as_str())
}

fn kind(vendor: &str, class: Class) -> String {
    format!("{vendor}/{}", class.name())
}

/// The file of a kind, without its ending. NVIDIA's device plugin uses the same name, so that what it left behind is replaced.
fn file(vendor: &str, class: Class) -> String {
    format!("{vendor}-{}", class.name())
}

/// Where a machine's device files are, and what tells of them.
#[derive(Debug, Clone)]
pub struct DeviceRoots {
    /// The root whose `dev` has the device files, mostly `/`.
    pub dev: Root,
    /// Where procfs is mounted, which tells the kernel module's version and numbers.
    pub procfs: PathBuf,
    /// Where sysfs is mounted, which tells the files through which cards draw.
    pub sysfs: PathBuf,
}

/// Where a machine is described from.
#[derive(Debug)]
struct Source {
    driver_root: Root,
    /// `None` for a machine that is simulated, and has neither device files nor a kernel module.
    devices: Option<DeviceRoots>,
}

impl Source {
    fn machine(&self, driver: &DriverInfo, gpus: &[Gpu]) -> Result<Machine, gantry_driver::Error> {
        let mut running = match &self.devices {
            Some(roots) => Running::of_kernel(&roots.procfs),
            None => Running::default(),
        };
        running.version = Some(driver.driver_version.clone());
        let version = running.driver_version()?;
        // NVML may be that of an earlier driver, which this process has loaded.
        let same = version.is_some_and(|version| version.as_str() == driver.driver_version);
        running.cuda = same.then_some(driver.cuda_version);
        let (devices, minors) = match &self.devices {
            Some(DeviceRoots { dev, procfs, sysfs }) => {
                (DeviceFiles::scan(dev, procfs, sysfs), MigMinors::of_kernel(procfs)?)
            }
            None => (DeviceFiles::assumed(), MigMinors::assumed()),
        };
        Ok(Machine { driver: discover(&self.driver_root, &running)?, devices, minors, gpus: gpus.to_vec() })
    }
}

/// What came of writing.
#[derive(Debug, Default)]
struct Written {
    /// Whether a file is another now.
    changed: bool,
    /// What somebody should know, one sentence each.
    notes: Vec<String>,
}

/// Writes the files of a machine, and removes those of kinds that it does not have (any more): an empty file would be an invalid one.
fn write(folder: &Path, machine: &Machine) -> Result<Written, gantry_driver::Error> {
    let mut written = Written::default();
    let others = others(folder);
    for (vendor, class) in KINDS {
        let (kind, name) = (kind(vendor, class), file(vendor, class));
        let spec = match machine.spec(class, &kind, &Wish::usual()) {
            Err(gantry_driver::Error::NoDevices { .. }) => None,
            spec => Some(spec?),
        };
        let other = others.iter().find(|(_, other)| other.kind == kind);
        let spec = match (spec, other) {
            (Some(_), Some((path, _))) if vendor != PLUGIN_VENDOR => {
                // Two files with one device make it unusable. Whoever wrote the other one asked for it.
                written.notes.push(format!("CDI kind {kind} is left to {}", path.display()));
                None
            }
            (Some(spec), Some((path, _))) => {
                written.notes.push(format!(
                    "{} describes {kind}, too: runtimes refuse devices that two files describe; remove it",
                    path.display()
                ));
                Some(spec)
            }
            (spec, _) => spec,
        };
        let path = folder.join(format!("{name}.json"));
        match spec {
            Some(spec) if gantry_cdi::read(&path).is_ok_and(|known| known == spec) => {}
            Some(spec) => {
                gantry_cdi::write(folder, &name, &spec)?;
                written.changed = true;
            }
            // A read-only folder refuses to remove even what is not there.
            None if fs::symlink_metadata(&path).is_err() => {}
            None => {
                gantry_cdi::remove(folder, &name)?;
                written.changed = true;
            }
        }
    }
    Ok(written)
}

/// Removes every file.
fn remove(folder: &Path) -> Result<(), gantry_cdi::Error> {
    KINDS.iter().try_for_each(|(vendor, class)| gantry_cdi::remove(folder, &file(vendor, *class)))
}

/// The valid files of others. Those that are not valid are nobody's concern here: no runtime reads them either.
fn others(folder: &Path) -> Vec<(PathBuf, Spec)> {
    let ours: BTreeSet<PathBuf> =
        KINDS.iter().map(|(vendor, class)| folder.join(format!("{}.json", file(vendor, *class)))).collect();
    let files = gantry_cdi::specification_files(folder, &mut Vec::new());
    let others = files.into_iter().filter(|path| !ours.contains(path));
    others.filter_map(|path| Some((path.clone(), gantry_cdi::read(&path).ok()?))).collect()
}

/// Whether the files on disk describe every device that work may be given.
fn cover(folder: &Path, gpus: &[Gpu]) -> bool {
    let wanted = gpus.iter().filter(|gpu| gpu.health.is_healthy()).flat_map(|gpu| {
        let whole = gpu.partitions.is_none().then_some(&gpu.id);
        whole.into_iter().chain(gpu.partitions.iter().flatten().map(|part| &part.id))
    });
    let wanted: Vec<&GpuId> = wanted.collect();
    let path = folder.join(format!("{}.json", file(PLUGIN_VENDOR, Class::Gpu)));
    wanted.is_empty()
        || gantry_cdi::read(&path).is_ok_and(|spec| {
            wanted.iter().all(|id| spec.devices.iter().any(|device| device.name == id.as_str()))
        })
}

/// What is known of the CDI files, for others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// The machine as it was described last.
    pub(crate) machine: Option<Arc<Machine>>,
    /// Whether the files describe every device that work may be given: one that they do not is not offered, for no runtime could bring it
    /// into a container.
    pub(crate) ready: bool,
    /// Why it cannot be described or written now.
    pub(crate) error: Option<Trouble>,
    /// Since when that is so, or is not; `None` before the first attempt.
    pub(crate) since: Option<Timestamp>,
}

/// Why the files are not up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// In one word.
    pub(crate) reason: &'static str,
    pub(crate) text: String,
    /// What to do, where the text does not say it.
    hint: Option<String>,
    /// Whether files describe every device nevertheless.
    ready: bool,
}

impl Trouble {
    fn new(error: &gantry_driver::Error, folder: &Path, ready: bool) -> Self {
        let text = error.to_string();
        match error {
            gantry_driver::Error::Cdi(gantry_cdi::Error::Io { source, .. }) => {
                let hint = Some(hint(source.kind(), &folder.display().to_string()));
                Self { reason: "CannotWrite", text, hint, ready }
            }
            _ => Self { reason: "CannotDescribe", text, hint: None, ready },
        }
    }

    /// What happened, what follows from it, and what to do.
    pub(crate) fn message(&self) -> String {
        let follows = if self.ready {
            "devices stay in service as they were described before"
        } else {
            "changes are held back until every device is described"
        };
        format!("the CDI files could not be brought up to date: {}; {follows}{}", self.text, self.to_do())
    }

    fn to_do(&self) -> String {
        self.hint.as_ref().map(|hint| format!("; to do: {hint}")).unwrap_or_default()
    }
}

fn hint(kind: ErrorKind, folder: &str) -> String {
    match kind {
        ErrorKind::ReadOnlyFilesystem => format!(
            "mount {folder} into the agent's pod writable; where it is, dmesg on the node tells why its disk has become read-only"
        ),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("free space or inodes on the node: df -h {folder}; df -i {folder}")
        }
        ErrorKind::PermissionDenied => {
            format!("let the agent write there, as root and by the node's security module: ls -ldZ {folder}")
        }
        _ => format!(
            "ls -la {folder} on the node; gantry agent --cdi-dir names another folder, from which the container runtime has to read, too"
        ),
    }
}

/// Keeps the files.
#[derive(Debug)]
pub(crate) struct Keeper {
    source: Source,
    folder: PathBuf,
    watch: Option<FolderWatch>,
    /// What changes when driver, device files or CDI files do.
    seen: Vec<Print>,
    events: Vec<(PathBuf, FolderEvents)>,
    next_look: Option<Instant>,
    /// When to try again, and how long to wait after that.
    retry: Option<Instant>,
    delay: Duration,
    told: BTreeSet<String>,
    pub(crate) known: Known,
}

/// A file or folder at one moment, in numbers that change when it does; zeros where nothing is.
type Print = (PathBuf, [u64; 4]);

fn print(path: PathBuf, numbers: impl Fn(&fs::Metadata) -> [u64; 4]) -> Print {
    let numbers = fs::metadata(&path).map(|file| numbers(&file)).unwrap_or_default();
    (path, numbers)
}

/// Of a folder or of a file that is replaced as a whole.
fn content(file: &fs::Metadata) -> [u64; 4] {
    [file.ino(), file.len(), file.mtime().cast_unsigned(), file.mtime_nsec().cast_unsigned()]
}

/// Of a device file, whose times say nothing.
fn node(file: &fs::Metadata) -> [u64; 4] {
    [file.ino(), file.rdev(), file.mode().into(), file.gid().into()]
}

impl Keeper {
    pub(crate) fn new(folder: PathBuf, driver_root: Root, devices: Option<DeviceRoots>) -> Self {
        Self {
            source: Source { driver_root, devices },
            folder,
            watch: None,
            seen: Vec::new(),
            events: Vec::new(),
            next_look: None,
            retry: None,
            delay: RETRY.0,
            told: BTreeSet::new(),
            known: Known::default(),
        }
    }

    /// Watches folders from now on.
    pub(crate) fn watch(&mut self, watch: Option<FolderWatch>) {
        self.watch = watch;
        self.follow();
    }

    /// Brings the files in step with driver and GPUs. What is to be logged.
    pub(crate) fn update(&mut self, driver: &DriverInfo, gpus: &[Gpu]) -> Vec<String> {
        let mut lines = Vec::new();
        // Before they are read: what changes meanwhile is seen.
        let before = self.prints();
        let done = self.source.machine(driver, gpus).and_then(|machine| {
            let mut notes = machine.problems();
            self.known.machine = Some(Arc::new(machine.clone()));
            let written = write(&self.folder, &machine)?;
            notes.extend(written.notes);
            Ok((machine, written.changed, notes))
        });
        match done {
            Ok((machine, changed, notes)) => {
                if changed || self.known.error.is_some() {
                    lines.push(format!(
                        "CDI files in {}: driver {}, {} files of it",
                        self.folder.display(),
                        machine.driver.version,
                        machine.driver.files.len()
                    ));
                }
                self.known.ready = true;
                self.known.error = None;
                (self.retry, self.delay) = (None, RETRY.0);
                let notes: BTreeSet<String> = notes.into_iter().collect();
                lines.extend(notes.difference(&self.told).cloned());
                self.told = notes;
            }
            Err(error) => {
                if matches!(error, gantry_driver::Error::NoDriver { .. }) {
                    // What they point to is gone.
                    self.known.machine = None;
                    lines.extend(remove(&self.folder).err().map(|error| error.to_string()));
                }
                self.known.ready = cover(&self.folder, gpus);
                let trouble = Trouble::new(&error, &self.folder, self.known.ready);
                if self.known.error.as_ref() != Some(&trouble) {
                    let rest = if self.known.ready { "; those that are there stay in use" } else { "" };
                    let hint = trouble.to_do();
                    lines.push(format!(
                        "Could not bring the CDI files up to date: {}{rest}{hint}; trying again",
                        trouble.text
                    ));
                }
                self.known.error = Some(trouble);
                self.retry = Some(Instant::now() + self.delay);
                self.delay = (self.delay * 2).min(RETRY.1);
            }
        }
        self.follow();
        // What was written just now is no change.
        let earlier = |now: Print| {
            let known = before.iter().find(|(path, _)| *path == now.0 && !path.starts_with(&self.folder));
            known.cloned().unwrap_or(now)
        };
        self.seen = self.prints().into_iter().map(earlier).collect();
        lines
    }

    /// Whether something is not as it was when the files were written.
    pub(crate) fn is_stale(&mut self) -> bool {
        if self.retry.is_some_and(|retry| retry <= Instant::now()) {
            self.retry = None;
            return true;
        }
        self.seen != self.prints()
    }

    /// Waits until there is something to look at.
    pub(crate) async fn changed(&mut self) {
        let due = self.retry.into_iter().chain(self.next_look).min();
        let timer = async {
            match due {
                Some(due) => sleep_until(due).await,
                None => future::pending().await,
            }
        };
        let events = &mut self.events;
        let folders = async {
            if events.is_empty() {
                return future::pending().await;
            }
            let waits = events.iter_mut().map(|(_, events)| Box::pin(events.changed()));
            let (still_there, index, _) = future::select_all(waits).await;
            (!still_there).then_some(index)
        };
        let woken = match future::select(std::pin::pin!(timer), std::pin::pin!(folders)).await {
            Either::Left(((), _)) => Err(()),
            Either::Right((gone, _)) => Ok(gone),
        };
        match woken {
            Err(()) => self.next_look = self.next_look.map(|_| Instant::now() + POLL),
            Ok(gone) => drop(gone.map(|index| self.events.remove(index))),
        }
    }

    fn folders(&self) -> Vec<PathBuf> {
        let of_driver = self.known.machine.iter().flat_map(|machine| &machine.driver.folders);
        of_driver.map(|folder| self.source.driver_root.here(folder)).collect()
    }

    fn prints(&self) -> Vec<Print> {
        let mut prints: Vec<Print> = self.folders().into_iter().map(|path| print(path, content)).collect();
        if let Some(DeviceRoots { dev, procfs, .. }) = &self.source.devices {
            let names =
                ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps", "dri"];
            let gpus = self.known.machine.iter().flat_map(|machine| &machine.gpus);
            let names = names
                .iter()
                .map(|name| (*name).to_owned())
                .chain(gpus.map(|gpu| format!("nvidia{}", gpu.minor)));
            prints.extend(names.map(|name| print(dev.here(&format!("dev/{name}")), node)));
            // A file of the kernel's has no times of its own.
            let version = procfs.join("driver/nvidia/version");
            let text = fs::read(&version).unwrap_or_default();
            prints.push((version, [gantry_kit::fnv1a_64(&text, 0), 0, 0, 0]));
        }
        let inode = |file: &fs::Metadata| [file.ino(), file.rdev(), 0, 0];
        prints.extend(SOCKETS.iter().map(|(path, _)| print(self.source.driver_root.here(path), inode)));
        let own =
            KINDS.iter().map(|(vendor, class)| self.folder.join(format!("{}.json", file(vendor, *class))));
        prints.extend(own.map(|path| print(path, content)));
        prints
    }

    /// Watches the folders of the driver as it was found, and that of the CDI files.
    fn follow(&mut self) {
        let Some(watch) = &self.watch else { return self.look_later() };
        let mut wanted = self.folders();
        wanted.push(self.folder.clone());
        // Whatever else happens in /tmp would wake us, too.
        let sockets = SOCKETS.iter().filter(|(path, _)| !path.starts_with("/tmp/"));
        let of_daemons = sockets.map(|(path, _)| self.source.driver_root.here(path));
        wanted.extend(of_daemons.filter_map(|path| path.parent().map(Path::to_path_buf)));
        self.events.retain(|(path, _)| wanted.contains(path));
        for path in wanted {
            if !self.events.iter().any(|(known, _)| *known == path)
                && let Ok(events) = watch.folder(&path)
            {
                self.events.push((path, events));
            }
        }
        self.look_later();
    }

    /// A simulated machine changes nothing behind our back that a watch does not tell.
    fn look_later(&mut self) {
        let looks = self.source.devices.is_some() || self.watch.is_none();
        self.next_look = looks.then(|| Instant::now() + POLL);
    }
}

#[cfg(test)]
mod tests;
