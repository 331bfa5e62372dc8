//! The server's side of WebSocket (RFC 6455) and the channels that Kubernetes multiplexes over it.
//!
//! A binary message is one byte that names the channel and then data. Under `v5.channel.k8s.io` the byte 255
//! followed by a channel closes that channel, which is how a client ends standard input.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use sha1::{Digest, Sha1};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::streams::{Input, Output};

/// The longest message that is accepted, fragments put together. kubectl's are at most 32 KiB.
const MAX_MESSAGE: usize = 1 << 20;
/// What RFC 6455 §1.3 appends to the client's key.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The byte that closes a channel under v5.
const CLOSE_CHANNEL: u8 = 255;
/// How many pongs may wait for a slow connection; a client that pings faster does without.
const PENDING_PONGS: usize = 8;

/// How long a client may take to hang up after the close frame.
const CLOSING: Duration = Duration::from_secs(2);

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Whether the headers ask for a WebSocket.
pub(super) fn is_requested(headers: &HeaderMap) -> bool {
    has_token(headers, UPGRADE, "websocket") && has_token(headers, CONNECTION, "upgrade")
}

/// Whether a header, a list of tokens, contains this one in any case.
pub(super) fn has_token(headers: &HeaderMap, name: http::HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|found| found.eq_ignore_ascii_case(token))
}

/// The tokens of all headers of this name, in order.
pub(super) fn tokens(headers: &HeaderMap, name: http::HeaderName) -> impl Iterator<Item = &str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(str::trim).filter(|token| !token.is_empty()))
}

/// What the client must be told to prove that its handshake was understood: the `Sec-WebSocket-Accept` header.
pub(super) fn accept(headers: &HeaderMap) -> Result<String, &'static str> {
    let version = headers.get(SEC_WEBSOCKET_VERSION).and_then(|value| value.to_str().ok());
    if version != Some("13") {
        return Err("the WebSocket version must be 13");
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if STANDARD.decode(key).map_or(0, |bytes| bytes.len()) != 16 {
        return Err("Sec-WebSocket-Key must be 16 bytes in base64");
    }
    Ok(STANDARD.encode(Sha1::new().chain_update(key).chain_update(GUID).finalize()))
}

/// The first of `supported` that the client offers in the header `offered`.
pub(super) fn choose_protocol(
    headers: &HeaderMap,
    offered: http::HeaderName,
    supported: &[&'static str],
) -> Option<&'static str> {
    let offers: Vec<&str> = tokens(headers, offered).collect();
    supported.iter().copied().find(|name| offers.contains(name))
}

/// A message or control frame of the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Data(Bytes),
    Ping(Bytes),
    Pong,
    Close,
}

/// A breach of the protocol, after which the connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Violation {
    Protocol,
    TooLong,
}

impl Violation {
    /// The code of the close frame (RFC 6455 §7.4.1).
    fn code(self) -> u16 {
        match self {
            Self::Protocol => 1002,
            Self::TooLong => 1009,
        }
    }
}

/// Cuts a byte stream into messages: no I/O, any chunking.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    input: BytesMut,
    /// The fragments so far of an unfinished message.
    partial: Option<BytesMut>,
}

impl Decoder {
    /// Where the next bytes go.
    pub(super) fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// The next message, or `None` until more bytes have come.
    pub(super) fn next(&mut self) -> Result<Option<Message>, Violation> {
        while let Some((fin, opcode, payload)) = self.frame()? {
            match opcode {
                CLOSE => return Ok(Some(Message::Close)),
                PING => return Ok(Some(Message::Ping(payload))),
                PONG => return Ok(Some(Message::Pong)),
                TEXT | BINARY if self.partial.is_none() && fin => return Ok(Some(Message::Data(payload))),
                TEXT | BINARY if self.partial.is_none() => self.partial = Some(BytesMut::from(&payload[..])),
                CONTINUATION => {
                    let Some(partial) = &mut self.partial else { return Err(Violation::Protocol) };
                    if partial.len() + payload.len() > MAX_MESSAGE {
                        return Err(Violation::TooLong);
                    }
                    partial.extend_from_slice(&payload);
                    if fin && let Some(whole) = self.partial.take() {
                        return Ok(Some(Message::Data(whole.freeze())));
                    }
                }
                _ => return Err(Violation::Protocol),
            }
        }
        Ok(None)
    }

