//! Job: pods until enough of them succeeded.
//!
//! A pod of a Job carries a finalizer. When it ends, its UID goes into `status.uncountedTerminatedPods`; then the
//! finalizer is taken off; then the UID becomes one more in `status.succeeded` or `status.failed`. Whatever is
//! deleted or restarted in between, a pod is counted exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::indexes::Indexes;
use super::pods::{condition, sort_for_deletion};
use super::replicaset::generate_name;
use crate::json::{
    Fields as _, controller_reference, entry, seconds_between, stamp, status_diff, without_zeros,
};
use crate::kinds::Kind;
use crate::plan::{Create, Delete, Note, Patch, Plan};
use crate::pod::{JOB_FINALIZER, Phase, Pod, from_template};
use crate::store::Ref;

/// Pods that one run creates, deletes or counts at most; the rest follows at once in the next.
const BURST: usize = 500;
/// Delay before a failed pod is replaced; doubled by each further failure in a row.
const FIRST_BACKOFF_S: i64 = 10;
/// The longest such delay.
const MAX_BACKOFF_S: i64 = 600;

const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// Labels of a Job's pods, and whether their value is the Job's UID rather than its name.
const LABELS: [(&str, bool); 4] = [
    ("batch.kubernetes.io/controller-uid", true),
    ("batch.kubernetes.io/job-name", false),
    ("controller-uid", true),
    ("job-name", false),
];

/// What to do for a Job that has these pods.
pub(crate) fn plan(job: &Value, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    if !matches!(job.text("/spec/managedBy"), "" | "kubernetes.io/job-controller") {
        return Plan::default();
    }
    if ["Complete", "Failed"].iter().any(|kind| job.is_true(kind)) {
        return finished(job, pods, now);
    }
    let mut run = Run::new(job, pods, now);
    run.count();
    run.judge();
    run.manage();
    run.into_plan()
}

/// A pod whose Job is gone keeps its finalizer no longer.
pub(crate) fn release(pod: &Pod) -> Plan {
    let mut plan = Plan::default();
    if pod.is_tracked() {
        plan.patch(untracked(pod));
    }
    plan
}

fn untracked(pod: &Pod) -> Patch {
    let others: Vec<&String> = pod.finalizers.iter().filter(|name| *name != JOB_FINALIZER).collect();
    let metadata = json!({"uid": pod.uid, "finalizers": others});
    Patch::new(Kind::Pod, &pod.id, json!({"metadata": metadata}))
}

fn finished(job: &Value, pods: &[Arc<Pod>], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    plan.patches(pods.iter().filter(|pod| pod.is_tracked()).map(|pod| untracked(pod)).collect());
    let Some(ttl) = job.int("/spec/ttlSecondsAfterFinished").filter(|_| !job.is_deleting()) else {
        return plan;
    };
    let ended =
        ["Complete", "Failed"].iter().find_map(|kind| job.condition(kind)?.time("/lastTransitionTime"));
    let left = ttl - ended.map_or(0, |ended| seconds_between(ended, now));
    if left > 0 {
        plan.again_in(left);
    } else {
        plan.deletes(vec![Delete::new(Kind::Job, &Ref::new(job.namespace(), job.name()), job.uid())]);
    }
    plan
}

/// The completion indexes of a Job are those below this.
fn index_count(job: &Value) -> u32 {
    job.int("/spec/completions").and_then(|completions| u32::try_from(completions).ok()).unwrap_or(0)
}

/// How a Job ends, once that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Verdict {
    success: bool,
    reason: String,
    message: String,
}

impl Verdict {
    fn new(success: bool, reason: &str, message: impl Into<String>) -> Self {
        Self { success, reason: reason.to_owned(), message: message.into() }
    }
}

