//! The assignment annotation: what is accepted is written back as it was.
#![no_main]

use gantry_api::{decode_assignment, encode_assignment};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(assignment) = decode_assignment(text) {
        assert_eq!(decode_assignment(&encode_assignment(&assignment)).ok(), Some(assignment));
    }
});
