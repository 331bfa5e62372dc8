//! Objects in the form that the client asked for.

use bytes::{BufMut, Bytes, BytesMut};
use http::Response;
use serde_json::{Value, json};

use crate::http::{Accept, Body, Call, Encoding, IncludeObject, Shape, encoded};
use crate::store::{Object, to_bytes};
use crate::{Status, printers};

/// How one request wants to see objects.
pub(crate) struct View<'a> {
    call: &'a Call,
    pub(crate) encoding: Encoding,
    pub(crate) shape: Shape,
}

/// One object as the answer.
pub(crate) fn respond(call: &Call, code: u16, object: &Object) -> Result<Response<Body>, Status> {
    let view = View::of(call)?;
    encoded(code, view.encoding, view.object(object))
}

impl<'a> View<'a> {
    pub(crate) fn of(call: &'a Call) -> Result<Self, Status> {
        let (encoding, shape) = Accept::of(&call.headers).negotiate(call.query.get("includeObject"))?;
        Ok(Self { call, encoding, shape })
    }

    /// One object, alone or in a watch event.
    pub(crate) fn object(&self, object: &Object) -> Bytes {
        match self.shape {
            Shape::Object => self.plain(object),
            Shape::Metadata => to_bytes(&self.partial(object)),
            Shape::Table(include) => {
                let metadata = json!({"resourceVersion": object.meta("resourceVersion")});
                to_bytes(&self.table(include, metadata, &[object]))
            }
        }
    }

    fn plain(&self, object: &Object) -> Bytes {
        let resource = &self.call.resource;
        if resource.is_storage_version() {
            return if self.call.is_lean() { object.json() } else { object.whole_json() }.clone();
        }
        let mut value = self.value(object);
        resource.to_served(&mut value);
        to_bytes(&value)
    }

    /// A list with the given `metadata`.
    pub(crate) fn list(&self, metadata: &Value, objects: &[&Object]) -> Bytes {
        let resource = &self.call.resource;
        match self.shape {
            Shape::Table(include) => to_bytes(&self.table(include, metadata.clone(), objects)),
            Shape::Metadata => {
                let items: Vec<Value> = objects.iter().map(|object| self.partial(object)).collect();
                to_bytes(&json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": metadata, "items": items,
                }))
            }
            Shape::Object => {
                let head = format!(
                    r#"{{"kind":{},"apiVersion":{},"metadata":{metadata},"items":["#,
                    Value::from(resource.list_kind.as_str()),
                    Value::from(resource.api_version()),
                );
                let mut out = BytesMut::from(head.as_bytes());
                for (i, object) in objects.iter().enumerate() {
                    if i > 0 {
                        out.put_u8(b',');
                    }
                    out.extend_from_slice(&self.plain(object));
                }
                out.extend_from_slice(b"]}");
                out.freeze()
            }
        }
    }

    /// The object with its owners, where the client wants them.
    fn value(&self, object: &Object) -> Value {
        if self.call.is_lean() { object.value.clone() } else { object.whole() }
    }

    fn partial(&self, object: &Object) -> Value {
        let mut metadata = object.value["metadata"].clone();
        if !self.call.is_lean() && !object.managed.is_empty() {
            metadata["managedFields"] = object.managed.to_value();
        }
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
    }

    fn table(&self, include: IncludeObject, metadata: Value, objects: &[&Object]) -> Value {
        let resource = &self.call.resource;
        // Cells are computed from the stored form, whatever version was asked for.
        let group = resource.storage_group();
        let now = self.call.server.options.clock.now();
        let columns = match &resource.custom {
            Some(custom) => custom.column_definitions(),
            None => printers::columns(group, &resource.kind),
        };
        let rows: Vec<Value> = objects
            .iter()
            .map(|object| {
                let included = match include {
                    IncludeObject::None => Value::Null,
                    IncludeObject::Metadata => self.partial(object),
                    IncludeObject::Object => self.value(object),
                };
                let cells = match &resource.custom {
                    Some(custom) => custom.row(&object.value, now),
                    None => printers::row(group, &resource.kind, &object.value, now),
                };
                json!({
                    "cells": cells,
                    "object": included,
                })
            })
            .collect();
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            "columnDefinitions": columns, "rows": rows,
        })
    }
}