struct Run<'a> {
    job: &'a Value,
    now: Timestamp,
    pods: &'a [Arc<Pod>],
    active: Vec<Arc<Pod>>,
    terminating: usize,
    indexed: bool,
    completions: Option<i64>,
    parallelism: i64,
    succeeded: i64,
    failed: i64,
    uncounted_succeeded: Vec<String>,
    uncounted_failed: Vec<String>,
    completed: Indexes,
    verdict: Option<Verdict>,
    conditions: Vec<Value>,
    suspended: bool,
    /// Pods whose finalizer may go once the status is written.
    counted: Vec<Arc<Pod>>,
    plan: Plan,
    status_notes: Vec<Note>,
}

impl<'a> Run<'a> {
    fn new(job: &'a Value, pods: &'a [Arc<Pod>], now: Timestamp) -> Self {
        let texts = |path: &str| {
            job.list(path).iter().filter_map(|uid| uid.as_str().map(str::to_owned)).collect::<Vec<_>>()
        };
        Self {
            job,
            now,
            pods,
            active: pods.iter().filter(|pod| pod.is_active()).cloned().collect(),
            terminating: pods.iter().filter(|pod| pod.deleting && !pod.has_ended()).count(),
            indexed: job.text("/spec/completionMode") == "Indexed",
            completions: job.int("/spec/completions"),
            parallelism: job.int("/spec/parallelism").unwrap_or(1),
            succeeded: job.int("/status/succeeded").unwrap_or(0),
            failed: job.int("/status/failed").unwrap_or(0),
            uncounted_succeeded: texts("/status/uncountedTerminatedPods/succeeded"),
            uncounted_failed: texts("/status/uncountedTerminatedPods/failed"),
            completed: Indexes::parse(job.text("/status/completedIndexes"), index_count(job)),
            verdict: None,
            conditions: job.list("/status/conditions").to_vec(),
            suspended: job.flag("/spec/suspend"),
            counted: Vec::new(),
            plan: Plan::default(),
            status_notes: Vec::new(),
        }
    }

    /// Whether a pod counts as failed: also one that is deleted before it ended, unless the Job waits for that.
    fn is_failed(&self, pod: &Pod) -> bool {
        let waits = self.job.text("/spec/podReplacementPolicy") == "Failed"
            || !self.job.at("/spec/podFailurePolicy").is_null();
        pod.phase == Phase::Failed || (pod.deleting && pod.phase != Phase::Succeeded && !waits)
    }

    fn rule(&self, pod: &Pod) -> Option<Rule> {
        failure_rule(self.job.list("/spec/podFailurePolicy/rules"), pod)
    }

    /// Moves ended pods on by one step towards being counted.
    fn count(&mut self) {
        let tracked: BTreeMap<&str, &Arc<Pod>> =
            self.pods.iter().filter(|pod| pod.is_tracked()).map(|pod| (&*pod.uid, pod)).collect();
        let settle = |uids: &mut Vec<String>, counter: &mut i64| {
            uids.retain(|uid| {
                let keeps = tracked.contains_key(uid.as_str());
                *counter += i64::from(!keeps);
                keeps
            });
        };
        settle(&mut self.uncounted_succeeded, &mut self.succeeded);
        settle(&mut self.uncounted_failed, &mut self.failed);
        let known: BTreeSet<String> =
            self.uncounted_succeeded.iter().chain(&self.uncounted_failed).cloned().collect();
        for pod in tracked.into_values() {
            if known.contains(&pod.uid) {
                self.counted.push(pod.clone());
                continue;
            }
            if self.counted.len() >= BURST {
                self.plan.again_in(0);
                break;
            }
            if pod.phase == Phase::Succeeded {
                if self.indexed {
                    let limit = index_count(self.job);
                    if let Some(index) = pod.completion_index.filter(|index| *index < limit) {
                        self.completed.insert(index);
                    }
                } else {
                    self.uncounted_succeeded.push(pod.uid.clone());
                }
                self.counted.push(pod.clone());
            } else if self.is_failed(pod) {
                if self.rule(pod).is_none_or(|rule| rule.action != "Ignore") {
                    self.uncounted_failed.push(pod.uid.clone());
                }
                self.counted.push(pod.clone());
            }
        }
        if self.indexed {
            self.succeeded = self.completed.count();
        }
    }

