//! Nothing that is ours passes from outside, however it is spelled.

use super::*;
use core::time::Duration;
use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tidegate_wire::attempt;

fn edge(change: impl FnOnce(&mut EdgeConfig)) -> Arc<Edge> {
    let mut config = EdgeConfig::default();
    change(&mut config);
    Edge::new(config, Clock::default()).unwrap()
}

/// What is left of these headers, and what the request counts as.
fn screened(edge: &Edge, headers: HeaderMap) -> (HeaderMap, Criticality) {
    let mut request = Request::get("http://shop/search").body(()).unwrap();
    *request.headers_mut() = headers;
    edge.screen(&mut request, &Known::default(), Some("10.0.0.1:5".parse().unwrap()), true);
    let told = *request.extensions().get::<Told>().unwrap();
    (request.into_parts().0.headers, told.0)
}

fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, value.parse().unwrap());
    }
    headers
}

#[test]
fn a_deadline_is_obeyed_up_to_a_limit_and_all_else_forgotten() {
    let limited = edge(|config| config.deadline_max = Some(Duration::from_secs(10)));
    for (said, name, left) in [
        (&[("x-envoy-expected-rq-timeout-ms", "500")][..], "x-envoy-expected-rq-timeout-ms", "500"),
        (&[("x-envoy-expected-rq-timeout-ms", "99999")], "x-envoy-expected-rq-timeout-ms", "10000"),
        (&[("grpc-timeout", "1H")], "x-envoy-expected-rq-timeout-ms", "10000"),
        (
            &[("content-type", "application/grpc"), ("grpc-timeout", "1H")],
            "grpc-timeout",
            "10000000u",
        ),
        (
            &[("content-type", "application/grpc"), ("grpc-timeout", "1S")],
            "grpc-timeout",
            "1000000u",
        ),
    ] {
        let (headers, _) = screened(&limited, map(said));
        assert_eq!(headers[name], left, "{said:?}");
    }
    let (headers, _) = screened(&limited, map(&[("grpc-timeout", "soon")]));
    assert!(!headers.contains_key("grpc-timeout"));
    assert!(!headers.contains_key("x-envoy-expected-rq-timeout-ms"));
    let free = edge(|config| config.deadline_max = None);
    let (headers, _) = screened(&free, map(&[("grpc-timeout", "1H")]));
    assert_eq!(headers["x-envoy-expected-rq-timeout-ms"], "3600000");
}

#[test]
fn programs_are_told_who_asks_by_us_alone() {
    let said = map(&[
        ("x-forwarded-for", "1.2.3.4"),
        ("x-forwarded-proto", "ftp"),
        ("forwarded", "for=1.2.3.4"),
        ("x-forwarded-host", "evil"),
        ("x-forwarded-port", "1"),
        ("x_forwarded_for", "1.2.3.4"),
        ("x-real-ip", "1.2.3.4"),
    ]);
    let (headers, _) = screened(&edge(|_| {}), said.clone());
    let expected = [
        ("x-forwarded-for", "10.0.0.1"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "shop"),
    ];
    assert_eq!(headers, map(&expected));
    let (headers, _) = screened(&edge(|config| config.forwarded = false), said.clone());
    assert_eq!(headers, said);
}

#[test]
fn what_was_taken_out_is_counted() {
    let edge = edge(|_| {});
    let said = map(&[
        ("x-criticality", "CRITICAL"),
        ("x-criticality", "CRITICAL"),
        ("baggage", "a=b,criticality=CRITICAL_PLUS"),
        ("accept", "x"),
    ]);
    let (_, level) = screened(&edge, said);
    assert_eq!(level, Criticality::Critical);
    assert_eq!(edge.counts()[0], ("stripped_header", 3));
}

