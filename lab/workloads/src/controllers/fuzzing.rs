//! Schedules and ranges, with the properties that they keep, for the targets in `fuzz/`.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::cron::Schedule;
use super::indexes::Indexes;

/// A schedule is refused with words, or its times follow one another.
pub fn cron_schedule(data: &[u8]) {
    match Schedule::parse(&String::from_utf8_lossy(data)) {
        Ok(schedule) => {
            // Before a leap year's February, and at the end of time.
            for start in [1_700_000_000, Timestamp::MAX.as_second() - 100_000] {
                let mut now = Timestamp::from_second(start).expect("a time");
                for _ in 0..3 {
                    let Some(next) = schedule.next(now, &TimeZone::UTC) else { break };
                    assert!(next > now, "{next} is not after {now}");
                    now = next;
                }
            }
        }
        Err(error) => assert!(!error.is_empty()),
    }
}

/// Ranges are written as ranges that say the same, and every index below the end is in them or missing.
pub fn index_ranges(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for completions in [0, 1, 12, u32::MAX] {
        let mut indexes = Indexes::parse(&text, completions);
        assert_eq!(Indexes::parse(&indexes.to_string(), completions), indexes);
        assert!(indexes.count() <= i64::from(completions));
        if completions <= 12 {
            let missing: Vec<u32> = indexes.missing(completions).collect();
            assert_eq!(missing.len() as u64, u64::from(completions) - indexes.count().unsigned_abs());
            for index in missing {
                assert!(!indexes.contains(index));
                indexes.insert(index);
            }
            assert_eq!(indexes.count(), i64::from(completions));
            assert_eq!(indexes.missing(completions).next(), None);
        }
    }
}
