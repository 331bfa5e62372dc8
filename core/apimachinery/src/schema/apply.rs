//! A structural schema as server-side apply sees it.

use super::node::{Additional, ListType, Node, Type};
use crate::apply::field;
use crate::{ApplyField, ApplyList, ApplyMap, ApplyType, ApplyTypeId, ApplyTypes, ListIdentity, ScalarType};

/// The types of an object with this schema, and its own.
pub(super) fn types(root: &Node) -> (ApplyTypes, ApplyTypeId) {
    let mut types = ApplyTypes::new();
    let meta = types.push_object_meta();
    let root = Converter { types: &mut types, meta }.convert(root, false);
    (types, root)
}

struct Converter<'a> {
    types: &'a mut ApplyTypes,
    /// `ObjectMeta`.
    meta: ApplyTypeId,
}

impl Converter<'_> {
    /// `preserves`: whether a schema around this one keeps fields that nobody specified.
    fn convert(&mut self, node: &Node, preserves: bool) -> ApplyTypeId {
        let preserves = preserves || node.preserves_unknown;
        let mut of = ApplyType::default();
        match node.kind {
            Some(Type::String) => return ApplyTypes::STRING,
            Some(Type::Integer | Type::Number) => return ApplyTypes::NUMERIC,
            Some(Type::Boolean) => return ApplyTypes::BOOLEAN,
            Some(Type::IntOrString) => return ApplyTypes::UNTYPED,
            Some(Type::Object) => of.map = Some(self.map(node, preserves)),
            Some(Type::Array) => of.list = Some(self.list(node, preserves)),
            None => {
                of.scalar = Some(ScalarType::Untyped);
                of.list = Some(self.list(node, preserves));
                of.map = Some(self.map(node, preserves));
            }
        }
        self.types.push(of)
    }

    fn map(&mut self, node: &Node, preserves: bool) -> ApplyMap {
        let mut fields: Vec<ApplyField> = Vec::with_capacity(node.properties.len() + 3);
        for (name, property) in &node.properties {
            if !node.is_resource_field(name) {
                let type_id = self.convert(property, preserves);
                fields.push(ApplyField { default: property.default.clone(), ..field(name, type_id) });
            }
        }
        let other = match &node.additional {
            Additional::None if preserves || node.properties.is_empty() => Some(ApplyTypes::DEDUCED),
            Additional::None => None,
            Additional::Any => Some(ApplyTypes::DEDUCED),
            Additional::Of(inner) => Some(self.convert(inner, preserves)),
        };
        if node.is_resource {
            fields.extend(["apiVersion", "kind"].map(|name| field(name, ApplyTypes::STRING)));
            fields.push(field("metadata", self.meta));
        }
        ApplyMap { is_atomic: node.is_atomic, fields, other }
    }

    fn list(&mut self, node: &Node, preserves: bool) -> ApplyList {
        let identity = match &node.list_type {
            ListType::Atomic => ListIdentity::Atomic,
            ListType::Set => ListIdentity::Value,
            ListType::Map(keys) => ListIdentity::Keys(keys.iter().map(|key| key.as_str().into()).collect()),
        };
        let item = node.items.as_ref().map_or(ApplyTypes::DEDUCED, |items| self.convert(items, preserves));
        ApplyList { identity, item }
    }
}
