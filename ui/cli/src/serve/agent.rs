//! `gantry agent`: the node agent.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gantry_agent::{
    Agent, ConfigSource, DeviceRoots, FeatureOptions, Handle, HealthOptions, HealthProfile, Policy, Response,
    serve_shim,
};
use gantry_driver::{Root, install_simulated};
use gantry_gpu::{GpuBackend, NvmlGpus, NvmlOptions, Profile, SimGpus};
use gantry_kit::SystemClock;
use gantry_nvidia_config::Config;
use tokio::time::sleep;

use super::nvidia::NvidiaFlags;
use super::{Process, ProcessOptions, rights};
use crate::args::Connection;
use crate::hint::{self, WithHint as _};
use crate::manifests::Part;

/// Waits between attempts to reach the driver: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The device file that a machine with a driver always has.
const CONTROL_DEVICE: &str = "dev/nvidiactl";

#[derive(clap::Args)]
pub(crate) struct AgentOptions {
    /// The name of this node's Node object.
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    node_name: Option<String>,
    /// The kubelet's folder, with device-plugins/ in it.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet", env = "GANTRY_KUBELET_ROOT")]
    kubelet_root: PathBuf,
    /// Where CDI files go; the container runtime must look there.
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi", env = "GANTRY_CDI_DIR")]
    cdi_dir: PathBuf,
    /// Where sysfs is mounted, which tells NUMA nodes and the machine's name.
    #[arg(long, value_name = "DIR", default_value = "/sys", env = "GANTRY_SYSFS")]
    sysfs: PathBuf,
    /// Where procfs is mounted, which tells capability devices of partitions.
    #[arg(long, value_name = "DIR", default_value = "/proc", env = "GANTRY_PROCFS")]
    procfs: PathBuf,
    /// Where the checkpoint goes; must outlive the agent.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/gantry", env = "GANTRY_STATE_DIR")]
    state_dir: PathBuf,
    /// The resource that is offered.
    #[arg(long, value_name = "NAME", default_value = "nvidia.com/gpu", env = "GANTRY_RESOURCE")]
    resource: String,
    /// Who decides which GPU a container gets.
    #[arg(long, value_name = "MODE", default_value = "auto", env = "GANTRY_IDENTITY")]
    identity: Identity,
    /// Where gantry-runtime asks, with --identity shim.
    #[arg(long, value_name = "FILE", default_value = gantry_agent::SHIM_SOCKET, env = "GANTRY_SHIM_SOCKET")]
    shim_socket: PathBuf,
    /// Where the container runtime listens for NRI plugins.
    #[arg(long, value_name = "FILE", default_value = "/var/run/nri/nri.sock", env = "GANTRY_NRI_SOCKET")]
    nri_socket: PathBuf,
    /// Offer simulated GPUs instead of the driver's, such as a100-80 or t4:2; 8 unless told otherwise.
    #[arg(long, value_name = "PROFILE[:COUNT]", env = "GANTRY_SIMULATE")]
    simulate: Option<Simulated>,
    /// What faults of GPUs mean.
    #[arg(long, value_name = "PROFILE", default_value = "gantry", env = "GANTRY_HEALTH_PROFILE")]
    health_profile: Profiles,
    /// Other answers to XIDs than the profile's, as in 109=suspend,63=ignore: ignore, suspend, reset or reboot.
    #[arg(long, value_name = "XID=RESPONSE,...", value_parser = Policy::parse_overrides, env = "GANTRY_XID_RESPONSES")]
    xid_responses: Option<Overrides>,
    /// Taint a node on which no GPU is fit: nvidia.com/gpu-unhealthy:NoSchedule.
    #[arg(long, env = "GANTRY_TAINT_UNHEALTHY")]
    taint_unhealthy: bool,
    #[command(flatten)]
    nvidia: NvidiaFlags,
    #[command(flatten)]
    process: ProcessOptions,
}

impl AgentOptions {
    /// Where the configuration comes from: flags, environment, file.
    fn config(&self) -> anyhow::Result<ConfigSource> {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let source = ConfigSource::from_env(self.nvidia.0.clone(), env.collect());
        source.map_err(anyhow::Error::from).hint(config_hint)
    }

