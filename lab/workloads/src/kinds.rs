//! The kinds that the controllers read and write: one row each.

/// A kind that the controllers know. The order is the order in which their first lists are worked off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Node,
    ConfigMap,
    Secret,
    PersistentVolumeClaim,
    ResourceQuota,
    ControllerRevision,
    Service,
    Endpoints,
    EndpointSlice,
    Pod,
    ReplicaSet,
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    PodDisruptionBudget,
    HorizontalPodAutoscaler,
}

struct Row {
    kind: Kind,
    api_version: &'static str,
    name: &'static str,
    plural: &'static str,
}

const fn row(kind: Kind, api_version: &'static str, name: &'static str, plural: &'static str) -> Row {
    Row { kind, api_version, name, plural }
}

/// Rows in the order of the variants, which `Kind::row` relies on and a test checks.
const ROWS: [Row; 18] = [
    row(Kind::Node, "v1", "Node", "nodes"),
    row(Kind::ConfigMap, "v1", "ConfigMap", "configmaps"),
    row(Kind::Secret, "v1", "Secret", "secrets"),
    row(Kind::PersistentVolumeClaim, "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    row(Kind::ResourceQuota, "v1", "ResourceQuota", "resourcequotas"),
    row(Kind::ControllerRevision, "apps/v1", "ControllerRevision", "controllerrevisions"),
    row(Kind::Service, "v1", "Service", "services"),
    row(Kind::Endpoints, "v1", "Endpoints", "endpoints"),
    row(Kind::EndpointSlice, "discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
    row(Kind::Pod, "v1", "Pod", "pods"),
    row(Kind::ReplicaSet, "apps/v1", "ReplicaSet", "replicasets"),
    row(Kind::Deployment, "apps/v1", "Deployment", "deployments"),
    row(Kind::StatefulSet, "apps/v1", "StatefulSet", "statefulsets"),
    row(Kind::DaemonSet, "apps/v1", "DaemonSet", "daemonsets"),
    row(Kind::Job, "batch/v1", "Job", "jobs"),
    row(Kind::CronJob, "batch/v1", "CronJob", "cronjobs"),
    row(Kind::PodDisruptionBudget, "policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    row(
        Kind::HorizontalPodAutoscaler,
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    ),
];

impl Kind {
    /// Every kind, in order.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.kind)
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Group and version, as in `apps/v1`.
    pub(crate) fn api_version(self) -> &'static str {
        self.row().api_version
    }

    /// The group, empty for the core group.
    pub(crate) fn group(self) -> &'static str {
        self.api_version().split_once('/').map_or("", |(group, _)| group)
    }

    /// The kind's name, as in `ReplicaSet`.
    pub(crate) fn name(self) -> &'static str {
        self.row().name
    }

    /// The resource's name, as in `replicasets`.
    pub(crate) fn plural(self) -> &'static str {
        self.row().plural
    }

    /// The kind of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        ROWS.iter().find(|row| row.name == name).map(|row| row.kind)
    }

    /// Path of the collection; of all namespaces if `namespace` is empty.
    pub(crate) fn path(self, namespace: &str) -> String {
        let api_version = self.api_version();
        let root = if api_version.contains('/') { "/apis" } else { "/api" };
        if namespace.is_empty() {
            format!("{root}/{api_version}/{}", self.plural())
        } else {
            format!("{root}/{api_version}/namespaces/{namespace}/{}", self.plural())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_finds_its_own_row() {
        for (position, kind) in Kind::all().enumerate() {
            assert_eq!(kind as usize, position);
            assert_eq!(Kind::named(kind.name()), Some(kind));
        }
        assert_eq!(Kind::Pod.path("ml"), "/api/v1/namespaces/ml/pods");
        assert_eq!(Kind::Deployment.path(""), "/apis/apps/v1/deployments");
    }
}
