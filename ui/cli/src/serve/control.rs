//! `gantry scheduler` and `gantry controllers`: what works for the whole cluster, one process of several at a time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use gantry_kit::{RandomIds, SharedIds, SystemClock};
use gantry_leader::{Role, lead};
use gantry_scheduler::Scheduler;
use kube::Client;

use super::{Process, ProcessOptions, rights};
use crate::args::Connection;
use crate::hint;
use crate::manifests::Part;

/// Waits between attempts to reach the API server: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

#[derive(clap::Args)]
pub(crate) struct SchedulerOptions {
    /// Schedule pods with this in spec.schedulerName; may be repeated. default-scheduler takes the place of Kubernetes' own, which must not run then.
    #[arg(
        long = "scheduler-name",
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "gantry-scheduler",
        env = "GANTRY_SCHEDULER_NAMES"
    )]
    scheduler_names: Vec<String>,
    #[command(flatten)]
    election: ElectionOptions,
    #[command(flatten)]
    process: ProcessOptions,
}

#[derive(clap::Args)]
pub(crate) struct ControllersOptions {
    #[command(flatten)]
    election: ElectionOptions,
    #[command(flatten)]
    process: ProcessOptions,
}

/// Names and defaults are those of kube-scheduler.
#[derive(clap::Args)]
struct ElectionOptions {
    /// Of several of these processes, let one work and the others stand by.
    #[arg(long = "leader-elect", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    enabled: bool,
    /// The namespace of the Lease. Default: the pod's, else kube-system.
    #[arg(long = "leader-elect-resource-namespace", value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// The name of the Lease. Default: gantry-scheduler or gantry-controllers.
    #[arg(long = "leader-elect-resource-name", value_name = "NAME")]
    name: Option<String>,
    /// Seconds for which a Lease that is not renewed is respected.
    #[arg(long = "leader-elect-lease-duration", value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=3600))]
    lease_duration: u64,
    /// Seconds for which the leader goes on without a renewal; less than the duration of the Lease.
    #[arg(long = "leader-elect-renew-deadline", value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=3600))]
    renew_deadline: u64,
    /// Seconds between attempts.
    #[arg(long = "leader-elect-retry-period", value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    retry_period: u64,
}

impl ElectionOptions {
    fn check(&self) -> anyhow::Result<()> {
        let (lease, renew, retry) = (self.lease_duration, self.renew_deadline, self.retry_period);
        // A pause lasts up to a fifth longer.
        if lease > renew && 5 * renew > 6 * retry {
            return Ok(());
        }
        Err(hint::error(
            format!(
                "a Lease of {lease} s, a renewal deadline of {renew} s and a retry period of {retry} s do not fit: each must be shorter than the one before"
            ),
            "leave them out, or use 15, 10 and 2",
        ))
    }
}

pub(crate) async fn scheduler(connection: &Connection, options: SchedulerOptions) -> anyhow::Result<()> {
    options.election.check()?;
    let client = super::client(connection).await?;
    let process = Process::start("scheduler", &options.process).await?;
    let ids: SharedIds = Arc::new(RandomIds::default());
    let mut scheduler = gantry_scheduler::Options::new(client.clone(), Arc::new(SystemClock), ids.clone());
    scheduler.scheduler_names = options.scheduler_names.iter().cloned().collect();
    scheduler.metrics = process.metrics.clone();
    // What cannot work is told before the election, not to the one that has won it.
    Scheduler::new(scheduler.clone()).context("start the scheduler")?;
    run(&process, client, ids, &options.election, ("gantry-scheduler", Part::Scheduler), |term| {
        let scheduler = scheduler.clone();
        async move {
            // A new one for each term: what happened in between is read from the cluster.
            if let Ok((scheduler, _)) = Scheduler::new(scheduler) {
                scheduler.run(term).await;
            }
        }
    })
    .await
}

