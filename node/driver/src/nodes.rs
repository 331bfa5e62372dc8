//! The device files of a machine.
//!
//! ```text
//!   <dev root>/dev/nvidia*, dri, …   ──┐
//!   /proc/devices                    ──┼─▶ DeviceFiles ──node("/dev/nvidia0")──▶ numbers, mode, group, path on the host
//!   /sys/bus/pci/devices/<address>/drm ┘
//! ```
//!
//! A file that is missing although its module is loaded, because nobody ran `nvidia-modprobe` yet, is described by the numbers that the module
//! has: a runtime then makes it in the container.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::str::FromStr;

use gantry_cdi::DeviceNode;

use crate::error::short;
use crate::{Error, Root};

/// An address on the PCI bus. NVML writes the domain with eight digits and Linux with four: compared as text they would differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl FromStr for PciAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |part: &str, digits: std::ops::RangeInclusive<usize>| {
            let good = digits.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            good.then(|| u32::from_str_radix(part, 16).ok()).flatten()
        };
        let read = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (device, function) = rest.split_once('.')?;
            Some(Self {
                domain: number(domain, 4..=8)?,
                bus: u8::try_from(number(bus, 2..=2)?).ok()?,
                device: u8::try_from(number(device, 2..=2)?).ok().filter(|device| *device < 32)?,
                function: u8::try_from(number(function, 1..=1)?).ok().filter(|function| *function < 8)?,
            })
        };
        read().ok_or_else(|| Error::PciAddress(short(text)))
    }
}

impl fmt::Display for PciAddress {
    /// As Linux writes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// A device file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceFile {
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Its permission bits; `None` where there is no file yet.
    pub mode: Option<u32>,
    /// Its group.
    pub gid: u32,
}

/// The device files of a machine that containers may need.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceFiles {
    /// The root of `/dev` for the container runtime; `None` if it is the machine's own.
    host: Option<Root>,
    /// By path inside the root.
    files: BTreeMap<String, DeviceFile>,
    /// Major numbers of loaded modules, by the name that they registered.
    majors: BTreeMap<String, u32>,
    /// Files of the direct rendering manager, by the card's address: paths inside the root.
    dri: BTreeMap<PciAddress, Vec<String>>,
}

/// Folders of device files that are looked through, with what names in them begin with.
const FOLDERS: [(&str, &str); 6] = [
    ("/dev", "nvidia"),
    ("/dev", "gdrdrv"),
    ("/dev/nvidia-caps", "nvidia-cap"),
    ("/dev/nvidia-caps-imex-channels", "channel"),
    ("/dev/dri", ""),
    ("/dev/infiniband", ""),
];

/// The names under which NVIDIA's modules register, with the numbers that are registered for good or, for the others, usual.
const MAJORS: [(&str, u32); 4] =
    [("nvidia", 195), ("nvidia-uvm", 511), ("nvidia-caps", 234), ("nvidia-caps-imex-channels", 235)];

impl DeviceFiles {
    /// Looks at a machine.
    pub fn scan(dev: &Root, proc: &Path, sys: &Path) -> Self {
        let mut files = BTreeMap::new();
        for (folder, begin) in FOLDERS {
            for name in dev.names(folder).iter().filter(|name| name.starts_with(begin)) {
                let path = format!("{folder}/{name}");
                if let Some(file) = look(&dev.here(&path)) {
                    files.insert(path, file);
                }
            }
        }
        let majors = fs::read_to_string(proc.join("devices")).map(|text| majors(&text)).unwrap_or_default();
        Self { host: Some(dev.clone()).filter(|dev| !dev.is_system()), files, majors, dri: dri(sys) }
    }

    /// Those of a machine that is simulated: NVIDIA's numbers, and no files.
    pub fn assumed() -> Self {
        let majors = MAJORS.iter().map(|(name, major)| ((*name).to_owned(), *major)).collect();
        Self { majors, ..Self::default() }
    }

    /// The same with this file as well.
    pub fn with_file(mut self, path: &str, file: DeviceFile) -> Self {
        self.files.insert(path.to_owned(), file);
        self
    }

    /// The same with these files of the direct rendering manager, by their names in `/dev/dri`.
    pub fn with_dri(mut self, card: PciAddress, names: &[&str]) -> Self {
        self.dri.insert(card, names.iter().map(|name| format!("/dev/dri/{name}")).collect());
        self
    }

    /// The same below another root.
    pub fn below(mut self, root: Root) -> Self {
        self.host = Some(root).filter(|root| !root.is_system());
        self
    }

    /// The file at a path, or what it will be once it is made. `None` where nothing can tell.
    pub(crate) fn file(&self, path: &str) -> Option<DeviceFile> {
        self.files.get(path).copied().or_else(|| {
            let (major, minor) = number(path)?;
            let major = *self.majors.get(major)?;
            Some(DeviceFile { major, minor, mode: None, gid: 0 })
        })
    }