    fn all_succeeded(&self) -> i64 {
        self.succeeded + i64::try_from(self.uncounted_succeeded.len()).unwrap_or(0)
    }

    fn all_failed(&self) -> i64 {
        self.failed + i64::try_from(self.uncounted_failed.len()).unwrap_or(0)
    }

    fn start(&self) -> Option<Timestamp> {
        self.job.time("/status/startTime")
    }

    /// Whether the Job has ended, and how.
    fn judge(&mut self) {
        let decided = [("FailureTarget", false), ("SuccessCriteriaMet", true)].into_iter().find_map(
            |(kind, success)| {
                let condition = self.job.condition(kind).filter(|c| c.text("/status") == "True")?;
                Some(Verdict::new(success, condition.text("/reason"), condition.text("/message")))
            },
        );
        self.verdict = decided.or_else(|| self.failure()).or_else(|| self.success());
    }

    fn failure(&mut self) -> Option<Verdict> {
        let fatal =
            self.pods.iter().filter(|pod| self.is_failed(pod)).find_map(|pod| {
                self.rule(pod).filter(|rule| rule.action == "FailJob").map(|rule| rule.message)
            });
        if let Some(message) = fatal {
            return Some(Verdict::new(false, "PodFailurePolicy", message));
        }
        let limit = self.job.int("/spec/backoffLimit").unwrap_or(6);
        let restarts: i64 = self
            .active
            .iter()
            .filter(|pod| pod.restarts_in_place && matches!(pod.phase, Phase::Running | Phase::Pending))
            .map(|pod| pod.restarts)
            .sum();
        let restarted_too_often = if limit == 0 { restarts > 0 } else { restarts >= limit };
        if self.all_failed() > limit || restarted_too_often {
            let message = "Job has reached the specified backoff limit";
            return Some(Verdict::new(false, "BackoffLimitExceeded", message));
        }
        let deadline = self.job.int("/spec/activeDeadlineSeconds").filter(|_| !self.suspended)?;
        let left = deadline - seconds_between(self.start()?, self.now);
        if left <= 0 {
            let message = "Job was active longer than specified deadline";
            return Some(Verdict::new(false, "DeadlineExceeded", message));
        }
        self.plan.again_in(left);
        None
    }

    fn success(&self) -> Option<Verdict> {
        let reached = match self.completions {
            Some(completions) => self.all_succeeded() >= completions,
            None => self.all_succeeded() > 0 && self.active.is_empty(),
        };
        reached.then(|| Verdict::new(true, "CompletionsReached", "Reached expected number of succeeded pods"))
    }

    /// Creates or deletes pods.
    fn manage(&mut self) {
        if self.verdict.is_some() {
            // These keep their finalizer until they are counted, as failed.
            let deletes = self.active.iter().take(BURST).map(|pod| Delete::pod(&pod.id, &pod.uid));
            let deletes = deletes.collect();
            self.plan.deletes(deletes);
            return;
        }
        if self.job.is_deleting() {
            return;
        }
        if self.suspended {
            self.dismiss(self.active.clone());
            return;
        }
        let wanted = match self.completions {
            Some(completions) => (completions - self.all_succeeded()).min(self.parallelism).max(0),
            None if self.all_succeeded() > 0 => {
                i64::try_from(self.active.len()).unwrap_or(0).min(self.parallelism)
            }
            None => self.parallelism,
        };
        let wanted = usize::try_from(wanted).unwrap_or(0);
        let misfits = self.misfits();
        if !misfits.is_empty() {
            self.dismiss(misfits);
            return;
        }
        if self.active.len() > wanted {
            let mut ranked = self.active.clone();
            sort_for_deletion(&mut ranked, self.now);
            ranked.truncate(self.active.len() - wanted);
            self.dismiss(ranked);
            return;
        }
        let replaces_only_failed = self.job.text("/spec/podReplacementPolicy") == "Failed";
        let waiting = if replaces_only_failed { self.terminating } else { 0 };
        let missing = wanted.saturating_sub(self.active.len() + waiting);
        if missing == 0 {
            return;
        }
        let pause = self.pause();
        if pause > 0 {
            self.plan.again_in(pause);
            return;
        }
        if missing > BURST {
            self.plan.again_in(0);
        }
        let missing = missing.min(BURST);
        let creates = if self.indexed {
            self.open_indexes(missing).into_iter().map(|index| Create::pod(self.pod(Some(index)))).collect()
        } else {
            vec![Create::pod(self.pod(None)); missing]
        };
        self.plan.creates(creates);
    }

