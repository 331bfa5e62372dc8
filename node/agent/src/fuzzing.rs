//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

use std::collections::{BTreeMap, BTreeSet};

use gantry_api::IdentityMode;
use gantry_model::PodKey;

use crate::ContainerIdentity;
use crate::checkpoint::{decode, seal, text};
use crate::state::State;

/// A checkpoint is taken over whole, so that writing and reading it again changes nothing, or leaves the state as it was.
pub fn checkpoint(data: &[u8]) {
    // Lines that pass their checksum are reached only if the checksum is made for them.
    let sealed: String = String::from_utf8_lossy(data).lines().map(seal).collect();
    for mode in [IdentityMode::Assignment, IdentityMode::Kubelet] {
        for bytes in [data, sealed.as_bytes()] {
            let mut state = State::new("node-1".into(), mode);
            match decode(bytes, &mut state) {
                Ok(()) => restored(state, mode),
                Err(cause) => {
                    assert!(!cause.is_empty());
                    assert!(state.gpus().is_empty() && state.in_use().is_empty());
                }
            }
        }
    }
}

fn restored(mut state: State, mode: IdentityMode) {
    let slots: BTreeSet<_> = state.slots().collect();
    assert_eq!(slots.len(), state.gpus().len(), "every GPU is behind one slot");
    let written = text(&state);
    let mut again = State::new("node-1".into(), mode);
    assert_eq!(decode(written.as_bytes(), &mut again), Ok(()));
    assert_eq!(text(&again), written);
    // What was taken over can be worked with, and no GPU goes to a second pod.
    let devices: Vec<String> = state.devices().into_iter().map(|device| device.id).collect();
    let before = state.in_use();
    for id in devices {
        let container = ContainerIdentity {
            pod: PodKey { namespace: "fuzz".into(), name: "new".into(), uid: "a uid of its own".into() },
            annotations: BTreeMap::new(),
            name: "c".to_owned(),
            devices: vec![id],
        };
        match state.create(&container) {
            Ok(gpus) => {
                let taken = |gpu: &String| gpus.iter().any(|new| new.as_str() == gpu);
                assert!(!before.iter().any(|owner| owner.gpus.iter().any(taken)));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
