//! The functions that the chart uses. Arguments stand in the order in which templates write them, what is piped comes last.

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// What Go takes for true: neither zero, nor empty, nor absent.
pub(super) fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(bool) => *bool,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// A value as it is printed.
pub(super) fn printed(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Calls a function.
pub(super) fn call(name: &str, arguments: &[Value]) -> Result<Value, String> {
    let text = |value: &Value| printed(value);
    Ok(match (name, arguments) {
        ("and" | "or", [.., last]) => last.clone(),
        ("not", [value]) => (!is_true(value)).into(),
        ("eq", [a, b]) => (a == b).into(),
        ("ne", [a, b]) => (a != b).into(),
        ("default", [default, value]) => if is_true(value) { value } else { default }.clone(),
        ("quote", [value]) => Value::String(text(value)).to_string().into(),
        ("printf", [Value::String(format), values @ ..]) => printf(format, values)?.into(),
        ("contains", [part, whole]) => text(whole).contains(&text(part)).into(),
        ("trunc", [Value::Number(length), value]) => {
            let length = length.as_u64().and_then(|length| usize::try_from(length).ok());
            text(value).chars().take(length.ok_or("trunc takes a length from 0")?).collect::<String>().into()
        }
        ("trimSuffix", [suffix, value]) => {
            let (value, suffix) = (text(value), text(suffix));
            value.strip_suffix(&suffix).unwrap_or(&value).into()
        }
        ("join", [separator, Value::Array(list)]) => {
            list.iter().map(text).collect::<Vec<_>>().join(&text(separator)).into()
        }
        ("first", [Value::Array(list)]) => list.first().cloned().unwrap_or_default(),
        ("dict", pairs) if pairs.len() % 2 == 0 => {
            let pairs = pairs.chunks_exact(2).map(|pair| (text(&pair[0]), pair[1].clone()));
            Value::Object(pairs.collect::<Map<_, _>>())
        }
        ("kindIs", [Value::String(kind), value]) => {
            let is = match value {
                Value::Null => "invalid",
                Value::Bool(_) => "bool",
                Value::Number(_) => "float64",
                Value::String(_) => "string",
                Value::Array(_) => "slice",
                Value::Object(_) => "map",
            };
            (kind == is).into()
        }
        ("toYaml", [value]) => {
            serde_saphyr::to_string(value).map_err(|error| format!("toYaml: {error}"))?.trim_end().into()
        }
        ("indent" | "nindent", [Value::Number(width), value]) => {
            let width =
                width.as_u64().and_then(|width| usize::try_from(width).ok()).filter(|width| *width < 100);
            let pad = " ".repeat(width.ok_or("indent takes a width from 0 to 99")?);
            let lines = text(value).replace('\n', &format!("\n{pad}"));
            format!("{}{pad}{lines}", if name == "nindent" { "\n" } else { "" }).into()
        }
        ("sha256sum", [value]) => {
            let sum = Sha256::digest(text(value));
            format!("{sum:x}").into()
        }
        ("fail", [message]) => return Err(text(message)),
        _ => return Err(format!("function {name} with {} arguments is not known here", arguments.len())),
    })
}

fn printf(format: &str, values: &[Value]) -> Result<String, String> {
    let mut values = values.iter();
    let mut parts = format.split("%s");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let value = values.next().ok_or_else(|| format!("printf {format:?}: too few values"))?;
        out.push_str(&printed(value));
        out.push_str(part);
    }
    if out.contains('%') || values.next().is_some() {
        return Err(format!("printf {format:?}: only %s is known here, and one value for each"));
    }
    Ok(out)
}
