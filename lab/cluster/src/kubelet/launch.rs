//! Starting a container: from the pod's specification to a running process.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use gantry_api::ASSIGNMENT_ANNOTATION;
use gantry_cdi::DeviceName;
use gantry_gpu::Load;
use gantry_kit::CancellationToken;
use gantry_model::{GpuId, PodKey};
use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;

use super::simulation::{INIT_DURATION, Simulation};
use super::sources::{NodeFacts, Sources, substitute};
use super::{Kubelet, agent_pod};
use crate::device_manager::ContainerDevices;
use crate::machine::Machine;
use crate::programs::workload::{self, Workload};
use crate::programs::{self, Process, Sink, Stdin};
use crate::runtime::{Blueprint, ContainerView, Log, Run, Sandbox, State, Termination, config, inject};

/// Exit code of a process that SIGTERM ended.
const TERMINATED: i32 = 143;

/// Exit code of a run that never began.
const START_ERROR: i32 = 128;

/// How long the creation of a container waits for the node agent.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);

/// Output that those who attach may lag behind by, in writes. Each container has room for them from the start.
const OUTPUT_LAG: usize = 32;

/// Why a container is not running; the text is the kubelet's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LaunchError {
    /// Its configuration cannot be made (`CreateContainerConfigError`).
    Config(String),
    /// The runtime refused to create it (`CreateContainerError`).
    Create(String),
    /// It was created and its program could not be started; the run counts as ended.
    Start(String),
}

/// What a container's first process is.
enum Main {
    Agent,
    ForeignPlugin,
    Program,
    Workload,
}

impl Kubelet {
    /// Starts a container of an admitted pod. Its record in the sandbox then says that it runs, or how it ended.
    pub(super) async fn launch(
        &self,
        sandbox: &Arc<Sandbox>,
        pod: &Arc<Pod>,
        container: &Container,
        init: bool,
        sources: &Sources,
    ) -> Result<(), LaunchError> {
        let machine = &self.machine;
        let host_ip = machine.host_ip();
        let facts = NodeFacts { name: &machine.plate.name, host_ip: &host_ip, pod_ip: &sandbox.ip };
        let missing = |error: super::sources::Missing| LaunchError::Config(error.to_string());
        let env = sources.env(pod, container, facts).map_err(missing)?;
        let files = sources.files(pod, container, facts).map_err(missing)?;
        let mut args: Vec<String> = Vec::new();
        for text in container.command.iter().flatten().chain(container.args.iter().flatten()) {
            args.push(substitute(text, &env));
        }
        let devices = match &self.devices {
            Some(manager) => {
                manager
                    .pre_start(&sandbox.uid, &container.name)
                    .await
                    .map_err(|error| LaunchError::Create(error.to_string()))?;
                manager.container(&sandbox.uid, &container.name)
            }
            None => ContainerDevices::default(),
        };
        let names = self.cdi_devices(sandbox, pod, container, &devices).await?;
        let blueprint = Blueprint { pod, container, args: &args, env: &env, devices: &devices };
        let mut oci = config(&blueprint);
        inject(&mut oci, &machine.cdi, &names).map_err(|error| {
            LaunchError::Create(format!(
                "failed to generate container spec: CDI device injection failed: {error}"
            ))
        })?;
        let view = Arc::new(ContainerView::new(
            &oci,
            &files.files,
            &files.directories,
            machine.hardware.clone(),
            machine.shared.clock.clone(),
        ));
        self.spawn(sandbox, pod, container, init, args, &view)
    }

    /// The CDI devices: those of `Allocate`'s answer and those that the agent adds once it knows whose container it is.
    async fn cdi_devices(
        &self,
        sandbox: &Sandbox,
        pod: &Pod,
        container: &Container,
        devices: &ContainerDevices,
    ) -> Result<Vec<DeviceName>, LaunchError> {
        let create = |error: String| LaunchError::Create(error);
        let annotated = devices
            .annotations
            .iter()
            .filter(|(key, _)| key.starts_with("cdi.k8s.io/"))
            .flat_map(|(_, value)| value.split(','));
        let mut names = Vec::new();
        for name in devices.cdi.iter().map(String::as_str).chain(annotated) {
            names.push(name.trim().parse::<DeviceName>().map_err(|error| create(error.to_string()))?);
        }
        // What the agent's answer to Allocate says of itself, as a plugin of a runtime finds it in the container's annotations.
        let told = devices.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let granted = gantry_shim::granted_devices(told).map_err(|error| create(error.to_string()))?;
        // A runtime tells NRI of every container; the agent has nothing to say of one that neither side gave a device.
        let annotations = pod.metadata.annotations.clone().unwrap_or_default();
        if granted.is_empty() && !annotations.contains_key(ASSIGNMENT_ANNOTATION) {
            return Ok(names);
        }
        let agent = self.machine.agent_soon(AGENT_PATIENCE).await.ok_or_else(|| {
            create("the node agent is not running: no NRI plugin answers CreateContainer".to_owned())
        })?;
        let identity = gantry_agent::ContainerIdentity {
            pod: PodKey {
                namespace: sandbox.namespace.as_str().into(),
                name: sandbox.name.as_str().into(),
                uid: sandbox.uid.as_str().into(),
            },
            annotations,
            name: container.name.clone(),
            devices: granted,
        };
        let adjustment = agent
            .create_container(&identity)
            .map_err(|error| create(format!("NRI plugin gantry refused CreateContainer: {error}")))?;
        names.extend(adjustment.cdi_devices);
        Ok(names)
    }

