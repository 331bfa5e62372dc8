//! The table: its format, its parser and look-up by name and by number.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::apply::ApplyTable;
use crate::parse::Parser;
use crate::{Error, data};

/// Index of a [`Type`] in its [`Types`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(u32);

impl TypeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A value that is not described by further fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// UTF-8 text.
    String,
    /// Integer of 32 bits.
    Int32,
    /// Integer of 64 bits.
    Int64,
    /// `true` or `false`.
    Bool,
    /// Floating point of 64 bits.
    Double,
    /// Bytes; base64 in JSON.
    Bytes,
    /// `resource.Quantity`: text such as `500m`, or a number.
    Quantity,
    /// `intstr.IntOrString`: an integer of 32 bits, or text such as `25%`.
    IntOrString,
    /// `metav1.Time`: RFC 3339 in whole seconds.
    Time,
    /// `metav1.MicroTime`: RFC 3339 with six digits of a second.
    MicroTime,
    /// `metav1.Duration`: Go's form, such as `1h30m0s`.
    Duration,
    /// Any JSON (`RawExtension`, `FieldsV1`, `apiextensions.JSON`).
    Raw,
    /// A schema or a boolean (`additionalProperties` of a custom resource's schema).
    SchemaOrBool,
    /// A schema or a list of schemas (`items`).
    SchemaOrArray,
    /// A schema or a list of strings (`dependencies`).
    SchemaOrStrings,
}

impl Scalar {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "string" => Self::String,
            "int32" => Self::Int32,
            "int64" => Self::Int64,
            "bool" => Self::Bool,
            "double" => Self::Double,
            "bytes" => Self::Bytes,
            "quantity" => Self::Quantity,
            "intOrString" => Self::IntOrString,
            "time" => Self::Time,
            "microTime" => Self::MicroTime,
            "duration" => Self::Duration,
            "raw" => Self::Raw,
            "schemaOrBool" => Self::SchemaOrBool,
            "schemaOrArray" => Self::SchemaOrArray,
            "schemaOrStrings" => Self::SchemaOrStrings,
            _ => return None,
        })
    }
}

/// One value: a scalar, or a message with fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// No fields of its own.
    Scalar(Scalar),
    /// Fields of this type.
    Message(TypeId),
}

/// Whether a field holds one value, a list, or a map from strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One value.
    One(Leaf),
    /// A list of values.
    List(Leaf),
    /// A map from strings to values.
    Map(Leaf),
}

impl Shape {
    /// The value, the list's item or the map's value.
    pub fn leaf(self) -> Leaf {
        match self {
            Self::One(leaf) | Self::List(leaf) | Self::Map(leaf) => leaf,
        }
    }
}

/// How server-side apply treats a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    /// Not stated: replaced as a whole.
    #[default]
    Unset,
    /// Stated to be replaced as a whole.
    Atomic,
    /// A set of scalars.
    Set,
    /// Items told apart by these fields.
    Map(Vec<&'static str>),
}

/// How a strategic merge patch treats a field (`patchStrategy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PatchStrategy {
    /// Lists are merged, not replaced.
    pub merge: bool,
    /// Keys that the patch does not name are dropped (`retainKeys`).
    pub retain_keys: bool,
}

/// One field of a type.
#[derive(Debug, Clone)]
pub struct Field {
    /// Number in protobuf; none for `apiVersion` and `kind`, which protobuf carries in the envelope.
    pub number: Option<u32>,
    /// Name in JSON (of an inline field: its name in protobuf).
    pub name: &'static str,
    /// What it holds.
    pub shape: Shape,
    /// A pointer in Go: an explicit zero is kept.
    pub pointer: bool,
    /// Listed as required in OpenAPI.
    pub required: bool,
    /// Written in JSON even when empty (no `omitempty` in Go).
    pub always: bool,
    /// Left out when the whole value is zero (`omitzero` in Go).
    pub omit_zero: bool,
    /// The fields of its type stand in JSON beside the fields of the type that has it.
    pub inline: bool,
    /// Strategic merge patch.
    pub patch: PatchStrategy,
    /// Field that tells the items of a merged list apart (`patchMergeKey`).
    pub merge_key: Option<&'static str>,
    /// Server-side apply of a list.
    pub list_type: ListType,
    /// Server-side apply replaces the whole map or object.
    pub atomic: bool,
    /// Allowed values of a string (or of each item of a list of strings); empty: any.
    pub enum_values: Vec<&'static str>,
    /// Default, as JSON.
    pub default: Option<&'static str>,
    /// One line for `kubectl explain`.
    pub description: Option<&'static str>,
}

