//! What the agent must remember over a restart: which GPU stands behind which slot, and who owns what.
//!
//! Format: lines, each the CRC-32 of the rest in eight hexadecimal digits, a space, and a JSON object. The first line tells the
//! node and its GPUs, every other one the whole ledger; the last counts. A change appends a line, which costs a fraction
//! of a file that is replaced; now and then the file is written anew. A line that a crash cut short is passed over. Nothing is
//! synchronised to disk: the file outlives the agent, and what a crash of the machine takes can be rebuilt from the pods.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use gantry_api::{GpuNodeStatus, IdentityMode};
use gantry_model::{Gpu, GpuId, PodKey};
use serde::{Deserialize, Serialize};

use crate::state::{Container, Held, Pod, State};
use crate::{Error, files};

const VERSION: u64 = 1;

/// A file that has grown beyond this is written anew.
const LONGEST: usize = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Header {
    version: u64,
    node: String,
    /// GPUs and links as they were last seen: a card that is lost now is still known.
    inventory: GpuNodeStatus,
}

#[derive(Serialize, Deserialize)]
struct Ledger {
    /// Who decided last, for an agent that finds it out: what it offers at its next start is then what it offered at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<IdentityMode>,
    /// The GPU behind each slot; empty for a slot without one.
    slots: Vec<String>,
    pods: Vec<PodRecord>,
}

#[derive(Serialize, Deserialize)]
struct PodRecord {
    namespace: String,
    name: String,
    uid: String,
    containers: BTreeMap<String, ContainerRecord>,
}

#[derive(Serialize, Deserialize)]
struct ContainerRecord {
    devices: Vec<String>,
    /// GPUs and partitions.
    gpus: Vec<String>,
    /// The resource of each; without, it is that of whole GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    resources: Vec<String>,
    /// The number of the share of each, `null` for a whole one; without, none is shared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shares: Vec<Option<u32>>,
}

/// What came of reading a checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Restored {
    /// There was none.
    Absent,
    /// The state is as the last run left it.
    Whole,
    /// It could not be used; it was moved to this path, for this cause.
    SetAside(PathBuf, String),
}

/// The file of an agent.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    path: PathBuf,
    /// Its length, 0 until this process has written it.
    length: usize,
    /// The GPUs that its first line tells.
    gpus: Vec<Gpu>,
}

impl Checkpoint {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, length: 0, gpus: Vec::new() }
    }

    /// Writes down a state.
    pub(crate) fn write(&mut self, state: &State) -> Result<(), Error> {
        let mut text = String::new();
        line(&mut text, &ledger(state));
        if (1..=LONGEST).contains(&self.length) && self.gpus == state.gpus() {
            let appended = fs::OpenOptions::new()
                .append(true)
                .open(&self.path)
                .and_then(|mut file| file.write_all(text.as_bytes()));
            if appended.is_ok() {
                self.length += text.len();
                return Ok(());
            }
            // Somebody removed the file, or the disk is full: the whole of it says which.
        }
        self.replace(state, &text)
    }

    fn replace(&mut self, state: &State, ledger: &str) -> Result<(), Error> {
        self.length = 0;
        let mut text = header(state);
        text.push_str(ledger);
        files::replace(&self.path, &text)?;
        self.length = text.len();
        self.gpus = state.gpus().to_vec();
        Ok(())
    }

    /// Puts what the last run wrote into a state. A file that cannot be used is moved aside and leaves the state as it was.
    pub(crate) fn restore(&self, state: &mut State) -> Result<Restored, Error> {
        let path = &self.path;
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Restored::Absent),
            Err(source) => return Err(Error::Io { action: "read", path: path.clone(), source }),
        };
        let Err(cause) = decode(&text, state) else {
            return Ok(Restored::Whole);
        };
        let aside = path.with_extension("corrupt");
        let moved = fs::rename(path, &aside);
        moved.map_err(|source| Error::Io { action: "move aside", path: path.clone(), source })?;
        Ok(Restored::SetAside(aside, cause))
    }
}

/// The first line of the file.
fn header(state: &State) -> String {
    let header = Header {
        version: VERSION,
        node: state.node.to_string(),
        inventory: GpuNodeStatus::from_model(state.gpus(), state.topology()),
    };
    let mut text = String::new();
    line(&mut text, &header);
    text
}

