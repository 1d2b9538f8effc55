//! What is sent, and what has to come back.

use super::*;

/// A field as HPACK has it, neither indexed nor compressed.
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(u8::try_from(text.len()).unwrap());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// `:method`, `:scheme` and `:path` by the static table, and `:authority`.
fn head(method: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = vec![method, 0x86, 0x84];
    block.extend(field(":authority", "x"));
    block.extend(fields.iter().flat_map(|(name, value)| field(name, value)));
    block
}

fn get(fields: &[(&str, &str)]) -> Vec<u8> {
    head(0x82, fields)
}

fn post(fields: &[(&str, &str)]) -> Vec<u8> {
    head(0x83, fields)
}

fn raw(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| field(name, value)).collect()
}

/// A request whose fields are all there are.
fn malformed(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, WHOLE, 1, &raw(fields))
}

pub(super) fn setting(id: u16, value: u32) -> Vec<u8> {
    let mut payload = id.to_be_bytes().to_vec();
    payload.extend(value.to_be_bytes());
    frame(SETTINGS, 0, 0, &payload)
}

fn all(parts: &[Vec<u8>]) -> Vec<u8> {
    parts.concat()
}

/// A request without a body, on stream `id`.
fn asked(id: u32) -> Vec<u8> {
    frame(HEADERS, WHOLE, id, &get(&[]))
}

/// The head of a request whose body is to come, on stream `id`.
fn begun(id: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, id, &post(&[]))
}

fn case(section: &'static str, says: &'static str, sends: Vec<u8>, wants: Reaction) -> Case {
    Case { section, says, sends, wants, found: None }
}

