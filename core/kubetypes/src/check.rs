//! Strict field validation: what the API server's JSON decoder would say of an object.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gantry_units::Quantity;
use serde_json::{Map, Value};

use crate::time::{is_go_duration, is_rfc3339};
use crate::{Field, Kind, Leaf, Scalar, Shape, Type, TypeId, Types};

/// What is wrong with an object, in the order of its fields' names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// The fields that the type does not have.
    pub unknown: Vec<UnknownField>,
    /// Values of a wrong type, in the words of Go's decoder. An object with one of these cannot be stored.
    pub mistyped: Vec<String>,
    /// Values outside the set that the field allows.
    pub unsupported: Vec<Unsupported>,
}

impl Findings {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.unknown.is_empty() && self.mistyped.is_empty() && self.unsupported.is_empty()
    }

    /// The warnings that `fieldValidation=Warn` sends: `unknown field "spec.containers[0].cpu"`.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        self.unknown.iter().map(UnknownField::to_string)
    }

    /// The error of `fieldValidation=Strict`; none when every field is known.
    pub fn strict_error(&self) -> Option<String> {
        let all: Vec<String> = self.warnings().collect();
        (!all.is_empty()).then(|| format!("strict decoding error: {}", all.join(", ")))
    }
}

/// A field that its type does not have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownField {
    /// Its path, such as `spec.containers[0].resources.cpu`.
    pub path: String,
    /// The path that was probably meant, such as `spec.containers[0].resources.limits.cpu`.
    pub meant: Option<String>,
}

impl fmt::Display for UnknownField {
    /// Kubernetes' own words, on which tools match, and behind them the fix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown field \"{}\"", self.path)?;
        match &self.meant {
            Some(meant) => write!(f, " (did you mean \"{meant}\"?)"),
            None => Ok(()),
        }
    }
}

/// A value that the field's set of values does not have. Empty text is absent text, and is not reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsupported {
    /// Path of the field.
    pub path: String,
    /// The value.
    pub value: String,
    /// The values that are allowed, sorted.
    pub supported: Vec<&'static str>,
}