    fn frame(&mut self) -> Result<Option<(bool, u8, Bytes)>, Violation> {
        let [first, second, ..] = *self.input else { return Ok(None) };
        let (fin, opcode) = (first & 0x80 != 0, first & 0x0f);
        // No extension is negotiated, so the reserved bits are zero; clients must mask (RFC 6455 §5.1, §5.2).
        if first & 0x70 != 0 || second & 0x80 == 0 {
            return Err(Violation::Protocol);
        }
        let short = usize::from(second & 0x7f);
        if opcode >= CLOSE && (!fin || short > 125) {
            return Err(Violation::Protocol);
        }
        let (length, header) = match short {
            126 => match self.input.get(2..4) {
                Some(bytes) => ((&*bytes).get_u16().into(), 4),
                None => return Ok(None),
            },
            127 => match self.input.get(2..10) {
                Some(mut bytes) => (usize::try_from(bytes.get_u64()).map_err(|_| Violation::TooLong)?, 10),
                None => return Ok(None),
            },
            short => (short, 2),
        };
        if length > MAX_MESSAGE {
            return Err(Violation::TooLong);
        }
        if self.input.len() < header + 4 + length {
            return Ok(None);
        }
        self.input.advance(header);
        let mask = self.input.split_to(4);
        let mut payload = self.input.split_to(length);
        for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        Ok(Some((fin, opcode, payload.freeze())))
    }
}

/// One unfragmented frame of the server; `parts` are its payload.
fn encode(opcode: u8, parts: &[&[u8]]) -> BytesMut {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = BytesMut::with_capacity(length + 10);
    frame.put_u8(0x80 | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..=125), _) => frame.put_u8(short),
        (_, Ok(medium)) => {
            frame.put_u8(126);
            frame.put_u16(medium);
        }
        _ => {
            frame.put_u8(127);
            frame.put_u64(length as u64);
        }
    }
    for part in parts {
        frame.put_slice(part);
    }
    frame
}

fn close_frame(code: u16) -> BytesMut {
    encode(CLOSE, &[&code.to_be_bytes()])
}

