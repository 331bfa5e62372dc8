//! The server's side of SPDY/3.1, as far as kubectl up to 1.30 uses it for `exec` and `attach`, and every kubectl
//! for `port-forward`: the client opens streams, both sides send data, nobody controls flow.
//!
//! Frames are those of <https://www.chromium.org/spdy/spdy-protocol/spdy-protocol-draft3-1/>. Header blocks are
//! one zlib stream for the whole connection, primed with a dictionary of words.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Decompress, FlushDecompress};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::streams::{ERROR, Input, Output, PENDING, RESIZE, STDERR, STDIN, STDOUT, run_connection};
use super::{NodeBackend, PodTarget, PortForwardRequest, Streams};

/// The longest frame that is accepted; clients send at most 32 KiB at a time.
const MAX_FRAME: usize = 1 << 20;
/// The largest header block, inflated. A stream has three short headers.
const MAX_HEADERS: usize = 16 << 10;
/// How long a client may take to open the streams that it asked for, as a kubelet waits.
const OPENING: Duration = Duration::from_secs(30);
/// How long a client may take to hang up at the end.
const CLOSING: Duration = Duration::from_secs(2);

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;

/// The words of the dictionary, each preceded by its length in four bytes.
const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|\
    accept-ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|\
    content-language|content-length|content-location|content-md5|content-range|content-type|date|etag|expect|\
    expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|\
    location|max-forwards|pragma|proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|\
    trailer|transfer-encoding|upgrade|user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|\
    version|HTTP/1.1|url|public|set-cookie|keep-alive|origin";
/// What follows the words.
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized\
    403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
    Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
    chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,\
    text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
/// Adler-32 of the dictionary, by which a zlib stream names it.
const DICTIONARY_ID: u32 = 0xe3c6_a7c2;

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::new();
    for word in WORDS.split('|') {
        dictionary.put_u32(u32::try_from(word.len()).expect("invariant: words are short"));
        dictionary.put_slice(word.as_bytes());
    }
    dictionary.put_slice(TAIL.as_bytes());
    dictionary
});

/// A breach of the protocol, after which the connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Violation;

pub(super) type Headers = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Open {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    Data {
        id: u32,
        data: Bytes,
        fin: bool,
    },
    Reset {
        id: u32,
    },
    Ping {
        id: u32,
    },
    GoAway,
    /// Settings, window updates and the like, which change nothing here.
    Other,
}

/// Inflates header blocks.
#[derive(Debug)]
struct Inflater {
    raw: Decompress,
    started: bool,
}

impl Inflater {
    fn new() -> Self {
        Self { raw: Decompress::new(false), started: false }
    }

    fn inflate(&mut self, mut block: &[u8]) -> Result<Vec<u8>, Violation> {
        if !self.started {
            self.started = true;
            if block.len() < 6 {
                return Err(Violation);
            }
            let (method, flags) = (block.get_u8(), block.get_u8());
            if method & 0x0f != 8 {
                return Err(Violation);
            }
            if flags & 0x20 != 0 {
                if block.get_u32() != DICTIONARY_ID {
                    return Err(Violation);
                }
                self.prime()?;
            }
        }
        self.run(block)
    }

    /// Puts the dictionary into the window by inflating it as a stored block; its output is thrown away.
    fn prime(&mut self) -> Result<(), Violation> {
        let length = u16::try_from(DICTIONARY.len()).expect("invariant: the dictionary has 1,423 bytes");
        let mut block = vec![0];
        block.put_u16_le(length);
        block.put_u16_le(!length);
        block.put_slice(&DICTIONARY);
        self.run(&block).map(drop)
    }

    fn run(&mut self, mut input: &[u8]) -> Result<Vec<u8>, Violation> {
        let mut output = vec![0; MAX_HEADERS];
        let mut filled = 0;
        loop {
            let (before_in, before_out) = (self.raw.total_in(), self.raw.total_out());
            let space = &mut output[filled..];
            if space.is_empty() {
                return Err(Violation);
            }
            let result = self.raw.decompress(input, space, FlushDecompress::Sync);
            let consumed = usize::try_from(self.raw.total_in() - before_in).unwrap_or(usize::MAX);
            let produced = usize::try_from(self.raw.total_out() - before_out).unwrap_or(usize::MAX);
            input = input.get(consumed..).ok_or(Violation)?;
            filled += produced;
            match result {
                Err(_) => return Err(Violation),
                Ok(_) if input.is_empty() && filled < output.len() => break,
                Ok(_) if consumed == 0 && produced == 0 => return Err(Violation),
                Ok(_) => {}
            }
        }
        output.truncate(filled);
        Ok(output)
    }
}

