//! Versions of the driver.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::Error;
use crate::error::short;

/// A version of the driver, such as `550.54.15`. Kept as it is written, for files are named after it (`535.104.05`);
/// compared by its numbers.
#[derive(Debug, Clone)]
pub struct DriverVersion {
    text: String,
    numbers: Vec<u32>,
}

impl DriverVersion {
    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The newest CUDA version that a driver of this branch runs, as NVIDIA's release notes list it. `None` for branches that the
    /// table does not know. NVML's answer is better where there is one.
    pub fn cuda(&self) -> Option<(u32, u32)> {
        let branch = self.numbers.first()?;
        CUDA.iter().find(|(known, _)| known == branch).map(|(_, cuda)| *cuda)
    }

    /// The version in `/proc/driver/nvidia/version`: the first one on the line of the kernel module (NVRM).
    pub fn of_module(text: &str) -> Option<Self> {
        let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
        line.split_whitespace().find_map(|word| word.parse().ok())
    }
}

/// Driver branches and the CUDA version that came with each.
const CUDA: [(u32, (u32, u32)); 22] = [
    (418, (10, 1)),
    (440, (10, 2)),
    (450, (11, 0)),
    (455, (11, 1)),
    (460, (11, 2)),
    (465, (11, 3)),
    (470, (11, 4)),
    (495, (11, 5)),
    (510, (11, 6)),
    (515, (11, 7)),
    (520, (11, 8)),
    (525, (12, 0)),
    (530, (12, 1)),
    (535, (12, 2)),
    (545, (12, 3)),
    (550, (12, 4)),
    (555, (12, 5)),
    (560, (12, 6)),
    (565, (12, 7)),
    (570, (12, 8)),
    (575, (12, 9)),
    (580, (13, 0)),
];

/// Numbers joined by dots, each of at most `digits` digits.
pub(crate) fn numbers(text: &str, digits: usize) -> Option<Vec<u32>> {
    let number = |part: &str| {
        let good = (1..=digits).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        good.then(|| part.parse().ok()).flatten()
    };
    text.split('.').map(number).collect()
}

/// Compares numbers from the left; what one of them lacks is 0.
pub(crate) fn compare(a: &[u32], b: &[u32]) -> Ordering {
    let at = |list: &[u32], index: usize| list.get(index).copied().unwrap_or(0);
    (0..a.len().max(b.len()))
        .map(|index| at(a, index).cmp(&at(b, index)))
        .find(|order| order.is_ne())
        .unwrap_or(Ordering::Equal)
}

impl DriverVersion {
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.numbers
    }
}

impl FromStr for DriverVersion {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // A branch has three digits, which tells `libcuda.so.550.54` from `libcuda.so.1.1`.
        numbers(text, 5)
            .filter(|numbers| (2..=4).contains(&numbers.len()) && numbers[0] >= 100)
            .map(|numbers| Self { text: text.to_owned(), numbers })
            .ok_or_else(|| Error::Version(short(text)))
    }
}

impl fmt::Display for DriverVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for DriverVersion {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for DriverVersion {}

impl PartialOrd for DriverVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DriverVersion {
    /// By number, then by text: `535.104.05` and `535.104.5` are different files.
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.numbers, &other.numbers).then_with(|| self.text.cmp(&other.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared_as_numbers() {
        let version = |text: &str| text.parse::<DriverVersion>().unwrap();
        assert!(version("550.54.15") > version("550.54.9"));
        assert!(version("580.95.05") > version("570.172.08"));
        assert!(version("570.86") < version("570.86.10"));
        assert_eq!(version("535.104.05").to_string(), "535.104.05");
        assert_eq!(version("550.54.15").cuda(), Some((12, 4)));
        assert_eq!(version("999.1").cuda(), None);
        for bad in ["", "1", "1.1", "550", "550.", "550.54.15.1.2", "550.x", "550.-1", "550.123456", "+50.1"]
        {
            assert_eq!(
                bad.parse::<DriverVersion>().unwrap_err().to_string(),
                format!(
                    "{bad:?} is no driver version: write two to four numbers joined by dots, as in 550.54.15"
                )
            );
        }
    }

    #[test]
    fn the_kernel_module_tells_its_version_in_either_form() {
        for (text, expected) in [
            (
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc version 12.3.0\n",
                Some("550.54.15"),
            ),
            (
                "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build  (dvs@x)  Thu Jan 23 2025\n",
                Some("570.86.15"),
            ),
            ("GCC version:  gcc version 120.3.0\n", None),
            ("", None),
        ] {
            assert_eq!(
                DriverVersion::of_module(text).map(|version| version.to_string()).as_deref(),
                expected
            );
        }
    }
}
