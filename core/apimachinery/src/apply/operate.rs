//! What writes do to owners, and what an apply does to the object.

use std::borrow::Cow;
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::compare::{Comparison, compare};
use super::schema::ApplySchema;
use super::{
    ApplyError, Conflict, FieldSet, ManagedEntry, ManagedFields, Operation, extract, last_applied, merge,
};

/// Who writes.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// The version of the request, in which all objects of an operation are given.
    pub api_version: &'a str,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'a str,
    /// Now; `None` where the path of the API does not tell times.
    pub now: Option<Timestamp>,
}

/// The versions in which an object can be seen.
pub trait ApplyVersions {
    /// The types of a version; `None` for one that is not served, whose owners are forgotten.
    fn schema(&self, api_version: &str) -> Option<ApplySchema<'_>>;
    /// An object in another version; of versions that have a schema.
    fn convert(&self, object: &Value, api_version: &str) -> Value;
    /// Fields that this path of the API does not write: nobody comes to own them through it.
    fn ignored(&self) -> &FieldSet;
}

/// What an apply comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// The new state, without `metadata.managedFields`.
    pub object: Value,
    /// Its owners.
    pub managed: ManagedFields,
}

/// The manager of what an object had before anybody was tracked.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// What the server itself decides, and nobody owns.
static SERVERS: LazyLock<FieldSet> = LazyLock::new(|| {
    let fields = [
        "apiVersion",
        "kind",
        "metadata",
        "metadata.name",
        "metadata.namespace",
        "metadata.creationTimestamp",
        "metadata.selfLink",
        "metadata.uid",
        "metadata.clusterName",
        "metadata.generation",
        "metadata.managedFields",
        "metadata.resourceVersion",
    ];
    fields.into_iter().map(FieldSet::of_fields).fold(FieldSet::default(), |all, one| all.union(&one))
});

fn in_version<'v>(versions: &dyn ApplyVersions, object: &'v Value, from: &str, to: &str) -> Cow<'v, Value> {
    if from == to { Cow::Borrowed(object) } else { Cow::Owned(versions.convert(object, to)) }
}

impl ManagedFields {
    /// The owners after any write but an apply: whoever changes a field owns it alone, and what is gone has no owner.
    ///
    /// `old` is `None` for a new object. An object that nobody tracks stays so. Objects have no `metadata.managedFields`.
    #[must_use]
    pub fn update(
        &self,
        old: Option<&Value>,
        new: &Value,
        writer: &Writer<'_>,
        versions: &dyn ApplyVersions,
    ) -> Self {
        if self.is_empty() && old.is_some() {
            return self.clone();
        }
        let none = Value::Object(Map::new());
        self.update_tracked(old.unwrap_or(&none), new, writer, versions).capped()
    }

    fn update_tracked(
        &self,
        old: &Value,
        new: &Value,
        writer: &Writer<'_>,
        versions: &dyn ApplyVersions,
    ) -> Self {
        let Some(schema) = versions.schema(writer.api_version) else { return self.clone() };
        let compared = compare(schema, old, new).without(versions.ignored());
        if compared.is_same() {
            return self.clone();
        }
        let mut entries = Vec::with_capacity(self.entries().len() + 1);
        let mut others = Others::new(writer, &compared, old, new, versions);
        for entry in self.entries() {
            let Some(changes) = others.comparison(&entry.api_version) else { continue };
            let fields = entry
                .fields
                .difference(&changes.modified)
                .difference(&changes.added)
                .difference(&changes.removed);
            entries.push(ManagedEntry { fields, ..entry.clone() });
        }
        let own = compared.modified.union(&compared.added).difference(&SERVERS);
        if !own.is_empty() {
            let own = ManagedEntry {
                manager: if writer.manager.is_empty() { "unknown" } else { writer.manager }.into(),
                operation: Operation::Update,
                api_version: writer.api_version.into(),
                subresource: writer.subresource.into(),
                time: writer.now,
                fields: own,
            };
            match entries.iter_mut().find(|entry| entry.is_same_manager(&own)) {
                Some(entry) => {
                    entry.fields = entry.fields.union(&own.fields);
                    entry.time = own.time.or(entry.time);
                }
                None => entries.push(own),
            }
        }
        Self::new(entries)
    }

