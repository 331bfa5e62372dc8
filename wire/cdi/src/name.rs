//! `vendor/class=name`.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A fully qualified device name, such as `nvidia.com/gpu=0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceName {
    kind: String,
    name: String,
}

impl DeviceName {
    /// The name of a device of a kind.
    pub fn new(kind: &str, name: &str) -> Result<Self, Error> {
        format!("{kind}={name}").parse()
    }

    /// Vendor and class, such as `nvidia.com/gpu`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The name within its kind, such as `0`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = |rule| Error::Name { name: text.chars().take(120).collect(), rule };
        let (kind, name) = text.split_once('=').ok_or_else(|| refuse("it has no '='"))?;
        check_kind(kind).map_err(refuse)?;
        check_device(name).map_err(refuse)?;
        Ok(Self { kind: kind.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind, self.name)
    }
}

pub(crate) fn check_kind(kind: &str) -> Result<(), &'static str> {
    let (vendor, class) = kind.split_once('/').ok_or("the kind has no '/'")?;
    part(
        vendor,
        b"_-.",
        u8::is_ascii_alphabetic,
        "the vendor must begin with a letter, end with a letter or digit and have only letters, digits, '_', '-' and '.' between",
    )?;
    part(
        class,
        b"_-.",
        u8::is_ascii_alphabetic,
        "the class must begin with a letter, end with a letter or digit and have only letters, digits, '_', '-' and '.' between",
    )
}

pub(crate) fn check_device(name: &str) -> Result<(), &'static str> {
    part(
        name,
        b"_-.:",
        u8::is_ascii_alphanumeric,
        "the name must begin and end with a letter or digit and have only letters, digits, '_', '-', '.' and ':' between",
    )
}

fn part(
    text: &str,
    between: &[u8],
    may_begin: impl Fn(&u8) -> bool,
    rule: &'static str,
) -> Result<(), &'static str> {
    let bytes = text.as_bytes();
    let good = bytes.first().is_some_and(may_begin)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || between.contains(byte));
    if good { Ok(()) } else { Err(rule) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_grammar_is_that_of_the_specification() {
        for good in [
            "nvidia.com/gpu=0",
            "nvidia.com/gpu=0:1",
            "k8s.device-plugin.nvidia.com/gpu=GPU-1",
            "a/b=c",
            "v_1/c-2.x=d.e",
        ] {
            assert_eq!(good.parse::<DeviceName>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "0",
            "gpu=0",
            "nvidia.com/gpu",
            "nvidia.com/gpu=",
            "/gpu=0",
            "nvidia.com/=0",
            "1.com/gpu=0",
            "nvidia.com./gpu=0",
            "nvidia.com/gpu=-1",
            "nvidia.com/gpu=a b",
            "nvidia.com/gpu=ü",
            "a/b=c=d",
        ] {
            assert!(bad.parse::<DeviceName>().is_err(), "{bad:?}");
        }
        assert_eq!(
            "nvidia.com/gpu".parse::<DeviceName>().unwrap_err().to_string(),
            "\"nvidia.com/gpu\" is no CDI device name: it has no '='; write vendor/class=name, as in nvidia.com/gpu=0"
        );
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_is_accepted_round_trips(text in "\\PC{0,30}") {
            if let Ok(name) = text.parse::<DeviceName>() {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
