//! Pods, and the pod specs within workloads.

use std::collections::BTreeSet;

use gantry_apimachinery::{
    FieldError, FieldPath, canonicalize_pod_resources, default_pod_resources, validate_dns1123_label,
    validate_labels, validate_pod_resources,
};
use serde_json::{Map, Value, json};

use super::{Hooks, at_least};
use crate::json::{items, items_mut, map_at, remove, set, set_default, text};

/// What every pod tolerates for a while: its node being lost.
pub(crate) const TOLERATIONS_FOR_LOST_NODES: [&str; 2] =
    ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// The lists of containers within a pod's spec.
const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

pub(crate) const POD: Hooks = Hooks {
    default: default_pod,
    prepare: prepare_pod,
    validate: |pod, errors| validate_pod_spec(&pod["spec"], &FieldPath::new("spec"), errors),
    validate_update: validate_pod_update,
    ..Hooks::NONE
};

pub(crate) const POD_TEMPLATE: Hooks = Hooks {
    default: |object| {
        if let Some(spec) = object.get_mut("template").and_then(|template| template.get_mut("spec")) {
            default_spec(spec);
        }
    },
    ..Hooks::NONE
};

/// Fills in what a pod's spec leaves out, alone or in a template.
pub(super) fn default_spec(spec: &mut Value) {
    for (field, default) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("securityContext", json!({})),
    ] {
        set_default(spec, &[field], default);
    }
    let account = text(&spec["serviceAccountName"]).to_owned();
    let deprecated = text(&spec["serviceAccount"]).to_owned();
    if account.is_empty() && !deprecated.is_empty() {
        set(spec, &["serviceAccountName"], deprecated);
    } else if !account.is_empty() {
        set(spec, &["serviceAccount"], account);
    }
    for list in CONTAINER_LISTS {
        for container in items_mut(spec.get_mut(list)) {
            default_container(container);
        }
    }
    for volume in items_mut(spec.get_mut("volumes")) {
        default_volume(volume);
    }
    canonicalize_pod_resources(spec);
}

fn default_container(container: &mut Value) {
    if !container.is_object() {
        return;
    }
    let policy = if image_moves(text(&container["image"])) { "Always" } else { "IfNotPresent" };
    for (field, default) in [
        ("imagePullPolicy", json!(policy)),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("resources", json!({})),
    ] {
        set_default(container, &[field], default);
    }
    for port in items_mut(container.get_mut("ports")) {
        set_default(port, &["protocol"], "TCP");
    }
    for variable in items_mut(container.get_mut("env")) {
        if variable["valueFrom"]["fieldRef"].is_object() {
            set_default(variable, &["valueFrom", "fieldRef", "apiVersion"], "v1");
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if container[probe].is_object() {
            for (field, default) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                set_default(container, &[probe, field], default);
            }
            if container[probe]["httpGet"].is_object() {
                set_default(container, &[probe, "httpGet", "path"], "/");
                set_default(container, &[probe, "httpGet", "scheme"], "HTTP");
            }
        }
    }
}

/// Whether the image's name may stand for another image tomorrow: no digest, and no tag but `latest`.
fn image_moves(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn default_volume(volume: &mut Value) {
    let Some(map) = volume.as_object() else { return };
    if !map.iter().any(|(key, source)| key != "name" && !source.is_null()) {
        set(volume, &["emptyDir"], json!({}));
        return;
    }
    for source in ["secret", "configMap", "projected", "downwardAPI"] {
        if volume[source].is_object() {
            set_default(volume, &[source, "defaultMode"], 0o644);
        }
    }
    if volume["hostPath"].is_object() {
        set_default(volume, &["hostPath", "type"], "");
    }
    for source in items_mut(volume.get_mut("projected").and_then(|projected| projected.get_mut("sources"))) {
        if source["serviceAccountToken"].is_object() {
            set_default(source, &["serviceAccountToken", "expirationSeconds"], 3600);
        }
    }
}

fn default_pod(pod: &mut Value) {
    default_spec(map_value(pod, "spec"));
    // Of pods alone: in templates limits do not stand for requests.
    default_pod_resources(map_value(pod, "spec"));
    set_default(pod, &["spec", "enableServiceLinks"], true);
    let class = qos_class(&pod["spec"]);
    set_default(pod, &["status", "qosClass"], class);
}

fn map_value<'a>(object: &'a mut Value, field: &str) -> &'a mut Value {
    map_at(object, &[field]);
    object.get_mut(field).expect("invariant: made above")
}

fn prepare_pod(pod: &mut Value) {
    let mut status = json!({"phase": "Pending"});
    if !items(&pod["spec"]["schedulingGates"]).is_empty() {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null, "lastTransitionTime": pod["metadata"]["creationTimestamp"],
        }]);
    }
    set(pod, &["status"], status);
}

