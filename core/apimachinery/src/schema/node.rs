use std::collections::BTreeMap;

use regex::Regex;
use serde_json::{Number, Value};

/// The JSON type that a node asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
    /// `x-kubernetes-int-or-string`.
    IntOrString,
}

impl Type {
    pub(super) const NAMED: [(&'static str, Self); 6] = [
        ("array", Self::Array),
        ("boolean", Self::Boolean),
        ("integer", Self::Integer),
        ("number", Self::Number),
        ("object", Self::Object),
        ("string", Self::String),
    ];

    /// As messages cite it.
    pub(super) fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, kind)| *kind == self).map_or("integer,string", |(name, _)| name)
    }
}

/// What a list is to whoever merges and checks it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum ListType {
    #[default]
    Atomic,
    Set,
    /// Items are told apart by these fields.
    Map(Vec<String>),
}

/// Fields of an object beyond those that are named.
#[derive(Debug, Default)]
pub(super) enum Additional {
    #[default]
    None,
    Any,
    Of(Box<Node>),
}

/// One bound of a number.
#[derive(Debug, Clone)]
pub(super) struct Bound {
    pub(super) limit: Number,
    pub(super) is_exclusive: bool,
}

/// One place of a schema.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// None where any type will do.
    pub(super) kind: Option<Type>,
    pub(super) is_nullable: bool,
    pub(super) preserves_unknown: bool,
    /// The object is a Kubernetes object itself; also true of the root.
    pub(super) is_resource: bool,
    pub(super) default: Option<Value>,
    pub(super) properties: BTreeMap<String, Self>,
    pub(super) required: Vec<String>,
    pub(super) additional: Additional,
    pub(super) items: Option<Box<Self>>,
    pub(super) list_type: ListType,
    /// Server-side apply replaces the object as a whole.
    pub(super) is_atomic: bool,
    pub(super) minimum: Option<Bound>,
    pub(super) maximum: Option<Bound>,
    pub(super) multiple_of: Option<Number>,
    pub(super) length: (Option<u64>, Option<u64>),
    pub(super) items_count: (Option<u64>, Option<u64>),
    pub(super) properties_count: (Option<u64>, Option<u64>),
    pub(super) pattern: Option<Regex>,
    pub(super) format: Option<String>,
    pub(super) allowed: Option<Vec<Value>>,
    pub(super) all_of: Vec<Self>,
    pub(super) any_of: Vec<Self>,
    pub(super) one_of: Vec<Self>,
    pub(super) not: Option<Box<Self>>,
}

impl Node {
    /// The schema of a field of an object; `None` for one that is not specified.
    pub(super) fn field(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or(match &self.additional {
            Additional::Of(node) => Some(node),
            Additional::None | Additional::Any => None,
        })
    }

    /// Whether a field belongs to every Kubernetes object, and is left alone here.
    pub(super) fn is_resource_field(&self, name: &str) -> bool {
        self.is_resource && matches!(name, "apiVersion" | "kind" | "metadata")
    }
}
