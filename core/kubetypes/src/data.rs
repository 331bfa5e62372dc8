//! The checked-in tables.

/// One table for each group-version, sorted by group and version.
pub(crate) const TABLES: &[&str] = &[
    include_str!("../data/admission.v1.types"),
    include_str!("../data/admissionregistration.v1.types"),
    include_str!("../data/apiextensions.v1.types"),
    include_str!("../data/apiregistration.v1.types"),
    include_str!("../data/apps.v1.types"),
    include_str!("../data/authentication.v1.types"),
    include_str!("../data/authorization.v1.types"),
    include_str!("../data/autoscaling.v1.types"),
    include_str!("../data/autoscaling.v2.types"),
    include_str!("../data/batch.v1.types"),
    include_str!("../data/certificates.v1.types"),
    include_str!("../data/coordination.v1.types"),
    include_str!("../data/core.v1.types"),
    include_str!("../data/discovery.v1.types"),
    include_str!("../data/events.v1.types"),
    include_str!("../data/meta.v1.types"),
    include_str!("../data/metrics.v1beta1.types"),
    include_str!("../data/networking.v1.types"),
    include_str!("../data/node.v1.types"),
    include_str!("../data/policy.v1.types"),
    include_str!("../data/rbac.v1.types"),
    include_str!("../data/resource.v1.types"),
    include_str!("../data/scheduling.v1.types"),
    include_str!("../data/storage.v1.types"),
];

/// One line each for `kubectl explain`.
pub(crate) const DESCRIPTIONS: &str = include_str!("../data/descriptions.txt");
