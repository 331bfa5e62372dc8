//! What the agent writes to the API server: the node's labels and its `GpuNode`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gantry_api::{ASSIGNMENT_ANNOTATION, CDI_FILES_CURRENT, GpuNode, GpuNodeStatus, StatusCondition};
use gantry_kit::{CancellationToken, SharedClock, stamp};
use gantry_model::PodKey;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::agent::LABEL_PATIENCE;
use crate::cdi::Trouble;
use crate::handle::Shared;
use crate::health::Verdict;
use crate::labels::{LabelInput, Offer, feature_labels};
use crate::notify::{News, Notifier, Told};
use crate::pods::{has_ended, on_node, uids};
use crate::sink::{LabelWriter, machine_type};
use crate::state::Held;
use crate::{FeatureOptions, LabelSink};

/// The name under which the API server records what the agent writes.
pub(crate) const MANAGER: &str = "gantry-agent";

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits after failures: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// How long the cluster is left alone where it does not know `GpuNode`.
const WITHOUT_CRD: Duration = Duration::from_secs(30);

/// Changes of who uses what come in bursts and are collected for this long. Changes of health are written at once.
const SETTLE: Duration = Duration::from_millis(500);

/// The same where pods' assignments tell who uses what already: a write for each pod would load the API server for nothing.
const SETTLE_TOLD: Duration = Duration::from_secs(10);

/// How often everything is written again, in case somebody changed or deleted it.
const RESYNC: Duration = Duration::from_mins(5);

pub(crate) struct Reporter {
    pub(crate) client: kube::Client,
    pub(crate) shared: Arc<Shared>,
    pub(crate) features: FeatureOptions,
    /// When feature discovery started, in seconds since 1970.
    pub(crate) started: i64,
    pub(crate) resource: String,
    /// Whether running pods have to tell who owns what, because no checkpoint did.
    pub(crate) adopt: bool,
    /// The devices that were out of service when the last run ended, and are not any more.
    pub(crate) returned: Vec<Verdict>,
    /// Whether a node on which no GPU is fit is tainted.
    pub(crate) taint: bool,
    pub(crate) clock: SharedClock,
}

/// What stands in the cluster, as far as we wrote it.
#[derive(Debug, Default)]
struct Written {
    labels: Option<(BTreeMap<String, String>, LabelSink)>,
    status: Option<GpuNodeStatus>,
    node_uid: String,
    /// Whether the owners of GPUs were compared with the pods.
    owners: bool,
    told: Told,
}

pub(crate) enum Failure {
    /// The cluster has no `GpuNode` kind.
    NoCrd,
    Request(kube::Error),
    /// A file of labels cannot be written.
    File(crate::Error),
    Timeout,
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self::Request(error)
    }
}

impl Failure {
    fn text(&self) -> String {
        match self {
            Self::NoCrd => {
                "the cluster does not know the kind GpuNode; to see GPUs in it: gantry manifests --only crds | kubectl apply -f -"
                    .to_owned()
            }
            Self::Request(error) => error.to_string(),
            Self::File(error) => error.to_string(),
            Self::Timeout => format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()),
        }
    }
}

