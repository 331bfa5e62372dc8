//! Dynamic admission: asks the webhooks that the cluster's configurations name.
//!
//! ```text
//!   request ─▶ mutate: one after another, by configuration name ─▶ (again, if another changed the object)
//!                 │ AdmissionReview ─▶ webhook ─▶ JSON patch
//!                 ▼
//!           defaults, rules of the kind ─▶ validate: all at once ─▶ store
//! ```
//!
//! What a webhook says is [`review`], whether it is asked [`matching`], how it is reached [`client`].

mod client;
mod conditions;
mod matching;
mod review;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use gantry_kit::SharedIds;
use serde_json::{Map, Value, json};

use self::client::Caller;
pub use self::client::WebhookServices;
#[cfg(feature = "fuzzing")]
pub(crate) use self::review::verdict;
use crate::json::{items, text};
use crate::{Status, User};

/// What happens to the object, as rules name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

impl Operation {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
        }
    }
}

/// A kind and its resource in one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourceKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) resource: String,
}

impl ResourceKind {
    pub(crate) fn new(group: &str, version: &str, kind: &str, resource: &str) -> Self {
        Self { group: group.into(), version: version.into(), kind: kind.into(), resource: resource.into() }
    }

    fn kind_json(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }

    fn resource_json(&self) -> Value {
        json!({"group": self.group, "version": self.version, "resource": self.resource})
    }
}

/// Turns an object into the same object of another version.
pub(crate) type Convert<'a> = &'a (dyn Fn(&Value, &ResourceKind) -> Value + Sync);

/// A request on its way to the store.
pub(crate) struct Request<'a> {
    pub(crate) operation: Operation,
    /// In the version of the request.
    pub(crate) kind: ResourceKind,
    /// The other versions in which the same objects are served.
    pub(crate) equivalents: Vec<ResourceKind>,
    pub(crate) convert: Convert<'a>,
    /// Empty for the object itself.
    pub(crate) subresource: &'a str,
    /// Empty for cluster-scoped objects.
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    /// The Namespace object, whose labels `namespaceSelector` reads.
    pub(crate) namespace_object: Option<Value>,
    pub(crate) user: &'a User,
    pub(crate) dry_run: bool,
    /// `CreateOptions` and so on.
    pub(crate) options: Value,
    /// The object as it is to be; `Null` for a deletion.
    pub(crate) object: Value,
    /// The object as it is; `Null` for a creation.
    pub(crate) old: Value,
}

/// Asks webhooks; cheap to clone.
#[derive(Clone)]
pub(crate) struct Webhooks {
    caller: Caller,
    ids: SharedIds,
}

impl fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhooks").finish_non_exhaustive()
    }
}

/// One webhook that a request concerns, and what it made of the object.
struct Asked<'a> {
    webhook: &'a Value,
    /// The object after its answer; a later difference is somebody else's.
    after: Value,
}

impl Webhooks {
    pub(crate) fn new(services: WebhookServices, ids: SharedIds) -> Self {
        Self { caller: Caller::new(services), ids }
    }

    /// Lets the mutating webhooks change `request.object`. Returns their warnings.
    ///
    /// `configurations` are the `MutatingWebhookConfiguration`s in order of their names.
    pub(crate) async fn mutate(
        &self,
        configurations: &[Arc<crate::store::Object>],
        request: &mut Request<'_>,
    ) -> Result<Vec<String>, Status> {
        let mut warnings = Vec::new();
        let mut asked: Vec<Asked<'_>> = Vec::new();
        for webhook in configurations.iter().flat_map(|configuration| items(&configuration.value["webhooks"]))
        {
            if self.ask_to_change(webhook, request, &mut warnings).await? {
                asked.push(Asked { webhook, after: request.object.clone() });
            }
        }
        // A second round, for those that want to see what others did after them.
        for Asked { webhook, after } in asked {
            if webhook["reinvocationPolicy"] == "IfNeeded" && after != request.object {
                self.ask_to_change(webhook, request, &mut warnings).await?;
            }
        }
        Ok(warnings)
    }

