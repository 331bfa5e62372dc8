//! Jobs and plans on them, with the properties that they keep, for the targets in `fuzz/`.

use serde_json::Value;

use super::job::Job;
use super::plan::{Plan, Seen, holds, plan, pod_group};

/// Plans are carried out in memory up to this many pods.
const MOST: u64 = 200;

/// A Job is refused with words, or its plan leads to rest: once its pods are there and its status is written, there is nothing left to
/// do.
pub fn volcano_job(data: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(data) else { return };
    let job = match Job::parse(&object) {
        Ok(job) => job,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let total: u64 = job.tasks.iter().map(|task| task.replicas).sum();
    assert!((1..=100_000).contains(&total) && job.min_available <= total);
    assert!(pod_group(&job)["spec"]["minMember"] == job.min_available);
    if total > MOST {
        return;
    }
    let Plan { create, delete, status, group_status } = plan(&job, &[]);
    assert!(delete.is_empty() && create.len() as u64 <= total);
    assert!(holds(&status, &status) && holds(&group_status, &group_status));
    let seen: Vec<Seen> = create.iter().map(Seen::parse).collect();
    assert!(seen.iter().all(|pod| job.tasks.iter().any(|task| task.name == pod.task)));
    let after = plan(&job, &seen);
    assert_eq!((after.create, after.delete), (Vec::new(), Vec::new()));
}