    fn spawn(
        &self,
        sandbox: &Arc<Sandbox>,
        pod: &Pod,
        container: &Container,
        init: bool,
        args: Vec<String>,
        view: &Arc<ContainerView>,
    ) -> Result<(), LaunchError> {
        let machine = &self.machine;
        let clock = machine.shared.clock.clone();
        let (mut simulation, _) = Simulation::of(pod);
        if init && !super::plan::is_sidecar(container) {
            // What prepares a pod is not what its annotations describe.
            simulation.duration = Some(INIT_DURATION);
            simulation.exit_code = 0;
        } else if init {
            simulation.duration = None;
        }
        let interactive = container.stdin.unwrap_or(false);
        let image = container.image.clone().unwrap_or_default();
        let shell =
            args.first().is_some_and(|program| matches!(program.rsplit('/').next(), Some("sh" | "bash")));
        let main = if agent_pod::is_agent_image(&image) {
            Main::Agent
        } else if agent_pod::is_foreign_plugin(&image) {
            Main::ForeignPlugin
        } else if programs::is_faithful(&args) || (interactive && shell && args.len() == 1) {
            Main::Program
        } else {
            Main::Workload
        };

        let id = machine.container_id();
        let pid = machine.pid();
        let log = Arc::new(Log::new(clock.clone()));
        let (output, _) = broadcast::channel(OUTPUT_LAG);
        let stop = CancellationToken::new();
        let (stdin, stdin_sender) = if interactive {
            let (sender, receiver) = mpsc::unbounded_channel();
            (Stdin::live(receiver), Some(sender))
        } else {
            (Stdin::empty(), None)
        };
        let run = Run {
            id: id.clone(),
            pid,
            log: Arc::clone(&log),
            view: Some(Arc::clone(view)),
            stop: stop.clone(),
            stdin: stdin_sender,
            output: output.clone(),
        };
        let started = clock.now();
        let no_probe = container.startup_probe.is_none();
        let no_readiness = container.readiness_probe.is_none();
        sandbox.change(&container.name, |record| {
            if let Some(run) = record.run.take() {
                record.previous_log = Some(run.log);
            }
            if record.last.is_some() {
                record.restarts += 1;
            }
            record.run = Some(run);
            record.state = State::Running { started };
            record.retry_at = None;
            record.since = Instant::now();
            record.started = no_probe;
            record.ready = no_probe && no_readiness;
        });
        let end = {
            let (sandbox, name) = (Arc::clone(sandbox), container.name.clone());
            let clock = clock.clone();
            move |exit_code: i32, reason: &str, message: String| {
                let finished = clock.now();
                sandbox.exited(
                    &name,
                    Termination { exit_code, reason: reason.to_owned(), message, started, finished, id },
                );
            }
        };
        if let (Main::Program, Some(program)) = (&main, args.first())
            && !programs::exists(view, program)
        {
            let message = format!(
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create \
                     failed: unable to start container process: {}",
                programs::not_found_message(program)
            );
            end(START_ERROR, "StartError", message.clone());
            return Err(LaunchError::Start(message));
        }

        let sink = {
            let log = Arc::clone(&log);
            Sink::new(move |bytes| {
                log.write(bytes);
                // Nobody attached is the usual case.
                let _ = output.send(Bytes::copy_from_slice(bytes));
            })
        };
        let busy = load(machine, view, pid, container, &simulation);
        let program: BoxFuture<'static, i32> = match (busy, main) {
            (Err(text), _) => {
                sink.line(text);
                Box::pin(std::future::ready(1))
            }
            (Ok(()), Main::Agent) => Box::pin(agent_pod::run_agent(Arc::clone(machine), sink.clone())),
            (Ok(()), Main::ForeignPlugin) => {
                Box::pin(agent_pod::run_foreign_plugin(machine.plate.name.clone(), sink.clone()))
            }
            (Ok(()), Main::Program) => Box::pin(programs::run(Process {
                argv: args,
                env: view.env(),
                cwd: view.cwd().to_owned(),
                view: Arc::clone(view),
                stdin,
                stdout: sink.clone(),
                stderr: sink,
                tty: container.tty.unwrap_or(false),
            })),
            (Ok(()), Main::Workload) => {
                let workload = Workload {
                    image,
                    command: args,
                    duration: simulation.duration,
                    exit_code: simulation.exit_code,
                };
                let view = Arc::clone(view);
                Box::pin(async move { workload::run(workload, &view, &sink).await })
            }
        };
        let gpus = machine.plate.gpus.clone();
        tokio::spawn(async move {
            // A simulated process ends at once when it is told to: a process 1 that ignores SIGTERM until it is killed
            // would only make every deletion take its whole grace period.
            let exit_code = tokio::select! {
                code = program => code,
                () = stop.cancelled() => TERMINATED,
            };
            if let Some(gpus) = gpus {
                gpus.end_process(pid);
            }
            end(exit_code, if exit_code == 0 { "Completed" } else { "Error" }, String::new());
        });
        Ok(())
    }
}

/// Puts a container's load on its GPUs, or says why a card refuses it.
pub(super) fn load(
    machine: &Machine,
    view: &ContainerView,
    pid: u32,
    container: &Container,
    simulation: &Simulation,
) -> Result<(), String> {
    let Some(gpus) = &machine.plate.gpus else { return Ok(()) };
    for gpu in view.gpus() {
        let Ok(id) = gpu.uuid.parse::<GpuId>() else { continue };
        let load = Load {
            name: container
                .command
                .iter()
                .flatten()
                .next()
                .cloned()
                .unwrap_or_else(|| container.name.clone()),
            utilization_percent: simulation.utilization_percent,
            memory_mib: simulation.memory_used_mib,
        };
        if let Err(error) = gpus.set_load(&id, pid, load) {
            gpus.end_process(pid);
            return Err(format!("[gantry] CUDA error: {error}"));
        }
    }
    Ok(())
}
