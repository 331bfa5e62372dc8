//! The controller of Volcano Jobs (`batch.volcano.sh/v1alpha1`).
//!
//! Formats and phases are Volcano's, so that `kubectl get vcjob` and what reads its status work unchanged. Life-cycle
//! policies are read but not acted on yet; the Job gets an Event that says so.

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod job;
mod plan;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use gantry_kit::{CancellationToken, SharedClock, catch_panic, stamp};
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::Error;
use job::Job;
use plan::{JOB_LABEL, Seen};

/// What the controller is made of.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where time stamps come from.
    pub clock: SharedClock,
}

struct Context {
    client: Client,
    clock: SharedClock,
}

/// How long after a failure a Job is looked at again.
const RETRY: Duration = Duration::from_secs(5);

/// Pod changes within this time lead to one look at their Job.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// Runs the controller until `cancel`. Where the Job resource is not installed there is nothing to do until it is:
/// the watch tries again with back-off.
pub async fn run(client: Client, options: Options, cancel: CancellationToken) {
    let context = Arc::new(Context { client: client.clone(), clock: options.clock });
    let jobs: Api<DynamicObject> = Api::all_with(client.clone(), &job_resource());
    let pods: Api<DynamicObject> = Api::all_with(client, &pod_resource());
    Controller::new_with(jobs, watcher::Config::default(), job_resource())
        .owns_with(pods, pod_resource(), watcher::Config::default().labels(JOB_LABEL))
        .with_config(Config::default().concurrency(8).debounce(DEBOUNCE))
        .graceful_shutdown_on(cancel.cancelled_owned())
        .run(
            |object, context| {
                let job = format!("{}/{}", object.namespace().unwrap_or_default(), object.name_any());
                guarded(job, reconcile(object, context))
            },
            |_, error, _| on_error(error),
            context,
        )
        .for_each(async |_| {})
        .await;
}

fn job_resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("batch.volcano.sh", "v1alpha1", "Job"), "jobs")
}

fn group_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("scheduling.volcano.sh", "v1beta1", "PodGroup");
    ApiResource::from_gvk_with_plural(&kind, "podgroups")
}

fn pod_resource() -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods")
}

fn on_error(error: &Error) -> Action {
    match error {
        Error::Panic { .. } => tracing::error!(%error, "volcano job"),
        _ => tracing::warn!(%error, "volcano job"),
    }
    match error {
        // The object must change first, and its change wakes the controller.
        Error::Job { .. } => Action::await_change(),
        Error::Api { .. } | Error::Panic { .. } => Action::requeue(RETRY),
    }
}

/// What a reconciliation answers; kube would let a panic over one Job end the controller of all.
async fn guarded(job: String, work: impl Future<Output = Result<Action, Error>>) -> Result<Action, Error> {
    catch_panic(work).await.unwrap_or_else(|message| Err(Error::Panic { job, message }))
}

async fn reconcile(object: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, Error> {
    let value = to_value(&*object);
    let job = match Job::parse(&value) {
        Ok(job) => job,
        Err(error) => {
            event(&context, &value, "InvalidJob", &error.to_string()).await?;
            return Err(error);
        }
    };
    if job.deleting {
        // Owner references take pods and group along.
        return Ok(Action::await_change());
    }
    if value.pointer("/status/state/phase").is_none() && has_policies(&value) {
        let text = "spec.policies: life-cycle policies are not acted on in this release; pods follow their restartPolicy";
        event(&context, &value, "PoliciesIgnored", text).await?;
    }
    let pods: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), &job.namespace, &pod_resource());
    let groups: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), &job.namespace, &group_resource());
    let group_name = job.group_name();
    let group = match groups.get_opt(&group_name).await.map_err(api("get", &group_name))? {
        Some(group) => to_value(&group),
        None => create(&groups, &plan::pod_group(&job)).await?,
    };

    let selector = kube::api::ListParams::default().labels(&format!("{JOB_LABEL}={}", job.name));
    let listed = pods.list(&selector).await.map_err(api("list pods of", &job.name))?;
    let seen: Vec<Seen> = listed
        .iter()
        .filter(|pod| pod.owner_references().iter().any(|owner| owner.uid == job.uid))
        .map(|pod| Seen::parse(&to_value(pod)))
        .collect();
    let plan = plan::plan(&job, &seen);
    futures::stream::iter(plan.create.into_iter().map(Ok))
        .try_for_each_concurrent(16, async |pod| create(&pods, &pod).await.map(drop))
        .await?;
    for name in &plan.delete {
        match pods.delete(name, &DeleteParams::background()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(api("delete pod", name)(error)),
        }
    }
    let jobs: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), &job.namespace, &job_resource());
    let now = stamp(context.clock.now());
    write_status(&jobs, &value, plan.status, &now).await?;
    write_status(&groups, &group, plan.group_status, &now).await?;
    Ok(Action::await_change())
}

