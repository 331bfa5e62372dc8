//! Selectors from query strings never panic, whatever they are matched against.
#![no_main]

use gantry_apimachinery::{FieldSelector, Selector};
use serde_json::json;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let object = json!({"metadata": {"name": "x", "labels": {"a": "b", "n": "7"}}});
    if let Ok(selector) = text.parse::<Selector>() {
        selector.matches_object(&object);
    }
    if let Ok(selector) = text.parse::<FieldSelector>() {
        selector.matches(&object);
    }
});