    /// Whether the webhook was asked.
    async fn ask_to_change(
        &self,
        webhook: &Value,
        request: &mut Request<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<bool, Status> {
        let Some(kind) = matching::matching_kind(webhook, request)?.cloned() else { return Ok(false) };
        let Some(verdict) = self.ask(webhook, request, &kind, true).await? else { return Ok(false) };
        warnings.extend(verdict.warnings);
        if let Some(denial) = verdict.denial {
            return Err(denial);
        }
        if let Some(object) = verdict.object {
            request.object = (request.convert)(&object, &request.kind);
        }
        Ok(true)
    }

    /// Asks all validating webhooks at once. Returns their warnings, or the first refusal in order.
    ///
    /// `configurations` are the `ValidatingWebhookConfiguration`s in order of their names.
    pub(crate) async fn validate(
        &self,
        configurations: &[Arc<crate::store::Object>],
        request: &Request<'_>,
    ) -> Result<Vec<String>, Status> {
        let mut asking = Vec::new();
        for webhook in configurations.iter().flat_map(|configuration| items(&configuration.value["webhooks"]))
        {
            if let Some(kind) = matching::matching_kind(webhook, request)? {
                asking.push(self.ask(webhook, request, kind, false));
            }
        }
        let mut warnings = Vec::new();
        for answer in join_all(asking).await {
            let Some(verdict) = answer? else { continue };
            warnings.extend(verdict.warnings);
            if let Some(denial) = verdict.denial {
                return Err(denial);
            }
        }
        Ok(warnings)
    }

    /// `None` if the webhook was not asked, or failed and may be ignored.
    async fn ask(
        &self,
        webhook: &Value,
        request: &Request<'_>,
        kind: &ResourceKind,
        mutating: bool,
    ) -> Result<Option<review::Verdict>, Status> {
        let name = text(&webhook["name"]);
        let ignore = webhook["failurePolicy"] == "Ignore";
        let uid = self.ids.uid();
        let question = review::question(request, kind, &uid);
        match conditions::all_hold(webhook, &question["request"]) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(why) if ignore => {
                tracing::warn!(webhook = name, %why, "match conditions failed; the webhook is ignored");
                return Ok(None);
            }
            Err(why) => return Err(Status::forbidden(request.target(), &why)),
        }
        if request.dry_run && !matches!(text(&webhook["sideEffects"]), "None" | "NoneOnDryRun") {
            return Err(Status::bad_request(format!("admission webhook {name:?} does not support dry run")));
        }
        let seconds = webhook["timeoutSeconds"].as_u64().unwrap_or(10).clamp(1, 30);
        let answer =
            self.caller.post(&webhook["clientConfig"], &question, Duration::from_secs(seconds)).await;
        let verdict = answer
            .and_then(|body| review::verdict(name, &uid, &body, &question["request"]["object"], mutating));
        match verdict {
            Ok(verdict) => Ok(Some(verdict)),
            Err(why) if ignore => {
                tracing::warn!(webhook = name, %why, "failed calling webhook, failing open");
                Ok(None)
            }
            Err(why) => Err(Status::internal(format!("failed calling webhook {name:?}: {why}"))),
        }
    }
}

impl Request<'_> {
    fn target(&self) -> crate::ResourceName<'_> {
        crate::ResourceName { group: &self.kind.group, resource: &self.kind.resource, name: self.name }
    }
}

/// `CreateOptions`, `UpdateOptions`, … as reviews carry them.
pub(crate) fn options(operation: Operation, field_manager: Option<&str>, dry_run: bool) -> Value {
    let kind = match operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
    };
    let mut options = Map::from_iter([
        ("kind".to_owned(), kind.into()),
        ("apiVersion".to_owned(), "meta.k8s.io/v1".into()),
    ]);
    if let Some(manager) = field_manager {
        options.insert("fieldManager".to_owned(), manager.into());
    }
    if dry_run {
        options.insert("dryRun".to_owned(), json!(["All"]));
    }
    Value::Object(options)
}

#[cfg(test)]
mod tests;