/// Names and values, each preceded by its length; before all their number.
pub(super) fn parse_headers(mut block: &[u8]) -> Result<Headers, Violation> {
    let count = block.try_get_u32().map_err(|_| Violation)?;
    let mut headers = Headers::new();
    for _ in 0..count {
        let mut pair = [const { String::new() }; 2];
        for part in &mut pair {
            let length = block.try_get_u32().map_err(|_| Violation)?;
            let length = usize::try_from(length).map_err(|_| Violation)?;
            let bytes = block.get(..length).ok_or(Violation)?;
            std::str::from_utf8(bytes).map_err(|_| Violation)?.clone_into(part);
            block.advance(length);
        }
        let [name, value] = pair;
        headers.insert(name.to_lowercase(), value);
    }
    Ok(headers)
}

/// Cuts a byte stream into frames: no I/O, any chunking.
#[derive(Debug)]
pub(super) struct Decoder {
    pub(super) input: BytesMut,
    inflater: Inflater,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { input: BytesMut::new(), inflater: Inflater::new() }
    }

    /// The next frame, or `None` until more bytes have come.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Violation> {
        let Some(mut head) = self.input.get(..8) else { return Ok(None) };
        let first = head.get_u32();
        let flags = head.get_u8();
        let length = usize::try_from(head.get_uint(3)).map_err(|_| Violation)?;
        if length > MAX_FRAME {
            return Err(Violation);
        }
        if self.input.len() < 8 + length {
            return Ok(None);
        }
        self.input.advance(8);
        let mut payload = self.input.split_to(length).freeze();
        let fin = flags & FIN != 0;
        if first >> 31 == 0 {
            return Ok(Some(Frame::Data { id: first, data: payload, fin }));
        }
        let mut number = || payload.try_get_u32().map_err(|_| Violation);
        let kind = u16::try_from(first & 0xffff).expect("invariant: masked to 16 bits");
        Ok(Some(match kind {
            SYN_STREAM => {
                let id = number()? & 0x7fff_ffff;
                // The associated stream, the priority and the slot.
                let block = payload.get(6..).ok_or(Violation)?;
                let headers = parse_headers(&self.inflater.inflate(block)?)?;
                Frame::Open { id, headers, fin }
            }
            RST_STREAM => Frame::Reset { id: number()? & 0x7fff_ffff },
            PING => Frame::Ping { id: number()? },
            GOAWAY => Frame::GoAway,
            _ => Frame::Other,
        }))
    }
}

fn control(kind: u16, payload: &[u8]) -> BytesMut {
    let mut frame = BytesMut::with_capacity(8 + payload.len());
    frame.put_u16(0x8003);
    frame.put_u16(kind);
    frame.put_u32(u32::try_from(payload.len()).expect("invariant: control frames are short"));
    frame.put_slice(payload);
    frame
}

/// Accepts a stream, without headers. The block is stored rather than deflated: zlib's header once, then four
/// zero bytes (no pairs) and an empty block, which flushes.
fn reply(id: u32, first: bool) -> BytesMut {
    let mut payload = Vec::new();
    payload.put_u32(id);
    if first {
        payload.put_slice(&[0x78, 0x01]);
    }
    payload.put_slice(&[0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0]);
    payload.put_slice(&[0, 0, 0, 0xff, 0xff]);
    control(SYN_REPLY, &payload)
}

fn data(id: u32, data: &[u8], fin: bool) -> BytesMut {
    let mut frame = BytesMut::with_capacity(8 + data.len());
    frame.put_u32(id);
    frame.put_u8(if fin { FIN } else { 0 });
    frame.put_uint(data.len() as u64, 3);
    frame.put_slice(data);
    frame
}

/// What a client does to its streams.
#[derive(Debug)]
enum Event {
    Opened(u32, Headers),
    Data(u32, Bytes),
    Closed(u32),
}

/// What is done to them from here.
#[derive(Debug)]
enum Command {
    Data(u32, Bytes),
    Close(u32),
}

