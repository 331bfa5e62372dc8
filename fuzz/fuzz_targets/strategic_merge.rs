//! Strategic merge patches of a pod never panic. The input is two JSON documents, separated by a zero byte.
#![no_main]

use gantry_kubetypes::Types;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(middle) = data.iter().position(|byte| *byte == 0) else { return };
    let (Ok(object), Ok(patch)) =
        (serde_json::from_slice(&data[..middle]), serde_json::from_slice(&data[middle + 1..]))
    else {
        return;
    };
    let _ = gantry_apimachinery::strategic_merge_patch(Types::builtin(), "core.v1.Pod", &object, &patch);
});
