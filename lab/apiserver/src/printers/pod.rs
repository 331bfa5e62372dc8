//! The columns of pods. STATUS condenses phase, conditions and container states into one word.

use std::collections::BTreeSet;

use gantry_units::human_duration;
use jiff::Timestamp;
use serde_json::Value;

use super::cells::{condition, condition_is_true, is_terminating, items, number, text, timestamp};

/// What the container states of a pod amount to.
struct Summary {
    ready: usize,
    total: usize,
    status: String,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

pub(super) fn ready(pod: &Value, _: Timestamp) -> Value {
    let summary = summarise(pod);
    format!("{}/{}", summary.ready, summary.total).into()
}

pub(super) fn status(pod: &Value, _: Timestamp) -> Value {
    summarise(pod).status.into()
}

pub(super) fn restarts(pod: &Value, now: Timestamp) -> Value {
    let summary = summarise(pod);
    match summary.last_restart {
        Some(last) if summary.restarts > 0 => {
            let ago = human_duration(now.duration_since(last).as_secs());
            format!("{} ({ago} ago)", summary.restarts).into()
        }
        _ => summary.restarts.to_string().into(),
    }
}

pub(super) fn ip(pod: &Value, _: Timestamp) -> Value {
    let first = text(&pod["status"]["podIPs"][0]["ip"]);
    let ip = if first.is_empty() { text(&pod["status"]["podIP"]) } else { first };
    if ip.is_empty() { "<none>".into() } else { ip.into() }
}

pub(super) fn readiness_gates(pod: &Value, _: Timestamp) -> Value {
    let gates = items(&pod["spec"]["readinessGates"]);
    if gates.is_empty() {
        return "<none>".into();
    }
    let met = gates.iter().filter(|gate| condition_is_true(pod, text(&gate["conditionType"]))).count();
    format!("{met}/{}", gates.len()).into()
}

fn summarise(pod: &Value) -> Summary {
    let spec = &pod["spec"];
    let init = items(&spec["initContainers"]);
    let sidecars: BTreeSet<&str> =
        init.iter().filter(|c| c["restartPolicy"] == "Always").map(|c| text(&c["name"])).collect();
    let phase = text(&pod["status"]["phase"]);
    let mut summary = Summary {
        ready: 0,
        total: items(&spec["containers"]).len() + sidecars.len(),
        status: if phase.is_empty() { "Unknown" } else { phase }.to_owned(),
        restarts: 0,
        last_restart: None,
    };
    if !text(&pod["status"]["reason"]).is_empty() {
        text(&pod["status"]["reason"]).clone_into(&mut summary.status);
    }
    if condition(pod, "PodScheduled").is_some_and(|c| c["reason"] == "SchedulingGated") {
        "SchedulingGated".clone_into(&mut summary.status);
    }

    // Ordinary init containers no longer count once the pod is initialised; sidecars do.
    let mut sidecar_restarts = 0;
    let mut sidecar_last = None;
    let mut initialising = false;
    for (index, container) in items(&pod["status"]["initContainerStatuses"]).iter().enumerate() {
        let is_sidecar = sidecars.contains(text(&container["name"]));
        count_restarts(container, &mut summary.restarts, &mut summary.last_restart);
        if is_sidecar {
            count_restarts(container, &mut sidecar_restarts, &mut sidecar_last);
        }
        let state = &container["state"];
        let terminated = &state["terminated"];
        if !terminated.is_null() && number(&terminated["exitCode"]) == 0 {
            continue;
        }
        if is_sidecar && container["started"] == true {
            summary.ready += usize::from(container["ready"] == true);
            continue;
        }
        let waiting = text(&state["waiting"]["reason"]);
        summary.status = if !terminated.is_null() {
            format!("Init:{}", termination(terminated))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{}", init.len())
        };
        initialising = true;
        break;
    }

    if !initialising || condition_is_true(pod, "Initialized") {
        summary.restarts = sidecar_restarts;
        summary.last_restart = sidecar_last;
        let mut running = false;
        for container in items(&pod["status"]["containerStatuses"]).iter().rev() {
            count_restarts(container, &mut summary.restarts, &mut summary.last_restart);
            let state = &container["state"];
            let waiting = text(&state["waiting"]["reason"]);
            if !waiting.is_empty() {
                waiting.clone_into(&mut summary.status);
            } else if !state["terminated"].is_null() {
                summary.status = termination(&state["terminated"]);
            } else if container["ready"] == true && !state["running"].is_null() {
                running = true;
                summary.ready += 1;
            }
        }
        // One container has ended well and another still runs.
        if summary.status == "Completed" && running {
            let ready = condition_is_true(pod, "Ready");
            if ready { "Running" } else { "NotReady" }.clone_into(&mut summary.status);
        }
    }

    if is_terminating(pod) {
        if pod["status"]["reason"] == "NodeLost" {
            "Unknown".clone_into(&mut summary.status);
        } else if phase != "Succeeded" && phase != "Failed" {
            "Terminating".clone_into(&mut summary.status);
        }
    }
    summary
}

fn count_restarts(container: &Value, restarts: &mut i64, last: &mut Option<Timestamp>) {
    *restarts += number(&container["restartCount"]);
    *last = (*last).max(timestamp(&container["lastState"]["terminated"]["finishedAt"]));
}

/// `Error`, `OOMKilled` …, or the code where the runtime gave no reason.
fn termination(terminated: &Value) -> String {
    let reason = text(&terminated["reason"]);
    if !reason.is_empty() {
        reason.to_owned()
    } else if number(&terminated["signal"]) != 0 {
        format!("Signal:{}", number(&terminated["signal"]))
    } else {
        format!("ExitCode:{}", number(&terminated["exitCode"]))
    }
}
