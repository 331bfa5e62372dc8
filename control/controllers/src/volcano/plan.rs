//! What to do about a Job, given its pods.

use std::collections::{BTreeMap, BTreeSet};

use gantry_dialect::{GROUP_MIN_MEMBER_ANNOTATION, GROUP_NAME_ANNOTATION};
use serde_json::{Value, json};

use super::job::{Job, Task};

/// The label by which a Job's pods are found.
pub(crate) const JOB_LABEL: &str = "volcano.sh/job-name";

/// What is to be done.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Pods that are missing.
    pub(crate) create: Vec<Value>,
    /// Names of pods that are too many.
    pub(crate) delete: Vec<String>,
    /// The Job's status without time stamps.
    pub(crate) status: Value,
    /// The PodGroup's status without time stamps.
    pub(crate) group_status: Value,
}

/// What matters of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) task: String,
    pub(crate) phase: String,
    pub(crate) deleting: bool,
}

impl Seen {
    pub(crate) fn parse(pod: &Value) -> Self {
        let text =
            |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            name: text("/metadata/name"),
            task: text("/metadata/labels/volcano.sh~1task-spec"),
            phase: text("/status/phase"),
            deleting: pod.pointer("/metadata/deletionTimestamp").is_some(),
        }
    }
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Counts {
    pending: u64,
    running: u64,
    succeeded: u64,
    failed: u64,
    terminating: u64,
}

impl Counts {
    fn add(&mut self, pod: &Seen) {
        let count = match pod.phase.as_str() {
            _ if pod.deleting => &mut self.terminating,
            "Running" => &mut self.running,
            "Succeeded" => &mut self.succeeded,
            "Failed" => &mut self.failed,
            _ => &mut self.pending,
        };
        *count += 1;
    }
}

/// Plans for `job`, whose pods are `pods`.
pub(crate) fn plan(job: &Job, pods: &[Seen]) -> Plan {
    let mut counts = Counts::default();
    let mut by_task: BTreeMap<&str, Counts> =
        job.tasks.iter().map(|task| (task.name.as_str(), Counts::default())).collect();
    for pod in pods {
        counts.add(pod);
        by_task.entry(&pod.task).or_default().add(pod);
    }
    let phase = phase(job, &counts, &by_task);
    let mut plan = Plan::default();
    // A job that has ended gets no pods: those that were deleted since are not missing.
    if !job.deleting && matches!(phase, "Pending" | "Running") {
        let wanted: BTreeMap<String, (&Task, u64)> = job
            .tasks
            .iter()
            .flat_map(|task| {
                (0..task.replicas)
                    .map(move |index| (format!("{}-{}-{index}", job.name, task.name), (task, index)))
            })
            .collect();
        let present: BTreeSet<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        plan.create = wanted
            .iter()
            .filter(|(name, _)| !present.contains(name.as_str()))
            .map(|(name, (task, index))| pod(job, task, *index, name))
            .collect();
        plan.delete = pods
            .iter()
            .filter(|pod| !pod.deleting && !wanted.contains_key(&pod.name))
            .map(|pod| pod.name.clone())
            .collect();
    }
    let task_counts: BTreeMap<&str, Value> = by_task
        .iter()
        .map(|(task, counts)| {
            // A phase without pods is null: in a merge patch that takes away the number that stood there.
            let phases: BTreeMap<&str, Option<u64>> = [
                ("Pending", counts.pending),
                ("Running", counts.running),
                ("Succeeded", counts.succeeded),
                ("Failed", counts.failed),
            ]
            .into_iter()
            .map(|(phase, count)| (phase, (count > 0).then_some(count)))
            .collect();
            (*task, json!({"phase": phases}))
        })
        .collect();
    plan.status = json!({
        "state": {"phase": phase},
        "minAvailable": job.min_available,
        "pending": counts.pending,
        "running": counts.running,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "terminating": counts.terminating,
        "taskStatusCount": task_counts,
    });
    plan.group_status = json!({
        "phase": group_phase(job, &counts, phase),
        "running": counts.running,
        "succeeded": counts.succeeded,
        "failed": counts.failed,
    });
    plan
}

