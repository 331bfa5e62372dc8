//! Targets of the crates in `core/`.

use gantry_apimachinery::{FieldPath, FieldSelector, FieldSet, JsonPath, Schema, Selector};
use gantry_kubetypes::{PROTOBUF_MAGIC, Types};
use gantry_units::Quantity;
use serde_json::{Value, json};

use crate::input::{pair, text};

/// What is accepted prints as the same quantity.
pub(crate) fn quantity(data: &[u8]) {
    match text(data).parse::<Quantity>() {
        Ok(quantity) => {
            let printed = quantity.to_string();
            let again: Quantity = printed.parse().expect("what is printed is a quantity");
            assert_eq!(again, quantity);
            assert_eq!(again.to_string(), printed, "the printed form is stable");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Ages and the times of Kubernetes' JSON: any number has a text, and what is written as a time is one.
pub(crate) fn times(data: &[u8]) {
    let number = data.iter().take(8).fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
    assert!(!gantry_units::human_duration(number).is_empty());
    gantry_kubetypes::fuzzing::times(data);
}

/// Selectors of labels and fields print as the same selector and match whatever there is.
pub(crate) fn selector(data: &[u8]) {
    let text = text(data);
    let objects = [
        json!({"metadata": {"name": "x", "labels": {"a": "b", "n": "7"}}, "spec": {"nodeName": "y"}}),
        json!({"metadata": {"labels": {"x": ""}}}),
        json!({"metadata": []}),
    ];
    match text.parse::<Selector>() {
        Ok(selector) => {
            let printed = selector.to_string();
            let again: Selector = printed.parse().expect("what is printed is a selector");
            for object in &objects {
                assert_eq!(selector.matches_object(object), again.matches_object(object), "{printed}");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match text.parse::<FieldSelector>() {
        Ok(selector) => {
            let printed = selector.to_string();
            let again: FieldSelector = printed.parse().expect("what is printed is a selector");
            for object in &objects {
                assert_eq!(selector.matches(object), again.matches(object), "{printed}");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Paths of printer columns find only what is in the object.
pub(crate) fn jsonpath(data: &[u8]) {
    let object = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "x"}]}, "a": {"b.c": [1]}});
    match text(data).parse::<JsonPath>() {
        Ok(path) => drop(path.find(&object)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// JSON patches and merge patches of any object.
pub(crate) fn patch(data: &[u8]) {
    let Some((object, patch)) = pair::<Value, Value>(data) else { return };
    match gantry_apimachinery::json_patch(&object, &patch) {
        Ok(patched) if patch == json!([]) => assert_eq!(patched, object, "an empty patch changes nothing"),
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(once) = gantry_apimachinery::merge_patch(&object, &patch) {
        assert_eq!(
            gantry_apimachinery::merge_patch(&once, &patch).ok(),
            Some(once),
            "a merge patch is idempotent"
        );
    }
}

/// Strategic merge patches of a pod.
pub(crate) fn strategic_merge(data: &[u8]) {
    let Some((object, patch)) = pair::<Value, Value>(data) else { return };
    let merge = |object: &Value, patch: &Value| {
        gantry_apimachinery::strategic_merge_patch(Types::builtin(), "core.v1.Pod", object, patch)
    };
    match merge(&object, &patch) {
        Ok(merged) => {
            if object.is_object() {
                assert_eq!(merge(&merged, &json!({})).ok(), Some(merged), "an empty patch changes nothing");
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// FieldsV1: what is read is written in one form, and sets of it are sets.
pub(crate) fn fields_v1(data: &[u8]) {
    let Ok(fields) = serde_json::from_slice::<Value>(data) else { return };
    match FieldSet::from_fields_v1(&fields) {
        Ok(set) => {
            let written = set.to_fields_v1();
            let value = serde_json::from_str(&written).expect("what is written is JSON");
            let again = FieldSet::from_fields_v1(&value).expect("what is written is a set of fields");
            assert_eq!(again, set, "{written}");
            assert_eq!(again.to_fields_v1(), written, "the written form is stable");
            assert_eq!(set.union(&again), set);
            assert!(set.difference(&again).is_empty());
            assert!(set.members().iter().all(|path| set.contains(path)));
        }
        Err(error) => assert!(!error.is_empty()),
    }
}

/// Schemas of custom resources: defaults and pruning are done after one time.
pub(crate) fn schema(data: &[u8]) {
    let Some((schema, mut object)) = pair::<Value, Value>(data) else { return };
    match Schema::compile(&schema, &FieldPath::root()) {
        Ok(schema) => {
            schema.default(&mut object);
            let once = object.clone();
            schema.default(&mut object);
            assert_eq!(object, once, "defaults are idempotent");
            schema.prune(&mut object);
            assert_eq!(schema.prune(&mut object), Vec::<String>::new(), "nothing unknown is left");
            for error in schema.validate(&object, None) {
                assert!(!error.to_string().is_empty());
            }
            schema.validate(&object, Some(&once));
        }
        Err(errors) => assert!(!errors.is_empty()),
    }
}

/// Protobuf bodies: what is decoded has no field that its own kind does not know.
pub(crate) fn protobuf(data: &[u8]) {
    let types = Types::builtin();
    let mut body = PROTOBUF_MAGIC.to_vec();
    body.extend_from_slice(data);
    match gantry_kubetypes::decode(types, &body) {
        Ok(mut object) => {
            let name = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
            let kind =
                types.kind_of(&name("apiVersion"), &name("kind")).expect("only known kinds are decoded");
            assert_eq!(types.prune(kind, &mut object), Vec::<String>::new(), "{object}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Checking any JSON against the types of a pod; pruning leaves nothing unknown.
pub(crate) fn builtin_check(data: &[u8]) {
    let Ok(mut object) = serde_json::from_slice(data) else { return };
    let types = Types::builtin();
    let kind = types.kind("", "v1", "Pod").expect("pods are built in");
    if let Some(error) = types.check(kind, &object).strict_error() {
        assert!(!error.is_empty());
    }
    types.prune(kind, &mut object);
    assert_eq!(types.prune(kind, &mut object), Vec::<String>::new());
    assert!(types.check(kind, &object).warnings().next().is_none(), "what was unknown is gone: {object}");
}

/// Any JSON is a request or a reason.
pub(crate) fn dialect(data: &[u8]) {
    let Ok(pod) = serde_json::from_slice(data) else { return };
    let parsed = gantry_dialect::parse(&pod);
    let bound = gantry_dialect::parse_bound(&pod);
    for reason in [parsed.as_ref().err(), bound.as_ref().err()].into_iter().flatten() {
        assert!(!reason.to_string().is_empty() && reason.entry().code.starts_with('G'));
    }
    // A pod that has its node is read in fewer ways that can fail.
    if let Ok(request) = parsed {
        let bound = bound.expect("a pod that can be placed can be accounted for");
        assert_eq!((bound.pod, bound.containers), (request.pod, request.containers));
    }
    gantry_dialect::advice(&pod);
}

/// Any JSON is a node or a reason.
pub(crate) fn node(data: &[u8]) {
    let Ok(node) = serde_json::from_slice(data) else { return };
    match gantry_dialect::parse_node(&node) {
        Ok(node) => assert!(!node.name.is_empty() && node.gpus.is_empty()),
        Err(reason) => assert!(!reason.to_string().is_empty()),
    }
}
