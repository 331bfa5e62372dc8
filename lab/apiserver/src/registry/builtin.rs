//! The built-in resources, one row each.

use super::{Behaviour, Conversion, Resource, STANDARD, ScalePaths, Subresource};
use crate::hooks::{self, Hooks};
use crate::store::ResourceId;
use crate::user::Review;

/// A row. Most of it can be left out: see the constructors.
#[derive(Clone, Copy)]
struct Row {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    categories: &'static [&'static str],
    namespaced: bool,
    verbs: &'static [&'static str],
    subresources: &'static [Sub],
    /// Group and version of the stored form, if another.
    storage: Option<(&'static str, &'static str)>,
    conversion: Conversion,
    behaviour: Behaviour,
    hooks: Hooks,
    /// Fields for selectors, as kube-apiserver has them; in terms of the storage version.
    selectable: &'static [&'static str],
}

/// [`Subresource`] without owned text, so that the table is a constant.
#[derive(Clone, Copy)]
enum Sub {
    Status,
    /// Scale, with the path of the selector.
    Scale(&'static str),
    Approval,
    Finalize,
    Binding,
    Eviction,
    Token,
    Log,
    Exec,
    Attach,
    PortForward,
}

/// A namespaced, stored resource.
const fn ns(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> Row {
    Row {
        group,
        version,
        kind,
        plural,
        short: &[],
        categories: &[],
        namespaced: true,
        verbs: STANDARD,
        subresources: &[],
        storage: None,
        conversion: Conversion::NONE,
        behaviour: Behaviour::Stored,
        hooks: Hooks::NONE,
        selectable: &[],
    }
}

/// A cluster-scoped, stored resource.
const fn cluster(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
) -> Row {
    Row { namespaced: false, ..ns(group, version, kind, plural) }
}

impl Row {
    const fn short(self, short: &'static [&'static str]) -> Self {
        Self { short, ..self }
    }

    const fn all(self) -> Self {
        Self { categories: &["all"], ..self }
    }

    const fn sub(self, subresources: &'static [Sub]) -> Self {
        Self { subresources, ..self }
    }

    const fn hooks(self, hooks: Hooks) -> Self {
        Self { hooks, ..self }
    }

    const fn select(self, selectable: &'static [&'static str]) -> Self {
        Self { selectable, ..self }
    }

    const fn stored_as(self, group: &'static str, version: &'static str, conversion: Conversion) -> Self {
        Self { storage: Some((group, version)), conversion, ..self }
    }

    const fn asks(self, review: Review) -> Self {
        Self { verbs: &["create"], behaviour: Behaviour::Review(review), ..self }
    }
}

