//! Targets of the crates in `wire/`.

use std::collections::BTreeMap;

use gantry_api::{GpuNodeStatus, decode_assignment, encode_assignment};
use gantry_cdi::{ContainerEdits, DeviceName};
use gantry_nvidia_config::Config;
use serde_json::Value;

use crate::input::{pair, text};

/// The assignment annotation: what is accepted is written back as it was.
pub(crate) fn assignment(data: &[u8]) {
    match decode_assignment(&text(data)) {
        Ok(assignment) => {
            assert_eq!(decode_assignment(&encode_assignment(&assignment)).ok(), Some(assignment));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A GpuNode's status: what is accepted is written back as a status that says the same.
pub(crate) fn gpu_node(data: &[u8]) {
    let Ok(status) = serde_json::from_slice::<GpuNodeStatus>(data) else { return };
    match status.to_model("node") {
        Ok((gpus, topology)) => {
            let again = GpuNodeStatus::from_model(&gpus, &topology);
            assert_eq!(again.to_model("node").ok(), Some((gpus, topology)));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// CDI device names: what is accepted is written back as it was.
pub(crate) fn cdi_name(data: &[u8]) {
    let text = text(data);
    match text.parse::<DeviceName>() {
        Ok(name) => assert_eq!(name.to_string(), text),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// CDI edits of any OCI configuration are applied whole or not at all.
pub(crate) fn cdi_inject(data: &[u8]) {
    let Some((edits, config)) = pair::<ContainerEdits, Value>(data) else { return };
    let mut edited = config.clone();
    if let Err(error) = gantry_cdi::apply(&edits, &mut edited) {
        assert!(!error.to_string().is_empty());
        assert_eq!(edited, config);
    }
}

/// NVIDIA's configuration file: what is accepted holds what later code relies on, and is read the same again; a refusal has words.
pub(crate) fn nvidia_config(data: &[u8]) {
    let text = text(data);
    let load = || Config::load(&BTreeMap::new(), &BTreeMap::new(), Some(&text));
    match load() {
        Ok(config) => {
            assert!(!config.plugin.device_list_strategies.is_empty());
            assert!(config.driver_root.is_absolute() && config.dev_root.is_absolute());
            for shared in config.sharing.iter().flat_map(|sharing| &sharing.resources) {
                assert!((2..=1000).contains(&shared.replicas));
                assert!(shared.offered_as().as_str().len() <= 63);
            }
            assert_eq!(load(), Ok(config));
        }
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && text.len() < 2_000, "{text}");
        }
    }
}

/// What the OCI shim asks: what is read is written as a line that says the same.
pub(crate) fn shim_request(data: &[u8]) {
    match gantry_shim::Request::decode(data) {
        Ok(request) => {
            let line = request.encode().expect("what is read can be written");
            assert_eq!(gantry_shim::Request::decode(&line).ok(), Some(request));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// What the agent answers.
pub(crate) fn shim_answer(data: &[u8]) {
    match gantry_shim::Answer::decode(data) {
        // A refusal that is too long is cut, once.
        Ok(answer) => {
            let line = answer.encode().expect("what is read can be written");
            let again = gantry_shim::Answer::decode(&line).expect("what is written can be read");
            assert_eq!(again.encode().ok(), Some(line));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The devices that annotations grant.
pub(crate) fn shim_granted(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match gantry_shim::granted_devices(text.split('\0').filter_map(|pair| pair.split_once('='))) {
        Ok(devices) => {
            let again = gantry_shim::granted_devices([("gantry.dev/devices.x", devices.join(",").as_str())]);
            assert_eq!(again.ok(), Some(devices));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
