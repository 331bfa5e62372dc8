//! CDI device names: what is accepted is written back as it was.
#![no_main]

use gantry_cdi::DeviceName;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(name) = text.parse::<DeviceName>() {
        assert_eq!(name.to_string(), text);
    }
});
