//! Any JSON is a request or a reason, never a panic.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(pod) = serde_json::from_slice(data) else { return };
    if let Err(reason) = gantry_dialect::parse(&pod) {
        assert!(!reason.to_string().is_empty());
    }
    // A pod that has its node is read in fewer ways that can fail.
    if gantry_dialect::parse(&pod).is_ok() {
        assert!(gantry_dialect::parse_bound(&pod).is_ok());
    }
    gantry_dialect::advice(&pod);
});
