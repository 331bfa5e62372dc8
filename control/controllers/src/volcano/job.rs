//! A Volcano Job as far as it is acted on, parsed from JSON.

use serde_json::Value;

use crate::Error;

/// A Job with every default filled in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) scheduler_name: String,
    pub(crate) queue: String,
    pub(crate) priority_class: Option<String>,
    /// Pods that must be placed together before any starts.
    pub(crate) min_available: u64,
    /// Successes that complete the job; `None`: all of `min_available` once every pod has ended.
    pub(crate) min_success: Option<u64>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) deleting: bool,
    /// The phase that the status says, if it says one.
    pub(crate) phase: Option<String>,
}

/// Pods that are alike.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) replicas: u64,
    pub(crate) min_available: u64,
    /// The pod template, kept as JSON so that fields which this program does not know reach the pod.
    pub(crate) template: Value,
}

/// More pods than any cluster that this program is made for runs.
const MAX_PODS: u64 = 100_000;

impl Job {
    pub(crate) fn parse(object: &Value) -> Result<Self, Error> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let spec = &object["spec"];
        let mut tasks = Vec::new();
        for (index, task) in spec["tasks"].as_array().into_iter().flatten().enumerate() {
            let field = |name: &str| format!("spec.tasks[{index}].{name}");
            let replicas = count(&task["replicas"], || field("replicas"))?.unwrap_or(1);
            let min_available = count(&task["minAvailable"], || field("minAvailable"))?.unwrap_or(replicas);
            if min_available > replicas {
                return Err(invalid(
                    field("minAvailable"),
                    &task["minAvailable"],
                    "at most the task's replicas",
                ));
            }
            check_template(&task["template"], &field("template"))?;
            let name = task["name"].as_str().map_or_else(|| format!("default{index}"), str::to_owned);
            tasks.push(Task { name, replicas, min_available, template: task["template"].clone() });
        }
        let total = tasks.iter().fold(0_u64, |sum, task| sum.saturating_add(task.replicas));
        if total == 0 || total > MAX_PODS {
            return Err(invalid("spec.tasks".to_owned(), &total.into(), "1 to 100000 replicas together"));
        }
        let least = tasks.iter().map(|task| task.min_available).sum();
        let min_available = count(&spec["minAvailable"], || "spec.minAvailable".to_owned())?.unwrap_or(least);
        if min_available > total {
            return Err(invalid(
                "spec.minAvailable".to_owned(),
                &spec["minAvailable"],
                "at most the replicas of all tasks together",
            ));
        }
        Ok(Self {
            name: text("/metadata/name").unwrap_or_default(),
            namespace: text("/metadata/namespace").unwrap_or_default(),
            uid: text("/metadata/uid").unwrap_or_default(),
            scheduler_name: text("/spec/schedulerName").unwrap_or_else(|| "volcano".to_owned()),
            queue: text("/spec/queue").unwrap_or_else(|| "default".to_owned()),
            priority_class: text("/spec/priorityClassName"),
            min_available,
            min_success: count(&spec["minSuccess"], || "spec.minSuccess".to_owned())?,
            tasks,
            deleting: object.pointer("/metadata/deletionTimestamp").is_some(),
            phase: text("/status/state/phase"),
        })
    }

    /// The PodGroup of this job. The UID tells a job from an earlier one of the same name.
    pub(crate) fn group_name(&self) -> String {
        format!("{}-{}", self.name, self.uid)
    }
}

/// Checks what is written into of a template; the API server checks the rest when the pod is made.
fn check_template(template: &Value, field: &str) -> Result<(), Error> {
    if !template.is_object() {
        return Err(invalid(field.to_owned(), template, "a pod template"));
    }
    for path in ["metadata", "metadata.labels", "metadata.annotations", "spec"] {
        let value = path.split('.').fold(template, |value, key| &value[key]);
        if !value.is_object() && !value.is_null() {
            return Err(invalid(format!("{field}.{path}"), value, "an object"));
        }
    }
    Ok(())
}

fn count(value: &Value, field: impl Fn() -> String) -> Result<Option<u64>, Error> {
    match value {
        Value::Null => Ok(None),
        Value::Number(number) => {
            number.as_u64().map(Some).ok_or_else(|| invalid(field(), value, "a whole number from 0"))
        }
        _ => Err(invalid(field(), value, "a whole number from 0")),
    }
}

fn invalid(field: String, value: &Value, rule: &'static str) -> Error {
    let value: String = value.to_string().chars().take(80).collect();
    Error::Job { field, value, rule }
}
