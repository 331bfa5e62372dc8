//! `metadata.managedFields`: which manager owns which fields, in one list.

use std::cmp::Ordering;
use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::FieldSet;

/// How a manager came to own fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By applying them: what is no longer applied is removed.
    Apply,
    /// By any other write.
    Update,
}

impl Operation {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// The fields of one manager.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedEntry {
    /// Who it is: `kubectl`, `kube-controller-manager` …
    pub manager: Arc<str>,
    /// How the fields were written.
    pub operation: Operation,
    /// The version of the object in which `fields` are named.
    pub api_version: Arc<str>,
    /// The subresource through which they were written; empty for the object itself.
    pub subresource: Arc<str>,
    /// When this manager last changed a field.
    pub time: Option<Timestamp>,
    /// The fields.
    pub fields: FieldSet,
}

impl ManagedEntry {
    /// Whether both are of one manager: an applier is the same in every version.
    pub(super) fn is_same_manager(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    fn seconds(&self) -> i64 {
        self.time.map_or(0, Timestamp::as_second)
    }

    fn identity(&self) -> (&str, Operation, &str, &str) {
        (&self.manager, self.operation, &self.api_version, &self.subresource)
    }
}

/// All entries of an object. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedFields(Option<Arc<[ManagedEntry]>>);

/// More updating managers than this have their oldest merged into one.
pub(super) const MAX_UPDATERS: usize = 10;
/// How a time is written.
const TIME: &str = "%Y-%m-%dT%H:%M:%SZ";
/// The manager that the oldest are merged into.
const ANCIENT: &str = "ancient-changes";

impl ManagedFields {
    /// No entries: an object whose fields nobody tracks.
    pub const NONE: Self = Self(None);

    /// In Kubernetes' order: appliers first, then by time and name.
    pub(super) fn new(mut entries: Vec<ManagedEntry>) -> Self {
        entries.retain(|entry| !entry.fields.is_empty());
        entries.sort_by(|a, b| {
            a.operation
                .cmp(&b.operation)
                .then_with(|| a.seconds().cmp(&b.seconds()))
                .then_with(|| a.manager.cmp(&b.manager))
                .then_with(|| a.api_version.cmp(&b.api_version))
                .then_with(|| a.subresource.cmp(&b.subresource))
        });
        if entries.is_empty() { Self(None) } else { Self(Some(entries.into())) }
    }

    /// The entries.
    pub fn entries(&self) -> &[ManagedEntry] {
        self.0.as_deref().unwrap_or(&[])
    }

