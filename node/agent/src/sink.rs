//! Where labels go: onto the node itself, into an object of Node Feature Discovery, or into a file that it reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_nvidia_config::{Config, Gfd};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::handle::Shared;
use crate::labels::{NVIDIA_PREFIX, lines};
use crate::report::{Failure, MANAGER, is_code, labels};

/// The annotation of a node that names the labels that this agent wrote: sorted keys, separated by commas. What it names and
/// the agent no longer means, it removes, also in a later life.
const LABELS_ANNOTATION: &str = "gantry.dev/labels";

/// What the name of a node's `NodeFeature` begins with; that of NVIDIA's program, so that one replaces the other.
const NODE_FEATURE: &str = "nvidia-features-for-";
/// The label by which Node Feature Discovery knows the node.
const NODE_NAME_LABEL: &str = "nfd.node.kubernetes.io/node-name";

/// How often a file is looked at in case somebody changed it, and after it could not be written.
const RESYNC: Duration = Duration::from_mins(5);
const RETRY: Duration = Duration::from_secs(10);

type Labels = BTreeMap<String, String>;

/// What is done about labels where the node's configuration, in the format of NVIDIA's programs, says nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureOptions {
    /// Whether a label tells when feature discovery started.
    pub timestamp: bool,
    /// Where NVIDIA's labels go. Those of other prefixes are always written onto the node.
    pub sink: LabelSink,
    /// Whether labels are written at the start and never again.
    pub oneshot: bool,
    /// How often the GPUs are read anew without being told of a change; `None` for never.
    pub interval: Option<Duration>,
    /// Where the machine's name is read; `None` where the GPUs' backend tells it.
    pub machine_type_file: Option<PathBuf>,
    /// The agent's namespace, in which a `NodeFeature` is written.
    pub namespace: String,
}

impl Default for FeatureOptions {
    /// A time stamp, on the node, read anew each minute as NVIDIA's program does.
    fn default() -> Self {
        Self {
            timestamp: true,
            sink: LabelSink::Node,
            oneshot: false,
            interval: Some(Duration::from_mins(1)),
            machine_type_file: None,
            namespace: "default".to_owned(),
        }
    }
}

impl FeatureOptions {
    /// What holds under a configuration: what it sets counts more.
    pub(crate) fn under(&self, config: &Config) -> Self {
        let Gfd { oneshot, no_timestamp, sleep_interval, output_file, machine_type_file } = &config.gfd;
        let file = || output_file.clone().map_or(LabelSink::Stdout, LabelSink::File);
        let by_flag = config.is_set("use-node-feature-api").then_some(config.use_node_feature_api);
        Self {
            timestamp: if config.is_set("no-timestamp") { !no_timestamp } else { self.timestamp },
            sink: match by_flag {
                Some(true) => LabelSink::NodeFeature,
                Some(false) => file(),
                None if config.is_set("output-file") => file(),
                None => self.sink.clone(),
            },
            oneshot: if config.is_set("oneshot") { *oneshot } else { self.oneshot },
            interval: if config.is_set("sleep-interval") { *sleep_interval } else { self.interval },
            machine_type_file: if config.is_set("machine-type-file") {
                Some(machine_type_file.clone())
            } else {
                self.machine_type_file.clone()
            },
            namespace: self.namespace.clone(),
        }
    }
}

/// Where labels go.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum LabelSink {
    /// Onto the node's object.
    #[default]
    Node,
    /// Into a `NodeFeature` of Node Feature Discovery, whose master writes them onto the node. A cluster without that kind gets
    /// them onto the node.
    NodeFeature,
    /// Into a file, usually below `/etc/kubernetes/node-feature-discovery/features.d`: a line `key=value` for each.
    File(PathBuf),
    /// To standard output, in the same form, whenever they have changed.
    Stdout,
}

/// The machine's name as a file has it.
pub(crate) fn machine_type(path: &Path) -> Result<String, crate::Error> {
    let text = fs::read_to_string(path).map_err(|source| crate::Error::Io {
        action: "read the machine's name from",
        path: path.to_path_buf(),
        source,
    })?;
    Ok(text.trim().to_owned())
}

/// Writes labels.
pub(crate) struct LabelWriter {
    pub(crate) client: Client,
    pub(crate) shared: Arc<Shared>,
    pub(crate) node: Arc<str>,
    /// The UID of the node's object, as soon as that was read.
    pub(crate) node_uid: String,
    /// Where they went last.
    last: Option<LabelSink>,
    /// What the log told.
    told: BTreeSet<String>,
}

