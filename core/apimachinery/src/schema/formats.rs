//! The string formats that are checked. A format that is not listed is documentation, and accepts everything.

use core::net::{Ipv4Addr, Ipv6Addr};

/// Whether a text has the format.
pub(super) fn accepts(format: &str, text: &str) -> bool {
    match format {
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "date-time" => text.contains(['T', 't']) && text.parse::<jiff::Timestamp>().is_ok(),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "uuid" => is_uuid(text),
        "byte" => is_base64(text),
        _ => true,
    }
}

fn is_uuid(text: &str) -> bool {
    let is_dash = |index: usize| matches!(index, 8 | 13 | 18 | 23);
    text.len() == 36
        && text
            .bytes()
            .enumerate()
            .all(|(index, byte)| if is_dash(index) { byte == b'-' } else { byte.is_ascii_hexdigit() })
}

fn is_base64(text: &str) -> bool {
    let body = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text);
    text.len().is_multiple_of(4)
        && body.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_accept_what_they_name() {
        let cases: [(&str, &[&str], &[&str]); 7] = [
            ("date", &["2026-01-31"], &["2026-02-30", "2026-1-1", "", "2026-01-31T00:00:00Z"]),
            ("date-time", &["2026-01-31T01:02:03Z", "2026-01-31T01:02:03.5+02:00"], &["2026-01-31", "now"]),
            ("ipv4", &["10.0.0.1"], &["10.0.0.256", "::1"]),
            ("ipv6", &["::1"], &["10.0.0.1", "g::"]),
            (
                "uuid",
                &["6f1c3a52-0d8e-4b7f-9a35-2c1e5d7b9f04"],
                &["6f1c3a52", "6f1c3a52-0d8e-4b7f-9a35_2c1e5d7b9f04"],
            ),
            ("byte", &["", "aGk=", "YQ=="], &["a", "a===", "é==="]),
            ("password", &["anything"], &[]),
        ];
        for (format, good, bad) in cases {
            for (texts, expected) in [(good, true), (bad, false)] {
                for text in texts {
                    assert_eq!(accepts(format, text), expected, "{format} {text:?}");
                }
            }
        }
    }
}
