//! From an `openAPIV3Schema` to nodes, under the rules that make a schema structural.

use regex::Regex;
use serde_json::{Map, Number, Value};

use super::change;
use super::node::{Additional, Bound, ListType, Node, Type};
use super::validate::validate;
use crate::{FieldError, FieldPath};

/// The API server's limit is on the size of the request; this one keeps recursion off the end of the stack.
const MAX_DEPTH: usize = 64;

/// Keywords of OpenAPI that a structural schema cannot have.
const FORBIDDEN: [&str; 9] = [
    "$ref",
    "definitions",
    "dependencies",
    "deprecated",
    "discriminator",
    "id",
    "patternProperties",
    "readOnly",
    "writeOnly",
];

/// Keywords that say what an object is, which the alternatives in `allOf`, `anyOf`, `oneOf` and `not` cannot.
const NOT_IN_JUNCTIONS: [&str; 6] =
    ["additionalProperties", "default", "description", "nullable", "title", "x-kubernetes-embedded-resource"];

/// What a node stands for in the schema around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    Field,
    Item,
    /// Inside `allOf`, `anyOf`, `oneOf` or `not`.
    Junction,
}

struct Compiler {
    errors: Vec<FieldError>,
}

/// The root node, or every fault of the schema.
pub(super) fn root(schema: &Value, path: &FieldPath) -> Result<Node, Vec<FieldError>> {
    let mut compiler = Compiler { errors: Vec::new() };
    let mut node = compiler.node(schema, path, Place::Root, 0);
    node.is_resource = true;
    if compiler.errors.is_empty() { Ok(node) } else { Err(compiler.errors) }
}

impl Compiler {
    fn node(&mut self, schema: &Value, path: &FieldPath, place: Place, depth: usize) -> Node {
        let Value::Object(schema) = schema else {
            self.errors.push(FieldError::type_invalid(path, schema.clone(), "must be a schema object"));
            return Node::default();
        };
        if depth > MAX_DEPTH {
            let rule = format!("must not be nested deeper than {MAX_DEPTH} levels");
            self.errors.push(FieldError::forbidden(path, rule));
            return Node::default();
        }
        self.forbidden(schema, path, place);
        let mut node = Node {
            is_nullable: self.flag(schema, "nullable", path),
            preserves_unknown: self.flag(schema, "x-kubernetes-preserve-unknown-fields", path),
            is_resource: self.flag(schema, "x-kubernetes-embedded-resource", path),
            required: self.texts(schema, "required", path),
            minimum: self.bound(schema, "minimum", "exclusiveMinimum", path),
            maximum: self.bound(schema, "maximum", "exclusiveMaximum", path),
            multiple_of: self.number(schema, "multipleOf", path),
            length: (self.count(schema, "minLength", path), self.count(schema, "maxLength", path)),
            items_count: (self.count(schema, "minItems", path), self.count(schema, "maxItems", path)),
            properties_count: (
                self.count(schema, "minProperties", path),
                self.count(schema, "maxProperties", path),
            ),
            pattern: self.pattern(schema, path),
            format: self.text(schema, "format", path),
            allowed: self.list(schema, "enum", path).map(<[Value]>::to_vec),
            ..Node::default()
        };
        node.kind = self.kind(schema, &node, path, place);
        self.children(&mut node, schema, path, place, depth);
        node.list_type = self.list_type(schema, &node, path);
        node.is_atomic = self.is_atomic(schema, &node, path);
        if let Some(default) = schema.get("default") {
            let path = path.child("default");
            // A default may rely on the defaults within it.
            let mut completed = default.clone();
            change::default(&node, &mut completed);
            let faults = validate(&node, &completed, &FieldPath::root());
            self.errors.extend(faults.iter().map(|fault| {
                FieldError::invalid(&path, default.clone(), format!("must be valid itself: {fault}"))
            }));
            node.default = Some(default.clone());
        }
        node
    }