    /// The paths that begin so and are there, in order.
    pub(crate) fn paths(&self, begin: &str) -> impl Iterator<Item = &str> {
        let begin = begin.to_owned();
        self.files.keys().map(String::as_str).filter(move |path| path.starts_with(&begin))
    }

    /// The files through which a card draws.
    pub(crate) fn dri(&self, card: PciAddress) -> &[String] {
        self.dri.get(&card).map_or(&[], Vec::as_slice)
    }

    /// A file for a specification, with the group that a container's process needs to open it, if any. `path` is the one in the
    /// container.
    pub(crate) fn node(&self, from: &str, path: &str) -> Option<(DeviceNode, Option<u32>)> {
        let file = self.file(from)?;
        let host_path = match &self.host {
            Some(root) => Some(root.host(from)),
            None => (from != path).then(|| from.to_owned()),
        };
        // Others may not, the group may: as distributions leave /dev/dri.
        let group = file.mode.is_some_and(|mode| mode & 0o006 != 0o006 && mode & 0o060 == 0o060);
        let gid = Some(file.gid).filter(|gid| *gid != 0);
        let node = DeviceNode {
            path: path.to_owned(),
            host_path,
            kind: Some("c".to_owned()),
            major: Some(file.major.into()),
            minor: Some(file.minor.into()),
            file_mode: file.mode,
            // Programs read and write; who may make device files could make one of another device.
            permissions: Some("rw".to_owned()),
            uid: None,
            gid,
        };
        Some((node, gid.filter(|_| group)))
    }
}

/// The module and the minor number of a file with a well-known place.
fn number(path: &str) -> Option<(&'static str, u32)> {
    let decimal =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    if let Some(minor) = path.strip_prefix("/dev/nvidia-caps/nvidia-cap") {
        return Some(("nvidia-caps", decimal(minor)?));
    }
    if let Some(minor) = path.strip_prefix("/dev/nvidia-caps-imex-channels/channel") {
        return Some(("nvidia-caps-imex-channels", decimal(minor)?));
    }
    match path.strip_prefix("/dev/nvidia")? {
        "ctl" => Some(("nvidia", 255)),
        "-modeset" => Some(("nvidia", 254)),
        "-uvm" => Some(("nvidia-uvm", 0)),
        "-uvm-tools" => Some(("nvidia-uvm", 1)),
        minor => Some(("nvidia", decimal(minor)?)),
    }
}

fn look(path: &Path) -> Option<DeviceFile> {
    let file = fs::symlink_metadata(path).ok().filter(|file| file.file_type().is_char_device())?;
    let number = file.rdev();
    // How Linux packs them, as glibc's gnu_dev_major() and gnu_dev_minor() unpack them.
    let major = ((number >> 8) & 0xfff) | ((number >> 32) & !0xfff);
    let minor = (number & 0xff) | ((number >> 12) & !0xff);
    Some(DeviceFile {
        major: u32::try_from(major).ok()?,
        minor: u32::try_from(minor).ok()?,
        mode: Some(file.mode() & 0o7777),
        gid: file.gid(),
    })
}

/// The major numbers of character devices in `/proc/devices`.
fn majors(text: &str) -> BTreeMap<String, u32> {
    let characters = text.lines().skip_while(|line| *line != "Character devices:").skip(1);
    let pair = |line: &str| {
        let (major, name) = line.trim().split_once(' ')?;
        // Older drivers registered under another name.
        let name = if name == "nvidia-frontend" { "nvidia" } else { name };
        Some((name.to_owned(), major.parse().ok()?))
    };
    characters.take_while(|line| !line.is_empty()).filter_map(pair).collect()
}

