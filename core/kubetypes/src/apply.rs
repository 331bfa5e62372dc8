//! What server-side apply asks of the table.

use std::sync::Arc;

use gantry_apimachinery::{
    ApplyField, ApplyList, ApplyMap, ApplySchema, ApplyType, ApplyTypeId, ApplyTypes, ListIdentity,
};
use serde_json::{Map, Value};

use crate::{Field, Kind, Leaf, ListType, Scalar, Shape, Type, TypeId, Types};

/// The types of the table, each with its number in [`ApplyTypes`].
#[derive(Debug)]
pub(crate) struct ApplyTable {
    types: ApplyTypes,
    /// By the number of the type in the table.
    ids: Vec<ApplyTypeId>,
}

impl Default for ApplyTable {
    fn default() -> Self {
        Self { types: ApplyTypes::new(), ids: Vec::new() }
    }
}

impl ApplyTable {
    pub(crate) fn of(types: &Types) -> Self {
        let mut table = Self::default();
        // Types contain each other, and themselves: numbers first.
        table.ids = types.list.iter().map(|_| table.types.push(ApplyType::default())).collect();
        for (index, of) in types.list.iter().enumerate() {
            let definition = table.definition(types, of);
            table.types.define(table.ids[index], definition);
        }
        table
    }

    fn definition(&mut self, types: &Types, of: &Type) -> ApplyType {
        if let (true, Some(only)) = (of.unwrap, of.fields.first()) {
            let inner = self.field_type(types, only);
            return self.types.get(inner).clone();
        }
        let fields = types.json_fields(of).collect::<Vec<_>>();
        let fields = fields
            .into_iter()
            .map(|field| ApplyField {
                name: Arc::from(field.name),
                type_id: self.field_type(types, field),
                default: default(field),
                unset: unset(field),
                omits_empty: !matches!(field.shape, Shape::One(_)) && !field.always && !field.pointer,
            })
            .collect();
        ApplyType {
            map: Some(ApplyMap { is_atomic: of.atomic, fields, other: None }),
            ..ApplyType::default()
        }
    }

    fn field_type(&mut self, types: &Types, field: &Field) -> ApplyTypeId {
        let leaf = match field.shape.leaf() {
            Leaf::Message(id) => self.ids[id.index()],
            Leaf::Scalar(scalar) => scalar_type(scalar),
        };
        let of = match field.shape {
            Shape::One(_) if !field.atomic => return leaf,
            Shape::One(Leaf::Message(id)) => {
                let mut of = self.definition(types, types.type_of(id));
                if let Some(map) = &mut of.map {
                    map.is_atomic = true;
                }
                of
            }
            Shape::One(Leaf::Scalar(_)) => return leaf,
            Shape::List(_) => {
                let identity = match (&field.list_type, field.patch.merge, field.merge_key) {
                    (ListType::Map(keys), ..) => {
                        ListIdentity::Keys(keys.iter().map(|key| Arc::from(*key)).collect())
                    }
                    (ListType::Set, ..) => ListIdentity::Value,
                    (ListType::Atomic, ..) | (ListType::Unset, false, _) => ListIdentity::Atomic,
                    // Without a list type, what strategic merge patches go by counts.
                    (ListType::Unset, true, Some(key)) => ListIdentity::Keys(vec![Arc::from(key)]),
                    (ListType::Unset, true, None) => ListIdentity::Value,
                };
                ApplyType { list: Some(ApplyList { identity, item: leaf }), ..ApplyType::default() }
            }
            Shape::Map(_) => ApplyType {
                map: Some(ApplyMap { is_atomic: field.atomic, fields: Vec::new(), other: Some(leaf) }),
                ..ApplyType::default()
            },
        };
        self.types.push(of)
    }
}

/// The default of a field that may be a key of a list's items: what is required is empty where it is missing.
fn default(field: &Field) -> Option<Value> {
    let empty = match field.shape {
        Shape::One(Leaf::Scalar(Scalar::String)) => Value::from(""),
        Shape::One(Leaf::Scalar(Scalar::Int32 | Scalar::Int64)) => Value::from(0),
        _ => Value::Null,
    };
    let given = field.default.and_then(|json| serde_json::from_str(json).ok());
    given.or((field.required && !field.pointer && !empty.is_null()).then_some(empty))
}

/// What Go writes for a field that nobody set.
fn unset(field: &Field) -> Option<Value> {
    match field.shape {
        Shape::One(Leaf::Message(_)) if !field.pointer && !field.omit_zero => Some(Value::Object(Map::new())),
        Shape::List(_) | Shape::Map(_) if field.always => Some(Value::Null),
        _ => None,
    }
}

fn scalar_type(scalar: Scalar) -> ApplyTypeId {
    match scalar {
        Scalar::String | Scalar::Bytes => ApplyTypes::STRING,
        Scalar::Int32 | Scalar::Int64 | Scalar::Double => ApplyTypes::NUMERIC,
        Scalar::Bool => ApplyTypes::BOOLEAN,
        Scalar::Quantity | Scalar::IntOrString | Scalar::Time | Scalar::MicroTime | Scalar::Duration => {
            ApplyTypes::UNTYPED
        }
        Scalar::Raw | Scalar::SchemaOrBool | Scalar::SchemaOrArray | Scalar::SchemaOrStrings => {
            ApplyTypes::DEDUCED
        }
    }
}

impl Types {
    /// What server-side apply must know of a kind.
    pub fn apply_schema(&self, kind: &Kind) -> ApplySchema<'_> {
        self.apply_schema_of(kind.type_id)
    }

    fn apply_schema_of(&self, id: TypeId) -> ApplySchema<'_> {
        ApplySchema { types: &self.apply.types, root: self.apply.ids[id.index()] }
    }
}
