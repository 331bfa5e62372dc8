//! State on disk: a snapshot and a log of what came after it.
//!
//! ```text
//!   snapshot.<n>   written beside, flushed, then renamed into place: whole or absent
//!   log.<n>        appended to; only its last record can be torn
//!   lock           held while the server runs
//! ```
//!
//! Both files are sequences of records: `length: u32le, crc32(payload): u32le, crc32(the eight bytes before):
//! u32le, payload: JSON`. The header's own checksum tells a torn tail (fewer bytes than a sound header promises)
//! from damage. A snapshot's first record carries its revision, its last says that it is complete.
//! Records survive the process being killed at any point; they are not flushed one by one against power loss.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_apimachinery::ManagedFields;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Object, ObjectKey, ResourceId};
use crate::Error;

const HEADER: usize = 12;
/// A log shorter than this is never compacted; above it, one twice the size of its snapshot is.
const COMPACTION_FLOOR: u64 = 16 << 20;

/// What the folder held.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) revision: u64,
    pub(crate) objects: BTreeMap<ResourceId, BTreeMap<ObjectKey, Object>>,
}

pub(super) struct Disk {
    dir: PathBuf,
    generation: u64,
    log: File,
    /// Where the next record goes; anything beyond is the rest of a failed write.
    length: u64,
    snapshot_length: u64,
    _lock: File,
}

#[derive(Deserialize)]
struct Record<'a> {
    #[serde(rename = "r")]
    revision: u64,
    /// Absent in a snapshot's first and last record.
    #[serde(rename = "t", default)]
    resource: Option<String>,
    #[serde(rename = "n", default)]
    namespace: String,
    #[serde(rename = "k", default)]
    name: String,
    /// Absent if the object was deleted.
    #[serde(rename = "o", default, borrow)]
    object: Option<&'a RawValue>,
    /// The object's `metadata.managedFields`, if there are any.
    #[serde(rename = "m", default)]
    managed: Value,
}

impl Disk {
    pub(super) fn open(dir: &Path) -> Result<(Self, State), Error> {
        fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, e))?;
        let lock_path = dir.join("lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|e| Error::io("open", &lock_path, e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { path: dir.to_owned() }),
            Err(TryLockError::Error(e)) => return Err(Error::io("lock", &lock_path, e)),
        }
        let generation = newest_generation(dir)?;
        let mut state = State::default();
        let mut snapshot_length = 0;
        if generation > 0 {
            let path = snapshot_path(dir, generation);
            let bytes = fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
            snapshot_length = bytes.len() as u64;
            let sound = replay(&bytes, &path, &mut state)?;
            if sound < bytes.len() {
                return Err(corrupt(&path, sound, "the record is cut off"));
            }
            if !bytes.ends_with(&mark(state.revision)) {
                return Err(corrupt(&path, sound, "the end of the snapshot is missing"));
            }
        }
        let path = log_path(dir, generation);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(Error::io("read", &path, e)),
        };
        let length = replay(&bytes, &path, &mut state)? as u64;
        let log = open_log(&path)?;
        let mut disk = Self { dir: dir.to_owned(), generation, log, length, snapshot_length, _lock: lock };
        disk.rewind().map_err(|e| Error::io("truncate", &path, e))?;
        disk.remove_other_generations();
        Ok((disk, state))
    }

    /// Drops what follows the last whole record.
    fn rewind(&mut self) -> io::Result<()> {
        self.log.set_len(self.length)?;
        self.log.seek(SeekFrom::Start(self.length)).map(|_| ())
    }

    /// Adds one commit; on an error the log is as it was.
    pub(super) fn append(
        &mut self,
        revision: u64,
        resource: &ResourceId,
        key: &ObjectKey,
        object: Option<&Object>,
    ) -> Result<(), Error> {
        let record = encode(&payload(revision, resource, key, object));
        let written = self.log.write_all(&record);
        if let Err(error) = written {
            let path = log_path(&self.dir, self.generation);
            self.rewind().map_err(|e| Error::io("truncate", &path, e))?;
            return Err(Error::io("append to", path, error));
        }
        self.length += record.len() as u64;
        Ok(())
    }

    pub(super) fn wants_compaction(&self) -> bool {
        self.length > COMPACTION_FLOOR.max(2 * self.snapshot_length)
    }

    /// Starts a new generation from the given objects; on an error the old one stays in use.
    pub(super) fn compact<'a>(
        &mut self,
        revision: u64,
        objects: impl Iterator<Item = (&'a ResourceId, &'a ObjectKey, &'a Object)>,
    ) -> Result<(), Error> {
        let next = self.generation + 1;
        let temporary = self.dir.join("snapshot.tmp");
        let path = snapshot_path(&self.dir, next);
        let log_path = log_path(&self.dir, next);
        let write = || -> io::Result<u64> {
            let mut file = io::BufWriter::new(File::create(&temporary)?);
            let mark = mark(revision);
            let mut length = 2 * mark.len() as u64;
            file.write_all(&mark)?;
            for (resource, key, object) in objects {
                let record = encode(&payload(object.revision, resource, key, Some(object)));
                file.write_all(&record)?;
                length += record.len() as u64;
            }
            file.write_all(&mark)?;
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            Ok(length)
        };
        let length = write().map_err(|e| Error::io("write", &temporary, e))?;
        let log = open_log(&log_path)?;
        fs::rename(&temporary, &path).map_err(|e| Error::io("rename", &temporary, e))?;
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(|e| Error::io("flush", &self.dir, e))?;
        (self.generation, self.log, self.length, self.snapshot_length) = (next, log, 0, length);
        self.remove_other_generations();
        Ok(())
    }

    /// Leftovers of compactions; one that stays behind is removed next time.
    fn remove_other_generations(&self) {
        for (path, generation) in state_files(&self.dir).unwrap_or_default() {
            if generation != self.generation {
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn open_log(path: &Path) -> Result<File, Error> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|e| Error::io("open", path, e))
}

fn snapshot_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("snapshot.{generation}"))
}

