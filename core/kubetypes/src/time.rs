//! The text forms of times and durations in Kubernetes' JSON.

/// `YYYY-MM-DDTHH:MM:SSZ` of seconds since 1970, with six digits of a second when `micros` is given; none outside the years 0 to 9999.
pub(crate) fn rfc3339(seconds: i64, micros: Option<u32>) -> Option<String> {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days to a civil date: the year begins in March, so that the leap day comes last; eras of 400 years are alike.
    let shifted = days.checked_add(719_468)?;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    if !(0..=9_999).contains(&year) {
        return None;
    }
    let fraction = micros.map_or_else(String::new, |micros| format!(".{micros:06}"));
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"))
}

/// Whether the text is an RFC 3339 time; with `micros`, one with exactly six digits of a second.
pub(crate) fn is_rfc3339(text: &str, micros: bool) -> bool {
    let Some((date, rest)) = text.split_at_checked(11) else { return false };
    let Some((clock, rest)) = rest.split_at_checked(8) else { return false };
    let number = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten()
    };
    let shape = |text: &str, pattern: &str| {
        text.len() == pattern.len()
            && text
                .bytes()
                .zip(pattern.bytes())
                .all(|(byte, want)| if want == b'0' { byte.is_ascii_digit() } else { byte == want })
    };
    if !shape(date, "0000-00-00T") || !shape(clock, "00:00:00") {
        return false;
    }
    let (year, month, day) = (number(&date[..4]), number(&date[5..7]), number(&date[8..10]));
    let (hour, minute, second) = (number(&clock[..2]), number(&clock[3..5]), number(&clock[6..8]));
    let leap = year.is_some_and(|year| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0));
    let last = match month {
        Some(2) => 28 + u32::from(leap),
        Some(4 | 6 | 9 | 11) => 30,
        Some(1..=12) => 31,
        _ => return false,
    };
    let in_range = day.is_some_and(|day| (1..=last).contains(&day))
        && hour.is_some_and(|hour| hour < 24)
        && minute.is_some_and(|minute| minute < 60)
        && second.is_some_and(|second| second < 60);
    let (digits, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            (Some(end), &rest[end..])
        }
        None => (None, rest),
    };
    let fraction = if micros { digits == Some(6) } else { digits != Some(0) };
    let zone = zone == "Z"
        || ((shape(zone, "+00:00") || shape(zone, "-00:00"))
            && number(&zone[1..3]).is_some_and(|hour| hour < 24)
            && number(&zone[4..6]).is_some_and(|minute| minute < 60));
    in_range && fraction && zone
}

/// Go's text of a duration in nanoseconds, such as `1h30m0s`, `1.5s`, `300ms`.
pub(crate) fn go_duration(nanos: i64) -> String {
    fn with_fraction(nanos: u64, unit: u64, name: &str) -> String {
        let (whole, rest) = (nanos / unit, nanos % unit);
        if rest == 0 {
            return format!("{whole}{name}");
        }
        let width = unit.ilog10() as usize;
        let fraction = format!("{rest:0width$}");
        format!("{whole}.{}{name}", fraction.trim_end_matches('0'))
    }
    let size = nanos.unsigned_abs();
    let text = match size {
        0 => return "0s".to_owned(),
        1..1_000 => format!("{size}ns"),
        1_000..1_000_000 => with_fraction(size, 1_000, "µs"),
        1_000_000..1_000_000_000 => with_fraction(size, 1_000_000, "ms"),
        _ => {
            let (minutes, rest) = (size / 60_000_000_000, size % 60_000_000_000);
            let seconds = with_fraction(rest, 1_000_000_000, "s");
            match (minutes / 60, minutes % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    };
    if nanos < 0 { format!("-{text}") } else { text }
}

/// Whether Go reads the text as a duration: a sign, then numbers each with a unit, or `0`.
pub(crate) fn is_go_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let number = &rest[..end];
        if !number.bytes().any(|byte| byte.is_ascii_digit()) || number.matches('.').count() > 1 {
            return false;
        }
        rest = &rest[end..];
        let Some(unit) =
            ["ns", "us", "µs", "μs", "ms", "s", "m", "h"].into_iter().find(|unit| rest.starts_with(unit))
        else {
            return false;
        };
        rest = &rest[unit.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_go_writes_them() {
        let cases = [
            (0, None, "1970-01-01T00:00:00Z"),
            (951_782_400, None, "2000-02-29T00:00:00Z"),
            (1_756_204_496, None, "2025-08-26T10:34:56Z"),
            (-1, None, "1969-12-31T23:59:59Z"),
            (1, Some(2_500), "1970-01-01T00:00:01.002500Z"),
            (253_402_300_799, None, "9999-12-31T23:59:59Z"),
        ];
        for (seconds, micros, want) in cases {
            let text = rfc3339(seconds, micros).unwrap();
            assert_eq!(text, want);
            assert!(is_rfc3339(&text, micros.is_some()), "{text}");
        }
        assert_eq!(rfc3339(253_402_300_800, None), None);
        assert_eq!(rfc3339(i64::MAX, None), None);
        assert_eq!(rfc3339(i64::MIN, None), None);
    }

    #[test]
    fn times_that_go_refuses_are_refused() {
        for good in ["2025-02-28T01:02:03Z", "2024-02-29T01:02:03.5Z", "2025-01-01T00:00:00+08:00"] {
            assert!(is_rfc3339(good, false), "{good}");
        }
        for bad in [
            "",
            "now",
            "2025-02-29T01:02:03Z",
            "2025-01-01",
            "2025-01-01T00:00:00",
            "2025-01-01T24:00:00Z",
            "2025-01-01T00:00:00.Z",
            "2025-13-01T00:00:00Z",
            "2025-01-01T00:00:00+8:00",
            "2025-01-01 00:00:00Z",
            "２025-01-01T00:00:00Z",
        ] {
            assert!(!is_rfc3339(bad, false), "{bad}");
        }
        assert!(is_rfc3339("2025-01-01T00:00:00.123456Z", true));
        assert!(!is_rfc3339("2025-01-01T00:00:00Z", true));
    }

    #[test]
    fn durations_are_written_and_read_as_go_does() {
        let cases = [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5µs"),
            (300_000_000, "300ms"),
            (1_500_000_000, "1.5s"),
            (5_400_000_000_000, "1h30m0s"),
            (-60_000_000_000, "-1m0s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ];
        for (nanos, want) in cases {
            assert_eq!(go_duration(nanos), want);
            assert!(is_go_duration(want), "{want}");
        }
        for bad in ["", "1", "s", "1.2.3s", ".s", "1h 30m", "1d"] {
            assert!(!is_go_duration(bad), "{bad}");
        }
    }
}
