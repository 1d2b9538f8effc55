//! How a call of gRPC for browsers ended.
//!
//! Browsers show no trailers, so there they are the last part of the body:
//!
//! ```text
//! body = *part                            in base64 where the content type says `-text`
//! part = flags, length, so many bytes     1 byte, 4 bytes with the highest first
//! ```
//!
//! A part whose flags have the highest bit set is trailers, in lines of `name: value`. Parts come
//! in pieces, as a body does, so [`Scan`] keeps what it needs to go on: some bytes, however long
//! the body is. Base64 may end and begin again wherever a server has flushed.
//!
//! **When it is wrong.** Trailers that are compressed, or base64 that is none, tell nothing: then
//! it is not known how the call ended, as if it had been cut off.

use crate::grpc::Code;
use crate::headers::GRPC_STATUS;
use crate::protocol::Protocol;
use crate::text::trim;

/// Flags and length of a part.
const HEAD: usize = 5;
/// Set in the flags of trailers.
const TRAILERS: u8 = 0x80;
/// Longer than any line with a status, of which there are two digits at most.
const LINE_MAX: usize = 32;

/// Whether a content type is that of gRPC for browsers.
pub fn is_grpc_web(content_type: &[u8]) -> bool {
    Protocol::of_content_type(content_type) == Protocol::Grpc
        && content_type.get(WEB).is_some_and(|rest| rest.eq_ignore_ascii_case(b"-web"))
}

/// Where `-web` stands in `application/grpc-web`.
const WEB: core::ops::Range<usize> = 16..20;
/// Where `-text` stands in `application/grpc-web-text`.
const TEXT: core::ops::Range<usize> = 20..25;

/// Looks for the status in the body of an answer.
///
/// ```
/// use tidegate_wire::grpc::Code;
/// use tidegate_wire::grpc_web::Scan;
///
/// let mut scan = Scan::new(b"application/grpc-web+proto");
/// scan.take(b"\0\0\0\0\x05hello\x80\0\0\0\x0fgrpc-s");
/// scan.take(b"tatus:5");
/// assert_eq!(scan.code(), None);
/// scan.take(b"\r\n");
/// assert_eq!(scan.code(), Some(Code::NotFound));
/// ```
#[derive(Debug, Clone)]
pub struct Scan {
    text: bool,
    /// Bits of base64 that make no byte yet, and how many they are.
    bits: (u32, u8),
    head: [u8; HEAD],
    /// How much of the head has come.
    headed: usize,
    /// How much of the part is to come.
    left: u32,
    line: [u8; LINE_MAX],
    /// How long the line is, which may be more than there is room for.
    length: usize,
    code: Option<Code>,
    broken: bool,
}

impl Scan {
    /// Of an answer with this content type.
    pub fn new(content_type: &[u8]) -> Self {
        let text = content_type.get(TEXT);
        Self {
            text: text.is_some_and(|text| text.eq_ignore_ascii_case(b"-text")),
            bits: (0, 0),
            head: [0; HEAD],
            headed: 0,
            left: 0,
            line: [0; LINE_MAX],
            length: 0,
            code: None,
            broken: false,
        }
    }

    /// The status, once that has come.
    pub const fn code(&self) -> Option<Code> {
        if self.broken { None } else { self.code }
    }

