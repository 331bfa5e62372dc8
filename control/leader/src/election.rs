//! The loop.

use std::future::Future;
use std::time::Duration;

use gantry_kit::{CancellationToken, SharedClock, SharedIds};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

/// Where and how to stand for election.
#[derive(Clone)]
pub struct Options {
    /// The API server.
    pub client: Client,
    /// The times that are written into the Lease.
    pub clock: SharedClock,
    /// Spreads the attempts of several candidates.
    pub ids: SharedIds,
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// Who this is; no other candidate, and no earlier process, may have the same.
    pub identity: String,
    /// For how long a Lease that is not renewed is respected, in whole seconds.
    pub lease_duration: Duration,
    /// For how long the leader goes on without a successful renewal. Shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// The pause between attempts.
    pub retry_period: Duration,
    /// Where the present role is told.
    pub role: watch::Sender<Role>,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("lease", &format_args!("{}/{}", self.namespace, self.name))
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The durations of Kubernetes' own components: 15, 10 and 2 seconds.
    pub fn new(
        client: Client,
        clock: SharedClock,
        ids: SharedIds,
        namespace: String,
        name: String,
        identity: String,
    ) -> Self {
        Self {
            client,
            clock,
            ids,
            namespace,
            name,
            identity,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            role: watch::Sender::new(Role::Unknown(String::new())),
        }
    }
}

/// What a candidate is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// The Lease cannot be read or written, and why.
    Unknown(String),
    /// Another leads; its identity, empty where the Lease is free.
    Standby(String),
    /// This one leads.
    Leading,
}

/// Runs `work` whenever this candidate leads, until `cancel`. The token that `work` gets is cancelled when the lead is lost, and the next term
/// does not begin before `work` has ended. Returns when `work` ends by itself, too. The Lease is given up last, so that another need not wait for it.
pub async fn lead<F, W>(options: Options, cancel: CancellationToken, mut work: F)
where
    F: FnMut(CancellationToken) -> W,
    W: Future<Output = ()>,
{
    let candidate =
        Candidate { leases: Api::namespaced(options.client.clone(), &options.namespace), options };
    loop {
        let Some((lease, renewed)) = cancel.run_until_cancelled(candidate.acquire()).await else { return };
        tracing::info!(lease = candidate.options.name, identity = candidate.options.identity, "leading");
        candidate.options.role.send_replace(Role::Leading);
        let term = cancel.child_token();
        let mut running = std::pin::pin!(work(term.clone()));
        let mut held = Held { lease, renewed };
        let lost = tokio::select! {
            // A term that is over and work that has ended at the same time: it is over.
            biased;
            why = candidate.renew(&mut held) => Some(why),
            () = cancel.cancelled() => None,
            () = &mut running => {
                term.cancel();
                candidate.release(held.lease).await;
                return;
            }
        };
        term.cancel();
        if let Some(why) = &lost {
            tracing::error!(lease = candidate.options.name, why, "the lead is lost: the work stops");
            candidate.options.role.send_replace(Role::Unknown(why.clone()));
        }
        running.await;
        if lost.is_none() {
            candidate.release(held.lease).await;
            return;
        }
    }
}

/// The Lease as it was written last, and when that was sent.
struct Held {
    lease: Lease,
    renewed: Instant,
}

struct Candidate {
    options: Options,
    leases: Api<Lease>,
}

impl Candidate {
    /// Waits until the Lease is ours.
    async fn acquire(&self) -> (Lease, Instant) {
        // The Lease as it was seen last, and when it was first seen so.
        let mut seen: Option<(Option<LeaseSpec>, Instant)> = None;
        let mut told = String::new();
        loop {
            let sent = Instant::now();
            let attempt = match timeout_at(sent + self.patience(), self.attempt(&mut seen)).await {
                Ok(answer) => answer.map_err(|error| self.explain(&error)),
                Err(_) => Err("no answer".to_owned()),
            };
            match attempt {
                Ok(Some(lease)) => return (lease, sent),
                Ok(None) => {
                    told.clear();
                    let holder = seen.as_ref().and_then(|(spec, _)| holder(spec.as_ref()));
                    self.options.role.send_replace(Role::Standby(holder.unwrap_or_default().to_owned()));
                }
                Err(text) => {
                    if text != told {
                        tracing::warn!(lease = self.options.name, error = text, "cannot stand for election");
                        told.clone_from(&text);
                    }
                    self.options.role.send_replace(Role::Unknown(text));
                }
            }
            self.pause().await;
        }
    }

