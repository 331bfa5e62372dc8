//! Cron schedules: five fields, names, ranges, steps, and the `@` words, as CronJobs accept them.
//!
//! Format: <https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/#schedule-syntax>. As there, a
//! time must match day of month *or* day of week if both are restricted.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _};

/// A parsed schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// Bits of the values that match, for each field.
    Fields {
        minutes: u64,
        hours: u64,
        days: u64,
        months: u64,
        weekdays: u64,
        any_day: bool,
        any_weekday: bool,
    },
    /// `@every`: a fixed distance.
    Every(SignedDuration),
}

struct Field {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

const FIELDS: [Field; 5] = [
    Field { name: "minute", min: 0, max: 59, names: &[] },
    Field { name: "hour", min: 0, max: 23, names: &[] },
    Field { name: "day of month", min: 1, max: 31, names: &[] },
    Field { name: "month", min: 1, max: 12, names: &MONTHS },
    Field { name: "day of week", min: 0, max: 6, names: &WEEKDAYS },
];

const WORDS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// The years ahead in which a time is looked for: a schedule such as `0 0 29 2 *` has one in eight.
const HORIZON_DAYS: u32 = 8 * 366;

impl Schedule {
    /// Reads a schedule; the error says which part breaks which rule.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(distance) = text.strip_prefix("@every ") {
            let distance: SignedDuration =
                distance.trim().parse().map_err(|_| format!("failed to parse duration {text}"))?;
            if distance < SignedDuration::from_secs(1) {
                return Err(format!("duration of {text} must be at least 1s"));
            }
            return Ok(Self::Every(SignedDuration::from_secs(distance.as_secs())));
        }
        if text.starts_with('@') {
            let word = WORDS.iter().find(|(word, _)| *word == text);
            return word
                .ok_or_else(|| format!("unrecognized descriptor: {text}"))
                .and_then(|(_, fields)| Self::parse(fields));
        }
        let parts: Vec<&str> = text.split_whitespace().collect();
        if parts.len() != FIELDS.len() {
            return Err(format!("expected exactly 5 fields, found {}: [{text}]", parts.len()));
        }
        let mut bits = [0_u64; 5];
        let mut any = [false; 5];
        for (position, (part, field)) in parts.iter().zip(&FIELDS).enumerate() {
            for range in part.split(',') {
                let (range_bits, is_any) = field.range(range)?;
                bits[position] |= range_bits;
                any[position] |= is_any;
            }
        }
        let [minutes, hours, days, months, weekdays] = bits;
        Ok(Self::Fields { minutes, hours, days, months, weekdays, any_day: any[2], any_weekday: any[4] })
    }

    /// The first time after `after`; `None` if there is none within eight years.
    pub(crate) fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let (minutes, hours) = match self {
            Self::Every(distance) => {
                let whole = Timestamp::from_second(after.as_second()).ok()?;
                return whole.checked_add(*distance).ok();
            }
            Self::Fields { minutes, hours, .. } => (*minutes, *hours),
        };
        let mut date = after.to_zoned(zone.clone()).date();
        for _ in 0..HORIZON_DAYS {
            if self.matches_day(date) {
                for hour in (0..24_i8).filter(|hour| hours & (1 << hour) != 0) {
                    for minute in (0..60_i8).filter(|minute| minutes & (1 << minute) != 0) {
                        let local = date.at(hour, minute, 0, 0);
                        let zoned = local.to_zoned(zone.clone()).ok()?;
                        // A time that a change of the clock skips does not exist that day.
                        if zoned.timestamp() > after && zoned.datetime() == local {
                            return Some(zoned.timestamp());
                        }
                    }
                }
            }
            date = date.checked_add(1.day()).ok()?;
        }
        None
    }

    fn matches_day(&self, date: Date) -> bool {
        let Self::Fields { days, months, weekdays, any_day, any_weekday, .. } = self else { return true };
        let by_day = days & (1 << date.day()) != 0;
        let by_weekday = weekdays & (1 << date.weekday().to_sunday_zero_offset()) != 0;
        let day = if *any_day || *any_weekday { by_day && by_weekday } else { by_day || by_weekday };
        months & (1 << date.month()) != 0 && day
    }
}