fn line(text: &mut String, value: &impl Serialize) {
    let json = serde_json::to_string(value).expect("invariant: strings, numbers and maps of them serialise");
    text.push_str(&seal(&json));
}

/// A line with its checksum.
pub(crate) fn seal(json: &str) -> String {
    format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
}

/// A whole file.
#[cfg(feature = "fuzzing")]
pub(crate) fn text(state: &State) -> String {
    let mut text = header(state);
    line(&mut text, &ledger(state));
    text
}

/// The JSON of a line, if the line is whole.
pub(crate) fn whole(line: &[u8]) -> Option<&str> {
    let (checksum, json) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    (checksum == format!("{:08x}", crc32fast::hash(json.as_bytes()))).then_some(json)
}

fn ledger(state: &State) -> Ledger {
    let container = |Container { devices, held }: &Container| {
        // Most nodes have whole GPUs of one resource, and short lines.
        let is_plain = held.iter().all(|held| held.replica.is_none() && held.resource == *state.primary());
        let other = |list: &dyn Fn() -> Vec<String>| if is_plain { Vec::new() } else { list() };
        ContainerRecord {
            devices: devices.clone(),
            gpus: held.iter().map(|held| held.device.to_string()).collect(),
            resources: other(&|| held.iter().map(|held| held.resource.to_string()).collect()),
            shares: if is_plain { Vec::new() } else { held.iter().map(|held| held.replica).collect() },
        }
    };
    let pod = |pod: &Pod| PodRecord {
        namespace: pod.key.namespace.to_string(),
        name: pod.key.name.to_string(),
        uid: pod.key.uid.to_string(),
        containers: pod.containers.iter().map(|(name, record)| (name.clone(), container(record))).collect(),
    };
    let slot = |gpu: Option<&GpuId>| gpu.map(GpuId::to_string).unwrap_or_default();
    Ledger {
        mode: Some(state.mode),
        slots: state.slots().map(slot).collect(),
        pods: state.pods().map(pod).collect(),
    }
}