    /// Active pods that no index needs: a second one of an index, or one beyond the completions.
    fn misfits(&self) -> Vec<Arc<Pod>> {
        if !self.indexed {
            return Vec::new();
        }
        let (limit, mut seen) = (index_count(self.job), BTreeSet::new());
        let mut fits = |pod: &Arc<Pod>| {
            let index =
                pod.completion_index.filter(|index| *index < limit && !self.completed.contains(*index));
            index.is_some_and(|index| seen.insert(index))
        };
        self.active.iter().filter(|pod| !fits(pod)).cloned().collect()
    }

    fn open_indexes(&self, count: usize) -> Vec<u32> {
        let waits_for_terminating = self.job.text("/spec/podReplacementPolicy") == "Failed";
        let taken: BTreeSet<u32> = self
            .pods
            .iter()
            .filter(|pod| pod.is_active() || (waits_for_terminating && pod.deleting && !pod.has_ended()))
            .filter_map(|pod| pod.completion_index)
            .collect();
        let open = self.completed.missing(index_count(self.job)).filter(|index| !taken.contains(index));
        open.take(count).collect()
    }

    /// Deletes pods that have not failed: they are let go first, so that they do not count.
    fn dismiss(&mut self, mut pods: Vec<Arc<Pod>>) {
        if pods.len() > BURST {
            pods.truncate(BURST);
            self.plan.again_in(0);
        }
        let tracked = pods.iter().filter(|pod| pod.is_tracked()).map(|pod| untracked(pod)).collect();
        self.plan.patches(tracked);
        self.plan.deletes(pods.iter().map(|pod| Delete::pod(&pod.id, &pod.uid)).collect());
    }

    /// Seconds until pods may be replaced after failures in a row.
    fn pause(&self) -> i64 {
        let ended_at = |pod: &Pod| pod.finished.or(pod.ready_since).unwrap_or(pod.created);
        let success = self.pods.iter().filter(|pod| pod.phase == Phase::Succeeded);
        let last_success = success.map(|pod| ended_at(pod)).max();
        let failures: Vec<Timestamp> = self
            .pods
            .iter()
            .filter(|pod| pod.phase == Phase::Failed)
            .map(|pod| ended_at(pod))
            .filter(|at| last_success.is_none_or(|success| *at > success))
            // Nodes' clocks differ a little; what lies further ahead was before this clock was put back.
            .filter(|at| seconds_between(self.now, *at) <= MAX_BACKOFF_S)
            .collect();
        let Some(last) = failures.iter().max() else { return 0 };
        let doublings = u32::try_from(failures.len() - 1).unwrap_or(u32::MAX).min(10);
        let delay = (FIRST_BACKOFF_S << doublings).min(MAX_BACKOFF_S);
        (delay - seconds_between(*last, self.now)).max(0)
    }

