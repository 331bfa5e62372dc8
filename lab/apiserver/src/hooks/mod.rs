//! What a kind does beyond being stored: defaults, rules, and what needs a look at the rest of the cluster.

use serde_json::{Value, json};

use crate::registry::Conversion;
use gantry_apimachinery::FieldError;

/// The behaviour of a kind. Every function sees the object in its storage version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hooks {
    /// Fills in what was left out; on every write.
    pub(crate) default: fn(&mut Value),
    /// Sets and clears what only the system decides at creation.
    pub(crate) prepare: fn(&mut Value),
    /// Checks one state.
    pub(crate) validate: fn(&Value, &mut Vec<FieldError>),
    /// Checks the step from the second to the first.
    pub(crate) validate_update: fn(&Value, &Value, &mut Vec<FieldError>),
}

impl Hooks {
    /// Nothing beyond being stored.
    pub(crate) const NONE: Self =
        Self { default: |_| {}, prepare: |_| {}, validate: |_, _| {}, validate_update: |_, _, _| {} };
}

macro_rules! plain { ($($name:ident),*) => { $(pub(crate) const $name: Hooks = Hooks::NONE;)* } }
plain!(
    CONFIG_MAP,
    EVENT,
    LIMIT_RANGE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    PERSISTENT_VOLUME,
    POD,
    POD_TEMPLATE,
    REPLICATION_CONTROLLER,
    RESOURCE_QUOTA,
    SECRET,
    SERVICE,
    WEBHOOKS,
    CUSTOM_RESOURCE_DEFINITION,
    DAEMON_SET,
    DEPLOYMENT,
    REPLICA_SET,
    STATEFUL_SET,
    HORIZONTAL_POD_AUTOSCALER,
    CRON_JOB,
    JOB,
    INGRESS,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    ROLE_BINDING,
    PRIORITY_CLASS,
    STORAGE_CLASS
);
pub(crate) const HPA_V1: Conversion = Conversion::NONE;
pub(crate) const EVENTS_V1: Conversion = Conversion::NONE;

pub(crate) const NAMESPACE: Hooks = Hooks {
    prepare: |namespace| {
        namespace["spec"] = json!({"finalizers": ["kubernetes"]});
        namespace["status"] = json!({"phase": "Active"});
    },
    default: |namespace| {
        let name = namespace["metadata"]["name"].clone();
        namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    },
    ..Hooks::NONE
};
