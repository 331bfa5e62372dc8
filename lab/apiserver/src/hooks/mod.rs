//! What a kind does beyond being stored: defaults and rules that need nothing but the object.
//!
//! What needs the rest of the cluster (addresses, priorities, quotas) is in `admission`.

mod cluster;
mod config;
mod convert;
mod events;
mod pods;
mod services;
mod workloads;

use gantry_apimachinery::{FieldError, FieldPath};
use serde_json::Value;

pub(crate) use self::cluster::{
    LIMIT_RANGE, NAMESPACE, NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD_DISRUPTION_BUDGET,
    PRIORITY_CLASS, RESOURCE_QUOTA, ROLE, ROLE_BINDING, STORAGE_CLASS, WEBHOOKS,
};
pub(crate) use self::config::{CONFIG_MAP, SECRET};
pub(crate) use self::convert::HPA_V1;
pub(crate) use self::events::{EVENT, EVENTS_V1};
pub(crate) use self::pods::{POD, POD_TEMPLATE, TOLERATIONS_FOR_LOST_NODES};
pub(crate) use self::services::{INGRESS, NETWORK_POLICY, SERVICE};
pub(crate) use self::workloads::{
    CRON_JOB, DAEMON_SET, DEPLOYMENT, HORIZONTAL_POD_AUTOSCALER, JOB, REPLICA_SET, REPLICATION_CONTROLLER,
    STATEFUL_SET,
};

/// The behaviour of a kind. Every function sees the object in its storage version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hooks {
    /// Fills in what was left out; on every write but those of the status.
    pub(crate) default: fn(&mut Value),
    /// Sets and clears what only the system decides at creation; the object has its UID already.
    pub(crate) prepare: fn(&mut Value),
    /// Carries over from the second what an update to the first may leave out.
    pub(crate) prepare_update: fn(&mut Value, &Value),
    /// Checks one state.
    pub(crate) validate: fn(&Value, &mut Vec<FieldError>),
    /// Checks the step to the first from the second.
    pub(crate) validate_update: fn(&Value, &Value, &mut Vec<FieldError>),
    /// Whether a new object may bring its status along.
    pub(crate) keeps_status: bool,
    /// Which names are allowed.
    pub(crate) names: fn(&str) -> Vec<String>,
}

impl Hooks {
    /// Nothing beyond being stored under a DNS subdomain.
    pub(crate) const NONE: Self = Self {
        default: |_| {},
        prepare: |_| {},
        prepare_update: |_, _| {},
        validate: |_, _| {},
        validate_update: |_, _, _| {},
        keeps_status: false,
        names: gantry_apimachinery::validate_dns1123_subdomain,
    };
}

/// Anything that can be one segment of a path: the names of RBAC objects.
fn path_segment(name: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if name == "." || name == ".." {
        faults.push(format!("may not be '{name}'"));
    }
    for forbidden in ['/', '%'] {
        if name.contains(forbidden) {
            faults.push(format!("may not contain '{forbidden}'"));
        }
    }
    faults
}

/// `field is immutable`, unless both are the same.
fn immutable(new: &Value, old: &Value, path: &str, errors: &mut Vec<FieldError>) {
    if new != old {
        errors.push(FieldError::invalid(&FieldPath::new(path), new.clone(), "field is immutable"));
    }
}

/// Checks that a number, if given, is at least `least`.
fn at_least(value: &Value, least: i64, path: &FieldPath, errors: &mut Vec<FieldError>) {
    if let Some(number) = value.as_i64()
        && number < least
    {
        let rule = format!("must be greater than or equal to {least}");
        errors.push(FieldError::invalid(path, number, rule));
    }
}
