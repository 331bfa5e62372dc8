//! The statuses that every resource gives, with its own names in them.

use gantry_apimachinery::{FieldError, ResourceName, Status};

use crate::registry::Resource;

impl Resource {
    pub(crate) fn named<'a>(&'a self, name: &'a str) -> ResourceName<'a> {
        ResourceName { group: &self.group, resource: &self.plural, name }
    }

    pub(crate) fn not_found(&self, name: &str) -> Status {
        Status::not_found(self.named(name))
    }

    pub(crate) fn forbidden(&self, name: &str, why: &str) -> Status {
        Status::forbidden(self.named(name), why)
    }

    pub(crate) fn already_exists(&self, name: &str) -> Status {
        Status::already_exists(self.named(name))
    }

    pub(crate) fn conflict(&self, name: &str, why: &str) -> Status {
        Status::conflict(self.named(name), why)
    }

    pub(crate) fn stale(&self, name: &str) -> Status {
        Status::stale(self.named(name))
    }

    pub(crate) fn invalid(&self, name: &str, errors: &[FieldError]) -> Status {
        Status::invalid(ResourceName { resource: &self.kind, ..self.named(name) }, errors)
    }
}

/// `deployments.apps`, or `pods` in the core group.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}
