//! Every parser against bytes that nobody would send, with what must hold whatever they are.
//!
//! As ordinary tests they try the committed corpora and some thousand random inputs. With
//! `cargo-bolero` and a nightly compiler, the same functions are fuzz targets:
//!
//! ```sh
//! cargo +nightly bolero test -p tidegate-wire --test fuzz baggage
//! ```
//!
//! A failure prints its seed (`BOLERO_RANDOM_SEED`) or the file of its input. Inputs that have
//! failed once belong into `tests/__fuzz__/NAME/corpus`.
//!
//! Random bytes hardly ever spell `criticality`, so each input is tried twice: as it is, and with
//! low bytes taken as words out of a dictionary.

use http::{HeaderMap, HeaderValue, StatusCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_core::balance::LoadReport;
use tidegate_core::decision::Advice;
use tidegate_core::{Criticality, Outcome};
use tidegate_wire::customer::{Identities, Peer, SpiffeId};
use tidegate_wire::faults::{Fault, Faults};
use tidegate_wire::grpc_web::Scan;
use tidegate_wire::health::{Answer, Question, SIZE};
use tidegate_wire::incoming::Incoming;
use tidegate_wire::orca::{self, Format, OrcaLoadReport};
use tidegate_wire::priority::Urgency;
use tidegate_wire::protocol::Protocol;
use tidegate_wire::{answer, attempt, criticality, customer, deadline, edge, grpc, priority};

/// Runs `check` on the input as it is, and as woven out of `words`.
macro_rules! fuzz {
    ($name:literal, $words:expr, $check:expr) => {
        bolero::check!(name = $name).with_iterations(3_000).with_max_len(256).for_each(
            |input: &[u8]| {
                let check: fn(&[u8]) = $check;
                check(input);
                check(&weave(input, $words));
            },
        )
    };
}

fn weave(input: &[u8], words: &[&str]) -> Vec<u8> {
    let mut woven = Vec::new();
    for &byte in input {
        // Three quarters of all bytes are words.
        match words.get(usize::from(byte) % (words.len() * 4 / 3).max(1)) {
            Some(word) => woven.extend_from_slice(word.as_bytes()),
            None => woven.push(byte),
        }
    }
    woven
}

/// What can stand in a header out of lines of the input.
fn values(input: &[u8]) -> impl Iterator<Item = HeaderValue> {
    input.split(|&b| b == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok())
}

fn headers(name: &'static str, input: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for value in values(input) {
        headers.append(name, value);
    }
    headers
}

/// The members of the baggage that are not ours, as they stand: by the standard's words rather than
/// by the code under test.
fn others(headers: &HeaderMap) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for value in headers.get_all("baggage") {
        for member in value.as_bytes().split(|&b| b == b',') {
            let text = String::from_utf8_lossy(member);
            let ours = text
                .split(';')
                .next()
                .and_then(|pair| pair.split_once('='))
                .is_some_and(|(name, _)| name.trim_matches([' ', '\t']) == "criticality");
            if !ours && !text.trim_matches([' ', '\t']).is_empty() {
                found.push(member.to_vec());
            }
        }
    }
    found
}

const BAGGAGE: &[&str] = &[
    "criticality",
    "=",
    ",",
    ";",
    " ",
    "\n",
    "CRITICAL",
    "CRITICAL_PLUS",
    "SHEDDABLE",
    "sheddable",
    "_PLUS",
    "%5F",
    "%",
    "\t",
    "a=b",
    "criticality=CRITICAL_PLUS",
    "criticality=SHEDDABLE",
    "\"",
];

#[test]
fn baggage() {
    fuzz!("baggage", BAGGAGE, |input| {
        let before = headers("baggage", input);
        let (found, _) = criticality::read(&before, Protocol::Grpc);
        if let Some(found) = found {
            // Nobody is raised to what was not written.
            let text: String = values(input)
                .map(|value| String::from_utf8_lossy(value.as_bytes()).to_uppercase())
                .collect();
            let text = percent_decoded(&text).to_uppercase();
            assert!(text.contains(found.name()), "{text}");
        }
        for criticality in Criticality::ALL {
            let mut headers = before.clone();
            criticality::write(&mut headers, criticality);
            let (read, faults) = criticality::read(&headers, Protocol::Grpc);
            assert_eq!(read, Some(criticality));
            assert!(!faults.contains(Fault::BadCriticality));
            assert!(!faults.contains(Fault::Contradictory));
            assert_eq!(others(&headers), others(&before));
            assert_eq!(headers.get_all("baggage").iter().count(), 1);
            // Writing again changes nothing.
            let once = headers.clone();
            criticality::write(&mut headers, criticality);
            assert_eq!(headers, once);
            criticality::strip(&mut headers);
            assert_eq!(criticality::read(&headers, Protocol::Grpc).0, None);
            assert_eq!(others(&headers), others(&before));
        }
    });
}

