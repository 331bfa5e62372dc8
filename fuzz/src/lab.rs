//! Targets of the crates in `lab/` that need no feature of theirs.

use gantry_fake_nvml::Config;
use gantry_image::{Elf, Reference};

use crate::input::text;

/// The headers of a program or library: names, or words.
pub(crate) fn image_program(data: &[u8]) {
    match Elf::parse(data) {
        Ok(elf) => {
            let names = elf.needed.iter().chain(&elf.search).chain(&elf.interpreter);
            assert!(names.into_iter().all(|name| !name.contains('\0')));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The name of an image: what is accepted is written in full, and that is accepted as the same.
pub(crate) fn image_reference(data: &[u8]) {
    match text(data).parse::<Reference>() {
        Ok(reference) => assert_eq!(reference.to_string().parse::<Reference>().ok(), Some(reference)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The configuration of simulated cards behind NVML: each card has a UUID, a minor and an address of its own, or there are words.
pub(crate) fn fake_nvml_config(data: &[u8]) {
    match Config::parse(&text(data)) {
        Ok(config) => {
            assert!((1..=16).contains(&config.devices.len()));
            let minors: std::collections::BTreeSet<_> =
                config.devices.iter().map(|device| device.minor_number).collect();
            assert_eq!(minors.len(), config.devices.len());
            assert!(config.devices.iter().all(|device| device.uuid.is_some() && device.pci.bus_id.is_some()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