    fn children(
        &mut self,
        node: &mut Node,
        schema: &Map<String, Value>,
        path: &FieldPath,
        place: Place,
        depth: usize,
    ) {
        let (field, item) =
            if place == Place::Junction { (place, place) } else { (Place::Field, Place::Item) };
        match schema.get("properties") {
            None | Some(Value::Null) => {}
            Some(Value::Object(properties)) => {
                let path = path.child("properties");
                for (name, property) in properties {
                    let property = self.node(property, &path.key(name), field, depth + 1);
                    node.properties.insert(name.clone(), property);
                }
            }
            Some(other) => self.wrong_type(path, "properties", other, "must be a map of schemas"),
        }
        node.additional = match schema.get("additionalProperties") {
            None | Some(Value::Null) => Additional::None,
            Some(Value::Bool(true)) => Additional::Any,
            Some(Value::Bool(false)) => {
                let path = path.child("additionalProperties");
                self.errors.push(FieldError::forbidden(&path, "additionalProperties cannot be set to false"));
                Additional::None
            }
            Some(additional) => {
                let path = path.child("additionalProperties");
                Additional::Of(Box::new(self.node(additional, &path, field, depth + 1)))
            }
        };
        if !matches!(node.additional, Additional::None) && !node.properties.is_empty() {
            let rule = "additionalProperties and properties are mutual exclusive";
            self.errors.push(FieldError::forbidden(&path.child("additionalProperties"), rule));
        }
        node.items = match schema.get("items") {
            None | Some(Value::Null) => None,
            Some(Value::Array(_)) => {
                let rule = "items must be a schema object and not an array";
                self.errors.push(FieldError::forbidden(&path.child("items"), rule));
                None
            }
            Some(items) => Some(Box::new(self.node(items, &path.child("items"), item, depth + 1))),
        };
        if node.kind == Some(Type::Array) && node.items.is_none() && place != Place::Junction {
            self.errors.push(FieldError::required(&path.child("items"), "must be specified"));
        }
        let mut junction = |keyword: &str| -> Vec<Node> {
            let path = path.child(keyword);
            let schemas = self.list(schema, keyword, &path).unwrap_or_default().iter().enumerate();
            schemas
                .map(|(index, schema)| self.node(schema, &path.index(index), Place::Junction, depth + 1))
                .collect()
        };
        node.all_of = junction("allOf");
        node.any_of = junction("anyOf");
        node.one_of = junction("oneOf");
        let not = schema.get("not").filter(|not| !not.is_null());
        node.not = not.map(|not| Box::new(self.node(not, &path.child("not"), Place::Junction, depth + 1)));
    }

    fn forbidden(&mut self, schema: &Map<String, Value>, path: &FieldPath, place: Place) {
        for keyword in FORBIDDEN.iter().filter(|keyword| schema.contains_key(**keyword)) {
            self.errors
                .push(FieldError::forbidden(&path.child(keyword), format!("{keyword} is not supported")));
        }
        if self.flag(schema, "uniqueItems", path) {
            let rule = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            self.errors.push(FieldError::forbidden(&path.child("uniqueItems"), rule));
        }
        if place == Place::Junction {
            for keyword in NOT_IN_JUNCTIONS.iter().filter(|keyword| schema.contains_key(**keyword)) {
                self.errors
                    .push(FieldError::forbidden(&path.child(keyword), "must be undefined to be structural"));
            }
        }
    }