    /// What is known of it now, and is read once.
    fn config_at_start(&self, source: &ConfigSource) -> anyhow::Result<Arc<Config>> {
        source.at_start(&self.state_dir).map_err(anyhow::Error::from).hint(config_hint)
    }

    /// What faults mean.
    fn health(&self) -> HealthOptions {
        let profile = match self.health_profile {
            Profiles::Gantry => HealthProfile::Gantry,
            Profiles::Nvidia => HealthProfile::Nvidia,
        };
        let overrides = self.xid_responses.clone().unwrap_or_default();
        let policy = Policy { profile, overrides, ..Policy::default() };
        HealthOptions { policy, taint: self.taint_unhealthy }
    }
}

fn config_hint() -> String {
    "gantry agent --help lists every setting with its flag, variable and key".to_owned()
}

type Overrides = BTreeMap<u32, Response>;

/// What faults of GPUs mean.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Profiles {
    /// NVIDIA's catalogue of XIDs: each is answered by what is to be done about it, and an application's takes no device out.
    Gantry,
    /// NVIDIA's device plugin: every XID but 13, 31, 43, 45, 68 and 109 takes the device out, and it returns all the same.
    Nvidia,
}

/// Who decides which GPU a container gets.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Identity {
    /// The scheduler where the container runtime speaks NRI, the kubelet where it does not.
    Auto,
    /// The scheduler; the container runtime tells whose container is created, through NRI.
    Nri,
    /// The scheduler; gantry-runtime, the OCI runtime of containers with GPUs, asks on --shim-socket.
    Shim,
    /// The kubelet.
    Kubelet,
}

/// The value of `--simulate`.
#[derive(Debug, Clone, Copy)]
struct Simulated {
    profile: &'static Profile,
    count: usize,
}

impl std::str::FromStr for Simulated {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, count) = match text.split_once(':') {
            None => (text, 8),
            Some((name, count)) => {
                let count = count.parse().map_err(|_| {
                    format!(
                        "number of GPUs {count:?} is no whole number; write PROFILE[:COUNT], as in a100-80:4"
                    )
                })?;
                (name, count)
            }
        };
        let profile = Profile::named(name).map_err(|error| error.to_string())?;
        // The backend knows how many it can have.
        SimGpus::new(profile, count, "node", 0).map_err(|error| error.to_string())?;
        Ok(Self { profile, count })
    }
}

pub(crate) async fn run(connection: &Connection, options: AgentOptions) -> anyhow::Result<()> {
    let node_name = options.node_name.clone().filter(|name| !name.is_empty()).ok_or_else(|| {
        hint::error(
            "the name of this node is not known",
            "--node-name NAME, or NODE_NAME from the pod's spec.nodeName; kubectl get nodes lists the names",
        )
    })?;
    let source = options.config()?;
    options.config_at_start(&source)?;
    let client = super::client(connection).await?;
    let process = Process::start("agent", &options.process).await?;
    process.readiness.wait_for("kubelet", "not registered yet");
    let asking = client.clone();
    // The node's GPUs are served whatever the API server says; what will be missing in the cluster is told once.
    process.tasks.spawn_until_cancelled(async move {
        if let Ok(missing) = rights::missing(&asking, Part::Agent).await
            && !missing.is_empty()
        {
            let hint = "gantry manifests --only agent | kubectl apply -f -";
            tracing::warn!(missing = missing.join(", "), hint, "this account may not do all of its work");
        }
    });
    let features = FeatureOptions { namespace: namespace(connection, &client), ..FeatureOptions::default() };
    let Some((agent, handle)) = prepare(&process, &options, &source, &features, &node_name, client).await?
    else {
        process.stop().await;
        return Ok(());
    };
    if options.identity == Identity::Shim {
        let socket = options.shim_socket.clone();
        let (handle, cancel) = (handle.clone(), process.tasks.token().clone());
        process.tasks.spawn_until_cancelled(async move {
            if let Err(error) = serve_shim(socket, handle, cancel).await {
                tracing::error!(%error, "gantry-runtime cannot ask: containers with slots are not created");
            }
        });
    }
    watch(&process, handle);
    agent.run(process.tasks.token().clone()).await;
    process.stop().await;
    Ok(())
}

