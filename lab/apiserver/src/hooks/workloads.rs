//! Workloads: what makes pods from a template.

use gantry_apimachinery::{FieldError, FieldPath, Selector};
use serde_json::{Map, Value, json};

use super::pods::{default_spec, validate_pod_spec};
use super::{Hooks, at_least, immutable};
use crate::json::{at, items, map_at, set, set_default, text};

const BASE: Hooks = Hooks {
    validate: |object, errors| {
        validate_scaled(object, errors);
        validate_template(object, &["Always"], errors);
    },
    validate_update: |new, old, errors| {
        immutable(&new["spec"]["selector"], &old["spec"]["selector"], "spec.selector", errors);
    },
    ..Hooks::NONE
};

pub(crate) const DEPLOYMENT: Hooks = Hooks {
    default: |object| {
        set_default(object, &["spec", "replicas"], 1);
        set_default(object, &["spec", "revisionHistoryLimit"], 10);
        set_default(object, &["spec", "progressDeadlineSeconds"], 600);
        set_default(object, &["spec", "strategy", "type"], "RollingUpdate");
        if object["spec"]["strategy"]["type"] == "RollingUpdate" {
            set_default(object, &["spec", "strategy", "rollingUpdate", "maxUnavailable"], "25%");
            set_default(object, &["spec", "strategy", "rollingUpdate", "maxSurge"], "25%");
        }
        default_template(object, &["spec", "template"]);
    },
    validate: |object, errors| {
        (BASE.validate)(object, errors);
        let strategy = &object["spec"]["strategy"];
        if strategy["type"] == "Recreate" && strategy["rollingUpdate"].is_object() {
            let path = FieldPath::new("spec.strategy.rollingUpdate");
            let rule = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden(&path, rule));
        }
    },
    ..BASE
};

pub(crate) const REPLICA_SET: Hooks = Hooks {
    default: |object| {
        set_default(object, &["spec", "replicas"], 1);
        default_template(object, &["spec", "template"]);
    },
    ..BASE
};

pub(crate) const REPLICATION_CONTROLLER: Hooks = Hooks {
    default: |object| {
        set_default(object, &["spec", "replicas"], 1);
        let labels = object["spec"]["template"]["metadata"]["labels"].clone();
        if labels.is_object() {
            set_default(object, &["spec", "selector"], labels.clone());
            set_default(object, &["metadata", "labels"], labels);
        }
        default_template(object, &["spec", "template"]);
    },
    validate_update: |_, _, _| {},
    ..BASE
};

pub(crate) const STATEFUL_SET: Hooks = Hooks {
    default: |object| {
        set_default(object, &["spec", "replicas"], 1);
        set_default(object, &["spec", "podManagementPolicy"], "OrderedReady");
        set_default(object, &["spec", "revisionHistoryLimit"], 10);
        set_default(object, &["spec", "updateStrategy", "type"], "RollingUpdate");
        if object["spec"]["updateStrategy"]["type"] == "RollingUpdate" {
            set_default(object, &["spec", "updateStrategy", "rollingUpdate", "partition"], 0);
        }
        for when in ["whenDeleted", "whenScaled"] {
            set_default(object, &["spec", "persistentVolumeClaimRetentionPolicy", when], "Retain");
        }
        default_template(object, &["spec", "template"]);
    },
    validate_update: |new, old, errors| {
        let frozen = |object: &Value| {
            let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
            for field in [
                "replicas",
                "ordinals",
                "template",
                "updateStrategy",
                "revisionHistoryLimit",
                "persistentVolumeClaimRetentionPolicy",
                "minReadySeconds",
            ] {
                spec.remove(field);
            }
            spec
        };
        if frozen(new) != frozen(old) {
            errors.push(FieldError::forbidden(
                &FieldPath::new("spec"),
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                 'minReadySeconds' are forbidden",
            ));
        }
    },
    ..BASE
};

