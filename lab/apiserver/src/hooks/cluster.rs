//! Namespaces, nodes, policies and other kinds that mostly are only stored.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gantry_apimachinery::{FieldError, FieldPath, validate_dns1123_label};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use super::{Hooks, at_least, path_segment};
use crate::json::{items, items_mut, set, set_default, text};

pub(crate) const NAMESPACE: Hooks = Hooks {
    prepare: |namespace| {
        set(namespace, &["spec"], json!({"finalizers": ["kubernetes"]}));
        set(namespace, &["status"], json!({"phase": "Active"}));
    },
    default: |namespace| {
        let name = namespace["metadata"]["name"].clone();
        set(namespace, &["metadata", "labels", "kubernetes.io/metadata.name"], name);
    },
    // `spec.finalizers` has a path of its own.
    prepare_update: |new, old| set(new, &["spec"], old["spec"].clone()),
    names: validate_dns1123_label,
    ..Hooks::NONE
};

pub(crate) const NODE: Hooks = Hooks {
    keeps_status: true,
    default: |node| set_default(node, &["spec"], json!({})),
    validate: |node, errors| {
        for (i, taint) in items(&node["spec"]["taints"]).iter().enumerate() {
            let path = FieldPath::new("spec.taints").index(i);
            for field in ["key", "effect"] {
                if text(&taint[field]).is_empty() {
                    errors.push(FieldError::required(&path.child(field), ""));
                }
            }
            let earlier = &items(&node["spec"]["taints"])[..i];
            if earlier.iter().any(|other| other["key"] == taint["key"] && other["effect"] == taint["effect"])
            {
                errors.push(FieldError::duplicate(&path, taint.clone()));
            }
        }
    },
    validate_update: |new, old, errors| {
        if !text(&old["spec"]["providerID"]).is_empty()
            && new["spec"]["providerID"] != old["spec"]["providerID"]
        {
            let rule = "node updates may not change providerID except from \"\" to valid";
            errors.push(FieldError::forbidden(&FieldPath::new("spec.providerID"), rule));
        }
    },
    ..Hooks::NONE
};

pub(crate) const PERSISTENT_VOLUME_CLAIM: Hooks = Hooks {
    default: |claim| set_default(claim, &["spec", "volumeMode"], "Filesystem"),
    prepare: |claim| set(claim, &["status"], json!({"phase": "Pending"})),
    validate: |claim, errors| {
        if items(&claim["spec"]["accessModes"]).is_empty() {
            let rule = "at least 1 access mode is required";
            errors.push(FieldError::required(&FieldPath::new("spec.accessModes"), rule));
        }
        if claim["spec"]["resources"]["requests"]["storage"].is_null() {
            errors.push(FieldError::required(&FieldPath::new("spec.resources").key("storage"), ""));
        }
    },
    ..Hooks::NONE
};

pub(crate) const PERSISTENT_VOLUME: Hooks = Hooks {
    default: |volume| {
        set_default(volume, &["spec", "persistentVolumeReclaimPolicy"], "Retain");
        set_default(volume, &["spec", "volumeMode"], "Filesystem");
    },
    prepare: |volume| set(volume, &["status"], json!({"phase": "Pending"})),
    ..Hooks::NONE
};

