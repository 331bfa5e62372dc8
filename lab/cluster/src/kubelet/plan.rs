//! What a pod's worker does next: a pure function of the pod and its containers.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use tokio::time::Instant;

use crate::runtime::{Record, State};

/// The first wait of `CrashLoopBackOff` and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_mins(5));

/// A container that ran this long starts again with no wait.
const BACKOFF_RESET: Duration = Duration::from_mins(10);

/// What to do now.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Plan {
    /// Containers to start, by name.
    pub(crate) start: Vec<String>,
    /// Containers that have ended and will be started later.
    pub(crate) back_off: Vec<String>,
    /// Sidecars to stop because the pod's work is done.
    pub(crate) stop: Vec<String>,
    /// When to look again if nothing happens.
    pub(crate) wake: Option<Instant>,
    /// Set once the pod has ended for good: whether all went well.
    pub(crate) finished: Option<bool>,
}

/// Whether an init container runs beside the others.
pub(crate) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// The pod's `restartPolicy`.
pub(crate) fn restart_policy(spec: &PodSpec) -> &str {
    spec.restart_policy.as_deref().unwrap_or("Always")
}

/// Plans the next step of a pod that is not being deleted.
pub(crate) fn plan(pod: &Pod, records: &BTreeMap<String, Record>, now: Instant) -> Plan {
    let mut plan = Plan::default();
    let Some(spec) = &pod.spec else { return plan };
    let policy = restart_policy(spec);
    let inits = spec.init_containers.as_deref().unwrap_or_default();

    let app_ended = |container: &Container| match records.get(&container.name).map(|record| &record.state) {
        Some(State::Terminated(end)) => !restarts(policy, end.exit_code),
        _ => false,
    };
    if spec.containers.iter().all(app_ended) {
        return plan.finish(spec, inits, records);
    }

    let mut initialized = true;
    for container in inits {
        let record = records.get(&container.name);
        let sidecar = is_sidecar(container);
        match record.map(|record| &record.state) {
            Some(State::Running { .. }) if sidecar => {
                if record.is_some_and(|record| record.started) {
                    continue;
                }
                initialized = false;
            }
            Some(State::Running { .. }) => initialized = false,
            Some(State::Terminated(end)) if !sidecar && end.exit_code == 0 => continue,
            Some(State::Terminated(_)) if !sidecar && policy == "Never" => {
                plan.finished = Some(false);
                plan.stop = running_sidecars(inits, records);
                return plan;
            }
            Some(State::Terminated(_)) => {
                plan.restart(container, record, now);
                // A sidecar that crashed holds nothing up once the pod's containers run.
                initialized &= sidecar && any_started(spec, records);
            }
            Some(State::Waiting { .. }) | None => {
                plan.start_or_wait(container, record, now);
                initialized = false;
            }
        }
        if !initialized {
            break;
        }
    }
    if !initialized {
        return plan;
    }
    for container in &spec.containers {
        let record = records.get(&container.name);
        match record.map(|record| &record.state) {
            Some(State::Running { .. }) => {}
            Some(State::Terminated(end)) => {
                if restarts(policy, end.exit_code) {
                    plan.restart(container, record, now);
                }
            }
            Some(State::Waiting { .. }) | None => plan.start_or_wait(container, record, now),
        }
    }
    plan
}

