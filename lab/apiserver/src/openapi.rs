//! OpenAPI v3: by it kubectl explains fields, and learns that the server validates.

use gantry_kubetypes::{Types, document};
use http::Response;
use serde_json::{Map, Value, json};

use crate::Status;
use crate::http::{Body, json_response};
use crate::json::map_at;
use crate::registry::{Resource, Served};
use crate::store::to_bytes;

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const JSON: &str = "application/json";

/// `/openapi/v3`: which documents there are. The hash changes whenever one of them may have.
pub(crate) fn index(served: &Served) -> Response<Body> {
    let mut paths = Map::new();
    for (group, versions) in &served.groups {
        for (version, _) in versions {
            let path =
                if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            let url = format!("/openapi/v3/{path}?hash={}", served.edition);
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json_response(200, to_bytes(&json!({"paths": paths})))
}

/// `/openapi/v3/apis/GROUP/VERSION`
pub(crate) fn group_version(served: &Served, group: &str, version: &str) -> Result<Response<Body>, Status> {
    let versions = served.groups.get(group).ok_or_else(Status::unknown_path)?;
    let (_, resources) = versions.iter().find(|(v, _)| v == version).ok_or_else(Status::unknown_path)?;
    let mut document = document(Types::builtin(), group, version).unwrap_or_else(|| {
        json!({"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": ""}, "paths": {}, "components": {"schemas": {}}})
    });
    for resource in resources.values().filter(|resource| resource.custom.is_some()) {
        add_custom(&mut document, resource);
    }
    Ok(json_response(200, to_bytes(&document)))
}

/// Adds a custom resource: its schemas, and the operations with the parameters that clients look for.
fn add_custom(document: &mut Value, resource: &Resource) {
    let Some(custom) = &resource.custom else { return };
    let reversed: Vec<&str> = resource.group.rsplit('.').collect();
    let name = format!("{}.{}.{}", reversed.join("."), resource.version, resource.kind);
    let list_name = format!("{name}List");
    let gvk = |kind: &str| json!([{"group": resource.group, "version": resource.version, "kind": kind}]);
    let reference = |name: &str| json!({"$ref": format!("#/components/schemas/{name}")});

    let mut schema = custom.openapi();
    let text = |description: &str| json!({"type": "string", "description": description});
    let properties = map_at(&mut schema, &["properties"]);
    properties.insert(
        "apiVersion".into(),
        text("APIVersion defines the versioned schema of this representation of an object."),
    );
    properties.insert(
        "kind".into(),
        text("Kind is a string value representing the REST resource this object represents."),
    );
    properties.insert(
        "metadata".into(),
        json!({"allOf": [reference(OBJECT_META)], "default": {}, "description": "Standard object's metadata."}),
    );
    let root = map_at(&mut schema, &[]);
    root.insert("type".into(), "object".into());
    root.insert("x-kubernetes-group-version-kind".into(), gvk(&resource.kind));
    let list = json!({
        "type": "object", "required": ["items"],
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"},
            "items": {"type": "array", "items": reference(&name)},
            "metadata": {"allOf": [reference(LIST_META)]},
        },
        "x-kubernetes-group-version-kind": gvk(&resource.list_kind),
    });
    let mut schemas = Map::from_iter([(name.clone(), schema), (list_name.clone(), list)]);
    // Every built-in document carries the metadata's schema and what that refers to.
    let meta = gantry_kubetypes::document(Types::builtin(), "coordination.k8s.io", "v1").unwrap_or_default();
    for (key, value) in meta["components"]["schemas"].as_object().into_iter().flatten() {
        if key.starts_with("io.k8s.apimachinery.pkg.apis.meta.v1.") {
            schemas.insert(key.clone(), value.clone());
        }
    }
    map_at(document, &["components", "schemas"]).extend(schemas);

    let scope = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
    let base = format!("/apis/{}/{}/{scope}{}", resource.group, resource.version, resource.plural);
    let content = |schema: Value| json!({JSON: {"schema": schema}});
    let own_gvk = json!({"group": resource.group, "version": resource.version, "kind": resource.kind});
    let operation = |action: &str, answer: &str, parameters: &[&str]| {
        let parameters: Vec<Value> = parameters
            .iter()
            .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}}))
            .collect();
        json!({
            "parameters": parameters,
            "responses": {"200": {"description": "OK", "content": content(reference(answer))}},
            "x-kubernetes-action": action, "x-kubernetes-group-version-kind": own_gvk,
        })
    };
    let write = ["dryRun", "fieldManager", "fieldValidation"];
    let body = json!({"content": content(reference(&name)), "required": true});
    let mut post = operation("post", &name, &write);
    post["requestBody"] = body.clone();
    let mut put = operation("put", &name, &write);
    put["requestBody"] = body;
    let patch = operation("patch", &name, &["dryRun", "fieldManager", "fieldValidation", "force"]);
    let paths = map_at(document, &["paths"]);
    paths.insert(
        base.clone(),
        json!({"get": operation("list", &list_name, &["labelSelector", "limit"]), "post": post}),
    );
    paths.insert(
        format!("{base}/{{name}}"),
        json!({"get": operation("get", &name, &[]), "put": put, "patch": patch, "delete": operation("delete", &name, &["dryRun"])}),
    );
}