/// The drawing files of each card of NVIDIA's, from sysfs.
fn dri(sys: &Path) -> BTreeMap<PciAddress, Vec<String>> {
    let cards = fs::read_dir(sys.join("bus/pci/devices")).into_iter().flatten();
    let card = |entry: fs::DirEntry| {
        let address: PciAddress = entry.file_name().to_str()?.parse().ok()?;
        let vendor = fs::read_to_string(entry.path().join("vendor")).ok()?;
        if vendor.trim() != "0x10de" {
            return None;
        }
        let files = fs::read_dir(entry.path().join("drm")).ok()?;
        let mut files: Vec<String> = files
            .filter_map(|file| file.ok()?.file_name().into_string().ok())
            .filter(|name| name.starts_with("card") || name.starts_with("renderD"))
            .map(|name| format!("/dev/dri/{name}"))
            .collect();
        files.sort();
        Some((address, files))
    };
    cards.filter_map(|entry| card(entry.ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_compared_as_numbers() {
        let address = |text: &str| text.parse::<PciAddress>().unwrap();
        assert_eq!(address("00000000:07:00.0"), address("0000:07:00.0"));
        assert_eq!(address("00000000:0A:00.0").to_string(), "0000:0a:00.0");
        assert_eq!(address("00010000:01:1f.7").to_string(), "10000:01:1f.7");
        assert_ne!(address("0000:01:00.0"), address("0000:01:00.1"));
        for bad in [
            "",
            "07:00.0",
            "0000:07:00",
            "0000:7:00.0",
            "0000:07:20.0",
            "0000:07:00.8",
            "0000:07:00.00",
            "x:07:00.0",
        ] {
            assert_eq!(
                bad.parse::<PciAddress>().unwrap_err().to_string(),
                format!(
                    "{bad:?} is no PCI address: write DOMAIN:BUS:DEVICE.FUNCTION in hexadecimal, as in 0000:07:00.0"
                )
            );
        }
    }

    #[test]
    fn a_file_that_is_missing_has_the_numbers_of_its_module() {
        let majors = majors(
            "Character devices:\n  1 mem\n195 nvidia-frontend\n240 nvidia-caps\n509 nvidia-uvm\n\nBlock devices:\n  7 loop\n 99 nvidia-uvm\n",
        );
        let files = DeviceFiles { majors, ..DeviceFiles::default() };
        let numbers = |path| files.file(path).map(|file| (file.major, file.minor));
        assert_eq!(numbers("/dev/nvidia12"), Some((195, 12)));
        assert_eq!(numbers("/dev/nvidiactl"), Some((195, 255)));
        assert_eq!(numbers("/dev/nvidia-uvm-tools"), Some((509, 1)));
        assert_eq!(numbers("/dev/nvidia-caps/nvidia-cap66"), Some((240, 66)));
        for unknown in
            ["/dev/nvidia-fs0", "/dev/nvidia", "/dev/nvidia+1", "/dev/nvidia-caps-imex-channels/channel0"]
        {
            assert_eq!(numbers(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_node_says_what_a_runtime_would_have_to_look_up() {
        let render = DeviceFile { major: 226, minor: 128, mode: Some(0o660), gid: 44 };
        let open = DeviceFile { mode: Some(0o666), gid: 0, ..render };
        let files =
            DeviceFiles::assumed().with_file("/dev/dri/renderD128", render).with_file("/dev/gdrdrv", open);
        let (node, group) = files.node("/dev/dri/renderD128", "/dev/dri/renderD128").unwrap();
        assert_eq!(
            (node.host_path, node.gid, node.file_mode, group),
            (None, Some(44), Some(0o660), Some(44))
        );
        let files = files.below(Root::new("/run/nvidia/driver"));
        let (node, group) = files.node("/dev/gdrdrv", "/dev/gdrdrv").unwrap();
        assert_eq!(node.host_path.as_deref(), Some("/run/nvidia/driver/dev/gdrdrv"));
        assert_eq!((node.gid, group), (None, None));
    }

    #[test]
    fn a_machine_is_scanned() {
        let root = tempfile::tempdir().unwrap();
        let (proc, sys) = (root.path().join("proc"), root.path().join("sys"));
        fs::create_dir_all(&proc).unwrap();
        fs::write(proc.join("devices"), "Character devices:\n195 nvidia\n").unwrap();
        for (address, vendor, names) in [
            ("0000:07:00.0", "0x10de", &["card1", "renderD128", "controlD65"][..]),
            ("0000:07:00.1", "0x10de", &[]),
            ("0000:03:00.0", "0x1a03", &["card0"]),
        ] {
            let device = sys.join("bus/pci/devices").join(address);
            for name in names {
                fs::create_dir_all(device.join("drm").join(name)).unwrap();
            }
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
        }
        // A regular file is no device, whatever its name.
        fs::create_dir_all(root.path().join("dev")).unwrap();
        fs::write(root.path().join("dev/nvidia-fs0"), "").unwrap();
        let files = DeviceFiles::scan(&Root::new(root.path()), &proc, &sys);
        let address = "00000000:07:00.0".parse().unwrap();
        assert_eq!(files.dri(address), ["/dev/dri/card1", "/dev/dri/renderD128"]);
        assert!(files.dri("0000:03:00.0".parse().unwrap()).is_empty());
        assert!(files.file("/dev/nvidia-fs0").is_none());
        assert_eq!(files.file("/dev/nvidia3").map(|file| file.major), Some(195));
        // The machine's own device files are looked at, too.
        assert_eq!(look(Path::new("/dev/null")).map(|file| (file.major, file.minor)), Some((1, 3)));
    }
}
