const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// The age of something as kubectl prints it: coarser the older it is (`5s`, `2m30s`, `3h`, `4d5h`, `2y10d`).
///
/// A clock that is up to one second ahead reads as `0s`; more than that is `<invalid>`.
/// The thresholds are those of `k8s.io/apimachinery/pkg/util/duration.HumanDuration`.
///
/// ```
/// assert_eq!(gantry_units::human_duration(150), "2m30s");
/// ```
pub fn human_duration(seconds: i64) -> String {
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two_units(seconds, (MINUTE, "m"), (1, "s")),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two_units(seconds, (HOUR, "h"), (MINUTE, "m")),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two_units(seconds, (DAY, "d"), (HOUR, "h")),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two_units(seconds, (YEAR, "y"), (DAY, "d")),
        252_288_000.. => format!("{}y", seconds / YEAR),
    }
}

fn two_units(seconds: i64, large: (i64, &str), small: (i64, &str)) -> String {
    let (whole, rest) = (seconds / large.0, seconds % large.0 / small.0);
    if rest == 0 { format!("{whole}{}", large.1) } else { format!("{whole}{}{rest}{}", large.1, small.1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_prints_them() {
        let cases = [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (599, "9m59s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 61, "3h1m"),
            (8 * HOUR + 100, "8h"),
            (2 * DAY - 1, "47h"),
            (4 * DAY + 5 * HOUR, "4d5h"),
            (8 * DAY + HOUR, "8d"),
            (2 * YEAR + 10 * DAY, "2y10d"),
            (8 * YEAR + 10 * DAY, "8y"),
        ];
        for (seconds, text) in cases {
            assert_eq!(human_duration(seconds), text, "{seconds} s");
        }
    }

    #[test]
    fn the_ends_of_the_range_have_a_text() {
        assert_eq!(human_duration(i64::MIN), "<invalid>");
        assert!(human_duration(i64::MAX).ends_with('y'));
    }
}
