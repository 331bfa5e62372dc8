//! A pod's status from what its containers do: a pure function.

use std::collections::BTreeMap;

use gantry_kit::{fnv1a_64, stamp};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::{Map, Value, json};

use super::plan::{is_sidecar, restart_policy};
use crate::runtime::{Record, State, Termination};

/// A pod that failed as a whole, beside what its containers did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: String,
    pub(crate) message: String,
}

/// What the status depends on besides pod and containers.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings<'a> {
    pub(crate) pod_ip: &'a str,
    pub(crate) host_ip: &'a str,
    pub(crate) started: Timestamp,
    pub(crate) now: Timestamp,
    pub(crate) failure: Option<&'a Failure>,
    /// `Some(success)` once the pod has ended.
    pub(crate) finished: Option<bool>,
    /// Whether the pod is to vanish: its containers are no longer ready.
    pub(crate) terminating: bool,
}

/// The `status` that the kubelet writes. Conditions of others and the class that the API server gave the pod are not in
/// it: a strategic merge keeps them.
pub(crate) fn status(pod: &Pod, records: &BTreeMap<String, Record>, around: &Surroundings<'_>) -> Value {
    let Some(spec) = &pod.spec else { return json!({}) };
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let phase = phase(spec, records, around);
    let mut status = Map::new();
    status.insert("phase".to_owned(), phase.into());
    status.insert("conditions".to_owned(), conditions(pod, spec, records, around, phase).into());
    status.insert("startTime".to_owned(), stamp(around.started).into());
    status.insert("hostIP".to_owned(), around.host_ip.into());
    status.insert("hostIPs".to_owned(), json!([{"ip": around.host_ip}]));
    if let Some(failure) = around.failure {
        status.insert("reason".to_owned(), failure.reason.as_str().into());
        status.insert("message".to_owned(), failure.message.as_str().into());
    }
    if records.is_empty() {
        return Value::Object(status);
    }
    let ip = if spec.host_network.unwrap_or(false) { around.host_ip } else { around.pod_ip };
    status.insert("podIP".to_owned(), ip.into());
    status.insert("podIPs".to_owned(), json!([{"ip": ip}]));
    let initialized = is_initialized(inits, records);
    let list = |containers: &[Container], reason: &str| -> Vec<Value> {
        containers
            .iter()
            .map(|container| {
                container_status(container, records.get(&container.name), reason, around.terminating)
            })
            .collect()
    };
    let waiting = if initialized { "ContainerCreating" } else { "PodInitializing" };
    status.insert("containerStatuses".to_owned(), list(&spec.containers, waiting).into());
    if !inits.is_empty() {
        status.insert("initContainerStatuses".to_owned(), list(inits, "PodInitializing").into());
    }
    Value::Object(status)
}

