//! The loop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use gantry_api::GpuNode;
use gantry_engine::{Decision, Event, Explanation, Millis, State};
use gantry_kit::{CancellationToken, Metrics, SharedClock, SharedIds, stamp};
use gantry_model::{Assignment, GpuId, PodKey, Reason};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::Error;
use crate::cluster::{Cluster, Notice};
use crate::metrics::{self, Outcome as Counted};
use crate::writes::{self, EventType, PodEvent, camel_case};

/// The values of `spec.schedulerName` that a scheduler serves unless it is told otherwise.
pub const SCHEDULER_NAMES: [&str; 2] = ["gantry-scheduler", "default-scheduler"];

/// What a scheduler is made of.
#[derive(Clone)]
pub struct Options {
    /// The API server.
    pub client: Client,
    /// Where time stamps come from.
    pub clock: SharedClock,
    /// Where names of Events come from.
    pub ids: SharedIds,
    /// Pods with one of these in `spec.schedulerName` are scheduled.
    pub scheduler_names: BTreeSet<String>,
    /// Bindings that are written at the same time.
    pub binds_in_flight: usize,
    /// Conditions and Events that are written at the same time.
    pub notices_in_flight: usize,
    /// How long to wait for the agent of a node that offers GPUs before the GPUs are only counted and the kubelet chooses.
    pub agent_grace: Duration,
    /// What is counted.
    pub metrics: Metrics,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("scheduler_names", &self.scheduler_names).finish_non_exhaustive()
    }
}

impl Options {
    /// The usual settings: schedules for [`SCHEDULER_NAMES`].
    pub fn new(client: Client, clock: SharedClock, ids: SharedIds) -> Self {
        Self {
            client,
            clock,
            ids,
            scheduler_names: SCHEDULER_NAMES.map(str::to_owned).into(),
            binds_in_flight: 128,
            notices_in_flight: 16,
            agent_grace: Duration::from_secs(10),
            metrics: Metrics::default(),
        }
    }
}

/// Everything that can wake the loop.
enum Input {
    Pods(Result<watcher::Event<DynamicObject>, watcher::Error>),
    Nodes(Result<watcher::Event<DynamicObject>, watcher::Error>),
    Reports(Result<watcher::Event<GpuNode>, watcher::Error>),
    /// A binding has been written, or not.
    Bound {
        pod: PodKey,
        assignment: Assignment,
        outcome: Outcome,
    },
    /// A condition has been written, or not.
    Told(PodKey),
    /// Somebody asks through the handle.
    Explain {
        namespace: String,
        name: String,
        answer: oneshot::Sender<Option<Explanation>>,
    },
}

/// What became of a binding.
enum Outcome {
    Done,
    /// The pod is as the API server says, whatever was answered.
    Seen(Box<DynamicObject>),
    /// The pod is gone.
    Gone,
    Failed(String),
}

/// Asks a running scheduler. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    inputs: mpsc::UnboundedSender<Input>,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pods(_) => "Pods",
            Self::Nodes(_) => "Nodes",
            Self::Reports(_) => "Reports",
            Self::Bound { .. } => "Bound",
            Self::Told(_) => "Told",
            Self::Explain { .. } => "Explain",
        })
    }
}

impl Handle {
    /// Where the pod of this name stands and why; `None` where the scheduler has nothing to do with it.
    ///
    /// # Errors
    /// Where the scheduler has ended.
    pub async fn explain(&self, namespace: &str, name: &str) -> Result<Option<Explanation>, Error> {
        let (answer, answered) = oneshot::channel();
        let input = Input::Explain { namespace: namespace.to_owned(), name: name.to_owned(), answer };
        self.inputs.send(input).map_err(|_| Error::Ended)?;
        answered.await.map_err(|_| Error::Ended)
    }
}

