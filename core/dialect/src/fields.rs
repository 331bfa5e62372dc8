//! Reading JSON that anybody may have written.

use gantry_apimachinery::{FieldError, FieldPath, read_quantity};
use gantry_model::{Labels, Reason, Resources};
use gantry_units::Quantity;
use serde_json::{Map, Value};

use crate::GPU_RESOURCE;

/// A value longer than this is cut in messages.
const SHOWN: usize = 80;

pub(crate) fn invalid(path: &FieldPath, value: &Value, rule: impl Into<String>) -> Reason {
    let mut value = value.to_string();
    if let Some((cut, _)) = value.char_indices().nth(SHOWN) {
        value.truncate(cut);
        value.push('…');
    }
    Reason::InvalidField { field: path.to_string(), value, rule: rule.into() }
}

pub(crate) fn refused(error: &FieldError) -> Reason {
    invalid(&error.path, &error.value, error.detail.clone())
}

/// The field of this name; JSON null counts as absent.
pub(crate) fn get<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.get(name).filter(|field| !field.is_null())
}

pub(crate) fn object<'a>(
    value: &'a Value,
    name: &str,
    path: &FieldPath,
) -> Result<Option<&'a Map<String, Value>>, Reason> {
    let Some(field) = get(value, name) else { return Ok(None) };
    field.as_object().map(Some).ok_or_else(|| invalid(&path.child(name), field, "must be an object"))
}

pub(crate) fn list<'a>(value: &'a Value, name: &str, path: &FieldPath) -> Result<&'a [Value], Reason> {
    match get(value, name) {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(other) => Err(invalid(&path.child(name), other, "must be a list")),
    }
}

pub(crate) fn text<'a>(value: &'a Value, name: &str, path: &FieldPath) -> Result<Option<&'a str>, Reason> {
    let Some(field) = get(value, name) else { return Ok(None) };
    field.as_str().map(Some).ok_or_else(|| invalid(&path.child(name), field, "must be a string"))
}

pub(crate) fn flag(value: &Value, name: &str, path: &FieldPath) -> Result<bool, Reason> {
    let Some(field) = get(value, name) else { return Ok(false) };
    field.as_bool().ok_or_else(|| invalid(&path.child(name), field, "must be true or false"))
}

pub(crate) fn labels(value: &Value, name: &str, path: &FieldPath) -> Result<Labels, Reason> {
    let entries = object(value, name, path)?.into_iter().flatten();
    let entry = |(key, value): (&String, &Value)| match value.as_str() {
        Some(text) => Ok((key.as_str().into(), text.into())),
        None => Err(invalid(&path.child(name).key(key), value, "must be a string")),
    };
    entries.map(entry).collect()
}

pub(crate) fn quantity(value: &Value, path: &FieldPath) -> Result<Quantity, Reason> {
    read_quantity(value, path).map_err(|error| refused(&error))
}

/// A count of whole units, such as devices.
pub(crate) fn count(quantity: &Quantity, path: &FieldPath) -> Result<u64, Reason> {
    let (field, value) = (path.to_string(), quantity.to_string());
    if !quantity.is_integer() {
        return Err(Reason::NotAnInteger { field, value });
    }
    u64::try_from(quantity.value()).map_err(|_| Reason::AmountOutOfRange { field, value })
}

/// Whole GPUs.
pub(crate) fn gpus(quantity: &Quantity, path: &FieldPath) -> Result<u32, Reason> {
    let out_of_range = |_| Reason::AmountOutOfRange { field: path.to_string(), value: quantity.to_string() };
    u32::try_from(count(quantity, path)?).map_err(out_of_range)
}

/// Enters one amount into `resources`, or into `gpus`. What is no whole number of units is rounded up, as Kubernetes does.
pub(crate) fn enter(
    resources: &mut Resources,
    gpu_count: &mut u32,
    name: &str,
    quantity: &Quantity,
    path: &FieldPath,
) -> Result<(), Reason> {
    let out_of_range = |_| Reason::AmountOutOfRange { field: path.to_string(), value: quantity.to_string() };
    let units = || u64::try_from(quantity.value()).map_err(out_of_range);
    match name {
        GPU_RESOURCE => *gpu_count = gpus(quantity, path)?,
        "cpu" => resources.cpu_milli = u64::try_from(quantity.milli_value()).map_err(out_of_range)?,
        "memory" => resources.memory_bytes = units()?,
        "ephemeral-storage" => resources.ephemeral_bytes = units()?,
        "pods" => resources.pods = units()?,
        _ => {
            resources.extended.insert(name.into(), units()?);
        }
    }
    Ok(())
}
