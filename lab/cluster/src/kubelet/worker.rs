//! One pod's worker: looks at the pod and its containers, does the next step, writes the status, waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gantry_kit::CancellationToken;
use gantry_workloads::Event;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Kubelet;
use super::events::pod_reference;
use super::launch::{LaunchError, load};
use super::plan::{Plan, back_off, is_sidecar, plan};
use super::probes;
use super::simulation::Simulation;
use super::sources::Sources;
use super::status::{Failure, Surroundings, is_terminal, restore, status};
use crate::device_manager::{ContainerKind, ContainerRequest, PodRequest};
use crate::runtime::{Record, Sandbox, State};

/// The wait after a container could not be created.
const CREATE_RETRY: Duration = Duration::from_secs(5);

/// The wait after the API server could not be reached.
const WRITE_RETRY: Duration = Duration::from_secs(1);

/// `terminationGracePeriodSeconds` where none is given.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// How a worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The pod has finished, or is gone from the API server.
    Done,
    /// The worker has asked the API server to remove the pod.
    Deleted,
    /// The kubelet stops.
    Cancelled,
}

/// What wakes a worker.
enum Wake {
    Cancelled,
    Gone,
    Pod,
    Container,
    Time,
}

pub(super) struct Worker {
    kubelet: Arc<Kubelet>,
    sandbox: Arc<Sandbox>,
    pod: Arc<Pod>,
    updates: watch::Receiver<Arc<Pod>>,
    gone: CancellationToken,
    /// The status as it was written last, as text: it takes a tenth of the memory.
    written: Option<String>,
    failure: Option<Failure>,
    finished: Option<bool>,
    simulation: Simulation,
    /// Set after a failed write.
    rewrite: bool,
}

impl Worker {
    pub(super) fn new(
        kubelet: Arc<Kubelet>,
        sandbox: Arc<Sandbox>,
        updates: watch::Receiver<Arc<Pod>>,
        gone: CancellationToken,
    ) -> Self {
        let pod = updates.borrow().clone();
        let (simulation, _) = Simulation::of(&pod);
        Self {
            kubelet,
            sandbox,
            pod,
            updates,
            gone,
            written: None,
            failure: None,
            finished: None,
            simulation,
            rewrite: false,
        }
    }