    /// The next piece of the body.
    pub fn take(&mut self, data: &[u8]) {
        if !self.text {
            self.bytes(data);
            return;
        }
        for &letter in data {
            let value = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                b'=' => {
                    self.bits = (0, 0);
                    continue;
                }
                _ => {
                    self.broken = true;
                    return;
                }
            };
            let (bits, count) = ((self.bits.0 << 6 | u32::from(value)) & 0xffff, self.bits.1 + 6);
            self.bits = (bits, count);
            if let Some(count) = count.checked_sub(8) {
                self.bits = (bits, count);
                // The byte is what stands above the bits that are left.
                self.bytes(&[(bits >> count) as u8]);
            }
        }
    }

    fn bytes(&mut self, mut data: &[u8]) {
        while let Some((&first, rest)) = data.split_first() {
            if let Some(place) = self.head.get_mut(self.headed) {
                *place = first;
                self.headed += 1;
                data = rest;
                let [_, length @ ..] = self.head;
                self.left = u32::from_be_bytes(length);
            } else {
                let (part, rest) = data.split_at(data.len().min(self.left as usize));
                if self.head[0] & TRAILERS != 0 {
                    for byte in part {
                        self.letter(*byte);
                    }
                }
                self.left -= part.len() as u32;
                data = rest;
            }
            if self.headed == HEAD && self.left == 0 {
                self.letter(b'\n');
                self.headed = 0;
            }
        }
    }

    /// The next letter of the trailers.
    fn letter(&mut self, letter: u8) {
        if letter != b'\n' {
            if let Some(place) = self.line.get_mut(self.length) {
                *place = letter;
            }
            self.length = self.length.saturating_add(1);
            return;
        }
        let line = self.line.get(..core::mem::take(&mut self.length)).unwrap_or_default();
        if let Some(colon) = line.iter().position(|letter| *letter == b':')
            && trim(&line[..colon]).eq_ignore_ascii_case(GRPC_STATUS.as_str().as_bytes())
        {
            self.code = Some(Code::parse(trim(line[colon + 1..].trim_ascii_end())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::*;

    const BINARY: &[u8] = b"application/grpc-web+proto";

    fn part(flags: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&[flags], &length[..], bytes].concat()
    }

    #[test]
    fn content_types_of_browsers() {
        for (value, expected) in [
            ("application/grpc-web", true),
            ("Application/gRPC-Web-Text+proto", true),
            ("application/grpc", false),
            ("application/grpc+proto", false),
            ("application/grpc-we", false),
            ("application/json", false),
        ] {
            assert_eq!(is_grpc_web(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn a_status_is_where_trailers_are() {
        for (trailers, code) in [
            ("grpc-status:0\r\n", Some(Code::Ok)),
            ("grpc-message:no\r\nGRPC-Status: 13 \r\nother: 0\r\n", Some(Code::Internal)),
            // As far as it goes.
            ("grpc-status: 5", Some(Code::NotFound)),
            ("grpc-status: nonsense", Some(Code::Unknown)),
            ("x-grpc-status: 5", None),
            ("grpc-status", None),
            ("", None),
        ] {
            let mut scan = Scan::new(BINARY);
            scan.take(&part(0, b"grpc-status:7\r\n"));
            scan.take(&part(0, b""));
            scan.take(&part(TRAILERS, trailers.as_bytes()));
            assert_eq!(scan.code(), code, "{trailers:?}");
        }
        let mut text = Scan::new(b"application/grpc-web-text");
        text.take(b"AAA*");
        text.take(STANDARD.encode(part(TRAILERS, b"grpc-status:0\r\n")).as_bytes());
        assert_eq!(text.code(), None);
    }

    proptest! {
        /// However a body is cut into pieces, and base64 into runs, it says the same.
        #[test]
        fn pieces_do_not_matter(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..4),
            long in 0..100_usize,
            code in 0..20_u8,
            cuts in prop::collection::vec(1..40_usize, 1..20),
            text: bool,
        ) {
            let trailers = format!("grpc-message:{}\r\ngrpc-status:{code}\r\n", "m".repeat(long));
            let mut body = messages.iter().map(|message| part(0, message)).collect::<Vec<_>>();
            body.push(part(TRAILERS, trailers.as_bytes()));
            let content_type = if text { b"application/grpc-web-text" } else { BINARY };
            let wire = if text {
                body.iter().map(|run| STANDARD.encode(run)).collect::<String>().into_bytes()
            } else {
                body.concat()
            };
            let mut scan = Scan::new(content_type);
            let (mut rest, mut cuts) = (&wire[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                scan.take(piece);
                rest = after;
            }
            prop_assert_eq!(scan.code(), Some(Code::parse(code.to_string().as_bytes())));
        }
    }
}