impl LabelWriter {
    pub(crate) fn new(client: Client, shared: Arc<Shared>, node: Arc<str>) -> Self {
        Self { client, shared, node, node_uid: String::new(), last: None, told: BTreeSet::new() }
    }

    /// Writes these labels where they are not there yet.
    pub(crate) async fn write(&mut self, labels: &Labels, features: &FeatureOptions) -> Result<(), Failure> {
        let is_nvidias = |key: &String| key.starts_with(NVIDIA_PREFIX);
        let nvidias: Labels = labels.clone().into_iter().filter(|(key, _)| is_nvidias(key)).collect();
        let nodes: Api<Node> = Api::all(self.client.clone());
        let metadata = nodes.get_metadata(&self.node).await?.metadata;
        self.node_uid = metadata.uid.clone().unwrap_or_default();
        let delegated = match &features.sink {
            LabelSink::Node => false,
            LabelSink::File(path) => {
                write_file(path, &nvidias).map_err(Failure::File)?;
                true
            }
            LabelSink::Stdout => {
                print(&nvidias);
                true
            }
            LabelSink::NodeFeature => {
                let owner = OwnerReference {
                    api_version: "v1".to_owned(),
                    kind: "Node".to_owned(),
                    name: self.node.to_string(),
                    uid: self.node_uid.clone(),
                    ..OwnerReference::default()
                };
                let namespace = &features.namespace;
                let refusal =
                    match write_node_feature(&self.client, namespace, &owner, &self.node, &nvidias).await {
                        Ok(true) => None,
                        Ok(false) => {
                            Some(("the cluster does not know that kind", "install Node Feature Discovery"))
                        }
                        Err(Failure::Request(error)) if is_code(&error, 403) => Some((
                            "this account may not",
                            "allow it get, create, update and delete of nodefeatures.nfd.k8s-sigs.io",
                        )),
                        Err(failure) => return Err(failure),
                    };
                if let Some((why, fix)) = refusal
                    && self.told.insert(why.to_owned())
                {
                    let text = format!(
                        "No NodeFeature can be written to {namespace}, because {why}: labels are written onto the node; {fix}, or leave useNodeFeatureAPI out"
                    );
                    tracing::warn!(node = &*self.node, "{text}");
                    self.shared.log.write(text);
                }
                refusal.is_none()
            }
        };
        let own = if delegated {
            labels.clone().into_iter().filter(|(key, _)| !is_nvidias(key)).collect()
        } else {
            labels.clone()
        };
        self.write_node(&metadata, &own, if delegated { &nvidias } else { &own }).await?;
        // Where they went before they would stay as they are for ever. Afterwards, so that no label is missing in between.
        if let Some(last) = self.last.as_ref().filter(|last| **last != features.sink) {
            self.leave(last, &features.namespace).await?;
        }
        self.last = Some(features.sink.clone());
        Ok(())
    }