/// The names that must not pass, each character of which is spelled in some way.
fn ours() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "x-criticality",
        "x-request-criticality",
        "criticality",
        "uberctx-criticality",
        "ot-baggage-criticality",
        "grpc-timeout",
        "grpc-previous-rpc-attempts",
        "x-customer",
        "x-envoy-attempt-count",
        "x-envoy-expected-rq-timeout-ms",
        "x-envoy-ratelimited",
        "x-envoy-original-path",
        "x-tidegate-decision",
        "x-tidegate-anything",
        "endpoint-load-metrics",
        "endpoint-load-metrics-bin",
        "endpoint-load-metrics-format",
    ]);
    let spelling = (any::<u64>(), prop::sample::select(vec!['-', '_', '.', '-']));
    (name, spelling).prop_map(|(name, (upper, dash))| {
        let spell = |(n, c): (usize, char)| match c {
            '-' => dash,
            c if upper >> (n % 64) & 1 == 1 => c.to_ascii_uppercase(),
            c => c,
        };
        name.chars().enumerate().map(spell).collect()
    })
}

/// A name in baggage that comes to `name` in the hands of somebody.
fn spelled(name: &'static str) -> impl Strategy<Value = String> {
    let blank = prop::sample::select(vec!["", " ", "\t", "  ", "%20", "\u{a0}", "\""]);
    (any::<u64>(), any::<u64>(), blank.clone(), blank).prop_map(
        move |(upper, encoded, before, after)| {
            let spell = |(n, c): (usize, char)| {
                let c = if upper >> n & 1 == 1 { c.to_ascii_uppercase() } else { c };
                if encoded >> n & 1 == 1 { format!("%{:02x}", c as u32) } else { c.to_string() }
            };
            let name: String = name.chars().enumerate().map(spell).collect();
            format!("{before}{name}{after}")
        },
    )
}

fn member() -> impl Strategy<Value = String> {
    let value =
        prop::sample::select(vec!["CRITICAL_PLUS", "", "%43RITICAL", "x;p=1", " x ", "\"y"]);
    let equals = prop::sample::select(vec!["=", " = ", "==", "=\t"]);
    let own = (spelled("criticality"), equals, value.clone()).prop_map(|(n, e, v)| n + e + v);
    let other = ("[a-z]{1,6}", value).prop_map(|(name, value)| format!("{name}={value}"));
    prop_oneof![own, other, Just("nonsense".to_owned()), Just(" ".to_owned())]
}

/// Reads as leniently as anybody might: decoded, trimmed of all that is no letter, in any case.
fn reads_as_ours(value: &HeaderValue) -> bool {
    value.as_bytes().split(|b| b",;".contains(b)).any(|part| {
        let key = part.split(|b| *b == b'=').next().unwrap_or_default();
        let mut text = String::new();
        let mut rest = key;
        while let Some((&first, after)) = rest.split_first() {
            let hex = after.get(..2).and_then(|hex| core::str::from_utf8(hex).ok());
            let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok());
            let decoded = byte.filter(|_| first == b'%');
            text.push(char::from(decoded.unwrap_or(first)));
            rest = if decoded.is_some() { &after[2..] } else { after };
        }
        let text = text.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        text.eq_ignore_ascii_case("criticality")
    })
}

fn is_ours(name: &HeaderName) -> bool {
    let plain: String =
        name.as_str().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let named = ["x-customer", "grpc-timeout", "grpc-previous-rpc-attempts"];
    let begins = ["x-tidegate-", "x-envoy-", "endpoint-load-metrics"];
    named.contains(&plain.as_str())
        || begins.iter().any(|prefix| plain.starts_with(prefix))
        || plain.contains("criticality")
}