/// How much a pod's resources are promised to it; quantities are in canonical form by now.
fn qos_class(spec: &Value) -> &'static str {
    let (mut any, mut all) = (false, true);
    for container in CONTAINER_LISTS.iter().flat_map(|list| items(&spec[*list])) {
        for resource in ["cpu", "memory"] {
            let request = &container["resources"]["requests"][resource];
            let limit = &container["resources"]["limits"][resource];
            let is_set = |quantity: &Value| !matches!(quantity, Value::Null) && text(quantity) != "0";
            any |= is_set(request) || is_set(limit);
            all &= is_set(limit) && (request.is_null() || request == limit);
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// Checks a pod's spec, alone or in a template. Allowed values of single fields are checked with the types.
pub(super) fn validate_pod_spec(spec: &Value, path: &FieldPath, errors: &mut Vec<FieldError>) {
    let volumes = validate_volumes(spec, path, errors);
    if items(&spec["containers"]).is_empty() {
        errors.push(FieldError::required(&path.child("containers"), ""));
    }
    let mut names = BTreeSet::new();
    for list in CONTAINER_LISTS {
        for (i, container) in items(&spec[list]).iter().enumerate() {
            let path = path.child(list).index(i);
            validate_name(&container["name"], &path.child("name"), &mut names, errors);
            validate_container(container, &path, &volumes, errors);
        }
    }
    at_least(&spec["terminationGracePeriodSeconds"], 0, &path.child("terminationGracePeriodSeconds"), errors);
    at_least(&spec["activeDeadlineSeconds"], 1, &path.child("activeDeadlineSeconds"), errors);
    errors.extend(validate_labels(&spec["nodeSelector"], &path.child("nodeSelector")));
    errors.extend(validate_pod_resources(spec, path));
    for (i, toleration) in items(&spec["tolerations"]).iter().enumerate() {
        validate_toleration(toleration, &path.child("tolerations").index(i), errors);
    }
}

fn validate_name<'a>(
    name: &'a Value,
    path: &FieldPath,
    seen: &mut BTreeSet<&'a str>,
    errors: &mut Vec<FieldError>,
) {
    let name = text(name);
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    errors
        .extend(validate_dns1123_label(name).into_iter().map(|fault| FieldError::invalid(path, name, fault)));
    if !seen.insert(name) {
        errors.push(FieldError::duplicate(path, name));
    }
}

fn validate_volumes<'a>(
    spec: &'a Value,
    path: &FieldPath,
    errors: &mut Vec<FieldError>,
) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for (i, volume) in items(&spec["volumes"]).iter().enumerate() {
        let path = path.child("volumes").index(i);
        validate_name(&volume["name"], &path.child("name"), &mut names, errors);
        let sources = volume.as_object().map_or(0, |map| map.values().filter(|v| !v.is_null()).count() - 1);
        if sources > 1 {
            errors.push(FieldError::forbidden(&path, "may not specify more than 1 volume type"));
        }
    }
    names
}

fn validate_container(
    container: &Value,
    path: &FieldPath,
    volumes: &BTreeSet<&str>,
    errors: &mut Vec<FieldError>,
) {
    let image = text(&container["image"]);
    if image.is_empty() {
        errors.push(FieldError::required(&path.child("image"), ""));
    } else if image.trim() != image {
        let rule = "must not have leading or trailing whitespace";
        errors.push(FieldError::invalid(&path.child("image"), image, rule));
    }
    for (i, port) in items(&container["ports"]).iter().enumerate() {
        let path = path.child("ports").index(i);
        if port["containerPort"].is_null() {
            errors.push(FieldError::required(&path.child("containerPort"), ""));
        }
        for field in ["containerPort", "hostPort"] {
            validate_port(&port[field], &path.child(field), errors);
        }
    }
    for (i, variable) in items(&container["env"]).iter().enumerate() {
        let path = path.child("env").index(i);
        if text(&variable["name"]).is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        if !text(&variable["value"]).is_empty() && variable["valueFrom"].is_object() {
            let rule = "may not be specified when `value` is not empty";
            errors.push(FieldError::invalid(&path.child("valueFrom"), "", rule));
        }
    }
    let mut mounts = BTreeSet::new();
    for (i, mount) in items(&container["volumeMounts"]).iter().enumerate() {
        let path = path.child("volumeMounts").index(i);
        let (name, target) = (text(&mount["name"]), text(&mount["mountPath"]));
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else if !volumes.contains(name) {
            errors.push(FieldError::not_found(&path.child("name"), name));
        }
        if target.is_empty() {
            errors.push(FieldError::required(&path.child("mountPath"), ""));
        } else if !mounts.insert(target) {
            errors.push(FieldError::invalid(&path.child("mountPath"), target, "must be unique"));
        }
    }
}

/// Checks a port number, if there is one.
pub(super) fn validate_port(port: &Value, path: &FieldPath, errors: &mut Vec<FieldError>) {
    if let Some(number) = port.as_i64()
        && !(1..=65_535).contains(&number)
    {
        errors.push(FieldError::invalid(path, number, "must be between 1 and 65535, inclusive"));
    }
}