fn percent_decoded(text: &str) -> String {
    grpc::decode_message(text.as_bytes())
}

const CLAIMS: &[&str] = &[
    "\n",
    "CRITICAL",
    "CRITICAL_PLUS",
    "SHEDDABLE",
    "SHEDDABLE_PLUS",
    "critical",
    "1",
    "2",
    "0",
    "1S",
    "250m",
    "u=5",
    "u=",
    "criticality=CRITICAL_PLUS",
    "criticality=",
    "maps",
    ",",
    " ",
    "-1",
    "99999999H",
    "4294967296",
    "a=b",
];

/// All headers that a request may carry, the lines of the input dealt out to them.
fn request(input: &[u8]) -> HeaderMap {
    let names = [
        "baggage",
        "x-criticality",
        "x-request-criticality",
        "criticality",
        "x-envoy-attempt-count",
        "grpc-previous-rpc-attempts",
        "grpc-timeout",
        "x-envoy-expected-rq-timeout-ms",
        "x-customer",
        "priority",
    ];
    let mut headers = HeaderMap::new();
    for (value, name) in values(input).zip(names.into_iter().cycle()) {
        headers.append(name, value);
    }
    headers
}

#[test]
fn incoming() {
    fuzz!("incoming", CLAIMS, |input| {
        let mut headers = request(input);
        let stranger = Peer::default();
        for protocol in [Protocol::Http, Protocol::Grpc] {
            let mut incoming = Incoming::read(&headers, protocol);
            assert!((1..=attempt::ATTEMPT_MAX).contains(&incoming.attempt));
            assert!(incoming.urgency.is_none_or(|urgency| urgency <= 7));
            for default in Criticality::ALL {
                // A claim gives a stranger no more than its ceiling, and at the edge nothing.
                let counts_as = incoming.criticality_from(&stranger, default);
                match incoming.criticality {
                    Some(claimed) => assert_eq!(counts_as, claimed.min(Criticality::Critical)),
                    None => assert_eq!(counts_as, default),
                }
                assert!(incoming.criticality_from_outside(default) <= default);
            }
            let (believed, faults) = stranger.delegated(&headers);
            assert_eq!(believed, None);
            assert_eq!(faults.contains(Fault::CustomerByStranger), incoming.names_customer);
        }
        edge::strip_request(&mut headers);
        let left = Incoming::read(&headers, Protocol::Grpc);
        assert_eq!((left.criticality, left.attempt, left.deadline), (None, 1, None));
        assert!(!left.names_customer);
    });
}

/// What the values of one header come to, `least` being the lowest that makes sense.
fn attempt_by_hand(input: &[u8], least: u64) -> (u32, Faults) {
    let mut faults = Faults::NONE;
    let mut numbers = Vec::new();
    for value in values(input) {
        let text = String::from_utf8_lossy(value.as_bytes());
        let text = text.trim_matches([' ', '\t']);
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        match text.parse::<u64>().ok().filter(|n| digits && (least..least + 1_000).contains(n)) {
            Some(number) => numbers.push((number - least + 1) as u32),
            None => faults.add(Fault::BadAttempt),
        }
    }
    faults.add_if(numbers.windows(2).any(|pair| pair[0] != pair[1]), Fault::Contradictory);
    (numbers.into_iter().max().unwrap_or(1), faults)
}

