//! The multiplexer: several byte streams over one socket.
//!
//! A frame is the number of its connection and the length of its payload, four bytes each, big endian, and the payload. A payload is
//! a piece of a byte stream: a message may begin in one frame and end in a later one.

use bytes::Buf as _;

use crate::{Error, ttrpc};

const HEADER: usize = 8;

/// The longest payload, in bytes: one message with its header.
pub(crate) const LONGEST: usize = ttrpc::HEADER + ttrpc::LONGEST;

/// The longest payload that is sent, in bytes. The runtime's reader hands whole frames to a buffer of this size, and
/// gives up on one that does not fit.
const SENT: usize = 4_096;

/// Takes the socket's bytes apart. Holds no payload.
#[derive(Debug, Default)]
pub(crate) struct Demultiplexer {
    header: [u8; HEADER],
    /// How much of the header has come.
    have: usize,
    connection: u32,
    /// How much of the payload is to come.
    left: usize,
}

impl Demultiplexer {
    /// Takes the next piece of a payload from the front of `bytes`, and tells its connection. `None` when they are used up.
    pub(crate) fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<(u32, &'a [u8])>, Error> {
        while self.left == 0 {
            let taken = take(bytes, HEADER - self.have);
            self.header[self.have..self.have + taken.len()].copy_from_slice(taken);
            self.have += taken.len();
            if self.have < HEADER {
                return Ok(None);
            }
            self.have = 0;
            let mut numbers = &self.header[..];
            let (connection, length) = (numbers.get_u32(), numbers.get_u32());
            if connection == 0 {
                return Err(Error::ReservedConnection);
            }
            self.connection = connection;
            self.left = usize::try_from(length)
                .ok()
                .filter(|length| *length <= LONGEST)
                .ok_or(Error::FrameLength { connection, length, longest: LONGEST })?;
        }
        let piece = take(bytes, self.left);
        self.left -= piece.len();
        Ok((!piece.is_empty()).then_some((self.connection, piece)))
    }

    /// Whether no frame is under way.
    pub(crate) fn is_whole(&self) -> bool {
        self.left == 0 && self.have == 0
    }
}

fn take<'a>(bytes: &mut &'a [u8], at_most: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(at_most.min(bytes.len()));
    *bytes = rest;
    taken
}

/// Appends a piece of a connection's stream to what is sent.
pub(crate) fn write(out: &mut Vec<u8>, connection: u32, bytes: &[u8]) {
    for piece in bytes.chunks(SENT) {
        let length = u32::try_from(piece.len()).expect("invariant: at most 4,096 bytes");
        out.extend(connection.to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(piece);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes of each connection, in the order in which they first appear, and whether the last frame was whole.
    type Streams = (Vec<(u32, Vec<u8>)>, bool);

    /// What comes of bytes in pieces of the given sizes.
    fn streams(bytes: &[u8], sizes: &[usize]) -> Result<Streams, String> {
        let mut demultiplexer = Demultiplexer::default();
        let mut streams: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut sizes = sizes.iter().copied().cycle();
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut piece = take(&mut rest, sizes.next().unwrap().max(1));
            while let Some((connection, bytes)) = demultiplexer.next(&mut piece).map_err(|e| e.to_string())? {
                match streams.iter_mut().find(|(known, _)| *known == connection) {
                    Some((_, stream)) => stream.extend(bytes),
                    None => streams.push((connection, bytes.to_vec())),
                }
            }
        }
        Ok((streams, demultiplexer.is_whole()))
    }

    #[test]
    fn a_long_stream_is_sent_in_frames_that_the_runtime_can_read() {
        let mut out = Vec::new();
        write(&mut out, 2, &[7; 10_000]);
        assert_eq!(out[..8], [0, 0, 0, 2, 0, 0, 16, 0]);
        assert_eq!(out.len(), 10_000 + 3 * 8);
        assert_eq!(streams(&out, &[4_000]).unwrap(), (vec![(2, vec![7; 10_000])], true));
    }

    #[test]
    fn bad_frames_are_refused_before_anything_is_allocated_for_them() {
        let cases: [(&[u8], &str); 3] = [
            (b"\0\0\0\0\0\0\0\x01x", "a frame for connection 0, which is reserved"),
            (
                b"\0\0\0\x01\xff\xff\xff\xff",
                "a frame of 4294967295 bytes on connection 1: at most 4194314 are allowed",
            ),
            (
                b"\0\0\0\x02\x00\x40\x00\x0b",
                "a frame of 4194315 bytes on connection 2: at most 4194314 are allowed",
            ),
        ];
        for (bytes, text) in cases {
            assert_eq!(streams(bytes, &[3]).unwrap_err(), text);
        }
        assert_eq!(
            streams(b"\0\0\0\x01\0\0\0\0\0\0", &[1]).unwrap(),
            (vec![], false),
            "an empty frame, then a cut one"
        );
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_streams(
            frames in proptest::collection::vec((1_u32..4, proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
            sizes in proptest::collection::vec(1_usize..30, 1..6),
            cut in 0_usize..40,
        ) {
            let mut out = Vec::new();
            for (connection, bytes) in &frames {
                write(&mut out, *connection, bytes);
            }
            out.truncate(out.len().saturating_sub(cut));
            prop_assert_eq!(streams(&out, &sizes).unwrap(), streams(&out, &[usize::MAX]).unwrap());
        }
    }
}
