//! Bytes as what targets read.

use serde::de::DeserializeOwned;

/// Any bytes as text, so that a flipped byte still reaches the parser.
pub(crate) fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// Two JSON documents, separated by a zero byte.
pub(crate) fn pair<A: DeserializeOwned, B: DeserializeOwned>(data: &[u8]) -> Option<(A, B)> {
    let middle = data.iter().position(|byte| *byte == 0)?;
    Some((serde_json::from_slice(&data[..middle]).ok()?, serde_json::from_slice(&data[middle + 1..]).ok()?))
}