#[test]
fn attempts() {
    fuzz!("attempts", &["0", "1", "9", " ", "-", "+", ".", "1000", "\n"], |input| {
        for (name, least) in [("x-envoy-attempt-count", 1), ("grpc-previous-rpc-attempts", 0)] {
            let (found, faults) = attempt::read(&headers(name, input));
            assert_eq!((found, faults), attempt_by_hand(input, least));
            for protocol in [Protocol::Http, Protocol::Grpc] {
                let mut headers = headers(name, input);
                attempt::write(&mut headers, protocol, found);
                assert_eq!(attempt::read(&headers), (found, Faults::NONE));
            }
        }
    });
}

#[test]
fn timeouts() {
    let words = &["0", "1", "9", "99999999", "H", "M", "S", "m", "u", "n", " ", "-", "\n"];
    fuzz!("timeouts", words, |input| {
        for name in ["grpc-timeout", "x-envoy-expected-rq-timeout-ms"] {
            let (found, _) = deadline::read(&headers(name, input));
            let Some(found) = found else { continue };
            let mut headers = HeaderMap::new();
            deadline::write(&mut headers, Protocol::Grpc, found);
            let (again, faults) = deadline::read(&headers);
            assert!(again.is_some_and(|again| again <= found));
            assert_eq!(faults, Faults::NONE);
            deadline::write(&mut headers, Protocol::Http, found);
            let (again, faults) = deadline::read(&headers);
            assert_eq!(again.map(|d| d.as_millis()), Some(found.as_millis().max(1)));
            assert_eq!(faults, Faults::NONE);
        }
        if let Some(found) = deadline::parse_grpc(input) {
            assert!(found <= Duration::from_secs(99_999_999 * 3_600));
        }
    });
}

#[test]
fn priorities() {
    let words = &["u", "=", "0", "5", "7", "8", ",", ";", " ", "\"", "\\", "i", "u=5", "u=1"];
    fuzz!("priorities", words, |input| {
        let urgency = match priority::parse(input) {
            Urgency::Is(urgency) => {
                assert!(urgency <= 7);
                assert!(input.contains(&b'u') && input.contains(&(b'0' + urgency)));
                Some(urgency)
            }
            Urgency::Absent | Urgency::Nonsense => None,
        };
        for criticality in Criticality::ALL {
            let lowered = priority::lower(criticality, urgency);
            assert!(lowered.criticality <= criticality);
            assert_eq!(lowered.lowered, lowered.criticality < criticality);
        }
    });
}

/// What holds of every report that is let in.
fn report(report: &OrcaLoadReport) {
    let load = LoadReport::from(report);
    let maps = [&report.request_cost, &report.utilization, &report.named_metrics];
    let mapped = maps.into_iter().flat_map(|map| map.values().copied());
    let numbers = [load.rps, load.eps, load.application_utilization, load.cpu_utilization];
    for number in mapped.chain(numbers).chain([report.mem_utilization]) {
        assert!(number.is_finite() && number >= 0.0, "{number}");
    }
    for format in [Format::Binary, Format::PrefixedBinary, Format::Json, Format::Text] {
        let mut headers = HeaderMap::new();
        match orca::write(&mut headers, report, format) {
            Ok(()) => assert_eq!(orca::read(&headers).as_ref(), Ok(&Some(report.clone()))),
            Err(_) => assert_eq!(format, Format::Text, "{report:?}"),
        }
    }
}

#[test]
fn orca_bin() {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    let words = &[
        "\t\0\0\0\0\0\0\u{f}?",
        "\"",
        "*",
        "B",
        "\n",
        "\u{1}x",
        "\u{11}",
        "\0\0\0\0\0\0\0\0",
        "1",
        "9",
        "I",
        "\u{c}",
        "\u{e}",
        "\u{18}\u{7}",
    ];
    fuzz!("orca_bin", words, |input| {
        if let Ok(found) = orca::decode_binary(input) {
            report(&found);
        }
        let encoded = BASE64_STANDARD.encode(input);
        if let Ok(found) = orca::decode_binary(encoded.as_bytes()) {
            report(&found);
            // What ours lets in, any decoder reads alike.
            let plain: OrcaLoadReport = prost::Message::decode(input).unwrap();
            assert_eq!(plain, found);
        }
    });
}