/// One message.
#[derive(Debug, Clone)]
pub struct Type {
    /// Full name, such as `core.v1.Container`.
    pub name: String,
    /// Carries `apiVersion` and `kind`.
    pub typed: bool,
    /// Server-side apply replaces the whole object.
    pub atomic: bool,
    /// JSON shows the only field's value in place of the message.
    pub unwrap: bool,
    /// Fields as in protobuf, by number, after `apiVersion` and `kind` where it has them.
    pub fields: Vec<Field>,
    /// One line for `kubectl explain`.
    pub description: Option<&'static str>,
    pub(crate) group: u32,
    /// Names in JSON, sorted, inline fields replaced by theirs: (type, index of its field).
    pub(crate) json: Vec<(&'static str, TypeId, u32)>,
}

impl Type {
    /// Name as Go's errors show it, such as `v1.Container`.
    pub fn go_name(&self) -> &str {
        self.name.split_once('.').map_or(&self.name, |(_, rest)| rest)
    }

    /// Name without group and version, such as `Container`.
    pub fn short_name(&self) -> &str {
        self.name.rsplit_once('.').map_or(&self.name, |(_, rest)| rest)
    }
}

/// A kind of the API: what `apiVersion` and `kind` say.
#[derive(Debug, Clone)]
pub struct Kind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version, such as `v1`.
    pub version: &'static str,
    /// Kind, such as `Pod`.
    pub kind: &'static str,
    /// Plural name of its resource and whether it is namespaced; none for lists, options and subresources.
    pub resource: Option<(&'static str, bool)>,
    /// Its fields.
    pub type_id: TypeId,
}

impl Kind {
    /// `GROUP/VERSION`, or `VERSION` in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) prefix: &'static str,
    pub(crate) openapi: &'static str,
}

/// All types of some group-versions.
#[derive(Debug)]
pub struct Types {
    pub(crate) groups: Vec<Group>,
    pub(crate) list: Vec<Type>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) by_name: HashMap<String, TypeId>,
    pub(crate) by_kind: HashMap<(&'static str, &'static str, &'static str), u32>,
    pub(crate) apply: ApplyTable,
}

static BUILTIN: LazyLock<Types> = LazyLock::new(|| {
    Types::parse(data::TABLES, data::DESCRIPTIONS)
        .expect("invariant: the checked-in tables parse, as a test proves")
});

impl Types {
    /// Kubernetes' own types, at the version that [`crate`] names; parsed at the first call.
    pub fn builtin() -> &'static Self {
        &BUILTIN
    }

    /// The kind of a group (empty for core), version and kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<&Kind> {
        self.by_kind.get(&(group, version, kind)).map(|&index| &self.kinds[index as usize])
    }

    /// The kind that an object's `apiVersion` and `kind` name. `Status`, `DeleteOptions` and their like are found in every group.
    pub fn kind_of(&self, api_version: &str, kind: &str) -> Option<&Kind> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.kind(group, version, kind).or_else(|| self.kind("meta.k8s.io", "v1", kind))
    }

    /// All kinds, by group-version and name.
    pub fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// The group-versions, such as `("apps", "v1")`, sorted.
    pub fn group_versions(&self) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
        self.groups.iter().map(|group| (group.name, group.version))
    }

    /// The type with this full name, such as `core.v1.Container`.
    pub fn get(&self, name: &str) -> Option<&Type> {
        self.by_name.get(name).map(|&id| self.type_of(id))
    }

    /// The number of the type with this full name.
    pub fn id(&self, name: &str) -> Option<TypeId> {
        self.by_name.get(name).copied()
    }

    /// The type with this number.
    pub fn type_of(&self, id: TypeId) -> &Type {
        &self.list[id.0 as usize]
    }

    /// The field that stands under this name in the type's JSON, looked for in inline fields as well.
    pub fn field(&self, of: &Type, name: &str) -> Option<&Field> {
        let at = of.json.binary_search_by(|(known, ..)| (*known).cmp(name)).ok()?;
        let (_, id, index) = of.json[at];
        Some(&self.type_of(id).fields[index as usize])
    }

    /// The fields of the type's JSON by name, inline fields replaced by theirs.
    pub fn json_fields<'a>(&'a self, of: &'a Type) -> impl Iterator<Item = &'a Field> {
        of.json.iter().map(|&(_, id, index)| &self.type_of(id).fields[index as usize])
    }

    /// Name of the type in OpenAPI documents, such as `io.k8s.api.core.v1.Container`.
    pub fn openapi_name(&self, of: &Type) -> String {
        format!("{}.{}", self.groups[of.group as usize].openapi, of.short_name())
    }

    fn parse(tables: &[&'static str], descriptions: &'static str) -> Result<Self, Error> {
        let mut parser = Parser::default();
        for table in tables {
            parser.table(table)?;
        }
        let mut types = parser.finish()?;
        types.describe(descriptions)?;
        for index in 0..types.list.len() {
            let mut json = Vec::new();
            types.flatten(index, &mut json);
            json.sort_unstable();
            types.list[index].json = json;
        }
        types.apply = ApplyTable::of(&types);
        Ok(types)
    }

    fn flatten(&self, index: usize, json: &mut Vec<(&'static str, TypeId, u32)>) {
        for (at, field) in self.list[index].fields.iter().enumerate() {
            match field.shape {
                Shape::One(Leaf::Message(inner)) if field.inline => self.flatten(inner.0 as usize, json),
                _ => json.push((field.name, type_id(index), small(at))),
            }
        }
    }

    fn describe(&mut self, text: &'static str) -> Result<(), Error> {
        let mut current = None;
        let mut every: Vec<(&'static str, &'static str)> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let wrong = |what| Error::Table {
                group: "descriptions".to_owned(),
                line: index + 1,
                what,
                text: line.to_owned(),
            };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, words) = line.trim_start().split_once(' ').ok_or_else(|| wrong("no description"))?;
            let words = words.trim_start();
            if !line.starts_with(' ') {
                if name == "*" {
                    current = None;
                    continue;
                }
                let id = self.id(name).ok_or_else(|| wrong("unknown type"))?;
                self.list[id.0 as usize].description = Some(words);
                current = Some(id);
                continue;
            }
            match current {
                None => every.push((name, words)),
                Some(id) => {
                    let fields = &mut self.list[id.0 as usize].fields;
                    let field = fields
                        .iter_mut()
                        .find(|field| field.name == name)
                        .ok_or_else(|| wrong("unknown field"))?;
                    field.description = Some(words);
                }
            }
        }
        for of in self.list.iter_mut().filter(|of| of.typed) {
            for field in &mut of.fields {
                let general = every.iter().find(|(name, _)| *name == field.name).map(|(_, words)| *words);
                field.description = field.description.or(general);
            }
        }
        Ok(())
    }
}

