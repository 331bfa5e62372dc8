//! Who owns which field: `metadata.managedFields`.
//!
//! The list is kept beside the object, not in it: it is bulky, and nobody within the server reads it.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use gantry_apimachinery::{
    ApplyError, ApplySchema, ApplyVersions, FieldError, FieldPath, FieldSet, ManagedFields, ResourceName,
    Status, Writer,
};
use gantry_kubetypes::Types;
use serde_json::{Value, json};

use crate::http::Call;
use crate::json::{remove, text};
use crate::registry::{Resource, Served};

/// Where the owners of a new state come from.
pub(crate) enum Owners {
    /// They follow from the changes.
    Tracked,
    /// An apply has told them.
    Applied(ManagedFields),
}

/// The longest name of a field manager, in bytes.
const LONGEST_MANAGER: usize = 128;

/// Who makes this request: `fieldManager`, else what the user agent begins with.
fn manager(call: &Call) -> Cow<'_, str> {
    if call.is_internal {
        return "kube-apiserver".into();
    }
    if let Some(given) = call.query.get("fieldManager") {
        return given.into();
    }
    if let Some(component) = call.component {
        return component.into();
    }
    let agent = call.headers.get(http::header::USER_AGENT).and_then(|value| value.to_str().ok());
    let name = agent.unwrap_or_default().split('/').next().unwrap_or_default();
    let mut kept = String::new();
    for char in name.chars().filter(|char| !char.is_control()) {
        if kept.len() + char.len_utf8() > LONGEST_MANAGER {
            break;
        }
        kept.push(char);
    }
    kept.into()
}

/// Checks the options of a write that concern owners. `options` is their kind: `PatchOptions` …
pub(crate) fn check_options(call: &Call, options: &str, is_apply: bool) -> Result<(), Status> {
    let mut errors = Vec::new();
    let path = FieldPath::new("fieldManager");
    match call.query.get("fieldManager") {
        None if is_apply => errors.push(FieldError::required(&path, "is required for apply patch")),
        None => {}
        Some(manager) => {
            if manager.len() > LONGEST_MANAGER {
                errors.push(FieldError::too_long(&path, LONGEST_MANAGER));
            }
            if let Some((index, char)) = manager.char_indices().find(|(_, char)| char.is_control()) {
                let rule = format!("invalid character U+{:04X} (at position {index})", u32::from(char));
                errors.push(FieldError::invalid(&path, manager, rule));
            }
        }
    }
    if options == "PatchOptions" && !is_apply && call.query.get("force").is_some() {
        errors.push(FieldError::forbidden(
            &FieldPath::new("force"),
            "may not be specified for non-apply patch",
        ));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(ResourceName { group: "meta.k8s.io", resource: options, name: "" }, &errors))
}

static NOTHING: FieldSet = FieldSet::EMPTY;
static STATUS: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of_fields("status"));
static SPEC: LazyLock<FieldSet> = LazyLock::new(|| FieldSet::of_fields("spec"));
static SPEC_AND_LABELS: LazyLock<FieldSet> =
    LazyLock::new(|| SPEC.union(&FieldSet::of_fields("metadata.labels")));
static SPEC_AND_METADATA: LazyLock<FieldSet> = LazyLock::new(|| SPEC.union(&FieldSet::of_fields("metadata")));

/// The fields that a request's path leaves as they are, as Kubernetes' strategies reset them.
fn ignored(call: &Call) -> &'static FieldSet {
    let resource = &call.resource;
    match call.path.subresource.as_str() {
        "" if resource.has_status() => &STATUS,
        "status" if resource.custom.is_some() || resource.kind == "CustomResourceDefinition" => {
            &SPEC_AND_METADATA
        }
        "status" if resource.kind == "Deployment" => &SPEC_AND_LABELS,
        "status" | "approval" => &SPEC,
        "finalize" => &STATUS,
        _ => &NOTHING,
    }
}

/// The versions of the resource of a request.
struct Versions<'a> {
    resource: &'a Resource,
    served: Arc<Served>,
    ignored: &'static FieldSet,
}

impl<'a> Versions<'a> {
    fn of(call: &'a Call) -> Self {
        Self { resource: &call.resource, served: call.server.registry.served(), ignored: ignored(call) }
    }

    fn find(&self, api_version: &str) -> Option<&Resource> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if group == self.resource.group && version == self.resource.version {
            return Some(self.resource);
        }
        let found = self.served.find(group, version, &self.resource.plural)?;
        (found.id == self.resource.id).then_some(found.as_ref())
    }
}

impl ApplyVersions for Versions<'_> {
    fn schema(&self, api_version: &str) -> Option<ApplySchema<'_>> {
        let resource = self.find(api_version)?;
        match &resource.custom {
            Some(custom) => Some(custom.apply()),
            None => {
                let types = Types::builtin();
                types
                    .kind(&resource.group, &resource.version, &resource.kind)
                    .map(|kind| types.apply_schema(kind))
            }
        }
    }

    fn convert(&self, object: &Value, api_version: &str) -> Value {
        let mut object = object.clone();
        if let Some(from) = self.find(text(&object["apiVersion"])) {
            from.to_storage(&mut object);
        }
        if let Some(to) = self.find(api_version) {
            to.to_served(&mut object);
        }
        object
    }

    fn ignored(&self) -> &FieldSet {
        self.ignored
    }
}