#[test]
fn orca_json() {
    let words = &[
        "{",
        "}",
        ":",
        ",",
        "\"",
        "\"eps\"",
        "\"cpuUtilization\"",
        "\"cpu_utilization\"",
        "0.5",
        "1e3",
        "-1",
        "null",
        "\"NaN\"",
        "\"namedMetrics\"",
        "{\"x\":1}",
        "\"rps\"",
        "[",
        "]",
        " ",
        "{\"eps\":1}",
        "1e999",
        "\\u0041",
    ];
    fuzz!("orca_json", words, |input| {
        if let Ok(found) = orca::decode_prefixed(&[b"JSON ", input].concat()) {
            report(&found);
            // It was JSON, and an object. Values would do, were there not a limit to their depth.
            serde_json::from_slice::<serde::de::IgnoredAny>(input).unwrap();
            assert!(input.trim_ascii_start().starts_with(b"{"));
        }
        _ = orca::decode_prefixed(input);
    });
}

#[test]
fn orca_text() {
    let words = &[
        "eps",
        "=",
        ",",
        "0.5",
        "cpu_utilization=0.5",
        "named_metrics.",
        "x",
        "1e3",
        "-1",
        "NaN",
        "inf",
        "request_cost.",
        ":",
        " ",
        "utilization.",
        "rps_fractional=9",
        "mem_utilization",
    ];
    fuzz!("orca_text", words, |input| {
        if let Ok(found) = orca::decode_prefixed(&[b"TEXT ", input].concat()) {
            report(&found);
        }
    });
}

#[test]
fn grpc_message() {
    fuzz!("grpc_message", &["%", "%41", "%C2%B5", "é", " ", "a", "%2", "\u{0}"], |input| {
        let decoded = grpc::decode_message(input);
        let encoded = grpc::encode_message(&decoded);
        assert!(encoded.as_bytes().iter().all(|b| (b' '..=b'~').contains(b)));
        assert_eq!(grpc::decode_message(encoded.as_bytes()), decoded);
    });
}

#[test]
fn retry_after() {
    let words = &[
        "Sun, ",
        "06 ",
        "Nov ",
        "1994 ",
        "08:49:37 ",
        "GMT",
        "Sunday, ",
        "06-Nov-94 ",
        "Sun ",
        "6 ",
        "120",
        "-1",
        " ",
        "9999",
        ":",
        "31 ",
        "Feb ",
        "29 ",
        "2000 ",
        "2147483648",
    ];
    fuzz!("retry_after", words, |input| {
        let now: SystemTime = UNIX_EPOCH + Duration::from_secs(784_111_777);
        if let Some(wait) = answer::parse_retry_after(input, || now) {
            let text = String::from_utf8_lossy(input);
            match text.trim_matches([' ', '\t']).parse::<u64>() {
                Ok(secs) => assert_eq!(wait, Duration::from_secs(secs)),
                // The end of the last year with four digits.
                Err(_) => assert!(now + wait < UNIX_EPOCH + Duration::from_secs(253_402_300_801)),
            }
        }
        match answer::parse_pushback(input) {
            Some(Advice::RetryAfter(wait)) => assert!(wait.as_millis() <= 2_147_483_647),
            Some(advice) => assert_eq!(advice, Advice::DontRetry),
            None => {}
        }
    });
}

#[test]
fn answers() {
    let words = &[
        "\n",
        "0",
        "8",
        "14",
        "-1",
        "true",
        "lame_duck",
        "overloaded",
        "503",
        "9",
        "x",
        "17",
        "Sun, 06 Nov 1994 08:49:37 GMT",
    ];
    fuzz!("answers", words, |input| {
        let names = [
            "grpc-status",
            "grpc-retry-pushback-ms",
            "x-envoy-ratelimited",
            "retry-after",
            "x-tidegate-reason",
            "x-envoy-immediate-health-check-fail",
        ];
        let mut headers = HeaderMap::new();
        for (value, name) in values(input).zip(names) {
            headers.insert(name, value);
        }
        for status in [200, 404, 429, 500, 503, 504] {
            let status = StatusCode::from_u16(status).unwrap();
            for protocol in [Protocol::Http, Protocol::Grpc] {
                for trailers in [None, Some(&headers)] {
                    let now = || UNIX_EPOCH;
                    let found = answer::read(status, &headers, trailers, protocol, now);
                    if let Outcome::Refused(advice) = found.outcome {
                        assert_eq!(found.advice, Some(advice));
                    }
                    // Advice that cannot be read never makes anyone wait.
                    if found.faults.contains(Fault::BadAdvice) {
                        assert!(!matches!(found.advice, Some(Advice::RetryAfter(_))));
                    }
                }
            }
        }
    });
}