impl Reporter {
    pub(crate) async fn run(self, cancel: CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.report() => {}
        }
    }

    async fn report(&self) {
        // The configuration says where labels go. One that is broken, or never comes, keeps nothing back for long.
        let mut configured = self.shared.configured.subscribe();
        let _ = timeout(LABEL_PATIENCE, configured.wait_for(|configured| *configured)).await;
        let mut revision = self.shared.revision.subscribe();
        let mut devices = self.shared.devices.subscribe();
        let mut untold = self.shared.untold.subscribe();
        let mut written = Written { told: Told::new(self.returned.clone()), ..Written::default() };
        let node = Arc::clone(&self.shared.state().node);
        let shared = Arc::clone(&self.shared);
        let mut writer = LabelWriter::new(self.client.clone(), shared, node);
        let mut delay = RETRY.0;
        let mut told = String::new();
        loop {
            revision.mark_unchanged();
            devices.mark_unchanged();
            untold.mark_unchanged();
            match self.write(&mut written, &mut writer).await {
                Ok(()) => {
                    delay = RETRY.0;
                    told.clear();
                }
                Err(failure) => {
                    let text = failure.text();
                    if text != told {
                        tracing::warn!(error = text, "cannot report to the API server");
                        self.shared.log.write(format!("Could not report to the API server: {text}"));
                        told = text;
                    }
                    if matches!(failure, Failure::NoCrd) {
                        sleep(WITHOUT_CRD).await;
                    } else {
                        sleep(delay).await;
                        delay = (delay * 2).min(RETRY.1);
                    }
                    continue;
                }
            }
            match timeout(RESYNC, revision.changed()).await {
                Ok(Ok(())) => {}
                // The agent is gone.
                Ok(Err(_)) => return,
                Err(_) => {
                    written.status = None;
                    written.told.again();
                    if !self.features().oneshot {
                        written.labels = None;
                    }
                }
            }
            let now = self.status();
            let urgent = |known: &GpuNodeStatus| known.gpus != now.gpus || known.conditions != now.conditions;
            if written.status.as_ref().is_some_and(|known| !urgent(known)) {
                tokio::select! {
                    // A sender that is gone is noticed above.
                    _ = devices.changed() => {}
                    _ = untold.changed() => sleep(SETTLE).await,
                    () = sleep(SETTLE_TOLD) => {}
                }
            }
        }
    }

    /// What is done about labels now.
    fn features(&self) -> FeatureOptions {
        self.features.under(self.shared.state().config())
    }

    fn status(&self) -> GpuNodeStatus {
        let state = self.shared.state();
        let mut status = GpuNodeStatus::from_model(state.gpus(), state.topology());
        let driver = self.shared.facts().driver.clone();
        let (major, minor) = driver.cuda_version;
        status.driver_version = driver.driver_version;
        status.cuda_version = format!("{major}.{minor}");
        status.mode = state.mode;
        status.allocatable = BTreeMap::from([(self.resource.clone(), status.healthy_gpu_count.into())]);
        status.in_use = state.in_use();
        status.conditions = self.conditions();
        status
    }

    fn conditions(&self) -> Vec<StatusCondition> {
        let cdi = self.shared.cdi();
        let condition = cdi.since.map(|since| StatusCondition {
            type_: CDI_FILES_CURRENT.to_owned(),
            status: if cdi.error.is_none() { "True" } else { "False" }.to_owned(),
            reason: cdi.error.as_ref().map_or("Written", |trouble| trouble.reason).to_owned(),
            message: cdi.error.as_ref().map_or_else(
                || "the CDI files describe the driver and every device".to_owned(),
                Trouble::message,
            ),
            last_transition_time: stamp(since),
        });
        condition.into_iter().collect()
    }

    async fn write(&self, written: &mut Written, writer: &mut LabelWriter) -> Result<(), Failure> {
        timeout(REQUEST_TIMEOUT, async {
            // First, for nodes are chosen by them. A file that cannot be written keeps nothing else back.
            let labelled = self.write_labels(written, writer).await;
            written.node_uid.clone_from(&writer.node_uid);
            if written.node_uid.is_empty() {
                return labelled;
            }
            if !written.owners {
                self.reconcile_owners().await?;
                written.owners = true;
            }
            self.write_gpu_node(written).await?;
            let news = self.news();
            let (uid, now) = (written.node_uid.clone(), self.clock.now());
            self.notifier().write(&mut written.told, &news, &uid, now).await?;
            labelled
        })
        .await
        .unwrap_or(Err(Failure::Timeout))
    }

    /// Compares the owners of GPUs with the pods of the node, once: frees what belongs to pods that went while no agent ran,
    /// and learns the owners of running pods after the checkpoint was lost.
    async fn reconcile_owners(&self) -> Result<(), Failure> {
        let (node, known) = {
            let state = self.shared.state();
            let known: BTreeSet<String> = state.pods().map(|pod| pod.key.uid.to_string()).collect();
            (Arc::clone(&state.node), known)
        };
        let pods: Api<Pod> = Api::all(self.client.clone());
        let list = pods.list(&ListParams::default().fields(&on_node(&node))).await?;
        let running: Vec<&Pod> = list.items.iter().filter(|pod| !has_ended(pod)).collect();
        let uids: BTreeSet<&str> = running.iter().flat_map(|pod| uids(pod)).collect();
        let mut state = self.shared.state();
        // What was created since the list was asked for is not in it, and stays. Where it is followed what pods do, they are
        // freed there.
        let freed =
            !self.shared.choice.pods && state.retain(|uid| uids.contains(uid) || !known.contains(uid));
        let mut adopted = 0;
        for pod in running.into_iter().filter(|_| self.adopt) {
            let Some(assignment) = annotation(pod, ASSIGNMENT_ANNOTATION) else {
                continue;
            };
            let text = |value: &Option<String>| Arc::from(value.as_deref().unwrap_or_default());
            let key = PodKey {
                namespace: text(&pod.metadata.namespace),
                name: text(&pod.metadata.name),
                uid: text(&pod.metadata.uid),
            };
            match state.adopt(key.clone(), assignment) {
                Ok(true) => adopted += 1,
                Ok(false) => {}
                Err(error) => self.shared.log.write(format!("Pod {key}: {error}")),
            }
        }
        if adopted > 0 {
            self.shared.log.write(format!("Took over the GPUs of {adopted} pods from the API server"));
        }
        if freed {
            self.shared.log.write("Freed GPUs of pods that are gone");
        }
        if freed || adopted > 0 {
            self.shared.publish(&state);
        }
        Ok(())
    }

    fn notifier(&self) -> Notifier {
        let node = self.shared.state().node.to_string();
        Notifier { client: self.client.clone(), node, taint: self.taint }
    }

    fn news(&self) -> News {
        let state = self.shared.state();
        let owners = state.pods().map(|pod| {
            let ids = |held: &[Held]| held.iter().map(|held| held.device.to_string()).collect();
            let containers = pod.containers.iter().map(|(name, has)| (name.clone(), ids(&has.held)));
            (pod.key.clone(), containers.collect())
        });
        News {
            gpus: state.gpus().to_vec(),
            verdicts: self.shared.verdicts().clone(),
            owners: owners.collect(),
            cdi: {
                let cdi = self.shared.cdi();
                cdi.error.clone().zip(cdi.since)
            },
        }
    }

    async fn write_labels(&self, written: &mut Written, writer: &mut LabelWriter) -> Result<(), Failure> {
        let features = self.features();
        if features.oneshot && written.labels.is_some() {
            return Ok(());
        }
        let new = (labels(&self.shared, &features, self.started), features.sink.clone());
        if written.labels.as_ref() != Some(&new) {
            writer.write(&new.0, &features).await?;
            written.labels = Some(new);
        }
        Ok(())
    }

    async fn write_gpu_node(&self, written: &mut Written) -> Result<(), Failure> {
        let status = self.status();
        if written.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let name = Arc::clone(&self.shared.state().node);
        let mut value = serde_json::to_value(&status).unwrap_or_default();
        // A merge patch leaves what it does not name: lists that have become empty must be named.
        for list in ["links", "inUse", "conditions"] {
            if value.get(list).is_none() {
                value[list] = json!([]);
            }
        }
        let patch = Patch::Merge(json!({ "status": value }));
        let nodes: Api<GpuNode> = Api::all(self.client.clone());
        let params = PatchParams::default();
        match nodes.patch_status(&name, &params, &patch).await {
            Ok(_) => {}
            Err(error) if is_code(&error, 404) => {
                let mut node = GpuNode::new(&name, status.clone());
                // The status of an object with the subresource is ignored on creation.
                node.status = None;
                node.metadata.owner_references = Some(vec![OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: name.to_string(),
                    uid: written.node_uid.clone(),
                    ..OwnerReference::default()
                }]);
                match nodes.create(&PostParams::default(), &node).await {
                    Err(error) if is_code(&error, 404) => return Err(Failure::NoCrd),
                    Err(error) if !is_code(&error, 409) => return Err(error.into()),
                    _ => {}
                }
                nodes.patch_status(&name, &params, &patch).await?;
            }
            Err(error) => return Err(error.into()),
        }
        written.status = Some(status);
        Ok(())
    }
}

/// The labels of the node as it is known now.
pub(crate) fn labels(shared: &Shared, features: &FeatureOptions, started: i64) -> BTreeMap<String, String> {
    // One that cannot be read is unknown; the agent has said so when the configuration came into force.
    let machine = features.machine_type_file.as_deref().map(|path| machine_type(path).unwrap_or_default());
    let state = shared.state();
    let facts = shared.facts();
    feature_labels(&LabelInput {
        gpus: state.gpus(),
        topology: state.topology(),
        driver: &facts.driver,
        machine: match &machine {
            Some(name) => Some(name.as_str()).filter(|name| !name.is_empty()),
            None => facts.machine.as_deref(),
        },
        details: &facts.details,
        vgpu: facts.vgpu.as_ref(),
        timestamp: features.timestamp.then_some(started),
        offer: &Offer::from(&**state.config()),
    })
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}
