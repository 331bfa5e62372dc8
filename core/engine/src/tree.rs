//! The best of many scores, kept while single scores change.

/// A tournament over positions: the winner is known at once, a change costs as many comparisons as the tree is high.
#[derive(Debug)]
pub(crate) struct MaxTree {
    /// The root at 1, the children of `i` at `2i` and `2i + 1`, the leaves in the second half.
    scores: Vec<i64>,
}

/// Below every score.
const NONE: i64 = i64::MIN;

impl MaxTree {
    pub(crate) fn new(leaves: &[Option<i64>]) -> Self {
        let width = leaves.len().next_power_of_two().max(1);
        let mut scores = vec![NONE; 2 * width];
        for (slot, leaf) in scores[width..].iter_mut().zip(leaves) {
            *slot = leaf.unwrap_or(NONE);
        }
        for i in (1..width).rev() {
            scores[i] = scores[2 * i].max(scores[2 * i + 1]);
        }
        Self { scores }
    }

    fn width(&self) -> usize {
        self.scores.len() / 2
    }

    /// Whether the position has a score.
    pub(crate) fn has(&self, position: usize) -> bool {
        position < self.width() && self.scores[self.width() + position] != NONE
    }

    /// Changes one score; the tree grows to hold the position.
    pub(crate) fn set(&mut self, position: usize, score: Option<i64>) {
        if position >= self.width() {
            let mut leaves: Vec<_> = self.scores[self.width()..].iter().map(|s| Some(*s)).collect();
            leaves.resize(position + 1, None);
            *self = Self::new(&leaves);
        }
        let mut i = self.width() + position;
        self.scores[i] = score.unwrap_or(NONE);
        while i > 1 {
            i /= 2;
            let winner = self.scores[2 * i].max(self.scores[2 * i + 1]);
            if self.scores[i] == winner {
                break;
            }
            self.scores[i] = winner;
        }
    }

    /// The position with the highest score, the lowest of equals; `None` where there is no score.
    pub(crate) fn best(&self) -> Option<usize> {
        let winner = self.scores[1];
        if winner == NONE {
            return None;
        }
        let mut i = 1;
        while i < self.width() {
            i = if self.scores[2 * i] == winner { 2 * i } else { 2 * i + 1 };
        }
        Some(i - self.width())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_winner_is_the_first_of_the_highest(
            start in prop::collection::vec(prop::option::of(0_i64..5), 0..20),
            changes in prop::collection::vec((0_usize..40, prop::option::of(0_i64..5)), 0..40),
        ) {
            let mut tree = MaxTree::new(&start);
            let mut plain = start;
            for (position, score) in changes {
                tree.set(position, score);
                if plain.len() <= position {
                    plain.resize(position + 1, None);
                }
                plain[position] = score;
                let highest = plain.iter().flatten().max();
                let expected = highest.map(|h| plain.iter().position(|s| s.as_ref() == Some(h)).unwrap_or(0));
                prop_assert_eq!(tree.best(), expected);
                prop_assert_eq!(tree.has(position), score.is_some());
            }
        }
    }
}
