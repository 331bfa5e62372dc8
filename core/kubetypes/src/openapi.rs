//! OpenAPI v3 documents of the built-in group-versions, in the shape that kubectl reads.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::{Field, Kind, Leaf, ListType, Scalar, Shape, Type, TypeId, Types};

const REF: &str = "#/components/schemas/";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The OpenAPI v3 document of a group (empty for core) and version; none when the tables have no kind of it.
///
/// `components.schemas` has every type that the kinds reach; `paths` has, for each resource, the operations on one object, with the query
/// parameters by which kubectl learns what the server supports.
pub fn document(types: &Types, group: &str, version: &str) -> Option<Value> {
    let kinds: Vec<&Kind> =
        types.kinds().iter().filter(|kind| kind.group == group && kind.version == version).collect();
    if kinds.is_empty() {
        return None;
    }
    let by_type: BTreeMap<TypeId, &Kind> = kinds.iter().map(|kind| (kind.type_id, *kind)).collect();
    let mut schemas = Map::new();
    let mut seen = BTreeSet::new();
    let options = types.kind("meta.k8s.io", "v1", "DeleteOptions").map(|kind| kind.type_id);
    let mut pending: Vec<TypeId> = by_type.keys().copied().chain(options).collect();
    while let Some(id) = pending.pop() {
        if !seen.insert(id) {
            continue;
        }
        let of = types.type_of(id);
        for field in types.json_fields(of) {
            match field.shape.leaf() {
                Leaf::Message(inner) => pending.push(inner),
                Leaf::Scalar(scalar) => {
                    if let Some((name, schema)) = named_scalar(scalar) {
                        schemas.entry(name).or_insert(schema);
                    }
                    if matches!(
                        scalar,
                        Scalar::SchemaOrArray | Scalar::SchemaOrBool | Scalar::SchemaOrStrings
                    ) {
                        pending.extend(types.id("apiextensions.v1.JSONSchemaProps"));
                    }
                }
            }
        }
        let mut schema = type_schema(types, of);
        if let (Some(kind), Value::Object(schema)) = (by_type.get(&id), &mut schema) {
            schema.insert("x-kubernetes-group-version-kind".to_owned(), json!([gvk(kind)]));
        }
        schemas.insert(types.openapi_name(of), schema);
    }
    let mut paths = Map::new();
    for kind in &kinds {
        if let Some((path, item)) = path(kind) {
            paths.insert(path, item);
        }
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

fn gvk(kind: &Kind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

fn path(kind: &Kind) -> Option<(String, Value)> {
    let (plural, namespaced) = kind.resource?;
    let root = if kind.group.is_empty() { "api" } else { "apis" };
    let scope = if namespaced { "namespaces/{namespace}/" } else { "" };
    let parameter = |name: &str, place: &str| {
        let mut parameter =
            json!({"name": name, "in": place, "schema": {"type": "string", "uniqueItems": true}});
        if place == "path" {
            parameter["required"] = true.into();
        }
        parameter
    };
    let query =
        |names: &[&str]| -> Vec<Value> { names.iter().map(|name| parameter(name, "query")).collect() };
    let operation = |action: &str, names: &[&str]| {
        json!({
            "parameters": query(names),
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk(kind),
        })
    };
    let places: Vec<Value> = ["name"]
        .into_iter()
        .chain(namespaced.then_some("namespace"))
        .map(|name| parameter(name, "path"))
        .collect();
    let item = json!({
        "parameters": places,
        "get": operation("get", &[]),
        "put": operation("put", &["dryRun", "fieldManager", "fieldValidation"]),
        "patch": operation("patch", &["dryRun", "fieldManager", "fieldValidation", "force"]),
        "delete": operation("delete", &["dryRun", "gracePeriodSeconds", "propagationPolicy"]),
    });
    Some((format!("/{root}/{}/{scope}{plural}/{{name}}", kind.api_version()), item))
}

fn type_schema(types: &Types, of: &Type) -> Value {
    if let (true, Some(only)) = (of.unwrap, of.fields.first()) {
        return Value::Object(field_schema(types, only));
    }
    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    let properties: Map<String, Value> = types
        .json_fields(of)
        .map(|field| (field.name.to_owned(), Value::Object(field_schema(types, field))))
        .collect();
    let required: Vec<&str> =
        types.json_fields(of).filter(|field| field.required).map(|field| field.name).collect();
    if let Some(words) = of.description {
        schema.insert("description".to_owned(), words.into());
    }
    if !properties.is_empty() {
        schema.insert("properties".to_owned(), Value::Object(properties));
    }
    if !required.is_empty() {
        schema.insert("required".to_owned(), json!(required));
    }
    if of.atomic {
        schema.insert("x-kubernetes-map-type".to_owned(), "atomic".into());
    }
    Value::Object(schema)
}

fn field_schema(types: &Types, field: &Field) -> Map<String, Value> {
    let mut leaf = leaf_schema(types, field.shape.leaf());
    if !field.enum_values.is_empty() {
        leaf.insert("enum".to_owned(), json!(field.enum_values));
    }
    let mut schema = match field.shape {
        Shape::One(_) => leaf,
        Shape::List(_) => {
            Map::from_iter([("type".to_owned(), "array".into()), ("items".to_owned(), leaf.into())])
        }
        Shape::Map(_) => Map::from_iter([
            ("type".to_owned(), "object".into()),
            ("additionalProperties".to_owned(), leaf.into()),
        ]),
    };
    let mut put = |name: &str, value: Value| {
        schema.insert(name.to_owned(), value);
    };
    if let Some(words) = field.description {
        put("description", words.into());
    }
    if let Some(default) = field.default.and_then(|text| serde_json::from_str(text).ok()) {
        put("default", default);
    }
    let strategy: Vec<&str> = [(field.patch.merge, "merge"), (field.patch.retain_keys, "retainKeys")]
        .into_iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| name)
        .collect();
    if !strategy.is_empty() {
        put("x-kubernetes-patch-strategy", strategy.join(",").into());
    }
    if let Some(key) = field.merge_key {
        put("x-kubernetes-patch-merge-key", key.into());
    }
    match &field.list_type {
        ListType::Unset => {}
        ListType::Atomic => put("x-kubernetes-list-type", "atomic".into()),
        ListType::Set => put("x-kubernetes-list-type", "set".into()),
        ListType::Map(keys) => {
            put("x-kubernetes-list-type", "map".into());
            put("x-kubernetes-list-map-keys", json!(keys));
        }
    }
    if field.atomic {
        put("x-kubernetes-map-type", "atomic".into());
    }
    schema
}

/// A reference stands inside `allOf`, so that words may stand beside it.
fn reference(name: &str) -> Map<String, Value> {
    Map::from_iter([("allOf".to_owned(), json!([{ "$ref": format!("{REF}{name}") }]))])
}

fn leaf_schema(types: &Types, leaf: Leaf) -> Map<String, Value> {
    let scalar = match leaf {
        Leaf::Message(id) => return reference(&types.openapi_name(types.type_of(id))),
        Leaf::Scalar(scalar) => scalar,
    };
    if let Some((name, _)) = named_scalar(scalar) {
        return reference(&name);
    }
    let (kind, format) = match scalar {
        Scalar::Int32 => ("integer", "int32"),
        Scalar::Int64 => ("integer", "int64"),
        Scalar::Double => ("number", "double"),
        Scalar::Bool => ("boolean", ""),
        Scalar::Bytes => ("string", "byte"),
        _ => ("string", ""),
    };
    let mut schema = Map::from_iter([("type".to_owned(), kind.into())]);
    if !format.is_empty() {
        schema.insert("format".to_owned(), format.into());
    }
    schema
}

/// The schemas of scalars that have a name of their own.
fn named_scalar(scalar: Scalar) -> Option<(String, Value)> {
    let extensions = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";
    let time = json!({"type": "string", "format": "date-time"});
    Some(match scalar {
        Scalar::Quantity => (
            "io.k8s.apimachinery.pkg.api.resource.Quantity".to_owned(),
            json!({"description": "An exact number with a unit, such as 500m, 2 or 1Gi.", "oneOf": [{"type": "string"}, {"type": "number"}]}),
        ),
        Scalar::IntOrString => (
            "io.k8s.apimachinery.pkg.util.intstr.IntOrString".to_owned(),
            json!({"description": "An integer, or text such as a port's name or 25%.", "format": "int-or-string",
                "oneOf": [{"type": "integer"}, {"type": "string"}]}),
        ),
        Scalar::Time => (format!("{META}.Time"), time),
        Scalar::MicroTime => (format!("{META}.MicroTime"), time),
        Scalar::Duration => (format!("{META}.Duration"), json!({"type": "string"})),
        Scalar::Raw => ("io.k8s.apimachinery.pkg.runtime.RawExtension".to_owned(), json!({"type": "object"})),
        Scalar::SchemaOrBool => (format!("{extensions}.JSONSchemaPropsOrBool"), json!({})),
        Scalar::SchemaOrArray => (format!("{extensions}.JSONSchemaPropsOrArray"), json!({})),
        Scalar::SchemaOrStrings => (format!("{extensions}.JSONSchemaPropsOrStringArray"), json!({})),
        Scalar::String | Scalar::Int32 | Scalar::Int64 | Scalar::Bool | Scalar::Double | Scalar::Bytes => {
            return None;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, out: &mut BTreeSet<String>) {
        match value {
            Value::Object(object) => {
                for (key, inner) in object {
                    match inner {
                        Value::String(text) if key == "$ref" => {
                            out.insert(text.strip_prefix(REF).unwrap().to_owned());
                        }
                        inner => references(inner, out),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, out)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_of_every_document_is_in_it() {
        let types = Types::builtin();
        for (group, version) in types.group_versions() {
            let document = document(types, group, version).unwrap();
            let schemas = document["components"]["schemas"].as_object().unwrap();
            let mut wanted = BTreeSet::new();
            references(&document, &mut wanted);
            for name in wanted {
                assert!(schemas.contains_key(&name), "{group}/{version} lacks {name}");
            }
            for kind in types.kinds().iter().filter(|kind| (kind.group, kind.version) == (group, version)) {
                let schema = &schemas[&types.openapi_name(types.type_of(kind.type_id))];
                assert_eq!(schema["x-kubernetes-group-version-kind"], json!([gvk(kind)]));
            }
        }
        assert_eq!(document(types, "gantry.dev", "v1alpha1"), None);
    }

    #[test]
    fn a_patch_operation_tells_the_query_parameters() {
        let types = Types::builtin();
        let cases = [
            ("", "/api/v1/namespaces/{namespace}/pods/{name}", "Pod"),
            ("", "/api/v1/nodes/{name}", "Node"),
            ("apps", "/apis/apps/v1/namespaces/{namespace}/deployments/{name}", "Deployment"),
        ];
        for (group, path, kind) in cases {
            let document = document(types, group, "v1").unwrap();
            let patch = &document["paths"][path]["patch"];
            assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], kind);
            let names: Vec<&str> = patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|one| one["name"].as_str())
                .collect();
            assert!(names.contains(&"fieldValidation") && names.contains(&"dryRun"), "{names:?}");
        }
    }

    #[test]
    fn a_container_is_described_as_kubernetes_does() {
        let document = document(Types::builtin(), "", "v1").unwrap();
        let container = &document["components"]["schemas"]["io.k8s.api.core.v1.Container"];
        assert_eq!(container["required"], json!(["name"]));
        let ports = &container["properties"]["ports"];
        assert_eq!(ports["x-kubernetes-patch-merge-key"], "containerPort");
        assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["containerPort", "protocol"]));
        assert_eq!(ports["items"]["allOf"][0]["$ref"], format!("{REF}io.k8s.api.core.v1.ContainerPort"));
        assert_eq!(container["properties"]["command"]["items"], json!({"type": "string"}));
        let volumes =
            &document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"];
        assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
        assert!(
            document["components"]["schemas"]["io.k8s.api.core.v1.Volume"]["properties"]["emptyDir"]
                .is_object()
        );
    }
}
