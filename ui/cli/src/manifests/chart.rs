//! The chart, which is part of the program: its files, its values, and what may be set.

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use super::template::Templates;
use crate::hint;

/// The files of the chart by their path in it.
macro_rules! files {
    ($($path:literal),* $(,)?) => {
        pub(super) const FILES: &[(&str, &str)] =
            &[$(($path, include_str!(concat!("../../../../charts/gantry/", $path)))),*];
    };
}

files![
    "Chart.yaml",
    "values.yaml",
    "templates/_helpers.tpl",
    "templates/NOTES.txt",
    "templates/agent.yaml",
    "templates/controllers.yaml",
    "templates/runtimeclass.yaml",
    "templates/scheduler.yaml",
    "crds/gpunodes.gantry.dev.yaml",
    "crds/jobs.batch.volcano.sh.yaml",
    "crds/podgroups.scheduling.volcano.sh.yaml",
    "crds/queues.scheduling.volcano.sh.yaml",
];

/// The text of a file of the chart.
pub(super) fn file(path: &str) -> &'static str {
    FILES.iter().find(|(known, _)| *known == path).map_or("", |(_, text)| text)
}

/// The values of the chart as it comes.
pub(super) fn defaults() -> anyhow::Result<Value> {
    serde_saphyr::from_str(file("values.yaml")).context("read the chart's values.yaml")
}

/// Lays `over` on `values`, which are the chart's, as Helm does: objects key by key, everything else whole, `null` takes away. Refuses what
/// the chart has no value for, and values of another kind.
pub(super) fn lay_over(values: &mut Value, over: &Value) -> anyhow::Result<()> {
    merge(values, over, "")
}

/// Values that the cluster checks itself, and that may have other keys than the chart's own do.
const FREE: &[&str] = &["affinity", "updateStrategy", "resources"];

fn is_free(path: &str) -> bool {
    path.split('.').any(|key| FREE.contains(&key))
}

fn merge(base: &mut Value, over: &Value, path: &str) -> anyhow::Result<()> {
    let (Value::Object(base), Value::Object(over)) = (base, over) else {
        bail!("values: must be an object, as in image: {{ tag: dev }}");
    };
    // What has no keys of its own takes any.
    let free = (base.is_empty() && !path.is_empty()) || is_free(path);
    for (key, value) in over {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let Some(old) = base.get_mut(key) else {
            if !free {
                let known: Vec<&str> = base.keys().map(String::as_str).collect();
                return Err(hint::error(
                    format!("value {path}: the chart has none of this name"),
                    format!("there are {}", known.join(", ")),
                ));
            }
            base.insert(key.clone(), value.clone());
            continue;
        };
        match (&mut *old, value) {
            (Value::Object(map), Value::Object(_)) if !map.is_empty() => merge(old, value, &path)?,
            (Value::Null, _) | (_, Value::Null) => *old = value.clone(),
            (known, value) if kind(known) != kind(value) && !is_free(&path) => bail!(
                "value {path}: invalid value {value}: must be {}, as in the chart's own {known}",
                kind(known)
            ),
            _ => *old = value.clone(),
        }
    }
    Ok(())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A `--set` argument, `PATH=VALUE`: a number, `true`, `false` or `null` is one, `{a,b}` a list, everything else a string, as for Helm. `\.` is a
/// dot within a key.
pub(super) fn assignment(text: &str) -> anyhow::Result<Value> {
    let (path, value) = text
        .split_once('=')
        .with_context(|| format!("--set {text:?}: must be PATH=VALUE, as in image.tag=dev"))?;
    let scalar = |text: &str| match text {
        "true" | "false" | "null" => serde_json::from_str(text).unwrap_or_default(),
        _ => match text.parse::<i64>() {
            Ok(number) if number.to_string() == text => json!(number),
            _ => json!(text),
        },
    };
    let value = match value.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        Some("") => json!([]),
        Some(list) => list.split(',').map(|item| scalar(item.trim())).collect(),
        None => scalar(value),
    };
    let dotted = path.replace("\\.", "\0");
    let keys: Vec<String> = dotted.split('.').map(|key| key.replace('\0', ".")).collect();
    if keys.iter().any(String::is_empty) {
        bail!("--set {text:?}: a part of the path is empty");
    }
    Ok(keys.into_iter().rev().fold(value, |value, key| Value::Object(Map::from_iter([(key, value)]))))
}

/// The templates, ready to render.
pub(super) fn templates() -> anyhow::Result<Templates> {
    let mut templates = Templates::default();
    for (path, text) in FILES.iter().filter(|(path, _)| path.starts_with("templates/")) {
        templates.add(path, text)?;
    }
    Ok(templates)
}

/// What templates see as `.`.
pub(super) fn root(values: &Value, release: &str, namespace: &str) -> anyhow::Result<Value> {
    let chart: Value = serde_saphyr::from_str(file("Chart.yaml")).context("read Chart.yaml")?;
    Ok(json!({
        "Values": values,
        "Release": { "Name": release, "Namespace": namespace, "Service": "gantry" },
        "Chart": { "Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"] },
    }))
}

/// Values that are null unless somebody says yes or no.
#[cfg(test)]
const SWITCHES: [&str; 4] =
    [".privileged", ".failOnInitError", ".gfd.noTimestamp", ".nfd.enableNodeFeatureApi"];

/// The JSON Schema of values, for `helm install` to check: the shape of the chart's own, and the words that a value may be.
#[cfg(test)]
pub(super) fn schema(values: &Value, path: &str) -> Value {
    const WORDS: &[(&str, &[&str])] = &[
        (".image.pullPolicy", &["Always", "IfNotPresent", "Never"]),
        (".logFormat", &["text", "json"]),
        (".identity", &["auto", "nri", "shim", "kubelet"]),
        (".health.profile", &["gantry", "nvidia"]),
        (".toolkit.runtime", &["containerd", "crio", "docker"]),
    ];
    match values {
        Value::Object(map) if !map.is_empty() => {
            let properties: Map<_, _> = map
                .iter()
                .map(|(key, value)| (key.clone(), schema(value, &format!("{path}.{key}"))))
                .collect();
            let mut schema = json!({ "type": "object", "properties": properties });
            // Helm adds it.
            if path.is_empty() {
                schema["properties"]["global"] = json!({ "type": "object" });
            }
            schema["additionalProperties"] = is_free(path).into();
            schema
        }
        Value::Object(_) => json!({ "type": "object" }),
        Value::Array(_) => json!({ "type": "array" }),
        Value::Bool(_) => json!({ "type": "boolean" }),
        Value::Number(_) => json!({ "type": "integer", "minimum": 0 }),
        Value::String(_) => match WORDS.iter().find(|(known, _)| *known == path) {
            Some((_, words)) => json!({ "type": "string", "enum": words }),
            None => json!({ "type": "string" }),
        },
        Value::Null if SWITCHES.contains(&path) => json!({ "type": ["boolean", "null"] }),
        Value::Null => json!({ "type": ["string", "null"] }),
    }
}
