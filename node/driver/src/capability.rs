//! Driver capabilities: the parts of the driver that a container asks for.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

use crate::Error;
use crate::error::short;

/// The variable in which an image or a pod says which parts of the driver it needs.
pub const CAPABILITIES_VARIABLE: &str = "NVIDIA_DRIVER_CAPABILITIES";

/// A set of driver capabilities, in the words of NVIDIA's container toolkit.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u8);

impl Capabilities {
    /// CUDA and OpenCL.
    pub const COMPUTE: Self = Self(1);
    /// 32-bit programs.
    pub const COMPAT32: Self = Self(2);
    /// OpenGL and Vulkan.
    pub const GRAPHICS: Self = Self(4);
    /// `nvidia-smi` and NVML.
    pub const UTILITY: Self = Self(8);
    /// Decoding and encoding.
    pub const VIDEO: Self = Self(16);
    /// X11 and Wayland displays.
    pub const DISPLAY: Self = Self(32);
    /// DLSS.
    pub const NGX: Self = Self(64);
    /// Every capability.
    pub const ALL: Self = Self(127);

    /// The words, in the order of their bits.
    pub const NAMES: [&str; 7] = ["compute", "compat32", "graphics", "utility", "video", "display", "ngx"];

    /// No capability.
    pub const fn none() -> Self {
        Self(0)
    }

    /// What a container has that asks for nothing: `utility,compute`.
    pub const fn usual() -> Self {
        Self(Self::UTILITY.0 | Self::COMPUTE.0)
    }

    /// Both sets together, in constants.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those of this set that are not in the other.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those of this set that are in the other, too.
    pub const fn within(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether the sets have a capability in common.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether every capability of the other set is in this one.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Reads the value of [`CAPABILITIES_VARIABLE`]: words joined by commas, or `all`. An empty value asks for what is usual.
    ///
    /// # Errors
    /// [`Error::Capability`] for a word that nobody knows, rather than a container without what it was meant to have.
    pub fn parse(value: &str) -> Result<Self, Error> {
        let mut set = Self::none();
        for word in value.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let bit = Self::NAMES.iter().position(|name| *name == word);
            set |= match bit {
                Some(bit) => Self(1 << bit),
                None if word == "all" => Self::ALL,
                None => {
                    return Err(Error::Capability { variable: CAPABILITIES_VARIABLE, value: short(word) });
                }
            };
        }
        Ok(if set == Self::none() { Self::usual() } else { set })
    }

    /// What a container gets that asks for this, where not every capability is to be had. `all` means what there is.
    ///
    /// # Errors
    /// [`Error::Capability`], and [`Error::Unsupported`] for one that is asked for by name and is not to be had.
    pub(crate) fn asked(value: &str, supported: Self) -> Result<Self, Error> {
        let set = Self::parse(value)?;
        let said = value.split(',').any(|word| !word.trim().is_empty());
        if set == Self::ALL || !said || supported.contains(set) {
            return Ok(set.within(supported));
        }
        let missing = set.without(supported).to_string();
        Err(Error::Unsupported { variable: CAPABILITIES_VARIABLE, missing, supported: supported.to_string() })
    }
}

impl BitOr for Capabilities {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl BitOrAssign for Capabilities {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.and(other);
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("all");
        }
        let names = Self::NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 == 1);
        f.write_str(&names.map(|(_, name)| *name).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{self}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_as_nvidias_toolkit_reads_them() {
        for (value, expected) in [
            ("", "compute,utility"),
            (",", "compute,utility"),
            ("all", "all"),
            ("compute,all", "all"),
            ("utility", "utility"),
            ("video, compute,utility,", "compute,utility,video"),
            ("ngx,compat32,display,graphics", "compat32,graphics,display,ngx"),
            ("compute,compat32,graphics,utility,video,display,ngx", "all"),
        ] {
            let set = Capabilities::parse(value).unwrap();
            assert_eq!(set.to_string(), expected, "{value:?}");
            assert_eq!(Capabilities::parse(&set.to_string()).unwrap(), set);
        }
    }

    #[test]
    fn what_is_not_to_be_had_is_refused_by_name() {
        let supported = Capabilities::usual();
        for (value, expected) in [("all", "compute,utility"), ("", "compute,utility"), ("utility", "utility")]
        {
            assert_eq!(Capabilities::asked(value, supported).unwrap().to_string(), expected, "{value:?}");
        }
        assert_eq!(
            Capabilities::asked("compute,video,ngx", supported).unwrap_err().to_string(),
            "NVIDIA_DRIVER_CAPABILITIES: video,ngx is not to be had: supported-driver-capabilities of this node is \
             compute,utility"
        );
        assert_eq!(Capabilities::asked("", Capabilities::UTILITY).unwrap(), Capabilities::UTILITY);
    }

    #[test]
    fn a_word_that_nobody_knows_is_named() {
        for value in ["gpu", "Compute", "compute;utility", "none", "all!"] {
            assert_eq!(
                Capabilities::parse(&format!("compute,{value}")).unwrap_err().to_string(),
                format!(
                    "NVIDIA_DRIVER_CAPABILITIES: unknown driver capability {value:?}: use all, or some of compute, \
                     compat32, graphics, utility, video, display, ngx, joined by commas"
                )
            );
        }
    }
}
