//! Server-side apply, by tables and by laws.

mod laws;
mod operations;
mod texts;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Applied, ApplyError, ApplySchema, ApplyVersions, FieldSet, ManagedFields, Writer};
use crate::{FieldPath, Schema};

const VERSION: &str = "example.com/v1";

/// One kind in one version, with a list of each sort.
struct Kind {
    schema: Schema,
    ignored: FieldSet,
}

impl Kind {
    fn of(spec: &Value) -> Self {
        let schema = json!({"type": "object", "properties": {
            "spec": spec,
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }});
        Self {
            schema: Schema::compile(&schema, &FieldPath::root()).unwrap(),
            ignored: FieldSet::of_fields("status"),
        }
    }

    fn usual() -> Self {
        Self::of(&json!({"type": "object", "properties": {
            "replicas": {"type": "integer"},
            "image": {"type": "string"},
            "args": {"type": "array", "items": {"type": "string"}},
            "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "ports": {
                "type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"},
                    "name": {"type": "string"}, "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                }},
            },
            "selector": {
                "type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"},
            },
            "options": {"type": "object", "additionalProperties": {"type": "string"}},
            "free": {"x-kubernetes-preserve-unknown-fields": true},
        }}))
    }

    fn writer(manager: &str, second: i64) -> Writer<'_> {
        Writer {
            manager,
            api_version: VERSION,
            subresource: "",
            now: Some(Timestamp::from_second(1_000_000_000 + second).unwrap()),
        }
    }

    fn update(
        &self,
        managed: &ManagedFields,
        old: Option<&Value>,
        new: &Value,
        manager: &str,
    ) -> ManagedFields {
        managed.update(old, new, &Self::writer(manager, 0), self)
    }
}

impl ApplyVersions for Kind {
    fn schema(&self, api_version: &str) -> Option<ApplySchema<'_>> {
        (api_version == VERSION).then(|| self.schema.apply())
    }

    fn convert(&self, object: &Value, _api_version: &str) -> Value {
        object.clone()
    }

    fn ignored(&self) -> &FieldSet {
        &self.ignored
    }
}

/// An object of the kind with this `spec`.
fn object(spec: Value) -> Value {
    json!({"apiVersion": VERSION, "kind": "Thing", "metadata": {"name": "a", "namespace": "n"}, "spec": spec})
}

/// An object and its owners, through a series of writes.
struct Story {
    kind: Kind,
    object: Value,
    managed: ManagedFields,
}

impl Story {
    fn new() -> Self {
        let object = json!({"apiVersion": VERSION, "kind": "Thing"});
        Self { kind: Kind::usual(), object, managed: ManagedFields::NONE }
    }

    fn try_apply(&self, manager: &str, spec: Value, force: bool) -> Result<Applied, ApplyError> {
        let writer = Kind::writer(manager, 0);
        self.managed.apply(&self.object, &object(spec), &writer, force, &self.kind)
    }

    fn apply(&mut self, manager: &str, spec: Value) -> &mut Self {
        let applied = self.try_apply(manager, spec, false).unwrap();
        (self.object, self.managed) = (applied.object, applied.managed);
        self
    }

    fn force(&mut self, manager: &str, spec: Value) -> &mut Self {
        let applied = self.try_apply(manager, spec, true).unwrap();
        (self.object, self.managed) = (applied.object, applied.managed);
        self
    }

    fn update(&mut self, manager: &str, spec: Value) -> &mut Self {
        let new = object(spec);
        let is_new = self.object.get("metadata").is_none();
        self.managed = self.kind.update(&self.managed, (!is_new).then_some(&self.object), &new, manager);
        self.object = new;
        self
    }

    fn spec(&self) -> &Value {
        &self.object["spec"]
    }

    /// The fields below `spec` of each manager, as FieldsV1.
    fn owners(&self) -> Vec<(String, Value)> {
        let fields = |text: String| serde_json::from_str::<Value>(&text).unwrap();
        self.managed
            .entries()
            .iter()
            .map(|entry| (entry.manager.to_string(), fields(entry.fields.to_fields_v1())["f:spec"].take()))
            .collect()
    }
}
