//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use gantry_cdi::{Cache, DeviceName};
use gantry_shim::{Answer, Image, Request};
use serde_json::Value;

use crate::config::{parse_nvidia, parse_own};
use crate::{CommandLine, Policy, World, edit};

/// A command line is read whatever stands there, and the flags of other runtimes do not turn one command into another.
pub fn command_line(data: &[u8]) {
    let arguments: Vec<OsString> =
        data.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned()).collect();
    let line = CommandLine::parse(&arguments);
    if let Some(bundle) = &line.creates {
        assert!(arguments.iter().any(|word| word == "create" || word == "run"));
        assert!(!bundle.folder.as_os_str().is_empty());
    }
}

/// Settings are read or refused by file, line and key.
pub fn settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for parse in [parse_own, parse_nvidia] {
        let mut policy = Policy::default();
        match parse(&mut policy, Path::new("/f"), &text) {
            Ok(()) => assert!(!policy.runtimes.is_empty() && !policy.kinds.is_empty()),
            Err(error) => assert!(error.to_string().starts_with("/f:"), "{error}"),
        }
    }
}

/// A machine with no specifications, and an agent that gives what does not exist.
struct Nowhere;

impl World for Nowhere {
    fn specifications(&self, _: &Policy) -> Cache {
        Cache::default()
    }

    fn image(&self, _: &Value) -> Option<Image> {
        None
    }

    fn ask(&self, _: &Policy, request: &Request) -> Result<Answer, String> {
        request.encode().map_err(|error| error.to_string())?;
        Ok(Answer::Devices(request.devices.clone()))
    }
}

/// A configuration is changed as a whole or not at all, and a second time changes nothing; without privileges and settings, nothing is
/// brought into a container because of its environment.
pub fn configuration(data: &[u8]) {
    let Ok(config) = serde_json::from_slice::<Value>(data) else { return };
    for accept in [false, true] {
        let policy = Policy { accept_environment: accept, ..Policy::default() };
        let mut edited = config.clone();
        match edit(&mut edited, &policy, &Nowhere) {
            Ok(outcome) => {
                assert_eq!(outcome.changed, edited != config);
                assert_eq!(edited["linux"], config["linux"], "no device without a specification");
                let again =
                    edit(&mut edited.clone(), &policy, &Nowhere).expect("what was accepted is accepted");
                assert!(!again.changed);
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                assert_eq!(edited, config);
            }
        }
    }
}

/// Names are either refused or such that a CDI cache can be asked for them.
pub fn device_names(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let config = serde_json::json!({
        "process": { "env": [format!("NVIDIA_VISIBLE_DEVICES={text}")] },
        "mounts": [{ "source": "/dev/null", "destination": format!("/var/run/nvidia-container-devices/{text}") }],
        "annotations": { "cdi.k8s.io/x": text }
    });
    let policy = Policy { accept_environment: true, ..Policy::default() };
    for without in ["mounts", "annotations", "process"] {
        let mut config = config.clone();
        config.as_object_mut().expect("it was made as one").remove(without);
        let container = crate::Container::parse(&config).expect("its form is right");
        match crate::Wish::of(&container, &policy) {
            Ok(wish) => {
                for device in wish.annotated.devices.iter().chain(&wish.rest.devices) {
                    let name = match device {
                        crate::Device::Cdi(name) => Ok(name.clone()),
                        crate::Device::Gpu(name) | crate::Device::Channel(name) => {
                            DeviceName::new("nvidia.com/gpu", name)
                        }
                    };
                    let name = name.expect("a device that is asked for has a name");
                    assert!(!name.name().contains('/') && !name.name().starts_with('.'));
                }
            }
            Err(error) => assert!(!error.to_string().contains('\n')),
        }
    }
}