pub(crate) const LIMIT_RANGE: Hooks = Hooks {
    default: |range| {
        for limit in items_mut(range.get_mut("spec").and_then(|spec| spec.get_mut("limits"))) {
            if limit["type"] != "Container" {
                continue;
            }
            // Each of these, where it is absent, is the next: `default` from `max`, `defaultRequest` from both.
            for (field, from) in
                [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")]
            {
                let source = limit[from].as_object().cloned().unwrap_or_default();
                for (resource, quantity) in source {
                    set_default(limit, &[field, &resource], quantity);
                }
            }
        }
    },
    ..Hooks::NONE
};

pub(crate) const RESOURCE_QUOTA: Hooks = Hooks {
    validate: |quota, errors| {
        for (name, quantity) in quota["spec"]["hard"].as_object().into_iter().flatten() {
            let path = FieldPath::new("spec.hard").key(name);
            match gantry_apimachinery::read_quantity(quantity, &path) {
                Err(error) => errors.push(error),
                Ok(quantity) if quantity < gantry_units::Quantity::ZERO => errors.push(FieldError::invalid(
                    &path,
                    quantity.to_string(),
                    "must be greater than or equal to 0",
                )),
                Ok(_) => {}
            }
        }
    },
    ..Hooks::NONE
};

pub(crate) const POD_DISRUPTION_BUDGET: Hooks = Hooks {
    validate: |budget, errors| {
        let spec = &budget["spec"];
        if !spec["minAvailable"].is_null() && !spec["maxUnavailable"].is_null() {
            let rule = "minAvailable and maxUnavailable cannot be both set";
            errors.push(FieldError::invalid(&FieldPath::new("spec"), spec.clone(), rule));
        }
        for field in ["minAvailable", "maxUnavailable"] {
            at_least(&spec[field], 0, &FieldPath::new("spec").child(field), errors);
        }
    },
    ..Hooks::NONE
};

pub(crate) const PRIORITY_CLASS: Hooks = Hooks {
    default: |class| set_default(class, &["preemptionPolicy"], "PreemptLowerPriority"),
    validate: |class, errors| {
        // Values above this are for the system's own classes.
        const HIGHEST: i64 = 1_000_000_000;
        let (name, value) = (text(&class["metadata"]["name"]), class["value"].as_i64().unwrap_or(0));
        if value > HIGHEST && !name.starts_with("system-") {
            let rule = format!("maximum allowed value of a user defined priority is {HIGHEST}");
            errors.push(FieldError::forbidden(&FieldPath::new("value"), rule));
        }
    },
    validate_update: |new, old, errors| {
        for field in ["value", "preemptionPolicy"] {
            if new[field] != old[field] {
                errors
                    .push(FieldError::forbidden(&FieldPath::new(field), "may not be changed in an update."));
            }
        }
    },
    ..Hooks::NONE
};

pub(crate) const STORAGE_CLASS: Hooks = Hooks {
    default: |class| {
        set_default(class, &["reclaimPolicy"], "Delete");
        set_default(class, &["volumeBindingMode"], "Immediate");
    },
    validate: |class, errors| {
        if text(&class["provisioner"]).is_empty() {
            errors.push(FieldError::required(&FieldPath::new("provisioner"), ""));
        }
    },
    validate_update: |new, old, errors| {
        for field in ["provisioner", "parameters", "volumeBindingMode"] {
            if new[field] != old[field] {
                let rule = "updates to this field are forbidden.";
                errors.push(FieldError::forbidden(&FieldPath::new(field), rule));
            }
        }
    },
    ..Hooks::NONE
};

pub(crate) const ROLE_BINDING: Hooks = Hooks {
    default: |binding| {
        const GROUP: &str = "rbac.authorization.k8s.io";
        set_default(binding, &["roleRef", "apiGroup"], GROUP);
        for subject in items_mut(binding.get_mut("subjects")) {
            if matches!(text(&subject["kind"]), "User" | "Group") {
                set_default(subject, &["apiGroup"], GROUP);
            }
        }
    },
    validate_update: |new, old, errors| {
        if new["roleRef"] != old["roleRef"] {
            let path = FieldPath::new("roleRef");
            errors.push(FieldError::invalid(&path, new["roleRef"].clone(), "cannot change roleRef"));
        }
    },
    names: path_segment,
    ..Hooks::NONE
};

pub(crate) const WEBHOOKS: Hooks = Hooks {
    default: |configuration| {
        let mutating = configuration["kind"] == "MutatingWebhookConfiguration";
        for webhook in items_mut(configuration.get_mut("webhooks")) {
            for (field, default) in [
                ("failurePolicy", json!("Fail")),
                ("matchPolicy", json!("Equivalent")),
                ("timeoutSeconds", json!(10)),
                ("namespaceSelector", json!({})),
                ("objectSelector", json!({})),
            ] {
                set_default(webhook, &[field], default);
            }
            if mutating {
                set_default(webhook, &["reinvocationPolicy"], "Never");
            }
            if webhook["clientConfig"]["service"].is_object() {
                set_default(webhook, &["clientConfig", "service", "port"], 443);
            }
            for rule in items_mut(webhook.get_mut("rules")) {
                set_default(rule, &["scope"], "*");
            }
        }
    },
    validate: |configuration, errors| {
        for (i, webhook) in items(&configuration["webhooks"]).iter().enumerate() {
            let path = FieldPath::new("webhooks").index(i);
            if text(&webhook["name"]).is_empty() {
                errors.push(FieldError::required(&path.child("name"), ""));
            }
            let versions = items(&webhook["admissionReviewVersions"]);
            if versions.is_empty() {
                let rule = "must specify one of v1, v1beta1";
                errors.push(FieldError::required(&path.child("admissionReviewVersions"), rule));
            }
            if webhook["sideEffects"].is_null() {
                let rule = "must specify one of None, NoneOnDryRun";
                errors.push(FieldError::required(&path.child("sideEffects"), rule));
            }
            let client = &webhook["clientConfig"];
            if client["url"].is_null() == client["service"].is_null() {
                let rule = "exactly one of url or service is required";
                errors.push(FieldError::required(&path.child("clientConfig"), rule));
            }
            validate_client(client, &path.child("clientConfig"), errors);
            if let Some(seconds) = webhook["timeoutSeconds"].as_i64()
                && !(1..=30).contains(&seconds)
            {
                let rule = "the timeout value must be between 1 and 30 seconds";
                errors.push(FieldError::invalid(&path.child("timeoutSeconds"), seconds, rule));
            }
        }
    },
    ..Hooks::NONE
};

/// What would make every call fail is refused at once: an address without TLS, a bundle without certificates.
fn validate_client(client: &Value, path: &FieldPath, errors: &mut Vec<FieldError>) {
    let url = text(&client["url"]);
    if !client["url"].is_null() && !url.starts_with("https://") {
        let rule = "'https' is the only allowed URL scheme: format must be https://host:port/path";
        errors.push(FieldError::invalid(&path.child("url"), url, rule));
    }
    let bundle = text(&client["caBundle"]);
    if bundle.is_empty() {
        return;
    }
    // That it is base64 is checked with the types.
    let pem = STANDARD.decode(bundle).unwrap_or_default();
    if CertificateDer::pem_slice_iter(&pem).next().is_none_or(|first| first.is_err()) {
        let rule = "unable to load root certificates: unable to parse bytes as PEM block";
        errors.push(FieldError::invalid(&path.child("caBundle"), "<binary>", rule));
    }
}

/// Roles are named by anything that fits a path.
pub(crate) const ROLE: Hooks = Hooks { names: path_segment, ..Hooks::NONE };
