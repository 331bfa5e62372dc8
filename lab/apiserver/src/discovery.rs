//! What the server tells clients about itself: groups, versions, resources and its own version.

use http::Response;
use serde_json::{Value, json};

use crate::Status;
use crate::http::{Accept, Body, full, json_response, response};
use crate::registry::{GroupVersion, Resource, Served, Subresource};
use crate::store::to_bytes;

/// The aggregated form in which a client wants groups; older kubectl know only the older one.
#[derive(Clone, Copy)]
enum Aggregated {
    V2,
    V2Beta1,
}

impl Aggregated {
    fn wanted(accept: &Accept) -> Option<Self> {
        accept
            .0
            .iter()
            .map(|range| {
                let aggregated = range.parameter("g") == "apidiscovery.k8s.io"
                    && range.parameter("as") == "APIGroupDiscoveryList";
                match range.parameter("v") {
                    "v2" if aggregated => Some(Some(Self::V2)),
                    "v2beta1" if aggregated => Some(Some(Self::V2Beta1)),
                    "" if range.is_json() && range.parameter("as").is_empty() => Some(None),
                    _ => None,
                }
            })
            .find_map(|understood| understood)
            .flatten()
    }

    fn answer(self, groups: &[Value]) -> Response<Body> {
        let (version, content_type) = match self {
            Self::V2 => ("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
            Self::V2Beta1 => {
                ("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList")
            }
        };
        let list = json!({
            "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"),
            "metadata": {}, "items": groups,
        });
        response(200, content_type, full(to_bytes(&list)))
    }
}

/// `/api`
pub(crate) fn core_versions(served: &Served, accept: &Accept) -> Response<Body> {
    if let Some(form) = Aggregated::wanted(accept) {
        return form.answer(&[group_discovery("", served)]);
    }
    json_answer(&json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [],
    }))
}

/// `/apis`
pub(crate) fn groups(served: &Served, accept: &Accept) -> Response<Body> {
    let names = served.groups.keys().filter(|group| !group.is_empty());
    if let Some(form) = Aggregated::wanted(accept) {
        let groups: Vec<Value> = names.map(|group| group_discovery(group, served)).collect();
        return form.answer(&groups);
    }
    let groups: Vec<Value> = names.filter_map(|group| api_group(group, served)).collect();
    json_answer(&json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
}

/// `/apis/GROUP`
pub(crate) fn group(served: &Served, name: &str) -> Result<Response<Body>, Status> {
    let mut group = api_group(name, served).ok_or_else(Status::unknown_path)?;
    group["kind"] = "APIGroup".into();
    group["apiVersion"] = "v1".into();
    Ok(json_answer(&group))
}

/// `/api/v1`, `/apis/GROUP/VERSION`
pub(crate) fn resources(served: &Served, group: &str, version: &str) -> Result<Response<Body>, Status> {
    let resources = find(served, group, version).ok_or_else(Status::unknown_path)?;
    let mut list = Vec::new();
    for resource in resources.values() {
        list.push(api_resource(resource));
        list.extend(resource.subresources.iter().map(|subresource| api_subresource(resource, subresource)));
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(json_answer(&json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list,
    })))
}

/// `/version`, for a version such as `v1.34.0+gantry`.
pub(crate) fn version(git_version: &str) -> Response<Body> {
    let mut numbers = git_version.trim_start_matches('v').split('.');
    json_answer(&json!({
        "major": numbers.next().unwrap_or_default(), "minor": numbers.next().unwrap_or_default(),
        "gitVersion": git_version, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, go_architecture()),
    }))
}

fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn json_answer(value: &Value) -> Response<Body> {
    json_response(200, to_bytes(value))
}

fn find<'a>(served: &'a Served, group: &str, version: &str) -> Option<&'a GroupVersion> {
    served.groups.get(group)?.iter().find(|(v, _)| v == version).map(|(_, resources)| resources)
}

fn api_group(name: &str, served: &Served) -> Option<Value> {
    let versions: Vec<Value> = served
        .groups
        .get(name)?
        .iter()
        .map(|(version, _)| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    Some(json!({"name": name, "versions": versions, "preferredVersion": versions.first()}))
}

fn api_resource(resource: &Resource) -> Value {
    let mut out = json!({
        "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
        "kind": resource.kind, "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        out["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        out["categories"] = json!(resource.categories);
    }
    out
}

fn api_subresource(resource: &Resource, subresource: &Subresource) -> Value {
    let mut out = json!({
        "name": format!("{}/{}", resource.plural, subresource.name()), "singularName": "",
        "namespaced": resource.namespaced, "kind": resource.kind, "verbs": subresource.verbs(),
    });
    if let Some((group, version, kind)) = subresource.body() {
        out["kind"] = kind.into();
        out["group"] = group.into();
        out["version"] = version.into();
    }
    out
}

fn group_discovery(name: &str, served: &Served) -> Value {
    let versions: Vec<Value> = served
        .groups
        .get(name)
        .into_iter()
        .flatten()
        .map(|(version, resources)| {
            let resources: Vec<Value> = resources.values().map(|r| resource_discovery(r)).collect();
            json!({"version": version, "freshness": "Current", "resources": resources})
        })
        .collect();
    let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
    json!({"metadata": metadata, "versions": versions})
}

fn resource_discovery(resource: &Resource) -> Value {
    let response_kind =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let own_kind = response_kind(&resource.group, &resource.version, &resource.kind);
    let mut out = json!({
        "resource": resource.plural, "responseKind": own_kind, "singularResource": resource.singular,
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" }, "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        out["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        out["categories"] = json!(resource.categories);
    }
    if !resource.subresources.is_empty() {
        let subresources: Vec<Value> = resource
            .subresources
            .iter()
            .map(|subresource| {
                let kind = subresource.body().map_or_else(
                    || own_kind.clone(),
                    |(group, version, kind)| response_kind(group, version, kind),
                );
                json!({"subresource": subresource.name(), "responseKind": kind, "verbs": subresource.verbs()})
            })
            .collect();
        out["subresources"] = json!(subresources);
    }
    out
}
