//! Defaulting and pruning: the two ways in which a schema changes an object.

use serde_json::Value;

use super::node::{Additional, Node};
use crate::FieldPath;

pub(super) fn default(node: &Node, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, property) in &node.properties {
                let Some(default) = &property.default else { continue };
                let missing = match fields.get(name) {
                    None => true,
                    Some(Value::Null) => !property.is_nullable,
                    Some(_) => false,
                };
                if missing {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, field) in fields.iter_mut() {
                if let Some(property) = node.field(name) {
                    default(property, field);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                for item in list {
                    default(items, item);
                }
            }
        }
        _ => {}
    }
}

pub(super) fn prune(node: &Node, value: &mut Value) -> Vec<String> {
    let mut dropped = Vec::new();
    prune_at(node, value, &FieldPath::root(), &mut dropped);
    dropped
}

fn prune_at(node: &Node, value: &mut Value, path: &FieldPath, dropped: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            let keeps_all = node.preserves_unknown || matches!(node.additional, Additional::Any);
            fields.retain(|name, field| {
                if node.is_resource_field(name) {
                    return true;
                }
                let path = path.child(name);
                match node.field(name) {
                    Some(property) => prune_at(property, field, &path, dropped),
                    None if keeps_all => {}
                    None => {
                        dropped.push(path.as_str().to_owned());
                        return false;
                    }
                }
                true
            });
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                for (index, item) in list.iter_mut().enumerate() {
                    prune_at(items, item, &path.index(index), dropped);
                }
            }
        }
        _ => {}
    }
}
