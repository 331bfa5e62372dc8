//! Time stamps as Kubernetes writes them.

use jiff::Timestamp;

/// A time as `metav1.Time`: RFC 3339 in whole seconds of UTC.
pub fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A time as `metav1.MicroTime`: RFC 3339 with six digits after the second.
pub fn micro_stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_cut_to_what_the_type_holds() {
        for (nanosecond, seconds, micros) in [
            (0, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"),
            (1_999_999_999, "1970-01-01T00:00:01Z", "1970-01-01T00:00:01.999999Z"),
            (1_767_225_600_000_001_000, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000001Z"),
        ] {
            let at = Timestamp::from_nanosecond(nanosecond).unwrap_or_default();
            assert_eq!((stamp(at).as_str(), micro_stamp(at).as_str()), (seconds, micros));
        }
    }
}