fn phase(spec: &PodSpec, records: &BTreeMap<String, Record>, around: &Surroundings<'_>) -> &'static str {
    if around.failure.is_some() {
        return "Failed";
    }
    match around.finished {
        Some(true) => return "Succeeded",
        Some(false) => return "Failed",
        None => {}
    }
    if !is_initialized(spec.init_containers.as_deref().unwrap_or_default(), records) {
        return "Pending";
    }
    // Until every container has been started once, the pod is pending.
    let started = |container: &Container| {
        records
            .get(&container.name)
            .is_some_and(|record| record.last.is_some() || !matches!(record.state, State::Waiting { .. }))
    };
    if spec.containers.iter().all(started) { "Running" } else { "Pending" }
}

fn is_initialized(inits: &[Container], records: &BTreeMap<String, Record>) -> bool {
    inits.iter().all(|container| {
        records.get(&container.name).is_some_and(|record| match &record.state {
            State::Running { .. } => is_sidecar(container) && record.started,
            State::Terminated(end) => is_sidecar(container) || end.exit_code == 0,
            State::Waiting { .. } => is_sidecar(container) && record.last.is_some(),
        })
    })
}

fn conditions(
    pod: &Pod,
    spec: &PodSpec,
    records: &BTreeMap<String, Record>,
    around: &Surroundings<'_>,
    phase: &str,
) -> Vec<Value> {
    let inits = spec.init_containers.as_deref().unwrap_or_default();
    let ended = matches!(phase, "Succeeded" | "Failed");
    let initialized = is_initialized(inits, records);
    let unready: Vec<&str> = spec
        .containers
        .iter()
        .chain(inits.iter().filter(|container| is_sidecar(container)))
        .filter(|container| {
            !records.get(&container.name).is_some_and(|record| record.is_running() && record.ready)
        })
        .map(|container| container.name.as_str())
        .collect();
    let ready = !ended && !around.terminating && unready.is_empty();
    let why = || -> (&str, String) {
        match phase {
            "Succeeded" => ("PodCompleted", String::new()),
            "Failed" => ("PodFailed", String::new()),
            _ => ("ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" "))),
        }
    };
    let mut list = Vec::new();
    let mut add = |kind: &str, met: bool, reason: (&str, String)| {
        let state = if met { "True" } else { "False" };
        let before = pod
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .find(|condition| condition.type_ == kind && condition.status == state)
            .and_then(|condition| condition.last_transition_time.as_ref())
            .and_then(|time| serde_json::to_value(time).ok());
        let mut condition = json!({
            "type": kind,
            "status": state,
            "lastProbeTime": null,
            "lastTransitionTime": before.unwrap_or_else(|| stamp(around.now).into()),
        });
        // A strategic merge keeps what is not named, so an old reason is removed by name.
        let (reason, message) = if met { ("", String::new()) } else { reason };
        condition["reason"] = if reason.is_empty() { Value::Null } else { reason.into() };
        condition["message"] = if message.is_empty() { Value::Null } else { message.into() };
        list.push(condition);
    };
    add("PodReadyToStartContainers", !ended && !records.is_empty(), ("", String::new()));
    let incomplete: Vec<&str> = inits
        .iter()
        .filter(|container| !is_initialized(std::slice::from_ref(container), records))
        .map(|container| container.name.as_str())
        .collect();
    add(
        "Initialized",
        initialized,
        (
            "ContainersNotInitialized",
            format!("containers with incomplete status: [{}]", incomplete.join(" ")),
        ),
    );
    // Readiness gates are conditions of others.
    let gates = spec.readiness_gates.iter().flatten().all(|gate| {
        pod.status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .any(|condition| condition.type_ == gate.condition_type && condition.status == "True")
    });
    let gate_reason =
        ("ReadinessGatesNotReady", "corresponding condition of pod readiness gate is not True.".to_owned());
    add("Ready", ready && gates, if ready { gate_reason } else { why() });
    add("ContainersReady", ready, why());
    list
}

fn container_status(
    container: &Container,
    record: Option<&Record>,
    waiting: &str,
    terminating: bool,
) -> Value {
    let image = container.image.as_deref().unwrap_or_default();
    let mut status = json!({
        "name": container.name,
        "image": image,
        "imageID": "",
        "ready": false,
        "started": false,
        "restartCount": 0,
        "state": {"waiting": {"reason": waiting}},
        "lastState": {},
    });
    let Some(record) = record else { return status };
    status["restartCount"] = record.restarts.into();
    if let Some(run) = &record.run {
        status["containerID"] = format!("containerd://{}", run.id).into();
        status["imageID"] = image_id(image).into();
    }
    if let Some(last) = &record.last {
        status["lastState"] = json!({"terminated": terminated(last)});
    }
    match &record.state {
        State::Waiting { reason, message } => {
            let reason = if reason.is_empty() { waiting } else { reason };
            status["state"] = json!({"waiting": {"reason": reason}});
            if !message.is_empty() {
                status["state"]["waiting"]["message"] = message.as_str().into();
            }
        }
        State::Running { started } => {
            status["state"] = json!({"running": {"startedAt": stamp(*started)}});
            status["started"] = record.started.into();
            status["ready"] = (record.ready && !terminating).into();
        }
        State::Terminated(end) => {
            status["state"] = json!({"terminated": terminated(end)});
            // An init container that has done its work counts as ready.
            status["ready"] =
                (end.exit_code == 0 && waiting == "PodInitializing" && !is_sidecar(container)).into();
        }
    }
    status
}

fn terminated(end: &Termination) -> Value {
    let mut value = json!({
        "exitCode": end.exit_code,
        "reason": end.reason,
        "startedAt": stamp(end.started),
        "finishedAt": stamp(end.finished),
        "containerID": format!("containerd://{}", end.id),
    });
    if !end.message.is_empty() {
        value["message"] = end.message.as_str().into();
    }
    value
}

/// A digest that is the same for the same image: nothing is pulled that could be hashed.
fn image_id(image: &str) -> String {
    let hash = |salt: u64| fnv1a_64(image.as_bytes(), salt);
    let repository =
        image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(image, |(name, _)| name);
    format!("{repository}@sha256:{:016x}{:016x}{:016x}{:016x}", hash(1), hash(2), hash(3), hash(4))
}

/// Whether a pod of this policy and phase has ended for good.
pub(crate) fn is_terminal(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"))
}

/// The records that an earlier kubelet left in the status: what ran then is not running now.
pub(crate) fn restore(pod: &Pod, now: Timestamp) -> BTreeMap<String, Record> {
    let mut records = BTreeMap::new();
    let Some(status) = &pod.status else { return records };
    let policy = pod.spec.as_ref().map_or("Always", restart_policy);
    let all =
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    for known in all {
        let Some(state) = &known.state else { continue };
        let id =
            known.container_id.as_deref().unwrap_or_default().trim_start_matches("containerd://").to_owned();
        let time = |time: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            time.map_or(now, |time| time.0)
        };
        let end = if let Some(end) = &state.terminated {
            Termination {
                exit_code: end.exit_code,
                reason: end.reason.clone().unwrap_or_default(),
                message: end.message.clone().unwrap_or_default(),
                started: time(end.started_at.as_ref()),
                finished: time(end.finished_at.as_ref()),
                id,
            }
        } else if let Some(running) = &state.running {
            // Under Never nobody knows how it ended, which counts as a failure, as after a node's crash.
            let exit_code = if policy == "Never" { 137 } else { 255 };
            Termination {
                exit_code,
                reason: "Unknown".to_owned(),
                message: String::new(),
                started: time(running.started_at.as_ref()),
                finished: now,
                id,
            }
        } else {
            continue;
        };
        let mut record = Record::waiting("", "");
        record.restarts = u32::try_from(known.restart_count).unwrap_or(0);
        record.state = State::Terminated(end);
        records.insert(known.name.clone(), record);
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(containers: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": containers},
            "status": {"conditions": [
                {"type": "ContainersReady", "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}
            ]},
        }))
        .unwrap()
    }

    fn around(finished: Option<bool>) -> Surroundings<'static> {
        Surroundings {
            pod_ip: "10.128.0.2",
            host_ip: "172.18.0.2",
            started: Timestamp::UNIX_EPOCH,
            now: Timestamp::UNIX_EPOCH,
            failure: None,
            finished,
            terminating: false,
        }
    }

    fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
        status["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == kind).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_is_pending_then_running_then_ended() {
        let pod = pod(&json!([{"name": "a", "image": "nginx:1.27"}]));
        let mut record = Record::waiting("", "");
        let waiting = status(&pod, &[("a".to_owned(), record.clone())].into(), &around(None));
        assert_eq!(waiting["phase"], "Pending");
        assert_eq!(waiting["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
        assert_eq!(condition(&waiting, "ContainersReady")["lastTransitionTime"], "2020-01-01T00:00:00Z");

        record.state = State::Running { started: Timestamp::UNIX_EPOCH };
        record.started = true;
        record.ready = true;
        let running = status(&pod, &[("a".to_owned(), record.clone())].into(), &around(None));
        assert_eq!(running["phase"], "Running");
        assert_eq!(running["containerStatuses"][0]["ready"], true);
        assert_eq!(condition(&running, "Ready")["status"], "True");
        assert_eq!(running["podIP"], "10.128.0.2");

        record.state = State::Terminated(Termination {
            exit_code: 0,
            reason: "Completed".to_owned(),
            message: String::new(),
            started: Timestamp::UNIX_EPOCH,
            finished: Timestamp::UNIX_EPOCH,
            id: "x".to_owned(),
        });
        let ended = status(&pod, &[("a".to_owned(), record)].into(), &around(Some(true)));
        assert_eq!(ended["phase"], "Succeeded");
        assert_eq!(condition(&ended, "Ready")["reason"], "PodCompleted");
        assert_eq!(ended["containerStatuses"][0]["state"]["terminated"]["reason"], "Completed");
    }
}