pub(crate) const DAEMON_SET: Hooks = Hooks {
    default: |object| {
        set_default(object, &["spec", "revisionHistoryLimit"], 10);
        set_default(object, &["spec", "updateStrategy", "type"], "RollingUpdate");
        if object["spec"]["updateStrategy"]["type"] == "RollingUpdate" {
            set_default(object, &["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"], 1);
            set_default(object, &["spec", "updateStrategy", "rollingUpdate", "maxSurge"], 0);
        }
        default_template(object, &["spec", "template"]);
    },
    ..BASE
};

pub(crate) const JOB: Hooks = Hooks {
    default: default_job,
    prepare: prepare_job,
    validate: validate_job,
    validate_update: |new, old, errors| {
        let (new, old) = (&new["spec"], &old["spec"]);
        immutable(&new["selector"], &old["selector"], "spec.selector", errors);
        immutable(&new["completionMode"], &old["completionMode"], "spec.completionMode", errors);
        if new["completionMode"] != "Indexed" {
            immutable(&new["completions"], &old["completions"], "spec.completions", errors);
        }
        if old["suspend"] != true {
            immutable(&new["template"], &old["template"], "spec.template", errors);
        }
    },
    ..Hooks::NONE
};

pub(crate) const CRON_JOB: Hooks = Hooks {
    default: |object| {
        set_default(object, &["spec", "concurrencyPolicy"], "Allow");
        set_default(object, &["spec", "suspend"], false);
        set_default(object, &["spec", "successfulJobsHistoryLimit"], 3);
        set_default(object, &["spec", "failedJobsHistoryLimit"], 1);
        default_template(object, &["spec", "jobTemplate", "spec", "template"]);
    },
    validate: |object, errors| {
        let schedule = text(&object["spec"]["schedule"]);
        let path = FieldPath::new("spec.schedule");
        if schedule.is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if !schedule.starts_with('@') && schedule.split_whitespace().count() != 5 {
            let found = schedule.split_whitespace().count();
            let rule = format!("expected exactly 5 fields, found {found}: [{schedule}]");
            errors.push(FieldError::invalid(&path, schedule, rule));
        }
        for field in ["successfulJobsHistoryLimit", "failedJobsHistoryLimit", "startingDeadlineSeconds"] {
            at_least(&object["spec"][field], 0, &FieldPath::new("spec").child(field), errors);
        }
        let template = &object["spec"]["jobTemplate"]["spec"]["template"];
        validate_pod_template(
            template,
            &FieldPath::new("spec.jobTemplate.spec.template"),
            &["OnFailure", "Never"],
            errors,
        );
    },
    ..Hooks::NONE
};

pub(crate) const HORIZONTAL_POD_AUTOSCALER: Hooks = Hooks {
    default: |object| {
        set_default(object, &["spec", "minReplicas"], 1);
        if items(&object["spec"]["metrics"]).is_empty() {
            let cpu = json!([{"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80},
            }}]);
            set(object, &["spec", "metrics"], cpu);
        }
        if object["spec"]["behavior"].is_object() {
            default_scaling_rules(object, "scaleUp");
            default_scaling_rules(object, "scaleDown");
        }
    },
    validate: |object, errors| {
        let spec = &object["spec"];
        let path = FieldPath::new("spec");
        at_least(&spec["minReplicas"], 1, &path.child("minReplicas"), errors);
        let most = spec["maxReplicas"].as_i64().unwrap_or(0);
        if most < 1 {
            errors.push(FieldError::invalid(&path.child("maxReplicas"), most, "must be greater than 0"));
        } else if most < spec["minReplicas"].as_i64().unwrap_or(1) {
            let rule = "must be greater than or equal to `minReplicas`";
            errors.push(FieldError::invalid(&path.child("maxReplicas"), most, rule));
        }
        for field in ["kind", "name"] {
            if text(&spec["scaleTargetRef"][field]).is_empty() {
                errors.push(FieldError::required(&path.child("scaleTargetRef").child(field), ""));
            }
        }
        for (i, metric) in items(&spec["metrics"]).iter().enumerate() {
            validate_metric(metric, &path.child("metrics").index(i), errors);
        }
    },
    ..Hooks::NONE
};

