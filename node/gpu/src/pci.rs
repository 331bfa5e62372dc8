//! What sysfs tells of NVIDIA's PCI devices, beside the driver: class codes, and whether a card is a virtual one.
//!
//! A virtual GPU says so in a vendor-specific capability of its configuration space: id, next, length, then the signature
//! `VF`, then records of a type, a length and data. Record 0 carries the hypervisor's driver: ten bytes of version
//! and ten of branch, padded with zeros. Source: NVIDIA's GPU feature discovery, `internal/vgpu`.

use std::fs;
use std::path::Path;

use crate::Vgpu;

/// Where Linux lists PCI devices.
pub const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// NVIDIA's vendor number, as sysfs writes it.
const NVIDIA: &str = "0x10de";

/// The class of a card, 24 bits, by its PCI address as NVML (`00000000:07:00.0`) or sysfs (`0000:07:00.0`) writes it.
pub fn pci_class(devices: &Path, pci_bus_id: &str) -> Option<u32> {
    let address = pci_bus_id.to_ascii_lowercase();
    // sysfs writes the domain with four digits unless it needs more.
    let address = address.strip_prefix("0000").filter(|rest| rest.find(':') == Some(4)).unwrap_or(&address);
    if !address.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')) {
        return None;
    }
    let text = fs::read_to_string(devices.join(address).join("class")).ok()?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// The virtual GPU of this machine, if it is a guest with one. `None` also where nothing can be read: without privileges
/// Linux shows the first 64 bytes of a configuration space.
pub fn vgpu(devices: &Path) -> Option<Vgpu> {
    let mut paths: Vec<_> = fs::read_dir(devices).ok()?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let is_nvidia = |path: &std::path::PathBuf| {
        fs::read_to_string(path.join("vendor")).is_ok_and(|text| text.trim() == NVIDIA)
    };
    paths.into_iter().filter(is_nvidia).find_map(|path| parse_config(&fs::read(path.join("config")).ok()?))
}

/// The virtual GPU that a PCI configuration space describes.
pub(crate) fn parse_config(config: &[u8]) -> Option<Vgpu> {
    const STATUS: usize = 0x06;
    const HAS_CAPABILITIES: u8 = 0x10;
    const FIRST: usize = 0x34;
    const VENDOR_SPECIFIC: u8 = 0x09;
    const SIZE: usize = 256;
    let config = config.get(..SIZE)?;
    if config[STATUS] & HAS_CAPABILITIES == 0 {
        return None;
    }
    let mut position = usize::from(config[FIRST]);
    // No chain has more links than there are bytes; one that loops ends here.
    for _ in 0..SIZE {
        let (id, next) = (*config.get(position)?, *config.get(position + 1)?);
        if position == 0 || id == 0xff {
            return None;
        }
        if id == VENDOR_SPECIFIC {
            let length = usize::from(*config.get(position + 2)?);
            return parse_capability(config.get(position..position + length)?);
        }
        position = usize::from(next);
    }
    None
}

fn parse_capability(capability: &[u8]) -> Option<Vgpu> {
    let mut records = capability.get(3..)?.strip_prefix(b"VF")?;
    while let [kind, length, data @ ..] = records {
        if *kind == 0 {
            let text = |bytes: &[u8]| {
                let text: String =
                    bytes.iter().filter(|byte| byte.is_ascii_graphic()).map(|b| char::from(*b)).collect();
                Some(text).filter(|text| !text.is_empty())
            };
            return Some(match data.get(..20) {
                Some(data) => {
                    Vgpu { host_driver_version: text(&data[..10]), host_driver_branch: text(&data[10..]) }
                }
                None => Vgpu::default(),
            });
        }
        // The length counts type and length too; one that is too short would not lead on.
        match records.get(usize::from(*length).max(2)..) {
            Some(rest) => records = rest,
            None => break,
        }
    }
    Some(Vgpu::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration space with one capability at 0xd0.
    fn config(capability: &[u8]) -> Vec<u8> {
        let mut config = vec![0; 256];
        config[..2].copy_from_slice(&[0xde, 0x10]);
        config[0x06] = 0x10;
        config[0x34] = 0xd0;
        config[0xd0..0xd0 + capability.len()].copy_from_slice(capability);
        config
    }

    fn virtual_gpu() -> Vec<u8> {
        let mut capability = vec![0x09, 0, 0x1b, b'V', b'F', 0, 0x16];
        capability.extend(b"460.16\0\0\0\0r460_00\0\0\0");
        config(&capability)
    }

    #[test]
    fn a_virtual_gpu_tells_its_host_and_others_do_not() {
        let expected =
            Vgpu { host_driver_version: Some("460.16".into()), host_driver_branch: Some("r460_00".into()) };
        assert_eq!(parse_config(&virtual_gpu()), Some(expected.clone()));
        // Another record before it.
        let mut capability = vec![0x09, 0, 0x1f, b'V', b'F', 5, 4, 1, 2, 0, 0x16];
        capability.extend(b"460.16\0\0\0\0r460_00\0\0\0");
        assert_eq!(parse_config(&config(&capability)), Some(expected));
        for (why, other) in [
            ("only 64 bytes could be read", virtual_gpu()[..64].to_vec()),
            ("no capabilities", vec![0; 256]),
            ("another signature", config(&[0x09, 0, 8, b'V', b'G', 0, 2, 0])),
            ("a chain that loops", config(&[0x05, 0xd0])),
            ("a capability beyond the end", config(&[0x09, 0, 0xff, b'V', b'F'])),
        ] {
            assert_eq!(parse_config(&other), None, "{why}");
        }
        for (why, capability) in [
            ("no record", vec![0x09, 0, 5, b'V', b'F']),
            ("a record of no length", vec![0x09, 0, 9, b'V', b'F', 1, 0, 1, 0]),
            ("a record that is cut", vec![0x09, 0, 8, b'V', b'F', 0, 22, b'4']),
        ] {
            assert_eq!(parse_config(&config(&capability)), Some(Vgpu::default()), "{why}");
        }
    }

    #[test]
    fn sysfs_is_read_by_either_form_of_the_address() {
        let root = tempfile::tempdir().unwrap();
        let card = root.path().join("0000:07:00.0");
        std::fs::create_dir(&card).unwrap();
        std::fs::write(card.join("class"), "0x030200\n").unwrap();
        std::fs::write(card.join("vendor"), "0x10de\n").unwrap();
        std::fs::write(card.join("config"), virtual_gpu()).unwrap();
        for address in ["00000000:07:00.0", "0000:07:00.0"] {
            assert_eq!(pci_class(root.path(), address), Some(0x03_0200), "{address}");
        }
        for address in ["", "0000:08:00.0", "../../etc", "00000001:07:00.0"] {
            assert_eq!(pci_class(root.path(), address), None, "{address}");
        }
        assert!(vgpu(root.path()).is_some());
        std::fs::write(card.join("vendor"), "0x8086\n").unwrap();
        assert_eq!(vgpu(root.path()), None);
        assert_eq!(vgpu(&root.path().join("absent")), None);
    }
}