/// Sections 4 and 5: frames, header blocks and the states of streams.
#[expect(clippy::too_many_lines, reason = "it is a table")]
pub(super) fn framing() -> Vec<Case> {
    let protocol = Connection(PROTOCOL_ERROR);
    let closed = |stream| Stream(stream, STREAM_CLOSED);
    let reset = frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]);
    let with_priority = [&[0, 0, 0, 0, 16][..], &get(&[])].concat();
    vec![
        case(
            "4.1",
            "a frame of a kind nobody knows is ignored",
            frame(0x16, 0, 0, &[0; 8]),
            Ignored,
        ),
        case(
            "4.1",
            "flags that mean nothing are ignored",
            frame(PING, 0x16, 0, b"tidegate"),
            Pong(b"tidegate"),
        ),
        case(
            "4.1",
            "the reserved bit is ignored",
            frame(PING, 0, 1 << 31, b"tidegate"),
            Pong(b"tidegate"),
        ),
        case(
            "4.2",
            "a frame as long as may be is taken",
            all(&[begun(1), frame(DATA, END_STREAM, 1, &[b'x'; 16_384])]),
            Served(1),
        ),
        case(
            "4.2",
            "DATA longer than may be",
            all(&[begun(1), frame(DATA, END_STREAM, 1, &[0; 16_385])]),
            Connection(FRAME_SIZE_ERROR),
        ),
        case(
            "4.2",
            "HEADERS longer than may be",
            frame(HEADERS, WHOLE, 1, &[0; 16_385]),
            Connection(FRAME_SIZE_ERROR),
        ),
        case(
            "4.3",
            "a header block that cannot be read",
            frame(HEADERS, WHOLE, 1, &[0x40]),
            Connection(COMPRESSION_ERROR),
        )
        .but(protocol),
        case(
            "4.3",
            "PRIORITY within a header block",
            all(&[
                frame(HEADERS, END_STREAM, 1, &get(&[])),
                frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 9]),
            ]),
            protocol,
        ),
        case(
            "4.3",
            "another stream within a header block",
            all(&[frame(HEADERS, END_STREAM, 1, &get(&[])), asked(3)]),
            protocol,
        ),
        case("5.1", "idle: DATA", frame(DATA, END_STREAM, 1, b"x"), protocol),
        case("5.1", "idle: RST_STREAM", reset.clone(), protocol),
        case("5.1", "idle: WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), protocol),
        case("5.1", "idle: CONTINUATION", frame(CONTINUATION, END_HEADERS, 1, &get(&[])), protocol),
        case(
            "5.1",
            "half closed: DATA",
            all(&[asked(1), frame(DATA, END_STREAM, 1, b"x")]),
            closed(1),
        )
        .but(protocol),
        case("5.1", "half closed: HEADERS", all(&[asked(1), asked(1)]), closed(1)).but(protocol),
        case(
            "5.1",
            "half closed: CONTINUATION",
            all(&[asked(1), frame(CONTINUATION, END_HEADERS, 1, &get(&[]))]),
            protocol,
        ),
        case(
            "5.1",
            "closed by RST_STREAM: DATA",
            all(&[begun(1), reset.clone(), frame(DATA, END_STREAM, 1, b"x")]),
            closed(1),
        ),
        case(
            "5.1",
            "closed by RST_STREAM: HEADERS",
            all(&[begun(1), reset.clone(), asked(1)]),
            closed(1),
        )
        .but(protocol),
        case(
            "5.1",
            "closed by RST_STREAM: CONTINUATION",
            all(&[begun(1), reset.clone(), frame(CONTINUATION, END_HEADERS, 1, &get(&[]))]),
            protocol,
        ),
        case(
            "5.1",
            "closed: WINDOW_UPDATE and RST_STREAM may still come",
            all(&[begun(1), reset.clone(), frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]), reset]),
            Ignored,
        ),
        case(
            "5.1",
            "PRIORITY may come for any stream",
            frame(PRIORITY, 0, 7, &[0, 0, 0, 0, 9]),
            Ignored,
        ),
        case("5.1.1", "a client's streams are odd", asked(2), protocol),
        case("5.1.1", "numbers only rise", all(&[asked(5), asked(3)]), protocol),
        case(
            "5.1.2",
            "no more streams than are allowed",
            (0..=200).flat_map(|n| begun(2 * n + 1)).collect(),
            Stream(401, REFUSED_STREAM),
        ),
        case(
            "5.4.1",
            "after an error of the connection it is closed",
            frame(DATA, 0, 0, b"x"),
            protocol,
        ),
        case(
            "5.5",
            "an extension within a header block",
            all(&[frame(HEADERS, END_STREAM, 1, &get(&[])), frame(0x16, 0, 0, &[0; 8])]),
            protocol,
        ),
        case(
            "6.2",
            "with a priority, which is ignored",
            frame(HEADERS, WHOLE | 0x20, 1, &with_priority),
            Served(1),
        ),
    ]
}

