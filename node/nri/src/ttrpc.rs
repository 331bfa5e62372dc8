//! ttrpc: containerd's RPC protocol, as far as calls with one request and one response need it.
//!
//! A message is the length of its payload and the number of its stream, four bytes each, big endian, its kind and flags, a byte
//! each, and the payload. A client's streams have odd numbers that grow; a response has the number of its request.

use bytes::{Buf as _, Bytes, BytesMut};
use gantry_proto::ttrpc as wire;
use prost::Message as _;

use crate::{Error, frame};

pub(crate) const HEADER: usize = 10;

/// The longest payload, in bytes.
pub(crate) const LONGEST: usize = 4 << 20;

pub(crate) const REQUEST: u8 = 1;
pub(crate) const RESPONSE: u8 = 2;
pub(crate) const DATA: u8 = 3;

/// Codes of gRPC.
pub(crate) mod code {
    pub(crate) const INVALID_ARGUMENT: i32 = 3;
    pub(crate) const FAILED_PRECONDITION: i32 = 9;
    pub(crate) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(crate) const UNIMPLEMENTED: i32 = 12;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) stream: u32,
    pub(crate) kind: u8,
    pub(crate) payload: Bytes,
}

/// Puts the messages of one connection together. Holds at most one, and what came with it.
#[derive(Debug, Default)]
pub(crate) struct Assembler(BytesMut);

impl Assembler {
    /// Takes in the next piece of the stream; [`Self::next`] is asked before another.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next message that is whole.
    pub(crate) fn next(&mut self) -> Result<Option<Message>, Error> {
        let Some((mut header, rest)) = self.0.split_at_checked(HEADER) else { return Ok(None) };
        let (length, stream, kind) = (header.get_u32(), header.get_u32(), header.get_u8());
        let size = usize::try_from(length)
            .ok()
            .filter(|size| *size <= LONGEST)
            .ok_or(Error::MessageLength { stream, length, longest: LONGEST })?;
        if rest.len() < size {
            return Ok(None);
        }
        self.0.advance(HEADER);
        Ok(Some(Message { stream, kind, payload: self.0.split_to(size).freeze() }))
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends a message in the frames of a connection.
pub(crate) fn write(out: &mut Vec<u8>, connection: u32, stream: u32, kind: u8, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("invariant: what we send is short");
    let mut message = Vec::with_capacity(HEADER + payload.len());
    message.extend(length.to_be_bytes());
    message.extend(stream.to_be_bytes());
    message.extend([kind, 0]);
    message.extend(payload);
    frame::write(out, connection, &message);
}

/// Appends the response to a request: a message, or a code of gRPC and words.
pub(crate) fn respond(
    out: &mut Vec<u8>,
    connection: u32,
    stream: u32,
    answer: Result<Vec<u8>, (i32, String)>,
) {
    let answer = answer.and_then(|payload| {
        let refuse = || (code::RESOURCE_EXHAUSTED, format!("an answer of {} bytes", payload.len()));
        if payload.len() < LONGEST / 2 { Ok(payload) } else { Err(refuse()) }
    });
    let response = match answer {
        Ok(payload) => wire::Response { status: None, payload },
        Err((code, mut message)) => {
            // Nobody reads more, and a message has an end.
            if let Some((end, _)) = message.char_indices().nth(16_384) {
                message.truncate(end);
            }
            wire::Response { status: Some(wire::Status { code, message }), payload: Vec::new() }
        }
    };
    write(out, connection, stream, RESPONSE, &response.encode_to_vec());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn messages(pieces: &[&[u8]]) -> Result<(Vec<Message>, bool), String> {
        let mut assembler = Assembler::default();
        let mut messages = Vec::new();
        for piece in pieces {
            assembler.push(piece);
            while let Some(message) = assembler.next().map_err(|error| error.to_string())? {
                messages.push(message);
            }
        }
        Ok((messages, assembler.is_whole()))
    }

    fn encoded(stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, 1, stream, REQUEST, payload);
        out.drain(..8);
        out
    }

    #[test]
    fn a_message_has_the_bytes_of_ttrpc() {
        let mut out = Vec::new();
        respond(&mut out, 1, 3, Err((code::UNIMPLEMENTED, "no".into())));
        assert_eq!(out, b"\0\0\0\x01\0\0\0\x12\0\0\0\x08\0\0\0\x03\x02\0\x0a\x06\x08\x0c\x12\x02no");
        let mut out = Vec::new();
        respond(&mut out, 1, 5, Ok(b"x".to_vec()));
        assert_eq!(out, b"\0\0\0\x01\0\0\0\x0d\0\0\0\x03\0\0\0\x05\x02\0\x12\x01x");
    }

    #[test]
    fn a_message_that_is_too_long_is_refused_by_its_header() {
        let error = messages(&[b"\0\x40\0\x01\0\0\0\x07\x01\0"]).unwrap_err();
        assert_eq!(error, "a message of 4194305 bytes in stream 7: at most 4194304 are allowed");
        assert_eq!(
            messages(&[b"\0\x40\0\0\0\0\0\x07\x01\0"]).unwrap(),
            (vec![], false),
            "the longest is waited for"
        );
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_messages(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..6),
            size in 1_usize..40,
        ) {
            let bytes: Vec<u8> = (1..).zip(&payloads).flat_map(|(stream, payload)| encoded(stream, payload)).collect();
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            let (got, whole) = messages(&pieces).unwrap();
            prop_assert!(whole);
            prop_assert_eq!(got.len(), payloads.len());
            for ((stream, payload), message) in (1_u32..).zip(&payloads).zip(&got) {
                prop_assert_eq!((message.stream, message.kind, &message.payload[..]), (stream, REQUEST, &payload[..]));
            }
        }
    }
}
