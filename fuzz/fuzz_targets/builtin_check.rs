//! Checking any JSON against the types of a pod never panics, and pruning leaves nothing unknown.
#![no_main]

use gantry_kubetypes::Types;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(mut object) = serde_json::from_slice(data) else { return };
    let types = Types::builtin();
    let kind = types.kind("", "v1", "Pod").expect("pods are built in");
    types.check(kind, &object);
    types.prune(kind, &mut object);
    assert!(types.prune(kind, &mut object).is_empty());
});