/// Schedules the pods of a cluster. Made by [`Scheduler::new`], does nothing until [`Scheduler::run`].
#[derive(Debug)]
pub struct Scheduler {
    work: Work,
    inputs: mpsc::UnboundedReceiver<Input>,
}

/// What the loop owns, apart from what wakes it.
#[derive(Debug)]
struct Work {
    options: Options,
    cluster: Cluster,
    state: State,
    /// For the outcomes of bindings.
    inputs: mpsc::UnboundedSender<Input>,
    binds: Arc<Semaphore>,
    notices: Arc<Semaphore>,
    /// Pods whose condition is being written, with the text that comes next: one write for each pod at a time, so that the
    /// last reason is the one that stays.
    telling: BTreeMap<PodKey, Option<String>>,
    /// Writes under way. They end with the scheduler: what is lost is found again after a restart.
    writes: JoinSet<()>,
    start: Instant,
}

/// How often it is asked what became of a binding before it is taken for failed.
const LOOKUPS: u32 = 6;

impl Scheduler {
    /// A scheduler and the handle to ask it.
    ///
    /// # Errors
    /// Where there is no scheduler name to serve.
    pub fn new(options: Options) -> Result<(Self, Handle), Error> {
        if options.scheduler_names.is_empty() {
            return Err(Error::NoSchedulerName);
        }
        metrics::begin(&options.metrics);
        let (sender, inputs) = mpsc::unbounded_channel();
        let handle = Handle { inputs: sender.clone() };
        let work = Work {
            cluster: Cluster::new(options.scheduler_names.clone(), options.agent_grace),
            state: State::new(),
            inputs: sender,
            binds: Arc::new(Semaphore::new(options.binds_in_flight.max(1))),
            notices: Arc::new(Semaphore::new(options.notices_in_flight.max(1))),
            telling: BTreeMap::new(),
            writes: JoinSet::new(),
            start: Instant::now(),
            options,
        };
        Ok((Self { work, inputs }, handle))
    }

    /// Schedules until cancelled; no write is under way any more when this returns.
    pub async fn run(self, cancel: CancellationToken) {
        let Self { mut work, inputs } = self;
        let mut sources = watches(&work.options.client);
        sources.push(UnboundedReceiverStream::new(inputs).boxed());
        // Whatever is ready is taken in before anything is decided: one decision about many pods costs little more than one.
        let mut batches = stream::select_all(sources).ready_chunks(1024);
        loop {
            let wakeup = work.next_wakeup();
            let batch = tokio::select! {
                biased;
                () = cancel.cancelled() => return work.writes.shutdown().await,
                batch = batches.next() => batch.unwrap_or_default(),
                () = tokio::time::sleep_until(wakeup) => Vec::new(),
            };
            work.step(batch);
        }
    }
}

impl Work {
    fn step(&mut self, batch: Vec<Input>) {
        for input in batch {
            self.take(input);
        }
        self.cluster.tick();
        self.feed();
        if self.cluster.is_complete() {
            for decision in self.state.decide(self.now()) {
                self.act(decision);
            }
        }
        while self.writes.try_join_next().is_some() {}
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn next_wakeup(&self) -> Instant {
        let far = Instant::now() + Duration::from_hours(1);
        let engine = self.state.next_wakeup().map(|at| self.start + Duration::from_millis(at.0));
        // A moment late is as good, and spares a timer that is due at once again and again.
        let next = engine.into_iter().chain(self.cluster.next_wakeup()).min().unwrap_or(far);
        next.max(Instant::now() + Duration::from_millis(1))
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Pods(Ok(event)) => self.cluster.pods(event),
            Input::Nodes(Ok(event)) => self.cluster.nodes(event),
            Input::Reports(Ok(event)) => self.cluster.reports(event),
            Input::Reports(Err(error)) if is_unknown_kind(&error) => self.cluster.reports_are_unknown(),
            Input::Pods(Err(error)) | Input::Nodes(Err(error)) | Input::Reports(Err(error)) => {
                tracing::warn!(%error, "a watch was interrupted and starts again");
            }
            Input::Bound { pod, assignment, outcome } => {
                self.feed();
                self.bound(pod, &assignment, outcome);
            }
            Input::Told(pod) => {
                if let Some(Some(message)) = self.telling.remove(&pod) {
                    self.write_condition(pod, message);
                }
            }
            Input::Explain { namespace, name, answer } => {
                self.feed();
                let known = self.cluster.uid(&namespace, &name).and_then(|uid| self.state.explain(&uid));
                // Whoever asked may have gone.
                let _ = answer.send(known.or_else(|| self.cluster.explain(&namespace, &name)));
            }
        }
    }