/// Section 6: each kind of frame.
#[expect(clippy::too_many_lines, reason = "it is a table")]
pub(super) fn frames() -> Vec<Case> {
    let protocol = Connection(PROTOCOL_ERROR);
    let size = Connection(FRAME_SIZE_ERROR);
    let flow = Connection(FLOW_CONTROL_ERROR);
    let padded = [&[3][..], &get(&[]), &[0; 3]].concat();
    let too_padded = [&[200][..], &get(&[])].concat();
    let most = [0x7f, 0xff, 0xff, 0xff];
    let block = get(&[("x-long", "value")]);
    let (first, rest) = block.split_at(5);
    let (second, third) = rest.split_at(5);
    vec![
        case("6.1", "DATA of no stream", frame(DATA, END_STREAM, 0, b"x"), protocol),
        case(
            "6.1",
            "DATA with padding",
            all(&[begun(1), frame(DATA, END_STREAM | PADDED, 1, &[2, b'x', 0, 0])]),
            Served(1),
        ),
        case(
            "6.1",
            "DATA with more padding than there is",
            all(&[begun(1), frame(DATA, END_STREAM | PADDED, 1, &[9, b'x'])]),
            protocol,
        ),
        case("6.2", "HEADERS of no stream", frame(HEADERS, WHOLE, 0, &get(&[])), protocol),
        case("6.2", "HEADERS with padding", frame(HEADERS, WHOLE | PADDED, 1, &padded), Served(1)),
        case(
            "6.2",
            "HEADERS with more padding than there is",
            frame(HEADERS, WHOLE | PADDED, 1, &too_padded),
            protocol,
        ),
        case("6.3", "PRIORITY of no stream", frame(PRIORITY, 0, 0, &[0, 0, 0, 0, 9]), protocol),
        case(
            "6.3",
            "PRIORITY of the wrong length",
            frame(PRIORITY, 0, 1, &[0; 4]),
            Stream(1, FRAME_SIZE_ERROR),
        )
        .but(protocol),
        case("6.4", "RST_STREAM of no stream", frame(RST_STREAM, 0, 0, &[0, 0, 0, 8]), protocol),
        case(
            "6.4",
            "RST_STREAM of the wrong length",
            all(&[begun(1), frame(RST_STREAM, 0, 1, &[0; 3])]),
            size,
        )
        .but(protocol),
        case(
            "6.5",
            "SETTINGS that acknowledge and say something",
            frame(SETTINGS, ACK, 0, &[0; 6]),
            size,
        )
        .but(protocol),
        case("6.5", "SETTINGS of a stream", frame(SETTINGS, 0, 1, &[]), protocol),
        case("6.5", "SETTINGS of the wrong length", frame(SETTINGS, 0, 0, &[0; 5]), size)
            .but(protocol),
        case("6.5.2", "ENABLE_PUSH that is no truth value", setting(2, 2), protocol),
        case("6.5.2", "INITIAL_WINDOW_SIZE beyond 2^31 - 1", setting(4, 1 << 31), flow)
            .but(protocol),
        case("6.5.2", "MAX_FRAME_SIZE below 2^14", setting(5, 16_383), protocol),
        case("6.5.2", "MAX_FRAME_SIZE beyond 2^24 - 1", setting(5, 1 << 24), protocol),
        case("6.5.2", "a setting that nobody knows", setting(0xff, 1), Ignored),
        case(
            "6.6",
            "PUSH_PROMISE of a client",
            all(&[
                begun(1),
                frame(PUSH_PROMISE, END_HEADERS, 1, &[&[0, 0, 0, 2][..], &get(&[])].concat()),
            ]),
            protocol,
        ),
        case(
            "6.7",
            "PING is answered with what it said",
            frame(PING, 0, 0, b"tidegate"),
            Pong(b"tidegate"),
        ),
        case(
            "6.7",
            "an answer to PING is not answered",
            all(&[frame(PING, ACK, 0, b"unasked!"), frame(PING, 0, 0, b"tidegate")]),
            Pong(b"tidegate"),
        ),
        case("6.7", "PING of a stream", frame(PING, 0, 1, b"tidegate"), protocol),
        case("6.7", "PING of the wrong length", frame(PING, 0, 0, b"six..."), size).but(protocol),
        case("6.8", "GOAWAY of a stream", frame(GOAWAY, 0, 1, &[0; 8]), protocol),
        case(
            "6.9",
            "WINDOW_UPDATE of the connection by nothing",
            frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
            protocol,
        ),
        case(
            "6.9",
            "WINDOW_UPDATE of a stream by nothing",
            all(&[begun(1), frame(WINDOW_UPDATE, 0, 1, &[0; 4])]),
            Stream(1, PROTOCOL_ERROR),
        )
        .by(protocol),
        case("6.9", "WINDOW_UPDATE of the wrong length", frame(WINDOW_UPDATE, 0, 0, &[0; 3]), size)
            .but(protocol),
        case(
            "6.9.1",
            "a window of the connection beyond 2^31 - 1",
            frame(WINDOW_UPDATE, 0, 0, &most),
            flow,
        ),
        case(
            "6.9.1",
            "a window of a stream beyond 2^31 - 1",
            all(&[begun(1), frame(WINDOW_UPDATE, 0, 1, &most)]),
            Stream(1, FLOW_CONTROL_ERROR),
        ),
        case(
            "6.9.1",
            "no more DATA than the window has room for",
            all(&[setting(4, 1), asked(1)]),
            Data(1, 1),
        ),
        case(
            "6.9.2",
            "a window that was made smaller, and opens again",
            all(&[setting(4, 0), asked(1), setting(4, 3)]),
            Data(1, 3),
        ),
        case(
            "6.9.2",
            "windows that SETTINGS take beyond 2^31 - 1",
            all(&[
                begun(1),
                frame(WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0, 0]),
                setting(4, 0x7fff_ffff),
            ]),
            flow,
        ),
        case(
            "6.10",
            "a header block in three parts",
            all(&[
                frame(HEADERS, END_STREAM, 1, first),
                frame(CONTINUATION, 0, 1, second),
                frame(CONTINUATION, END_HEADERS, 1, third),
            ]),
            Served(1),
        ),
        case(
            "6.10",
            "CONTINUATION of no stream",
            all(&[frame(HEADERS, END_STREAM, 1, first), frame(CONTINUATION, END_HEADERS, 0, rest)]),
            protocol,
        ),
        case(
            "6.10",
            "CONTINUATION of another stream",
            all(&[frame(HEADERS, END_STREAM, 1, first), frame(CONTINUATION, END_HEADERS, 3, rest)]),
            protocol,
        ),
        case(
            "6.10",
            "CONTINUATION after the end of the block",
            all(&[begun(1), frame(CONTINUATION, END_HEADERS, 1, rest)]),
            protocol,
        ),
        case(
            "6.10",
            "DATA within a header block",
            all(&[frame(HEADERS, 0, 1, first), frame(DATA, END_STREAM, 1, b"x")]),
            protocol,
        ),
    ]
}

