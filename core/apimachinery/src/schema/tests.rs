use proptest::prelude::*;
use serde_json::{Value, json};

use super::Schema;
use crate::FieldPath;

/// A schema of an object whose `spec` is the given one.
fn with_spec(spec: &Value) -> Schema {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    Schema::compile(&schema, &FieldPath::new("schema")).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn object(spec: &Value) -> Value {
    json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "x", "labels": {"a": "b"}}, "spec": spec})
}

fn faults(schema: &Schema, spec: &Value, old: Option<&Value>) -> Vec<String> {
    schema.validate(&object(spec), old.map(object).as_ref()).iter().map(ToString::to_string).collect()
}

#[test]
fn nested_lists_of_schemas_are_checked_once() {
    let nested = (0..60).fold(json!({"minimum": 1}), |inner, _| json!({"allOf": [inner]}));
    let mut spec = nested;
    spec["type"] = "integer".into();
    let schema = with_spec(&spec);
    assert_eq!(faults(&schema, &json!(1), None).len(), 0);
    let faults = faults(&schema, &json!(0), None);
    assert_eq!(faults.len(), 61);
    assert_eq!(faults[60], "spec: Invalid value: 0: spec in body should be greater than or equal to 1");
}

#[test]
fn values_are_checked_against_their_schema() {
    let cases: Vec<(Value, Value, &[&str])> = vec![
        (json!({"type": "integer"}), json!(3), &[]),
        (json!({"type": "integer"}), json!(3.0), &[]),
        (
            json!({"type": "integer"}),
            json!("3"),
            &["spec: Invalid value: \"string\": spec in body must be of type integer: \"string\""],
        ),
        (
            json!({"type": "integer"}),
            json!(3.5),
            &["spec: Invalid value: \"number\": spec in body must be of type integer: \"number\""],
        ),
        (
            json!({"type": "object"}),
            Value::Null,
            &["spec: Invalid value: \"null\": spec in body must be of type object: \"null\""],
        ),
        (json!({"type": "object", "nullable": true}), Value::Null, &[]),
        (json!({"x-kubernetes-int-or-string": true}), json!("50%"), &[]),
        (json!({"x-kubernetes-int-or-string": true}), json!(50), &[]),
        (
            json!({"x-kubernetes-int-or-string": true}),
            json!(true),
            &["spec: Invalid value: \"boolean\": spec in body must be of type integer,string: \"boolean\""],
        ),
        (
            json!({"type": "integer", "minimum": 0}),
            json!(-1),
            &["spec: Invalid value: -1: spec in body should be greater than or equal to 0"],
        ),
        (
            json!({"type": "integer", "maximum": 5}),
            json!(6),
            &["spec: Invalid value: 6: spec in body should be less than or equal to 5"],
        ),
        (
            json!({"type": "number", "minimum": 0.5, "exclusiveMinimum": true}),
            json!(0.5),
            &["spec: Invalid value: 0.5: spec in body should be greater than 0.5"],
        ),
        (
            json!({"type": "integer", "multipleOf": 4}),
            json!(6),
            &["spec: Invalid value: 6: spec in body should be a multiple of 4"],
        ),
        (json!({"type": "number", "multipleOf": 0.1}), json!(0.3), &[]),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000_u32),
            &["spec: Invalid value: 3000000000: spec in body must be of type int32: 3000000000"],
        ),
        (
            json!({"type": "string", "minLength": 1}),
            json!(""),
            &["spec: Invalid value: \"\": spec in body should be at least 1 chars long"],
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            json!("äöü"),
            &["spec: Too long: may not be more than 2 characters"],
        ),
        (
            json!({"type": "string", "pattern": "^[a-z]+$"}),
            json!("A"),
            &["spec: Invalid value: \"A\": spec in body should match '^[a-z]+$'"],
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("soon"),
            &["spec: Invalid value: \"soon\": spec in body must be of type date-time: \"soon\""],
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            &["spec: Unsupported value: \"c\": supported values: \"a\", \"b\""],
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            json!([]),
            &["spec: Invalid value: []: spec in body should have at least 1 items"],
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
            json!(["a", "b"]),
            &["spec: Too many: 2: must have at most 1 items"],
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
            json!(["a", "b", "a"]),
            &["spec[2]: Duplicate value: \"a\""],
        ),
        (
            json!({
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "v": {"type": "integer"}}},
            }),
            json!([{"name": "a", "v": 1}, {"name": "b"}, {"name": "a", "v": 2}]),
            &["spec[2]: Duplicate value: {\"name\":\"a\"}"],
        ),
        (
            json!({"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}),
            json!({"b": 1}),
            &[
                "spec.a: Required value",
                "spec.b: Invalid value: \"integer\": spec.b in body must be of type string: \"integer\"",
            ],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 3}),
            json!({"x.y/z": 1}),
            &[
                "spec: Invalid value: {\"x.y/z\":1}: spec in body should have at least 3 properties",
                "spec[x.y/z]: Invalid value: \"integer\": spec[x.y/z] in body must be of type string: \"integer\"",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"kind": "Pod"}),
            &["spec.apiVersion: Required value: must not be empty"],
        ),
        (
            json!({"type": "integer", "anyOf": [{"minimum": 10}, {"maximum": 0}]}),
            json!(5),
            &["spec: Invalid value: 5: \"spec\" must validate at least one schema (anyOf)"],
        ),
        (
            json!({"type": "integer", "oneOf": [{"minimum": 1}, {"minimum": 2}]}),
            json!(5),
            &[
                "spec: Invalid value: 5: \"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ],
        ),
        (
            json!({"type": "integer", "allOf": [{"minimum": 10}], "not": {"maximum": 9}}),
            json!(5),
            &[
                "spec: Invalid value: 5: \"spec\" must validate all the schemas (allOf)",
                "spec: Invalid value: 5: \"spec\" must not validate the schema (not)",
                "spec: Invalid value: 5: spec in body should be greater than or equal to 10",
            ],
        ),
    ];
    for (schema, spec, expected) in cases {
        assert_eq!(faults(&with_spec(&schema), &spec, None), expected, "{spec} in {schema}");
    }
}

