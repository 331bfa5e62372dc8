//! CDI edits of any OCI configuration never panic and never half-apply. The input is two JSON documents, edits and
//! configuration, separated by a zero byte.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(middle) = data.iter().position(|byte| *byte == 0) else { return };
    let (Ok(edits), Ok(config)) = (
        serde_json::from_slice::<gantry_cdi::ContainerEdits>(&data[..middle]),
        serde_json::from_slice::<serde_json::Value>(&data[middle + 1..]),
    ) else {
        return;
    };
    let mut edited = config.clone();
    if gantry_cdi::apply(&edits, &mut edited).is_err() {
        assert_eq!(edited, config);
    }
});
