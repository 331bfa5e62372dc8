//! ConfigMaps and Secrets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gantry_apimachinery::{FieldError, FieldPath};
use serde_json::Value;

use super::{Hooks, immutable};
use crate::json::{map_at, set_default};

/// All values of one object together, in bytes.
const LARGEST: usize = 1 << 20;

pub(crate) const CONFIG_MAP: Hooks = Hooks {
    validate: |object, errors| validate_keys(object, &["data", "binaryData"], errors),
    validate_update: |new, old, errors| frozen(new, old, &["data", "binaryData"], errors),
    ..Hooks::NONE
};

pub(crate) const SECRET: Hooks = Hooks {
    default: |secret| {
        set_default(secret, &["type"], "Opaque");
        // Write-only convenience: plain text that is stored encoded.
        let map = map_at(secret, &[]);
        if let Some(Value::Object(plain)) = map.remove("stringData") {
            let data = map_at(secret, &["data"]);
            for (key, value) in plain {
                let text = value.as_str().unwrap_or_default();
                data.insert(key, STANDARD.encode(text).into());
            }
        }
    },
    validate: |object, errors| validate_keys(object, &["data"], errors),
    validate_update: |new, old, errors| {
        immutable(&new["type"], &old["type"], "type", errors);
        frozen(new, old, &["data"], errors);
    },
    ..Hooks::NONE
};

fn validate_keys(object: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    let mut size = 0;
    for field in fields {
        for (key, value) in object[*field].as_object().into_iter().flatten() {
            size += value.as_str().map_or(0, str::len);
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if key.is_empty()
                || key.len() > 253
                || !key.chars().all(allowed)
                || key == "."
                || key.starts_with("..")
            {
                errors.push(FieldError::invalid(
                    &FieldPath::new(*field).key(key),
                    key.as_str(),
                    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  \
                     or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
                ));
            }
        }
    }
    if size > LARGEST {
        errors.push(FieldError::too_long(&FieldPath::new(fields[0]), LARGEST));
    }
}

fn frozen(new: &Value, old: &Value, fields: &[&str], errors: &mut Vec<FieldError>) {
    if old["immutable"] != true {
        return;
    }
    for field in fields.iter().chain(&["immutable"]) {
        if new.get(*field) != old.get(*field) {
            let rule = "field is immutable when `immutable` is set";
            errors.push(FieldError::forbidden(&FieldPath::new(*field), rule));
        }
    }
}