    async fn leave(&self, sink: &LabelSink, namespace: &str) -> Result<(), Failure> {
        match sink {
            LabelSink::Node | LabelSink::Stdout => Ok(()),
            LabelSink::File(path) => remove_file(path).map_err(Failure::File),
            LabelSink::NodeFeature => {
                let objects: Api<DynamicObject> =
                    Api::namespaced_with(self.client.clone(), namespace, &node_feature());
                let name = format!("{NODE_FEATURE}{}", self.node);
                match objects.delete(&name, &DeleteParams::default()).await {
                    Err(error) if !is_code(&error, 404) && !is_code(&error, 403) => Err(error.into()),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Brings the node's labels to `desired`; those in `elsewhere` are another's from now on and stay as they are.
    async fn write_node(
        &mut self,
        metadata: &ObjectMeta,
        desired: &Labels,
        elsewhere: &Labels,
    ) -> Result<(), Failure> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let plan = Plan::new(metadata, desired, elsewhere);
        for (key, owner) in plan.foreign {
            let value = metadata.labels.as_ref().and_then(|all| all.get(&key)).map_or("", String::as_str);
            let text = format!(
                "Label {key}={value} of the node was set by {owner} and is left alone; it would be {:?}",
                desired[&key]
            );
            if self.told.insert(text.clone()) {
                self.shared.log.write(text);
            }
        }
        if let Some(patch) = plan.patch {
            let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            nodes.patch_metadata(&self.node, &params, &Patch::Merge(patch)).await?;
        }
        Ok(())
    }
}

/// What has to be done with a node's labels.
#[derive(Debug, PartialEq)]
struct Plan {
    /// A merge patch; `None` where everything is as it should be.
    patch: Option<Value>,
    /// Labels that somebody else set to another value, and who.
    foreign: Vec<(String, String)>,
}

impl Plan {
    fn new(metadata: &ObjectMeta, desired: &Labels, elsewhere: &Labels) -> Self {
        let none = Labels::new();
        let present = metadata.labels.as_ref().unwrap_or(&none);
        let annotation =
            metadata.annotations.as_ref().and_then(|all| all.get(LABELS_ANNOTATION)).map(String::as_str);
        let noted: BTreeSet<&str> =
            annotation.unwrap_or_default().split(',').filter(|key| !key.is_empty()).collect();
        let managed = metadata.managed_fields.as_deref().unwrap_or_default();
        let owner = |key: &str| match managers(managed, key).as_slice() {
            // Nothing is recorded about it: our own note decides.
            [] if noted.contains(key) => None,
            [] => Some("somebody else"),
            list if list.contains(&MANAGER) => None,
            [first, ..] => Some(*first),
        };
        let mut changes = serde_json::Map::new();
        let (mut ours, mut foreign) = (Vec::new(), Vec::new());
        for (key, value) in desired {
            match present.get(key) {
                None => drop(changes.insert(key.clone(), json!(value))),
                Some(found) => match owner(key) {
                    None if found == value => {}
                    None => drop(changes.insert(key.clone(), json!(value))),
                    Some(owner) => {
                        if found != value {
                            foreign.push((key.clone(), owner.to_owned()));
                        }
                        continue;
                    }
                },
            }
            ours.push(key.as_str());
        }
        for key in &noted {
            let meant = desired.contains_key(*key) || elsewhere.contains_key(*key);
            if !meant && present.contains_key(*key) && owner(key).is_none() {
                changes.insert((*key).to_owned(), Value::Null);
            }
        }
        let mut patch = json!({});
        if !changes.is_empty() {
            patch["metadata"]["labels"] = Value::Object(changes);
        }
        let note = (!ours.is_empty()).then(|| ours.join(","));
        if note.as_deref() != annotation {
            patch["metadata"]["annotations"] = json!({ LABELS_ANNOTATION: note });
        }
        Self { patch: patch.get("metadata").is_some().then_some(patch), foreign }
    }
}

/// Who owns a label, as far as the API server recorded it.
fn managers<'a>(entries: &'a [ManagedFieldsEntry], key: &str) -> Vec<&'a str> {
    let owns = |entry: &&ManagedFieldsEntry| {
        let labels = entry.fields_v1.as_ref().map(|fields| &fields.0["f:metadata"]["f:labels"]);
        labels.is_some_and(|labels| labels.get(format!("f:{key}")).is_some())
    };
    entries.iter().filter(owns).filter_map(|entry| entry.manager.as_deref()).collect()
}

fn node_feature() -> ApiResource {
    ApiResource {
        group: "nfd.k8s-sigs.io".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "nfd.k8s-sigs.io/v1alpha1".to_owned(),
        kind: "NodeFeature".to_owned(),
        plural: "nodefeatures".to_owned(),
    }
}

/// Writes labels into the node's `NodeFeature`, which is ours alone. `false` where the cluster does not know that kind.
async fn write_node_feature(
    client: &Client,
    namespace: &str,
    owner: &OwnerReference,
    node: &str,
    labels: &Labels,
) -> Result<bool, Failure> {
    let kind = node_feature();
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let name = format!("{NODE_FEATURE}{node}");
    let spec = json!({ "features": { "flags": {}, "attributes": {}, "instances": {} }, "labels": labels });
    let fill = |object: &mut DynamicObject| {
        object.metadata.labels = Some(BTreeMap::from([(NODE_NAME_LABEL.to_owned(), node.to_owned())]));
        object.metadata.owner_references = Some(vec![owner.clone()]);
        object.data = json!({ "spec": spec });
    };
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match objects.get(&name).await {
        Ok(found) => {
            let mut wanted = found.clone();
            fill(&mut wanted);
            if wanted != found {
                objects.replace(&name, &params, &wanted).await?;
            }
        }
        Err(error) if is_code(&error, 404) => {
            let mut object = DynamicObject::new(&name, &kind);
            fill(&mut object);
            match objects.create(&params, &object).await {
                Err(error) if is_code(&error, 404) => return Ok(false),
                created => drop(created?),
            }
        }
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

/// Keeps labels up to date without an API server: in a file, or on standard output.
pub(crate) async fn keep(shared: &Shared, features: &FeatureOptions, started: i64) {
    let mut revision = shared.revision.subscribe();
    let mut told = String::new();
    let mut last: Option<(LabelSink, Labels)> = None;
    loop {
        revision.mark_unchanged();
        let features = features.under(shared.state().config());
        let mut labels = labels(shared, &features, started);
        labels.retain(|key, _| key.starts_with(NVIDIA_PREFIX));
        let new = (features.sink.clone(), labels);
        let written = match &new.0 {
            LabelSink::File(path) => write_file(path, &new.1),
            LabelSink::Stdout if last.as_ref() != Some(&new) => {
                print(&new.1);
                Ok(())
            }
            LabelSink::Stdout | LabelSink::Node | LabelSink::NodeFeature => Ok(()),
        };
        let left = match &last {
            Some((sink @ LabelSink::File(path), _)) if *sink != new.0 => remove_file(path),
            _ => Ok(()),
        };
        let failure = written.and(left).err().map(|error| error.to_string()).unwrap_or_default();
        if failure != told && !failure.is_empty() {
            shared.log.write(format!("Could not write labels: {failure}"));
        }
        told = failure;
        let done = told.is_empty() && matches!(new.0, LabelSink::File(_) | LabelSink::Stdout);
        last = Some(new);
        if done && features.oneshot {
            return;
        }
        let wait = if told.is_empty() { RESYNC } else { RETRY };
        if let Ok(Err(_)) = tokio::time::timeout(wait, revision.changed()).await {
            // The agent is gone.
            return;
        }
    }
}

/// Standard output is for data; nobody reading it is no failure.
fn print(labels: &Labels) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(lines(labels).as_bytes()).and_then(|()| out.flush());
}

fn remove_file(path: &Path) -> Result<(), crate::Error> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(crate::Error::Io { action: "remove", path: path.to_path_buf(), source })
        }
        _ => Ok(()),
    }
}

