//! What a planning function answers: writes to make, in order, and when to look again.

use std::time::Duration;

use serde_json::Value;

use crate::kinds::Kind;
use crate::store::Ref;

/// What is to be done for one object. Steps run in order; the first that fails ends the run.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// Look again after this time even if nothing changes.
    pub(crate) again_after: Option<Duration>,
}

/// Writes that may run at the same time, or an event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    /// Creates objects in growing batches: 1, 2, 4 and so on, stopping after a batch with a failure.
    Create(Vec<Create>),
    Delete(Vec<Delete>),
    Patch(Vec<Patch>),
    /// An event about the object that the plan is for.
    Event(Note),
}

/// An object to create.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Create {
    pub(crate) kind: Kind,
    pub(crate) object: Value,
    /// Whether it is well if an object of this name is there already.
    pub(crate) may_exist: bool,
    pub(crate) success: Option<Note>,
    pub(crate) failure: Option<Note>,
}

/// An object to delete if it still has this UID.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Delete {
    pub(crate) kind: Kind,
    pub(crate) id: Ref,
    pub(crate) uid: String,
    pub(crate) success: Option<Note>,
    pub(crate) failure: Option<Note>,
}

/// A JSON merge patch of an object or of its status.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Patch {
    pub(crate) kind: Kind,
    pub(crate) id: Ref,
    pub(crate) on_status: bool,
    pub(crate) change: Value,
    pub(crate) success: Option<Note>,
    pub(crate) failure: Option<Note>,
}

/// An event. `{name}` in the message is the name of the object written, `{error}` what the server said.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Note {
    pub(crate) warning: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// Why the last run of a plan ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Whether it was a creation that failed, rather than a deletion or a patch.
    pub(crate) on_create: bool,
    /// Whether an object of that name was there already.
    pub(crate) already_exists: bool,
    pub(crate) message: String,
}

impl Note {
    pub(crate) fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: false, reason, message: message.into() }
    }

    pub(crate) fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { warning: true, reason, message: message.into() }
    }
}

impl Create {
    pub(crate) fn new(kind: Kind, object: Value) -> Self {
        Self { kind, object, may_exist: false, success: None, failure: None }
    }

    /// A pod, announced as the controllers of Kubernetes announce it.
    pub(crate) fn pod(object: Value) -> Self {
        Self {
            success: Some(Note::normal("SuccessfulCreate", "Created pod: {name}")),
            failure: Some(Note::warning("FailedCreate", "Error creating: {error}")),
            ..Self::new(Kind::Pod, object)
        }
    }
}

impl Delete {
    pub(crate) fn new(kind: Kind, id: &Ref, uid: &str) -> Self {
        Self { kind, id: id.clone(), uid: uid.to_owned(), success: None, failure: None }
    }

    /// A pod, announced as the controllers of Kubernetes announce it.
    pub(crate) fn pod(id: &Ref, uid: &str) -> Self {
        Self {
            success: Some(Note::normal("SuccessfulDelete", "Deleted pod: {name}")),
            failure: Some(Note::warning("FailedDelete", "Error deleting: {error}")),
            ..Self::new(Kind::Pod, id, uid)
        }
    }
}

impl Patch {
    pub(crate) fn new(kind: Kind, id: &Ref, change: Value) -> Self {
        Self { kind, id: id.clone(), on_status: false, change, success: None, failure: None }
    }

    pub(crate) fn status(kind: Kind, id: &Ref, change: Value) -> Self {
        Self { on_status: true, ..Self::new(kind, id, change) }
    }
}

impl Plan {
    pub(crate) fn create(&mut self, create: Create) {
        self.creates(vec![create]);
    }

    pub(crate) fn creates(&mut self, creates: Vec<Create>) {
        if !creates.is_empty() {
            self.steps.push(Step::Create(creates));
        }
    }

    pub(crate) fn deletes(&mut self, deletes: Vec<Delete>) {
        if !deletes.is_empty() {
            self.steps.push(Step::Delete(deletes));
        }
    }

    pub(crate) fn patch(&mut self, patch: Patch) {
        self.patches(vec![patch]);
    }

    pub(crate) fn patches(&mut self, patches: Vec<Patch>) {
        if !patches.is_empty() {
            self.steps.push(Step::Patch(patches));
        }
    }

    pub(crate) fn event(&mut self, note: Note) {
        self.steps.push(Step::Event(note));
    }

    /// Looks again in `seconds` at the latest.
    pub(crate) fn again_in(&mut self, seconds: i64) {
        let after = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        self.again_after = Some(self.again_after.map_or(after, |known| known.min(after)));
    }

    /// Whether nothing is written.
    pub(crate) fn is_quiet(&self) -> bool {
        self.steps.is_empty()
    }
}

#[cfg(test)]
pub(crate) mod read {
    //! Reading plans in tests.

    use super::*;
    use crate::json::Fields as _;

    /// The plan in one line per write: `create Pod web-`, `delete Pod web-1`, `patch ReplicaSet web {…}`.
    pub(crate) fn lines(plan: &Plan) -> Vec<String> {
        let mut lines = Vec::new();
        for step in &plan.steps {
            match step {
                Step::Create(creates) => lines.extend(creates.iter().map(|create| {
                    let name = match create.object.name() {
                        "" => create.object.text("/metadata/generateName"),
                        name => name,
                    };
                    format!("create {} {name}", create.kind.name())
                })),
                Step::Delete(deletes) => lines.extend(
                    deletes.iter().map(|delete| format!("delete {} {}", delete.kind.name(), delete.id.name)),
                ),
                Step::Patch(patches) => lines.extend(patches.iter().map(|patch| {
                    let part = if patch.on_status { "/status" } else { "" };
                    format!("patch {}{part} {} {}", patch.kind.name(), patch.id.name, patch.change)
                })),
                Step::Event(note) => lines.push(format!("event {} {}", note.reason, note.message)),
            }
        }
        lines
    }

    /// The merge patch of the status, if the plan has one.
    pub(crate) fn status(plan: &Plan) -> Option<&Value> {
        plan.steps.iter().find_map(|step| match step {
            Step::Patch(patches) => {
                patches.iter().find(|patch| patch.on_status).map(|patch| patch.change.at("/status"))
            }
            _ => None,
        })
    }

    /// What is created.
    pub(crate) fn created(plan: &Plan) -> Vec<&Value> {
        plan.steps
            .iter()
            .flat_map(|step| match step {
                Step::Create(creates) => creates.iter().map(|create| &create.object).collect(),
                _ => Vec::new(),
            })
            .collect()
    }

    /// Names of what is deleted.
    pub(crate) fn deleted(plan: &Plan) -> Vec<&str> {
        plan.steps
            .iter()
            .flat_map(|step| match step {
                Step::Delete(deletes) => deletes.iter().map(|delete| &*delete.id.name).collect(),
                _ => Vec::new(),
            })
            .collect()
    }
}