/// The namespace of this pod: as it was given, by NVIDIA's variables, or that of the service account.
fn namespace(connection: &Connection, client: &kube::Client) -> String {
    let variables = ["NAMESPACE", "POD_NAMESPACE"].into_iter().filter_map(|name| std::env::var(name).ok());
    let mut named = connection.namespace.clone().into_iter().chain(variables);
    named.find(|name| !name.is_empty()).unwrap_or_else(|| client.default_namespace().to_owned())
}

/// An agent with GPUs, as soon as the driver answers; none if told to stop before.
async fn prepare(
    process: &Process,
    options: &AgentOptions,
    config: &ConfigSource,
    features: &FeatureOptions,
    node_name: &str,
    client: kube::Client,
) -> anyhow::Result<Option<(Agent, Handle)>> {
    let identity = match options.identity {
        Identity::Auto => gantry_agent::Identity::Auto,
        Identity::Nri | Identity::Shim => gantry_agent::Identity::Assignment,
        Identity::Kubelet => gantry_agent::Identity::Kubelet,
    };
    let nri = matches!(options.identity, Identity::Auto | Identity::Nri).then(|| options.nri_socket.clone());
    let mut delay = RETRY.0;
    let mut told = String::new();
    loop {
        // Anew each time: what was wrong may have been the configuration.
        let known = options.config_at_start(config)?;
        let roots = roots(options, &known)?;
        let (simulate, name) = (options.simulate, node_name.to_owned());
        let driver = NvmlOptions {
            driver_root: roots.0.path().to_owned(),
            sysfs: options.sysfs.clone(),
            proc: options.procfs.clone(),
            ..NvmlOptions::default()
        };
        let opened = tokio::task::spawn_blocking(move || backend(simulate, &name, driver)).await?;
        let attempt = opened.map_err(gantry_agent::Error::from).and_then(|backend| {
            Agent::new(gantry_agent::Options {
                node_name: node_name.to_owned(),
                backend,
                identity,
                nri: nri.clone(),
                pod_resources: Some(options.kubelet_root.join("pod-resources/kubelet.sock")),
                kubelet_pods: (options.identity == Identity::Shim).then(|| options.kubelet_root.join("pods")),
                resource: options.resource.clone(),
                config: config.clone(),
                kubelet_dir: kubelet_dir(options, &known),
                cdi_dir: options.cdi_dir.clone(),
                driver_root: roots.0.clone(),
                devices: roots.1.clone(),
                state_dir: options.state_dir.clone(),
                client: Some(client.clone()),
                clock: Arc::new(SystemClock),
                watch: None,
                features: features.clone(),
                health: options.health(),
            })
        });
        let error = match attempt {
            Ok(agent) => {
                process.readiness.met("driver");
                return Ok(Some(agent));
            }
            // Waiting is what most want, and what happens unless somebody has said otherwise.
            Err(gantry_agent::Error::Gpu(error))
                if known.fail_on_init_error && known.is_set("fail-on-init-error") =>
            {
                return Err(error).context("the GPUs cannot be asked, and fail-on-init-error is set").hint(
                    || "install the driver, or wait for it with --fail-on-init-error=false".to_owned(),
                );
            }
            Err(gantry_agent::Error::Gpu(error)) => error,
            Err(error) => return Err(error).context("start the agent"),
        };
        let text = error.to_string();
        // Once: a node whose driver is never installed must not fill a disk with it. The endpoint has it all the time.
        if text != told {
            tracing::warn!(error = text, "the GPUs cannot be asked yet; trying again");
            told.clone_from(&text);
        }
        process.readiness.wait_for("driver", text);
        if process.tasks.token().run_until_cancelled(sleep(delay)).await.is_none() {
            return Ok(None);
        }
        delay = (delay * 2).min(RETRY.1);
    }
}

/// The kubelet's folder for device plugins: that of the socket, where one was named.
fn kubelet_dir(options: &AgentOptions, config: &Config) -> PathBuf {
    let socket = config.kubelet_socket.as_ref().and_then(Option::as_ref);
    let folder = socket.and_then(|socket| socket.parent()).map(PathBuf::from);
    folder.unwrap_or_else(|| options.kubelet_root.join("device-plugins"))
}

