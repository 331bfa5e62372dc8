//! CronJob: a Job at each time of a schedule.

use std::sync::Arc;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::cron::Schedule;
use crate::json::{
    Fields as _, controller_reference, entry, seconds_between, stamp, status_diff, string_map, without_zeros,
};
use crate::kinds::Kind;
use crate::plan::{Create, Delete, Note, Patch, Plan};
use crate::store::Ref;

/// Missed times above which somebody should be told.
const MANY_MISSED: i64 = 100;

/// The time zone that a schedule is read in.
#[derive(Debug, Clone)]
pub(crate) enum Zone {
    Known(TimeZone),
    /// This machine has no time zone data: the schedule is read in UTC.
    NoData,
    /// There is no zone of this name.
    Unknown,
}

/// Reads a zone from the machine's time zone data. An empty name is UTC.
pub(crate) fn zone(name: &str) -> Zone {
    const FOLDERS: [&str; 2] = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo"];
    if matches!(name, "" | "UTC" | "Etc/UTC") {
        return Zone::Known(TimeZone::UTC);
    }
    let Some(folder) = FOLDERS.into_iter().find(|folder| std::path::Path::new(folder).is_dir()) else {
        return Zone::NoData;
    };
    if name.starts_with('/') || name.split('/').any(|part| part == "..") {
        return Zone::Unknown;
    }
    let data = std::fs::read(format!("{folder}/{name}")).ok();
    let zone = data.and_then(|data| TimeZone::tzif(name, &data).ok());
    zone.map_or(Zone::Unknown, Zone::Known)
}

/// What to do for a CronJob that controls these Jobs.
pub(crate) fn plan(cron: &Value, jobs: &[Arc<Value>], zone: &Zone, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    if cron.is_deleting() {
        return plan;
    }
    let unfinished: Vec<&Arc<Value>> = jobs.iter().filter(|job| !is_finished(job)).collect();
    let mut last_schedule = cron.time("/status/lastScheduleTime");
    let last_success = jobs
        .iter()
        .filter(|job| job.is_true("Complete"))
        .filter_map(|job| job.time("/status/completionTime"))
        .chain(cron.time("/status/lastSuccessfulTime"))
        .max();
    for known in cron.list("/status/active") {
        match jobs.iter().find(|job| job.uid() == known.text("/uid")) {
            None => {
                let message = format!("Active job went missing: {}", known.text("/name"));
                plan.event(Note::normal("MissingJob", message));
            }
            Some(job) if is_finished(job) => {
                let kind = if job.is_true("Complete") { "Complete" } else { "Failed" };
                let message = format!("Saw completed job: {}, condition: {kind}", job.name());
                plan.event(Note::normal("SawCompletedJob", message));
            }
            Some(_) => {}
        }
    }
    let create = schedule(cron, &unfinished, zone, now, &mut plan);
    if let Some((time, create)) = create {
        last_schedule = Some(time);
        plan.create(create);
    }
    let references: Vec<Value> = unfinished.iter().map(|job| reference(job)).collect();
    let mut status = without_zeros(json!({
        "lastScheduleTime": last_schedule.map(stamp), "lastSuccessfulTime": last_success.map(stamp),
    }));
    if !references.is_empty() {
        status.insert("active".to_owned(), references.into());
    }
    if let Some(patch) = status_diff(cron, &Value::Object(status)) {
        plan.patch(Patch::status(Kind::CronJob, &Ref::new(cron.namespace(), cron.name()), patch));
    }
    for (field, default, kind) in
        [("successfulJobsHistoryLimit", 3, "Complete"), ("failedJobsHistoryLimit", 1, "Failed")]
    {
        let limit = cron.int(&format!("/spec/{field}")).unwrap_or(default);
        let mut old: Vec<&Arc<Value>> =
            jobs.iter().filter(|job| job.is_true(kind) && !job.is_deleting()).collect();
        old.sort_by_key(|job| (job.time("/status/startTime"), job.name().to_owned()));
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        plan.deletes(old.into_iter().take(surplus).map(|job| delete(job)).collect());
    }
    plan
}

fn is_finished(job: &Value) -> bool {
    job.is_true("Complete") || job.is_true("Failed")
}

fn reference(job: &Value) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "namespace": job.namespace(), "name": job.name(),
        "uid": job.uid(),
    })
}

fn delete(job: &Value) -> Delete {
    Delete {
        success: Some(Note::normal("SuccessfulDelete", "Deleted job {name}")),
        failure: Some(Note::warning("FailedDelete", "Deleted job: {error}")),
        ..Delete::new(Kind::Job, &Ref::new(job.namespace(), job.name()), job.uid())
    }
}

