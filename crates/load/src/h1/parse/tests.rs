use super::*;
use proptest::prelude::*;

/// What a reader makes of bytes that come in pieces, cut at `cuts`.
fn read_in_pieces(
    bytes: &[u8],
    cuts: &[usize],
    bodiless: bool,
) -> Result<(usize, bool, u16), Malformed> {
    let mut reader = Reader::new();
    reader.begin(bodiless);
    let (mut done, mut seen) = (0, 0);
    for &cut in cuts.iter().chain([&bytes.len()]) {
        if cut < seen || cut > bytes.len() {
            continue;
        }
        seen = cut;
        let progress = reader.read(&bytes[done..seen])?;
        done += progress.consumed;
        if progress.complete {
            return Ok((done, reader.keep_alive, reader.status));
        }
    }
    reader.close().map(|()| (done, reader.keep_alive, reader.status))
}

const WHOLE: &[(&str, u16, bool)] = &[
    ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 200, true),
    ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, true),
    ("HTTP/1.1 204 No Content\r\n\r\n", 204, true),
    ("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", 304, true),
    ("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", 200, false),
    ("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx", 200, true),
    ("HTTP/1.1 200 OK\r\nconnection: foo, close\r\ncontent-length: 1\r\n\r\nx", 200, false),
    ("HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nxy", 200, true),
    ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200, true),
    (
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n\
         1;a=b\r\nx\r\nA\r\n0123456789\r\n0\r\ntrailer: 1\r\nanother: 2\r\n\r\n",
        200,
        true,
    ),
    (
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n\
         HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nno!",
        404,
        true,
    ),
    ("HTTP/1.1 503 Service Unavailable\r\nretry-after: 2\r\ncontent-length: 0\r\n\r\n", 503, true),
];

#[test]
fn every_response_is_the_same_whatever_the_pieces() {
    for &(text, status, keep_alive) in WHOLE {
        let bytes = text.as_bytes();
        let expected = Ok((bytes.len(), keep_alive, status));
        assert_eq!(read_in_pieces(bytes, &[], false), expected, "{text}");
        let every: Vec<usize> = (0..bytes.len()).collect();
        assert_eq!(read_in_pieces(bytes, &every, false), expected, "{text}, byte by byte");
        for cut in 0..bytes.len() {
            assert_eq!(read_in_pieces(bytes, &[cut], false), expected, "{text}, cut at {cut}");
            // And what is not there yet is not taken for complete.
            let cut_off = read_in_pieces(&bytes[..cut], &[], false);
            assert_eq!(cut_off, Err(Malformed::CutOff), "{text}, ends at {cut}");
        }
    }
}

#[test]
fn what_follows_a_response_is_left_alone() {
    let two = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 No\r\n\r\n";
    assert_eq!(read_in_pieces(two.as_bytes(), &[], false), Ok((40, true, 200)));
}

#[test]
fn a_head_s_body_is_not_waited_for() {
    let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
    assert_eq!(read_in_pieces(text.as_bytes(), &[], true), Ok((text.len(), true, 200)));
    assert_eq!(read_in_pieces(text.as_bytes(), &[], false), Err(Malformed::CutOff));
}

#[test]
fn a_body_without_a_length_ends_with_the_connection() {
    let text = "HTTP/1.1 200 OK\r\n\r\nwhatever";
    assert_eq!(read_in_pieces(text.as_bytes(), &[3, 20], false), Ok((text.len(), false, 200)));
}

#[test]
fn what_cannot_be_told_apart_is_refused() {
    for (text, fault) in [
        ("HTTP/2 200\r\n\r\n", Malformed::Head),
        ("SSH-2.0-x\r\n", Malformed::Head),
        ("HTTP/1.1 101 Switching\r\n\r\n", Malformed::Head),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2, 3\r\n\r\n", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n", Malformed::Length),
        ("HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\nxx", Malformed::Length),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
            Malformed::Length,
        ),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n", Malformed::Chunk),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxyz", Malformed::Chunk),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\nx", Malformed::Chunk),
    ] {
        assert_eq!(read_in_pieces(text.as_bytes(), &[], false), Err(fault), "{text}");
    }
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(HEAD_MAX));
    assert_eq!(read_in_pieces(endless.as_bytes(), &[], false), Err(Malformed::HeadTooLong));
}

#[test]
fn a_refusal_keeps_what_it_says() {
    let text = "HTTP/1.1 503 No\r\nX-Tidegate-Reason: overloaded\r\nServer: x\r\n\
                x-envoy-ratelimited: true\r\nretry-after: 3\r\ncontent-length: 0\r\n\r\n";
    let mut reader = Reader::new();
    assert!(reader.read(text.as_bytes()).unwrap().complete);
    assert_eq!(reader.advice.len(), 3);
    assert_eq!(reader.advice["x-tidegate-reason"], "overloaded");
    reader.begin(false);
    assert!(reader.advice.is_empty() && !reader.has_begun());
}

proptest! {
    #[test]
    fn chunks_of_any_size_in_any_pieces(
        chunks in prop::collection::vec(1_usize..300, 0..8),
        cuts in prop::collection::vec(0_usize..3_000, 0..8),
    ) {
        let mut bytes = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
        for size in chunks {
            bytes.extend_from_slice(format!("{size:x}\r\n").as_bytes());
            bytes.extend(std::iter::repeat_n(b'\n', size));
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        let mut cuts = cuts;
        cuts.sort_unstable();
        prop_assert_eq!(read_in_pieces(&bytes, &cuts, false), Ok((bytes.len(), true, 200)));
    }

    #[test]
    fn no_bytes_panic_or_are_consumed_twice(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        good in 0..WHOLE.len(),
        at in 0_usize..60,
        cut in 0_usize..400,
    ) {
        // Noise alone is turned away at once; noise within a response reaches every state.
        let mut mixed = WHOLE[good].0.as_bytes().to_vec();
        let at = at.min(mixed.len());
        mixed.splice(at..at, bytes.iter().copied());
        for bytes in [bytes, mixed] {
            let whole = read_in_pieces(&bytes, &[], false);
            let cut = read_in_pieces(&bytes, &[cut], false);
            if let (Ok(whole), Ok(cut)) = (&whole, &cut) {
                prop_assert_eq!(whole, cut);
            }
        }
    }
}