    /// Hands what was seen to the engine, and what is to be said to the pods' authors.
    fn feed(&mut self) {
        while let Some(event) = self.cluster.events.pop_front() {
            self.state.apply(event);
        }
        while let Some(notice) = self.cluster.notices.pop_front() {
            match notice {
                Notice::Advice(pod, advice) => {
                    let entry = advice.entry();
                    // The name is the same whoever writes it, so that it is written once in a pod's life.
                    let suffix = format!("{}-{}", entry.code.to_lowercase(), short(&pod.uid));
                    let (reason, message) = (camel_case(entry.slug), advice.to_string());
                    self.write_event(PodEvent { pod, kind: EventType::Warning, reason, message, suffix });
                }
                Notice::Refused(pod, reason) => {
                    metrics::decided(&self.options.metrics, Counted::Refused);
                    metrics::refused(&self.options.metrics, &reason);
                    self.say_unschedulable(pod, reason.to_string());
                }
            }
        }
    }

    fn act(&mut self, decision: Decision) {
        match decision {
            Decision::Unschedulable { pod, refusals } => {
                metrics::unschedulable(&self.options.metrics, &refusals);
                self.say_unschedulable(pod, refusals.to_string());
            }
            Decision::Bind { pod, assignment } => {
                let (client, inputs, turns) =
                    (self.options.client.clone(), self.inputs.clone(), self.binds.clone());
                self.state.apply(Event::BindStarted { uid: pod.uid.clone() });
                // Why it waited is not worth saying any more.
                if let Some(next) = self.telling.get_mut(&pod) {
                    *next = None;
                }
                self.writes.spawn(async move {
                    let _turn = turns.acquire().await;
                    let outcome = match writes::bind(&client, &pod, &assignment).await {
                        Ok(()) => Outcome::Done,
                        Err(error) => look_up(&client, &pod, &error).await,
                    };
                    // If the scheduler has ended, nobody waits for the outcome.
                    let _ = inputs.send(Input::Bound { pod, assignment, outcome });
                });
            }
        }
    }

    fn bound(&mut self, pod: PodKey, assignment: &Assignment, outcome: Outcome) {
        let uid = pod.uid.clone();
        match outcome {
            Outcome::Done => {
                self.state.apply(Event::BindSucceeded { uid });
                metrics::decided(&self.options.metrics, Counted::Bound);
                let gpus: Vec<_> = assignment.gpus().into_iter().map(GpuId::as_str).collect();
                let with = if gpus.is_empty() { String::new() } else { format!(" with {}", gpus.join(", ")) };
                let message = format!("Successfully assigned {pod} to {}{with}", assignment.node);
                let suffix = format!("{:016x}", self.options.ids.next());
                let (kind, reason) = (EventType::Normal, "Scheduled".to_owned());
                self.write_event(PodEvent { pod, kind, reason, message, suffix });
            }
            Outcome::Seen(object) => {
                self.cluster.pods(watcher::Event::Apply(*object));
                self.feed();
            }
            Outcome::Gone => self.state.apply(Event::PodGone { uid }),
            Outcome::Failed(message) => {
                tracing::warn!(%pod, node = &*assignment.node, %message, "binding failed");
                self.state.apply(Event::BindFailed { uid, message: message.clone(), now: self.now() });
                metrics::decided(&self.options.metrics, Counted::BindFailed);
                self.say_unschedulable(pod, Reason::BindFailed { message }.to_string());
            }
        }
    }

