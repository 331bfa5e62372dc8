//! Targets of the crates in `wire/`.

use gantry_api::{GpuNodeStatus, decode_assignment, encode_assignment};
use gantry_cdi::{ContainerEdits, DeviceName};
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