    /// Whether nobody owns anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether both say the same, whatever the times.
    pub fn is_same_but_for_times(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(a), Some(b)) if Arc::ptr_eq(a, b) => true,
            _ => {
                let (a, b) = (self.entries(), other.entries());
                // Times decide the order: without them each is looked for.
                a.len() == b.len()
                    && a.iter().all(|entry| {
                        b.iter()
                            .any(|other| entry.identity() == other.identity() && entry.fields == other.fields)
                    })
            }
        }
    }

    /// Reads `metadata.managedFields`. The error tells what Kubernetes would find wrong; it then goes on with what it had.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let entries = match value {
            Value::Null => return Ok(Self::NONE),
            Value::Array(entries) => entries,
            _ => return Err("managedFields must be a list".to_owned()),
        };
        let mut read: Vec<ManagedEntry> = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let entry = parse_entry(entry, index)?;
            match read.iter_mut().find(|other| other.is_same_manager(&entry)) {
                // The last of several of one manager stands.
                Some(other) => *other = entry,
                None => read.push(entry),
            }
        }
        Ok(Self::new(read))
    }

    /// Whether a client asks to forget all owners: an empty list, or one with an empty entry.
    pub fn is_reset(value: &Value) -> bool {
        match value {
            Value::Array(entries) => match entries.as_slice() {
                [] => true,
                [Value::Object(only)] => {
                    only.values().all(|value| value.is_null() || value.as_str().is_some_and(str::is_empty))
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// The JSON text of the list, as Kubernetes writes it.
    pub fn to_json(&self) -> String {
        let mut out = String::from("[");
        for (index, entry) in self.entries().iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            let quote = |text: &str| Value::from(text).to_string();
            let _ = write!(
                out,
                r#"{{"manager":{},"operation":"{}","apiVersion":{}"#,
                quote(&entry.manager),
                entry.operation.as_str(),
                quote(&entry.api_version)
            );
            if let Some(time) = entry.time {
                let _ = write!(out, r#","time":"{}""#, time.strftime(TIME));
            }
            out.push_str(r#","fieldsType":"FieldsV1","fieldsV1":"#);
            entry.fields.write(&mut out);
            if !entry.subresource.is_empty() {
                let _ = write!(out, r#","subresource":{}"#, quote(&entry.subresource));
            }
            out.push('}');
        }
        out.push(']');
        out
    }

    /// The list as a JSON value; null without entries.
    pub fn to_value(&self) -> Value {
        if self.is_empty() {
            return Value::Null;
        }
        self.entries()
            .iter()
            .map(|entry| {
                let mut object = serde_json::json!({
                    "manager": entry.manager.as_ref(), "operation": entry.operation.as_str(),
                    "apiVersion": entry.api_version.as_ref(), "fieldsType": "FieldsV1",
                    "fieldsV1": entry.fields.to_value(),
                });
                if let Some(time) = entry.time {
                    object["time"] = time.strftime(TIME).to_string().into();
                }
                if !entry.subresource.is_empty() {
                    object["subresource"] = entry.subresource.as_ref().into();
                }
                object
            })
            .collect()
    }

    /// With no more than [`MAX_UPDATERS`] updating managers: the oldest become one for each version.
    pub(super) fn capped(self) -> Self {
        let updaters = self.entries().iter().filter(|entry| entry.operation == Operation::Update).count();
        if updaters <= MAX_UPDATERS {
            return self;
        }
        let mut excess = updaters - MAX_UPDATERS;
        let (mut kept, mut updates): (Vec<_>, Vec<_>) =
            self.entries().iter().cloned().partition(|entry| entry.operation == Operation::Apply);
        updates.sort_by(|a, b| a.seconds().cmp(&b.seconds()).then_with(|| compare_identities(a, b)));
        // For each version the oldest stands until a second one is to be merged with it.
        let mut buckets: Vec<ManagedEntry> = Vec::new();
        for entry in updates {
            if excess == 0 {
                kept.push(entry);
                continue;
            }
            match buckets.iter_mut().find(|bucket| bucket.api_version == entry.api_version) {
                Some(bucket) => {
                    bucket.manager = ANCIENT.into();
                    bucket.subresource = "".into();
                    bucket.fields = bucket.fields.union(&entry.fields);
                    bucket.time = entry.time;
                    excess -= 1;
                }
                None => buckets.push(entry),
            }
        }
        kept.extend(buckets);
        Self::new(kept)
    }
}

fn compare_identities(a: &ManagedEntry, b: &ManagedEntry) -> Ordering {
    a.identity().cmp(&b.identity())
}

fn parse_entry(entry: &Value, index: usize) -> Result<ManagedEntry, String> {
    let text = |field: &str| -> Result<&str, String> {
        match entry.get(field) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(text)) => Ok(text),
            Some(_) => Err(format!("{field} must be a string in managed fields entry {index}")),
        }
    };
    let operation = match text("operation")? {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err("operation must be `Apply` or `Update`".to_owned()),
    };
    let api_version = text("apiVersion")?;
    if api_version.is_empty() {
        return Err("apiVersion must not be empty".to_owned());
    }
    match text("fieldsType")? {
        "FieldsV1" => {}
        "" => return Err(format!("missing fieldsType in managed fields entry {index}")),
        other => return Err(format!("invalid fieldsType {other:?} in managed fields entry {index}")),
    }
    let time = match text("time")? {
        "" => None,
        time => {
            Some(time.parse().map_err(|_| format!("{time:?} is no time in managed fields entry {index}"))?)
        }
    };
    Ok(ManagedEntry {
        manager: text("manager")?.into(),
        operation,
        api_version: api_version.into(),
        subresource: text("subresource")?.into(),
        time,
        fields: FieldSet::from_fields_v1(entry.get("fieldsV1").unwrap_or(&Value::Null))
            .map_err(|problem| format!("error decoding set: {problem}"))?,
    })
}