proptest! {
    #[test]
    fn nothing_of_ours_passes(
        names in prop::collection::vec(
            (ours(), prop::sample::select(vec!["CRITICAL_PLUS", "7", "", "1S", "true", "maps"])),
            0..8,
        ),
        baggage in prop::collection::vec(prop::collection::vec(member(), 0..5), 0..4),
        jaeger in prop::collection::vec(member(), 0..3),
        priority in prop::option::of(0..9_u8),
        grpc: bool,
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in &names {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let lines = baggage.iter().map(|members| ("baggage", members.join(",")));
        for (name, line) in lines.chain([("jaeger-baggage", jaeger.join(","))]) {
            let latin: Vec<u8> = line.chars().map(|c| c as u8).collect();
            headers.append(name, HeaderValue::from_bytes(&latin).unwrap());
        }
        if let Some(urgency) = priority {
            headers.append("priority", format!("u={urgency}").parse().unwrap());
        }
        if grpc {
            headers.append("content-type", HeaderValue::from_static("application/grpc"));
        }
        headers.append("x-other", HeaderValue::from_static("stays"));
        let deadline = Incoming::of(&headers).deadline;
        let (left, level) = screened(&edge(|_| {}), headers);
        // Nothing raises, a priority lowers.
        let lowered = priority.is_some_and(|urgency| (5..=7).contains(&urgency));
        let expected = if lowered { Criticality::SheddablePlus } else { Criticality::Critical };
        prop_assert_eq!(level, expected);
        for (name, value) in &left {
            let ours = [&deadline_name(grpc)];
            prop_assert!(
                !is_ours(name) || deadline.is_some() && ours.contains(&name),
                "{name}: {value:?}"
            );
            let carries = name == "baggage" || name == "jaeger-baggage";
            // A property of somebody else's member is no member.
            let members = value.as_bytes().split(|b| *b == b',');
            let firsts = members.filter_map(|m| m.split(|b| *b == b';').next());
            for first in firsts.filter(|_| carries) {
                let first = HeaderValue::from_bytes(first).unwrap();
                prop_assert!(!reads_as_ours(&first), "{name}: {value:?}");
            }
        }
        let read = Incoming::of(&left);
        prop_assert_eq!(read.criticality, None);
        prop_assert_eq!(read.deadline, deadline.map(|d| d.min(Duration::from_secs(60))));
        prop_assert_eq!(attempt::read(&left).0, 1);
        prop_assert!(!read.names_customer);
        prop_assert_eq!(left.get("x-other").unwrap(), "stays");
        // What is somebody else's in baggage is as it was, in its order.
        let others = |lines: &[Vec<String>]| -> Vec<Vec<u8>> {
            let all = lines.iter().flatten().filter(|member| !member.trim().is_empty());
            let others = all.map(|member| member.chars().map(|c| c as u8).collect::<Vec<u8>>());
            others.filter(|member| {
                let first = member.split(|b| *b == b';').next().unwrap().to_vec();
                !reads_as_ours(&HeaderValue::from_bytes(&first).unwrap())
            }).collect()
        };
        let kept: Vec<Vec<u8>> = left.get_all("baggage").iter()
            .flat_map(|value| value.as_bytes().split(|b| *b == b','))
            .filter(|member| !member.iter().all(|b| b" \t".contains(b)))
            .map(<[u8]>::to_vec)
            .collect();
        // A header's own ends are trimmed by nobody but HTTP.
        let trim = |members: Vec<Vec<u8>>| -> Vec<Vec<u8>> {
            members.into_iter().map(|m| m.trim_ascii().to_vec()).collect()
        };
        prop_assert_eq!(trim(kept), trim(others(&baggage)));
    }
}

fn deadline_name(grpc: bool) -> HeaderName {
    HeaderName::from_static(if grpc { "grpc-timeout" } else { "x-envoy-expected-rq-timeout-ms" })
}

#[test]
fn what_is_a_stream_is_not_for_strangers_to_say() {
    let edge = edge(|config| {
        config.body.bytes_max = Some(7);
        config.streams = vec!["/shop.Chat/**".parse().unwrap()];
    });
    let whole = edge.config.body;
    let mut long = whole;
    (long.rate_min, long.stall_max) = (None, None);
    for (path, limits) in [
        ("/shop.Chat/Talk", long),
        ("/shop.Cart/Pay", whole),
        ("/shop.Chat/../shop.Cart/Pay", whole),
    ] {
        assert_eq!(edge.body_limits(path), Some(limits), "{path}");
    }
}