fn log_path(dir: &Path, generation: u64) -> PathBuf {
    dir.join(format!("log.{generation}"))
}

fn state_files(dir: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some((stem, generation)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
        if let ("snapshot" | "log", Ok(generation)) = (stem, generation.parse()) {
            files.push((entry.path(), generation));
        }
    }
    Ok(files)
}

/// The newest snapshot decides; a log of a higher number belongs to a compaction that did not finish.
fn newest_generation(dir: &Path) -> Result<u64, Error> {
    let files = state_files(dir).map_err(|e| Error::io("read", dir, e))?;
    let snapshots = files.iter().filter(|(path, _)| path.file_stem().is_some_and(|stem| stem == "snapshot"));
    Ok(snapshots.map(|(_, generation)| *generation).max().unwrap_or(0))
}

fn payload(revision: u64, resource: &ResourceId, key: &ObjectKey, object: Option<&Object>) -> Vec<u8> {
    // Names are those of validated objects, but a path segment may hold anything: quote them as JSON.
    let quote = |text: &str| Value::from(text).to_string();
    let mut out = format!(
        r#"{{"r":{revision},"t":{},"n":{},"k":{}"#,
        quote(resource),
        quote(&key.namespace),
        quote(&key.name)
    )
    .into_bytes();
    if let Some(object) = object {
        if !object.managed.is_empty() {
            out.extend_from_slice(br#","m":"#);
            out.extend_from_slice(object.managed.to_json().as_bytes());
        }
        out.extend_from_slice(br#","o":"#);
        out.extend_from_slice(object.json());
    }
    out.push(b'}');
    out
}

/// What a snapshot begins and ends with.
fn mark(revision: u64) -> Vec<u8> {
    encode(format!(r#"{{"r":{revision}}}"#).as_bytes())
}

pub(crate) fn encode(payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("invariant: a record is far below 4 GiB");
    let mut record = Vec::with_capacity(HEADER + payload.len());
    record.extend_from_slice(&length.to_le_bytes());
    record.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    record.extend_from_slice(&crc32fast::hash(&record).to_le_bytes());
    record.extend_from_slice(payload);
    record
}

fn corrupt(path: &Path, offset: usize, problem: impl Into<String>) -> Error {
    Error::Corrupt { path: path.to_owned(), offset: offset as u64, problem: problem.into() }
}

/// Applies whole records to `state`; returns where the first torn one begins, or the length.
pub(crate) fn replay(bytes: &[u8], path: &Path, state: &mut State) -> Result<usize, Error> {
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let mut offset = 0;
    // A crash of the machine may leave a tail of zeros that were allocated but never written.
    while bytes.len() - offset >= HEADER && bytes[offset..].iter().any(|byte| *byte != 0) {
        if crc32fast::hash(&bytes[offset..offset + 8]) != word(offset + 8) {
            return Err(corrupt(path, offset, "the record's header does not match its checksum"));
        }
        let start = offset + HEADER;
        let end = start + word(offset) as usize;
        let Some(payload) = bytes.get(start..end) else { break };
        if crc32fast::hash(payload) != word(offset + 4) {
            return Err(corrupt(path, offset, "the record does not match its checksum"));
        }
        apply(payload, state)
            .map_err(|e| corrupt(path, offset, format!("the record is not understood: {e}")))?;
        offset = end;
    }
    Ok(offset)
}

fn apply(payload: &[u8], state: &mut State) -> serde_json::Result<()> {
    let record: Record<'_> = serde_json::from_slice(payload)?;
    state.revision = state.revision.max(record.revision);
    let Some(resource) = record.resource else { return Ok(()) };
    let key = ObjectKey::new(&record.namespace, &record.name);
    let objects = state.objects.entry(Arc::from(resource)).or_default();
    match record.object {
        Some(json) => {
            // Owners are no reason to refuse the state: what cannot be read is forgotten, and tracked anew.
            let managed = ManagedFields::parse(&record.managed).unwrap_or_default();
            objects.insert(key, Object::new(serde_json::from_str(json.get())?, managed, record.revision));
        }
        None => {
            objects.remove(&key);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Store;
    use super::*;

    fn pods() -> ResourceId {
        "pods".into()
    }

    fn put(store: &Store, name: &str, text: &str) {
        let value = json!({"metadata": {"namespace": "d", "name": name}, "text": text});
        match store.get(&pods(), &ObjectKey::new("d", name)) {
            Some(old) => store.update(&pods(), value, old.revision).unwrap(),
            None => store.create(&pods(), value, ManagedFields::NONE).unwrap(),
        };
    }

    fn contents(dir: &Path) -> (u64, Vec<Value>) {
        let store = Store::open(Some(dir), 10).unwrap();
        let (objects, revision) = store.list(&pods(), None, None).unwrap();
        (revision, objects.iter().map(|object| object.value.clone()).collect())
    }

    #[test]
    fn a_log_cut_at_any_byte_of_the_last_write_opens_at_the_state_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path()), 10).unwrap();
        put(&store, "a", "one");
        put(&store, "b", "two");
        drop(store);
        let before = contents(dir.path());
        let log = log_path(dir.path(), 0);
        let start = fs::metadata(&log).unwrap().len();
        let store = Store::open(Some(dir.path()), 10).unwrap();
        put(&store, "a", "three");
        drop(store);
        let whole = fs::read(&log).unwrap();
        for cut in usize::try_from(start).unwrap()..whole.len() {
            fs::write(&log, &whole[..cut]).unwrap();
            assert_eq!(contents(dir.path()), before, "cut at byte {cut}");
            assert_eq!(fs::metadata(&log).unwrap().len(), start, "the torn tail is removed, cut at {cut}");
        }
        fs::write(&log, &whole).unwrap();
        assert_ne!(contents(dir.path()), before);
    }

    #[test]
    fn a_flipped_byte_is_reported_with_file_and_offset() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path()), 10).unwrap();
        put(&store, "a", "one");
        let second = fs::metadata(log_path(dir.path(), 0)).unwrap().len();
        put(&store, "b", "two");
        drop(store);
        let log = log_path(dir.path(), 0);
        let whole = fs::read(&log).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x20;
            fs::write(&log, &damaged).unwrap();
            let expected = if (at as u64) < second { 0 } else { second };
            match Store::open(Some(dir.path()), 10).map(|_| ()) {
                Err(Error::Corrupt { path, offset, .. }) => {
                    assert_eq!((path, offset), (log.clone(), expected), "byte {at}");
                }
                other => panic!("byte {at}: {other:?}"),
            }
        }
    }

    #[test]
    fn compaction_keeps_every_object_and_the_revision() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path()), 10).unwrap();
        let padding = "x".repeat(1 << 20);
        for i in 0..40 {
            put(&store, &format!("p{}", i % 3), &padding);
        }
        put(&store, "last", "word");
        let (objects, revision) = store.list(&pods(), None, None).unwrap();
        let expected = (revision, objects.iter().map(|object| object.value.clone()).collect());
        drop(store);
        assert!(!log_path(dir.path(), 0).exists(), "the first log is gone");
        assert_eq!(contents(dir.path()), expected);
    }

    #[test]
    fn one_folder_serves_one_store() {
        let dir = tempfile::tempdir().unwrap();
        let _store = Store::open(Some(dir.path()), 10).unwrap();
        assert!(matches!(Store::open(Some(dir.path()), 10), Err(Error::InUse { .. })));
    }
}
