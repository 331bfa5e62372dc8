//! Why an apply is refused.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::{ManagedEntry, Operation, PathElement};

/// A field that somebody else owns and that an apply would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The owner, as it is cited: `"kubectl" using apps/v1`.
    pub owner: String,
    /// The field.
    pub path: Vec<PathElement>,
}

impl Conflict {
    pub(super) fn with(entry: &ManagedEntry, path: Vec<PathElement>) -> Self {
        let mut owner = format!("{:?}", entry.manager.as_ref());
        if !entry.subresource.is_empty() {
            let _ = write!(owner, " with subresource {:?}", entry.subresource.as_ref());
        }
        if entry.operation == Operation::Update {
            let _ = write!(owner, " using {}", entry.api_version);
        }
        Self { owner, path }
    }

    /// The path as it is cited: `.spec.replicas`.
    pub fn path_text(&self) -> String {
        self.path.iter().map(ToString::to_string).collect()
    }

    /// The `cause` of a `Status`.
    pub fn to_cause(&self) -> Value {
        json!({
            "reason": "FieldManagerConflict",
            "message": format!("conflict with {}", self.owner),
            "field": self.path_text(),
        })
    }
}

/// Why an apply is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApplyError {
    /// The applied object does not fit its type; one text for each fault.
    Malformed(Vec<String>),
    /// Others own what would change. Never empty.
    Conflicts(Vec<Conflict>),
}

impl ApplyError {
    /// What structured-merge-diff or the API server say of it.
    pub fn message(&self) -> String {
        match self {
            Self::Malformed(faults) => match &faults[..] {
                [only] => only.clone(),
                all => {
                    let lines: Vec<String> = all.iter().map(|fault| format!("\n  {fault}")).collect();
                    format!("errors:{}", lines.concat())
                }
            },
            Self::Conflicts(conflicts) => match &conflicts[..] {
                [only] => {
                    format!(
                        "Apply failed with 1 conflict: conflict with {}: {}",
                        only.owner,
                        only.path_text()
                    )
                }
                all => {
                    let mut owners: BTreeMap<&str, Vec<String>> = BTreeMap::new();
                    for conflict in all {
                        owners
                            .entry(&conflict.owner)
                            .or_default()
                            .push(format!("- {}", conflict.path_text()));
                    }
                    let lines: Vec<String> = owners
                        .iter()
                        .map(|(owner, paths)| format!("conflicts with {owner}:\n{}", paths.join("\n")))
                        .collect();
                    format!("Apply failed with {} conflicts: {}", all.len(), lines.join("\n"))
                }
            },
        }
    }
}
