//! What the kernel tells of cards: NUMA nodes, and the addresses of those that do not answer.

use std::fs;
use std::path::Path;

/// Domain, bus and device on PCI.
pub(super) type Address = (u32, u32, u32);

/// An address as NVML writes it.
pub(super) fn bus_id((domain, bus, device): Address) -> String {
    format!("{domain:08X}:{bus:02X}:{device:02X}.0")
}

/// An address as the kernel writes it.
fn kernel((domain, bus, device): Address) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}.0")
}

/// The NUMA node that a card hangs on; the kernel says -1 where the machine does not tell.
pub(super) fn numa_node(sysfs: &Path, address: Address) -> Option<u32> {
    let path = sysfs.join("bus/pci/devices").join(kernel(address)).join("numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The machine's product name.
pub(super) fn machine(sysfs: &Path) -> Option<String> {
    let text = fs::read_to_string(sysfs.join("class/dmi/id/product_name")).ok()?;
    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The addresses of the driver's cards in the order of NVML's indices, which is that of addresses.
pub(super) fn addresses(proc: &Path) -> Vec<Address> {
    let Ok(folder) = fs::read_dir(proc.join("driver/nvidia/gpus")) else { return Vec::new() };
    let mut found: Vec<_> =
        folder.filter_map(|entry| parse(&entry.ok()?.file_name().to_string_lossy())).collect();
    found.sort_unstable();
    found
}

fn parse(text: &str) -> Option<Address> {
    let mut parts = text.split([':', '.']).map(|part| u32::from_str_radix(part, 16).ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_names_cards_and_their_nodes() {
        let folder = std::env::temp_dir().join(format!("gantry-gpu-host-{}", std::process::id()));
        let device = folder.join("sys/bus/pci/devices/0000:07:00.0");
        fs::create_dir_all(&device).unwrap();
        for (text, expected) in [("1\n", Some(1)), ("-1\n", None), ("", None)] {
            fs::write(device.join("numa_node"), text).unwrap();
            assert_eq!(numa_node(&folder.join("sys"), (0, 7, 0)), expected, "{text:?}");
        }
        for name in ["0000:bd:00.0", "0000:07:00.0", "other"] {
            fs::create_dir_all(folder.join("proc/driver/nvidia/gpus").join(name)).unwrap();
        }
        assert_eq!(addresses(&folder.join("proc")), [(0, 7, 0), (0, 0xbd, 0)]);
        assert_eq!(addresses(&folder.join("nothing")), []);
        assert_eq!(machine(&folder), None);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(bus_id((0, 0xbd, 0)), "00000000:BD:00.0");
    }
}