/// The object, given in its storage version, in the version of the request.
fn as_requested<'v>(call: &Call, stored: &'v Value) -> Cow<'v, Value> {
    if call.resource.is_storage_version() {
        return Cow::Borrowed(stored);
    }
    let mut object = stored.clone();
    call.resource.to_served(&mut object);
    Cow::Owned(object)
}

/// Takes the owners out of an object that a client sent, as what is written starts from: its own where it has some, none where it
/// asks to forget them, else those that there are. Through a subresource they cannot be set.
pub(crate) fn take_given(call: &Call, object: &mut Value, present: &ManagedFields) -> ManagedFields {
    let given = remove(object, &["metadata", "managedFields"]).unwrap_or_default();
    if !call.path.subresource.is_empty() || given.is_null() {
        return present.clone();
    }
    if ManagedFields::is_reset(&given) {
        return ManagedFields::NONE;
    }
    // What cannot be read is a client's that does not understand it.
    ManagedFields::parse(&given).ok().filter(|given| !given.is_empty()).unwrap_or_else(|| present.clone())
}

/// The owners after a write. Objects are in their storage version; `old` is `None` for a new one.
pub(crate) fn after(call: &Call, base: &ManagedFields, old: Option<&Value>, new: &Value) -> ManagedFields {
    if base.is_empty() && old.is_some() {
        return ManagedFields::NONE;
    }
    let (manager, api_version) = (manager(call), call.resource.api_version());
    let old = old.map(|old| as_requested(call, old));
    base.update(
        old.as_deref(),
        &as_requested(call, new),
        &writer(call, &manager, &api_version),
        &Versions::of(call),
    )
}

fn writer<'a>(call: &'a Call, manager: &'a str, api_version: &'a str) -> Writer<'a> {
    // A Scale shows no times, and so the times of its owners are lost, as in Kubernetes.
    let now = (call.path.subresource != "scale").then(|| call.server.options.clock.now());
    Writer { manager, api_version, subresource: &call.path.subresource, now }
}

/// What an apply of `config` makes of `live`, both in the version of the request.
pub(crate) fn apply(
    call: &Call,
    managed: &ManagedFields,
    live: &Value,
    config: &Value,
) -> Result<(Value, ManagedFields), Status> {
    let (manager, api_version) = (manager(call), call.resource.api_version());
    let writer = writer(call, &manager, &api_version);
    let force = call.query.flag("force");
    match managed.apply(live, config, &writer, force, &Versions::of(call)) {
        Ok(applied) => Ok((applied.object, applied.managed)),
        Err(error @ ApplyError::Malformed(_)) => Err(Status::unclassified(format!(
            "failed to create typed patch object ({}/{}; {}): {}",
            text(&config["metadata"]["namespace"]),
            text(&config["metadata"]["name"]),
            go_kind(&config["apiVersion"], &config["kind"]),
            error.message()
        ))),
        Err(ApplyError::Conflicts(mut conflicts)) => {
            if call.path.subresource == "scale" {
                // Whoever applies a Scale is told of owners in terms of Scales.
                let own = format!(" using {api_version}");
                for conflict in &mut conflicts {
                    if let Some(owner) = conflict.owner.strip_suffix(&own) {
                        conflict.owner = format!("{owner} using autoscaling/v1");
                    }
                }
            }
            let causes = conflicts.iter().map(gantry_apimachinery::Conflict::to_cause).collect();
            Err(Status::apply_conflict(causes, ApplyError::Conflicts(conflicts).message()))
        }
    }
}

/// An object that is to be created by applying it: nothing but what it is.
pub(crate) fn nothing(call: &Call) -> Value {
    json!({"apiVersion": call.resource.api_version(), "kind": call.resource.kind})
}

/// A kind as Go's messages show it: `apps/v1, Kind=Deployment`; `/v1, Kind=Pod` in the core group.
fn go_kind(api_version: &Value, kind: &Value) -> String {
    let api_version = text(api_version);
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={}", text(kind))
}

/// Refuses what cannot be applied, whatever the object.
pub(crate) fn check_config(call: &Call, config: &Value) -> Result<(), Status> {
    let is_kind =
        text(&config["apiVersion"]) == call.resource.api_version() && config["kind"] == *call.resource.kind;
    // A Scale is applied with its own kind.
    if !is_kind && call.path.subresource != "scale" {
        let given = go_kind(&config["apiVersion"], &config["kind"]);
        return Err(Status::bad_request(format!("invalid object type: {given}")));
    }
    if config["metadata"].get("managedFields").is_some_and(|given| !given.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    Ok(())
}
