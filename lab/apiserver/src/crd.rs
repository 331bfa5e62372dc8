//! Custom resources: definitions that become rows of the registry.

use serde_json::Value;

/// What a version of a custom resource adds to a plain row.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    schema: Value,
}

impl CustomVersion {
    pub(crate) fn prune(&self, _object: &mut Value) -> Vec<String> {
        Vec::new()
    }

    pub(crate) fn openapi(&self) -> Value {
        self.schema.clone()
    }
}

/// The behaviour of definitions themselves.
pub(crate) const DEFINITION: crate::hooks::Hooks = crate::hooks::Hooks::NONE;
