//! Sets of completion indexes in the short form of `status.completedIndexes`: `0,3-5,7`.

use std::collections::BTreeSet;

/// Reads the short form; what is malformed is left out.
pub(crate) fn parse(text: &str) -> BTreeSet<u32> {
    let ranges = text.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Writes the short form: runs of three and more as a range, as Kubernetes does.
pub(crate) fn format(indexes: &BTreeSet<u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &index in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => runs.push((index, index)),
        }
    }
    let texts: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        })
        .collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_goes_both_ways() {
        for text in ["", "0", "0,1", "0-2", "1,3-5,7,8,10-12"] {
            assert_eq!(format(&parse(text)), text);
        }
        assert_eq!(parse("x,2,5-"), BTreeSet::from([2]));
    }
}
