#![allow(clippy::cast_possible_truncation, reason = "small numbers of a table")]

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Writes JSON as protobuf by the table: what a Go client sends.
struct Encoder;

impl Encoder {
    fn varint(mut value: u64, out: &mut Vec<u8>) {
        while value >= 0x80 {
            out.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    fn delimited(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
        Self::varint(u64::from(number) << 3 | 2, out);
        Self::varint(bytes.len() as u64, out);
        out.extend(bytes);
    }

    fn number(number: u32, value: u64, out: &mut Vec<u8>) {
        Self::varint(u64::from(number) << 3, out);
        Self::varint(value, out);
    }

    fn leaf(types: &Types, number: u32, leaf: Leaf, value: &Value, out: &mut Vec<u8>) {
        let text = || value.as_str().unwrap().as_bytes().to_vec();
        let mut inner = Vec::new();
        match leaf {
            Leaf::Message(id) => {
                let of = types.type_of(id);
                if of.unwrap {
                    Self::field(types, &of.fields[0], value, &mut inner);
                } else {
                    inner = Self::message(types, of, value);
                }
            }
            Leaf::Scalar(Scalar::String) => inner = text(),
            Leaf::Scalar(Scalar::Bytes) => inner = STANDARD.decode(text()).unwrap(),
            Leaf::Scalar(Scalar::Bool) => return Self::number(number, value.as_bool().unwrap().into(), out),
            Leaf::Scalar(Scalar::Int32 | Scalar::Int64) => {
                return Self::number(number, value.as_i64().unwrap().cast_unsigned(), out);
            }
            Leaf::Scalar(Scalar::Quantity) => Self::delimited(1, &text(), &mut inner),
            Leaf::Scalar(Scalar::Raw) => Self::delimited(1, value.to_string().as_bytes(), &mut inner),
            Leaf::Scalar(Scalar::IntOrString) => match value {
                Value::String(text) => {
                    Self::number(1, 1, &mut inner);
                    Self::delimited(3, text.as_bytes(), &mut inner);
                }
                value => Self::number(2, value.as_i64().unwrap().cast_unsigned(), &mut inner),
            },
            Leaf::Scalar(Scalar::Time) if value == "2025-08-26T10:34:56Z" => {
                Self::number(1, 1_756_204_496, &mut inner);
            }
            Leaf::Scalar(scalar) => panic!("{scalar:?} {value}"),
        }
        Self::delimited(number, &inner, out);
    }

    fn field(types: &Types, field: &Field, value: &Value, out: &mut Vec<u8>) {
        let number = field.number.unwrap();
        match (field.shape, value) {
            (_, Value::Null) => {}
            (Shape::One(leaf), value) => Self::leaf(types, number, leaf, value, out),
            (Shape::List(leaf), value) => {
                for item in value.as_array().unwrap() {
                    Self::leaf(types, number, leaf, item, out);
                }
            }
            (Shape::Map(leaf), value) => {
                for (key, item) in value.as_object().unwrap() {
                    let mut entry = Vec::new();
                    Self::delimited(1, key.as_bytes(), &mut entry);
                    Self::leaf(types, 2, leaf, item, &mut entry);
                    Self::delimited(number, &entry, out);
                }
            }
        }
    }

    fn message(types: &Types, of: &Type, value: &Value) -> Vec<u8> {
        let mut out = Vec::new();
        for field in of.fields.iter().filter(|field| field.number.is_some()) {
            if let (true, Shape::One(Leaf::Message(id))) = (field.inline, field.shape) {
                let inner = Self::message(types, types.type_of(id), value);
                Self::delimited(field.number.unwrap(), &inner, &mut out);
            } else if let Some(value) = value.get(field.name) {
                Self::field(types, field, value, &mut out);
            }
        }
        out
    }

    fn body(types: &Types, object: &Value) -> Vec<u8> {
        let (api_version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let known = types.kind_of(api_version, kind).unwrap();
        Self::envelope(api_version, kind, &Self::message(types, types.type_of(known.type_id), object), "")
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8], content_type: &str) -> Vec<u8> {
        let mut meta = Vec::new();
        Self::delimited(1, api_version.as_bytes(), &mut meta);
        Self::delimited(2, kind.as_bytes(), &mut meta);
        let mut out = PROTOBUF_MAGIC.to_vec();
        Self::delimited(1, &meta, &mut out);
        Self::delimited(2, raw, &mut out);
        Self::delimited(3, b"", &mut out);
        Self::delimited(4, content_type.as_bytes(), &mut out);
        out
    }
}

#[test]
fn a_namespace_written_by_hand_is_read() {
    let body = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x0d\x0a\x07\x0a\x01a\x12\x00\x1a\x00\x12\x00\x1a\x00\x1a\x00\x22\x00";
    let want =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}, "spec": {}, "status": {}});
    assert_eq!(decode(Types::builtin(), body).unwrap(), want);
}