#[test]
fn rules_in_cel_see_the_object_and_its_predecessor() {
    let schema = with_spec(&json!({
        "type": "object",
        "required": ["min", "max"],
        "properties": {
            "min": {"type": "integer"},
            "max": {"type": "integer", "x-kubernetes-validations": [{"rule": "self < 100"}]},
            "class": {"type": "string", "x-kubernetes-validations": [
                {"rule": "self == oldSelf", "message": "class is immutable", "reason": "FieldValueForbidden"},
            ]},
        },
        "x-kubernetes-validations": [
            {"rule": "self.min <= self.max", "messageExpression": "'min ' + string(self.min) + ' exceeds max'"},
        ],
    }));
    assert_eq!(faults(&schema, &json!({"min": 1, "max": 2}), None), Vec::<String>::new());
    assert_eq!(
        faults(&schema, &json!({"min": 3, "max": 2}), None),
        ["spec: Invalid value: \"object\": min 3 exceeds max"]
    );
    assert_eq!(
        faults(&schema, &json!({"min": 3, "max": 100}), None),
        ["spec.max: Invalid value: 100: failed rule: self < 100"]
    );
    let old = json!({"min": 1, "max": 2, "class": "a"});
    assert_eq!(
        faults(&schema, &json!({"min": 1, "max": 2, "class": "b"}), Some(&old)),
        ["spec.class: Forbidden: class is immutable"]
    );
    assert_eq!(faults(&schema, &json!({"min": 1, "max": 2, "class": "b"}), None), Vec::<String>::new());
    let blocked = faults(&schema, &json!({"min": 1}), None);
    assert_eq!(blocked.len(), 2);
    assert!(blocked[1].contains("some validation rules were not checked"), "{blocked:?}");
}

#[test]
fn missing_fields_get_their_defaults_inside_the_objects_that_are_there() {
    let schema = with_spec(&json!({
        "type": "object",
        "properties": {
            "replicas": {"type": "integer", "default": 1},
            "note": {"type": "string", "nullable": true, "default": "n"},
            "inner": {"type": "object", "properties": {"x": {"type": "string", "default": "dx"}}},
            "outer": {"type": "object", "default": {}, "required": ["y"], "properties": {"y": {"type": "string", "default": "dy"}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"z": {"type": "string", "default": "dz"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"w": {"type": "integer", "default": 0}}}},
        },
    }));
    let mut value =
        object(&json!({"replicas": null, "note": null, "list": [{}, {"z": "set"}], "map": {"k": {}}}));
    schema.default(&mut value);
    assert_eq!(
        value["spec"],
        json!({
            "replicas": 1, "note": null, "outer": {"y": "dy"}, "list": [{"z": "dz"}, {"z": "set"}], "map": {"k": {"w": 0}},
        })
    );
}

#[test]
fn fields_that_nobody_specified_are_dropped_and_named() {
    let schema = with_spec(&json!({
        "type": "object",
        "properties": {
            "known": {"type": "object", "properties": {"a": {"type": "string"}}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"in": {"type": "object"}}},
            "any": {"type": "object", "additionalProperties": true},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
            "pod": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}},
        },
    }));
    let mut value = object(&json!({
        "known": {"a": "1", "typo": 1}, "typo": {"deep": 1}, "open": {"x": {"y": 1}, "in": {"z": 1}}, "any": {"x": {"y": 1}},
        "map": {"k": {"a": "1", "b": 1}}, "list": [{"a": "1"}, {"b": 1}],
        "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"q": 1}, "status": {}},
    }));
    value["extra"] = json!(1);
    let mut dropped = schema.prune(&mut value);
    dropped.sort();
    assert_eq!(
        dropped,
        [
            "extra",
            "spec.known.typo",
            "spec.list[1].b",
            "spec.map.k.b",
            "spec.open.in.z",
            "spec.pod.spec.q",
            "spec.pod.status",
            "spec.typo",
        ]
    );
    assert_eq!(
        value,
        object(&json!({
            "known": {"a": "1"}, "open": {"x": {"y": 1}, "in": {}}, "any": {"x": {"y": 1}}, "map": {"k": {"a": "1"}},
            "list": [{"a": "1"}, {}], "pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {}},
        }))
    );
    assert_eq!(schema.prune(&mut value), Vec::<String>::new());
}

