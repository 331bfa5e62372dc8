//! What `kubectl get` shows of the built-in kinds: a table of columns, each a path or a small function.
//!
//! A row of [`PRINTERS`] is one kind; adding a column is one line there. Kinds without a row, and custom
//! resources without columns of their own, show NAME and AGE. Columns and texts are those of kube-apiserver
//! 1.34 (`pkg/printers/internalversion`), which people read and scripts cut.

mod cells;
mod cluster;
mod pod;
mod workload;

use gantry_units::human_duration;
use jiff::Timestamp;
use serde_json::{Value, json};

use self::cells::{field, text};

/// One column of one kind.
#[derive(Debug, Clone, Copy)]
struct Column {
    name: &'static str,
    /// The type as OpenAPI names it: `string`, `integer`, `boolean` or `date`.
    kind: &'static str,
    /// Shown only with `-o wide`.
    wide: bool,
    cell: Cell,
}

/// Where a cell's value comes from. Paths are dotted field names.
#[derive(Debug, Clone, Copy)]
enum Cell {
    Name,
    Age,
    /// `metadata.creationTimestamp` as it is written.
    Created,
    /// A text, or what stands for an absent one.
    Text(&'static str, &'static str),
    /// A whole number; 0 if absent.
    Number(&'static str),
    /// True or false; false if absent.
    Flag(&'static str),
    /// How many elements a list or an object has.
    Count(&'static str),
    /// The time since a time stamp; `<none>` if there is none.
    Since(&'static str),
    /// Labels, or a label selector in the form of a map: `a=b,c=d`.
    Labels(&'static str),
    /// A label selector with expressions.
    Selector(&'static str),
    /// The names of the containers in a pod template.
    Containers(&'static str),
    /// Their images.
    Images(&'static str),
    /// `ready/wanted` of two numbers.
    Ratio(&'static str, &'static str),
    Compute(fn(&Value, Timestamp) -> Value),
}

const fn column(name: &'static str, kind: &'static str, cell: Cell) -> Column {
    Column { name, kind, wide: false, cell }
}

const fn text_column(name: &'static str, path: &'static str, absent: &'static str) -> Column {
    column(name, "string", Cell::Text(path, absent))
}

const fn number(name: &'static str, path: &'static str) -> Column {
    column(name, "integer", Cell::Number(path))
}

const fn flag(name: &'static str, path: &'static str) -> Column {
    column(name, "boolean", Cell::Flag(path))
}

const fn compute(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    column(name, "string", Cell::Compute(cell))
}

const fn wide(column: Column) -> Column {
    Column { wide: true, ..column }
}

const NAME: Column = column("Name", "string", Cell::Name);
const AGE: Column = column("Age", "string", Cell::Age);
const CREATED_AT: Column = column("Created At", "date", Cell::Created);
const CONTAINERS: Column = wide(column("Containers", "string", Cell::Containers("spec.template.spec")));
const IMAGES: Column = wide(column("Images", "string", Cell::Images("spec.template.spec")));
const SELECTOR: Column = wide(column("Selector", "string", Cell::Selector("spec.selector")));

struct Printer {
    group: &'static str,
    kind: &'static str,
    columns: &'static [Column],
}

const fn printer(group: &'static str, kind: &'static str, columns: &'static [Column]) -> Printer {
    Printer { group, kind, columns }
}

/// Kinds that are not listed.
const GENERIC: &[Column] = &[NAME, AGE];

const RBAC: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const NETWORKING: &str = "networking.k8s.io";
const ADMISSION: &str = "admissionregistration.k8s.io";

const EVENT: &[Column] = &[
    compute("Last Seen", cluster::event_last_seen),
    text_column("Type", "type", ""),
    text_column("Reason", "reason", ""),
    compute("Object", cluster::event_object),
    wide(text_column("Subobject", "involvedObject.fieldPath", "")),
    wide(compute("Source", cluster::event_source)),
    compute("Message", cluster::event_message),
    wide(compute("First Seen", cluster::event_first_seen)),
    wide(compute("Count", cluster::event_count)),
    wide(NAME),
];

const ROLE_BINDING: &[Column] = &[
    NAME,
    compute("Role", cluster::binding_role),
    AGE,
    wide(compute("Users", |object, _| cluster::binding_subjects(object, "User"))),
    wide(compute("Groups", |object, _| cluster::binding_subjects(object, "Group"))),
    wide(compute("ServiceAccounts", |object, _| cluster::binding_subjects(object, "ServiceAccount"))),
];

const REPLICAS: &[Column] = &[
    NAME,
    number("Desired", "spec.replicas"),
    number("Current", "status.replicas"),
    number("Ready", "status.readyReplicas"),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

const WEBHOOKS: &[Column] = &[NAME, column("Webhooks", "integer", Cell::Count("webhooks")), AGE];

const PRINTERS: &[Printer] = &[
    printer("", "ConfigMap", &[NAME, compute("Data", cluster::config_map_data), AGE]),
    printer("", "Endpoints", &[NAME, compute("Endpoints", cluster::endpoints), AGE]),
    printer("", "Event", EVENT),
    printer("", "LimitRange", &[NAME, CREATED_AT]),
    printer("", "Namespace", &[NAME, text_column("Status", "status.phase", ""), AGE]),
    printer(
        "",
        "Node",
        &[
            NAME,
            compute("Status", cluster::node_status),
            compute("Roles", cluster::node_roles),
            AGE,
            text_column("Version", "status.nodeInfo.kubeletVersion", ""),
            wide(compute("Internal-IP", |node, _| cluster::node_address(node, "InternalIP"))),
            wide(compute("External-IP", |node, _| cluster::node_address(node, "ExternalIP"))),
            wide(text_column("OS-Image", "status.nodeInfo.osImage", "<unknown>")),
            wide(text_column("Kernel-Version", "status.nodeInfo.kernelVersion", "<unknown>")),
            wide(text_column("Container-Runtime", "status.nodeInfo.containerRuntimeVersion", "<unknown>")),
        ],
    ),
    printer(
        "",
        "PersistentVolume",
        &[
            NAME,
            text_column("Capacity", "spec.capacity.storage", "0"),
            compute("Access Modes", |volume, _| cluster::access_modes(volume, "spec.accessModes")),
            text_column("Reclaim Policy", "spec.persistentVolumeReclaimPolicy", ""),
            compute("Status", |volume, _| cluster::terminating_or(volume, "status.phase")),
            compute("Claim", cluster::volume_claim),
            text_column("StorageClass", "spec.storageClassName", ""),
            text_column("VolumeAttributesClass", "spec.volumeAttributesClassName", "<unset>"),
            text_column("Reason", "status.reason", ""),
            AGE,
            wide(text_column("VolumeMode", "spec.volumeMode", "<unset>")),
        ],
    ),
    printer(
        "",
        "PersistentVolumeClaim",
        &[
            NAME,
            compute("Status", |claim, _| cluster::terminating_or(claim, "status.phase")),
            text_column("Volume", "spec.volumeName", ""),
            text_column("Capacity", "status.capacity.storage", ""),
            compute("Access Modes", |claim, _| cluster::access_modes(claim, "status.accessModes")),
            text_column("StorageClass", "spec.storageClassName", ""),
            text_column("VolumeAttributesClass", "spec.volumeAttributesClassName", "<unset>"),
            AGE,
            wide(text_column("VolumeMode", "spec.volumeMode", "<unset>")),
        ],
    ),
    printer(
        "",
        "Pod",
        &[
            NAME,
            compute("Ready", pod::ready),
            compute("Status", pod::status),
            compute("Restarts", pod::restarts),
            AGE,
            wide(compute("IP", pod::ip)),
            wide(text_column("Node", "spec.nodeName", "<none>")),
            wide(text_column("Nominated Node", "status.nominatedNodeName", "<none>")),
            wide(compute("Readiness Gates", pod::readiness_gates)),
        ],
    ),
    printer(
        "",
        "PodTemplate",
        &[
            NAME,
            column("Containers", "string", Cell::Containers("template.spec")),
            column("Images", "string", Cell::Images("template.spec")),
            column("Pod Labels", "string", Cell::Labels("template.metadata.labels")),
        ],
    ),
    printer(
        "",
        "ReplicationController",
        &[
            NAME,
            number("Desired", "spec.replicas"),
            number("Current", "status.replicas"),
            number("Ready", "status.readyReplicas"),
            AGE,
            CONTAINERS,
            IMAGES,
            wide(column("Selector", "string", Cell::Labels("spec.selector"))),
        ],
    ),
    printer(
        "",
        "ResourceQuota",
        &[
            NAME,
            compute("Request", |quota, _| cluster::quota(quota, false)),
            compute("Limit", |quota, _| cluster::quota(quota, true)),
            AGE,
        ],
    ),
    printer(
        "",
        "Secret",
        &[NAME, text_column("Type", "type", "Opaque"), column("Data", "integer", Cell::Count("data")), AGE],
    ),
    printer("", "ServiceAccount", &[NAME, column("Secrets", "integer", Cell::Count("secrets")), AGE]),
    printer(
        "",
        "Service",
        &[
            NAME,
            text_column("Type", "spec.type", ""),
            text_column("Cluster-IP", "spec.clusterIP", "<none>"),
            compute("External-IP", cluster::service_external_ip),
            compute("Port(s)", cluster::service_ports),
            AGE,
            wide(column("Selector", "string", Cell::Labels("spec.selector"))),
        ],
    ),
    printer(ADMISSION, "MutatingWebhookConfiguration", WEBHOOKS),
    printer(ADMISSION, "ValidatingWebhookConfiguration", WEBHOOKS),
    printer("apiextensions.k8s.io", "CustomResourceDefinition", &[NAME, CREATED_AT]),
    printer(
        "apiregistration.k8s.io",
        "APIService",
        &[
            NAME,
            compute("Service", cluster::api_service_target),
            compute("Available", cluster::api_service_available),
            AGE,
        ],
    ),
    printer(
        "apps",
        "ControllerRevision",
        &[NAME, compute("Controller", workload::controller), number("Revision", "revision"), AGE],
    ),
    printer(
        "apps",
        "DaemonSet",
        &[
            NAME,
            number("Desired", "status.desiredNumberScheduled"),
            number("Current", "status.currentNumberScheduled"),
            number("Ready", "status.numberReady"),
            number("Up-to-date", "status.updatedNumberScheduled"),
            number("Available", "status.numberAvailable"),
            column("Node Selector", "string", Cell::Labels("spec.template.spec.nodeSelector")),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    printer(
        "apps",
        "Deployment",
        &[
            NAME,
            column("Ready", "string", Cell::Ratio("status.readyReplicas", "spec.replicas")),
            number("Up-to-date", "status.updatedReplicas"),
            number("Available", "status.availableReplicas"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    printer("apps", "ReplicaSet", REPLICAS),
    printer(
        "apps",
        "StatefulSet",
        &[
            NAME,
            column("Ready", "string", Cell::Ratio("status.readyReplicas", "spec.replicas")),
            AGE,
            CONTAINERS,
            IMAGES,
        ],
    ),
    printer(
        "autoscaling",
        "HorizontalPodAutoscaler",
        &[
            NAME,
            compute("Reference", workload::autoscaler_reference),
            compute("Targets", workload::autoscaler_targets),
            text_column("MinPods", "spec.minReplicas", "<unset>"),
            number("MaxPods", "spec.maxReplicas"),
            number("Replicas", "status.currentReplicas"),
            AGE,
        ],
    ),
    printer(
        "batch",
        "CronJob",
        &[
            NAME,
            text_column("Schedule", "spec.schedule", ""),
            text_column("Timezone", "spec.timeZone", "<none>"),
            compute("Suspend", workload::cron_job_suspended),
            column("Active", "integer", Cell::Count("status.active")),
            column("Last Schedule", "string", Cell::Since("status.lastScheduleTime")),
            AGE,
            wide(column("Containers", "string", Cell::Containers("spec.jobTemplate.spec.template.spec"))),
            wide(column("Images", "string", Cell::Images("spec.jobTemplate.spec.template.spec"))),
            wide(column("Selector", "string", Cell::Selector("spec.jobTemplate.spec.selector"))),
        ],
    ),
    printer(
        "batch",
        "Job",
        &[
            NAME,
            compute("Status", workload::job_status),
            compute("Completions", workload::job_completions),
            compute("Duration", workload::job_duration),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
    ),
    printer(
        "certificates.k8s.io",
        "CertificateSigningRequest",
        &[
            NAME,
            AGE,
            text_column("SignerName", "spec.signerName", "<none>"),
            text_column("Requestor", "spec.username", ""),
            compute("RequestedDuration", cluster::signing_duration),
            compute("Condition", cluster::signing_condition),
        ],
    ),
    printer("coordination.k8s.io", "Lease", &[NAME, text_column("Holder", "spec.holderIdentity", ""), AGE]),
    printer(
        "discovery.k8s.io",
        "EndpointSlice",
        &[
            NAME,
            text_column("AddressType", "addressType", ""),
            compute("Ports", cluster::slice_ports),
            compute("Endpoints", cluster::slice_endpoints),
            AGE,
        ],
    ),
    printer("events.k8s.io", "Event", EVENT),
    printer(
        NETWORKING,
        "Ingress",
        &[
            NAME,
            text_column("Class", "spec.ingressClassName", "<none>"),
            compute("Hosts", cluster::ingress_hosts),
            compute("Address", cluster::load_balancer_addresses),
            compute("Ports", cluster::ingress_ports),
            AGE,
        ],
    ),
    printer(
        NETWORKING,
        "IngressClass",
        &[
            NAME,
            text_column("Controller", "spec.controller", ""),
            compute("Parameters", cluster::ingress_parameters),
            AGE,
        ],
    ),
    printer(
        NETWORKING,
        "NetworkPolicy",
        &[NAME, column("Pod-Selector", "string", Cell::Selector("spec.podSelector")), AGE],
    ),
    printer("node.k8s.io", "RuntimeClass", &[NAME, text_column("Handler", "handler", ""), AGE]),
    printer(
        "policy",
        "PodDisruptionBudget",
        &[
            NAME,
            text_column("Min Available", "spec.minAvailable", "N/A"),
            text_column("Max Unavailable", "spec.maxUnavailable", "N/A"),
            number("Allowed Disruptions", "status.disruptionsAllowed"),
            AGE,
        ],
    ),
    printer(RBAC, "ClusterRole", &[NAME, CREATED_AT]),
    printer(RBAC, "ClusterRoleBinding", ROLE_BINDING),
    printer(RBAC, "Role", &[NAME, CREATED_AT]),
    printer(RBAC, "RoleBinding", ROLE_BINDING),
    printer("resource.k8s.io", "ResourceClaim", &[NAME, compute("State", cluster::claim_state), AGE]),
    printer(
        "resource.k8s.io",
        "ResourceSlice",
        &[
            NAME,
            text_column("Node", "spec.nodeName", "<unset>"),
            text_column("Driver", "spec.driver", ""),
            text_column("Pool", "spec.pool.name", ""),
            AGE,
        ],
    ),
    printer(
        "scheduling.k8s.io",
        "PriorityClass",
        &[
            NAME,
            number("Value", "value"),
            flag("Global-Default", "globalDefault"),
            AGE,
            text_column("PreemptionPolicy", "preemptionPolicy", "PreemptLowerPriority"),
        ],
    ),
    printer(
        STORAGE,
        "CSIDriver",
        &[
            NAME,
            flag("AttachRequired", "spec.attachRequired"),
            flag("PodInfoOnMount", "spec.podInfoOnMount"),
            flag("StorageCapacity", "spec.storageCapacity"),
            compute("TokenRequests", cluster::driver_audiences),
            flag("RequiresRepublish", "spec.requiresRepublish"),
            compute("Modes", cluster::driver_modes),
            AGE,
        ],
    ),
    printer(STORAGE, "CSINode", &[NAME, column("Drivers", "integer", Cell::Count("spec.drivers")), AGE]),
    printer(
        STORAGE,
        "StorageClass",
        &[
            compute("Name", cluster::storage_class_name),
            text_column("Provisioner", "provisioner", ""),
            text_column("ReclaimPolicy", "reclaimPolicy", "Delete"),
            text_column("VolumeBindingMode", "volumeBindingMode", "Immediate"),
            flag("AllowVolumeExpansion", "allowVolumeExpansion"),
            AGE,
        ],
    ),
    printer(
        STORAGE,
        "VolumeAttachment",
        &[
            NAME,
            text_column("Attacher", "spec.attacher", ""),
            text_column("PV", "spec.source.persistentVolumeName", ""),
            text_column("Node", "spec.nodeName", ""),
            flag("Attached", "status.attached"),
            AGE,
        ],
    ),
];

fn find(group: &str, kind: &str) -> &'static [Column] {
    PRINTERS
        .iter()
        .find(|printer| printer.group == group && printer.kind == kind)
        .map_or(GENERIC, |printer| printer.columns)
}

/// The `columnDefinitions` of a Table of this kind.
pub(crate) fn columns(group: &str, kind: &str) -> Vec<Value> {
    find(group, kind)
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.kind,
                "format": if column.name == "Name" { "name" } else { "" },
                "description": "",
                "priority": i32::from(column.wide),
            })
        })
        .collect()
}

/// The cells of one object, in the order of [`columns`]. An object of any shape has a row.
pub(crate) fn row(group: &str, kind: &str, object: &Value, now: Timestamp) -> Vec<Value> {
    find(group, kind).iter().map(|column| cell(column.cell, object, now)).collect()
}

fn cell(cell: Cell, object: &Value, now: Timestamp) -> Value {
    match cell {
        Cell::Name => text(field(object, "metadata.name")).into(),
        Cell::Age => cells::age(field(object, "metadata.creationTimestamp"), now).into(),
        Cell::Created => text(field(object, "metadata.creationTimestamp")).into(),
        Cell::Text(path, absent) => cells::text_or(field(object, path), absent).into(),
        Cell::Number(path) => cells::number(field(object, path)).into(),
        Cell::Flag(path) => field(object, path).as_bool().unwrap_or(false).into(),
        Cell::Count(path) => cells::length(field(object, path)).into(),
        Cell::Since(path) => match cells::seconds_since(field(object, path), now) {
            Some(seconds) => human_duration(seconds).into(),
            None => "<none>".into(),
        },
        Cell::Labels(path) => cells::labels(field(object, path)).into(),
        Cell::Selector(path) => cells::selector(field(object, path)).into(),
        Cell::Containers(path) => cells::of_containers(field(object, path), "name").into(),
        Cell::Images(path) => cells::of_containers(field(object, path), "image").into(),
        Cell::Ratio(done, wanted) => {
            format!("{}/{}", cells::number(field(object, done)), cells::number(field(object, wanted))).into()
        }
        Cell::Compute(function) => function(object, now),
    }
}

#[cfg(test)]
mod tests;