/// Section 8: what a request is.
pub(super) fn requests() -> Vec<Case> {
    let (wrong, ended) = (Stream(1, PROTOCOL_ERROR), Connection(PROTOCOL_ERROR));
    let (m, s, p, a) =
        ((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x"));
    let with = |extra: (&str, &str)| malformed(&[m, s, p, a, extra]);
    let trailed = |flags: u8, fields: &[(&str, &str)]| {
        all(&[begun(1), frame(DATA, 0, 1, b"x"), frame(HEADERS, flags, 1, &raw(fields))])
    };
    let long = |parts: &[&[u8]]| {
        let mut sends = frame(HEADERS, END_HEADERS, 1, &post(&[("content-length", "4")]));
        for (n, part) in parts.iter().enumerate() {
            let flags = if n + 1 == parts.len() { END_STREAM } else { 0 };
            sends.extend(frame(DATA, flags, 1, part));
        }
        sends
    };
    vec![
        case("8.1", "a request as it should be", malformed(&[m, s, p, a]), Served(1)),
        case("8.1", "trailers", trailed(WHOLE, &[("x-sum", "1")]), Served(1)),
        case(
            "8.1",
            "trailers that do not end the stream",
            trailed(END_HEADERS, &[("x-sum", "1")]),
            wrong,
        ),
        case("8.1.1", "a body shorter than content-length", long(&[b"abc"]), wrong),
        case("8.1.1", "a body longer than content-length", long(&[b"abcde"]), wrong),
        case("8.1.1", "and in more than one frame", long(&[b"ab", b"cde"]), wrong),
        case("8.1.1", "as long as content-length says", long(&[b"ab", b"cd"]), Served(1)),
        case(
            "8.1.1",
            "content-length without a body",
            frame(HEADERS, WHOLE, 1, &post(&[("content-length", "4")])),
            wrong,
        ),
        case("8.2", "names in capitals", with(("X-Loud", "1")), wrong).by(ended),
        case("8.2.1", "a name with a blank in it", with(("x loud", "1")), wrong).by(ended),
        case("8.2.1", "a name with a colon in it", with(("x:loud", "1")), wrong).by(ended),
        case("8.2.1", "a value with the end of a line in it", with(("x-a", "1\r\nx-b: 2")), wrong)
            .by(ended),
        case("8.2.1", "a value with a NUL in it", with(("x-a", "1\0")), wrong).by(ended),
        case("8.2.2", "connection", with(("connection", "keep-alive")), wrong),
        case("8.2.2", "proxy-connection", with(("proxy-connection", "keep-alive")), wrong),
        case("8.2.2", "keep-alive", with(("keep-alive", "timeout=5")), wrong),
        case("8.2.2", "transfer-encoding", with(("transfer-encoding", "chunked")), wrong),
        case("8.2.2", "upgrade", with(("upgrade", "websocket")), wrong),
        case("8.2.2", "te that is not trailers", with(("te", "trailers, deflate")), wrong),
        case("8.2.2", "te: trailers", with(("te", "trailers")), Served(1)),
        case(
            "8.2.3",
            "cookies in several fields",
            malformed(&[m, s, p, a, ("cookie", "a=1"), ("cookie", "b=2")]),
            Served(1),
        ),
        case("8.3", "a pseudo-header that is none", with((":x", "1")), wrong).by(ended),
        case("8.3", "a pseudo-header of answers", with((":status", "200")), wrong),
        case("8.3", "a pseudo-header after others", malformed(&[m, s, a, ("x-a", "1"), p]), wrong),
        case("8.3", "a pseudo-header among trailers", trailed(WHOLE, &[(":method", "GET")]), wrong)
            .but(Served(1)),
        case("8.3.1", "no path to ask for", malformed(&[m, s, (":path", ""), a]), wrong),
        case("8.3.1", "without :method", malformed(&[s, p, a]), wrong),
        case("8.3.1", "without :scheme", malformed(&[m, p, a]), wrong),
        case("8.3.1", "without :path", malformed(&[m, s, a]), wrong),
        case("8.3.1", ":method twice", malformed(&[m, m, s, p, a]), wrong),
        case("8.3.1", ":scheme twice", malformed(&[m, s, s, p, a]), wrong),
        case("8.3.1", ":path twice", malformed(&[m, s, p, p, a]), wrong),
        case("8.3.1", ":authority twice", malformed(&[m, s, p, a, a]), wrong),
        case("8.5", "CONNECT with a path", malformed(&[(":method", "CONNECT"), s, p, a]), wrong),
    ]
}

/// RFC 7541.
pub(super) fn compression() -> Vec<Case> {
    let (wrong, ended) = (Connection(COMPRESSION_ERROR), Connection(PROTOCOL_ERROR));
    let ends_with = |bytes: &[u8]| {
        let mut block = get(&[]);
        block.extend(bytes);
        frame(HEADERS, WHOLE, 1, &block)
    };
    let begins_with = |bytes: &[u8]| {
        let block = [bytes, &get(&[])[..]].concat();
        frame(HEADERS, WHOLE, 1, &block)
    };
    vec![
        case("HPACK 2.3.3", "an index of nothing", ends_with(&[0xc6]), wrong).but(ended),
        case(
            "HPACK 2.3.3",
            "a name by an index of nothing",
            ends_with(&[0x0f, 0x37, 0x01, b'x']),
            wrong,
        )
        .but(ended),
        case("HPACK 4.2", "a new size at the end of a block", ends_with(&[0x20]), wrong).but(ended),
        case("HPACK 4.2", "a new size at its beginning", begins_with(&[0x20]), Served(1)),
        case(
            "HPACK 5.2",
            "more than 7 bits of padding",
            ends_with(&[0, 1, b'x', 0x83, 0xff, 0xff, 0xff]),
            wrong,
        )
        .but(ended),
        case(
            "HPACK 5.2",
            "padding that is not of ones",
            ends_with(&[0, 1, b'x', 0x81, 0x18]),
            wrong,
        )
        .but(ended),
        case(
            "HPACK 5.2",
            "the end of all strings",
            ends_with(&[0, 1, b'x', 0x84, 0xff, 0xff, 0xff, 0xfc]),
            wrong,
        )
        .but(ended),
        case("HPACK 6.1", "the index zero", ends_with(&[0x80]), wrong).but(ended),
        case(
            "HPACK 6.3",
            "a larger table than was allowed",
            begins_with(&[0x3f, 0xe2, 0x1f]),
            wrong,
        )
        .but(ended),
        case(
            "HPACK 5.1",
            "a number without end",
            ends_with(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
            wrong,
        )
        .but(ended),
    ]
}