fn validate_toleration(toleration: &Value, path: &FieldPath, errors: &mut Vec<FieldError>) {
    let (key, operator, value) =
        (text(&toleration["key"]), text(&toleration["operator"]), text(&toleration["value"]));
    if key.is_empty() && operator != "Exists" {
        let rule =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.push(FieldError::invalid(&path.child("operator"), operator, rule));
    }
    if operator == "Exists" && !value.is_empty() {
        let rule = "value must be empty when `operator` is 'Exists'";
        errors.push(FieldError::invalid(&path.child("operator"), value, rule));
    }
    if toleration["tolerationSeconds"].is_i64() && text(&toleration["effect"]) != "NoExecute" {
        let rule = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.push(FieldError::invalid(&path.child("effect"), text(&toleration["effect"]), rule));
    }
}

fn validate_pod_update(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let spec = FieldPath::new("spec");
    let gates = |pod: &Value| -> BTreeSet<String> {
        items(&pod["spec"]["schedulingGates"]).iter().map(|gate| text(&gate["name"]).to_owned()).collect()
    };
    if !gates(new).is_subset(&gates(old)) {
        let rule = "only deletion is allowed, but found new scheduling gates";
        errors.push(FieldError::forbidden(&spec.child("schedulingGates"), rule));
    }
    let tolerations = |pod: &Value| items(&pod["spec"]["tolerations"]).to_vec();
    let kept = tolerations(new);
    if !tolerations(old).iter().all(|toleration| kept.contains(toleration)) {
        let rule = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(&spec.child("tolerations"), rule));
    }
    let is_gated = !gates(old).is_empty();
    if frozen(&new["spec"], is_gated) != frozen(&old["spec"], is_gated) {
        errors.push(FieldError::forbidden(
            &spec,
            "pod updates may not change fields other than `spec.containers[*].image`,\
             `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
             existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
             previously negative)",
        ));
    }
}

/// The part of a pod's spec that cannot change.
fn frozen(spec: &Value, is_gated: bool) -> Map<String, Value> {
    let mut spec = spec.clone();
    for list in CONTAINER_LISTS {
        for container in items_mut(spec.get_mut(list)) {
            remove(container, &["image"]);
            remove(container, &["imagePullPolicy"]);
        }
    }
    let mut map = std::mem::take(map_at(&mut spec, &[]));
    for field in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"]
    {
        map.remove(field);
    }
    if is_gated {
        map.remove("nodeSelector");
        map.remove("affinity");
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value) -> Value {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
        default_pod(&mut pod);
        pod
    }

    fn complaints(spec: Value) -> Vec<String> {
        let mut errors = Vec::new();
        validate_pod_spec(&pod(spec)["spec"], &FieldPath::new("spec"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_image_without_a_fixed_tag_is_always_pulled() {
        for (image, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("host:5000/nginx", "Always"),
            ("nginx:1.27", "IfNotPresent"),
            ("nginx@sha256:00", "IfNotPresent"),
        ] {
            let pod = pod(json!({"containers": [{"name": "a", "image": image}]}));
            assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], policy, "{image}");
        }
    }

    #[test]
    fn the_quality_of_service_follows_from_requests_and_limits() {
        let class = |resources: Value| {
            pod(json!({"containers": [{"name": "a", "image": "i", "resources": resources}]}))["status"]["qosClass"]
                .clone()
        };
        assert_eq!(class(json!({})), "BestEffort");
        assert_eq!(class(json!({"limits": {"nvidia.com/gpu": "1"}})), "BestEffort");
        assert_eq!(class(json!({"requests": {"cpu": "0"}, "limits": {"memory": "0"}})), "BestEffort");
        assert_eq!(class(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), "Guaranteed");
        assert_eq!(
            class(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}})),
            "Burstable"
        );
        assert_eq!(class(json!({"requests": {"memory": "1Gi"}})), "Burstable");
    }

    #[test]
    fn faults_are_named_in_kubernetes_words() {
        assert_eq!(complaints(json!({})), ["spec.containers: Required value"]);
        assert_eq!(
            complaints(json!({"containers": [
                {"name": "a"},
                {"name": "a", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}], "ports": [{"containerPort": 70000}]},
            ]})),
            [
                "spec.containers[0].image: Required value",
                "spec.containers[1].name: Duplicate value: \"a\"",
                "spec.containers[1].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                "spec.containers[1].volumeMounts[0].name: Not found: \"v\"",
            ]
        );
    }

    #[test]
    fn a_pods_spec_changes_only_where_it_may() {
        let old = pod(json!({"containers": [{"name": "a", "image": "i:1"}]}));
        let check = |change: fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new["spec"]);
            let mut errors = Vec::new();
            validate_pod_update(&new, &old, &mut errors);
            errors.is_empty()
        };
        assert!(check(|spec| spec["containers"][0]["image"] = "i:2".into()));
        assert!(check(|spec| spec["activeDeadlineSeconds"] = 5.into()));
        assert!(check(|spec| spec["tolerations"] = json!([{"operator": "Exists"}])));
        assert!(!check(|spec| spec["nodeName"] = "n".into()));
        assert!(!check(|spec| spec["containers"][0]["name"] = "b".into()));
        assert!(!check(|spec| spec["schedulingGates"] = json!([{"name": "g"}])));
    }
}
