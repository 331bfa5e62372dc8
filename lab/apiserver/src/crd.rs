//! Custom resources: definitions that become rows of the registry.

/// What a version of a custom resource adds to a plain row.
#[derive(Debug)]
pub(crate) struct CustomVersion {}

/// The behaviour of definitions themselves.
pub(crate) const DEFINITION: crate::hooks::Hooks = crate::hooks::Hooks::NONE;
