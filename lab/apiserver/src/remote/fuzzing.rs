//! Wire protocols, with the properties that they keep, for the targets in `fuzz/`.

use std::fmt::Debug;

use super::{spdy, streams, websocket};

/// Messages are the same however the bytes are cut, and hold no more than the bytes did.
pub fn websocket(data: &[u8]) {
    any_chunking(data, websocket::Decoder::default, |decoder, piece| {
        decoder.input().extend_from_slice(piece);
        drain(|| decoder.next())
    });
}

/// Frames are the same however the bytes are cut. The first header block is tried for itself as well.
pub fn spdy(data: &[u8]) {
    any_chunking(data, spdy::Decoder::new, |decoder, piece| {
        decoder.input.extend_from_slice(piece);
        drain(|| decoder.next())
    });
    if let Ok(headers) = spdy::parse_headers(data) {
        let length: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        // Lower case is at most three times as long as upper case.
        assert!(length <= 3 * data.len());
    }
}

/// A terminal's size reads back as it is written.
pub fn terminal_size(data: &[u8]) {
    if let Some(size) = streams::terminal_size(data) {
        let text = format!(r#"{{"Width":{},"Height":{}}}"#, size.width, size.height);
        assert_eq!(streams::terminal_size(text.as_bytes()), Some(size));
    }
}

fn drain<M, V>(mut next: impl FnMut() -> Result<Option<M>, V>) -> (Vec<M>, Option<V>) {
    let mut all = Vec::new();
    loop {
        match next() {
            Ok(Some(message)) => all.push(message),
            Ok(None) => return (all, None),
            Err(violation) => return (all, Some(violation)),
        }
    }
}

fn any_chunking<D, M: Debug + PartialEq, V: Debug + PartialEq>(
    data: &[u8],
    new: impl Fn() -> D,
    feed: impl Fn(&mut D, &[u8]) -> (Vec<M>, Option<V>),
) {
    let whole = feed(&mut new(), data);
    for size in [1, 7] {
        let mut decoder = new();
        let mut found = (Vec::new(), None);
        for piece in data.chunks(size) {
            let (messages, violation) = feed(&mut decoder, piece);
            found.0.extend(messages);
            found.1 = violation;
            if found.1.is_some() {
                break;
            }
        }
        assert_eq!(found, whole, "in pieces of {size} bytes");
    }
}
