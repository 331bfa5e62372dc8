//! Custom resource schemas never panic. The input is two JSON documents, schema and object, separated by a zero byte.
#![no_main]

use gantry_apimachinery::{FieldPath, Schema};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(middle) = data.iter().position(|byte| *byte == 0) else { return };
    let (Ok(schema), Ok(mut object)) = (
        serde_json::from_slice::<serde_json::Value>(&data[..middle]),
        serde_json::from_slice::<serde_json::Value>(&data[middle + 1..]),
    ) else {
        return;
    };
    if let Ok(schema) = Schema::compile(&schema, &FieldPath::root()) {
        schema.default(&mut object);
        schema.prune(&mut object);
        schema.validate(&object, None);
    }
});