/// A metric has exactly the source that its type names.
fn validate_metric(metric: &Value, path: &FieldPath, errors: &mut Vec<FieldError>) {
    const SOURCES: [(&str, &str); 5] = [
        ("ContainerResource", "containerResource"),
        ("External", "external"),
        ("Object", "object"),
        ("Pods", "pods"),
        ("Resource", "resource"),
    ];
    let kind = text(&metric["type"]);
    if kind.is_empty() {
        errors.push(FieldError::required(&path.child("type"), "must specify a metric source type"));
        return;
    }
    if let Some((_, source)) = SOURCES.iter().find(|(name, _)| *name == kind)
        && !metric[*source].is_object()
    {
        let rule = format!("must populate information for the given metric source (only {source} here)");
        errors.push(FieldError::required(&path.child(source), rule));
    }
}

fn default_scaling_rules(object: &mut Value, direction: &str) {
    let path = ["spec", "behavior", direction];
    let mut rules = Value::Object(std::mem::take(map_at(object, &path)));
    set_default(&mut rules, &["selectPolicy"], "Max");
    if direction == "scaleUp" {
        set_default(&mut rules, &["stabilizationWindowSeconds"], 0);
    }
    let policies = if direction == "scaleUp" {
        json!([
            {"type": "Pods", "value": 4, "periodSeconds": 15},
            {"type": "Percent", "value": 100, "periodSeconds": 15},
        ])
    } else {
        json!([{"type": "Percent", "value": 100, "periodSeconds": 15}])
    };
    set_default(&mut rules, &["policies"], policies);
    set(object, &path, rules);
}

fn default_template(object: &mut Value, path: &[&str]) {
    let spec_path: Vec<&str> = path.iter().copied().chain(["spec"]).collect();
    if !at(object, path).is_object() {
        return;
    }
    let mut spec = Value::Object(std::mem::take(map_at(object, &spec_path)));
    default_spec(&mut spec);
    set(object, &spec_path, spec);
}

fn default_job(object: &mut Value) {
    let spec = &object["spec"];
    let (completions, parallelism) = (spec["completions"].is_null(), spec["parallelism"].is_null());
    if completions && parallelism {
        set(object, &["spec", "completions"], 1);
    }
    set_default(object, &["spec", "parallelism"], 1);
    let limit = if object["spec"]["backoffLimitPerIndex"].is_null() { 6 } else { i32::MAX };
    set_default(object, &["spec", "backoffLimit"], limit);
    set_default(object, &["spec", "completionMode"], "NonIndexed");
    set_default(object, &["spec", "suspend"], false);
    set_default(object, &["spec", "podReplacementPolicy"], "TerminatingOrFailed");
    default_template(object, &["spec", "template"]);
}

/// Unless the user insists on a selector, a Job's pods are found by its UID.
fn prepare_job(object: &mut Value) {
    if object["spec"]["manualSelector"] == true || !object["spec"]["template"].is_object() {
        return;
    }
    let uid = object["metadata"]["uid"].clone();
    let name = object["metadata"]["name"].clone();
    let labels = map_at(object, &["spec", "template", "metadata", "labels"]);
    for prefix in ["", "batch.kubernetes.io/"] {
        labels.insert(format!("{prefix}controller-uid"), uid.clone());
        if name.is_string() {
            labels.insert(format!("{prefix}job-name"), name.clone());
        }
    }
    set(object, &["spec", "selector"], json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
}

fn validate_job(object: &Value, errors: &mut Vec<FieldError>) {
    for field in
        ["parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"]
    {
        at_least(&object["spec"][field], 0, &FieldPath::new("spec").child(field), errors);
    }
    let spec = &object["spec"];
    if spec["completionMode"] == "Indexed" && spec["completions"].is_null() {
        let rule = "when completion mode is Indexed";
        errors.push(FieldError::required(&FieldPath::new("spec.completions"), rule));
    }
    validate_template(object, &["OnFailure", "Never"], errors);
}

fn validate_scaled(object: &Value, errors: &mut Vec<FieldError>) {
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        at_least(&object["spec"][field], 0, &FieldPath::new("spec").child(field), errors);
    }
}