    /// What an apply of `config` makes of `live` and its owners. For an object that is to be created, `live` has nothing but
    /// `apiVersion` and `kind`. Neither has `metadata.managedFields`.
    ///
    /// What the manager applied before and does not apply now is removed, unless somebody else owns it. A change of a field that
    /// somebody else owns is a conflict; with `force` it is taken from them.
    pub fn apply(
        &self,
        live: &Value,
        config: &Value,
        writer: &Writer<'_>,
        force: bool,
        versions: &dyn ApplyVersions,
    ) -> Result<Applied, ApplyError> {
        let Some(schema) = versions.schema(writer.api_version) else {
            return Ok(Applied { object: live.clone(), managed: self.clone() });
        };
        let faults = extract::faults(schema, config);
        if !faults.is_empty() {
            return Err(ApplyError::Malformed(faults));
        }
        let tracked = if self.is_empty() {
            let before = Writer { manager: BEFORE_FIRST_APPLY, ..*writer };
            let mut none = Map::new();
            for field in ["apiVersion", "kind"] {
                none.extend(live.get(field).map(|value| (field.to_owned(), value.clone())));
            }
            self.update_tracked(&Value::Object(none), live, &before, versions)
        } else {
            self.clone()
        };
        let attempt = |force| tracked.apply_tracked(schema, live, config, writer, force, versions);
        let mut applied = match attempt(force) {
            // Whoever used `kubectl apply` owns what it applied, until kubectl applies on the server.
            Err(ApplyError::Conflicts(conflicts)) if writer.manager == last_applied::MANAGER => {
                let own = last_applied::unchanged_fields(schema, live, writer.api_version);
                let foreign: Vec<Conflict> =
                    conflicts.into_iter().filter(|conflict| !own.contains(&conflict.path)).collect();
                if foreign.is_empty() { attempt(true) } else { Err(ApplyError::Conflicts(foreign)) }
            }
            result => result,
        }?;
        if writer.manager == last_applied::MANAGER {
            last_applied::follow(&mut applied.object, config);
        }
        Ok(applied)
    }

    fn apply_tracked(
        &self,
        schema: ApplySchema<'_>,
        live: &Value,
        config: &Value,
        writer: &Writer<'_>,
        force: bool,
        versions: &dyn ApplyVersions,
    ) -> Result<Applied, ApplyError> {
        let merged = merge::merge(schema, live, config);
        let mut own = ManagedEntry {
            manager: writer.manager.into(),
            operation: Operation::Apply,
            api_version: writer.api_version.into(),
            subresource: writer.subresource.into(),
            time: None,
            fields: extract::field_set(schema, config).recursive_difference(versions.ignored()),
        };
        let (last, others): (Vec<&ManagedEntry>, Vec<&ManagedEntry>) =
            self.entries().iter().partition(|entry| entry.is_same_manager(&own));
        let last = last.first().copied();
        own.time = last.and_then(|last| last.time);
        let object = match last {
            Some(last) if !last.fields.is_empty() => {
                let claims: Vec<&ManagedEntry> = others.iter().copied().chain([&own]).collect();
                prune(merged, last, &claims, writer, versions)
            }
            _ => merged,
        };

        let compared = compare(schema, live, &object).without(versions.ignored());
        let mut entries = Vec::with_capacity(others.len() + 1);
        let mut conflicts = Vec::new();
        let mut changes = Others::new(writer, &compared, live, &object, versions);
        for entry in others {
            let Some(changes) = changes.comparison(&entry.api_version) else { continue };
            let contested = entry.fields.intersection(&changes.modified.union(&changes.added));
            conflicts.extend(contested.members().into_iter().map(|path| Conflict::with(entry, path)));
            let fields = entry.fields.difference(&contested).difference(&changes.removed);
            entries.push(ManagedEntry { fields, ..entry.clone() });
        }
        if !force && !conflicts.is_empty() {
            return Err(ApplyError::Conflicts(conflicts));
        }
        if object != *live {
            own.time = writer.now.or(own.time);
        }
        own.fields = own.fields.difference(&SERVERS);
        entries.push(own);
        Ok(Applied { object, managed: Self::new(entries) })
    }
}