    fn pod(&self, index: Option<u32>) -> Value {
        let job = self.job;
        let owner = controller_reference(Kind::Job, job);
        let mut pod = from_template(job.at("/spec/template"), job.namespace(), &owner);
        let metadata = entry(&mut pod, "metadata");
        let labels = entry(metadata, "labels");
        for (label, is_uid) in LABELS {
            labels[label] = if is_uid { job.uid() } else { job.name() }.into();
        }
        let mut finalizers = metadata.list("/finalizers").to_vec();
        finalizers.push(JOB_FINALIZER.into());
        metadata["finalizers"] = finalizers.into();
        metadata["generateName"] = generate_name(job.name()).into();
        if let Some(index) = index {
            let text = index.to_string();
            metadata["generateName"] = generate_name(&format!("{}-{index}", job.name())).into();
            entry(metadata, "labels")[INDEX] = text.clone().into();
            entry(metadata, "annotations")[INDEX] = text.into();
            let spec = entry(&mut pod, "spec");
            spec["hostname"] = format!("{}-{index}", job.name()).into();
            for field in ["initContainers", "containers"] {
                for container in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
                    with_index(container);
                }
            }
        }
        pod
    }

    fn set_condition(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let mut new = condition(&self.conditions, kind, status, reason, message, &stamp(self.now));
        let before = self.conditions.iter().find(|condition| condition.text("/type") == kind);
        if before.is_some_and(|c| c.text("/status") == status && c.text("/reason") == reason) {
            return;
        }
        new["lastProbeTime"] = stamp(self.now).into();
        self.conditions.retain(|condition| condition.text("/type") != kind);
        self.conditions.push(new);
    }

    fn into_plan(mut self) -> Plan {
        let now = stamp(self.now);
        let mut start = self.job.at("/status/startTime").clone();
        let was_suspended = self.job.is_true("Suspended");
        if self.verdict.is_none() && self.suspended && !was_suspended {
            self.set_condition("Suspended", "True", "JobSuspended", "Job suspended");
            self.status_notes.push(Note::normal("Suspended", "Job suspended"));
            start = Value::Null;
        } else if !self.suspended && was_suspended {
            self.set_condition("Suspended", "False", "JobResumed", "Job resumed");
            self.status_notes.push(Note::normal("Resumed", "Job resumed"));
            start = now.clone().into();
        } else if start.is_null() && !self.suspended {
            start = now.clone().into();
        }
        let mut completion = Value::Null;
        if let Some(verdict) = self.verdict.clone() {
            let Verdict { success, reason, message } = &verdict;
            let target = if *success { "SuccessCriteriaMet" } else { "FailureTarget" };
            self.set_condition(target, "True", reason, message);
            let uncounted = self.uncounted_succeeded.len() + self.uncounted_failed.len();
            if self.active.is_empty() && self.terminating == 0 && uncounted == 0 {
                let kind = if *success { "Complete" } else { "Failed" };
                self.set_condition(kind, "True", reason, message);
                if *success {
                    completion = now.into();
                    self.status_notes.push(Note::normal("Completed", "Job completed"));
                } else {
                    self.status_notes.push(Note::warning(failed_reason(reason), message.clone()));
                }
            }
        }
        let mut status = without_zeros(json!({
            "active": self.active.len(), "succeeded": self.succeeded, "failed": self.failed,
            "startTime": start, "completionTime": completion,
            "completedIndexes": self.completed.to_string(),
            "conditions": self.conditions,
        }));
        let ready = self.active.iter().filter(|pod| pod.ready).count();
        status.insert("ready".to_owned(), ready.into());
        status.insert("terminating".to_owned(), self.terminating.into());
        let uncounted = without_zeros(json!({
            "succeeded": self.uncounted_succeeded, "failed": self.uncounted_failed,
        }));
        status.insert("uncountedTerminatedPods".to_owned(), uncounted.into());
        let mut plan = Plan { steps: Vec::new(), again_after: self.plan.again_after };
        if let Some(patch) = status_diff(self.job, &Value::Object(status)) {
            let id = Ref::new(self.job.namespace(), self.job.name());
            plan.patch(Patch::status(Kind::Job, &id, patch));
        }
        for note in self.status_notes {
            plan.event(note);
        }
        plan.patches(self.counted.iter().map(|pod| untracked(pod)).collect());
        plan.steps.extend(self.plan.steps);
        plan
    }
}

fn failed_reason(reason: &str) -> &'static str {
    const REASONS: [&str; 3] = ["BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy"];
    REASONS.into_iter().find(|known| *known == reason).unwrap_or("Failed")
}