    /// Runs until the pod needs nothing more.
    pub(super) async fn run(mut self) -> Ended {
        let cancel = self.kubelet.tasks.token().clone();
        if !is_terminal(&self.pod) && self.pod.metadata.deletion_timestamp.is_none() {
            tokio::select! {
                () = cancel.cancelled() => return Ended::Cancelled,
                () = self.admit() => {}
            }
        }
        let mut changes = self.sandbox.changes();
        loop {
            if self.pod.metadata.deletion_timestamp.is_some() {
                let gone = self.gone.clone();
                return tokio::select! {
                    () = cancel.cancelled() => Ended::Cancelled,
                    () = gone.cancelled() => {
                        self.clean_up();
                        Ended::Done
                    }
                    () = self.terminate() => Ended::Deleted,
                };
            }
            if is_terminal(&self.pod) && self.failure.is_none() {
                self.clean_up();
                return Ended::Done;
            }
            changes.mark_unchanged();
            let step = async {
                let wake = if self.failure.is_none() { self.step().await } else { None };
                self.write_status().await;
                wake
            };
            let mut wake = tokio::select! {
                () = cancel.cancelled() => return Ended::Cancelled,
                wake = step => wake,
            };
            if self.rewrite {
                let retry = Instant::now() + WRITE_RETRY;
                wake = Some(wake.map_or(retry, |at| at.min(retry)));
            } else if self.finished.is_some() || self.failure.is_some() {
                self.clean_up();
                return Ended::Done;
            }
            let timer = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                () = cancel.cancelled() => Wake::Cancelled,
                () = self.gone.cancelled() => Wake::Gone,
                // The kubelet's loop ends with the kubelet and with nothing else.
                result = self.updates.changed() => if result.is_ok() { Wake::Pod } else { Wake::Cancelled },
                _ = changes.changed() => Wake::Container,
                () = timer => Wake::Time,
            };
            match event {
                Wake::Cancelled => return Ended::Cancelled,
                Wake::Gone => {
                    self.sandbox.stop_all();
                    self.clean_up();
                    return Ended::Done;
                }
                Wake::Pod => {
                    let pod = self.updates.borrow_and_update().clone();
                    self.see(pod);
                }
                Wake::Container | Wake::Time => {}
            }
        }
    }

    /// Takes over a newer version of the pod; the answer to a write may have been newer already.
    fn see(&mut self, pod: Arc<Pod>) {
        let version =
            |pod: &Pod| pod.metadata.resource_version.as_deref().and_then(|text| text.parse::<u64>().ok());
        if version(&pod) < version(&self.pod) {
            return;
        }
        self.pod = pod;
        let (simulation, errors) = Simulation::of(&self.pod);
        if simulation == self.simulation {
            return;
        }
        self.simulation = simulation;
        for error in errors {
            self.event(None, true, "InvalidSimulation", error.to_string());
        }
        let records = self.sandbox.containers().clone();
        for container in self.containers() {
            let Some(run) = records
                .get(&container.name)
                .filter(|record| record.is_running())
                .and_then(|r| r.run.as_ref())
            else {
                continue;
            };
            let Some(view) = &run.view else { continue };
            if let Err(text) = load(&self.kubelet.machine, view, run.pid, &container, &self.simulation) {
                run.log.write(format!("{text}\n").as_bytes());
                run.stop.cancel();
            }
        }
    }

    fn containers(&self) -> Vec<Container> {
        let spec = self.pod.spec.iter();
        spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers)).cloned().collect()
    }

    fn container(&self, name: &str) -> Option<(Container, bool)> {
        let spec = self.pod.spec.as_ref()?;
        let init = spec.init_containers.iter().flatten().find(|container| container.name == name);
        let app = spec.containers.iter().find(|container| container.name == name);
        init.map(|container| (container.clone(), true))
            .or_else(|| app.map(|container| (container.clone(), false)))
    }

    /// Gives the pod its devices, or fails it for good.
    async fn admit(&mut self) {
        let fresh = {
            let mut containers = self.sandbox.containers();
            if containers.is_empty() {
                // What a status from before the start of this process tells.
                containers.extend(restore(&self.pod, self.kubelet.machine.shared.clock.now()));
            }
            containers.is_empty()
        };
        if fresh {
            for error in Simulation::of(&self.pod).1 {
                self.event(None, true, "InvalidSimulation", error.to_string());
            }
        }
        if let Some(manager) = &self.kubelet.devices
            && let Err(error) = manager.admit(&request(&self.pod)).await
        {
            let message = format!("Allocate failed due to {error}, which is unexpected");
            self.event(None, true, "UnexpectedAdmissionError", message.clone());
            self.failure = Some(Failure {
                reason: "UnexpectedAdmissionError".to_owned(),
                message: format!("Pod was rejected: {message}"),
            });
            return;
        }
        let mut records = self.sandbox.containers();
        for container in self.containers() {
            records.entry(container.name).or_insert_with(|| Record::waiting("", ""));
        }
    }

    /// Does what is due and tells when to look again.
    async fn step(&mut self) -> Option<Instant> {
        if let Some(at) = self.deadline()
            && at <= Instant::now()
        {
            self.failure = Some(Failure {
                reason: "DeadlineExceeded".to_owned(),
                message: "Pod was active on the node longer than the specified deadline".to_owned(),
            });
            self.event(
                None,
                false,
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline".to_owned(),
            );
            self.sandbox.stop_all();
            self.all_stopped().await;
            return None;
        }
        let mut sources = None;
        loop {
            let records = self.sandbox.containers().clone();
            let Plan { start, back_off, stop, wake, finished } = plan(&self.pod, &records, Instant::now());
            for name in &stop {
                if let Some(run) = records.get(name).and_then(|record| record.run.as_ref()) {
                    run.stop.cancel();
                }
            }
            for name in &back_off {
                self.back_off(name);
            }
            self.finished = finished;
            if back_off.is_empty() && start.is_empty() {
                return match (wake, self.deadline()) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
            for name in start {
                if sources.is_none() {
                    match Sources::fetch(&self.kubelet.machine.shared.client, &self.pod).await {
                        Ok(fetched) => sources = Some(fetched),
                        Err(error) => {
                            tracing::debug!(%error, pod = self.sandbox.name, "what the pod refers to cannot be read");
                            return Some(Instant::now() + WRITE_RETRY);
                        }
                    }
                }
                if let Some(sources) = &sources {
                    self.start(&name, sources).await;
                }
            }
        }
    }

    /// When `activeDeadlineSeconds` is over.
    fn deadline(&self) -> Option<Instant> {
        let seconds = self.pod.spec.as_ref()?.active_deadline_seconds?;
        let now = self.kubelet.machine.shared.clock.now();
        let passed = now.as_second() - self.sandbox.started.as_second();
        Some(Instant::now() + Duration::from_secs(u64::try_from(seconds - passed).unwrap_or(0)))
    }

    /// Decides when a container that has ended is started again.
    fn back_off(&self, name: &str) {
        let id = format!("{}_{}({})", self.sandbox.name, self.sandbox.namespace, self.sandbox.uid);
        let mut wait = Duration::ZERO;
        self.sandbox.change(name, |record| {
            let State::Terminated(end) = &record.state else { return };
            let ran = Duration::from_secs(
                u64::try_from(end.finished.as_second() - end.started.as_second()).unwrap_or_default(),
            );
            let next;
            (wait, next) = back_off(record.backoff, ran);
            record.backoff = next;
            record.retry_at = Some(Instant::now() + wait);
            record.last = Some(end.clone());
            record.state = if wait.is_zero() {
                State::Waiting { reason: String::new(), message: String::new() }
            } else {
                State::Waiting {
                    reason: "CrashLoopBackOff".to_owned(),
                    message: format!(
                        "back-off {} restarting failed container={name} pod={id}",
                        go_duration(wait)
                    ),
                }
            };
        });
        if !wait.is_zero() {
            let message = format!("Back-off restarting failed container {name} in pod {id}");
            self.event(Some(name), true, "BackOff", message);
        }
    }

    async fn start(&self, name: &str, sources: &Sources) {
        let Some((container, init)) = self.container(name) else { return };
        let image = container.image.as_deref().unwrap_or_default();
        let result = self.kubelet.launch(&self.sandbox, &self.pod, &container, init, sources).await;
        let (reason, message) = match result {
            Ok(()) => {
                let pulled = format!("Container image \"{image}\" already present on machine");
                self.event(Some(name), false, "Pulled", pulled);
                self.event(Some(name), false, "Created", format!("Created container: {name}"));
                self.event(Some(name), false, "Started", format!("Started container {name}"));
                self.after_start(&container).await;
                return;
            }
            Err(LaunchError::Start(message)) => {
                self.event(Some(name), true, "Failed", format!("Error: {message}"));
                return;
            }
            Err(LaunchError::Config(message)) => ("CreateContainerConfigError", message),
            Err(LaunchError::Create(message)) => ("CreateContainerError", message),
        };
        self.event(Some(name), true, "Failed", format!("Error: {message}"));
        self.sandbox.change(name, |record| {
            record.retry_at = Some(Instant::now() + CREATE_RETRY);
            record.state = State::Waiting { reason: reason.to_owned(), message: message.clone() };
        });
    }

    /// The `postStart` command and the probes.
    async fn after_start(&self, container: &Container) {
        let run = self.sandbox.containers().get(&container.name).and_then(|record| record.run.clone());
        let Some(run) = run else { return };
        let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        if let (Some(command), Some(view)) =
            (hook.and_then(|hook| hook.exec.as_ref()).and_then(|exec| exec.command.clone()), &run.view)
        {
            let (code, output) = probes::command_output(view, command).await;
            if code != 0 {
                let message =
                    format!("PostStartHook failed: command exited with {code}: {}", output.trim_end());
                self.event(Some(&container.name), true, "FailedPostStartHook", message);
                run.stop.cancel();
                return;
            }
        }
        let (kubelet, pod, name) = (Arc::clone(&self.kubelet), Arc::clone(&self.pod), container.name.clone());
        probes::watch(&self.sandbox, container, &run, move |failed| {
            let kind = failed.kind.name();
            kubelet.pod_event(
                &pod,
                Some(&name),
                true,
                "Unhealthy",
                format!("{kind} probe failed: {}", failed.output),
            );
            if failed.fatal {
                let message =
                    format!("Container {name} failed {} probe, will be restarted", kind.to_lowercase());
                kubelet.pod_event(&pod, Some(&name), false, "Killing", message);
            }
        });
    }

    /// Stops the pod's containers in good order and removes the pod from the API server.
    async fn terminate(&mut self) {
        let grace = self
            .pod
            .metadata
            .deletion_grace_period_seconds
            .map_or(DEFAULT_GRACE, |seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        let records = self.sandbox.containers().clone();
        let running: BTreeMap<&String, &Record> =
            records.iter().filter(|(_, record)| record.is_running()).collect();
        for name in running.keys() {
            self.event(Some(name), false, "Killing", format!("Stopping container {name}"));
        }
        if !grace.is_zero() {
            let hooks = running.iter().filter_map(|(name, record)| {
                let (container, _) = self.container(name)?;
                let hook = container.lifecycle?.pre_stop?;
                let view = record.run.as_ref()?.view.clone()?;
                Some(async move {
                    if let Some(command) = hook.exec.and_then(|exec| exec.command) {
                        probes::command_output(&view, command).await;
                    } else if let Some(pause) = hook.sleep {
                        sleep(Duration::from_secs(u64::try_from(pause.seconds).unwrap_or(0))).await;
                    }
                })
            });
            // A hook that takes longer than the grace period is cut off.
            let _ = timeout(grace, futures::future::join_all(hooks)).await;
        }
        self.sandbox.stop_all();
        self.all_stopped().await;
        if self.pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty())
            && !is_terminal(&self.pod)
        {
            // Whoever holds the pod with a finalizer wants to see how it ended.
            let succeeded = self
                .sandbox
                .containers()
                .values()
                .all(|record| matches!(&record.state, State::Terminated(end) if end.exit_code == 0));
            self.finished = Some(succeeded);
            self.write_status().await;
        }
        self.clean_up();
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(self.sandbox.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        loop {
            match self.api().delete(&self.sandbox.name, &parameters).await {
                Ok(_) => return,
                // Gone, or another pod of this name.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return,
                Err(error) => {
                    tracing::debug!(%error, pod = self.sandbox.name, "the pod is not deleted yet");
                    sleep(WRITE_RETRY).await;
                }
            }
        }
    }

    async fn all_stopped(&self) {
        let mut changes = self.sandbox.changes();
        while self.sandbox.is_running() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Frees what a pod that has ended held.
    fn clean_up(&self) {
        self.kubelet.free(&self.sandbox.uid);
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.kubelet.machine.shared.client.clone(), &self.sandbox.namespace)
    }

    /// Writes the status if it differs from what was written last.
    async fn write_status(&mut self) {
        let machine = &self.kubelet.machine;
        let records =
            if self.failure.as_ref().is_some_and(|failure| failure.reason == "UnexpectedAdmissionError") {
                BTreeMap::new()
            } else {
                self.sandbox.containers().clone()
            };
        let wanted = status(
            &self.pod,
            &records,
            &Surroundings {
                pod_ip: &self.sandbox.ip,
                host_ip: &machine.host_ip(),
                started: self.sandbox.started,
                now: machine.shared.clock.now(),
                failure: self.failure.as_ref(),
                finished: self.finished,
                terminating: self.pod.metadata.deletion_timestamp.is_some(),
            },
        );
        let text = wanted.to_string();
        if self.written.as_ref() == Some(&text) {
            self.rewrite = false;
            return;
        }
        let patch = json!({"metadata": {"uid": self.sandbox.uid}, "status": wanted});
        match self
            .api()
            .patch_status(&self.sandbox.name, &PatchParams::default(), &Patch::Strategic(patch))
            .await
        {
            Ok(pod) => {
                self.written = Some(text);
                self.rewrite = false;
                self.see(Arc::new(pod));
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                // The pod is gone or replaced; the watch will say so.
                self.rewrite = false;
                self.written = Some(text);
            }
            Err(error) => {
                tracing::debug!(%error, pod = self.sandbox.name, "the status is not written yet");
                self.rewrite = true;
            }
        }
    }

    fn event(&self, container: Option<&str>, warning: bool, reason: &'static str, message: String) {
        self.kubelet.pod_event(&self.pod, container, warning, reason, message);
    }
}

impl Kubelet {
    pub(super) fn pod_event(
        &self,
        pod: &Pod,
        container: Option<&str>,
        warning: bool,
        reason: &'static str,
        message: String,
    ) {
        let field = container.map(|name| {
            let init = pod
                .spec
                .iter()
                .flat_map(|spec| spec.init_containers.iter().flatten())
                .any(|container| container.name == name);
            format!("spec.{}{{{name}}}", if init { "initContainers" } else { "containers" })
        });
        self.machine.shared.recorder.note(Event {
            object: pod_reference(pod, field.as_deref()),
            component: "kubelet",
            host: self.machine.plate.name.clone(),
            warning,
            reason,
            message,
        });
    }
}

/// What the device manager counts of a pod: extended resources in limits.
fn request(pod: &Pod) -> PodRequest {
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    let one = |container: &Container, kind: ContainerKind| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        let devices = limits
            .into_iter()
            .flatten()
            // Extended resources have a domain, and not Kubernetes' own.
            .filter(|(name, _)| name.contains('/') && !name.contains("kubernetes.io/"))
            .filter_map(|(name, quantity)| {
                let count = quantity.0.parse::<gantry_units::Quantity>().ok()?.value();
                Some((name.clone(), u64::try_from(count).ok().filter(|count| *count > 0)?))
            })
            .collect();
        ContainerRequest { name: container.name.clone(), kind, devices }
    };
    let inits = spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).map(|container| {
        one(container, if is_sidecar(container) { ContainerKind::Sidecar } else { ContainerKind::Init })
    });
    let apps =
        spec.iter().flat_map(|spec| &spec.containers).map(|container| one(container, ContainerKind::App));
    PodRequest {
        uid: metadata.uid.clone().unwrap_or_default(),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
        containers: inits.chain(apps).collect(),
    }
}

/// A duration as Go prints it, in the range of back-offs: `10s`, `1m20s`, `5m0s`.
fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}

/// UIDs of pods that hold devices: those that have not ended.
pub(super) fn live(pods: &[Arc<Pod>]) -> BTreeSet<String> {
    pods.iter().filter(|pod| !is_terminal(pod)).filter_map(|pod| pod.metadata.uid.clone()).collect()
}