    /// One condition and one Event.
    fn say_unschedulable(&mut self, pod: PodKey, message: String) {
        match self.telling.get_mut(&pod) {
            Some(next) => *next = Some(message.clone()),
            None => self.write_condition(pod.clone(), message.clone()),
        }
        let suffix = format!("{:016x}", self.options.ids.next());
        let (kind, reason) = (EventType::Warning, "FailedScheduling".to_owned());
        self.write_event(PodEvent { pod, kind, reason, message, suffix });
    }

    /// Starts the only write of this pod's condition.
    fn write_condition(&mut self, pod: PodKey, message: String) {
        let (client, turns, inputs) =
            (self.options.client.clone(), self.notices.clone(), self.inputs.clone());
        let now = stamp(self.options.clock.now());
        let since = self.cluster.unscheduled_since(&pod).map_or(now, str::to_owned);
        let version = self.cluster.version(&pod).map(str::to_owned);
        self.telling.insert(pod.clone(), None);
        self.writes.spawn(async move {
            let _turn = turns.acquire().await;
            if let Err(error) = writes::set_unscheduled(&client, &pod, &message, &since, version).await {
                tracing::debug!(%pod, %error, "the condition PodScheduled was not written");
            }
            // If the scheduler has ended, nothing comes next.
            let _ = inputs.send(Input::Told(pod));
        });
    }

    fn write_event(&mut self, event: PodEvent) {
        let (client, turns, clock) =
            (self.options.client.clone(), self.notices.clone(), self.options.clock.clone());
        self.writes.spawn(async move {
            let _turn = turns.acquire().await;
            if let Err(error) = writes::write_event(&client, &event, clock.now()).await
                && !is_status(&error, 409)
            {
                tracing::debug!(pod = %event.pod, reason = event.reason, %error, "an Event was not written");
            }
        });
    }
}

/// Finds out what became of a binding that was not answered with success. Its devices stay held meanwhile: a lost answer, or
/// one to a repeated request, may hide that it was done.
async fn look_up(client: &Client, pod: &PodKey, error: &kube::Error) -> Outcome {
    let mut pause = Duration::from_millis(100);
    for _ in 0..LOOKUPS {
        match writes::read_pod(client, pod).await {
            Ok(object) if object.metadata.uid.as_deref() != Some(&*pod.uid) => return Outcome::Gone,
            Ok(object) if object.data["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty()) => {
                return Outcome::Seen(Box::new(object));
            }
            Ok(_) => break,
            Err(error) if is_status(&error, 404) => return Outcome::Gone,
            Err(_) => {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        }
    }
    Outcome::Failed(error.to_string())
}

/// The three watches. Each starts again by itself, ever more slowly while it fails.
fn watches(client: &Client) -> Vec<BoxStream<'static, Input>> {
    let dynamic = |resource: &ApiResource| {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
        watcher(api, watcher::Config::default())
            .default_backoff()
            .modify(|object| object.metadata.managed_fields = None)
    };
    let reports: Api<GpuNode> = Api::all(client.clone());
    vec![
        dynamic(&ApiResource::erase::<Pod>(&())).map(Input::Pods).boxed(),
        dynamic(&ApiResource::erase::<Node>(&())).map(Input::Nodes).boxed(),
        watcher(reports, watcher::Config::default()).default_backoff().map(Input::Reports).boxed(),
    ]
}

pub(crate) fn is_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

fn is_unknown_kind(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
            is_status(error, 404)
        }
        watcher::Error::WatchError(status) => status.code == 404,
        _ => false,
    }
}

/// The first part of a UID.
fn short(uid: &str) -> &str {
    uid.get(..8).unwrap_or(uid)
}
