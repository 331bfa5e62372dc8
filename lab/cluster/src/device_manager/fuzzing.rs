//! What is read from disk and from plugins, with the properties that it keeps, for the targets in `fuzz/`.

use std::path::Path;

use gantry_kit::fnv1a_32;
use gantry_proto::deviceplugin::{RegisterRequest, VERSION};
use prost::Message as _;

use super::State;
use super::checkpoint::Checkpoint;
use super::registration::check;

/// A checkpoint that is accepted is written as one that says the same, and can be taken over.
pub fn checkpoint(data: &[u8]) {
    // Data that passes its checksum is reached only if the checksum is made for it.
    let text = String::from_utf8_lossy(data);
    let sealed = format!(r#"{{"Data":{text},"Checksum":{}}}"#, fnv1a_32(text.trim().as_bytes()));
    for bytes in [data, sealed.as_bytes()] {
        match Checkpoint::parse(bytes) {
            Ok(checkpoint) => {
                assert_eq!(Checkpoint::parse(checkpoint.text().as_bytes()).as_ref(), Ok(&checkpoint));
                State::default().restore(checkpoint);
            }
            Err(rule) => assert!(!rule.is_empty()),
        }
    }
}

/// A plugin that is accepted has a socket in the plugin folder and a resource that the API server takes in a node's status.
pub fn registration(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.split('\n').map(str::to_owned);
    let mut line = || lines.next().unwrap_or_default();
    let written = RegisterRequest {
        version: VERSION.to_owned(),
        resource_name: line(),
        endpoint: line(),
        options: None,
    };
    for request in [Some(written), RegisterRequest::decode(data).ok()].into_iter().flatten() {
        match check(&request) {
            Ok(()) => {
                let socket = Path::new("/plugins").join(&request.endpoint);
                assert_eq!(socket.parent(), Some(Path::new("/plugins")), "{request:?}");
                assert_eq!(
                    socket.file_name().and_then(|name| name.to_str()),
                    Some(request.endpoint.as_str())
                );
                assert!(gantry_apimachinery::is_extended_resource(&request.resource_name), "{request:?}");
            }
            Err(why) => assert!(!why.is_empty()),
        }
    }
}
