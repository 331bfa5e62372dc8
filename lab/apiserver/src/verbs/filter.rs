//! Which objects a list or watch concerns.

use gantry_apimachinery::{Error, FieldSelector, Selector};

use crate::Status;
use crate::http::Call;
use crate::store::{Change, ChangeKind, Interest, Object};

/// The selectors of a request.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    labels: Selector,
    fields: FieldSelector,
}

/// What a watch says of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transition {
    Added,
    Modified,
    /// Gone, or no longer selected.
    Deleted,
}

impl Filter {
    pub(crate) fn of(call: &Call) -> Result<Self, Status> {
        let parse = |name: &str| call.query.get(name).unwrap_or_default();
        let refuse = |error: Error| {
            Status::bad_request(match error {
                Error::LabelSelector { reason, .. } => reason,
                Error::FieldSelector { input, term } => {
                    format!("invalid selector: '{input}'; can't understand '{term}'")
                }
                other => other.to_string(),
            })
        };
        let labels = parse("labelSelector").parse().map_err(refuse)?;
        let fields: FieldSelector = parse("fieldSelector").parse().map_err(refuse)?;
        for requirement in fields.requirements() {
            let field = requirement.field.as_str();
            if !matches!(field, "metadata.name" | "metadata.namespace") && !call.resource.selects_by(field) {
                let is_plain = call.resource.selectable.is_empty();
                return Err(Status::bad_request(if is_plain {
                    format!(
                        "{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    )
                } else {
                    format!("field label not supported: {field}")
                }));
            }
        }
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.requirements().is_empty()
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.labels.matches_object(&object.value) && self.fields.matches(&object.value)
    }

    /// How the change looks to a watch that sees only selected objects.
    pub(crate) fn transition(&self, change: &Change) -> Option<Transition> {
        let before = change.previous.as_ref().is_some_and(|previous| self.matches(previous));
        let after = change.kind != ChangeKind::Deleted && self.matches(&change.object);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some(Transition::Added),
            (true, true) => Some(Transition::Modified),
            (true, false) => Some(Transition::Deleted),
        }
    }

    /// What the store can already narrow down to.
    pub(crate) fn interest(&self, call: &Call) -> Interest {
        let equal =
            |field: &str| self.fields.exact(field).filter(|value| !value.is_empty()).map(str::to_owned);
        let namespace = Some(call.path.namespace.clone()).filter(|namespace| !namespace.is_empty());
        Interest { namespace, name: equal("metadata.name"), node: equal("spec.nodeName") }
    }
}
