//! What changes while cards are simulated: one file for all processes.
//!
//! The file holds JSON, after 4,096 bytes of an ELF library where it is one of the driver's libraries (see `install`).
//! Readers hold a shared lock, writers an exclusive one. A writer replaces the text with a single write, padded with spaces to the
//! length that it had, and the file stays the same inode: one that is bind-mounted into containers keeps telling the truth there.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Config, Error, GpuInstance, config, elf};

/// Events that are kept for those who wait.
const EVENTS: usize = 256;

/// The state of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The configuration's text, where the file carries it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Functions that answer `NVML_ERROR_FUNCTION_NOT_FOUND`.
    pub missing: Vec<String>,
    /// What happened to cards, oldest first.
    pub events: Vec<Event>,
    /// The number of the next event.
    pub next_event: u64,
    /// By index.
    pub cards: BTreeMap<u32, CardState>,
}

/// Something that NVML's event sets deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number, counted from 0.
    pub number: u64,
    /// The card's index.
    pub card: u32,
    /// `nvmlEventType…`.
    pub kind: u64,
    /// An XID, for example.
    pub data: u64,
    /// The GPU instance and compute instance that it is about, if not the whole card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<(u32, u32)>,
}

/// How a card is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Handles are given out; every question about the card is `NVML_ERROR_GPU_IS_LOST`.
    Lost,
    /// No handle is given out either.
    FallenOffBus,
}

/// The state of one card.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CardState {
    /// Set while the card is gone.
    pub loss: Option<Loss>,
    /// Milliseconds that every call about the card takes.
    pub delay_ms: u64,
    /// Calls about the card do not return.
    pub hang: bool,
    /// Readings make no sense.
    pub garbage: bool,
    /// Why clocks are lowered, as the bits of `nvmlClocksEventReason…`.
    pub throttle: u64,
    /// Corrected memory errors since the driver was loaded.
    pub ecc_corrected: u64,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_uncorrected: u64,
    /// A row waits for a reset to be remapped.
    pub remap_pending: bool,
    /// A row could not be remapped.
    pub remap_failed: bool,
    /// What the driver says must be done: the values of field 230, 0 for nothing.
    pub recovery_action: u32,
    /// MIG mode now.
    pub mig: bool,
    /// MIG mode after a reset.
    pub mig_pending: bool,
    /// The GPU instances, by id.
    pub instances: Vec<GpuInstance>,
    /// What runs on the card.
    pub processes: Vec<Process>,
    /// Laid over the configuration of the device.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub overrides: Value,
}

/// A process with a context on a card.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Host pid.
    pub pid: u32,
    /// The program.
    #[serde(default)]
    pub name: String,
    /// Memory in MiB.
    #[serde(default)]
    pub memory_mib: u64,
    /// Share of time in which its kernels run, 0 to 100.
    #[serde(default)]
    pub utilization: u32,
    /// The GPU instance that it runs on, in MIG mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_instance: Option<u32>,
}

impl State {
    /// The state of a card, made if there is none yet.
    pub fn card(&mut self, index: u32) -> &mut CardState {
        self.cards.entry(index).or_default()
    }

    /// Lays `settings` over what the configuration says of a card; refused if they make no sense.
    pub fn set(&mut self, config: &Config, index: u32, settings: &[Value]) -> Result<(), Error> {
        let card = self.card(index);
        if card.overrides.is_null() {
            card.overrides = Value::Object(serde_json::Map::new());
        }
        settings.iter().for_each(|setting| config::merge(&mut card.overrides, setting));
        if let Some(device) = config.devices.get(index as usize) {
            device.with(&card.overrides)?;
        }
        Ok(())
    }

    /// Tells all who wait that something happened to a card.
    pub fn send(&mut self, card: u32, kind: u64, data: u64, instance: Option<(u32, u32)>) {
        self.events.push(Event { number: self.next_event, card, kind, data, instance });
        self.next_event += 1;
        let surplus = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..surplus);
    }
}

