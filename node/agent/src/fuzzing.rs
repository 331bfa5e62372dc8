//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

use std::collections::{BTreeMap, BTreeSet};

use gantry_api::IdentityMode;
use gantry_model::PodKey;
use gantry_nvidia_config::Config;

use crate::ContainerIdentity;
use crate::checkpoint::{decode, seal, text};
use crate::state::State;

/// A checkpoint is taken over whole, so that writing and reading it again changes nothing, or leaves the state as it was.
pub fn checkpoint(data: &[u8]) {
    // Lines that pass their checksum are reached only if the checksum is made for them.
    let sealed: String = String::from_utf8_lossy(data).lines().map(seal).collect();
    for mode in [IdentityMode::Assignment, IdentityMode::Kubelet] {
        for bytes in [data, sealed.as_bytes()] {
            let mut state = fresh(mode);
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

fn fresh(mode: IdentityMode) -> State {
    let config = Config::load(&BTreeMap::new(), &BTreeMap::new(), None).expect("defaults are valid");
    State::new("node-1".into(), mode, "nvidia.com/gpu".into(), config.into())
}

fn restored(mut state: State, mode: IdentityMode) {
    let slots: Vec<_> = state.slots().flatten().collect();
    assert_eq!(slots.iter().collect::<BTreeSet<_>>().len(), slots.len(), "no GPU is behind two slots");
    if mode == IdentityMode::Assignment {
        assert!(slots.len() <= state.gpus().len());
    }
    let written = text(&state);
    let mut again = fresh(mode);
    assert_eq!(decode(written.as_bytes(), &mut again), Ok(()));
    assert_eq!(text(&again), written);
    // What was taken over can be worked with, and no GPU goes to a second pod.
    let devices: Vec<String> = state.lists().into_values().flatten().map(|device| device.id).collect();
    let before = state.in_use();
    for id in devices {
        let container = ContainerIdentity {
            pod: PodKey { namespace: "fuzz".into(), name: "new".into(), uid: "a uid of its own".into() },
            annotations: BTreeMap::new(),
            name: "c".to_owned(),
            devices: vec![id.clone()],
        };
        match state.create(&container) {
            Ok(gpus) => {
                // A whole device that somebody had; two may have two shares of one.
                let taken = |gpu: &String| !id.contains("::") && gpus.iter().any(|new| new.as_str() == gpu);
                assert!(!before.iter().any(|owner| owner.gpus.iter().any(taken)));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
