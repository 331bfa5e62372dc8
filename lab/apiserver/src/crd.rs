//! Custom resources: definitions that become rows of the registry.
//!
//! A definition takes effect with the write that makes it, before that write is answered: whoever reads
//! `Established` can use the resource. The resource goes away with the definition, once its objects have.

use std::sync::Arc;

use gantry_apimachinery::{
    ApplySchema, FieldError, FieldPath, PrinterColumn, Schema, validate_dns1035_label,
    validate_dns1123_subdomain,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::hooks::Hooks;
use crate::json::{items, map_at, set, set_default, text};
use crate::registry::{Behaviour, Conversion, Resource, STANDARD, ScalePaths, Subresource};
use crate::server::Inner;
use crate::store::{Object, ObjectKey, ResourceId};

/// The definitions' own resource.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
/// Keeps a definition until its objects are gone.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// What a version of a custom resource adds to a plain row.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    schema: Schema,
    source: Value,
    columns: Vec<PrinterColumn>,
}

impl CustomVersion {
    fn compile(version: &Value, path: &FieldPath) -> Result<Self, Vec<FieldError>> {
        let source = version["schema"]["openAPIV3Schema"].clone();
        let schema = Schema::compile(&source, &path.child("schema").child("openAPIV3Schema"));
        let columns = PrinterColumn::from_version(
            &version["additionalPrinterColumns"],
            &path.child("additionalPrinterColumns"),
        );
        match (schema, columns) {
            (Ok(schema), Ok(columns)) => Ok(Self { schema, source, columns }),
            (schema, columns) => Err(schema.err().into_iter().flatten().chain(columns.err()).collect()),
        }
    }

    /// Removes fields that the schema does not have; returns their paths.
    pub(crate) fn prune(&self, object: &mut Value) -> Vec<String> {
        self.schema.prune(object)
    }

    pub(crate) fn default(&self, object: &mut Value) {
        self.schema.default(object);
    }

    pub(crate) fn validate(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        self.schema.validate(object, old)
    }

    /// What server-side apply must know of the objects.
    pub(crate) fn apply(&self) -> ApplySchema<'_> {
        self.schema.apply()
    }

    /// The schema as it was written.
    pub(crate) fn openapi(&self) -> Value {
        self.source.clone()
    }

    pub(crate) fn column_definitions(&self) -> Vec<Value> {
        self.columns.iter().map(PrinterColumn::definition).collect()
    }

    pub(crate) fn row(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.columns.iter().map(|column| column.cell(object, now)).collect()
    }
}

/// The behaviour of definitions themselves.
pub(crate) const DEFINITION: Hooks = Hooks {
    default: |definition| {
        let kind = text(&definition["spec"]["names"]["kind"]).to_owned();
        if !kind.is_empty() {
            set_default(definition, &["spec", "names", "singular"], kind.to_lowercase());
            set_default(definition, &["spec", "names", "listKind"], format!("{kind}List"));
        }
        set_default(definition, &["spec", "conversion", "strategy"], "None");
    },
    prepare: |definition| {
        let finalizers = map_at(definition, &["metadata"]).entry("finalizers").or_insert_with(|| json!([]));
        if let Some(list) = finalizers.as_array_mut()
            && !list.iter().any(|finalizer| finalizer == CLEANUP)
        {
            list.push(CLEANUP.into());
        }
    },
    validate,
    validate_update: |new, old, errors| {
        for field in ["group", "scope"] {
            if new["spec"][field] != old["spec"][field] {
                let path = FieldPath::new("spec").child(field);
                errors.push(FieldError::invalid(&path, new["spec"][field].clone(), "field is immutable"));
            }
        }
    },
    ..Hooks::NONE
};