/// Carries streams over an upgraded connection until either side ends.
async fn carry(
    io: impl AsyncRead + AsyncWrite,
    events: mpsc::Sender<Event>,
    mut commands: mpsc::Receiver<Command>,
) {
    let (mut reader, mut writer) = tokio::io::split(io);
    let (answer, mut answers) = mpsc::channel::<BytesMut>(PENDING);
    let reading = async {
        let mut decoder = Decoder::new();
        let mut first = true;
        loop {
            let event = match decoder.next() {
                Err(Violation) => return,
                Ok(None) => match reader.read_buf(&mut decoder.input).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => continue,
                },
                Ok(Some(Frame::GoAway)) => return,
                Ok(Some(Frame::Other)) => continue,
                Ok(Some(Frame::Ping { id })) => {
                    let _ = answer.send(control(PING, &id.to_be_bytes())).await;
                    continue;
                }
                Ok(Some(Frame::Reset { id })) => vec![Event::Closed(id)],
                Ok(Some(Frame::Open { id, headers, fin })) => {
                    let _ = answer.send(reply(id, first)).await;
                    first = false;
                    let closed = fin.then_some(Event::Closed(id));
                    std::iter::once(Event::Opened(id, headers)).chain(closed).collect()
                }
                Ok(Some(Frame::Data { id, data, fin })) => {
                    let some = (!data.is_empty()).then_some(Event::Data(id, data));
                    some.into_iter().chain(fin.then_some(Event::Closed(id))).collect()
                }
            };
            for event in event {
                // Nobody listens any more, but the last outputs are still to be written.
                if events.send(event).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    };
    let writing = async {
        loop {
            let frame = tokio::select! {
                // Clients drop data of a stream that has not been replied to.
                biased;
                Some(frame) = answers.recv() => frame,
                command = commands.recv() => match command {
                    Some(Command::Data(id, bytes)) => data(id, &bytes, false),
                    Some(Command::Close(id)) => data(id, &[], true),
                    None => return,
                },
            };
            if writer.write_all(&frame).await.is_err() || writer.flush().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
    let _ = writer.shutdown().await;
    // Closing while input is unread resets the connection, and the client might lose the last output.
    let rest = async {
        let mut rest = [0; 4096];
        while matches!(reader.read(&mut rest).await, Ok(1..)) {}
    };
    let _ = tokio::time::timeout(CLOSING, rest).await;
}

fn channel_of(headers: &Headers) -> Option<u8> {
    Some(match headers.get("streamtype")?.as_str() {
        "stdin" => STDIN,
        "stdout" => STDOUT,
        "stderr" => STDERR,
        "error" => ERROR,
        "resize" => RESIZE,
        _ => return None,
    })
}

/// Carries the channels of a session. Output waits until the client has opened the streams that it wants.
pub(super) async fn drive(
    io: impl AsyncRead + AsyncWrite,
    streams: Streams,
    inputs: mpsc::Sender<Input>,
    mut outputs: mpsc::Receiver<Output>,
) {
    let wanted: Vec<u8> = [
        (STDIN, streams.stdin),
        (STDOUT, streams.stdout),
        (STDERR, streams.stderr && !streams.tty),
        (ERROR, true),
        (RESIZE, streams.tty),
    ]
    .into_iter()
    .filter_map(|(channel, wanted)| wanted.then_some(channel))
    .collect();
    let (events, mut incoming) = mpsc::channel(PENDING);
    let (commands, outgoing) = mpsc::channel(PENDING);
    let (open, mut opened) = watch::channel(BTreeMap::<u8, u32>::new());
    let feeding = async move {
        let mut channels: BTreeMap<u32, u8> = BTreeMap::new();
        while let Some(event) = incoming.recv().await {
            let input = match event {
                Event::Opened(id, headers) => {
                    if let Some(channel) = channel_of(&headers) {
                        channels.insert(id, channel);
                        open.send_modify(|open| {
                            open.insert(channel, id);
                        });
                    }
                    continue;
                }
                Event::Data(id, data) => channels.get(&id).map(|channel| Input::Data(*channel, data)),
                Event::Closed(id) => channels.get(&id).map(|channel| Input::Closed(*channel)),
            };
            if let Some(input) = input
                && inputs.send(input).await.is_err()
            {
                // The session has ended; what it said last is on its way.
                std::future::pending::<()>().await;
            }
        }
    };
    let draining = async move {
        let all = opened.wait_for(|open| wanted.iter().all(|channel| open.contains_key(channel)));
        let ids = match tokio::time::timeout(OPENING, all).await {
            Ok(Ok(ids)) => ids.clone(),
            _ => return,
        };
        while let Some(output) = outputs.recv().await {
            let command = match output {
                Output::Data(channel, data) => ids.get(&channel).map(|id| Command::Data(*id, data)),
                Output::Closed(channel) => ids.get(&channel).map(|id| Command::Close(*id)),
            };
            if let Some(command) = command
                && commands.send(command).await.is_err()
            {
                return;
            }
        }
    };
    // The end of either direction ends the connection: `carry` sees its channels close.
    let translating = async move {
        tokio::select! {
            () = feeding => {}
            () = draining => {}
        }
    };
    tokio::join!(carry(io, events, outgoing), translating);
}

/// The two streams of one forwarded connection, until both are open.
#[derive(Debug, Default)]
struct Pair {
    data: Option<(u32, mpsc::Receiver<Bytes>)>,
    error: Option<u32>,
}

/// Forwards ports: for every connection the client opens a stream for errors and one for data, which name the
/// port and carry the same `requestID`.
pub(super) async fn forward(
    io: impl AsyncRead + AsyncWrite,
    backend: Arc<dyn NodeBackend>,
    target: PodTarget,
) {
    let (events, mut incoming) = mpsc::channel(PENDING);
    let (commands, outgoing) = mpsc::channel(PENDING);
    let serving = async move {
        let mut pairs: BTreeMap<String, Pair> = BTreeMap::new();
        let mut senders: BTreeMap<u32, mpsc::Sender<Bytes>> = BTreeMap::new();
        let mut running = JoinSet::new();
        while let Some(event) = incoming.recv().await {
            match event {
                Event::Opened(id, headers) => {
                    let header = |name: &str| headers.get(name).cloned().unwrap_or_default();
                    let request = header("requestid");
                    let pair = pairs.entry(request.clone()).or_default();
                    if header("streamtype") == "data" {
                        let (sender, receiver) = mpsc::channel(PENDING);
                        senders.insert(id, sender);
                        pair.data = Some((id, receiver));
                    } else {
                        pair.error = Some(id);
                    }
                    if pair.data.is_some()
                        && pair.error.is_some()
                        && let Some(Pair { data: Some(data), error: Some(error) }) = pairs.remove(&request)
                    {
                        let (backend, commands) = (backend.clone(), commands.clone());
                        let request = PortForwardRequest {
                            target: target.clone(),
                            port: header("port").parse().unwrap_or_default(),
                        };
                        running.spawn(forward_one(backend, request, data, error, commands));
                    }
                }
                Event::Data(id, data) => {
                    if let Some(sender) = senders.get(&id)
                        && sender.send(data).await.is_err()
                    {
                        senders.remove(&id);
                    }
                }
                Event::Closed(id) => drop(senders.remove(&id)),
            }
        }
        running.abort_all();
    };
    tokio::join!(carry(io, events, outgoing), serving);
}

/// Serves one connection: its data stream with what the client sends there, and its error stream.
async fn forward_one(
    backend: Arc<dyn NodeBackend>,
    request: PortForwardRequest,
    (id, inputs): (u32, mpsc::Receiver<Bytes>),
    error: u32,
    commands: mpsc::Sender<Command>,
) {
    let (port, pod) = (request.port, request.target.pod.clone());
    match backend.port_forward(request).await {
        Ok(connection) => {
            let wrap =
                move |data: Option<Bytes>| data.map_or(Command::Close(id), |data| Command::Data(id, data));
            run_connection(connection, inputs, commands.clone(), wrap).await;
        }
        Err(why) => {
            let text = format!("an error occurred forwarding {port} to pod {pod}: {why}");
            let _ = commands.send(Command::Data(error, text.into())).await;
            let _ = commands.send(Command::Close(id)).await;
        }
    }
    let _ = commands.send(Command::Close(error)).await;
}

#[cfg(test)]
pub(super) mod tests {
    use flate2::{Compress, Compression, FlushCompress};
    use proptest::prelude::*;

    use super::*;

    /// Opens streams as a client does; the headers of all are one zlib stream.
    pub(in crate::remote) struct Opener(Compress);

    impl Opener {
        pub(in crate::remote) fn new() -> Self {
            Self(Compress::new(Compression::default(), true))
        }

        pub(in crate::remote) fn open(&mut self, id: u32, headers: &[(&str, &str)]) -> Vec<u8> {
            let mut block = Vec::new();
            block.put_u32(u32::try_from(headers.len()).unwrap());
            for text in headers.iter().flat_map(|(name, value)| [name, value]) {
                block.put_u32(u32::try_from(text.len()).unwrap());
                block.put_slice(text.as_bytes());
            }
            let mut payload = Vec::with_capacity(1000);
            payload.put_u32(id);
            payload.put_slice(&[0; 6]);
            self.0.compress_vec(&block, &mut payload, FlushCompress::Sync).unwrap();
            control(SYN_STREAM, &payload).to_vec()
        }
    }

    pub(in crate::remote) fn client_data(id: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
        data(id, bytes, fin).to_vec()
    }

    fn decode(bytes: &[u8]) -> Result<Vec<Frame>, Violation> {
        let mut decoder = Decoder::new();
        decoder.input.extend_from_slice(bytes);
        let mut all = Vec::new();
        while let Some(frame) = decoder.next()? {
            all.push(frame);
        }
        Ok(all)
    }

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_dictionary_is_the_one_that_zlib_streams_name() {
        let (mut a, mut b) = (1_u32, 0_u32);
        for byte in DICTIONARY.iter() {
            a = (a + u32::from(*byte)) % 65_521;
            b = (b + a) % 65_521;
        }
        assert_eq!((DICTIONARY.len(), (b << 16) | a), (1423, DICTIONARY_ID));
    }

    #[test]
    fn header_blocks_that_rely_on_the_dictionary_are_inflated_one_after_another() {
        // Made with zlib 1.3, level 9, this dictionary, a sync flush after each block.
        let mut inflater = Inflater::new();
        for (block, value) in [
            ("78f9e3c6a7c202a62346703a2b294a4dcc851625aca9a08006000000ffff", "error"),
            ("c22e555c02cc2e00000000ffff", "stdin"),
        ] {
            let bytes: Vec<u8> = (0..block.len())
                .step_by(2)
                .map(|i| u8::from_str_radix(&block[i..i + 2], 16).unwrap())
                .collect();
            let inflated = inflater.inflate(&bytes).unwrap();
            assert_eq!(parse_headers(&inflated).unwrap(), headers(&[("streamtype", value)]));
        }
    }

    #[test]
    fn replies_are_one_zlib_stream_of_empty_header_blocks() {
        let mut inflater = Inflater::new();
        for first in [true, false] {
            let frame = reply(1, first);
            assert_eq!(inflater.inflate(&frame[12..]).unwrap(), [0; 4]);
        }
    }

    #[test]
    fn breaches_of_the_protocol_end_the_connection() {
        let long = [1_u32.to_be_bytes(), [0, 0xff, 0xff, 0xff]].concat();
        let garbage = control(SYN_STREAM, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7]).to_vec();
        let short = control(PING, &[1]).to_vec();
        let bomb = {
            let value = "x".repeat(MAX_HEADERS);
            Opener::new().open(1, &[("streamtype", &value)])
        };
        for (case, bytes) in [
            ("a frame that is too long", long),
            ("headers that are no zlib stream", garbage),
            ("a ping without number", short),
            ("headers that inflate beyond the bound", bomb),
        ] {
            assert_eq!(decode(&bytes), Err(Violation), "{case}");
        }
    }

    proptest! {
        #[test]
        fn frames_survive_any_chunking(pieces in proptest::collection::vec(".{0,40}", 1..6), chunk in 1_usize..40) {
            let mut opener = Opener::new();
            let mut bytes = Vec::new();
            let mut expected = Vec::new();
            for (id, piece) in (1_u32..).zip(&pieces) {
                let piece = piece.to_lowercase();
                bytes.extend(opener.open(id, &[("streamtype", &piece)]));
                bytes.extend(client_data(id, piece.as_bytes(), true));
                expected.push(Frame::Open { id, headers: headers(&[("streamtype", &piece)]), fin: false });
                expected.push(Frame::Data { id, data: piece.into_bytes().into(), fin: true });
            }
            let mut decoder = Decoder::new();
            let mut found = Vec::new();
            for piece in bytes.chunks(chunk) {
                decoder.input.extend_from_slice(piece);
                while let Some(frame) = decoder.next().unwrap() {
                    found.push(frame);
                }
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn any_bytes_are_taken_without_panic(
            kind in 0_u16..12,
            payload in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let _ = decode(&control(kind, &payload));
            let _ = decode(&payload);
        }
    }
}