/// The Job that is due, if one is, and the time it is due for.
fn schedule(
    cron: &Value,
    unfinished: &[&Arc<Value>],
    zone: &Zone,
    now: Timestamp,
    plan: &mut Plan,
) -> Option<(Timestamp, Create)> {
    let text = cron.text("/spec/schedule");
    let schedule = match Schedule::parse(text) {
        Ok(schedule) => schedule,
        Err(error) => {
            let message = format!("unparseable schedule: {text:?} : {error}");
            plan.event(Note::warning("UnparseableSchedule", message));
            return None;
        }
    };
    let name = cron.text("/spec/timeZone");
    let zone = match zone {
        Zone::Known(zone) => zone.clone(),
        Zone::Unknown => {
            plan.event(Note::warning(
                "UnknownTimeZone",
                format!("invalid timeZone: {name:?}: unknown time zone {name}"),
            ));
            return None;
        }
        Zone::NoData => {
            let message = format!("no time zone data on this machine: {name} is taken as UTC");
            plan.event(Note::warning("TimeZoneUnavailable", message));
            TimeZone::UTC
        }
    };
    if cron.flag("/spec/suspend") {
        return None;
    }
    if let Some(next) = schedule.next(now, &zone) {
        // A time stamp has whole seconds: a moment later the time has surely come.
        let wait = next.duration_since(now) + SignedDuration::from_millis(100);
        plan.again_after = Some(wait.unsigned_abs());
    }
    let deadline = cron.int("/spec/startingDeadlineSeconds");
    let (time, missed) = last_due(cron, &schedule, &zone, deadline, now)?;
    if missed > MANY_MISSED {
        let message = format!(
            "too many missed start times: {missed}. Set or decrease .spec.startingDeadlineSeconds or check clock skew"
        );
        plan.event(Note::warning("TooManyMissedTimes", message));
    }
    if deadline.is_some_and(|deadline| seconds_between(time, now) > deadline) {
        let message = format!("Missed scheduled time to start a job: {}", stamp(time));
        plan.event(Note::warning("MissSchedule", message));
        return None;
    }
    let job = job(cron, time);
    if unfinished.iter().any(|known| known.name() == job.name()) {
        return None;
    }
    if !unfinished.is_empty() {
        match cron.text("/spec/concurrencyPolicy") {
            "Forbid" => {
                let message =
                    "Not starting job because prior execution is running and concurrency policy is Forbid";
                plan.event(Note::normal("JobAlreadyActive", message));
                return None;
            }
            "Replace" => plan.deletes(unfinished.iter().map(|job| delete(job)).collect()),
            _ => {}
        }
    }
    let create = Create {
        may_exist: true,
        success: Some(Note::normal("SuccessfulCreate", "Created job {name}")),
        failure: Some(Note::warning("FailedCreate", "Error creating job: {error}")),
        ..Create::new(Kind::Job, job)
    };
    Some((time, create))
}

/// The last time that has passed and was not used, and how many passed unused.
fn last_due(
    cron: &Value,
    schedule: &Schedule,
    zone: &TimeZone,
    deadline: Option<i64>,
    now: Timestamp,
) -> Option<(Timestamp, i64)> {
    let mut since = cron.time("/status/lastScheduleTime").unwrap_or_else(|| cron.created());
    if let Some(deadline) = deadline {
        since = since.max(now.saturating_sub(SignedDuration::from_secs(deadline)).ok()?);
    }
    let first = schedule.next(since, zone).filter(|first| *first <= now)?;
    let Some(second) = schedule.next(first, zone).filter(|second| *second <= now) else {
        return Some((first, 1));
    };
    // Times are not enumerated one by one: a schedule of every minute may have been off for a year.
    let distance = seconds_between(first, second).max(1);
    let missed = seconds_between(first, now) / distance + 1;
    let skipped = SignedDuration::from_secs((missed - 2).max(0) * distance);
    let mut time = first;
    let mut candidate = first.saturating_add(skipped).ok()?;
    if candidate <= now {
        candidate = schedule.next(candidate, zone)?;
    }
    while candidate <= now {
        time = time.max(candidate);
        candidate = schedule.next(candidate, zone)?;
    }
    Some((time, missed))
}