/// Whether a container that exited with this code is started again.
fn restarts(policy: &str, exit_code: i32) -> bool {
    match policy {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

fn any_started(spec: &PodSpec, records: &BTreeMap<String, Record>) -> bool {
    spec.containers
        .iter()
        .filter_map(|container| records.get(&container.name))
        .any(|record| !matches!(record.state, State::Waiting { .. }))
}

fn running_sidecars(inits: &[Container], records: &BTreeMap<String, Record>) -> Vec<String> {
    inits
        .iter()
        .filter(|container| records.get(&container.name).is_some_and(Record::is_running))
        .map(|container| container.name.clone())
        .collect()
}

impl Plan {
    fn finish(mut self, spec: &PodSpec, inits: &[Container], records: &BTreeMap<String, Record>) -> Self {
        self.stop = running_sidecars(inits, records);
        if self.stop.is_empty() {
            let succeeded = spec.containers.iter().all(|container| {
                matches!(records.get(&container.name).map(|record| &record.state),
                    Some(State::Terminated(end)) if end.exit_code == 0)
            });
            self.finished = Some(succeeded);
        }
        self
    }

    fn start_or_wait(&mut self, container: &Container, record: Option<&Record>, now: Instant) {
        match record.and_then(|record| record.retry_at).filter(|at| *at > now) {
            Some(at) => self.wake_at(at),
            None => self.start.push(container.name.clone()),
        }
    }

    fn restart(&mut self, container: &Container, record: Option<&Record>, now: Instant) {
        match record.and_then(|record| record.retry_at) {
            Some(at) if at > now => self.wake_at(at),
            Some(_) => self.start.push(container.name.clone()),
            // Seen for the first time: the worker sets the wait.
            None => self.back_off.push(container.name.clone()),
        }
    }

    fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }
}

/// The wait before a container that ran for `ran` starts again, and the one after that.
pub(crate) fn back_off(backoff: Duration, ran: Duration) -> (Duration, Duration) {
    let wait = if ran >= BACKOFF_RESET { Duration::ZERO } else { backoff };
    let next = if wait.is_zero() { BACKOFF.0 } else { (wait * 2).min(BACKOFF.1) };
    (wait, next)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::Termination;

    fn pod(policy: &str, inits: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {
                "restartPolicy": policy,
                "initContainers": inits,
                "containers": [{"name": "a"}, {"name": "b"}],
            },
        }))
        .unwrap()
    }

    /// `r` running, `s` running and started, `w` waiting, a number an exit code.
    fn records(states: &[(&str, &str)]) -> BTreeMap<String, Record> {
        let at = Timestamp::UNIX_EPOCH;
        states
            .iter()
            .map(|(name, state)| {
                let mut record = Record::waiting("", "");
                record.retry_at = Some(Instant::now());
                match *state {
                    "w" => {}
                    "r" | "s" => {
                        record.state = State::Running { started: at };
                        record.started = *state == "s";
                    }
                    code => {
                        record.state = State::Terminated(Termination {
                            exit_code: code.parse().unwrap(),
                            reason: String::new(),
                            message: String::new(),
                            started: at,
                            finished: at,
                            id: String::new(),
                        });
                    }
                }
                ((*name).to_owned(), record)
            })
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn containers_start_in_the_order_that_kubernetes_promises() {
        let two = json!([{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]);
        for (policy, inits, states, start, stop, finished) in [
            ("Always", json!([]), &[][..], &["a", "b"][..], &[][..], None),
            ("Always", two.clone(), &[], &["i"], &[], None),
            ("Always", two.clone(), &[("i", "r")], &[], &[], None),
            ("Always", two.clone(), &[("i", "1")], &["i"], &[], None),
            ("Never", two.clone(), &[("i", "1")], &[], &[], Some(false)),
            ("Always", two.clone(), &[("i", "0")], &["s"], &[], None),
            ("Always", two.clone(), &[("i", "0"), ("s", "r")], &[], &[], None),
            ("Always", two.clone(), &[("i", "0"), ("s", "s")], &["a", "b"], &[], None),
            // A crashed sidecar comes back beside what runs.
            (
                "Always",
                two.clone(),
                &[("i", "0"), ("s", "1"), ("a", "s"), ("b", "1")],
                &["s", "b"],
                &[],
                None,
            ),
            ("OnFailure", json!([]), &[("a", "0"), ("b", "2")], &["b"], &[], None),
            ("OnFailure", json!([]), &[("a", "0"), ("b", "0")], &[], &[], Some(true)),
            ("Never", json!([]), &[("a", "0"), ("b", "2")], &[], &[], Some(false)),
            ("Never", json!([]), &[("a", "0"), ("b", "s")], &[], &[], None),
            ("Never", two.clone(), &[("i", "0"), ("s", "s"), ("a", "0"), ("b", "0")], &[], &["s"], None),
            ("Never", two, &[("i", "0"), ("s", "0"), ("a", "0"), ("b", "0")], &[], &[], Some(true)),
        ] {
            let plan = plan(&pod(policy, &inits), &records(states), Instant::now());
            assert_eq!(plan.start, start, "{policy} {states:?}");
            assert_eq!(plan.stop, stop, "{policy} {states:?}");
            assert_eq!(plan.finished, finished, "{policy} {states:?}");
        }
    }

    #[test]
    fn the_wait_doubles_from_ten_seconds_to_five_minutes() {
        let mut backoff = Duration::ZERO;
        let mut waits = Vec::new();
        for _ in 0..8 {
            let (wait, next) = back_off(backoff, Duration::from_secs(1));
            waits.push(wait.as_secs());
            backoff = next;
        }
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(back_off(backoff, BACKOFF_RESET), (Duration::ZERO, BACKOFF.0));
    }
}
