//! What is remembered of faults over a restart: a card that failed stays out of service until it is seen to be well.
//!
//! Format: one line, the CRC-32 of the rest in eight hexadecimal digits, a space, and a JSON object. Replaced atomically.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use gantry_model::GpuId;
use serde::{Deserialize, Serialize};

use super::tracker::Record;
use crate::checkpoint::{seal, whole};
use crate::{Error, files};

const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
struct File {
    version: u64,
    devices: BTreeMap<String, Record>,
}

/// The kind of a fault, as `GpuNode` names it.
pub(crate) mod kind {
    use gantry_api::FaultStatus;
    use gantry_model::{Fault, FaultKind};
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de::Error as _};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
    pub(crate) fn serialize<S: Serializer>(kind: &FaultKind, serializer: S) -> Result<S::Ok, S::Error> {
        FaultStatus::from_model(&Fault { kind: *kind, message: String::new() }).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FaultKind, D::Error> {
        let status = FaultStatus::deserialize(deserializer)?;
        status.kind().ok_or_else(|| D::Error::custom(format!("{:?} is no kind of fault", status.kind)))
    }
}

/// A time in milliseconds since 1970.
pub(crate) mod time {
    use jiff::Timestamp;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, de::Error as _};

    pub(crate) fn serialize<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
        time.as_millisecond().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timestamp, D::Error> {
        Timestamp::from_millisecond(i64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

pub(crate) fn encode(records: &BTreeMap<GpuId, Record>) -> String {
    let devices = records.iter().map(|(id, record)| (id.to_string(), record.clone())).collect();
    let json = serde_json::to_string(&File { version: VERSION, devices });
    seal(&json.expect("invariant: strings, numbers and maps of them serialise"))
}

pub(crate) fn decode(text: &[u8]) -> Result<BTreeMap<GpuId, Record>, String> {
    let line = text.strip_suffix(b"\n").and_then(whole).ok_or("it is damaged")?;
    let file: File = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!("version {} is not known: this program reads version {VERSION}", file.version));
    }
    let device = |(id, record): (String, Record)| {
        Ok((id.parse::<GpuId>().map_err(|error| error.to_string())?, record))
    };
    file.devices.into_iter().map(device).collect()
}

/// What the last run wrote; nothing where there is no file. The inner error says why what is there cannot be used.
///
/// # Errors
/// Where the file cannot be read.
pub(crate) fn read(path: &Path) -> Result<Result<BTreeMap<GpuId, Record>, String>, Error> {
    match fs::read(path) {
        Ok(text) => Ok(decode(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ok(BTreeMap::new())),
        Err(source) => Err(Error::Io { action: "read", path: path.to_owned(), source }),
    }
}

/// Replaces the file.
pub(crate) fn write(path: &Path, records: &BTreeMap<GpuId, Record>) -> Result<(), Error> {
    files::replace(path, encode(records))
}

#[cfg(test)]
mod tests {
    use gantry_model::FaultKind;
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn faults_are_read_as_they_were_written_and_nothing_else_is_read() {
        let record = |kind| Record {
            kind,
            message: "it\nbroke".into(),
            active: true,
            since: Timestamp::UNIX_EPOCH,
            last: Timestamp::UNIX_EPOCH,
            strikes: 3,
            stands: true,
            mended: false,
            boot: "b".into(),
        };
        let kinds = [
            FaultKind::Xid(79),
            FaultKind::Lost,
            FaultKind::DoubleBitEcc,
            FaultKind::RowRemapPending,
            FaultKind::ResetRequired,
            FaultKind::RebootRequired,
            FaultKind::FabricNotReady,
        ];
        let records: BTreeMap<GpuId, Record> = kinds
            .iter()
            .enumerate()
            .map(|(n, kind)| (format!("GPU-{n}").parse().unwrap(), record(*kind)))
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper/x.health");
        assert_eq!(read(&path).unwrap(), Ok(BTreeMap::new()));
        write(&path, &records).unwrap();
        assert_eq!(read(&path).unwrap(), Ok(records.clone()));
        let good = encode(&records);
        let resealed = |from: &str, to: &str| seal(&good.trim_end()[9..].replace(from, to));
        for (text, cause) in [
            (good.replace("GPU-1", "GPU-9"), "it is damaged"),
            (good[..good.len() / 2].to_owned(), "it is damaged"),
            (String::new(), "it is damaged"),
            (
                resealed("\"version\":1", "\"version\":2"),
                "version 2 is not known: this program reads version 1",
            ),
            (resealed("GPU-0", "GPU 0"), "\"GPU 0\" is no GPU id"),
            (resealed("\"Lost\"", "\"Gone\""), "\"Gone\" is no kind of fault"),
            (resealed("\"strikes\"", "\"blows\""), "missing field `strikes`"),
        ] {
            let found = decode(text.as_bytes()).unwrap_err();
            assert!(found.starts_with(cause), "{found}");
        }
    }
}