/// A state file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The state in the file at `path`, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of the state; empty while there is no file.
    pub(crate) fn text(&self) -> Result<Vec<u8>, Error> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(self.io("read", source)),
        };
        file.lock_shared().map_err(|source| self.io("lock", source))?;
        Ok(self.content(&file)?.1)
    }

    /// The state, as it is now.
    pub fn read(&self) -> Result<State, Error> {
        self.parse(&self.text()?)
    }

    pub(crate) fn parse(&self, text: &[u8]) -> Result<State, Error> {
        if text.trim_ascii().is_empty() {
            return Ok(State::default());
        }
        serde_json::from_slice(text)
            .map_err(|error| Error::State { path: self.path.clone(), reason: error.to_string() })
    }

    /// Changes the state while no other process reads or changes it. If `change` refuses, nothing is written.
    pub fn update<T, E: From<Error>>(&self, change: impl FnOnce(&mut State) -> Result<T, E>) -> Result<T, E> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(|source| self.io("create the folder of", source))?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path)
            .map_err(|source| self.io("write", source))?;
        file.lock().map_err(|source| self.io("lock", source))?;
        let (start, old) = self.content(&file)?;
        let mut state = self.parse(&old)?;
        let result = change(&mut state)?;
        let mut text = serde_json::to_vec(&state).expect("invariant: a state has text keys only");
        text.resize(text.len().max(old.len()), b' ');
        file.write_all_at(&text, start).map_err(|source| self.io("write", source))?;
        Ok(result)
    }

    fn content(&self, mut file: &File) -> Result<(u64, Vec<u8>), Error> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|source| self.io("read", source))?;
        let start = elf::payload(&bytes);
        Ok((start as u64, bytes.split_off(start)))
    }

    fn io(&self, action: &'static str, source: std::io::Error) -> Error {
        Error::Io { action, path: self.path.clone(), source }
    }
}

/// Microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "NVML stamps values with real time")]
pub(crate) fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("run/state.json"));
        (folder, store)
    }

    #[test]
    fn a_state_that_shrinks_is_read_back_and_keeps_its_inode() {
        use std::os::unix::fs::MetadataExt as _;
        let (_folder, store) = store();
        assert_eq!(store.read().unwrap(), State::default());
        store
            .update::<_, Error>(|state| {
                state.missing = vec!["nvmlDeviceGetName".repeat(50)];
                Ok(())
            })
            .unwrap();
        let inode = fs::metadata(store.path()).unwrap().ino();
        store
            .update::<_, Error>(|state| {
                state.missing.clear();
                state.card(3).delay_ms = 7;
                Ok(())
            })
            .unwrap();
        let state = store.read().unwrap();
        assert!(state.missing.is_empty());
        assert_eq!(state.cards[&3].delay_ms, 7);
        assert_eq!(fs::metadata(store.path()).unwrap().ino(), inode);
    }

    #[test]
    fn a_refused_change_leaves_the_file_alone() {
        let (_folder, store) = store();
        store
            .update::<_, Error>(|state| {
                state.send(0, 8, 79, None);
                Ok(())
            })
            .unwrap();
        let before = store.read().unwrap();
        let refused = store.update::<(), Error>(|state| {
            state.events.clear();
            Err(Error::Yaml("no".into()))
        });
        assert!(refused.is_err());
        assert_eq!(store.read().unwrap(), before);
    }

    #[test]
    fn a_damaged_file_is_named() {
        let (_folder, store) = store();
        fs::create_dir_all(store.path().parent().unwrap()).unwrap();
        fs::write(store.path(), "{").unwrap();
        let text = store.read().unwrap_err().to_string();
        assert!(text.starts_with(&format!("state file {}: ", store.path().display())), "{text}");
        assert!(text.ends_with("remove it to start with cards that are well"), "{text}");
    }

    #[test]
    fn events_are_numbered_and_bounded() {
        let mut state = State::default();
        for xid in 0..300 {
            state.send(0, 8, xid, None);
        }
        assert_eq!(state.events.len(), EVENTS);
        assert_eq!(state.events.last().map(|event| event.number), Some(299));
    }
}