/// Carries channels over an upgraded connection until either side ends.
///
/// `closes` tells whether byte 255 closes a channel (v5).
pub(super) async fn drive(
    io: impl AsyncRead + AsyncWrite,
    closes: bool,
    inputs: mpsc::Sender<Input>,
    mut outputs: mpsc::Receiver<Output>,
) {
    let (mut reader, mut writer) = tokio::io::split(io);
    let (pong, mut pongs) = mpsc::channel::<Bytes>(PENDING_PONGS);
    let reading = async {
        let mut decoder = Decoder::default();
        loop {
            match decoder.next() {
                Err(violation) => return violation.code(),
                Ok(Some(Message::Close)) => return 1000,
                Ok(Some(Message::Pong)) => {}
                Ok(Some(Message::Ping(data))) => drop(pong.try_send(data)),
                Ok(Some(Message::Data(mut data))) => {
                    // An empty message is how some clients keep the connection alive.
                    if data.is_empty() {
                        continue;
                    }
                    let input = match (data.get_u8(), data.first()) {
                        (CLOSE_CHANNEL, Some(channel)) if closes => Input::Closed(*channel),
                        (channel, _) => Input::Data(channel, data),
                    };
                    // Nobody listens any more, but the last outputs are still to be written.
                    if inputs.send(input).await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                Ok(None) => match reader.read_buf(decoder.input()).await {
                    Ok(0) | Err(_) => return 1000,
                    Ok(_) => {}
                },
            }
        }
    };
    let writing = async {
        loop {
            let frame = tokio::select! {
                Some(data) = pongs.recv() => encode(PONG, &[&data]),
                output = outputs.recv() => match output {
                    Some(Output::Data(channel, data)) => encode(BINARY, &[&[channel], &data]),
                    // Only clients close single channels; they learn the end from the error channel.
                    Some(Output::Closed(_)) => continue,
                    None => return 1000,
                },
            };
            if writer.write_all(&frame).await.is_err() || writer.flush().await.is_err() {
                return 1000;
            }
        }
    };
    let code = tokio::select! {
        code = writing => code,
        code = reading => code,
    };
    // The peer may be gone already; then there is nobody to say goodbye to.
    let _ = writer.write_all(&close_frame(code)).await;
    let _ = writer.shutdown().await;
    // Closing while input is unread resets the connection, and the client might lose the last output.
    let rest = async {
        let mut rest = [0; 4096];
        while matches!(reader.read(&mut rest).await, Ok(1..)) {}
    };
    let _ = tokio::time::timeout(CLOSING, rest).await;
}

#[cfg(test)]
pub(super) mod tests {
    use http::header::SEC_WEBSOCKET_PROTOCOL;
    use proptest::prelude::*;

    use super::*;

    /// A frame as a client sends it.
    pub(in crate::remote) fn masked(fin: bool, opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = encode(opcode, &[payload]);
        if !fin {
            frame[0] &= 0x7f;
        }
        frame[1] |= 0x80;
        let mask = [1, 2, 3, 4];
        let at = frame.len() - payload.len();
        let mut out = frame[..at].to_vec();
        out.extend(mask);
        out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        out
    }

    fn decode(bytes: &[u8]) -> Result<Vec<Message>, Violation> {
        let mut decoder = Decoder::default();
        decoder.input().extend_from_slice(bytes);
        let mut all = Vec::new();
        while let Some(message) = decoder.next()? {
            all.push(message);
        }
        Ok(all)
    }

    #[test]
    fn the_handshake_of_the_specification_is_answered_as_there() {
        let mut headers = HeaderMap::new();
        headers.insert(SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==".parse().unwrap());
        assert!(accept(&headers).is_err());
        headers.insert(SEC_WEBSOCKET_VERSION, "13".parse().unwrap());
        assert_eq!(accept(&headers).unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        headers.insert(SEC_WEBSOCKET_KEY, "c2hvcnQ=".parse().unwrap());
        assert!(accept(&headers).is_err());
    }

    #[test]
    fn a_protocol_is_chosen_in_the_servers_order() {
        let mut headers = HeaderMap::new();
        headers.insert(SEC_WEBSOCKET_PROTOCOL, "v4.channel.k8s.io, v5.channel.k8s.io".parse().unwrap());
        let supported = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
        assert_eq!(choose_protocol(&headers, SEC_WEBSOCKET_PROTOCOL, &supported), Some("v5.channel.k8s.io"));
        assert_eq!(choose_protocol(&headers, SEC_WEBSOCKET_PROTOCOL, &["channel.k8s.io"]), None);
    }

    #[test]
    fn control_frames_may_come_between_fragments() {
        let bytes =
            [masked(false, BINARY, b"ab"), masked(true, PING, b"?"), masked(true, CONTINUATION, b"c")]
                .concat();
        assert_eq!(decode(&bytes).unwrap(), [Message::Ping("?".into()), Message::Data("abc".into())]);
    }

    #[test]
    fn breaches_of_the_protocol_end_the_connection() {
        let unmasked = encode(BINARY, &[b"x"]).to_vec();
        let mut reserved = masked(true, BINARY, b"x");
        reserved[0] |= 0x40;
        let huge = [vec![0x82, 0xff], u64::MAX.to_be_bytes().to_vec()].concat();
        for (case, bytes, expected) in [
            ("not masked", unmasked, Violation::Protocol),
            ("a reserved bit", reserved, Violation::Protocol),
            ("an unknown opcode", masked(true, 5, b""), Violation::Protocol),
            ("a continuation of nothing", masked(true, CONTINUATION, b"x"), Violation::Protocol),
            ("a fragmented ping", masked(false, PING, b""), Violation::Protocol),
            ("a long ping", masked(true, PING, &[0; 126]), Violation::Protocol),
            (
                "a message within a message",
                [masked(false, BINARY, b"a"), masked(true, BINARY, b"b")].concat(),
                Violation::Protocol,
            ),
            ("a length beyond memory", huge, Violation::TooLong),
            (
                "more than a message may hold",
                masked(true, BINARY, &vec![0; MAX_MESSAGE + 1]),
                Violation::TooLong,
            ),
            (
                "too much in fragments",
                [masked(false, BINARY, &vec![0; MAX_MESSAGE]), masked(true, CONTINUATION, b"x")].concat(),
                Violation::TooLong,
            ),
        ] {
            assert_eq!(decode(&bytes), Err(expected), "{case}");
        }
    }

    proptest! {
        #[test]
        fn messages_survive_any_chunking(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..400), 0..8),
            chunk in 1_usize..50,
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(|message| masked(true, BINARY, message)).collect();
            let mut decoder = Decoder::default();
            let mut found = Vec::new();
            for piece in bytes.chunks(chunk) {
                decoder.input().extend_from_slice(piece);
                while let Some(message) = decoder.next().unwrap() {
                    found.push(message);
                }
            }
            let expected: Vec<Message> = messages.into_iter().map(|m| Message::Data(m.into())).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn any_bytes_are_taken_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
