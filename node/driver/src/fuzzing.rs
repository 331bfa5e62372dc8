//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

use std::collections::BTreeMap;

use crate::{
    Capabilities, DriverVersion, Facts, MigMinors, PciAddress, Requirement, elf, ldcache, requirements,
};

/// Whatever a cache names is an absolute path, and a cache that is written from it says the same.
pub fn loader_cache(data: &[u8]) {
    match ldcache::parse(data) {
        Ok(libraries) => {
            assert!(
                libraries.iter().all(|library| library.path.starts_with('/') && !library.name.is_empty())
            );
            for old in [false, true] {
                assert_eq!(ldcache::parse(&ldcache::write(&libraries, old)).ok().as_ref(), Some(&libraries));
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A library's name is a plain file name, and a library that is written with it has it.
pub fn shared_library(data: &[u8]) {
    match elf::read(data) {
        Ok(library) => {
            let Some(soname) = &library.soname else { return };
            assert!(!soname.is_empty() && !soname.contains('/') && soname != ".." && soname.len() <= 255);
            let again = elf::minimal(soname, library.machine, library.is_64_bit);
            assert_eq!(elf::read(again.as_slice()).ok().as_ref(), Some(&library));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A set that is accepted is written as one that says the same.
pub fn capabilities(data: &[u8]) {
    match Capabilities::parse(&String::from_utf8_lossy(data)) {
        Ok(set) => assert_eq!(Capabilities::parse(&set.to_string()).ok(), Some(set)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A requirement that is accepted is met or refused with words; what is required of any driver is met.
pub fn requirement(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let driver: DriverVersion = "550.54.15".parse().expect("a version");
    let facts = Facts { driver: &driver, cuda: Some((12, 4)), gpu: None };
    match Requirement::parse("NVIDIA_REQUIRE_CUDA", &text) {
        Ok(requirement) => {
            assert_eq!(requirement.is_met(&facts), requirement.check(&facts).is_ok());
            let either = format!("{text} driver>=0");
            if let Ok(either) = Requirement::parse("NVIDIA_REQUIRE_CUDA", &either) {
                assert!(either.is_met(&facts));
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let env: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let _ = requirements(&env);
}

/// Versions, addresses and lists of minors are read or refused with words, and written the same.
pub fn driver_texts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match text.parse::<DriverVersion>() {
        Ok(version) => assert_eq!(version.as_str(), text),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(address) = text.parse::<PciAddress>() {
        assert_eq!(address.to_string().parse().ok(), Some(address));
    }
    if let Err(error) = MigMinors::parse(&text) {
        assert!(!error.to_string().is_empty());
    }
    let _ = DriverVersion::of_module(&text);
}
