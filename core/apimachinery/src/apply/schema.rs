//! What apply must know of types: which lists are sets or maps, which objects are replaced as a whole.

use std::sync::Arc;

use serde_json::Value;

/// Number of an [`ApplyType`] in its [`ApplyTypes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApplyTypeId(u32);

/// The JSON type of a plain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarType {
    /// Numbers.
    Numeric,
    /// Texts.
    String,
    /// `true` and `false`.
    Boolean,
    /// Any of these.
    Untyped,
}

/// What tells the items of a list apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListIdentity {
    /// Nothing: the list is replaced as a whole.
    Atomic,
    /// Their values: a set.
    Value,
    /// The values of these fields.
    Keys(Vec<Arc<str>>),
}

/// A list.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplyList {
    /// How items are told apart.
    pub identity: ListIdentity,
    /// The type of the items.
    pub item: ApplyTypeId,
}

/// A named field of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplyField {
    /// Its name.
    pub name: Arc<str>,
    /// Its type.
    pub type_id: ApplyTypeId,
    /// The default, where the field is a key of a list's items.
    pub default: Option<Value>,
    /// What the field is where nobody set it: Kubernetes' own types always write some objects (`{}`) and lists (null). `None`: absent.
    pub unset: Option<Value>,
    /// An empty list or map is the same as none, as Kubernetes' own types write it.
    pub omits_empty: bool,
}

/// An object.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplyMap {
    /// Replaced as a whole.
    pub is_atomic: bool,
    /// Named fields, sorted by name.
    pub fields: Vec<ApplyField>,
    /// The type of all other fields; `None` when there are no others.
    pub other: Option<ApplyTypeId>,
}

impl ApplyMap {
    /// The named field.
    pub(super) fn field(&self, name: &str) -> Option<&ApplyField> {
        self.fields.binary_search_by(|field| field.name.as_ref().cmp(name)).ok().map(|at| &self.fields[at])
    }

    /// The type of a field; that of unknown ones too, lest a stray field stop a write.
    pub(super) fn type_of(&self, name: &str) -> ApplyTypeId {
        self.field(name).map(|field| field.type_id).or(self.other).unwrap_or(ApplyTypes::DEDUCED)
    }
}

/// What a place may hold: a plain value, a list, an object, or several of these.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ApplyType {
    /// Plain values.
    pub scalar: Option<ScalarType>,
    /// Lists.
    pub list: Option<ApplyList>,
    /// Objects.
    pub map: Option<ApplyMap>,
}

/// What a value is to be treated as.
pub(super) enum Handling<'a> {
    Leaf,
    List(&'a ApplyList),
    Map(&'a ApplyMap),
}

impl ApplyType {
    /// How a value of this type is handled: by what it is, as far as the type allows that, else by what the type prefers.
    pub(super) fn handling(&self, value: Option<&Value>) -> Handling<'_> {
        match (value, self) {
            (Some(Value::Object(_)), Self { map: Some(map), .. }) => Handling::Map(map),
            (Some(Value::Array(_)), Self { list: Some(list), .. }) => Handling::List(list),
            (Some(Value::String(_) | Value::Number(_) | Value::Bool(_)), Self { scalar: Some(_), .. }) => {
                Handling::Leaf
            }
            (_, Self { map: Some(map), .. }) => Handling::Map(map),
            (_, Self { scalar: Some(_), .. }) => Handling::Leaf,
            (_, Self { list: Some(list), .. }) => Handling::List(list),
            _ => Handling::Leaf,
        }
    }
}

/// Types that refer to each other by number.
#[derive(Debug, Clone, PartialEq)]
pub struct ApplyTypes(Vec<ApplyType>);

impl ApplyTypes {
    /// Whatever there is: objects are merged, lists replaced.
    pub const DEDUCED: ApplyTypeId = ApplyTypeId(0);
    /// Any plain value.
    pub const UNTYPED: ApplyTypeId = ApplyTypeId(1);
    /// Numbers.
    pub const NUMERIC: ApplyTypeId = ApplyTypeId(2);
    /// Texts.
    pub const STRING: ApplyTypeId = ApplyTypeId(3);
    /// Booleans.
    pub const BOOLEAN: ApplyTypeId = ApplyTypeId(4);

    /// The types that have constants here.
    pub fn new() -> Self {
        let scalar = |kind| ApplyType { scalar: Some(kind), ..ApplyType::default() };
        let deduced = ApplyType {
            scalar: Some(ScalarType::Untyped),
            list: Some(ApplyList { identity: ListIdentity::Atomic, item: Self::DEDUCED }),
            map: Some(ApplyMap { is_atomic: false, fields: Vec::new(), other: Some(Self::DEDUCED) }),
        };
        Self(vec![
            deduced,
            scalar(ScalarType::Untyped),
            scalar(ScalarType::Numeric),
            scalar(ScalarType::String),
            scalar(ScalarType::Boolean),
        ])
    }