fn has_policies(job: &Value) -> bool {
    let any = |value: &Value| value.as_array().is_some_and(|list| !list.is_empty());
    any(&job["spec"]["policies"])
        || job["spec"]["tasks"]
            .as_array()
            .is_some_and(|tasks| tasks.iter().any(|task| any(&task["policies"])))
}

/// Creates an object, or gives the one that is there.
async fn create(objects: &Api<DynamicObject>, value: &Value) -> Result<Value, Error> {
    let name = value["metadata"]["name"].as_str().unwrap_or_default();
    let object: DynamicObject = serde_json::from_value(value.clone())
        .map_err(|error| api("create", name)(kube::Error::SerdeError(error)))?;
    match objects.create(&PostParams::default(), &object).await {
        Ok(created) => Ok(to_value(&created)),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            Ok(to_value(&objects.get(name).await.map_err(api("get", name))?))
        }
        Err(error) => Err(api("create", name)(error)),
    }
}

/// Patches the status where it differs from what `object` has; a change of phase gets a time stamp.
async fn write_status(
    objects: &Api<DynamicObject>,
    object: &Value,
    mut status: Value,
    now: &str,
) -> Result<(), Error> {
    let old = &object["status"];
    if plan::holds(old, &status) {
        return Ok(());
    }
    if status["state"].is_object() && !plan::holds(&old["state"], &status["state"]) {
        status["state"]["lastTransitionTime"] = now.into();
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    objects
        .patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status})))
        .await
        .map_err(api("patch the status of", name))?;
    Ok(())
}

async fn event(context: &Context, job: &Value, reason: &str, message: &str) -> Result<(), Error> {
    let text = |pointer: &str| job.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let namespace = text("/metadata/namespace").unwrap_or_default();
    let name = text("/metadata/name").unwrap_or_default();
    let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(context.clock.now());
    let event = Event {
        // One for each reason and generation: saying it again at every look would be noise.
        metadata: kube::core::ObjectMeta {
            name: Some(format!("{name}.{}.{}", reason.to_lowercase(), job["metadata"]["generation"])),
            namespace: Some(namespace.clone()),
            ..Default::default()
        },
        involved_object: ObjectReference {
            api_version: Some("batch.volcano.sh/v1alpha1".to_owned()),
            kind: Some("Job".to_owned()),
            name: Some(name.clone()),
            namespace: Some(namespace.clone()),
            uid: text("/metadata/uid"),
            ..Default::default()
        },
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        type_: Some("Warning".to_owned()),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        source: Some(k8s_openapi::api::core::v1::EventSource {
            component: Some("gantry-controllers".to_owned()),
            host: None,
        }),
        ..Default::default()
    };
    let events: Api<Event> = Api::namespaced(context.client.clone(), &namespace);
    match events.create(&PostParams::default(), &event).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(api("write an Event for job", &name)(error)),
    }
}

fn api(action: &'static str, object: &str) -> impl FnOnce(kube::Error) -> Error + use<> {
    let object = object.to_owned();
    move |source| Error::Api { action, object, source: Box::new(source) }
}

fn to_value(object: &(impl serde::Serialize + Debug)) -> Value {
    serde_json::to_value(object).expect("invariant: objects read from JSON can be written as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_over_one_job_is_an_error_that_is_tried_again() {
        let error = guarded("ml/train".to_owned(), async { panic!("no such task") }).await;
        let error = error.expect_err("the panic must be reported");
        assert_eq!(error.to_string(), "job ml/train: panicked: no such task");
        assert_eq!(on_error(&error), Action::requeue(RETRY));
    }
}
