//! Custom resource definitions, as functions; `charts/gantry/crds/` holds what they give.

mod gpu_node;
mod volcano;

use serde_json::{Value, json};

/// Every definition that Gantry installs: its own resource, and the foreign ones that it serves.
pub fn crds() -> Vec<Value> {
    vec![gpu_node::crd(), volcano::job(), volcano::pod_group(), volcano::queue()]
}

fn column(name: &str, kind: &str, path: &str, priority: u32) -> Value {
    json!({ "name": name, "type": kind, "jsonPath": path, "priority": priority })
}

fn object(description: &str, required: &[&str], properties: Value) -> Value {
    let mut object = json!({ "type": "object", "description": description, "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

fn list(description: &str, items: Value, keys: &[&str]) -> Value {
    let mut list = json!({ "type": "array", "description": description, "items": items });
    list["x-kubernetes-list-type"] = json!(if keys.is_empty() { "atomic" } else { "map" });
    if !keys.is_empty() {
        list["x-kubernetes-list-map-keys"] = json!(keys);
    }
    list
}

fn string(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn choice(description: &str, names: &[&str]) -> Value {
    json!({ "type": "string", "description": description, "enum": names })
}

fn count(description: &str) -> Value {
    json!({ "type": "integer", "format": "int32", "minimum": 0, "description": description })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const HEADER: &str = "# Written by `cargo xtask crds` from wire/api. Do not edit.\n";

    #[test]
    fn the_checked_in_crds_are_what_the_code_says() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/gantry/crds");
        for crd in crds() {
            let path = folder.join(format!("{}.yaml", crd["metadata"]["name"].as_str().unwrap()));
            let expected = format!("{HEADER}{}", serde_saphyr::to_string(&crd).unwrap());
            if std::env::var_os("BLESS").is_some() {
                std::fs::create_dir_all(&folder).unwrap();
                std::fs::write(&path, &expected).unwrap();
            }
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(found, expected, "{} is stale: run `cargo xtask crds`", path.display());
            let parsed: Value = serde_saphyr::from_str(&found).unwrap();
            assert_eq!(parsed, crd);
        }
        let files = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(files, crds().len(), "{} has files that no code writes", folder.display());
    }
}
