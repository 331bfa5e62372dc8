//! What is served: one [`Resource`] for each resource in each version, built in or defined at run time.

mod builtin;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use crate::hooks::Hooks;
use crate::store::ResourceId;
use crate::user::Review;

pub(crate) use builtin::builtin;

/// The verbs of an ordinary resource.
pub(crate) const STANDARD: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// A path below an object's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subresource {
    Status,
    /// Where the replica numbers are within the object.
    Scale(ScalePaths),
    /// Approval of a certificate signing request: a status of its own path.
    Approval,
    Finalize,
    Binding,
    Eviction,
    Token,
    Log,
    Exec,
    Attach,
    PortForward,
}

/// Dotted paths such as `spec.replicas`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScalePaths {
    pub(crate) spec_replicas: String,
    pub(crate) status_replicas: String,
    /// A label selector object or the text of one.
    pub(crate) selector: Option<String>,
}

impl Subresource {
    /// The path segment.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale(_) => "scale",
            Self::Approval => "approval",
            Self::Finalize => "finalize",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Token => "token",
            Self::Log => "log",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }

    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        match self {
            Self::Status | Self::Scale(_) | Self::Approval => &["get", "patch", "update"],
            Self::Finalize => &["update"],
            Self::Binding | Self::Eviction | Self::Token => &["create"],
            Self::Log => &["get"],
            Self::Exec | Self::Attach | Self::PortForward => &["create", "get"],
        }
    }

    /// Group, version and kind of the body, where it is not the resource's own.
    pub(crate) fn body(&self) -> Option<(&'static str, &'static str, &'static str)> {
        match self {
            Self::Status | Self::Approval | Self::Finalize | Self::Log => None,
            Self::Scale(_) => Some(("autoscaling", "v1", "Scale")),
            Self::Binding => Some(("", "v1", "Binding")),
            Self::Eviction => Some(("policy", "v1", "Eviction")),
            Self::Token => Some(("authentication.k8s.io", "v1", "TokenRequest")),
            Self::Exec => Some(("", "v1", "PodExecOptions")),
            Self::Attach => Some(("", "v1", "PodAttachOptions")),
            Self::PortForward => Some(("", "v1", "PodPortForwardOptions")),
        }
    }
}

/// How a version that is not stored differs from the one that is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conversion {
    pub(crate) to_storage: fn(&mut Value),
    pub(crate) from_storage: fn(&mut Value),
}

impl Conversion {
    /// Only `apiVersion` differs.
    pub(crate) const NONE: Self = Self { to_storage: |_| {}, from_storage: |_| {} };
}

/// What a request to the resource's path does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Objects in the store.
    Stored,
    /// A question that is answered at once and not kept.
    Review(Review),
    /// The old way to bind a pod: `bindings`.
    Binding,
}

/// One resource in one version.
#[derive(Debug)]
pub(crate) struct Resource {
    /// Shared by all versions and by groups that show the same objects.
    pub(crate) id: ResourceId,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    pub(crate) short_names: Vec<String>,
    pub(crate) categories: Vec<String>,
    pub(crate) namespaced: bool,
    pub(crate) verbs: &'static [&'static str],
    pub(crate) subresources: Vec<Subresource>,
    /// `apiVersion` of the stored form.
    pub(crate) storage_api_version: String,
    pub(crate) conversion: Conversion,
    pub(crate) behaviour: Behaviour,
    pub(crate) hooks: Hooks,
    /// What field selectors may name beside `metadata.name` and `metadata.namespace`.
    pub(crate) selectable: Vec<String>,
    pub(crate) custom: Option<Arc<crate::crd::CustomVersion>>,
}

impl Resource {
    /// `v1` or `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The group of the stored form; empty for the core group.
    pub(crate) fn storage_group(&self) -> &str {
        self.storage_api_version.split_once('/').map_or("", |(group, _)| group)
    }

    pub(crate) fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name() == name)
    }

    pub(crate) fn selects_by(&self, field: &str) -> bool {
        self.selectable.iter().any(|selectable| selectable == field)
    }

    pub(crate) fn has_status(&self) -> bool {
        self.subresources.contains(&Subresource::Status)
    }

    /// Whether requests see the objects exactly as they are stored.
    pub(crate) fn is_storage_version(&self) -> bool {
        self.storage_api_version == self.api_version()
    }

    pub(crate) fn to_storage(&self, object: &mut Value) {
        if !self.is_storage_version() {
            (self.conversion.to_storage)(object);
        }
        object["apiVersion"] = Value::from(self.storage_api_version.as_str());
        object["kind"] = Value::from(self.kind.as_str());
    }

    pub(crate) fn to_served(&self, object: &mut Value) {
        if !self.is_storage_version() {
            (self.conversion.from_storage)(object);
            object["apiVersion"] = Value::from(self.api_version());
        }
    }
}

