//! What the agent must remember over a restart: which GPU stands behind which slot, and who owns what.
//!
//! Format: one JSON object `{"version":1,"checksum":CRC32 of the compact `data`,"data":{…}}`. The file is replaced whole by a
//! rename and not synchronised to disk: it outlives the agent, and after a crash of the machine the checksum tells.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use gantry_api::GpuNodeStatus;
use gantry_model::{GpuId, PodKey};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Error;
use crate::state::{Container, Pod, State};

const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
struct File {
    version: u64,
    checksum: u32,
    data: Box<RawValue>,
}

#[derive(Serialize, Deserialize)]
struct Data {
    node: String,
    /// GPUs and links as they were last seen: a card that is lost now is still known.
    inventory: GpuNodeStatus,
    /// The GPU behind each slot.
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
    gpus: Vec<String>,
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

pub(crate) fn write(path: &Path, state: &State) -> Result<(), Error> {
    let strings = |gpus: &[GpuId]| gpus.iter().map(GpuId::to_string).collect();
    let container = |container: &Container| ContainerRecord {
        devices: container.devices.clone(),
        gpus: strings(&container.gpus),
    };
    let pod = |pod: &Pod| PodRecord {
        namespace: pod.key.namespace.to_string(),
        name: pod.key.name.to_string(),
        uid: pod.key.uid.to_string(),
        containers: pod.containers.iter().map(|(name, record)| (name.clone(), container(record))).collect(),
    };
    let data = Data {
        node: state.node.to_string(),
        inventory: GpuNodeStatus::from_model(state.gpus(), state.topology()),
        slots: state.slots().map(GpuId::to_string).collect(),
        pods: state.pods().map(pod).collect(),
    };
    let io = |action| {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    };
    let data = serde_json::value::to_raw_value(&data).map_err(|error| io("encode")(error.into()))?;
    let file = File { version: VERSION, checksum: crc32fast::hash(data.get().as_bytes()), data };
    let text = serde_json::to_vec(&file).map_err(|error| io("encode")(error.into()))?;
    let temporary = path.with_extension("new");
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io("create the folder of"))?;
    }
    fs::write(&temporary, text).map_err(io("write beside"))?;
    fs::rename(&temporary, path).map_err(io("replace"))
}

/// Puts a checkpoint into a state. One that cannot be used is moved aside and leaves the state as it was.
pub(crate) fn restore(path: &Path, state: &mut State) -> Result<Restored, Error> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Restored::Absent),
        Err(source) => return Err(Error::Io { action: "read", path: path.to_path_buf(), source }),
    };
    let Err(cause) = decode(&text, state) else {
        return Ok(Restored::Whole);
    };
    let aside = path.with_extension("corrupt");
    fs::rename(path, &aside).map_err(|source| Error::Io {
        action: "move aside",
        path: path.to_path_buf(),
        source,
    })?;
    Ok(Restored::SetAside(aside, cause))
}

fn decode(text: &[u8], state: &mut State) -> Result<(), String> {
    let file: File = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!("version {} is not known: this program reads version {VERSION}", file.version));
    }
    if crc32fast::hash(file.data.get().as_bytes()) != file.checksum {
        return Err("the checksum is wrong".to_owned());
    }
    let data: Data = serde_json::from_str(file.data.get()).map_err(|error| error.to_string())?;
    if data.node != *state.node {
        return Err(format!("it is of node {}, and this is node {}", data.node, state.node));
    }
    let (gpus, topology) = data.inventory.to_model(&data.node).map_err(|error| error.to_string())?;
    let ids = |list: Vec<String>| -> Result<Vec<GpuId>, String> {
        list.iter().map(|id| id.parse::<GpuId>().map_err(|error| error.to_string())).collect()
    };
    let slots = ids(data.slots)?;
    let mut pods = Vec::with_capacity(data.pods.len());
    for pod in data.pods {
        let mut containers = BTreeMap::new();
        for (name, record) in pod.containers {
            let gpus = ids(record.gpus)?;
            containers.insert(name, Container { devices: record.devices, gpus });
        }
        let key = PodKey { namespace: pod.namespace.into(), name: pod.name.into(), uid: pod.uid.into() };
        pods.push(Pod { key, containers });
    }
    state.restore(gpus, topology, &slots, pods);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::state::fixture::{container, node};

    fn used() -> State {
        let (mut state, gpus) = node(4);
        let assignment = [("main", vec![gpus[2].clone(), gpus[0].clone()])];
        state.create(&container("a", "main", &["slot-0", "slot-1"], Some(&assignment))).unwrap();
        state
    }

    #[test]
    fn a_restart_forgets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper/agent.json");
        let before = used();
        write(&path, &before).unwrap();
        let (mut after, _) = node(4);
        assert_eq!(restore(&path, &mut after).unwrap(), Restored::Whole);
        assert_eq!(after.in_use(), before.in_use());
        assert!(after.slots().eq(before.slots()));
        assert_eq!(after.gpus(), before.gpus());
    }

    #[test]
    fn a_checkpoint_cut_anywhere_or_changed_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.json");
        write(&path, &used()).unwrap();
        let whole = fs::read(&path).unwrap();
        let changed = String::from_utf8(whole.clone()).unwrap().replace("slot-0", "slot-3").into_bytes();
        let newer = String::from_utf8(whole.clone()).unwrap().replace("\"version\":1", "\"version\":2");
        let cuts = (0..whole.len()).map(|length| whole[..length].to_vec());
        for bytes in cuts.chain([changed, newer.into_bytes(), b"\xff\xfe".to_vec()]) {
            fs::write(&path, &bytes).unwrap();
            let (mut state, _) = node(4);
            assert!(matches!(restore(&path, &mut state).unwrap(), Restored::SetAside(..)));
            assert!(state.in_use().is_empty());
            assert!(!path.exists());
        }
        let (mut state, _) = node(4);
        assert_eq!(restore(&path, &mut state).unwrap(), Restored::Absent);
    }
}