fn validate(definition: &Value, errors: &mut Vec<FieldError>) {
    let spec = &definition["spec"];
    let path = FieldPath::new("spec");
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    if group.is_empty() {
        errors.push(FieldError::required(&path.child("group"), ""));
    } else if !group.contains('.') {
        let rule = "should be a domain with at least one dot";
        errors.push(FieldError::invalid(&path.child("group"), group, rule));
    } else {
        let faults = validate_dns1123_subdomain(group);
        errors
            .extend(faults.into_iter().map(|fault| FieldError::invalid(&path.child("group"), group, fault)));
    }
    for field in ["plural", "kind"] {
        if text(&spec["names"][field]).is_empty() {
            errors.push(FieldError::required(&path.child("names").child(field), ""));
        }
    }
    let name = text(&definition["metadata"]["name"]);
    if name != format!("{plural}.{group}") {
        let rule = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(&FieldPath::new("metadata.name"), name, rule));
    }
    if !matches!(text(&spec["scope"]), "Namespaced" | "Cluster") {
        let supported = ["Cluster", "Namespaced"];
        errors.push(FieldError::not_supported(&path.child("scope"), text(&spec["scope"]), supported));
    }
    let versions = items(&spec["versions"]);
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let names: Vec<&Value> = versions.iter().map(|version| &version["name"]).collect();
        let rule = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid(&path.child("versions"), json!(names), rule));
    }
    for (i, version) in versions.iter().enumerate() {
        let path = path.child("versions").index(i);
        let name = text(&version["name"]);
        let faults = validate_dns1035_label(name);
        errors.extend(faults.into_iter().map(|fault| FieldError::invalid(&path.child("name"), name, fault)));
        if version["schema"]["openAPIV3Schema"].is_null() {
            let path = path.child("schema").child("openAPIV3Schema");
            errors.push(FieldError::required(&path, "schemas are required"));
        } else if let Err(faults) = CustomVersion::compile(version, &path) {
            errors.extend(faults);
        }
        let scale = &version["subresources"]["scale"];
        for field in ["specReplicasPath", "statusReplicasPath"] {
            if scale.is_object() && !text(&scale[field]).starts_with('.') {
                let path = path.child("subresources").child("scale").child(field);
                errors.push(FieldError::invalid(
                    &path,
                    text(&scale[field]),
                    "should be a json path under .spec or .status",
                ));
            }
        }
    }
}

/// Writes into a definition what the server makes of it: the names that it got and whether it is served.
pub(crate) fn establish(server: &Inner, definition: &mut Value, now: &str) {
    let conflict = name_conflict(server, definition);
    let (accepted, reason, message) = match &conflict {
        None => ("True", "NoConflicts", "no conflicts found".to_owned()),
        Some((reason, message)) => ("False", *reason, message.clone()),
    };
    let established = if conflict.is_none() {
        ("True", "InitialNamesAccepted", "the initial names have been accepted")
    } else {
        ("False", "NotAccepted", "not all names are accepted")
    };
    set_condition(definition, "NamesAccepted", (accepted, reason, &message), now);
    set_condition(definition, "Established", established, now);
    if conflict.is_none() {
        let names = definition["spec"]["names"].clone();
        set(definition, &["status", "acceptedNames"], names);
    } else {
        set_default(definition, &["status", "acceptedNames"], json!({"kind": "", "plural": ""}));
    }
    let storage = items(&definition["spec"]["versions"])
        .iter()
        .find(|version| version["storage"] == true)
        .map(|version| version["name"].clone())
        .unwrap_or_default();
    let stored = map_at(definition, &["status"]).entry("storedVersions").or_insert_with(|| json!([]));
    if let Some(list) = stored.as_array_mut()
        && !list.contains(&storage)
    {
        list.push(storage);
    }
}

/// Sets a condition; its time changes only with its status.
pub(crate) fn set_condition(
    object: &mut Value,
    kind: &str,
    (status, reason, message): (&str, &str, &str),
    now: &str,
) {
    let conditions = map_at(object, &["status"]).entry("conditions").or_insert_with(|| json!([]));
    let Some(list) = conditions.as_array_mut() else { return };
    let old = list.iter_mut().find(|condition| condition["type"] == kind);
    let since = match &old {
        Some(old) if old["status"] == status => old["lastTransitionTime"].clone(),
        _ => now.into(),
    };
    let new = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    });
    match old {
        Some(old) => *old = new,
        None => list.push(new),
    }
}

/// A name of this definition that another resource of its group has.
fn name_conflict(server: &Inner, definition: &Value) -> Option<(&'static str, String)> {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let own = ResourceId::from(text(&definition["metadata"]["name"]));
    let served = server.registry.served();
    let others =
        served.groups.get(text(&spec["group"]))?.iter().flat_map(|(_, resources)| resources.values());
    for other in others.filter(|other| other.id != own) {
        let taken = |name: &str| {
            !name.is_empty()
                && (name == other.plural
                    || name == other.singular
                    || other.short_names.iter().any(|s| s == name))
        };
        for (field, reason) in [("plural", "PluralConflict"), ("singular", "SingularConflict")] {
            if taken(text(&names[field])) {
                return Some((reason, format!("{:?} is already in use", text(&names[field]))));
            }
        }
        if let Some(short) = items(&names["shortNames"]).iter().map(text).find(|name| taken(name)) {
            return Some(("ShortNamesConflict", format!("{short:?} is already in use")));
        }
        for (field, reason) in [("kind", "KindConflict"), ("listKind", "ListKindConflict")] {
            let name = text(&names[field]);
            if name == other.kind || name == other.list_kind {
                return Some((reason, format!("{name:?} is already in use")));
            }
        }
    }
    None
}

/// Serves what an accepted definition defines; withdraws what is gone or was never accepted.
pub(crate) fn register(server: &Inner, definition: &Value, is_gone: bool) {
    let id = ResourceId::from(text(&definition["metadata"]["name"]));
    let established = items(&definition["status"]["conditions"])
        .iter()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True");
    let rows = if is_gone || !established { Vec::new() } else { rows(&id, &definition["spec"]) };
    if is_gone {
        server.store.close_watches(&id);
    }
    server.registry.replace(&id, rows);
}