impl Field {
    /// The bits of one of `*`, `?`, `N`, `N-M`, each with `/STEP`, and whether it restricts nothing.
    fn range(&self, text: &str) -> Result<(u64, bool), String> {
        let (base, step) = match text.split_once('/') {
            Some((base, step)) => (base, Some(self.number(step, text)?)),
            None => (text, None),
        };
        let is_star = matches!(base, "*" | "?");
        let (first, last) = if is_star {
            (self.min, self.max)
        } else if let Some((first, last)) = base.split_once('-') {
            (self.value(first, text)?, self.value(last, text)?)
        } else {
            let value = self.value(base, text)?;
            (value, if step.is_some() { self.max } else { value })
        };
        let step_by = step.unwrap_or(1);
        if first < self.min {
            return Err(format!(
                "{}: beginning of range ({first}) below minimum ({}): {text}",
                self.name, self.min
            ));
        }
        if last > self.max {
            return Err(format!("{}: end of range ({last}) above maximum ({}): {text}", self.name, self.max));
        }
        if first > last {
            return Err(format!(
                "{}: beginning of range ({first}) beyond end of range ({last}): {text}",
                self.name
            ));
        }
        if step_by == 0 {
            return Err(format!("{}: step of range should be a positive number: {text}", self.name));
        }
        let mut bits = 0_u64;
        let mut value = first;
        while value <= last {
            bits |= 1 << value;
            value = value.saturating_add(step_by);
        }
        Ok((bits, is_star && step_by == 1))
    }

    fn value(&self, text: &str, whole: &str) -> Result<u32, String> {
        let lower = text.to_ascii_lowercase();
        match self.names.iter().position(|name| *name == lower) {
            Some(position) => Ok(self.min + u32::try_from(position).unwrap_or(0)),
            None => self.number(text, whole),
        }
    }

    fn number(&self, text: &str, whole: &str) -> Result<u32, String> {
        text.parse().map_err(|_| format!("{}: failed to parse number {text:?}: {whole}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schedule: &str, after: &str, expect: &[&str]) {
        let parsed = Schedule::parse(schedule).expect(schedule);
        let mut at: Timestamp = after.parse().expect("a time");
        for expect in expect {
            at = parsed.next(at, &TimeZone::UTC).expect("a next time");
            assert_eq!(at.to_string(), *expect, "{schedule}");
        }
    }

    #[test]
    fn schedules_give_the_times_that_cron_gives() {
        check("*/15 * * * *", "2026-01-01T00:00:00Z", &["2026-01-01T00:15:00Z", "2026-01-01T00:30:00Z"]);
        check(
            "0 9-17/4 * * MON-fri",
            "2026-01-02T17:00:00Z",
            &["2026-01-05T09:00:00Z", "2026-01-05T13:00:00Z"],
        );
        check("30 2 29 feb ?", "2026-01-01T00:00:00Z", &["2028-02-29T02:30:00Z", "2032-02-29T02:30:00Z"]);
        check(
            "0 0 13 * 5",
            "2026-02-01T00:00:00Z",
            &["2026-02-06T00:00:00Z", "2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z"],
        );
        check("5/20 1,3 * * *", "2026-01-01T01:26:00Z", &["2026-01-01T01:45:00Z", "2026-01-01T03:05:00Z"]);
        check("@hourly", "2026-12-31T23:00:01Z", &["2027-01-01T00:00:00Z"]);
        check("@every 1h30m", "2026-01-01T00:00:00Z", &["2026-01-01T01:30:00Z", "2026-01-01T03:00:00Z"]);
        // A step on a star restricts the day, and then either day may match.
        check("0 0 */10 * 0", "2026-01-01T00:00:00Z", &["2026-01-04T00:00:00Z", "2026-01-11T00:00:00Z"]);
    }

    #[test]
    fn a_schedule_that_never_comes_has_no_next_time() {
        let never = Schedule::parse("0 0 31 2 *").expect("a schedule");
        assert_eq!(never.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC), None);
    }

    #[test]
    fn a_skipped_hour_is_skipped() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        let schedule = Schedule::parse("30 2 * * *").expect("a schedule");
        let before: Timestamp = "2026-03-28T12:00:00Z".parse().expect("a time");
        let next = schedule.next(before, &zone).expect("a next time");
        assert_eq!(next.to_string(), "2026-03-30T00:30:00Z", "02:30 does not exist on 29 March");
    }

    #[test]
    fn a_bad_schedule_says_what_is_wrong() {
        for (schedule, expect) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "minute: end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "day of month: beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "minute: beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "minute: step of range should be a positive number: */0"),
            ("* * * foo *", "month: failed to parse number \"foo\": foo"),
            ("@noon", "unrecognized descriptor: @noon"),
        ] {
            assert_eq!(Schedule::parse(schedule), Err(expect.to_owned()));
        }
    }
}
