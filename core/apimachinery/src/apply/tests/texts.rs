//! FieldsV1 and managedFields as text.

use serde_json::{Value, json};

use crate::apply::{FieldSet, ManagedFields};

#[test]
fn fields_are_written_in_kubernetes_order() {
    let text = r#"{"f:a":{},"f:b":{".":{},"f:c":{},"k:{\"port\":9}":{},"k:{\"port\":10,\"protocol\":\"TCP\"}":{".":{},"f:port":{}},"v:1":{},"v:\"x\"":{},"i:3":{},"i:20":{}}}"#;
    let set = FieldSet::from_fields_v1(&serde_json::from_str(text).unwrap()).unwrap();
    assert_eq!(set.to_fields_v1(), text);
    assert_eq!(FieldSet::default().to_fields_v1(), "{}");
    let paths: Vec<String> =
        set.members().iter().map(|path| path.iter().map(ToString::to_string).collect()).collect();
    assert_eq!(
        paths,
        [
            ".a",
            ".b",
            ".b.c",
            ".b[port=9]",
            ".b[port=10,protocol=\"TCP\"]",
            ".b[=1]",
            ".b[=\"x\"]",
            ".b[3]",
            ".b[20]",
            ".b[port=10,protocol=\"TCP\"].port"
        ]
    );
}

#[test]
fn steps_of_the_same_meaning_are_one_and_unknown_ones_are_left_out() {
    let fields =
        json!({"f:a": {"k:{\"x\":1}": {"f:p": {}}, "k:{ \"x\": 1 }": {"f:q": {}}}, "z:9": {"f:b": {}}});
    let set = FieldSet::from_fields_v1(&fields).unwrap();
    assert_eq!(set.to_fields_v1(), r#"{"f:a":{"k:{\"x\":1}":{"f:p":{},"f:q":{}}}}"#);
}

#[test]
fn what_is_no_set_of_fields_is_refused() {
    for (fields, expected) in [
        (json!([]), "fields are a JSON object of path elements"),
        (json!({"f:a": 1}), "fields are a JSON object of path elements"),
        (json!({"a": {}}), "\"a\" is no path element: it begins with \"f:\", \"k:\", \"v:\" or \"i:\""),
        (json!({"é:": {}}), "\"é:\" is no path element: it begins with \"f:\", \"k:\", \"v:\" or \"i:\""),
        (json!({"i:x": {}}), "\"i:x\" is no path element: the index is no number"),
        (json!({"k:[1]": {}}), "\"k:[1]\" is no path element: the keys are not an object"),
        (json!({"v:": {}}), "\"v:\" is no path element: EOF while parsing a value at line 1 column 0"),
    ] {
        assert_eq!(FieldSet::from_fields_v1(&fields).unwrap_err(), expected);
    }
}

#[test]
fn managed_fields_are_read_and_written_as_kubernetes_does() {
    let text = r#"[{"manager":"kubectl","operation":"Apply","apiVersion":"apps/v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:replicas":{}}}},{"manager":"kubelet","operation":"Update","apiVersion":"apps/v1","time":"2025-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{}},"subresource":"status"}]"#;
    let managed = ManagedFields::parse(&serde_json::from_str(text).unwrap()).unwrap();
    assert_eq!(managed.to_json(), text);
    assert_eq!(ManagedFields::parse(&managed.to_value()).as_ref(), Ok(&managed));
    let entry = |change: (&str, Value)| {
        let mut entry = json!({"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}});
        entry[change.0] = change.1;
        ManagedFields::parse(&json!([entry])).unwrap_err()
    };
    for (change, expected) in [
        (("operation", json!("Delete")), "operation must be `Apply` or `Update`"),
        (("apiVersion", json!("")), "apiVersion must not be empty"),
        (("fieldsType", json!("FieldsV2")), "invalid fieldsType \"FieldsV2\" in managed fields entry 0"),
        (("fieldsType", Value::Null), "missing fieldsType in managed fields entry 0"),
        (("time", json!("noon")), "\"noon\" is no time in managed fields entry 0"),
        (("manager", json!(1)), "manager must be a string in managed fields entry 0"),
        (
            ("fieldsV1", json!({"x": {}})),
            "error decoding set: \"x\" is no path element: it begins with \"f:\", \"k:\", \"v:\" or \"i:\"",
        ),
    ] {
        assert_eq!(entry(change), expected);
    }
    assert_eq!(ManagedFields::parse(&json!({})).unwrap_err(), "managedFields must be a list");
}

#[test]
fn an_empty_list_or_entry_asks_to_forget_all_owners() {
    for reset in [json!([]), json!([{}]), json!([{"manager": ""}])] {
        assert!(ManagedFields::is_reset(&reset), "{reset}");
    }
    for other in [json!(null), json!([{"manager": "m"}]), json!([{}, {}]), json!({})] {
        assert!(!ManagedFields::is_reset(&other), "{other}");
    }
}
