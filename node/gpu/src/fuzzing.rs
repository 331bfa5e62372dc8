//! Private parsers, with the properties that they keep, for the targets in `fuzz/`.

use crate::pci::parse_config;

/// A PCI configuration space describes a virtual GPU or not; what it tells can be printed.
pub fn pci_config(data: &[u8]) {
    // Only a space of full size is looked into.
    let mut config = data.to_vec();
    config.resize(config.len().max(256), 0);
    for config in [data, &config] {
        if let Some(vgpu) = parse_config(config) {
            for text in vgpu.host_driver_version.iter().chain(&vgpu.host_driver_branch) {
                assert!((1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