/// Where driver and device files are. Simulated GPUs have a driver of their own unless one is named, and device files where the
/// machine pretends to have some.
fn roots(options: &AgentOptions, config: &Config) -> anyhow::Result<(Root, Option<DeviceRoots>)> {
    let mounted = config.is_set("driver-root-ctr-path") || config.plugin.container_driver_root.is_dir();
    let here = if mounted { &config.plugin.container_driver_root } else { &config.driver_root };
    let driver = Root::mounted(&config.driver_root, here);
    // A containerised driver mostly has device files beside it, and always some in the node's /dev.
    let dev = if config.is_set("dev-root") {
        Root::new(&config.dev_root)
    } else if !driver.is_system() && driver.here(CONTROL_DEVICE).exists() {
        driver.clone()
    } else {
        Root::new("/")
    };
    let devices = DeviceRoots { dev, procfs: options.procfs.clone(), sysfs: options.sysfs.clone() };
    let Some(Simulated { profile, .. }) = options.simulate else { return Ok((driver, Some(devices))) };
    let devices = Some(devices).filter(|devices| devices.dev.here(CONTROL_DEVICE).exists());
    if !driver.is_system() {
        return Ok((driver, devices));
    }
    let root = options.state_dir.join("simulated-driver");
    install_simulated(&root, &profile.driver().driver_version)
        .with_context(|| format!("install a simulated driver in {}", root.display()))?;
    Ok((Root::new(root), devices))
}

/// The GPUs, if they answer. A driver may take a minute to start, so that this is called where it may block.
fn backend(
    simulate: Option<Simulated>,
    node_name: &str,
    driver: NvmlOptions,
) -> Result<Arc<dyn GpuBackend>, gantry_gpu::Error> {
    match simulate {
        Some(Simulated { profile, count }) => Ok(SimGpus::new(profile, count, node_name, 0)?),
        None => Ok(NvmlGpus::open(driver)?),
    }
}

/// Keeps endpoints and metrics true while the agent runs.
fn watch(process: &Process, handle: Handle) {
    let metrics = &process.metrics;
    let count = |healthy: bool| {
        let handle = handle.clone();
        move || {
            let count = handle.gpus().iter().filter(|gpu| gpu.health.is_healthy() == healthy).count();
            i64::try_from(count).unwrap_or(i64::MAX)
        }
    };
    let help = "GPUs of the node, by health.";
    metrics.ask("gauge", "gantry_agent_gpus", help, &[("health", "healthy")], count(true));
    metrics.ask("gauge", "gantry_agent_gpus", help, &[("health", "unhealthy")], count(false));
    let mut registrations = handle.registrations();
    let registered = registrations.clone();
    metrics.ask(
        "counter",
        "gantry_agent_registrations_total",
        "Registrations of the device plugin with the kubelet.",
        &[],
        move || i64::try_from(*registered.borrow()).unwrap_or(i64::MAX),
    );
    let readiness = process.readiness.clone();
    process.tasks.spawn_until_cancelled(async move {
        if registrations.wait_for(|count| *count > 0).await.is_ok() {
            readiness.met("kubelet");
        }
    });
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn health(arguments: &[&str]) -> Result<HealthOptions, clap::Error> {
        let command = AgentOptions::augment_args(Command::new("agent").no_binary_name(true));
        Ok(AgentOptions::from_arg_matches(&command.try_get_matches_from(arguments)?)?.health())
    }

    #[test]
    fn what_faults_mean_is_said_by_flags() {
        assert_eq!(health(&[]).unwrap(), HealthOptions::default());
        let all = ["--health-profile=nvidia", "--xid-responses=109=suspend, 63=ignore", "--taint-unhealthy"];
        let overrides = BTreeMap::from([(63, Response::Ignore), (109, Response::Suspend)]);
        let policy = Policy { profile: HealthProfile::Nvidia, overrides, ..Policy::default() };
        assert_eq!(health(&all).unwrap(), HealthOptions { policy, taint: true });
        let refused = health(&["--xid-responses=63=never"]).unwrap_err().to_string();
        let rule = "\"63=never\" must end with one of ignore, suspend, reset, reboot: write XID=RESPONSE, as in 109=suspend,48=reset";
        assert!(refused.contains(rule), "{refused}");
    }
}