/// The resources of one group and version, by plural name.
pub(crate) type GroupVersion = BTreeMap<String, Arc<Resource>>;

/// Everything that is served at one moment: group, then version in order of preference, then plural.
#[derive(Debug, Clone, Default)]
pub(crate) struct Served {
    pub(crate) groups: BTreeMap<String, Vec<(String, GroupVersion)>>,
    /// Grows with every change; tells caches of discovery and OpenAPI apart.
    pub(crate) edition: u64,
}

impl Served {
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        let (_, resources) = self.groups.get(group)?.iter().find(|(v, _)| v == version)?;
        resources.get(plural)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.groups.values().flatten().flat_map(|(_, resources)| resources.values())
    }

    /// The resource by which objects of this kind are served; for owner references.
    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let (_, resources) = self.groups.get(group)?.iter().find(|(v, _)| v == version)?;
        resources.values().find(|resource| resource.kind == kind && resource.behaviour == Behaviour::Stored)
    }

    /// Every stored resource once, in its storage version, in the order of its id.
    pub(crate) fn stored(&self) -> Vec<Arc<Resource>> {
        let mut found: BTreeMap<&ResourceId, &Arc<Resource>> = BTreeMap::new();
        for resource in self.all() {
            if resource.behaviour == Behaviour::Stored && resource.is_storage_version() {
                found.insert(&resource.id, resource);
            }
        }
        found.into_values().cloned().collect()
    }

    fn insert(&mut self, resource: Resource) {
        let versions = self.groups.entry(resource.group.clone()).or_default();
        if !versions.iter().any(|(version, _)| *version == resource.version) {
            versions.push((resource.version.clone(), GroupVersion::new()));
            versions.sort_by_key(|(version, _)| std::cmp::Reverse(version_rank(version)));
        }
        if let Some((_, resources)) = versions.iter_mut().find(|(version, _)| *version == resource.version) {
            resources.insert(resource.plural.clone(), Arc::new(resource));
        }
    }

    fn remove(&mut self, id: &ResourceId) {
        for versions in self.groups.values_mut() {
            for (_, resources) in versions.iter_mut() {
                resources.retain(|_, resource| resource.id != *id);
            }
            versions.retain(|(_, resources)| !resources.is_empty());
        }
        self.groups.retain(|_, versions| !versions.is_empty());
    }
}

/// Kubernetes' order of versions: stable before beta before alpha, higher numbers first, others last by name.
fn version_rank(version: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let other = (0, 0, 0, std::cmp::Reverse(version.to_owned()));
    let Some(rest) = version.strip_prefix('v') else { return other };
    let split = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let Ok(major) = rest[..split].parse() else { return other };
    let none = std::cmp::Reverse(String::new());
    let stage = &rest[split..];
    if stage.is_empty() {
        (3, major, 0, none)
    } else if let Some(minor) = stage.strip_prefix("beta").and_then(|n| n.parse().ok()) {
        (2, major, minor, none)
    } else if let Some(minor) = stage.strip_prefix("alpha").and_then(|n| n.parse().ok()) {
        (1, major, minor, none)
    } else {
        other
    }
}

/// The resources that are served now; changes replace the whole.
pub(crate) struct Registry(RwLock<Arc<Served>>);

impl Registry {
    pub(crate) fn new() -> Self {
        let mut served = Served::default();
        for resource in builtin() {
            served.insert(resource);
        }
        Self(RwLock::new(Arc::new(served)))
    }

    pub(crate) fn served(&self) -> Arc<Served> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes `resources` the only ones with this id; an empty list withdraws it.
    pub(crate) fn replace(&self, id: &ResourceId, resources: Vec<Resource>) {
        let mut guard = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut served = (**guard).clone();
        served.remove(id);
        for resource in resources {
            served.insert(resource);
        }
        served.edition += 1;
        *guard = Arc::new(served);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_stability_then_number() {
        let mut versions = ["v1alpha1", "foo", "v2", "v1beta2", "v10", "v1", "v1beta10", "bar"];
        versions.sort_by_key(|version| std::cmp::Reverse(version_rank(version)));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "bar", "foo"]);
    }

    #[test]
    fn every_row_of_the_table_is_reachable_and_names_are_unique() {
        let served = Registry::new().served();
        assert_eq!(served.all().count(), builtin().len());
        for resource in served.stored() {
            assert_eq!(resource.storage_api_version, resource.api_version());
        }
    }
}