pub(crate) fn decode(text: &[u8], state: &mut State) -> Result<(), String> {
    let mut lines = text.split_inclusive(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\n"));
    let header = lines.next().flatten().and_then(whole).ok_or("its first line is damaged")?;
    let header: Header = serde_json::from_str(header).map_err(|error| error.to_string())?;
    if header.version != VERSION {
        return Err(format!("version {} is not known: this program reads version {VERSION}", header.version));
    }
    if header.node != *state.node {
        return Err(format!("it is of node {}, and this is node {}", header.node, state.node));
    }
    let (gpus, topology) = header.inventory.to_model(&header.node).map_err(|error| error.to_string())?;
    let ledger = lines.rev().find_map(|line| whole(line?)).ok_or("it has no whole ledger")?;
    let ledger: Ledger = serde_json::from_str(ledger).map_err(|error| error.to_string())?;
    let id = |id: &String| id.parse::<GpuId>().map_err(|error| error.to_string());
    let slot = |text: &String| if text.is_empty() { Ok(None) } else { id(text).map(Some) };
    let slots: Vec<Option<GpuId>> = ledger.slots.iter().map(slot).collect::<Result<_, _>>()?;
    let mut pods = Vec::with_capacity(ledger.pods.len());
    for pod in ledger.pods {
        let mut containers = BTreeMap::new();
        for (name, record) in pod.containers {
            containers.insert(name, container(record, state.primary())?);
        }
        let key = PodKey { namespace: pod.namespace.into(), name: pod.name.into(), uid: pod.uid.into() };
        pods.push(Pod { key, containers });
    }
    state.restore(gpus, topology, &slots, pods);
    state.last_mode = ledger.mode;
    Ok(())
}

fn container(record: ContainerRecord, primary: &Arc<str>) -> Result<Container, String> {
    let ContainerRecord { devices, gpus, resources, shares } = record;
    for (list, length) in [("resources", resources.len()), ("shares", shares.len())] {
        if length != 0 && length != gpus.len() {
            return Err(format!("it has {} gpus and {length} {list} in one container", gpus.len()));
        }
    }
    let held = |(at, id): (usize, &String)| {
        Ok(Held {
            resource: resources.get(at).map_or_else(|| Arc::clone(primary), |name| name.as_str().into()),
            device: id.parse::<GpuId>().map_err(|error| error.to_string())?,
            replica: shares.get(at).copied().flatten(),
        })
    };
    let held = gpus.iter().enumerate().map(held).collect::<Result<_, String>>()?;
    Ok(Container { devices, held })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ContainerIdentity;
    use crate::state::fixture::{container, node};

    fn request(gpus: &[GpuId]) -> ContainerIdentity {
        let assignment = [("main", vec![gpus[2].clone(), gpus[0].clone()])];
        container("a", "main", &["slot-0", "slot-1"], Some(&assignment))
    }

    fn restored(path: &Path) -> (State, Restored) {
        let (mut state, _) = node(4);
        let outcome = Checkpoint::new(path.to_path_buf()).restore(&mut state).unwrap();
        (state, outcome)
    }

    #[test]
    fn a_restart_forgets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper/agent.json");
        let mut checkpoint = Checkpoint::new(path.clone());
        let (mut before, gpus) = node(4);
        checkpoint.write(&before).unwrap();
        before.create(&request(&gpus)).unwrap();
        checkpoint.write(&before).unwrap();
        let (after, outcome) = restored(&path);
        assert_eq!(outcome, Restored::Whole);
        assert_eq!(after.in_use(), before.in_use());
        assert!(after.slots().eq(before.slots()));
        assert_eq!(after.gpus(), before.gpus());
    }

    #[test]
    fn the_file_stays_short_and_comes_back_when_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.json");
        let mut checkpoint = Checkpoint::new(path.clone());
        let (state, _) = node(4);
        for round in 0..500 {
            checkpoint.write(&state).unwrap();
            assert!(fs::metadata(&path).unwrap().len() < 2 * LONGEST as u64);
            if round == 250 {
                fs::remove_file(&path).unwrap();
            }
        }
        assert_eq!(restored(&path).1, Restored::Whole);
    }

    #[test]
    fn a_file_cut_anywhere_gives_the_last_whole_ledger_or_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.json");
        let mut checkpoint = Checkpoint::new(path.clone());
        let (mut state, gpus) = node(4);
        let mut lengths = Vec::new();
        for step in 0..3 {
            match step {
                0 => {}
                1 => drop(state.create(&request(&gpus)).unwrap()),
                _ => assert!(state.retain(|_| false)),
            }
            checkpoint.write(&state).unwrap();
            lengths.push(usize::try_from(fs::metadata(&path).unwrap().len()).unwrap());
        }
        let whole = fs::read(&path).unwrap();
        for length in 0..=whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let (state, outcome) = restored(&path);
            let owners = state.in_use().len();
            match lengths.iter().filter(|end| **end <= length).count() {
                0 => assert!(matches!(outcome, Restored::SetAside(..)) && !path.exists()),
                2 => assert_eq!((outcome, owners), (Restored::Whole, 1), "{length}"),
                _ => assert_eq!((outcome, owners), (Restored::Whole, 0), "{length}"),
            }
        }
    }

    #[test]
    fn what_was_not_written_by_this_version_for_this_node_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.json");
        Checkpoint::new(path.clone()).write(&node(4).0).unwrap();
        let good = fs::read_to_string(&path).unwrap();
        let resealed = |from: &str, to: &str| {
            let mut text = String::new();
            for line in good.lines() {
                let json = line[9..].replace(from, to);
                text.push_str(&seal(&json));
            }
            text
        };
        for (text, cause) in [
            (good.replace("node-1", "node-2"), "its first line is damaged"),
            (
                resealed("\"version\":1", "\"version\":2"),
                "version 2 is not known: this program reads version 1",
            ),
            (resealed("node-1", "node-2"), "it is of node node-2, and this is node node-1"),
            (resealed("\"slots\"", "\"places\""), "missing field `slots` at line 1 column"),
            (String::new(), "its first line is damaged"),
        ] {
            fs::write(&path, text).unwrap();
            let Restored::SetAside(_, found) = restored(&path).1 else { panic!("{cause}") };
            assert!(found.starts_with(cause), "{found}");
        }
        assert_eq!(restored(&path).1, Restored::Absent);
    }
}
