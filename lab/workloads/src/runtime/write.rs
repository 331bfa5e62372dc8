//! Carrying out plans: one request per write, and what the server answers goes into the store at once.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use kube::Client;
use kube::core::params::{self, DeleteParams, PatchParams, PostParams, Preconditions};
use kube::core::{Request, Status};
use serde_json::{Value, json};

use super::Shared;
use super::events::{Event, EventRecorder};
use crate::Error;
use crate::json::Fields as _;
use crate::kinds::Kind;
use crate::plan::{Create, Delete, Failure, Note, Patch, Step};
use crate::store::Ref;

/// Requests of one plan that are under way at the same time.
const CONCURRENCY: usize = 64;

/// Whom and what a writer speaks for.
pub(crate) struct Writer {
    pub(crate) client: Client,
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: EventRecorder,
}

/// The reference in events to the object that they are about.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Regarding(Value);

impl Regarding {
    pub(crate) fn object(kind: Kind, object: &Value) -> Self {
        Self(json!({
            "apiVersion": kind.api_version(), "kind": kind.name(),
            "namespace": object.namespace(), "name": object.name(), "uid": object.uid(),
            "resourceVersion": object.text("/metadata/resourceVersion"),
        }))
    }
}

/// The object that a plan is for.
pub(crate) struct Subject {
    pub(crate) component: &'static str,
    pub(crate) regarding: Option<Regarding>,
}

impl Writer {
    /// Runs the steps in order until one fails.
    pub(crate) async fn run(&self, subject: &Subject, steps: Vec<Step>) -> Result<(), Failure> {
        for step in steps {
            match step {
                Step::Create(creates) => self.create_all(subject, creates).await?,
                Step::Delete(deletes) => {
                    let writes = deletes.into_iter().map(|delete| self.delete(subject, delete));
                    all(writes).await?;
                }
                Step::Patch(patches) => {
                    let writes = patches.into_iter().map(|patch| self.patch(subject, patch));
                    all(writes).await?;
                }
                Step::Event(note) => self.note(subject, Some(note), "", ""),
            }
        }
        Ok(())
    }

    /// Batches of 1, 2, 4 and so on: what fails for one pod fails for all, and need not be tried for all.
    async fn create_all(&self, subject: &Subject, creates: Vec<Create>) -> Result<(), Failure> {
        let mut size = 1;
        let mut rest = creates.into_iter().peekable();
        while rest.peek().is_some() {
            let batch: Vec<Create> = rest.by_ref().take(size).collect();
            all(batch.into_iter().map(|create| self.create(subject, create))).await?;
            size *= 2;
        }
        Ok(())
    }

    async fn create(&self, subject: &Subject, create: Create) -> Result<(), Failure> {
        let Create { kind, object, may_exist, success, failure } = create;
        let result = async {
            let request = Request::new(kind.path(object.namespace()))
                .create(&PostParams::default(), object.to_string().into_bytes())
                .map_err(Error::Request)?;
            Ok::<Value, Error>(self.client.request(request).await?)
        }
        .await;
        match result {
            Ok(created) => {
                let name = created.name().to_owned();
                self.shared.seen(kind, created);
                self.note(subject, success, &name, "");
                Ok(())
            }
            Err(error) if may_exist && error.already_exists() => Ok(()),
            Err(error) => Err(self.failed(subject, true, failure, object.name(), &error)),
        }
    }

    async fn delete(&self, subject: &Subject, delete: Delete) -> Result<(), Failure> {
        let Delete { kind, id, uid, success, failure } = delete;
        let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
        let options = DeleteParams::background().preconditions(preconditions);
        let result = async {
            let request =
                Request::new(kind.path(&id.namespace)).delete(&id.name, &options).map_err(Error::Request)?;
            Ok::<_, Error>(self.client.request_status::<Value>(request).await?)
        }
        .await;
        match result {
            Ok(answer) => {
                self.deleted(kind, &id, &uid, answer.left());
                self.note(subject, success, &id.name, "");
                Ok(())
            }
            // It is gone, or another of its name is there: either way this one is not.
            Err(error) if matches!(error.code(), Some(404 | 409)) => {
                self.shared.gone(kind, &id, &uid);
                Ok(())
            }
            Err(error) => Err(self.failed(subject, false, failure, &id.name, &error)),
        }
    }

    /// The answer is the object while it is on its way out, and a status or its last state when it is gone.
    fn deleted(&self, kind: Kind, id: &Ref, uid: &str, object: Option<Value>) {
        match object {
            Some(object) if object.is_deleting() => self.shared.seen(kind, object),
            _ => self.shared.gone(kind, id, uid),
        }
    }

    async fn patch(&self, subject: &Subject, patch: Patch) -> Result<(), Failure> {
        let Patch { kind, id, on_status, change, success, failure } = patch;
        let result = async {
            let request = Request::new(kind.path(&id.namespace));
            let (options, patch) = (PatchParams::default(), params::Patch::Merge(&change));
            let request = if on_status {
                request.patch_subresource("status", &id.name, &options, &patch)
            } else {
                request.patch(&id.name, &options, &patch)
            };
            Ok::<Value, Error>(self.client.request(request.map_err(Error::Request)?).await?)
        }
        .await;
        match result {
            Ok(patched) => {
                self.shared.patched(kind, patched);
                self.note(subject, success, &id.name, "");
                Ok(())
            }
            // The watch will tell that it is gone.
            Err(error) if error.code() == Some(404) => Ok(()),
            Err(error) => Err(self.failed(subject, false, failure, &id.name, &error)),
        }
    }

    fn failed(
        &self,
        subject: &Subject,
        on_create: bool,
        note: Option<Note>,
        name: &str,
        error: &Error,
    ) -> Failure {
        let message = error.message();
        if !error.namespace_terminating() {
            self.note(subject, note, name, &message);
        }
        Failure { on_create, already_exists: error.already_exists(), message }
    }

    fn note(&self, subject: &Subject, note: Option<Note>, name: &str, error: &str) {
        if let (Some(note), Some(regarding)) = (note, &subject.regarding) {
            self.events.note(Event {
                object: regarding.0.clone(),
                component: subject.component,
                host: String::new(),
                warning: note.warning,
                reason: note.reason,
                message: note.message.replace("{name}", name).replace("{error}", error),
            });
        }
    }
}

/// Runs the writes, some at the same time; the first failure is reported after all have ended.
async fn all(writes: impl Iterator<Item = impl Future<Output = Result<(), Failure>>>) -> Result<(), Failure> {
    let results: Vec<Result<(), Failure>> = stream::iter(writes).buffered(CONCURRENCY).collect().await;
    results.into_iter().collect()
}

impl Error {
    /// The HTTP status that the API server answered.
    pub(crate) fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(kube::Error::Api(status)) | Self::Watch { status, .. } => Some(status),
            _ => None,
        }
    }

    fn already_exists(&self) -> bool {
        self.status().is_some_and(|status| status.reason == "AlreadyExists")
    }

    fn namespace_terminating(&self) -> bool {
        let details = self.status().and_then(|status| status.details.as_ref());
        details
            .is_some_and(|details| details.causes.iter().any(|cause| cause.reason == "NamespaceTerminating"))
    }

    /// What the server said, or else what went wrong.
    fn message(&self) -> String {
        self.status().map_or_else(|| self.to_string(), |status| status.message.clone())
    }
}