/// Tells a container of an indexed Job its index.
fn with_index(container: &mut Value) {
    const VARIABLE: &str = "JOB_COMPLETION_INDEX";
    let mut variables = container.list("/env").to_vec();
    if variables.iter().any(|variable| variable.text("/name") == VARIABLE) {
        return;
    }
    let path = format!("metadata.annotations['{INDEX}']");
    variables.push(json!({"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
    container["env"] = variables.into();
}

/// The rule of a `podFailurePolicy` that a pod falls under.
struct Rule {
    action: String,
    message: String,
}

fn failure_rule(rules: &[Value], pod: &Pod) -> Option<Rule> {
    let name = format!("{}/{}", pod.id.namespace, pod.id.name);
    rules.iter().enumerate().find_map(|(position, rule)| {
        let action = rule.text("/action").to_owned();
        let codes = rule.at("/onExitCodes");
        if !codes.is_null() {
            let wanted: Vec<i64> = codes.list("/values").iter().filter_map(Value::as_i64).collect();
            let negated = codes.text("/operator") == "NotIn";
            let container = codes.text("/containerName");
            let exit = pod.exits.iter().find(|exit| {
                exit.code != 0
                    && (container.is_empty() || exit.container == container)
                    && wanted.contains(&exit.code) != negated
            })?;
            let message = format!(
                "Container {} for pod {name} failed with exit code {} matching {action} rule at index {position}",
                exit.container, exit.code
            );
            return Some(Rule { action, message });
        }
        let condition = rule.list("/onPodConditions").iter().find(|wanted| {
            wanted.text("/status") != "False"
                && pod.true_conditions.iter().any(|kind| kind == wanted.text("/type"))
        })?;
        let kind = condition.text("/type");
        let message =
            format!("Pod {name} has condition {kind} matching {action} rule at index {position}");
        Some(Rule { action, message })
    })
}

#[cfg(test)]
mod tests {
    use super::super::pods::make;
    use super::*;
    use crate::plan::read::{created, deleted, lines, status};

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().expect("a time")
    }

    fn job(spec: Value, status: Value) -> Value {
        let mut job = json!({
            "metadata": {"name": "train", "namespace": "ml", "uid": "j"},
            "spec": {
                "parallelism": 1, "completions": 1,
                "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]}},
            },
            "status": status,
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            job["spec"][key] = value.clone();
        }
        job
    }

    fn tracked(name: &str, phase: &str, index: Option<u32>) -> Arc<Pod> {
        ended(name, phase, index, 0, "2026-01-01T00:00:00Z")
    }

    fn ended(name: &str, phase: &str, index: Option<u32>, code: i64, at: &str) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"finalizers": [JOB_FINALIZER], "annotations": {}},
            "status": {"phase": phase},
        });
        if let Some(index) = index {
            pod["metadata"]["annotations"][INDEX] = index.to_string().into();
        }
        if matches!(phase, "Failed" | "Succeeded") {
            pod["status"]["containerStatuses"] = json!([
                {"name": "main", "state": {"terminated": {"exitCode": code, "finishedAt": at}}},
            ]);
        }
        make::pod(name, pod)
    }

    #[test]
    fn pods_carry_labels_finalizer_and_owner() {
        let plan = plan(&job(json!({"parallelism": 3, "completions": 2}), json!({})), &[], now());
        let pods = created(&plan);
        assert_eq!(pods.len(), 2, "never more than completions");
        assert_eq!(pods[0]["metadata"]["labels"]["job-name"], "train");
        assert_eq!(pods[0]["metadata"]["labels"]["batch.kubernetes.io/controller-uid"], "j");
        assert_eq!(pods[0]["metadata"]["finalizers"], json!([JOB_FINALIZER]));
        assert_eq!(status(&plan).expect("a status")["startTime"], "2026-01-01T01:00:00Z");
    }

    #[test]
    fn a_pod_is_counted_in_three_steps_and_only_once() {
        // Ended: its UID is noted, then the finalizer goes.
        let done = tracked("a", "Succeeded", None);
        let first = plan(&job(json!({}), json!({"startTime": "2026-01-01T00:00:00Z"})), &[done], now());
        let noted = status(&first).expect("a status");
        assert_eq!(noted["uncountedTerminatedPods"]["succeeded"], json!(["uid-a"]));
        assert_eq!(noted["succeeded"], Value::Null);
        let text = lines(&first);
        assert!(text[0].starts_with("patch Job/status"), "{text:?}");
        assert!(text.last().is_some_and(|line| line.starts_with("patch Pod a")), "{text:?}");
        assert!(created(&first).is_empty());
        // Without finalizer, or gone: it is counted, and the Job is complete.
        let stored = json!({"startTime": "2026-01-01T00:00:00Z",
                            "uncountedTerminatedPods": {"succeeded": ["uid-a"]}});
        let second = plan(&job(json!({}), stored), &[], now());
        let counted = status(&second).expect("a status");
        assert_eq!(counted["succeeded"], 1);
        assert_eq!(counted["completionTime"], "2026-01-01T01:00:00Z");
        assert_eq!(counted["uncountedTerminatedPods"]["succeeded"], Value::Null);
        assert!(lines(&second).contains(&"event Completed Job completed".to_owned()));
        let kinds: Vec<&str> = counted.list("/conditions").iter().map(|c| c.text("/type")).collect();
        assert_eq!(kinds, ["SuccessCriteriaMet", "Complete"]);
    }

    #[test]
    fn failures_are_replaced_after_a_growing_pause() {
        let at = |second: i64| {
            let time = Timestamp::from_second(second).expect("a time");
            ended(&format!("f{second}"), "Failed", None, 1, &stamp(time))
        };
        let pods = [at(1000), at(1100)];
        let time = |second| Timestamp::from_second(second).expect("a time");
        let early = plan(&job(json!({}), json!({})), &pods, time(1105));
        assert!(created(&early).is_empty());
        assert_eq!(early.again_after, Some(std::time::Duration::from_secs(15)));
        assert_eq!(created(&plan(&job(json!({}), json!({})), &pods, time(1120))).len(), 1);
        let skewed = plan(&job(json!({}), json!({})), &pods, time(1090));
        assert_eq!(skewed.again_after, Some(std::time::Duration::from_secs(30)));
    }

    #[test]
    fn failures_before_the_clock_was_put_back_do_not_hold_a_job_up() {
        let at = |time: &str| ended(time, "Failed", None, 1, time);
        let ahead = at("2026-01-02T00:59:00Z");
        let pods = [ahead.clone()];
        assert_eq!(created(&plan(&job(json!({}), json!({})), &pods, now())).len(), 1);
        let pods = [ahead, at("2026-01-01T00:59:55Z")];
        let waiting = plan(&job(json!({}), json!({})), &pods, now());
        assert_eq!(
            (created(&waiting).len(), waiting.again_after),
            (0, Some(std::time::Duration::from_secs(5)))
        );
    }

    #[test]
    fn too_many_failures_end_the_job_once_all_pods_are_gone() {
        let spec = json!({"backoffLimit": 1, "parallelism": 2, "completions": 2});
        let counted = json!({"failed": 1, "startTime": "2026-01-01T00:00:00Z"});
        let pods = [tracked("bad", "Failed", None), tracked("other", "Running", None)];
        let first = plan(&job(spec.clone(), counted), &pods, now());
        assert_eq!(deleted(&first), ["other"]);
        let conditions = status(&first).expect("a status").list("/conditions").to_vec();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0]["type"], "FailureTarget");
        assert_eq!(conditions[0]["reason"], "BackoffLimitExceeded");
        let stored = json!({"failed": 3, "conditions": conditions});
        let second = plan(&job(spec, stored), &[], now());
        let text = lines(&second);
        assert!(text[0].contains("\"type\":\"Failed\""), "{text:?}");
        let event = "event BackoffLimitExceeded Job has reached the specified backoff limit";
        assert_eq!(text[1], event);
    }

    #[test]
    fn the_deadline_ends_the_job() {
        let spec = json!({"activeDeadlineSeconds": 60});
        let started = |at: &str| job(spec.clone(), json!({"startTime": at}));
        let pods = [tracked("slow", "Running", None)];
        let waiting = plan(&started("2026-01-01T00:59:30Z"), &pods, now());
        assert_eq!(waiting.again_after, Some(std::time::Duration::from_secs(30)));
        assert!(deleted(&waiting).is_empty());
        assert_eq!(deleted(&plan(&started("2026-01-01T00:59:00Z"), &pods, now())), ["slow"]);
    }

    #[test]
    fn indexed_jobs_fill_the_open_indexes() {
        let spec = json!({"completionMode": "Indexed", "completions": 5, "parallelism": 2});
        let pods = [tracked("a", "Succeeded", Some(1)), tracked("b", "Running", Some(2))];
        let plan = plan(&job(spec, json!({"completedIndexes": "0"})), &pods, now());
        assert_eq!(status(&plan).expect("a status")["completedIndexes"], "0,1");
        assert_eq!(status(&plan).expect("a status")["succeeded"], 2);
        let pods = created(&plan);
        assert_eq!(pods.len(), 1);
        assert_eq!(pods[0]["metadata"]["annotations"][INDEX], "3");
        assert_eq!(pods[0]["spec"]["hostname"], "train-3");
        assert_eq!(pods[0]["spec"]["containers"][0]["env"][0]["name"], "JOB_COMPLETION_INDEX");
    }

    #[test]
    fn a_suspended_job_has_no_pods_and_counts_none_as_failed() {
        let pods = [tracked("a", "Running", None)];
        let running = json!({"startTime": "2026-01-01T00:00:00Z"});
        let plan = plan(&job(json!({"suspend": true}), running), &pods, now());
        let text = lines(&plan);
        let release = text.iter().position(|line| line.starts_with("patch Pod a"));
        let delete = text.iter().position(|line| line == "delete Pod a");
        assert!(release < delete && release.is_some(), "{text:?}");
        assert_eq!(status(&plan).expect("a status")["startTime"], Value::Null);
        assert!(text.contains(&"event Suspended Job suspended".to_owned()));
    }

    #[test]
    fn a_pod_failure_policy_ignores_or_ends() {
        let rules = json!({"rules": [
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
            {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [7]}},
        ]});
        let spec = json!({"podFailurePolicy": rules, "backoffLimit": 0});
        let ignored = [ended("a", "Failed", None, 7, "2026-01-01T00:00:00Z")];
        let plan_ignored = plan(&job(spec.clone(), json!({})), &ignored, now());
        assert_eq!(created(&plan_ignored).len(), 1);
        let fatal = [ended("a", "Failed", None, 42, "2026-01-01T00:00:00Z")];
        let plan_fatal = plan(&job(spec, json!({})), &fatal, now());
        let condition = &status(&plan_fatal).expect("a status")["conditions"][0];
        let message = "Container main for pod ml/a failed with exit code 42 matching FailJob rule at index 0";
        assert_eq!((condition.text("/reason"), condition.text("/message")), ("PodFailurePolicy", message));
    }

    #[test]
    fn a_finished_job_is_deleted_after_its_time_to_live() {
        let spec = json!({"ttlSecondsAfterFinished": 100});
        let finished = |at: &str| {
            job(
                spec.clone(),
                json!({"conditions": [
                    {"type": "Complete", "status": "True", "lastTransitionTime": at},
                ]}),
            )
        };
        let early = plan(&finished("2026-01-01T00:59:00Z"), &[], now());
        assert_eq!(early.again_after, Some(std::time::Duration::from_secs(40)));
        assert_eq!(lines(&plan(&finished("2026-01-01T00:58:20Z"), &[], now())), ["delete Job train"]);
    }
}