pub(crate) async fn controllers(connection: &Connection, options: ControllersOptions) -> anyhow::Result<()> {
    options.election.check()?;
    let client = super::client(connection).await?;
    let process = Process::start("controllers", &options.process).await?;
    let ids: SharedIds = Arc::new(RandomIds::default());
    run(&process, client.clone(), ids, &options.election, ("gantry-controllers", Part::Controllers), |term| {
        let options = gantry_controllers::Options { clock: Arc::new(SystemClock) };
        gantry_controllers::run(client.clone(), options, term)
    })
    .await
}

/// Waits for the API server, then does `work` whenever this process leads.
async fn run<W: Future<Output = ()>>(
    process: &Process,
    client: Client,
    ids: SharedIds,
    election: &ElectionOptions,
    (name, part): (&str, Part),
    mut work: impl FnMut(gantry_kit::CancellationToken) -> W,
) -> anyhow::Result<()> {
    let cancel = process.tasks.token().clone();
    if cancel.run_until_cancelled(preflight(process, &client, part)).await.is_none() {
        process.stop().await;
        return Ok(());
    }
    let leading = process.metrics.gauge(
        "gantry_leader",
        "Whether this process leads and works: 1, or 0 while it stands by.",
        &[("lease", name)],
    );
    if election.enabled {
        let mut options = gantry_leader::Options::new(
            client,
            Arc::new(SystemClock),
            ids.clone(),
            election.namespace.clone().unwrap_or_else(|| "kube-system".to_owned()),
            election.name.clone().unwrap_or_else(|| name.to_owned()),
            identity(&ids),
        );
        options.lease_duration = Duration::from_secs(election.lease_duration);
        options.renew_deadline = Duration::from_secs(election.renew_deadline);
        options.retry_period = Duration::from_secs(election.retry_period);
        let mut role = options.role.subscribe();
        let readiness = process.readiness.clone();
        process.tasks.spawn_until_cancelled(async move {
            while role.changed().await.is_ok() {
                let role = role.borrow_and_update().clone();
                leading.set(i64::from(role == Role::Leading));
                match role {
                    Role::Unknown(why) => readiness.wait_for("election", why),
                    // Who stands by is as ready as who leads.
                    Role::Standby(_) | Role::Leading => readiness.met("election"),
                }
            }
        });
        lead(options, cancel, work).await;
    } else {
        leading.set(1);
        work(cancel).await;
    }
    process.stop().await;
    Ok(())
}

/// A name for this process that no other has: the pod's or the machine's, and something random.
fn identity(ids: &SharedIds) -> String {
    let named = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    let host = named("POD_NAME").or_else(|| named("HOSTNAME"));
    format!("{}_{}", host.unwrap_or_else(|| "gantry".to_owned()), ids.uid())
}

/// Waits until the API server answers, knows our kinds and lets this process do its work.
async fn preflight(process: &Process, client: &Client, part: Part) {
    let mut delay = RETRY.0;
    let mut told = String::new();
    loop {
        let obstacle = match client.list_api_groups().await {
            Ok(groups) if groups.groups.iter().any(|group| group.name == "gantry.dev") => {
                match rights::missing(client, part).await {
                    Ok(missing) if missing.is_empty() => {
                        process.readiness.met("api");
                        return;
                    }
                    Ok(missing) => format!(
                        "this account may not {}; gantry manifests --only {} | kubectl apply -f - grants it",
                        missing.join(", "),
                        if part == Part::Scheduler { "scheduler" } else { "controllers" },
                    ),
                    Err(error) => format!("{error:#}"),
                }
            }
            // An API server that has just started does not know its custom resources yet.
            Ok(_) => "the cluster does not know the kind GpuNode (gantry.dev), from which the scheduler learns of GPUs; \
                      gantry manifests --only crds | kubectl apply -f - defines it"
                .to_owned(),
            Err(error) => format!("the API server does not answer: {error}"),
        };
        if obstacle != told {
            tracing::warn!(error = obstacle, "cannot work yet; trying again");
            told.clone_from(&obstacle);
        }
        process.readiness.wait_for("api", obstacle);
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RETRY.1);
    }
}