impl fmt::Display for Unsupported {
    /// `spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: Unsupported value: {:?}: supported values: ", self.path, self.value)?;
        for (index, value) in self.supported.iter().enumerate() {
            write!(f, "{}\"{value}\"", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl Types {
    /// Everything that is wrong with an object of a kind. `null` is the same as absent; names of fields are told apart by case.
    pub fn check(&self, kind: &Kind, object: &Value) -> Findings {
        let mut walk =
            Walk { types: self, path: String::new(), names: Vec::new(), findings: Findings::default() };
        let of = self.type_of(kind.type_id);
        if object.is_object() {
            walk.message(kind.type_id, object);
        } else {
            let value = go_value(object);
            walk.findings
                .mistyped
                .push(format!("json: cannot unmarshal {value} into Go value of type {}", of.go_name()));
        }
        walk.findings
    }

    /// Removes the fields that the kind's types do not have, as an API server drops them before it stores an object, and tells their paths.
    pub fn prune(&self, kind: &Kind, object: &mut Value) -> Vec<String> {
        let mut removed = Vec::new();
        prune_message(self, self.type_of(kind.type_id), object, &mut String::new(), &mut removed);
        removed
    }
}

fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

fn push_index(path: &mut String, index: usize) {
    path.push('[');
    path.push_str(&index.to_string());
    path.push(']');
}

fn prune_message(types: &Types, of: &Type, value: &mut Value, path: &mut String, removed: &mut Vec<String>) {
    let Value::Object(object) = value else { return };
    let length = path.len();
    object.retain(|name, inner| {
        push_name(path, name);
        let field = if of.unwrap { None } else { types.field(of, name) };
        match field.map(|field| field.shape) {
            None => removed.push(path.clone()),
            Some(Shape::One(Leaf::Message(id))) => {
                prune_message(types, types.type_of(id), inner, path, removed);
            }
            Some(Shape::List(Leaf::Message(id))) => {
                let inside = path.len();
                for (index, item) in inner.as_array_mut().into_iter().flatten().enumerate() {
                    push_index(path, index);
                    prune_message(types, types.type_of(id), item, path, removed);
                    path.truncate(inside);
                }
            }
            Some(Shape::Map(Leaf::Message(id))) => {
                let inside = path.len();
                for (key, item) in inner.as_object_mut().into_iter().flatten() {
                    push_name(path, key);
                    prune_message(types, types.type_of(id), item, path, removed);
                    path.truncate(inside);
                }
            }
            Some(_) => {}
        }
        path.truncate(length);
        field.is_some()
    });
}

/// The word of Go's decoder for a JSON value.
fn go_value(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn go_leaf(types: &Types, leaf: Leaf) -> String {
    match leaf {
        Leaf::Message(id) => types.type_of(id).go_name().to_owned(),
        Leaf::Scalar(scalar) => match scalar {
            Scalar::String => "string",
            Scalar::Int32 => "int32",
            Scalar::Int64 => "int64",
            Scalar::Bool => "bool",
            Scalar::Double => "float64",
            Scalar::Bytes => "[]uint8",
            Scalar::Quantity => "resource.Quantity",
            Scalar::IntOrString => "intstr.IntOrString",
            Scalar::Time => "v1.Time",
            Scalar::MicroTime => "v1.MicroTime",
            Scalar::Duration => "v1.Duration",
            Scalar::Raw => "runtime.RawExtension",
            Scalar::SchemaOrBool => "v1.JSONSchemaPropsOrBool",
            Scalar::SchemaOrArray => "v1.JSONSchemaPropsOrArray",
            Scalar::SchemaOrStrings => "v1.JSONSchemaPropsOrStringArray",
        }
        .to_owned(),
    }
}

/// What somebody who wrote `name` in an object of type `of` probably meant, as a path from that object: a field that differs
/// only in case or by a slip of a finger, or, for an amount beside the maps of amounts, a key of the first map (`limits.cpu`).
fn meant(types: &Types, of: &Type, name: &str, value: &Value) -> Option<String> {
    let fields = || types.json_fields(of);
    let same = fields().find(|field| field.name.eq_ignore_ascii_case(name));
    let near = || fields().find(|field| name.len() > 3 && is_one_slip(name, field.name));
    if let Some(field) = same.or_else(near) {
        return Some(field.name.to_owned());
    }
    let amount = value.is_number() || value.as_str().is_some_and(|text| text.parse::<Quantity>().is_ok());
    let amounts = |field: &&Field| matches!(field.shape, Shape::Map(Leaf::Scalar(Scalar::Quantity)));
    let map = fields().find(amounts).filter(|_| amount)?;
    Some(format!("{}.{name}", map.name))
}

/// Whether one letter more, less, or other turns `a` into `b`.
fn is_one_slip(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    let start = short.iter().zip(long).take_while(|(a, b)| a == b).count();
    let rest = |skip: usize| short.get(start + skip..) == long.get(start + 1..);
    match long.len() - short.len() {
        0 => rest(1),
        1 => rest(0),
        _ => false,
    }
}

struct Walk<'a> {
    types: &'a Types,
    /// Path with indices and keys, for unknown fields.
    path: String,
    /// Names of the fields alone, as Go's decoder reports them.
    names: Vec<&'static str>,
    findings: Findings,
}

impl Walk<'_> {
    fn message(&mut self, id: TypeId, value: &Value) {
        let types = self.types;
        let of = types.type_of(id);
        let Value::Object(object) = value else { return };
        let length = self.path.len();
        for (name, inner) in object {
            push_name(&mut self.path, name);
            if let Some(field) = types.field(of, name) {
                self.names.push(field.name);
                self.field(of, field, inner);
                self.names.pop();
            } else {
                let meant = meant(types, of, name, inner).map(|meant| {
                    let mut path = self.path[..length].to_owned();
                    push_name(&mut path, &meant);
                    path
                });
                self.findings.unknown.push(UnknownField { path: self.path.clone(), meant });
            }
            self.path.truncate(length);
        }
    }

    fn field(&mut self, of: &Type, field: &Field, value: &Value) {
        match (field.shape, value) {
            (_, Value::Null) => {}
            (Shape::One(leaf), value) => self.leaf(of, field, leaf, value),
            (Shape::List(leaf), Value::Array(items)) => {
                let length = self.path.len();
                for (index, item) in items.iter().enumerate() {
                    push_index(&mut self.path, index);
                    self.leaf(of, field, leaf, item);
                    self.path.truncate(length);
                }
            }
            (Shape::Map(leaf), Value::Object(map)) => self.map(of, field, leaf, map),
            (Shape::List(leaf), value) => {
                let want = format!("[]{}", go_leaf(self.types, leaf));
                self.mistyped(of, go_value(value), &want);
            }
            (Shape::Map(leaf), value) => {
                let want = format!("map[string]{}", go_leaf(self.types, leaf));
                self.mistyped(of, go_value(value), &want);
            }
        }
    }

    fn map(&mut self, of: &Type, field: &Field, leaf: Leaf, map: &Map<String, Value>) {
        let length = self.path.len();
        for (key, inner) in map {
            push_name(&mut self.path, key);
            self.leaf(of, field, leaf, inner);
            self.path.truncate(length);
        }
    }

    fn leaf(&mut self, of: &Type, field: &Field, leaf: Leaf, value: &Value) {
        if value.is_null() {
            return;
        }
        match leaf {
            Leaf::Message(id) => {
                let inner = self.types.type_of(id);
                if let (true, Some(only)) = (inner.unwrap, inner.fields.first()) {
                    self.field(of, only, value);
                } else if value.is_object() {
                    self.message(id, value);
                } else {
                    self.mistyped(of, go_value(value), inner.go_name());
                }
            }
            Leaf::Scalar(scalar) => self.scalar(of, field, scalar, value),
        }
    }

    fn scalar(&mut self, of: &Type, field: &Field, scalar: Scalar, value: &Value) {
        let integer =
            |low: i64, high: i64| value.as_i64().is_some_and(|number| (low..=high).contains(&number));
        let fits = match scalar {
            Scalar::Raw => true,
            Scalar::String | Scalar::Bytes | Scalar::Time | Scalar::MicroTime | Scalar::Duration => {
                value.is_string()
            }
            Scalar::Int32 => integer(i32::MIN.into(), i32::MAX.into()),
            Scalar::Int64 => value.is_i64(),
            Scalar::Bool => value.is_boolean(),
            Scalar::Double => value.is_number(),
            Scalar::Quantity => value.is_string() || value.is_number(),
            Scalar::IntOrString => value.is_string() || integer(i32::MIN.into(), i32::MAX.into()),
            Scalar::SchemaOrBool => value.is_object() || value.is_boolean(),
            Scalar::SchemaOrArray | Scalar::SchemaOrStrings => value.is_object() || value.is_array(),
        };
        if !fits {
            let want = go_leaf(self.types, Leaf::Scalar(scalar));
            let found = match (scalar, value) {
                (Scalar::Int32 | Scalar::Int64 | Scalar::IntOrString, Value::Number(number)) => {
                    format!("number {number}")
                }
                _ => go_value(value).to_owned(),
            };
            self.mistyped(of, &found, &want);
            return;
        }
        if scalar == Scalar::Quantity {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match text.parse::<Quantity>() {
                Ok(_) => {}
                Err(gantry_units::Error::Syntax { .. }) => self.findings.mistyped.push(format!(
                    "{}: quantities must match the regular expression '{}'",
                    self.path,
                    Quantity::PATTERN
                )),
                Err(other) => self.findings.mistyped.push(format!("{}: {other}", self.path)),
            }
            return;
        }
        let Value::String(text) = value else { return };
        let wrong = match scalar {
            Scalar::Time if !is_rfc3339(text, false) => Some(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": not a time of that form"
            )),
            Scalar::MicroTime if !is_rfc3339(text, true) => Some(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05.000000Z07:00\": not a time of that form"
            )),
            Scalar::Duration if !is_go_duration(text) => Some(format!("time: invalid duration {text:?}")),
            // Go's base64 decoder skips line ends.
            Scalar::Bytes => STANDARD.decode(text.replace(['\r', '\n'], "")).err().map(|error| match error {
                base64::DecodeError::InvalidByte(offset, _)
                | base64::DecodeError::InvalidLastSymbol(offset, _) => {
                    format!("illegal base64 data at input byte {offset}")
                }
                base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => {
                    format!("illegal base64 data at input byte {}", text.len())
                }
            }),
            _ => None,
        };
        if let Some(wrong) = wrong {
            self.findings.mistyped.push(format!("{}: {wrong}", self.path));
        }
        if !field.enum_values.is_empty() && !text.is_empty() && !field.enum_values.contains(&text.as_str()) {
            let mut supported = field.enum_values.clone();
            supported.sort_unstable();
            self.findings.unsupported.push(Unsupported {
                path: self.path.clone(),
                value: text.clone(),
                supported,
            });
        }
    }