/// Whether `old` has all that the merge patch `new` says, so that writing it would change nothing.
pub(super) fn holds(old: &Value, new: &Value) -> bool {
    match new {
        Value::Object(fields) => fields.iter().all(|(key, value)| holds(&old[key], value)),
        // An absent field reads as null.
        _ => old == new,
    }
}

/// The phase by Volcano's rules: started with `minAvailable`, ended when every pod has, a success if every task
/// that must succeed did.
fn phase(job: &Job, counts: &Counts, by_task: &BTreeMap<&str, Counts>) -> &'static str {
    match job.phase.as_deref() {
        Some("Completed") => return "Completed",
        Some("Failed") => return "Failed",
        _ => {}
    }
    if job.min_success.is_some_and(|least| counts.succeeded >= least) {
        return "Completed";
    }
    let total: u64 = job.tasks.iter().map(|task| task.replicas).sum();
    if counts.succeeded + counts.failed == total {
        let tasks_met = job.tasks.iter().all(|task| {
            by_task.get(task.name.as_str()).map_or(0, |counts| counts.succeeded) >= task.min_available
        });
        return if tasks_met && counts.succeeded >= job.min_available { "Completed" } else { "Failed" };
    }
    let started = counts.running + counts.succeeded + counts.failed >= job.min_available;
    if started { "Running" } else { "Pending" }
}

fn group_phase(job: &Job, counts: &Counts, phase: &str) -> &'static str {
    let running = counts.running + counts.succeeded;
    match phase {
        "Completed" | "Failed" => "Completed",
        _ if running >= job.min_available => "Running",
        _ if running > 0 => "Unknown",
        _ => "Inqueue",
    }
}

fn pod(job: &Job, task: &Task, index: u64, name: &str) -> Value {
    let mut pod = task.template.clone();
    pod["apiVersion"] = "v1".into();
    pod["kind"] = "Pod".into();
    let metadata = &mut pod["metadata"];
    metadata["name"] = name.into();
    metadata["namespace"] = job.namespace.clone().into();
    metadata["ownerReferences"] = json!([owner(job)]);
    for (key, value) in [
        (JOB_LABEL, job.name.clone()),
        ("volcano.sh/job-namespace", job.namespace.clone()),
        ("volcano.sh/queue-name", job.queue.clone()),
        ("volcano.sh/task-spec", task.name.clone()),
        ("volcano.sh/task-index", index.to_string()),
    ] {
        metadata["labels"][key] = value.clone().into();
        metadata["annotations"][key] = value.into();
    }
    metadata["annotations"][GROUP_NAME_ANNOTATION] = job.group_name().into();
    metadata["annotations"][GROUP_MIN_MEMBER_ANNOTATION] = job.min_available.to_string().into();
    pod["spec"]["schedulerName"] = job.scheduler_name.clone().into();
    if let (Some(class), true) = (&job.priority_class, pod["spec"]["priorityClassName"].is_null()) {
        pod["spec"]["priorityClassName"] = class.clone().into();
    }
    pod
}

/// The PodGroup of a job.
pub(crate) fn pod_group(job: &Job) -> Value {
    let mut spec = json!({"minMember": job.min_available, "queue": job.queue});
    if let Some(class) = &job.priority_class {
        spec["priorityClassName"] = class.clone().into();
    }
    json!({
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": job.group_name(),
            "namespace": job.namespace,
            "ownerReferences": [owner(job)],
        },
        "spec": spec,
    })
}