    fn kind(
        &mut self,
        schema: &Map<String, Value>,
        node: &Node,
        path: &FieldPath,
        place: Place,
    ) -> Option<Type> {
        let is_int_or_string = self.flag(schema, "x-kubernetes-int-or-string", path);
        let name = self.text(schema, "type", path).unwrap_or_default();
        let path = path.child("type");
        if is_int_or_string {
            if !name.is_empty() {
                let rule = "must be empty if x-kubernetes-int-or-string is true";
                self.errors.push(FieldError::forbidden(&path, rule));
            }
            return Some(Type::IntOrString);
        }
        let kind = Type::NAMED.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind);
        if kind.is_none() && !name.is_empty() {
            self.errors.push(FieldError::not_supported(
                &path,
                name.as_str(),
                Type::NAMED.map(|(name, _)| name),
            ));
        } else if node.is_resource && kind != Some(Type::Object) {
            let rule = "must be object if x-kubernetes-embedded-resource is true";
            self.errors.push(FieldError::invalid(&path, name.as_str(), rule));
        } else if place == Place::Root && kind.is_some_and(|kind| kind != Type::Object) {
            self.errors.push(FieldError::invalid(&path, name.as_str(), "must be object at the root"));
        } else if name.is_empty() && (place == Place::Root || !node.preserves_unknown) {
            match place {
                Place::Root => self.errors.push(FieldError::required(&path, "must not be empty at the root")),
                Place::Item => {
                    self.errors
                        .push(FieldError::required(&path, "must not be empty for specified array items"));
                }
                Place::Field => {
                    self.errors
                        .push(FieldError::required(&path, "must not be empty for specified object fields"));
                }
                Place::Junction => {}
            }
        }
        kind
    }

    fn list_type(&mut self, schema: &Map<String, Value>, node: &Node, path: &FieldPath) -> ListType {
        let (kind_path, keys_path) =
            (path.child("x-kubernetes-list-type"), path.child("x-kubernetes-list-map-keys"));
        let keys = self.texts(schema, "x-kubernetes-list-map-keys", path);
        let kind = self.text(schema, "x-kubernetes-list-type", path);
        if kind.is_some() && node.kind != Some(Type::Array) {
            let rule = "must be array if x-kubernetes-list-type is specified";
            self.errors.push(FieldError::invalid(
                &path.child("type"),
                node.kind.map_or("", Type::name),
                rule,
            ));
        }
        if !keys.is_empty() && kind.as_deref() != Some("map") {
            let rule = "must be map if x-kubernetes-list-map-keys is non-empty";
            self.errors.push(FieldError::invalid(&kind_path, kind.clone().unwrap_or_default(), rule));
        }
        match kind.as_deref() {
            None | Some("atomic") => ListType::Atomic,
            Some("set") => ListType::Set,
            Some("map") => {
                if keys.is_empty() {
                    let rule = "must not be empty if x-kubernetes-list-type is map";
                    self.errors.push(FieldError::required(&keys_path, rule));
                }
                let fields = node.items.as_ref().map(|items| &items.properties);
                for (index, key) in keys.iter().enumerate() {
                    if fields.is_none_or(|fields| !fields.contains_key(key)) {
                        let rule = "entries must all be names of item properties";
                        self.errors.push(FieldError::invalid(&keys_path.index(index), key.as_str(), rule));
                    }
                }
                ListType::Map(keys)
            }
            Some(other) => {
                self.errors.push(FieldError::not_supported(&kind_path, other, ["atomic", "set", "map"]));
                ListType::Atomic
            }
        }
    }

    fn is_atomic(&mut self, schema: &Map<String, Value>, node: &Node, path: &FieldPath) -> bool {
        let kind = self.text(schema, "x-kubernetes-map-type", path);
        if kind.is_some() && node.kind != Some(Type::Object) {
            let rule = "must be object if x-kubernetes-map-type is specified";
            self.errors.push(FieldError::invalid(
                &path.child("type"),
                node.kind.map_or("", Type::name),
                rule,
            ));
        }
        match kind.as_deref() {
            None | Some("granular") => false,
            Some("atomic") => true,
            Some(other) => {
                let path = path.child("x-kubernetes-map-type");
                self.errors.push(FieldError::not_supported(&path, other, ["atomic", "granular"]));
                false
            }
        }
    }

    fn pattern(&mut self, schema: &Map<String, Value>, path: &FieldPath) -> Option<Regex> {
        let pattern = self.text(schema, "pattern", path)?;
        match Regex::new(&pattern) {
            Ok(regex) => Some(regex),
            Err(error) => {
                let rule = format!("must be a valid regular expression, but isn't: {error}");
                self.errors.push(FieldError::invalid(&path.child("pattern"), pattern, rule));
                None
            }
        }
    }

    fn bound(
        &mut self,
        schema: &Map<String, Value>,
        limit: &str,
        exclusive: &str,
        path: &FieldPath,
    ) -> Option<Bound> {
        let is_exclusive = self.flag(schema, exclusive, path);
        Some(Bound { limit: self.number(schema, limit, path)?, is_exclusive })
    }

    fn wrong_type(&mut self, path: &FieldPath, field: &str, value: &Value, rule: &str) {
        self.errors.push(FieldError::type_invalid(&path.child(field), value.clone(), rule));
    }

    /// Reads one keyword; null is as good as absent.
    fn read<'v, T>(
        &mut self,
        schema: &'v Map<String, Value>,
        field: &str,
        path: &FieldPath,
        rule: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Option<T> {
        let value = schema.get(field).filter(|value| !value.is_null())?;
        let read = read(value);
        if read.is_none() {
            self.wrong_type(path, field, value, rule);
        }
        read
    }

    fn flag(&mut self, schema: &Map<String, Value>, field: &str, path: &FieldPath) -> bool {
        self.read(schema, field, path, "must be true or false", Value::as_bool).unwrap_or(false)
    }

    fn count(&mut self, schema: &Map<String, Value>, field: &str, path: &FieldPath) -> Option<u64> {
        self.read(schema, field, path, "must be a whole number, zero or more", Value::as_u64)
    }

    fn number(&mut self, schema: &Map<String, Value>, field: &str, path: &FieldPath) -> Option<Number> {
        self.read(schema, field, path, "must be a number", |value| value.as_number().cloned())
    }

    fn text(&mut self, schema: &Map<String, Value>, field: &str, path: &FieldPath) -> Option<String> {
        self.read(schema, field, path, "must be a string", |value| value.as_str().map(str::to_owned))
    }

    fn list<'v>(
        &mut self,
        schema: &'v Map<String, Value>,
        field: &str,
        path: &FieldPath,
    ) -> Option<&'v [Value]> {
        self.read(schema, field, path, "must be a list", |value| value.as_array().map(Vec::as_slice))
    }

    fn texts(&mut self, schema: &Map<String, Value>, field: &str, path: &FieldPath) -> Vec<String> {
        let strings =
            |value: &Value| value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect();
        self.read(schema, field, path, "must be a list of strings", strings).unwrap_or_default()
    }
}
