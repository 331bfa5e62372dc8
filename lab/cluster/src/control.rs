//! The control plane of a cluster beside its API server: controllers and scheduler.

use std::sync::{Mutex, PoisonError};

use gantry_apiserver::ApiServer;
use gantry_kit::{CancellationToken, SharedClock, SharedIds};
use gantry_scheduler::Scheduler;
use gantry_workloads::Workloads;
use kube::Client;
use tokio::task::JoinHandle;

use crate::Error;

/// What runs beside the API server.
pub(crate) struct Control {
    scheduler: gantry_scheduler::Options,
    /// The scheduler that runs last.
    running: Mutex<Option<(CancellationToken, JoinHandle<()>)>>,
    cancel: CancellationToken,
}

impl Control {
    /// Starts controllers and scheduler; they run until `cancel`.
    pub(crate) fn start(
        api: &ApiServer,
        client: &Client,
        clock: &SharedClock,
        ids: &SharedIds,
        cancel: &CancellationToken,
    ) -> Result<Self, Error> {
        let (server, token) = (api.clone(), cancel.clone());
        tokio::spawn(async move { server.run_controllers(token).await });
        let workloads = gantry_workloads::Options::new(clock.clone(), ids.clone());
        tokio::spawn(Workloads::new(client.clone(), workloads).run(cancel.clone()));
        let volcano = gantry_controllers::Options { clock: clock.clone() };
        tokio::spawn(gantry_controllers::run(client.clone(), volcano, cancel.clone()));
        let mut scheduler = gantry_scheduler::Options::new(client.clone(), clock.clone(), ids.clone());
        // No Volcano runs here whose pods these could be.
        scheduler.scheduler_names.insert("volcano".to_owned());
        let control = Self { scheduler, running: Mutex::default(), cancel: cancel.clone() };
        control.restart_scheduler()?;
        Ok(control)
    }

    /// Ends the scheduler that runs, if any, and starts another.
    pub(crate) fn restart_scheduler(&self) -> Result<(), Error> {
        let (scheduler, _) = Scheduler::new(self.scheduler.clone())?;
        let next = self.cancel.child_token();
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let before = running.take().map(|(cancel, task)| {
            cancel.cancel();
            task
        });
        let token = next.clone();
        let task = tokio::spawn(async move {
            // Two at a time would give the same GPU away twice: a binding of the one may land after the other has read the pods.
            if let Some(before) = before {
                // One that crashed has ended as well.
                let _ = before.await;
            }
            scheduler.run(token).await;
        });
        *running = Some((next, task));
        Ok(())
    }
}