/// The template must exist, carry the labels that are selected and hold a sound pod.
fn validate_template(object: &Value, restart_policies: &[&str], errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let selector_path = FieldPath::new("spec.selector");
    if spec["selector"].is_null() {
        errors.push(FieldError::required(&selector_path, ""));
    } else {
        let selector = if object["kind"] == "ReplicationController" {
            Selector::from_map(&spec["selector"], &selector_path)
        } else {
            Selector::from_label_selector(&spec["selector"], &selector_path)
        };
        match selector {
            Err(error) => errors.push(error),
            Ok(selector) if selector.is_everything() => {
                let rule = "empty selector is invalid for deployment";
                errors.push(FieldError::invalid(&selector_path, spec["selector"].clone(), rule));
            }
            Ok(selector) if !selector.matches_object(&spec["template"]) => {
                let labels =
                    spec["template"]["metadata"]["labels"].as_object().cloned().unwrap_or_else(Map::new);
                errors.push(FieldError::invalid(
                    &FieldPath::new("spec.template.metadata.labels"),
                    labels,
                    "`selector` does not match template `labels`",
                ));
            }
            Ok(_) => {}
        }
    }
    validate_pod_template(&spec["template"], &FieldPath::new("spec.template"), restart_policies, errors);
}

fn validate_pod_template(
    template: &Value,
    path: &FieldPath,
    restart_policies: &[&str],
    errors: &mut Vec<FieldError>,
) {
    if template.is_null() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    let spec = path.child("spec");
    let policy = text(&template["spec"]["restartPolicy"]);
    if !restart_policies.contains(&policy) {
        let supported = restart_policies.iter().copied();
        errors.push(FieldError::not_supported(&spec.child("restartPolicy"), policy, supported));
    }
    errors.extend(gantry_apimachinery::validate_labels(
        &template["metadata"]["labels"],
        &path.child("metadata").child("labels"),
    ));
    validate_pod_spec(&template["spec"], &spec, errors);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Value {
        let mut object = json!({
            "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{"name": "a", "image": "i"}]},
                },
            },
        });
        (DEPLOYMENT.default)(&mut object);
        object
    }

    fn complaints(hooks: &Hooks, object: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        (hooks.validate)(object, &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_deployment_gets_kubernetes_defaults_and_then_has_no_fault() {
        let object = deployment();
        assert_eq!(
            object["spec"]["strategy"]["rollingUpdate"],
            json!({"maxSurge": "25%", "maxUnavailable": "25%"})
        );
        assert_eq!(object["spec"]["template"]["spec"]["restartPolicy"], "Always");
        assert_eq!(complaints(&DEPLOYMENT, &object), [""; 0]);
    }

    #[test]
    fn faults_of_a_deployment_are_named() {
        let mut object = deployment();
        object["spec"]["replicas"] = (-1).into();
        object["spec"]["template"]["metadata"]["labels"] = json!({"app": "other"});
        object["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
        assert_eq!(
            complaints(&DEPLOYMENT, &object),
            [
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                "spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template `labels`",
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ]
        );
    }

    #[test]
    fn a_selector_cannot_change() {
        let (old, mut new) = (deployment(), deployment());
        new["spec"]["selector"]["matchLabels"]["app"] = "other".into();
        let mut errors = Vec::new();
        (DEPLOYMENT.validate_update)(&new, &old, &mut errors);
        assert_eq!(
            errors[0].to_string(),
            "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"other\"}}: field is immutable"
        );
    }

    #[test]
    fn a_job_selects_its_pods_by_its_uid() {
        let mut job = json!({
            "kind": "Job", "metadata": {"name": "j", "uid": "u"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}]}}},
        });
        (JOB.prepare)(&mut job);
        (JOB.default)(&mut job);
        assert_eq!(complaints(&JOB, &job), [""; 0]);
        assert_eq!(job["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/controller-uid"], "u");
        assert_eq!((&job["spec"]["completions"], &job["spec"]["parallelism"]), (&json!(1), &json!(1)));
    }
}
