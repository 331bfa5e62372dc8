//! The control plane of a cluster beside its API server: controllers and scheduler.

use gantry_apiserver::ApiServer;
use gantry_kit::{CancellationToken, SharedClock, SharedIds, Tasks};
use gantry_scheduler::Scheduler;
use gantry_workloads::Workloads;

use crate::Error;

/// The name under which Kubernetes' own controllers write.
pub(crate) const CONTROLLERS: &str = "kube-controller-manager";

/// What runs beside the API server.
pub(crate) struct Control {
    options: gantry_scheduler::Options,
    /// The scheduler that runs. Held while one is stopped and another started: two at a time would give the same GPU away
    /// twice, for a binding of the one may land after the other has read the pods.
    scheduler: tokio::sync::Mutex<Tasks>,
    controllers: Tasks,
}

impl Control {
    /// Starts controllers and scheduler; they run until `cancel`.
    pub(crate) fn start(
        api: &ApiServer,
        clock: &SharedClock,
        ids: &SharedIds,
        cancel: &CancellationToken,
    ) -> Result<Self, Error> {
        let controllers = Tasks::new(cancel.clone());
        let (server, token) = (api.clone(), cancel.clone());
        controllers.spawn(async move { server.run_controllers(token).await });
        let workloads = gantry_workloads::Options::new(clock.clone(), ids.clone());
        controllers.spawn(Workloads::new(api.component_client(CONTROLLERS), workloads).run(cancel.clone()));
        let volcano = gantry_controllers::Options { clock: clock.clone() };
        let client = api.component_client("vc-controller-manager");
        controllers.spawn(gantry_controllers::run(client, volcano, cancel.clone()));
        let client = api.component_client("gantry-scheduler");
        let mut options = gantry_scheduler::Options::new(client, clock.clone(), ids.clone());
        // No Volcano runs here whose pods these could be.
        options.scheduler_names.insert("volcano".to_owned());
        let scheduler = tokio::sync::Mutex::new(start_scheduler(&options, cancel)?);
        Ok(Self { options, scheduler, controllers })
    }

    /// Ends the scheduler that runs and starts another.
    pub(crate) async fn restart_scheduler(&self) -> Result<(), Error> {
        let mut running = self.scheduler.lock().await;
        running.stop().await;
        *running = start_scheduler(&self.options, self.controllers.token())?;
        Ok(())
    }

    /// Completes once everything has ended after the token was cancelled.
    pub(crate) async fn stopped(&self) {
        self.scheduler.lock().await.stop().await;
        self.controllers.stop().await;
    }
}

fn start_scheduler(options: &gantry_scheduler::Options, cancel: &CancellationToken) -> Result<Tasks, Error> {
    let (scheduler, _) = Scheduler::new(options.clone())?;
    let tasks = Tasks::new(cancel.child_token());
    tasks.spawn(scheduler.run(tasks.token().clone()));
    Ok(tasks)
}
