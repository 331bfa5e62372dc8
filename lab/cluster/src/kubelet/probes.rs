//! Probes: commands run in the container's view; network probes succeed once the container runs, for nothing listens.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use tokio::time::sleep;

use crate::programs::{self, Process, Sink, Stdin};
use crate::runtime::{ContainerView, Run, Sandbox};

/// What a probe's verdict changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Startup,
    Readiness,
    Liveness,
}

impl Kind {
    /// As events name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// Something to tell about a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) kind: Kind,
    pub(super) output: String,
    /// The container is stopped because of it.
    pub(super) fatal: bool,
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).unwrap_or(default))
}

fn threshold(value: Option<i32>, default: u32) -> u32 {
    value.and_then(|value| u32::try_from(value).ok()).filter(|value| *value > 0).unwrap_or(default)
}

/// Runs a container's probes until its run ends. `report` gets every failure.
pub(super) fn watch(
    sandbox: &Arc<Sandbox>,
    container: &Container,
    run: &Run,
    report: impl Fn(Failed) + Clone + Send + Sync + 'static,
) {
    let Some(view) = run.view.clone() else { return };
    if container.startup_probe.is_none()
        && container.readiness_probe.is_none()
        && container.liveness_probe.is_none()
    {
        return;
    }
    let (sandbox, container, stop, id) =
        (Arc::clone(sandbox), container.clone(), run.stop.clone(), run.id.clone());
    tokio::spawn(async move {
        let ended = async {
            let mut changes = sandbox.changes();
            loop {
                let current = sandbox.containers().get(&container.name).is_some_and(|record| {
                    record.is_running() && record.run.as_ref().is_some_and(|run| run.id == id)
                });
                if !current || changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let probing = async {
            if let Some(probe) = &container.startup_probe {
                if !startup(probe, &view, &report).await {
                    stop.cancel();
                    return;
                }
                let ready = container.readiness_probe.is_none();
                sandbox.change(&container.name, |record| {
                    record.started = true;
                    record.ready = ready;
                });
            }
            let readiness = async {
                if let Some(probe) = &container.readiness_probe {
                    readiness(probe, &view, &sandbox, &container.name, &report).await;
                }
            };
            let liveness = async {
                if let Some(probe) = &container.liveness_probe {
                    liveness(probe, &view, &report).await;
                    stop.cancel();
                }
            };
            tokio::join!(readiness, liveness);
        };
        tokio::select! {
            () = ended => {}
            () = probing => {}
        }
    });
}

async fn startup(probe: &Probe, view: &Arc<ContainerView>, report: &impl Fn(Failed)) -> bool {
    sleep(seconds(probe.initial_delay_seconds, 0)).await;
    let allowed = threshold(probe.failure_threshold, 3);
    for attempt in 1..=allowed {
        match check(probe, view).await {
            Ok(()) => return true,
            Err(output) => report(Failed { kind: Kind::Startup, output, fatal: attempt == allowed }),
        }
        sleep(seconds(probe.period_seconds, 10)).await;
    }
    false
}

async fn readiness(
    probe: &Probe,
    view: &Arc<ContainerView>,
    sandbox: &Sandbox,
    container: &str,
    report: &impl Fn(Failed),
) {
    sleep(seconds(probe.initial_delay_seconds, 0)).await;
    let (mut passed, mut failed) = (0, 0);
    loop {
        let verdict = check(probe, view).await;
        let ready = match verdict {
            Ok(()) => {
                passed += 1;
                failed = 0;
                (passed >= threshold(probe.success_threshold, 1)).then_some(true)
            }
            Err(output) => {
                report(Failed { kind: Kind::Readiness, output, fatal: false });
                failed += 1;
                passed = 0;
                (failed >= threshold(probe.failure_threshold, 3)).then_some(false)
            }
        };
        if let Some(ready) = ready {
            let differs = sandbox.containers().get(container).is_some_and(|record| record.ready != ready);
            if differs {
                sandbox.change(container, |record| record.ready = ready);
            }
            if ready && probe.exec.is_none() {
                // A network probe never changes its mind.
                return;
            }
        }
        sleep(seconds(probe.period_seconds, 10)).await;
    }
}

/// Ends when the container is to be stopped; never for a network probe.
async fn liveness(probe: &Probe, view: &Arc<ContainerView>, report: &impl Fn(Failed)) {
    if probe.exec.is_none() {
        return std::future::pending().await;
    }
    sleep(seconds(probe.initial_delay_seconds, 0)).await;
    let allowed = threshold(probe.failure_threshold, 3);
    let mut failed = 0;
    loop {
        match check(probe, view).await {
            Ok(()) => failed = 0,
            Err(output) => {
                failed += 1;
                report(Failed { kind: Kind::Liveness, output, fatal: failed == allowed });
                if failed == allowed {
                    return;
                }
            }
        }
        sleep(seconds(probe.period_seconds, 10)).await;
    }
}

async fn check(probe: &Probe, view: &Arc<ContainerView>) -> Result<(), String> {
    let Some(command) = probe.exec.as_ref().and_then(|action| action.command.clone()) else { return Ok(()) };
    let run = command_output(view, command);
    match tokio::time::timeout(seconds(probe.timeout_seconds, 1), run).await {
        Ok((0, _)) => Ok(()),
        Ok((_, output)) => Err(output.trim_end().to_owned()),
        Err(_) => Err("command timed out".to_owned()),
    }
}

/// Runs a command in a container: exit code and what it wrote.
pub(super) async fn command_output(view: &Arc<ContainerView>, argv: Vec<String>) -> (i32, String) {
    let (sink, memory) = Sink::memory();
    let code = programs::run(Process {
        argv,
        env: view.env(),
        cwd: view.cwd().to_owned(),
        view: Arc::clone(view),
        stdin: Stdin::empty(),
        stdout: sink.clone(),
        stderr: sink,
        tty: false,
    })
    .await;
    (code, memory.text())
}
