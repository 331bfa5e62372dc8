//! The order of a list after a strategic merge: the items that the patch names keep the patch's order, the others keep theirs, and the two
//! are interleaved as the object had them, as far as that is possible.

use serde_json::Value;

/// What tells the items of a merged list apart: the value of the merge key, or the item itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Identity<'a>(pub(super) Option<&'a str>);

impl Identity<'_> {
    fn of<'v>(&self, item: &'v Value) -> Option<&'v Value> {
        match self.0 {
            Some(key) => item.get(key),
            None => Some(item),
        }
    }

    pub(super) fn position(&self, list: &[Value], item: &Value) -> Option<usize> {
        let wanted = self.of(item)?;
        list.iter().position(|candidate| self.of(candidate) == Some(wanted))
    }
}

/// Orders `merged`: items found in `wanted` follow its order, the rest follow `original`.
pub(super) fn arrange(
    merged: Vec<Value>,
    wanted: &[Value],
    original: &[Value],
    identity: Identity<'_>,
) -> Vec<Value> {
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for item in merged {
        match identity.position(wanted, &item) {
            Some(place) => named.push((place, identity.position(original, &item), item)),
            None => others.push((identity.position(original, &item), item)),
        }
    }
    named.sort_by_key(|(place, _, _)| *place);
    // Items that the object did not have go last.
    others.sort_by_key(|(place, _)| place.unwrap_or(usize::MAX));

    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, named_at, item) in named {
        let stands_before =
            |other: &(Option<usize>, Value)| matches!((other.0, named_at), (Some(a), Some(b)) if a < b);
        while let Some((_, other)) = others.next_if(stands_before) {
            arranged.push(other);
        }
        arranged.push(item);
    }
    arranged.extend(others.map(|(_, item)| item));
    arranged
}