pub(crate) fn small(index: usize) -> u32 {
    u32::try_from(index).expect("invariant: the tables have fewer than 2^32 lines")
}

pub(crate) fn type_id(index: usize) -> TypeId {
    TypeId(small(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checked_in_tables_parse_and_every_reference_resolves() {
        let types = Types::parse(data::TABLES, data::DESCRIPTIONS).unwrap();
        assert_eq!(types.group_versions().count(), data::TABLES.len());
        for of in &types.list {
            for (first, second) in of.json.iter().zip(of.json.iter().skip(1)) {
                assert_ne!(first.0, second.0, "{} has one JSON name twice", of.name);
            }
            for field in &of.fields {
                if let (Some(key), Shape::List(Leaf::Message(item))) = (field.merge_key, field.shape) {
                    assert!(
                        types.field(types.type_of(item), key).is_some(),
                        "{}.{}: {key}",
                        of.name,
                        field.name
                    );
                }
                if let (ListType::Map(keys), Shape::List(Leaf::Message(item))) =
                    (&field.list_type, field.shape)
                {
                    for key in keys {
                        assert!(
                            types.field(types.type_of(item), key).is_some(),
                            "{}.{}: {key}",
                            of.name,
                            field.name
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn kinds_and_fields_are_found() {
        let types = Types::builtin();
        let pod = types.kind("", "v1", "Pod").unwrap();
        assert_eq!((pod.resource, pod.api_version()), (Some(("pods", true)), "v1".to_owned()));
        let deployment = types.kind("apps", "v1", "Deployment").unwrap();
        assert_eq!(deployment.api_version(), "apps/v1");
        let container = types.get("core.v1.Container").unwrap();
        let ports = types.field(container, "ports").unwrap();
        assert_eq!(
            (ports.number, ports.name, ports.patch.merge, ports.merge_key),
            (Some(6), "ports", true, Some("containerPort"))
        );
        assert_eq!(ports.list_type, ListType::Map(vec!["containerPort", "protocol"]));
        let probe = types.get("core.v1.Probe").unwrap();
        assert_eq!(types.field(probe, "httpGet").unwrap().number, Some(2));
        assert!(types.field(probe, "handler").is_none());
        assert_eq!(types.kind_of("batch/v1", "DeleteOptions").unwrap().group, "meta.k8s.io");
    }

    #[test]
    fn a_bad_table_is_refused_with_its_line() {
        let cases: &[(&'static str, &str)] = &[
            ("type A", "line 1 of the type table of ?: no group line before it in \"type A\""),
            (
                "group v1 a.v1 io.a.v1\ntype A\n  x y string",
                "line 3 of the type table of a.v1: no number in \"  x y string\"",
            ),
            (
                "group v1 a.v1 io.a.v1\ntype A\n  1 y B",
                "type a.v1.A has a field y of type a.v1.B, which no table has",
            ),
            (
                "group v1 a.v1 io.a.v1\ntype A\n  1 y string odd",
                "line 3 of the type table of a.v1: unknown property of a field in \"  1 y string odd\"",
            ),
        ];
        for (text, want) in cases {
            assert_eq!(Types::parse(&[*text], "").unwrap_err().to_string(), *want);
        }
    }
}
