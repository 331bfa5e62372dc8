//! JSON patches and merge patches never panic. The input is two JSON documents, object and patch, separated by a zero byte.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(middle) = data.iter().position(|byte| *byte == 0) else { return };
    let (Ok(object), Ok(patch)) =
        (serde_json::from_slice(&data[..middle]), serde_json::from_slice(&data[middle + 1..]))
    else {
        return;
    };
    let _ = gantry_apimachinery::json_patch(&object, &patch);
    if let Ok(once) = gantry_apimachinery::merge_patch(&object, &patch) {
        assert_eq!(gantry_apimachinery::merge_patch(&once, &patch).ok(), Some(once), "a merge patch is idempotent");
    }
});
