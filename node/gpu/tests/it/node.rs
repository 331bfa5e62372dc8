//! A driver root with the simulated library.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use gantry_fake_nvml::{Fault, InstallOptions, Installed, State, install};
use gantry_gpu::{EventKind, HealthEvent, NvmlGpus, NvmlOptions, Subscription};

/// The library that cargo built with this test: beside the test's own program, in `deps` or above it.
pub(crate) fn library() -> PathBuf {
    let own = std::env::current_exe().expect("this test is a program");
    let folders = own.ancestors().skip(1).take(2);
    let mut found = folders.map(|folder| folder.join("libgantry_fake_nvml.so")).filter(|path| path.exists());
    found.next().expect("cargo builds the library of gantry-fake-nvml, a dev-dependency, beside the tests")
}

/// A node with a driver.
pub(crate) struct Node {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) installed: Installed,
}

impl Node {
    /// A node with this configuration.
    pub(crate) fn new(config: &str) -> Self {
        Self::without(config, &[])
    }

    /// A node whose library lacks functions.
    pub(crate) fn without(config: &str, functions: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let installed = install(&InstallOptions {
            root: folder.path().to_path_buf(),
            library: library(),
            nvidia_smi: None,
            config: config.to_owned(),
            without: functions.iter().map(|name| (*name).to_owned()).collect(),
        });
        Self { installed: installed.expect("a driver root"), folder }
    }

    pub(crate) fn options(&self) -> NvmlOptions {
        options(self.folder.path())
    }

    pub(crate) fn open(&self) -> Arc<NvmlGpus> {
        NvmlGpus::open(self.options()).expect("the driver starts")
    }

    /// Changes the state, as another process would.
    pub(crate) fn change(&self, change: impl FnOnce(&mut State)) {
        let changed = self.installed.store.update::<_, gantry_fake_nvml::Error>(|state| {
            change(state);
            Ok(())
        });
        changed.expect("the state file can be written");
    }

    pub(crate) fn fail(&self, gpu: u32, fault: Fault) {
        self.change(|state| state.fail(gpu, fault));
    }

    pub(crate) fn recover(&self, gpu: u32) {
        self.change(|state| state.recover(gpu));
    }
}

/// Options for a driver root, with waits that suit a test.
pub(crate) fn options(root: &Path) -> NvmlOptions {
    NvmlOptions {
        driver_root: root.to_path_buf(),
        sysfs: root.join("sys"),
        proc: root.join("proc"),
        answer: Duration::from_secs(20),
        poll: Duration::from_millis(50),
        ..NvmlOptions::default()
    }
}

/// The events of a backend, as they come.
pub(crate) struct Events {
    seen: Arc<Mutex<Vec<HealthEvent>>>,
    _subscription: Subscription,
}

impl Events {
    pub(crate) fn of(gpus: &NvmlGpus) -> Self {
        use gantry_gpu::GpuBackend as _;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let subscription = gpus.subscribe(Box::new(move |event| sink.lock().unwrap().push(event.clone())));
        Self { seen, _subscription: subscription }
    }

    pub(crate) fn all(&self) -> Vec<HealthEvent> {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) fn kinds(&self) -> Vec<EventKind> {
        self.all().into_iter().map(|event| event.kind).collect()
    }
}

/// Waits for a state.
#[expect(clippy::disallowed_methods, reason = "other processes and threads work in real time")]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}
