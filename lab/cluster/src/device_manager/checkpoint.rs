//! The file by which pods keep their devices across a kubelet restart.
//!
//! It is one line for each state, each in the shape of the kubelet's `kubelet_internal_checkpoint`
//! (`pkg/kubelet/cm/devicemanager/checkpoint`); the last whole line counts. Only the checksum is another: the kubelet hashes Go's memory
//! layout, which means nothing elsewhere; here it is FNV-1a (32 bits) over the text of `Data`. Lines are appended, because to make a
//! file for each pod was a fifth of what a cluster of a thousand nodes did.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gantry_kit::fnv1a_32;
use gantry_proto::deviceplugin::ContainerAllocateResponse;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Error;

/// A file of this length, in bytes, is replaced by its last line.
const LONGEST: u64 = 64 << 10;

/// The key for devices of no NUMA node.
pub(super) const NO_NUMA: i64 = -1;

/// What one container has of one resource.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) pod_uid: String,
    pub(super) container: String,
    pub(super) resource: String,
    /// Device IDs by NUMA node.
    pub(super) devices: BTreeMap<i64, Vec<String>>,
    pub(super) response: ContainerAllocateResponse,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Checkpoint {
    pub(super) entries: Vec<Entry>,
    /// Healthy devices by resource.
    pub(super) registered: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FileEntry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<i64, Vec<String>>,
    alloc_resp: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Vec<FileEntry>,
    registered_devices: BTreeMap<String, Vec<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Box<RawValue>,
    checksum: u32,
}

impl Checkpoint {
    /// `None` if there is no file.
    pub(super) fn load(path: &Path) -> Result<Option<Self>, Error> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Error::File { action: "read", path: path.to_owned(), source }),
        };
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mut problem = "it is empty";
        for line in lines.rev() {
            match Self::parse(line) {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                Err(rule) => problem = rule,
            }
        }
        Err(Error::Checkpoint { path: path.to_owned(), rule: problem })
    }

    pub(super) fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let file: File = serde_json::from_slice(text).map_err(|_| "it is not the JSON of a checkpoint")?;
        if fnv1a_32(file.data.get().as_bytes()) != file.checksum {
            return Err("its checksum does not match");
        }
        let data: Data =
            serde_json::from_str(file.data.get()).map_err(|_| "its data is not that of a checkpoint")?;
        let mut entries = Vec::new();
        for entry in data.pod_device_entries {
            let bytes = STANDARD.decode(&entry.alloc_resp).map_err(|_| "an AllocResp is not base64")?;
            let response = ContainerAllocateResponse::decode(bytes.as_slice())
                .map_err(|_| "an AllocResp is not a ContainerAllocateResponse")?;
            entries.push(Entry {
                pod_uid: entry.pod_uid,
                container: entry.container_name,
                resource: entry.resource_name,
                devices: entry.device_ids,
                response,
            });
        }
        Ok(Self { entries, registered: data.registered_devices })
    }

    pub(super) fn text(&self) -> String {
        let data = Data {
            pod_device_entries: self
                .entries
                .iter()
                .map(|entry| FileEntry {
                    pod_uid: entry.pod_uid.clone(),
                    container_name: entry.container.clone(),
                    resource_name: entry.resource.clone(),
                    device_ids: entry.devices.clone(),
                    alloc_resp: STANDARD.encode(entry.response.encode_to_vec()),
                })
                .collect(),
            registered_devices: self.registered.clone(),
        };
        let data = serde_json::value::to_raw_value(&data).expect("invariant: strings and numbers are JSON");
        let checksum = fnv1a_32(data.get().as_bytes());
        serde_json::to_string(&File { data, checksum }).expect("invariant: raw JSON is JSON")
    }

    /// Appends this state, or replaces a file that has become long: a reader finds the state before or this one.
    pub(super) fn save(&self, path: &Path) -> std::io::Result<()> {
        let line = self.text() + "\n";
        if let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(path)
            && file.metadata().is_ok_and(|metadata| metadata.len() < LONGEST)
        {
            // What a crash has cut off must not swallow the beginning of this line.
            return file.write_all(format!("\n{line}").as_bytes());
        }
        let temporary = path.with_extension("tmp");
        std::fs::write(&temporary, line)?;
        std::fs::rename(&temporary, path)
    }
}

#[cfg(test)]
mod tests {
    use gantry_proto::deviceplugin::CdiDevice;

    use super::*;

    fn example() -> Checkpoint {
        let response = ContainerAllocateResponse {
            cdi_devices: vec![CdiDevice { name: "nvidia.com/gpu=0".to_owned() }],
            ..Default::default()
        };
        Checkpoint {
            entries: vec![Entry {
                pod_uid: "u1".to_owned(),
                container: "c".to_owned(),
                resource: "nvidia.com/gpu".to_owned(),
                devices: BTreeMap::from([(0, vec!["GPU-1".to_owned()]), (NO_NUMA, vec!["GPU-2".to_owned()])]),
                response,
            }],
            registered: BTreeMap::from([("nvidia.com/gpu".to_owned(), vec!["GPU-1".to_owned()])]),
        }
    }

    #[test]
    fn a_checkpoint_is_read_back_as_written() {
        let text = example().text();
        assert!(
            text.starts_with(r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"c","#),
            "{text}"
        );
        assert_eq!(Checkpoint::parse(text.as_bytes()).unwrap(), example());
    }

    #[test]
    fn a_file_cut_anywhere_in_its_last_line_gives_the_state_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let (first, second) = (Checkpoint::default(), example());
        first.save(&path).unwrap();
        let before = std::fs::metadata(&path).unwrap().len();
        second.save(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(Checkpoint::load(&path).unwrap().unwrap(), second);
        for cut in usize::try_from(before).unwrap()..whole.len() - 1 {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(Checkpoint::load(&path).unwrap().unwrap(), first, "{cut}");
            second.save(&path).unwrap();
            assert_eq!(Checkpoint::load(&path).unwrap().unwrap(), second, "{cut}");
        }
        std::fs::write(&path, vec![b'x'; usize::try_from(LONGEST).unwrap()]).unwrap();
        second.save(&path).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < LONGEST);
    }

    #[test]
    fn a_checkpoint_cut_anywhere_or_changed_is_refused() {
        let text = example().text();
        for end in 0..text.len() {
            assert!(Checkpoint::parse(&text.as_bytes()[..end]).is_err(), "{end}");
        }
        assert_eq!(
            Checkpoint::parse(text.replace("GPU-1", "GPU-7").as_bytes()),
            Err("its checksum does not match")
        );
    }
}
