use std::fmt;
use std::str::FromStr;

use crate::{Error, Quantity};

const BYTES_PER_MIB: u64 = 1 << 20;

/// A number of bytes. Printed as a quantity: `16Gi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Whole MiB; a rest below one MiB is dropped.
    pub const fn mib_floor(self) -> Mib {
        Mib(self.0 / BYTES_PER_MIB)
    }

    /// Whole MiB; a rest below one MiB counts as one.
    pub const fn mib_ceil(self) -> Mib {
        Mib(self.0.div_ceil(BYTES_PER_MIB))
    }
}

impl TryFrom<Quantity> for Bytes {
    type Error = Error;

    fn try_from(quantity: Quantity) -> Result<Self, Error> {
        let not_bytes = || Error::NotBytes { input: quantity.to_string() };
        if !quantity.is_integer() {
            return Err(not_bytes());
        }
        u64::try_from(quantity.value()).map(Self).map_err(|_| not_bytes())
    }
}

impl From<Mib> for Bytes {
    /// Capped at the range of `u64`.
    fn from(mib: Mib) -> Self {
        Self(mib.0.saturating_mul(BYTES_PER_MIB))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Quantity::from_bytes(i64::try_from(self.0).unwrap_or(i64::MAX)).fmt(f)
    }
}

/// A number of MiB (2²⁰ bytes), the unit of device memory. Printed as nvidia-smi does: `40960MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mib(pub u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}MiB", self.0)
    }
}

/// A whole percentage, 0 to 100. Printed `50%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Percent(u8);

impl Percent {
    /// Everything.
    pub const FULL: Self = Self(100);

    /// The percentage, if it is at most 100.
    pub const fn new(percent: u8) -> Option<Self> {
        if percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// The number, 0 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// This share of an amount, rounded down.
    pub fn of(self, amount: u64) -> u64 {
        let share = u128::from(amount) * u128::from(self.0) / 100;
        u64::try_from(share).expect("invariant: a share is at most the whole")
    }
}

impl FromStr for Percent {
    type Err = Error;

    /// `50` or `50%`.
    fn from_str(input: &str) -> Result<Self, Error> {
        let digits = input.strip_suffix('%').unwrap_or(input);
        let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        number.and_then(Self::new).ok_or_else(|| Error::Percent { input: input.to_owned() })
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bytes_come_from_whole_quantities_only() {
        let bytes = |text: &str| Bytes::try_from(text.parse::<Quantity>().unwrap());
        assert_eq!(bytes("4Gi"), Ok(Bytes(4 << 30)));
        assert_eq!(bytes("4Gi").unwrap().mib_floor(), Mib(4096));
        assert_eq!(bytes("1G").unwrap().mib_floor(), Mib(953));
        assert_eq!(bytes("1G").unwrap().mib_ceil(), Mib(954));
        for text in ["-1", "500m"] {
            assert!(bytes(text).unwrap_err().to_string().contains(text));
        }
    }

    #[test]
    fn each_unit_prints_as_its_users_expect() {
        assert_eq!(Bytes(16 << 30).to_string(), "16Gi");
        assert_eq!(Bytes::from(Mib(40_960)).to_string(), "40Gi");
        assert_eq!(Mib(40_960).to_string(), "40960MiB");
        assert_eq!("50%".parse::<Percent>().unwrap().to_string(), "50%");
    }

    #[test]
    fn a_percentage_is_a_whole_number_to_a_hundred() {
        assert_eq!("0".parse::<Percent>().unwrap().get(), 0);
        assert_eq!("100".parse(), Ok(Percent::FULL));
        for text in ["101", "-1", "+5", "", "%", "0.5", "50%%", "256"] {
            assert_eq!(text.parse::<Percent>(), Err(Error::Percent { input: text.to_owned() }));
        }
        assert_eq!(Percent::new(50).unwrap().of(81_559), 40_779);
        assert_eq!(Percent::FULL.of(u64::MAX), u64::MAX);
    }
}