    fn mistyped(&mut self, of: &Type, found: &str, want: &str) {
        let field = self.names.join(".");
        let owner = of.short_name();
        self.findings.mistyped.push(format!(
            "json: cannot unmarshal {found} into Go struct field {owner}.{field} of type {want}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(group: &str, kind: &str, object: &Value) -> Findings {
        let types = Types::builtin();
        types.check(types.kind(group, "v1", kind).unwrap(), object)
    }

    #[test]
    fn a_good_deployment_has_no_findings() {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "creationTimestamp": null, "labels": {"x": "y"}},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}},
                "template": {"spec": {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
                    "containers": [{"name": "c", "resources": {"limits": {"cpu": 1, "nvidia.com/gpu": "1"}},
                        "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 3}}]}}}});
        assert!(
            check("apps", "Deployment", &object).is_empty(),
            "{:?}",
            check("apps", "Deployment", &object)
        );
    }

    #[test]
    fn an_unknown_field_is_told_what_was_probably_meant() {
        for (container, expected) in [
            (
                json!({"resources": {"cpu": "4"}}),
                r#"unknown field "spec.containers[0].resources.cpu" (did you mean "spec.containers[0].resources.limits.cpu"?)"#,
            ),
            (
                json!({"resource": {}}),
                r#"unknown field "spec.containers[0].resource" (did you mean "spec.containers[0].resources"?)"#,
            ),
            (
                json!({"Image": "x"}),
                r#"unknown field "spec.containers[0].Image" (did you mean "spec.containers[0].image"?)"#,
            ),
            (json!({"gpu": "1"}), r#"unknown field "spec.containers[0].gpu""#),
        ] {
            let found = check("", "Pod", &json!({"spec": {"containers": [container]}}));
            assert_eq!(found.warnings().collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn unknown_fields_are_named_by_their_path() {
        let object = json!({"spec": {"containers": [{"name": "c", "resources": {"cpu": 1}, "Image": "x"}],
            "volumes": [{"name": "v", "volumeSource": {}}]}, "bogus": null});
        let found = check("", "Pod", &object);
        let want = [
            "bogus",
            "spec.containers[0].Image",
            "spec.containers[0].resources.cpu",
            "spec.volumes[0].volumeSource",
        ];
        let mut unknown: Vec<&str> = found.unknown.iter().map(|field| field.path.as_str()).collect();
        unknown.sort_unstable();
        assert_eq!(unknown, want);
        assert!(found.strict_error().unwrap().starts_with("strict decoding error: unknown field \""));
        let types = Types::builtin();
        let mut pruned = object;
        let mut removed = types.prune(types.kind("", "v1", "Pod").unwrap(), &mut pruned);
        removed.sort();
        assert_eq!(removed, want);
        assert_eq!(
            pruned,
            json!({"spec": {"containers": [{"name": "c", "resources": {}}], "volumes": [{"name": "v"}]}})
        );
    }

    #[test]
    fn wrong_types_are_told_in_the_words_of_go() {
        let cases = [
            (json!([]), "json: cannot unmarshal array into Go value of type v1.Pod"),
            (
                json!({"spec": {"containers": "x"}}),
                "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
            ),
            (
                json!({"spec": {"containers": [{"env": [{"name": "a", "value": true}]}]}}),
                "json: cannot unmarshal bool into Go struct field EnvVar.spec.containers.env.value of type string",
            ),
            (
                json!({"spec": {"containers": [{"ports": [{"containerPort": "80"}]}]}}),
                "json: cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
            ),
            (
                json!({"spec": {"priority": 1.5}}),
                "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32",
            ),
            (
                json!({"spec": {"priority": 3_000_000_000_i64}}),
                "json: cannot unmarshal number 3000000000 into Go struct field PodSpec.spec.priority of type int32",
            ),
            (
                json!({"metadata": {"labels": {"a": 1}}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                json!({"spec": {"nodeSelector": ["a"]}}),
                "json: cannot unmarshal array into Go struct field PodSpec.spec.nodeSelector of type map[string]string",
            ),
            (
                json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "lots"}}}]}}),
                "spec.containers[0].resources.limits.cpu: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (
                json!({"metadata": {"creationTimestamp": "now"}}),
                "metadata.creationTimestamp: parsing time \"now\" as \"2006-01-02T15:04:05Z07:00\": not a time of that form",
            ),
        ];
        for (object, want) in cases {
            assert_eq!(check("", "Pod", &object).mistyped, [want]);
        }
        let secret = check("", "Secret", &json!({"data": {"a": "YQ==", "b": "a*"}}));
        assert_eq!(secret.mistyped, ["data.b: illegal base64 data at input byte 1"]);
    }

    #[test]
    fn values_outside_the_set_are_told_with_the_set() {
        let found = check(
            "",
            "Pod",
            &json!({"spec": {"restartPolicy": "Sometimes", "dnsPolicy": "", "tolerations": [{"effect": "No"}]}}),
        );
        let texts: Vec<String> = found.unsupported.iter().map(ToString::to_string).collect();
        assert!(texts.contains(
            &"spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\"".to_owned()
        ));
        assert!(texts.contains(
            &"spec.tolerations[0].effect: Unsupported value: \"No\": supported values: \"NoExecute\", \"NoSchedule\", \"PreferNoSchedule\""
                .to_owned()
        ));
        assert_eq!(texts.len(), 2);
    }

    #[test]
    fn open_values_are_not_looked_into() {
        let revision = json!({"revision": 1, "data": {"any": [1, {"thing": null}]}});
        assert!(check("apps", "ControllerRevision", &revision).is_empty());
        let review = json!({"spec": {"extra": {"a": ["b"]}}});
        assert!(check("authorization.k8s.io", "SubjectAccessReview", &review).is_empty());
        let crd = json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "a": {"additionalProperties": {"type": "string"}, "items": {"type": "string"}, "x-kubernetes-preserve-unknown-fields": true}}}}}]}});
        let found = check("apiextensions.k8s.io", "CustomResourceDefinition", &crd);
        assert!(found.is_empty(), "{found:?}");
    }
}
