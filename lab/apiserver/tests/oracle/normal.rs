//! Answers without what no two servers have in common: identifiers, revisions, times, addresses, and what controllers add.

use serde_json::{Map, Value};

/// Managers that write on their own account in a real cluster.
const CONTROLLERS: &[&str] = &["kube-controller-manager", "kubelet", "kube-scheduler", "kube-apiserver"];

pub(crate) fn form(body: Value, namespace: &str) -> Value {
    normal("", body, namespace)
}

fn normal(name: &str, value: Value, namespace: &str) -> Value {
    match value {
        Value::Object(fields) => object(fields, namespace),
        Value::Array(items) => {
            let mut items: Vec<Value> = items
                .into_iter()
                .filter(|item| !is_controllers(name, item))
                .map(|item| normal(if name == "clusterIPs" { "clusterIP" } else { "" }, item, namespace))
                .collect();
            // Kubernetes' order of causes and conflicts is that of a Go map.
            if name == "causes" || name == "managedFields" {
                items.sort_by_key(ToString::to_string);
            }
            items.into()
        }
        Value::String(text) => string(name, text, namespace).into(),
        other => other,
    }
}

fn object(fields: Map<String, Value>, namespace: &str) -> Value {
    let mut out = Map::new();
    for (name, value) in fields {
        // Absent, null and empty are the same to clients, and Kubernetes writes some of them for old times' sake.
        let value = normal(&name, value, namespace);
        let is_empty = match &value {
            Value::Null => true,
            Value::Object(fields) => fields.is_empty() && name != "f:resources",
            _ => false,
        };
        if !is_empty
            || name.starts_with("f:")
            || name.starts_with("k:")
            || name == "."
            || name.starts_with("v:")
        {
            out.insert(name, value);
        }
    }
    // What the deployment controller writes.
    if let Some(Value::Object(annotations)) =
        out.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"))
    {
        annotations.remove("deployment.kubernetes.io/revision");
    }
    if out.get("kind").is_some_and(|kind| kind == "Deployment" || kind == "Namespace") {
        out.remove("status");
    }
    Value::Object(out)
}

fn is_controllers(name: &str, item: &Value) -> bool {
    name == "managedFields" && item["manager"].as_str().is_some_and(|manager| CONTROLLERS.contains(&manager))
}

fn string(name: &str, text: String, namespace: &str) -> String {
    let fixed = match name {
        "uid" | "resourceVersion" | "creationTimestamp" | "deletionTimestamp" | "time"
        | "lastTransitionTime" | "continue" | "clusterIP" | "selfLink" => Some(format!("<{name}>")),
        _ => None,
    };
    fixed.unwrap_or_else(|| {
        let mut text = text.replace(namespace, "<ns>");
        // What a precondition found: a UID or a revision.
        for before in ["in record (", "in object meta: "] {
            if let Some(at) = text.find(before) {
                let rest = text.split_off(at + before.len());
                let end = rest.find([')', '"']).unwrap_or(rest.len());
                text = format!("{text}<found>{}", &rest[end..]);
            }
        }
        // Numbers of five and more digits are revisions or parts of identifiers.
        let mut out = String::with_capacity(text.len());
        let mut digits = String::new();
        for char in text.chars().chain(['\0']) {
            if char.is_ascii_digit() {
                digits.push(char);
                continue;
            }
            out.push_str(if digits.len() >= 5 { "<number>" } else { &digits });
            digits.clear();
            if char != '\0' {
                out.push(char);
            }
        }
        out
    })
}