const STATUS: &[Sub] = &[Sub::Status];
const WORKLOAD: &[Sub] = &[Sub::Status, Sub::Scale("spec.selector")];
const ADMISSION: &str = "admissionregistration.k8s.io";
const AUTHN: &str = "authentication.k8s.io";
const AUTHZ: &str = "authorization.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const DRA: &str = "resource.k8s.io";

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];
const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const TABLE: &[Row] = &[
    Row { verbs: &["create"], behaviour: Behaviour::Binding, ..ns("", "v1", "Binding", "bindings") },
    ns("", "v1", "ConfigMap", "configmaps").short(&["cm"]).hooks(hooks::CONFIG_MAP),
    ns("", "v1", "Endpoints", "endpoints").short(&["ep"]),
    ns("", "v1", "Event", "events").short(&["ev"]).hooks(hooks::EVENT).select(EVENT_FIELDS),
    ns("", "v1", "LimitRange", "limitranges").short(&["limits"]).hooks(hooks::LIMIT_RANGE),
    cluster("", "v1", "Namespace", "namespaces")
        .short(&["ns"])
        .sub(&[Sub::Status, Sub::Finalize])
        .hooks(hooks::NAMESPACE)
        .select(&["status.phase"]),
    cluster("", "v1", "Node", "nodes")
        .short(&["no"])
        .sub(STATUS)
        .hooks(hooks::NODE)
        .select(&["spec.unschedulable"]),
    ns("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims")
        .short(&["pvc"])
        .sub(STATUS)
        .hooks(hooks::PERSISTENT_VOLUME_CLAIM),
    cluster("", "v1", "PersistentVolume", "persistentvolumes")
        .short(&["pv"])
        .sub(STATUS)
        .hooks(hooks::PERSISTENT_VOLUME),
    ns("", "v1", "Pod", "pods")
        .short(&["po"])
        .all()
        .sub(&[Sub::Status, Sub::Binding, Sub::Eviction, Sub::Log, Sub::Exec, Sub::Attach, Sub::PortForward])
        .hooks(hooks::POD)
        .select(POD_FIELDS),
    ns("", "v1", "PodTemplate", "podtemplates").hooks(hooks::POD_TEMPLATE),
    ns("", "v1", "ReplicationController", "replicationcontrollers")
        .short(&["rc"])
        .all()
        .sub(WORKLOAD)
        .hooks(hooks::REPLICATION_CONTROLLER)
        .select(&["status.replicas"]),
    ns("", "v1", "ResourceQuota", "resourcequotas")
        .short(&["quota"])
        .sub(STATUS)
        .hooks(hooks::RESOURCE_QUOTA),
    ns("", "v1", "Secret", "secrets").hooks(hooks::SECRET).select(&["type"]),
    ns("", "v1", "ServiceAccount", "serviceaccounts").short(&["sa"]).sub(&[Sub::Token]),
    ns("", "v1", "Service", "services")
        .short(&["svc"])
        .all()
        .sub(STATUS)
        .hooks(hooks::SERVICE)
        .select(&["spec.clusterIP", "spec.type"]),
    cluster(ADMISSION, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations")
        .hooks(hooks::WEBHOOKS),
    cluster(ADMISSION, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations")
        .hooks(hooks::WEBHOOKS),
    cluster("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions")
        .short(&["crd", "crds"])
        .sub(STATUS)
        .hooks(crate::crd::DEFINITION),
    cluster("apiregistration.k8s.io", "v1", "APIService", "apiservices").sub(STATUS),
    ns("apps", "v1", "ControllerRevision", "controllerrevisions"),
    ns("apps", "v1", "DaemonSet", "daemonsets").short(&["ds"]).all().sub(STATUS).hooks(hooks::DAEMON_SET),
    ns("apps", "v1", "Deployment", "deployments")
        .short(&["deploy"])
        .all()
        .sub(WORKLOAD)
        .hooks(hooks::DEPLOYMENT),
    ns("apps", "v1", "ReplicaSet", "replicasets")
        .short(&["rs"])
        .all()
        .sub(WORKLOAD)
        .hooks(hooks::REPLICA_SET)
        .select(&["status.replicas"]),
    ns("apps", "v1", "StatefulSet", "statefulsets")
        .short(&["sts"])
        .all()
        .sub(WORKLOAD)
        .hooks(hooks::STATEFUL_SET),
    cluster(AUTHN, "v1", "SelfSubjectReview", "selfsubjectreviews").asks(Review::SelfSubject),
    cluster(AUTHN, "v1", "TokenReview", "tokenreviews").asks(Review::Token),
    ns(AUTHZ, "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews").asks(Review::LocalSubjectAccess),
    cluster(AUTHZ, "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews")
        .asks(Review::SelfSubjectAccess),
    cluster(AUTHZ, "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews").asks(Review::SelfSubjectRules),
    cluster(AUTHZ, "v1", "SubjectAccessReview", "subjectaccessreviews").asks(Review::SubjectAccess),
    ns("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .short(&["hpa"])
        .all()
        .sub(STATUS)
        .hooks(hooks::HORIZONTAL_POD_AUTOSCALER),
    ns("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .short(&["hpa"])
        .all()
        .sub(STATUS)
        .stored_as("autoscaling", "v2", hooks::HPA_V1)
        .hooks(hooks::HORIZONTAL_POD_AUTOSCALER),
    ns("batch", "v1", "CronJob", "cronjobs").short(&["cj"]).all().sub(STATUS).hooks(hooks::CRON_JOB),
    ns("batch", "v1", "Job", "jobs").all().sub(STATUS).hooks(hooks::JOB).select(&["status.successful"]),
    cluster("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests")
        .short(&["csr"])
        .sub(&[Sub::Status, Sub::Approval])
        .select(&["spec.signerName"]),
    ns("coordination.k8s.io", "v1", "Lease", "leases"),
    ns("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"),
    ns("events.k8s.io", "v1", "Event", "events")
        .short(&["ev"])
        .stored_as("", "v1", hooks::EVENTS_V1)
        .hooks(hooks::EVENT)
        .select(EVENT_FIELDS),
    cluster(NETWORKING, "v1", "IngressClass", "ingressclasses"),
    ns(NETWORKING, "v1", "Ingress", "ingresses").short(&["ing"]).sub(STATUS).hooks(hooks::INGRESS),
    ns(NETWORKING, "v1", "NetworkPolicy", "networkpolicies").short(&["netpol"]).hooks(hooks::NETWORK_POLICY),
    cluster("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses"),
    ns("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
        .short(&["pdb"])
        .sub(STATUS)
        .hooks(hooks::POD_DISRUPTION_BUDGET),
    cluster(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings").hooks(hooks::ROLE_BINDING),
    cluster(RBAC, "v1", "ClusterRole", "clusterroles").hooks(hooks::ROLE),
    ns(RBAC, "v1", "RoleBinding", "rolebindings").hooks(hooks::ROLE_BINDING),
    ns(RBAC, "v1", "Role", "roles").hooks(hooks::ROLE),
    cluster(DRA, "v1", "DeviceClass", "deviceclasses"),
    ns(DRA, "v1", "ResourceClaim", "resourceclaims").sub(STATUS),
    ns(DRA, "v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
    cluster(DRA, "v1", "ResourceSlice", "resourceslices"),
    cluster("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
        .short(&["pc"])
        .hooks(hooks::PRIORITY_CLASS),
    cluster(STORAGE, "v1", "CSIDriver", "csidrivers"),
    cluster(STORAGE, "v1", "CSINode", "csinodes"),
    ns(STORAGE, "v1", "CSIStorageCapacity", "csistoragecapacities"),
    cluster(STORAGE, "v1", "StorageClass", "storageclasses").short(&["sc"]).hooks(hooks::STORAGE_CLASS),
    cluster(STORAGE, "v1", "VolumeAttachment", "volumeattachments").sub(STATUS),
];

/// The built-in resources in every version that is served.
pub(crate) fn builtin() -> Vec<Resource> {
    TABLE.iter().map(Row::resource).collect()
}

impl Row {
    fn resource(&self) -> Resource {
        let (storage_group, storage_version) = self.storage.unwrap_or((self.group, self.version));
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Resource {
            id: ResourceId::from(crate::status::qualified(self.plural, storage_group)),
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            kind: self.kind.to_owned(),
            list_kind: format!("{}List", self.kind),
            plural: self.plural.to_owned(),
            singular: self.kind.to_lowercase(),
            short_names: owned(self.short),
            categories: owned(self.categories),
            namespaced: self.namespaced,
            verbs: self.verbs,
            subresources: self.subresources.iter().map(|sub| sub.subresource()).collect(),
            storage_api_version: if storage_group.is_empty() {
                storage_version.to_owned()
            } else {
                format!("{storage_group}/{storage_version}")
            },
            conversion: self.conversion,
            behaviour: self.behaviour,
            hooks: self.hooks,
            selectable: owned(self.selectable),
            custom: None,
        }
    }
}

impl Sub {
    fn subresource(self) -> Subresource {
        match self {
            Self::Status => Subresource::Status,
            Self::Scale(selector) => Subresource::Scale(ScalePaths {
                spec_replicas: "spec.replicas".to_owned(),
                status_replicas: "status.replicas".to_owned(),
                selector: Some(selector.to_owned()),
            }),
            Self::Approval => Subresource::Approval,
            Self::Finalize => Subresource::Finalize,
            Self::Binding => Subresource::Binding,
            Self::Eviction => Subresource::Eviction,
            Self::Token => Subresource::Token,
            Self::Log => Subresource::Log,
            Self::Exec => Subresource::Exec,
            Self::Attach => Subresource::Attach,
            Self::PortForward => Subresource::PortForward,
        }
    }
}
