//! What can be wrong with a configuration.

use std::fmt;

/// Where a value stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum At {
    /// In the file: the path of the key, such as `sharing.timeSlicing.resources[0].replicas`, and its line from 1.
    File {
        /// The path.
        path: String,
        /// The line.
        line: u64,
    },
    /// In the environment: the variable's name.
    Env(String),
    /// On the command line: the flag's name without hyphens.
    Flag(String),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } if path.is_empty() => write!(f, "configuration (line {line})"),
            Self::File { path, line } => write!(f, "{path} (line {line})"),
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag --{name}"),
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not YAML.
    #[error("configuration{}: not valid YAML: {message}", .line.map(|line| format!(" (line {line})")).unwrap_or_default())]
    Syntax {
        /// The line, where the parser tells it.
        line: Option<u64>,
        /// What the parser says.
        message: String,
    },
    /// A key or a flag that does not exist.
    #[error("{at}: unknown; {}", known_text(.meant.as_deref(), .known))]
    Unknown {
        /// The key.
        at: At,
        /// What was probably meant.
        meant: Option<String>,
        /// What is known at this place.
        known: Vec<&'static str>,
    },
    /// A key stands twice.
    #[error("{at}: stands here for the second time, the first is in line {first}; remove one of them")]
    Duplicate {
        /// The second one.
        at: At,
        /// The line of the first.
        first: u64,
    },
    /// A key must be there.
    #[error("{at}: {key} is missing; {fix}")]
    Missing {
        /// What it is missing in.
        at: At,
        /// The key.
        key: &'static str,
        /// What to write.
        fix: &'static str,
    },
    /// A value of the wrong type.
    #[error("{at}: {found} where {wanted} is wanted")]
    Type {
        /// The key.
        at: At,
        /// What stands there.
        found: String,
        /// What must stand there, with an example.
        wanted: &'static str,
    },
    /// A value that is not allowed.
    #[error("{at}: invalid value {value:?}: {rule}")]
    Invalid {
        /// The key.
        at: At,
        /// The value, shortened.
        value: String,
        /// What it must be, and what to write.
        rule: String,
    },
    /// Two values that cannot be together.
    #[error("{at}: {rule}")]
    Conflict {
        /// The one that should be changed.
        at: At,
        /// What contradicts what, and what to do.
        rule: String,
    },
}

fn known_text(meant: Option<&str>, known: &[&'static str]) -> String {
    match meant {
        Some(meant) => format!("did you mean {meant}?"),
        None if known.is_empty() => "nothing can be set here".to_owned(),
        None => format!("known here: {}", known.join(", ")),
    }
}

/// A value for an error: not longer than a line.
pub(crate) fn short(value: &str) -> String {
    value.chars().take(80).collect()
}

/// The known name that is most like `name`: the same but for case, hyphens and underscores, or at most two letters away.
pub(crate) fn meant(name: &str, known: &[&'static str]) -> Option<String> {
    // Longer than any name, and the distance of long texts costs their product.
    if name.len() > 64 {
        return None;
    }
    let plain = |text: &str| -> Vec<char> {
        text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    let wanted = plain(name);
    known
        .iter()
        .map(|known| (distance(&wanted, &plain(known)), *known))
        .filter(|(distance, known)| *distance <= 2 && *distance < known.len() / 2)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known.to_owned())
}

/// How many letters have to be put in, taken out or changed.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