const NAMED: &str = "spiffe://d/ns/edge/sa/gateway";

#[test]
fn spiffe() {
    let words = &[
        "spiffe://",
        "d",
        "/",
        "ns",
        "edge",
        "sa",
        "gateway",
        "..",
        ".",
        "%2F",
        "?",
        "@",
        ":",
        "é",
        "spiffe://d/ns/edge/sa/gateway",
        "spiffe://d/ns/shop",
        "*",
        "**",
        "{customer}",
    ];
    fuzz!("spiffe", words, |input| {
        let text = String::from_utf8_lossy(input);
        let identities = Identities::default()
            .customer("spiffe://d/ns/{customer}/**")
            .and_then(|identities| identities.delegator(NAMED))
            .and_then(|identities| identities.ceiling(NAMED, Criticality::CriticalPlus))
            .unwrap();
        let peer = identities.peer(Some(&text));
        // Only the one who was named, letter by letter, has what was granted by name.
        assert_eq!(peer.is_delegator(), text == NAMED);
        assert_eq!(peer.ceiling() == Criticality::CriticalPlus, text == NAMED);
        if let Some(name) = peer.name() {
            let rest = text.strip_prefix("spiffe://d/ns/").unwrap();
            assert!(rest == name || rest.starts_with(&format!("{name}/")), "{text}");
        }
        if let Ok(id) = SpiffeId::parse(&text) {
            assert_eq!(id.to_string(), text);
            assert!(!text.contains(['%', '?', '#', '@']) && !text[9..].contains("//"));
        }
        // Whatever is taken as a rule grants CRITICAL_PLUS to one at most.
        if let Ok(rules) = Identities::default().ceiling(&text, Criticality::CriticalPlus) {
            assert!(!text.contains(['*', '{']));
            assert_eq!(
                rules.peer(Some("spiffe://d/x")).ceiling(),
                match &*text {
                    "spiffe://d/x" => Criticality::CriticalPlus,
                    _ => Criticality::Critical,
                }
            );
        }
        if let Some(name) = customer::parse_customer(input) {
            assert!((1..=customer::NAME_MAX).contains(&name.len()));
            assert!(name.bytes().all(|b| b.is_ascii_graphic()));
        }
    });
}

#[test]
fn datagrams() {
    fuzz!("datagrams", &["TGH1\x01\0\0\0", "TGH1\x02\x02\0\0", "TGH2", "\0\0\0\0"], |input| {
        let mut whole = [0; SIZE];
        for (to, from) in whole.iter_mut().zip(input) {
            *to = *from;
        }
        for bytes in [input, &whole] {
            if let Ok(question) = Question::decode(bytes) {
                assert_eq!(question.encode(), *bytes, "there is one way to write a question");
            }
            if let Ok(answer) = Answer::decode(bytes) {
                let again = Answer::decode(&answer.encode()).expect("what we write we read");
                assert_eq!(again.nonce, answer.nonce);
                assert!((again.rps - answer.rps).abs() < 1e-2, "{answer:?}");
                let numbers = [answer.rps, answer.eps, answer.cpu_utilization];
                assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0));
            }
        }
    });
}

/// A body that is read in two says the same as in one, and nothing breaks either.
#[test]
fn grpc_web() {
    const WORDS: &[&str] = &[
        "\0\0\0\0\x02",
        "\u{80}",
        "grpc-status:",
        "13",
        "\r\n",
        "gAAAAA9ncnBjLXN0YXR1czo1DQo=",
        "=",
    ];
    fuzz!("grpc_web", WORDS, |input| {
        for content_type in ["application/grpc-web", "application/grpc-web-text"] {
            let mut whole = Scan::new(content_type.as_bytes());
            whole.take(input);
            for at in [1, input.len() / 2] {
                let (first, second) = input.split_at(at.min(input.len()));
                let mut halves = Scan::new(content_type.as_bytes());
                halves.take(first);
                halves.take(second);
                assert_eq!(halves.code(), whole.code());
            }
        }
    });
}