/// Serves everything that the loaded state defines.
pub(crate) fn register_all(server: &Inner) {
    let (definitions, _) = server.store.list(&DEFINITIONS.into(), None, None).unwrap_or_default();
    for definition in definitions {
        register(server, &definition.value, false);
    }
}

fn rows(id: &ResourceId, spec: &Value) -> Vec<Resource> {
    let group = text(&spec["group"]);
    let names = &spec["names"];
    let list = |value: &Value| items(value).iter().map(|item| text(item).to_owned()).collect();
    let versions = items(&spec["versions"]);
    let storage = versions.iter().find(|version| version["storage"] == true).map_or("", |v| text(&v["name"]));
    let compiled = versions.iter().filter(|version| version["served"] == true).filter_map(|version| {
        // Validation has compiled it before; state on disk is what validation let through.
        Some((version, CustomVersion::compile(version, &FieldPath::root()).ok()?))
    });
    compiled
        .map(|(version, custom)| Resource {
            id: id.clone(),
            group: group.to_owned(),
            version: text(&version["name"]).to_owned(),
            kind: text(&names["kind"]).to_owned(),
            list_kind: text(&names["listKind"]).to_owned(),
            plural: text(&names["plural"]).to_owned(),
            singular: text(&names["singular"]).to_owned(),
            short_names: list(&names["shortNames"]),
            categories: list(&names["categories"]),
            namespaced: spec["scope"] == "Namespaced",
            verbs: STANDARD,
            subresources: subresources(&version["subresources"]),
            storage_api_version: format!("{group}/{storage}"),
            conversion: Conversion::NONE,
            behaviour: Behaviour::Stored,
            hooks: Hooks::NONE,
            selectable: items(&version["selectableFields"])
                .iter()
                .map(|field| text(&field["jsonPath"]).trim_start_matches('.').to_owned())
                .collect(),
            custom: Some(Arc::new(custom)),
        })
        .collect()
}

fn subresources(value: &Value) -> Vec<Subresource> {
    let mut subresources = Vec::new();
    if value["status"].is_object() {
        subresources.push(Subresource::Status);
    }
    let scale = &value["scale"];
    if scale.is_object() {
        let path = |field: &str| text(&scale[field]).trim_start_matches('.').to_owned();
        subresources.push(Subresource::Scale(ScalePaths {
            spec_replicas: path("specReplicasPath"),
            status_replicas: path("statusReplicasPath"),
            selector: Some(path("labelSelectorPath")).filter(|path| !path.is_empty()),
        }));
    }
    subresources
}

/// Goes on with the removal of a definition: its objects are deleted, and when none is left, so is it.
/// Objects with finalizers stay until those are done; the controllers call this again then.
/// Nothing happens if there is no such definition, or if it is to stay.
pub(crate) fn clean_up(server: &Inner, name: &str) {
    let resource = ResourceId::from(DEFINITIONS);
    let Some(definition) = server.store.get(&resource, &ObjectKey::new("", name)) else { return };
    let is_ending = definition.value["metadata"].get("deletionTimestamp").is_some();
    if !is_ending || !crate::verbs::finalizers(&definition.value).contains(&CLEANUP) {
        return;
    }
    let id = ResourceId::from(name);
    let (objects, _) = server.store.list(&id, None, None).unwrap_or_default();
    let mut waiting = false;
    let now = crate::verbs::now(&server.options.clock);
    for object in objects {
        if crate::verbs::finalizers(&object.value).is_empty() {
            waiting |= server.store.delete(&id, &object).is_err();
        } else {
            waiting = true;
            if object.value["metadata"].get("deletionTimestamp").is_none() {
                let mut marked = object.value.clone();
                set(&mut marked, &["metadata", "deletionTimestamp"], now.as_str());
                set(&mut marked, &["metadata", "deletionGracePeriodSeconds"], 0);
                // Whoever changed it in between will be met again at the next call.
                let _ = server.store.update(&id, marked, object.revision);
            }
        }
    }
    if waiting {
        return;
    }
    let mut rest = definition.value.clone();
    if let Some(list) = map_at(&mut rest, &["metadata"]).get_mut("finalizers").and_then(Value::as_array_mut) {
        list.retain(|finalizer| finalizer != CLEANUP);
    }
    if crate::verbs::finalizers(&rest).is_empty() {
        if server
            .store
            .delete(&resource, &Object::new(rest, definition.managed.clone(), definition.revision))
            .is_ok()
        {
            register(server, &definition.value, true);
        }
    } else {
        let _ = server.store.update(&resource, rest, definition.revision);
    }
}