fn job(cron: &Value, time: Timestamp) -> Value {
    let template = cron.at("/spec/jobTemplate");
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": format!("{}-{}", cron.name(), time.as_second() / 60), "namespace": cron.namespace(),
            "annotations": string_map(template.at("/metadata/annotations")),
            "labels": string_map(template.at("/metadata/labels")),
            "ownerReferences": [controller_reference(Kind::CronJob, cron)],
        },
        "spec": template.at("/spec"),
    });
    let annotations = entry(entry(&mut job, "metadata"), "annotations");
    annotations["batch.kubernetes.io/cronjob-scheduled-timestamp"] = stamp(time).into();
    job
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::read::{created, deleted, lines, status};

    fn cron(spec: Value, status: Value) -> Value {
        let mut cron = json!({
            "metadata": {
                "name": "report", "namespace": "ml", "uid": "c",
                "creationTimestamp": "2026-01-01T00:00:30Z",
            },
            "spec": {
                "schedule": "*/5 * * * *",
                "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {"x": 1}}},
            },
            "status": status,
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            cron["spec"][key] = value.clone();
        }
        cron
    }

    fn at(time: &str) -> Timestamp {
        time.parse().expect("a time")
    }

    fn utc() -> Zone {
        zone("")
    }

    fn child(name: &str, condition: Option<&str>, start: &str) -> Arc<Value> {
        let conditions: Vec<Value> =
            condition.map(|kind| json!({"type": kind, "status": "True"})).into_iter().collect();
        Arc::new(json!({
            "metadata": {"name": name, "namespace": "ml", "uid": format!("uid-{name}")},
            "status": {"startTime": start, "completionTime": start, "conditions": conditions},
        }))
    }

    #[test]
    fn a_job_is_made_when_its_time_has_come_and_not_before() {
        let early = plan(&cron(json!({}), json!({})), &[], &utc(), at("2026-01-01T00:04:00Z"));
        assert!(created(&early).is_empty());
        assert_eq!(early.again_after.map(|after| after.as_secs()), Some(60));
        let due = plan(&cron(json!({}), json!({})), &[], &utc(), at("2026-01-01T00:05:00Z"));
        let job = created(&due)[0];
        assert_eq!(job["metadata"]["name"], "report-29453765");
        assert_eq!(job["metadata"]["labels"]["a"], "b");
        assert_eq!(job["spec"]["template"]["x"], 1);
        assert_eq!(status(&due).expect("a status")["lastScheduleTime"], "2026-01-01T00:05:00Z");
    }

    #[test]
    fn after_a_long_pause_only_the_last_time_is_made_up_for() {
        let late = plan(&cron(json!({}), json!({})), &[], &utc(), at("2027-01-01T00:07:00Z"));
        assert_eq!(created(&late).len(), 1);
        assert_eq!(status(&late).expect("a status")["lastScheduleTime"], "2027-01-01T00:05:00Z");
        assert!(lines(&late)[0].starts_with("event TooManyMissedTimes"));
        let strict = cron(json!({"startingDeadlineSeconds": 60}), json!({}));
        assert!(created(&plan(&strict, &[], &utc(), at("2027-01-01T00:07:00Z"))).is_empty());
    }

    #[test]
    fn the_concurrency_policy_decides_about_a_job_that_still_runs() {
        let running = [child("report-1", None, "2026-01-01T00:01:00Z")];
        let run = |policy: &str| {
            let cron = cron(json!({"concurrencyPolicy": policy}), json!({}));
            plan(&cron, &running, &utc(), at("2026-01-01T00:05:00Z"))
        };
        assert_eq!(created(&run("Allow")).len(), 1);
        assert!(created(&run("Forbid")).is_empty());
        assert!(lines(&run("Forbid"))[0].starts_with("event JobAlreadyActive"));
        assert_eq!(deleted(&run("Replace")), ["report-1"]);
        assert_eq!(created(&run("Replace")).len(), 1);
    }

    #[test]
    fn finished_jobs_above_the_limits_are_deleted_oldest_first() {
        let jobs: Vec<Arc<Value>> = (1..=5)
            .map(|n| child(&format!("ok-{n}"), Some("Complete"), &format!("2026-01-01T00:00:0{n}Z")))
            .chain([
                child("bad-1", Some("Failed"), "2026-01-01T00:00:01Z"),
                child("bad-2", Some("Failed"), "2026-01-01T00:00:02Z"),
            ])
            .collect();
        let plan = plan(&cron(json!({}), json!({})), &jobs, &utc(), at("2026-01-01T00:04:00Z"));
        assert_eq!(deleted(&plan), ["ok-1", "ok-2", "bad-1"]);
        assert_eq!(status(&plan).expect("a status")["lastSuccessfulTime"], "2026-01-01T00:00:05Z");
    }

    #[test]
    fn a_suspended_or_malformed_cron_job_makes_nothing() {
        let now = at("2026-01-01T00:05:00Z");
        assert!(created(&plan(&cron(json!({"suspend": true}), json!({})), &[], &utc(), now)).is_empty());
        let bad = plan(&cron(json!({"schedule": "61 * * * *"}), json!({})), &[], &utc(), now);
        assert!(lines(&bad)[0].starts_with("event UnparseableSchedule"), "{:?}", lines(&bad));
        assert!(matches!(zone("../etc/passwd"), Zone::Unknown | Zone::NoData));
    }
}