/// Replaces a file of labels, whole or not at all.
pub(crate) fn write_file(path: &Path, labels: &Labels) -> Result<(), crate::Error> {
    let text = lines(labels);
    if fs::read_to_string(path).is_ok_and(|known| known == text) {
        return Ok(());
    }
    crate::files::replace(path, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(list: &[(&str, &str)]) -> Labels {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn node(present: &[(&str, &str)], note: Option<&str>, managed: &Value) -> ObjectMeta {
        serde_json::from_value(json!({
            "labels": labels(present),
            "annotations": note.map(|note| json!({ LABELS_ANNOTATION: note })),
            "managedFields": managed,
        }))
        .unwrap()
    }

    fn owned(manager: &str, key: &str) -> Value {
        json!({ "manager": manager, "operation": "Update",
            "fieldsV1": { "f:metadata": { "f:labels": { format!("f:{key}"): {} } } } })
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is compared with an option")]
    fn patch(labels: &Value, note: &Value) -> Option<Value> {
        let mut metadata = json!({});
        if !labels.is_null() {
            metadata["labels"] = labels.clone();
        }
        metadata["annotations"] = json!({ LABELS_ANNOTATION: note });
        Some(json!({ "metadata": metadata }))
    }

    #[test]
    fn what_a_configuration_sets_counts_more_and_nothing_else_is_touched() {
        let under = |flags: &str| {
            let text = format!("version: v1\nflags: {flags}");
            let config = Config::load(&Labels::new(), &Labels::new(), Some(&text)).unwrap();
            FeatureOptions { interval: None, ..FeatureOptions::default() }.under(&config)
        };
        let plain = FeatureOptions { interval: None, ..FeatureOptions::default() };
        assert_eq!(under("{}"), plain, "NVIDIA's defaults are not ours");
        let all = "{gfd: {oneshot: true, noTimestamp: true, sleepInterval: 5s, machineTypeFile: /m}}";
        let set = FeatureOptions {
            oneshot: true,
            timestamp: false,
            interval: Some(Duration::from_secs(5)),
            machine_type_file: Some("/m".into()),
            ..plain
        };
        assert_eq!(under(all), set);
        let usual = "/etc/kubernetes/node-feature-discovery/features.d/gfd";
        for (flags, sink) in [
            ("{useNodeFeatureAPI: true, gfd: {outputFile: /f}}", LabelSink::NodeFeature),
            ("{useNodeFeatureAPI: false}", LabelSink::File(usual.into())),
            ("{useNodeFeatureAPI: false, gfd: {outputFile: /f}}", LabelSink::File("/f".into())),
            ("{gfd: {outputFile: /f}}", LabelSink::File("/f".into())),
            ("{gfd: {outputFile: \"\"}}", LabelSink::Stdout),
        ] {
            assert_eq!(under(flags).sink, sink, "{flags}");
        }
    }

    #[test]
    fn a_label_belongs_to_whoever_wrote_it() {
        let desired = labels(&[("a", "1"), ("b", "1")]);
        let none = json!([]);
        let case = |why: &str, metadata: ObjectMeta, expected: Option<Value>, foreign: &[(&str, &str)]| {
            let plan = Plan::new(&metadata, &desired, &desired);
            assert_eq!(plan.patch, expected, "{why}");
            assert_eq!(plan.foreign.into_iter().collect::<Labels>(), labels(foreign), "{why}");
        };
        case("a new node", node(&[], None, &none), patch(&json!({"a": "1", "b": "1"}), &json!("a,b")), &[]);
        case("nothing changed", node(&[("a", "1"), ("b", "1"), ("x", "9")], Some("a,b"), &none), None, &[]);
        case(
            "an earlier life meant more",
            node(&[("a", "0"), ("b", "1"), ("old", "1")], Some("a,b,old"), &none),
            patch(&json!({"a": "1", "old": null}), &json!("a,b")),
            &[],
        );
        case(
            "another's label is left alone, whatever it says",
            node(&[("a", "7"), ("b", "1")], None, &none),
            None,
            &[("a", "somebody else")],
        );
        case(
            "somebody took a label of ours over",
            node(
                &[("a", "7"), ("b", "1"), ("old", "1")],
                Some("a,b,old"),
                &json!([owned("kubectl-label", "a"), owned("me", "old")]),
            ),
            patch(&Value::Null, &json!("b")),
            &[("a", "kubectl-label")],
        );
        case(
            "the note was lost, and the API server knows",
            node(
                &[("a", "7"), ("b", "1")],
                None,
                &json!([owned(MANAGER, "a"), owned("nfd-master", "b"), owned(MANAGER, "b")]),
            ),
            patch(&json!({"a": "1"}), &json!("a,b")),
            &[],
        );
    }

    #[test]
    fn labels_that_another_writes_from_now_on_are_handed_over_without_a_gap() {
        let metadata = node(
            &[("nvidia.com/a", "1"), ("nvidia.com/old", "1"), ("own", "1")],
            Some("nvidia.com/a,nvidia.com/old,own"),
            &json!([]),
        );
        let plan = Plan::new(&metadata, &labels(&[("own", "1")]), &labels(&[("nvidia.com/a", "1")]));
        assert_eq!(plan.patch, patch(&json!({"nvidia.com/old": null}), &json!("own")));
    }

    #[test]
    fn without_gpus_only_what_we_wrote_goes() {
        let metadata = node(&[("a", "1"), ("x", "1")], Some("a"), &json!([]));
        let plan = Plan::new(&metadata, &Labels::new(), &Labels::new());
        assert_eq!(plan.patch, patch(&json!({"a": null}), &Value::Null));
        assert_eq!(
            Plan::new(&node(&[("x", "1")], None, &json!([])), &Labels::new(), &Labels::new()).patch,
            None
        );
    }

    #[test]
    fn a_file_of_labels_is_replaced_whole_and_only_on_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("features.d/gfd");
        write_file(&path, &labels(&[("b", "2"), ("a", "1")])).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a=1\nb=2\n");
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        write_file(&path, &labels(&[("b", "2"), ("a", "1")])).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let error = write_file(Path::new("/proc/none/gfd"), &Labels::new()).unwrap_err().to_string();
        assert!(error.contains("/proc/none/gfd"), "{error}");
    }
}
