//! Paths of printer columns never panic.
#![no_main]

use gantry_apimachinery::JsonPath;
use serde_json::json;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(path) = text.parse::<JsonPath>() {
        path.find(&json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "x"}]}}));
    }
});