fn owner(job: &Job) -> Value {
    json!({
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "name": job.name,
        "uid": job.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(spec: &Value) -> Job {
        Job::parse(&json!({"metadata": {"name": "j", "namespace": "n", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn gang() -> Job {
        job(
            &json!({"minAvailable": 2, "tasks": [{"replicas": 3, "name": "w", "template": {"spec": {"x": 1}}}]}),
        )
    }

    fn pods(phases: &[&str]) -> Vec<Seen> {
        phases
            .iter()
            .enumerate()
            .map(|(index, phase)| Seen {
                name: format!("j-w-{index}"),
                task: "w".to_owned(),
                phase: (*phase).to_owned(),
                deleting: false,
            })
            .collect()
    }

    #[test]
    fn missing_pods_are_made_with_their_group() {
        let plan = plan(&gang(), &pods(&["Running"]));
        let names: Vec<&str> =
            plan.create.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["j-w-1", "j-w-2"]);
        let pod = &plan.create[0];
        assert_eq!(pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"], "j-u");
        assert_eq!(pod["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"], "2");
        assert_eq!(pod["spec"], json!({"x": 1, "schedulerName": "volcano"}));
    }

    #[test]
    fn phases_follow_the_pods() {
        for (phases, job_phase, group_phase) in [
            (&[][..], "Pending", "Inqueue"),
            (&["Running", "Pending", "Pending"], "Pending", "Unknown"),
            (&["Running", "Running", "Pending"], "Running", "Running"),
            (&["Succeeded", "Running", "Pending"], "Running", "Running"),
            (&["Succeeded", "Succeeded", "Succeeded"], "Completed", "Completed"),
            (&["Succeeded", "Succeeded", "Failed"], "Failed", "Completed"),
        ] {
            let plan = plan(&gang(), &pods(phases));
            assert_eq!(plan.status["state"]["phase"], job_phase, "{phases:?}");
            assert_eq!(plan.group_status["phase"], group_phase, "{phases:?}");
        }
    }

    #[test]
    fn a_phase_that_no_pod_is_in_any_more_leaves_the_counts() {
        let before = json!({"taskStatusCount": {"w": {"phase": {"Pending": 2, "Running": 1}}}});
        let status = plan(&gang(), &pods(&["Running", "Running", "Running"])).status;
        assert!(!holds(&before, &json!({"taskStatusCount": status["taskStatusCount"]})));
        let phases = &status["taskStatusCount"]["w"]["phase"];
        assert_eq!((&phases["Running"], phases.get("Pending")), (&json!(3), Some(&Value::Null)));
        let after = json!({"taskStatusCount": {"w": {"phase": {"Running": 3}}}});
        assert!(holds(&after, &json!({"taskStatusCount": status["taskStatusCount"]})));
    }

    #[test]
    fn a_job_that_has_ended_makes_no_pods() {
        let mut job = gang();
        job.phase = Some("Completed".to_owned());
        assert!(plan(&job, &[]).create.is_empty());
    }

    #[test]
    fn a_smaller_job_loses_pods() {
        let job = job(&json!({"tasks": [{"replicas": 1, "name": "w", "template": {}}]}));
        assert_eq!(plan(&job, &pods(&["Running", "Running"])).delete, ["j-w-1"]);
    }

    fn with_template(template: &Value) -> Value {
        json!({"tasks": [{"replicas": 1, "template": template}]})
    }

    #[test]
    fn a_template_with_nulls_makes_pods() {
        let template = json!({"metadata": {"labels": null, "annotations": null}, "spec": null});
        let plan = plan(&job(&with_template(&template)), &[]);
        assert_eq!(plan.create[0]["metadata"]["labels"]["volcano.sh/task-index"], "0");
    }

    #[test]
    fn bad_jobs_are_told_the_field_and_the_rule() {
        for (spec, expected) in [
            (json!({}), "spec.tasks: invalid value 0: 1 to 100000 replicas together"),
            (
                json!({"minAvailable": 9, "tasks": [{"replicas": 1, "template": {}}]}),
                "spec.minAvailable: invalid value 9: at most the replicas of all tasks together",
            ),
            (
                json!({"tasks": [{"replicas": -1, "template": {}}]}),
                "spec.tasks[0].replicas: invalid value -1: a whole number from 0",
            ),
            (
                json!({"tasks": [{"replicas": 1}]}),
                "spec.tasks[0].template: invalid value null: a pod template",
            ),
            (
                with_template(&json!({"metadata": "x"})),
                "spec.tasks[0].template.metadata: invalid value \"x\": an object",
            ),
            (
                with_template(&json!({"metadata": {"labels": []}})),
                "spec.tasks[0].template.metadata.labels: invalid value []: an object",
            ),
            (
                with_template(&json!({"metadata": {"annotations": true}})),
                "spec.tasks[0].template.metadata.annotations: invalid value true: an object",
            ),
            (with_template(&json!({"spec": 3})), "spec.tasks[0].template.spec: invalid value 3: an object"),
        ] {
            let object = json!({"metadata": {"name": "j"}, "spec": spec});
            assert_eq!(Job::parse(&object).unwrap_err().to_string(), expected);
        }
    }
}