    /// One attempt: the Lease if it is ours now.
    async fn attempt(
        &self,
        seen: &mut Option<(Option<LeaseSpec>, Instant)>,
    ) -> Result<Option<Lease>, kube::Error> {
        let Options { name, namespace, .. } = &self.options;
        let Some(mut lease) = self.leases.get_opt(name).await? else {
            let metadata = ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            };
            let lease = Lease { metadata, spec: Some(self.spec(None)) };
            return unless_conflict(self.leases.create(&PostParams::default(), &lease).await);
        };
        let now = Instant::now();
        let since = match seen {
            Some((spec, since)) if *spec == lease.spec => *since,
            _ => {
                *seen = Some((lease.spec.clone(), now));
                now
            }
        };
        let spec = lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
        let respected = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        if holder(spec).is_some_and(|holder| holder != self.options.identity) && now < since + respected {
            return Ok(None);
        }
        lease.spec = Some(self.spec(lease.spec.as_ref()));
        // The resource version in it refuses the write where another was faster.
        unless_conflict(self.leases.replace(name, &PostParams::default(), &lease).await)
    }

    /// Renews until that fails for too long or the Lease is another's; says which.
    async fn renew(&self, held: &mut Held) -> String {
        let mut failure = String::new();
        loop {
            let deadline = held.renewed + self.options.renew_deadline;
            let too_long = || {
                let seconds = self.options.renew_deadline.as_secs();
                format!("the Lease was not renewed for {seconds} s: {failure}")
            };
            tokio::select! {
                biased;
                () = sleep_until(deadline) => return too_long(),
                () = self.pause() => {}
            }
            let sent = Instant::now();
            let mut lease = held.lease.clone();
            lease.spec = Some(self.spec(lease.spec.as_ref()));
            let params = PostParams::default();
            let until = deadline.min(sent + self.patience());
            match timeout_at(until, self.leases.replace(&self.options.name, &params, &lease)).await {
                Ok(Ok(lease)) => {
                    *held = Held { lease, renewed: sent };
                    failure.clear();
                    continue;
                }
                // An answer that was lost makes the next write conflict with our own: whose the Lease is stands in it.
                Ok(Err(error)) if is_code(&error, 409) || is_code(&error, 404) => {
                    match timeout_at(deadline, self.leases.get_opt(&self.options.name)).await {
                        Ok(Ok(Some(lease)))
                            if holder(lease.spec.as_ref()) == Some(&self.options.identity) =>
                        {
                            held.lease = lease;
                        }
                        Ok(Ok(Some(lease))) => {
                            let holder = holder(lease.spec.as_ref()).unwrap_or("nobody").to_owned();
                            return format!("the Lease belongs to {holder}");
                        }
                        Ok(Ok(None)) => return "the Lease was deleted".to_owned(),
                        Ok(Err(error)) => failure = self.explain(&error),
                        Err(_) => "no answer".clone_into(&mut failure),
                    }
                }
                Ok(Err(error)) => failure = self.explain(&error),
                Err(_) => "no answer".clone_into(&mut failure),
            }
            tracing::warn!(lease = self.options.name, error = failure, "the Lease was not renewed");
        }
    }

    /// Lets others take the Lease at once.
    async fn release(&self, mut lease: Lease) {
        let mut spec = self.spec(lease.spec.as_ref());
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        lease.spec = Some(spec);
        let params = PostParams::default();
        let until = Instant::now() + self.options.retry_period;
        match timeout_at(until, self.leases.replace(&self.options.name, &params, &lease)).await {
            Ok(Ok(_)) => tracing::info!(lease = self.options.name, "the lead was given up"),
            Ok(Err(error)) => tracing::warn!(%error, lease = self.options.name, "the Lease was not given up"),
            Err(_) => tracing::warn!(lease = self.options.name, "the Lease was not given up: no answer"),
        }
        self.options.role.send_replace(Role::Standby(String::new()));
    }

    /// What we write into the Lease, after `before`.
    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now: Timestamp = self.options.clock.now();
        // What the API keeps: microseconds.
        let now = Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now);
        let ours = holder(before) == Some(&self.options.identity);
        let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or_default();
        let first = before.is_none();
        LeaseSpec {
            holder_identity: Some(self.options.identity.clone()),
            lease_duration_seconds: Some(
                i32::try_from(self.options.lease_duration.as_secs()).unwrap_or(i32::MAX).max(1),
            ),
            acquire_time: match before.and_then(|spec| spec.acquire_time.clone()) {
                Some(time) if ours => Some(time),
                _ => Some(MicroTime(now)),
            },
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(transitions + i32::from(!ours && !first)),
            ..before.cloned().unwrap_or_default()
        }
    }

    /// How long one request may take. Several fit into the time that a leader has: one that is never answered must not use it up.
    fn patience(&self) -> Duration {
        self.options.renew_deadline / 3
    }

    /// The pause between attempts, and up to a fifth of it more: candidates that started together drift apart.
    async fn pause(&self) {
        let more = self.options.ids.next() % 200;
        let period = self.options.retry_period;
        sleep(period + period * u32::try_from(more).unwrap_or_default() / 1000).await;
    }

    fn explain(&self, error: &kube::Error) -> String {
        let Options { namespace, name, .. } = &self.options;
        if is_code(error, 403) {
            return format!(
                "{error}; the service account needs get and update on Lease {name} in {namespace}, and create where there is none: gantry manifests | kubectl apply -f -"
            );
        }
        format!("Lease {namespace}/{name}: {error}")
    }
}

/// Who holds a Lease; nobody where the field is empty.
fn holder(spec: Option<&LeaseSpec>) -> Option<&str> {
    spec?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

fn unless_conflict(written: Result<Lease, kube::Error>) -> Result<Option<Lease>, kube::Error> {
    match written {
        Ok(lease) => Ok(Some(lease)),
        Err(error) if is_code(&error, 409) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