#[test]
fn a_schema_that_is_not_structural_is_refused_with_every_fault() {
    let cases: Vec<(Value, &[&str])> = vec![
        (json!([]), &["s: Invalid value: []: must be a schema object"]),
        (json!({}), &["s.type: Required value: must not be empty at the root"]),
        (json!({"type": "string"}), &["s.type: Invalid value: \"string\": must be object at the root"]),
        (
            json!({"type": "object", "properties": {"a": {}, "b": {"type": "array", "items": {}}}}),
            &[
                "s.properties[a].type: Required value: must not be empty for specified object fields",
                "s.properties[b].items.type: Required value: must not be empty for specified array items",
            ],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "list"}}}),
            &[
                "s.properties[a].type: Unsupported value: \"list\": supported values: \"array\", \"boolean\", \"integer\", \
               \"number\", \"object\", \"string\"",
            ],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array"}}}),
            &["s.properties[a].items: Required value: must be specified"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer", "x-kubernetes-int-or-string": true}}}),
            &["s.properties[a].type: Forbidden: must be empty if x-kubernetes-int-or-string is true"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"$ref": "x", "type": "object"}}}),
            &["s.properties[a].$ref: Forbidden: $ref is not supported"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": true}),
            &["s.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
        ),
        (
            json!({"type": "object", "anyOf": [{"properties": {"a": {"default": 1}}}]}),
            &["s.anyOf[0].properties[a].default: Forbidden: must be undefined to be structural"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer", "default": "x"}}}),
            &[
                "s.properties[a].default: Invalid value: \"x\": must be valid itself: <nil>: Invalid value: \"string\": in body \
               must be of type integer: \"string\"",
            ],
        ),
        (
            json!({"type": "object", "properties": {"a": {
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object"},
            }}}),
            &[
                "s.properties[a].x-kubernetes-list-map-keys[0]: Invalid value: \"k\": entries must all be names of item properties",
            ],
        ),
        (
            json!({"type": "object", "required": "a", "minProperties": -1}),
            &[
                "s.required: Invalid value: \"a\": must be a list of strings",
                "s.minProperties: Invalid value: -1: must be a whole number, zero or more",
            ],
        ),
    ];
    for (schema, expected) in cases {
        let errors = Schema::compile(&schema, &FieldPath::new("s")).unwrap_err();
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expected, "{schema}");
    }
}

#[test]
fn a_schema_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&with_spec(&json!({"type": "object", "x-kubernetes-validations": [{"rule": "true"}]})));
}

#[test]
fn patterns_and_rules_that_cannot_be_read_are_refused() {
    let compile = |field: Value| {
        let schema = json!({"type": "object", "properties": {"a": field}});
        Schema::compile(&schema, &FieldPath::new("s")).unwrap_err()[0].to_string()
    };
    let text = compile(json!({"type": "string", "pattern": "("}));
    assert!(
        text.starts_with("s.properties[a].pattern: Invalid value: \"(\": must be a valid regular expression"),
        "{text}"
    );
    let text = compile(json!({"type": "string", "x-kubernetes-validations": [{"rule": "self =="}]}));
    assert!(text.starts_with("s.properties[a].x-kubernetes-validations[0].rule: Invalid value"), "{text}");
    let deep = "(".repeat(500) + "true" + &")".repeat(500);
    let text = compile(json!({"type": "string", "x-kubernetes-validations": [{"rule": deep}]}));
    assert!(text.contains("nested too deeply"), "{text}");
}

proptest! {
    #[test]
    fn no_rule_makes_it_panic(rule in "[()\\[\\].,+?: '\"a-c0-9&|=-]{0,40}") {
        let field = json!({"type": "string", "x-kubernetes-validations": [{"rule": rule}]});
        let schema = json!({"type": "object", "properties": {"spec": field}});
        if let Ok(schema) = Schema::compile(&schema, &FieldPath::root()) {
            schema.validate(&object(&json!("x")), None);
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["", "a", "string", "object", "array", "map", "set", "("])
            .prop_map(Value::from),
    ];
    let keys = vec![
        "type",
        "properties",
        "items",
        "additionalProperties",
        "default",
        "enum",
        "minimum",
        "pattern",
        "required",
        "anyOf",
        "not",
        "a",
        "nullable",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-int-or-string",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
    ];
    leaf.prop_recursive(4, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(keys.clone()), inner), 0..5)
                .prop_map(|fields| fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn no_schema_and_no_object_make_it_panic(schema in any_value(), mut value in any_value()) {
        let schema = json!({"type": "object", "properties": {"a": schema}, "x-kubernetes-preserve-unknown-fields": true});
        if let Ok(schema) = Schema::compile(&schema, &FieldPath::root()) {
            schema.default(&mut value);
            schema.prune(&mut value);
            schema.validate(&value, None);
            let once = value.clone();
            schema.default(&mut value);
            prop_assert!(schema.prune(&mut value).is_empty());
            prop_assert_eq!(value, once);
        }
    }
}
