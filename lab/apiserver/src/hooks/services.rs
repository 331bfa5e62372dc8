//! Services and what else concerns the network.

use std::collections::BTreeSet;

use gantry_apimachinery::{FieldError, FieldPath, validate_dns1035_label};
use serde_json::{Value, json};

use super::Hooks;
use super::pods::validate_port;
use crate::json::{items, items_mut, map_at, set, set_default, text};

pub(crate) const SERVICE: Hooks = Hooks {
    default: default_service,
    prepare: |service| {
        if service["spec"]["type"] != "ExternalName" {
            set_default(service, &["spec", "ipFamilies"], json!(["IPv4"]));
            set_default(service, &["spec", "ipFamilyPolicy"], "SingleStack");
        }
    },
    prepare_update: keep_allocations,
    validate: validate_service,
    validate_update: |new, old, errors| {
        let address = |service: &Value| text(&service["spec"]["clusterIP"]).to_owned();
        let typed = |service: &Value| text(&service["spec"]["type"]) != "ExternalName";
        if typed(new) && typed(old) && !address(old).is_empty() && address(new) != address(old) {
            let path = FieldPath::new("spec.clusterIPs").index(0);
            errors.push(FieldError::invalid(&path, address(new), "may not change once set"));
        }
    },
    names: validate_dns1035_label,
    ..Hooks::NONE
};

pub(crate) const INGRESS: Hooks = Hooks {
    validate: |ingress, errors| {
        let spec = FieldPath::new("spec");
        if items(&ingress["spec"]["rules"]).is_empty() && ingress["spec"]["defaultBackend"].is_null() {
            errors.push(FieldError::invalid(
                &spec,
                Value::Null,
                "either `defaultBackend` or `rules` must be specified",
            ));
        }
        for (i, rule) in items(&ingress["spec"]["rules"]).iter().enumerate() {
            for (j, path) in items(&rule["http"]["paths"]).iter().enumerate() {
                if path["pathType"].is_null() {
                    let field = spec.child("rules").index(i).child("http").child("paths").index(j);
                    errors.push(FieldError::required(&field.child("pathType"), "pathType must be specified"));
                }
            }
        }
    },
    ..Hooks::NONE
};

pub(crate) const NETWORK_POLICY: Hooks = Hooks {
    default: |policy| {
        let spec = map_at(policy, &["spec"]);
        let mut types = vec!["Ingress"];
        if spec.get("egress").is_some_and(|egress| !items(egress).is_empty()) {
            types.push("Egress");
        }
        spec.entry("policyTypes").or_insert_with(|| json!(types));
    },
    ..Hooks::NONE
};

fn default_service(service: &mut Value) {
    set_default(service, &["spec", "type"], "ClusterIP");
    set_default(service, &["spec", "sessionAffinity"], "None");
    let kind = text(&service["spec"]["type"]).to_owned();
    if kind != "ExternalName" {
        set_default(service, &["spec", "internalTrafficPolicy"], "Cluster");
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
        set_default(service, &["spec", "externalTrafficPolicy"], "Cluster");
    }
    if kind == "LoadBalancer" {
        set_default(service, &["spec", "allocateLoadBalancerNodePorts"], true);
    }
    if service["spec"]["sessionAffinity"] == "ClientIP" {
        set_default(service, &["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"], 10_800);
    }
    for port in items_mut(service.get_mut("spec").and_then(|spec| spec.get_mut("ports"))) {
        let number = port["port"].clone();
        set_default(port, &["protocol"], "TCP");
        set_default(port, &["targetPort"], number);
        if port["targetPort"] == 0 || port["targetPort"] == "" {
            let number = port["port"].clone();
            set(port, &["targetPort"], number);
        }
    }
    let address = service["spec"]["clusterIP"].clone();
    if address.is_string() && address != "" {
        set_default(service, &["spec", "clusterIPs"], json!([address]));
    }
}

/// Whoever replaces a Service need not know the addresses and ports that it was given.
fn keep_allocations(new: &mut Value, old: &Value) {
    if new["spec"]["type"] == "ExternalName" || old["spec"]["type"] == "ExternalName" {
        return;
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if let Some(value) = old["spec"].get(field) {
            set_default(new, &["spec", field], value.clone());
        }
    }
    if text(&new["spec"]["clusterIP"]).is_empty() {
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(value) = old["spec"].get(field) {
                set(new, &["spec", field], value.clone());
            }
        }
    }
    if matches!(text(&new["spec"]["type"]), "NodePort" | "LoadBalancer") {
        let kept: Vec<Value> = items(&old["spec"]["ports"]).to_vec();
        for port in items_mut(new.get_mut("spec").and_then(|spec| spec.get_mut("ports"))) {
            let same = kept.iter().find(|k| k["port"] == port["port"] && k["protocol"] == port["protocol"]);
            if let Some(number) = same.and_then(|k| k.get("nodePort")) {
                set_default(port, &["nodePort"], number.clone());
            }
        }
    }
}

fn validate_service(service: &Value, errors: &mut Vec<FieldError>) {
    let spec = &service["spec"];
    let path = FieldPath::new("spec");
    let kind = text(&spec["type"]);
    let ports = items(&spec["ports"]);
    if kind == "ExternalName" {
        if text(&spec["externalName"]).is_empty() {
            errors.push(FieldError::required(&path.child("externalName"), ""));
        }
    } else if ports.is_empty() && spec["clusterIP"] != "None" {
        errors.push(FieldError::required(&path.child("ports"), ""));
    }
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (i, port) in ports.iter().enumerate() {
        let path = path.child("ports").index(i);
        let name = text(&port["name"]);
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        if port["port"].is_null() {
            errors.push(FieldError::required(&path.child("port"), ""));
        }
        if !numbers.insert((text(&port["protocol"]), port["port"].as_i64())) {
            // As Kubernetes cites it: the fields of Go's type that make it a duplicate.
            let port = json!({
                "Name": "", "Protocol": port["protocol"], "AppProtocol": null, "Port": port["port"],
                "TargetPort": 0, "NodePort": 0,
            });
            errors.push(FieldError::duplicate(&path, port));
        }
        validate_port(&port["port"], &path.child("port"), errors);
        validate_port(&port["targetPort"], &path.child("targetPort"), errors);
        if kind == "ClusterIP" && port["nodePort"].as_i64().is_some_and(|number| number != 0) {
            let rule = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(&path.child("nodePort"), rule));
        }
    }
}
