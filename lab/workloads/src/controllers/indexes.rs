//! Sets of completion indexes in the short form of `status.completedIndexes`: `0,3-5,7`.
//!
//! The text comes from outside and a few bytes of it can name four billion indexes: they are kept as ranges.

use std::ops::RangeInclusive;

/// A set of indexes: ranges in order, with a gap between each and the next.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Indexes(Vec<RangeInclusive<u32>>);

impl Indexes {
    /// Reads the short form up to `completions` (exclusive); what is malformed or beyond is left out.
    pub(crate) fn parse(text: &str, completions: u32) -> Self {
        let Some(highest) = completions.checked_sub(1) else { return Self::default() };
        let mut ranges: Vec<RangeInclusive<u32>> = text
            .split(',')
            .filter_map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let range = first.parse().ok()?..=last.parse::<u32>().ok()?.min(highest);
                (!range.is_empty()).then_some(range)
            })
            .collect();
        ranges.sort_by_key(|range| *range.start());
        let mut joined: Vec<RangeInclusive<u32>> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(known) if *range.start() <= known.end().saturating_add(1) => {
                    *known = *known.start()..=*range.end().max(known.end());
                }
                _ => joined.push(range),
            }
        }
        Self(joined)
    }

    /// The range that has the index, or else where one with it would go.
    fn position(&self, index: u32) -> Result<usize, usize> {
        let next = self.0.partition_point(|range| *range.end() < index);
        if self.0.get(next).is_some_and(|range| range.contains(&index)) { Ok(next) } else { Err(next) }
    }

    pub(crate) fn contains(&self, index: u32) -> bool {
        self.position(index).is_ok()
    }

    pub(crate) fn insert(&mut self, index: u32) {
        let Err(next) = self.position(index) else { return };
        let touches_next = self.0.get(next).is_some_and(|range| index.checked_add(1) == Some(*range.start()));
        let before = next.checked_sub(1).filter(|before| self.0[*before].end().checked_add(1) == Some(index));
        match (before, touches_next) {
            (Some(before), true) => {
                let after = self.0.remove(next);
                self.0[before] = *self.0[before].start()..=*after.end();
            }
            (Some(before), false) => self.0[before] = *self.0[before].start()..=index,
            (None, true) => self.0[next] = index..=*self.0[next].end(),
            (None, false) => self.0.insert(next, index..=index),
        }
    }

    /// How many indexes there are.
    pub(crate) fn count(&self) -> i64 {
        self.0.iter().map(|range| i64::from(*range.end()) - i64::from(*range.start()) + 1).sum()
    }

    /// The indexes below `completions` that are not in the set, in order.
    pub(crate) fn missing(&self, completions: u32) -> impl Iterator<Item = u32> {
        let starts = std::iter::once(Some(0)).chain(self.0.iter().map(|range| range.end().checked_add(1)));
        let ends = self.0.iter().map(|range| *range.start()).chain([completions]);
        starts.zip(ends).flat_map(move |(start, end)| start.map_or(0..0, |start| start..end.min(completions)))
    }
}

/// The short form: runs of three and more as a range, as Kubernetes writes it.
impl std::fmt::Display for Indexes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (position, range) in self.0.iter().enumerate() {
            let (comma, first, last) = (if position == 0 { "" } else { "," }, range.start(), range.end());
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Indexes {
        Indexes::parse(text, u32::MAX)
    }

    #[test]
    fn the_short_form_goes_both_ways() {
        for text in ["", "0", "0,1", "0-2", "1,3-5,7,8,10-12"] {
            assert_eq!(parse(text).to_string(), text);
        }
        for (text, read) in [("x,2,5-", "2"), ("5-1", ""), ("7,1-3,2-4,5", "1-5,7"), ("-1", "")] {
            assert_eq!(parse(text).to_string(), read, "{text}");
        }
    }

    #[test]
    fn ranges_beyond_the_completions_are_cut_and_cost_nothing() {
        let all = Indexes::parse("0-4294967295,4294967295", u32::MAX);
        assert_eq!((all.to_string().as_str(), all.count()), ("0-4294967294", 4_294_967_295));
        assert_eq!(all.missing(u32::MAX).next(), None);
        let few = Indexes::parse("3-4294967295", 5);
        assert_eq!((few.to_string().as_str(), few.count()), ("3,4", 2));
        assert_eq!(few.missing(5).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(Indexes::parse("0-9", 0), Indexes::default());
    }

    #[test]
    fn an_index_joins_its_neighbours() {
        let mut indexes = parse("1,3,9");
        for (index, expect) in
            [(2, "1-3,9"), (2, "1-3,9"), (0, "0-3,9"), (4, "0-4,9"), (6, "0-4,6,9"), (8, "0-4,6,8,9")]
        {
            indexes.insert(index);
            assert_eq!(indexes.to_string(), expect);
        }
        indexes.insert(u32::MAX);
        assert!(indexes.contains(u32::MAX) && indexes.contains(4) && !indexes.contains(5));
        assert_eq!(indexes.missing(12).collect::<Vec<_>>(), [5, 7, 10, 11]);
    }
}
