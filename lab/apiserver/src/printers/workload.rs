//! Computed columns of workloads.

use gantry_units::human_duration;
use jiff::Timestamp;
use serde_json::Value;

use super::cells::{
    condition_is_true, is_terminating, items, number, seconds_since, text, text_or, timestamp,
};

/// `deployment.apps/web` of the owner that controls the object.
pub(super) fn controller(object: &Value, _: Timestamp) -> Value {
    let owner =
        items(&object["metadata"]["ownerReferences"]).iter().find(|owner| owner["controller"] == true);
    let Some(owner) = owner else { return "<none>".into() };
    let group = text(&owner["apiVersion"]).split_once('/').map_or("", |(group, _)| group);
    let kind = text(&owner["kind"]).to_lowercase();
    let name = text(&owner["name"]);
    if group.is_empty() { format!("{kind}/{name}") } else { format!("{kind}.{group}/{name}") }.into()
}

pub(super) fn cron_job_suspended(object: &Value, _: Timestamp) -> Value {
    if object["spec"]["suspend"] == true { "True" } else { "False" }.into()
}

pub(super) fn job_status(job: &Value, _: Timestamp) -> Value {
    let ended = [("Complete", "Complete"), ("Failed", "Failed")];
    let going = [
        ("Suspended", "Suspended"),
        ("FailureTarget", "FailureTarget"),
        ("SuccessCriteriaMet", "SuccessCriteriaMet"),
    ];
    let find = |table: &[(&str, &'static str)]| {
        table.iter().find(|(condition, _)| condition_is_true(job, condition)).map(|(_, status)| *status)
    };
    let terminating = is_terminating(job).then_some("Terminating");
    find(&ended).or(terminating).or_else(|| find(&going)).unwrap_or("Running").into()
}

pub(super) fn job_completions(job: &Value, _: Timestamp) -> Value {
    let done = number(&job["status"]["succeeded"]);
    let parallelism = number(&job["spec"]["parallelism"]);
    match job["spec"]["completions"].as_i64() {
        Some(wanted) => format!("{done}/{wanted}"),
        None if parallelism > 1 => format!("{done}/1 of {parallelism}"),
        None => format!("{done}/1"),
    }
    .into()
}

pub(super) fn job_duration(job: &Value, now: Timestamp) -> Value {
    let end = timestamp(&job["status"]["completionTime"]).unwrap_or(now);
    seconds_since(&job["status"]["startTime"], end).map(human_duration).unwrap_or_default().into()
}

pub(super) fn autoscaler_reference(object: &Value, _: Timestamp) -> Value {
    let target = &object["spec"]["scaleTargetRef"];
    format!("{}/{}", text(&target["kind"]), text(&target["name"])).into()
}

/// How many metrics TARGETS names before it only counts the rest.
const SHOWN_METRICS: usize = 2;

/// `cpu: 30%/80%, 12/100 (avg)`: the present value and the target of each metric.
pub(super) fn autoscaler_targets(object: &Value, _: Timestamp) -> Value {
    let wanted = items(&object["spec"]["metrics"]);
    let current = items(&object["status"]["currentMetrics"]);
    let mut parts: Vec<String> = wanted
        .iter()
        .enumerate()
        .map(|(i, metric)| autoscaler_target(metric, current.get(i).unwrap_or(&Value::Null)))
        .collect();
    if parts.is_empty() {
        return "<none>".into();
    }
    let more = parts.len().saturating_sub(SHOWN_METRICS);
    parts.truncate(SHOWN_METRICS);
    let shown = parts.join(", ");
    if more > 0 { format!("{shown} + {more} more...") } else { shown }.into()
}

fn autoscaler_target(metric: &Value, current: &Value) -> String {
    let kind = text(&metric["type"]);
    let source = match kind {
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        "Pods" => "pods",
        "Object" => "object",
        "External" => "external",
        _ => return "<unknown type>".to_owned(),
    };
    let target = &metric[source]["target"];
    let now = if current["type"] == metric["type"] { &current[source]["current"] } else { &Value::Null };
    let quantity = |value: &Value| text_or(value, "<unknown>");
    if matches!(kind, "Resource" | "ContainerResource") {
        let name = text(&metric[source]["name"]);
        if !target["averageValue"].is_null() {
            return format!(
                "{name}: {}/{}",
                quantity(&now["averageValue"]),
                quantity(&target["averageValue"])
            );
        }
        let percent = |value: &Value, absent: &str| {
            value.as_i64().map_or_else(|| absent.to_owned(), |percent| format!("{percent}%"))
        };
        let now = percent(&now["averageUtilization"], "<unknown>");
        return format!("{name}: {now}/{}", percent(&target["averageUtilization"], "<auto>"));
    }
    if target["averageValue"].is_null() {
        return format!("{}/{}", quantity(&now["value"]), quantity(&target["value"]));
    }
    let pair = format!("{}/{}", quantity(&now["averageValue"]), quantity(&target["averageValue"]));
    if kind == "Pods" { pair } else { format!("{pair} (avg)") }
}
