//! Private functions, with the properties that they keep, for the targets in `fuzz/`.

use crate::time::{go_duration, is_go_duration, is_rfc3339, rfc3339};

/// What is written as a time is read as one; any text is a time or is not.
pub fn times(data: &[u8]) {
    let number = data.iter().take(8).fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
    assert!(is_go_duration(&go_duration(number)), "{number}");
    for micros in [None, Some(0), Some(999_999)] {
        // Most numbers are beyond the year 9999; their remainders are not.
        for seconds in [number, number % 300_000_000_000] {
            if let Some(text) = rfc3339(seconds, micros) {
                assert!(is_rfc3339(&text, micros.is_some()), "{text}");
            }
        }
    }
    let text = String::from_utf8_lossy(data);
    is_go_duration(&text);
    if is_rfc3339(&text, true) {
        assert!(is_rfc3339(&text, false), "{text}");
    }
}
