//! Names of resources, and patterns of GPU models.

use std::fmt;

/// What the names of all resources begin with.
pub const PREFIX: &str = "nvidia.com/";

/// What the names of the resources of partitions begin with, under `migStrategy: mixed`.
pub const MIG_PREFIX: &str = "nvidia.com/mig-";

/// What `renameByDefault` appends.
pub const SHARED_SUFFIX: &str = ".shared";

/// The most bytes of a whole resource name.
const LONGEST: usize = 63;

/// An extended resource of NVIDIA's: `nvidia.com/` and a DNS subdomain, 63 bytes at most.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(String);

impl ResourceName {
    /// `nvidia.com/gpu`.
    pub fn gpu() -> Self {
        Self(format!("{PREFIX}gpu"))
    }

    /// The resource of a MIG profile: `nvidia.com/mig-1g.10gb.me` for `1g.10gb+me`.
    ///
    /// # Errors
    /// The rule that the name would break.
    pub fn mig(profile: &str) -> Result<Self, &'static str> {
        Self::new(&format!("{MIG_PREFIX}{}", profile.replace('+', ".")))
    }

    /// A name with the prefix or without it.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let name = text.strip_prefix(PREFIX).unwrap_or(text);
        if name.contains('/') {
            return Err("only resources of nvidia.com can be named; write nvidia.com/<name>");
        }
        let label = |label: &str| {
            let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            edge(label.as_bytes().first())
                && edge(label.as_bytes().last())
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        if !name.split('.').all(label) {
            return Err(
                "must be lower case letters, digits, '-' and '.', begin and end with a letter or digit; as in nvidia.com/gpu",
            );
        }
        if PREFIX.len() + name.len() > LONGEST {
            return Err("must have at most 63 characters with nvidia.com/ before it");
        }
        Ok(Self(format!("{PREFIX}{name}")))
    }

    /// The whole name, such as `nvidia.com/gpu`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name for shares: `nvidia.com/gpu.shared`.
    ///
    /// # Errors
    /// The rule that the longer name would break.
    pub fn shared(&self) -> Result<Self, &'static str> {
        Self::new(&format!("{}{SHARED_SUFFIX}", self.0))
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text in which `*` stands for any run of characters; it has to match the whole of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Any text is a pattern.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        // The leftmost place for each part leaves the most room for those that follow.
        for part in parts {
            let Some(at) = rest.find(part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_nvidia() {
        for (text, name) in [
            ("gpu", "nvidia.com/gpu"),
            ("nvidia.com/a100.40gb", "nvidia.com/a100.40gb"),
            ("mig-1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ] {
            assert_eq!(ResourceName::new(text).map(|name| name.to_string()), Ok(name.to_owned()));
        }
        for bad in ["", "GPU", "amd.com/gpu", "nvidia.com/", "a..b", "-a", "a_b", &"x".repeat(53)] {
            assert!(ResourceName::new(bad).is_err(), "{bad:?}");
        }
        for (profile, name) in [
            ("1g.5gb", "nvidia.com/mig-1g.5gb"),
            ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
            ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
            ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ] {
            assert_eq!(ResourceName::mig(profile).map(|name| name.to_string()), Ok(name.to_owned()));
        }
        assert_eq!(ResourceName::gpu().shared().map(|n| n.to_string()), Ok("nvidia.com/gpu.shared".into()));
    }

    #[test]
    fn a_star_stands_for_any_run_and_the_whole_name_counts() {
        for (pattern, name, matches) in [
            ("*", "NVIDIA A100-SXM4-40GB", true),
            ("*A100*", "NVIDIA A100-SXM4-40GB", true),
            ("A100*", "NVIDIA A100-SXM4-40GB", false),
            ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", true),
            ("NVIDIA A100", "NVIDIA A100-SXM4-40GB", false),
            ("*40*GB", "NVIDIA A100-SXM4-40GB", true),
            ("*40GB*40GB", "NVIDIA A100-SXM4-40GB", false),
            ("Tesla ?4", "Tesla T4", false),
            ("a*a", "a", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), matches, "{pattern} {name}");
        }
    }
}