/// What changed, in the version of each owner. A comparison is made once for each version.
struct Others<'a> {
    writer: &'a Writer<'a>,
    own: &'a Comparison,
    old: &'a Value,
    new: &'a Value,
    versions: &'a dyn ApplyVersions,
    made: Vec<(String, Option<Comparison>)>,
}

impl<'a> Others<'a> {
    fn new(
        writer: &'a Writer<'a>,
        own: &'a Comparison,
        old: &'a Value,
        new: &'a Value,
        versions: &'a dyn ApplyVersions,
    ) -> Self {
        Self { writer, own, old, new, versions, made: Vec::new() }
    }

    /// `None` for a version that is not served.
    fn comparison(&mut self, api_version: &str) -> Option<&Comparison> {
        if api_version == self.writer.api_version {
            return Some(self.own);
        }
        let at = match self.made.iter().position(|(version, _)| version == api_version) {
            Some(at) => at,
            None => {
                let compared = self.versions.schema(api_version).map(|schema| {
                    let view =
                        |object| in_version(self.versions, object, self.writer.api_version, api_version);
                    compare(schema, &view(self.old), &view(self.new)).without(self.versions.ignored())
                });
                self.made.push((api_version.to_owned(), compared));
                self.made.len() - 1
            }
        };
        self.made[at].1.as_ref()
    }
}

/// Removes what `last` owned, unless one of `claims` does: all others and what the manager applies now.
fn prune(
    merged: Value,
    last: &ManagedEntry,
    claims: &[&ManagedEntry],
    writer: &Writer<'_>,
    versions: &dyn ApplyVersions,
) -> Value {
    let Some(schema) = versions.schema(&last.api_version) else { return merged };
    let converted = in_version(versions, &merged, writer.api_version, &last.api_version).into_owned();
    let last_fields = last.fields.with_named_fields(Some(schema));
    let mut pruned = merge::remove(schema, &converted, &last_fields);
    // In each version, what that version's owners claim comes back; first in the one that the pruned object has.
    let mut api_versions: Vec<&str> = claims.iter().map(|claim| claim.api_version.as_ref()).collect();
    api_versions.sort_unstable_by_key(|version| (*version != last.api_version.as_ref(), *version));
    api_versions.dedup();
    let mut current: &str = &last.api_version;
    for api_version in api_versions {
        let Some(schema) = versions.schema(api_version) else { continue };
        let whole = in_version(versions, &converted, &last.api_version, api_version);
        let part = in_version(versions, &pruned, current, api_version);
        let claimed = claims
            .iter()
            .filter(|claim| claim.api_version.as_ref() == api_version)
            .fold(FieldSet::default(), |all, claim| all.union(&claim.fields));
        let named = |set: FieldSet| set.with_named_fields(Some(schema));
        let kept = named(extract::field_set(schema, &part)).union(&named(claimed));
        let gone = named(extract::field_set(schema, &whole)).difference(&kept);
        pruned = merge::remove(schema, &whole, &gone);
        current = api_version;
    }
    // What nobody owned was not the manager's to remove.
    let part = in_version(versions, &pruned, current, &last.api_version);
    let named = |set: FieldSet| set.with_named_fields(Some(schema));
    let gone = named(extract::field_set(schema, &converted))
        .difference(&named(extract::field_set(schema, &part)))
        .intersection(&last_fields);
    let rest = merge::remove(schema, &converted, &gone);
    in_version(versions, &rest, &last.api_version, writer.api_version).into_owned()
}