    /// Adds a type. The fields of an object may be in any order.
    pub fn push(&mut self, mut added: ApplyType) -> ApplyTypeId {
        if let Some(map) = &mut added.map {
            map.fields.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let id = u32::try_from(self.0.len()).expect("invariant: there are fewer than 2^32 types");
        self.0.push(added);
        ApplyTypeId(id)
    }

    /// Gives a type that was added before its definition: types may contain themselves.
    pub fn define(&mut self, id: ApplyTypeId, mut definition: ApplyType) {
        if let Some(map) = &mut definition.map {
            map.fields.sort_by(|a, b| a.name.cmp(&b.name));
        }
        self.0[id.0 as usize] = definition;
    }

    /// The type with this number.
    pub fn get(&self, id: ApplyTypeId) -> &ApplyType {
        &self.0[id.0 as usize]
    }

    /// `metav1.ObjectMeta`, as far as apply is concerned.
    pub(crate) fn push_object_meta(&mut self) -> ApplyTypeId {
        let texts = self.push(map_of(Self::STRING));
        let owner = self.push(ApplyType {
            map: Some(ApplyMap {
                is_atomic: true,
                fields: ["apiVersion", "kind", "name", "uid"]
                    .map(|name| field(name, Self::STRING))
                    .into_iter()
                    .chain(["controller", "blockOwnerDeletion"].map(|name| field(name, Self::BOOLEAN)))
                    .collect(),
                other: None,
            }),
            ..ApplyType::default()
        });
        let list =
            |identity, item| ApplyType { list: Some(ApplyList { identity, item }), ..ApplyType::default() };
        let owners = self.push(list(ListIdentity::Keys(vec!["uid".into()]), owner));
        let finalizers = self.push(list(ListIdentity::Value, Self::STRING));
        let entries = self.push(list(ListIdentity::Atomic, Self::DEDUCED));
        let strings = ["name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"];
        let fields = strings
            .map(|name| field(name, Self::STRING))
            .into_iter()
            .chain(["generation", "deletionGracePeriodSeconds"].map(|name| field(name, Self::NUMERIC)))
            .chain(["creationTimestamp", "deletionTimestamp"].map(|name| field(name, Self::UNTYPED)))
            .chain(["labels", "annotations"].map(|name| field(name, texts)))
            .chain([
                field("ownerReferences", owners),
                field("finalizers", finalizers),
                field("managedFields", entries),
            ])
            .collect();
        self.push(ApplyType {
            map: Some(ApplyMap { is_atomic: false, fields, other: None }),
            ..ApplyType::default()
        })
    }
}

impl Default for ApplyTypes {
    fn default() -> Self {
        Self::new()
    }
}

/// A field that is absent unless set.
pub(crate) fn field(name: &str, type_id: ApplyTypeId) -> ApplyField {
    ApplyField { name: name.into(), type_id, default: None, unset: None, omits_empty: false }
}

/// A map from any text.
fn map_of(other: ApplyTypeId) -> ApplyType {
    ApplyType {
        map: Some(ApplyMap { is_atomic: false, fields: Vec::new(), other: Some(other) }),
        ..ApplyType::default()
    }
}

/// The types of one kind of object.
#[derive(Debug, Clone, Copy)]
pub struct ApplySchema<'a> {
    /// All types.
    pub types: &'a ApplyTypes,
    /// The type of the object itself.
    pub root: ApplyTypeId,
}

impl<'a> ApplySchema<'a> {
    /// The type of this place.
    pub(super) fn here(&self) -> &'a ApplyType {
        self.types.get(self.root)
    }

    /// The same types, seen from elsewhere.
    pub(super) fn at(&self, root: ApplyTypeId) -> Self {
        Self { types: self.types, root }
    }

    /// The step to an item of a list, or why there is none.
    pub(super) fn element_of(&self, list: &ApplyList, item: &Value) -> Result<super::PathElement, String> {
        use super::PathElement;
        let keys = match &list.identity {
            ListIdentity::Atomic => return Err("invalid indexing of non-associative list".to_owned()),
            ListIdentity::Value => {
                return match item {
                    Value::Object(_) => {
                        Err("associative list without keys has an element that's a map type".to_owned())
                    }
                    Value::Array(_) => {
                        Err("not supported: associative list with lists as elements".to_owned())
                    }
                    Value::Null => {
                        Err("associative list without keys has an element that's an explicit null".to_owned())
                    }
                    plain => Ok(PathElement::Value(Arc::new(plain.clone()))),
                };
            }
            ListIdentity::Keys(keys) => keys,
        };
        let fields = match item {
            Value::Object(fields) => fields,
            Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
            _ => return Err("associative list with keys may not have non-map elements".to_owned()),
        };
        let item_type = self.types.get(list.item);
        let default = |key: &Arc<str>| item_type.map.as_ref()?.field(key)?.default.clone();
        let found: Vec<(Arc<str>, Value)> = keys
            .iter()
            .filter_map(|key| {
                Some((key.clone(), fields.get(key.as_ref()).cloned().or_else(|| default(key))?))
            })
            .collect();
        if found.is_empty() && !keys.is_empty() {
            let names: Vec<String> = keys.iter().map(|key| format!("{:?}", key.as_ref())).collect();
            return Err(format!(
                "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                names.join(" ")
            ));
        }
        Ok(PathElement::key(found))
    }
}