#[test]
fn objects_round_trip_through_protobuf() {
    let types = Types::builtin();
    let objects = [
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "labels": {"a": "", "b": "c"}, "creationTimestamp": "2025-08-26T10:34:56Z",
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"a": "b"}},
                "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}},
                "template": {"metadata": {}, "spec": {"hostNetwork": true, "terminationGracePeriodSeconds": 0,
                    "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
                    "containers": [{"name": "c", "image": "i", "command": ["", "x"],
                        "resources": {"limits": {"cpu": "500m", "nvidia.com/gpu": "1"}},
                        "env": [{"name": "E", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "0"}}}],
                        "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 5}}]}}},
            "status": {}}),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "AAEC", "b": ""}, "immutable": false}),
        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7", "remainingItemCount": 0}, "items": [
            {"metadata": {"name": "p"}, "spec": {"containers": null, "priority": -5}, "status": {"podIP": "10.0.0.1", "hostIP": "10.0.0.2"}}]}),
        json!({"apiVersion": "batch/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Foreground"}),
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}, "spec": {"user": "u",
            "extra": {"k": ["v", "w"]}}, "status": {"allowed": false}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {}, "rules": null}),
        json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {}, "revision": i64::MAX, "data": {"any": [1.5, null]}}),
    ];
    for object in objects {
        assert_eq!(decode(types, &Encoder::body(types, &object)).unwrap(), object);
        let kind =
            types.kind_of(object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap()).unwrap();
        assert!(types.check(kind, &object).is_empty());
    }
}

#[test]
fn json_in_an_envelope_is_taken_as_it_is() {
    let body =
        Encoder::envelope("gantry.dev/v1alpha1", "GpuNode", br#"{"spec":{"a":1}}"#, "application/json");
    let want = json!({"apiVersion": "gantry.dev/v1alpha1", "kind": "GpuNode", "spec": {"a": 1}});
    assert_eq!(decode(Types::builtin(), &body).unwrap(), want);
}

#[test]
fn every_kind_is_read_from_an_empty_message() {
    let types = Types::builtin();
    for kind in types.kinds() {
        let body = Encoder::envelope(&kind.api_version(), kind.kind, b"", "");
        let object = decode(types, &body).unwrap();
        assert_eq!(object["kind"], kind.kind);
        let findings = types.check(kind, &object);
        assert!(findings.is_empty(), "{object} {findings:?}");
    }
}

#[test]
fn bad_bodies_are_refused_with_the_place() {
    let types = Types::builtin();
    let cases: &[(Vec<u8>, &str)] = &[
        (b"{}".to_vec(), "not Kubernetes protobuf: the first four bytes must be 6b 38 73 00 (\"k8s\\0\")"),
        (
            Encoder::envelope("v1", "Gpu", b"", ""),
            "no protobuf form is known of kind \"Gpu\" in version \"v1\": send application/json",
        ),
        (b"k8s\0\x0a\x7f".to_vec(), "malformed protobuf at byte 6: a value ends after the bytes do"),
        (b"k8s\0\x00\x00".to_vec(), "malformed protobuf at byte 4: a field's number is out of range"),
        (
            b"k8s\0\x0b".to_vec(),
            "malformed protobuf at byte 4: groups and unknown wire types are not used by Kubernetes",
        ),
        (
            b"k8s\0\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80".to_vec(),
            "malformed protobuf at byte 4: a number has more than 64 bits",
        ),
        (
            Encoder::envelope("v1", "Pod", b"\x0a\x02\x08\x01", ""),
            "malformed protobuf at byte 19: the field's wire type must be length-delimited",
        ),
        (vec![0; MAX_BODY_BYTES + 1], "body of 3145729 bytes is longer than the limit of 3145728 bytes"),
    ];
    for (body, want) in cases {
        assert_eq!(decode(types, body).unwrap_err().to_string(), *want);
    }
}

/// A custom resource's definition whose schema has this many schemas inside each other (`not`, number 28).
fn nested_schemas(depth: usize) -> Vec<u8> {
    let wrap = |inner: &[u8], number| {
        let mut outer = Vec::new();
        Encoder::delimited(number, inner, &mut outer);
        outer
    };
    let schema = (0..depth).fold(Vec::new(), |schema, _| wrap(&schema, 28));
    // openAPIV3Schema, schema, versions, spec
    let definition = [1, 4, 7, 2].into_iter().fold(schema, |inner, number| wrap(&inner, number));
    Encoder::envelope("apiextensions.k8s.io/v1", "CustomResourceDefinition", &definition, "")
}

#[test]
fn depth_is_bounded() {
    let types = Types::builtin();
    let object = decode(types, &nested_schemas(40)).unwrap();
    let mut schema = &object["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for _ in 0..40 {
        schema = &schema["not"];
    }
    assert!(schema.is_object());
    let error = decode(types, &nested_schemas(3_000)).unwrap_err().to_string();
    assert!(error.ends_with("messages are nested too deeply"), "{error}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..200), at in 0_usize..1_000) {
        let types = Types::builtin();
        let kind = &types.kinds()[at % types.kinds().len()];
        let body = Encoder::envelope(&kind.api_version(), kind.kind, &raw, "");
        if let Err(Error::Malformed { offset, .. }) = decode(types, &body) {
            prop_assert!(offset <= body.len());
        }
        let _ = decode(types, &raw);
    }

    #[test]
    fn a_damaged_body_is_read_or_refused(at in 0_usize..400, byte in any::<u8>(), cut in 0_usize..400) {
        let types = Types::builtin();
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}}}]}});
        let mut body = Encoder::body(types, &object);
        let length = body.len();
        body[at % length] = byte;
        body.truncate(length - cut % length);
        if let Ok(value) = decode(types, &body) {
            prop_assert!(value.is_object());
        }
    }
}
