use super::*;
use proptest::prelude::*;

fn request(version: Version, uri: &str, headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().version(version).uri(uri).body(()).unwrap();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    request
}

fn names_of(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn what_is_for_one_connection_stays_on_it() {
    let mut request = request(
        Version::HTTP_11,
        "/x",
        &[
            ("host", "a"),
            ("connection", "close, x-secret"),
            ("connection", "X-Other"),
            ("x-secret", "1"),
            ("x-other", "1"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic x"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("http2-settings", "x"),
            ("expect", "100-continue"),
        ],
    );
    outgoing(&mut request, false, false).unwrap();
    assert_eq!(names_of(request.headers()), ["host", "via", "x-mine"]);
}

#[test]
fn nobody_has_the_headers_taken_out_that_say_what_a_request_is() {
    let mut request = request(
        Version::HTTP_11,
        "/",
        &[("host", "a"), ("content-length", "3"), ("connection", "host, content-length, close")],
    );
    outgoing(&mut request, false, false).unwrap();
    assert_eq!(names_of(request.headers()), ["content-length", "host", "via"]);
}

/// From, target, host, to HTTP/2; then the target, the host, or why not.
type Case<'a> =
    (Version, &'a str, Option<&'a str>, bool, Result<(&'a str, Option<&'a str>), Unforwardable>);

#[test]
fn addresses() {
    let (h1, h2) = (Version::HTTP_11, Version::HTTP_2);
    let cases: [Case<'_>; 10] = [
        (h1, "/a?b", Some("x:1"), false, Ok(("/a?b", Some("x:1")))),
        (h1, "http://y:2/a?b", Some("x:1"), false, Ok(("/a?b", Some("y:2")))),
        (h1, "http://u:p@y/a", None, false, Ok(("/a", Some("y")))),
        (h2, "http://y:2/a", None, false, Ok(("/a", Some("y:2")))),
        (Version::HTTP_10, "/a", None, false, Ok(("/a", Some("")))),
        (h1, "/a?b", Some("x:1"), true, Ok(("http://x:1/a?b", None))),
        // How a caller came, or says that it did, is not how it goes on.
        (h2, "https://y:2/a", None, true, Ok(("http://y:2/a", None))),
        (h2, "gopher://y:2/a", None, true, Ok(("http://y:2/a", None))),
        (h1, "/a", None, true, Err(Unforwardable::Host)),
        (h1, "/a", Some("not a host"), true, Err(Unforwardable::Host)),
    ];
    for (version, target, host, http2, expected) in cases {
        let headers: Vec<_> = host.map(|host| ("host", host)).into_iter().collect();
        let mut request = request(version, target, &headers);
        let found = outgoing(&mut request, http2, false).map(|()| {
            let host = request.headers().get(HOST).map(|host| host.to_str().unwrap());
            (request.uri().to_string(), host)
        });
        let found = found.as_ref().map(|(uri, host)| (uri.as_str(), *host)).map_err(|e| *e);
        assert_eq!(found, expected, "{version:?} {target} {host:?} to HTTP/2: {http2}");
    }
}

#[test]
fn two_hosts_and_tunnels_are_refused() {
    let mut two = request(Version::HTTP_11, "/", &[("host", "a"), ("host", "b")]);
    assert_eq!(outgoing(&mut two, false, false), Err(Unforwardable::Host));
    let mut tunnel = request(Version::HTTP_11, "/", &[("host", "a")]);
    *tunnel.method_mut() = Method::CONNECT;
    assert_eq!(outgoing(&mut tunnel, false, false), Err(Unforwardable::Connect));
}

#[test]
fn cookies_are_one_field_in_http1() {
    let cookies = [("cookie", "a=1"), ("cookie", "b=2")];
    let mut request = request(Version::HTTP_2, "http://x/", &cookies);
    outgoing(&mut request, false, false).unwrap();
    let found: Vec<_> = request.headers().get_all("cookie").iter().collect();
    assert_eq!(found, ["a=1; b=2"]);
}

#[test]
fn a_change_of_protocol_keeps_its_two_headers_and_no_others() {
    let headers =
        [("host", "a"), ("connection", "Upgrade, x-a"), ("upgrade", "websocket"), ("x-a", "1")];
    let mut upgrade = request(Version::HTTP_11, "/", &headers);
    assert!(wants_upgrade(&upgrade));
    outgoing(&mut upgrade, false, true).unwrap();
    assert_eq!(upgrade.headers()["connection"], "upgrade");
    assert_eq!(upgrade.headers()["upgrade"], "websocket");
    assert!(!upgrade.headers().contains_key("x-a"));
    // Without the one or the other it is none.
    assert!(!wants_upgrade(&request(Version::HTTP_11, "/", &headers[..2])));
    assert!(!wants_upgrade(&request(Version::HTTP_11, "/", &[("upgrade", "websocket")])));
    assert!(!wants_upgrade(&request(Version::HTTP_10, "/", &headers)));
}

proptest! {
    /// Whatever `connection` says, what it names is gone, and so is it.
    #[test]
    fn nothing_that_is_named_passes(value in "[ -~]{0,60}") {
        let headers =
            [("host", "a"), ("x-a", "1"), ("te", "trailers"), ("connection", value.as_str())];
        let mut request = request(Version::HTTP_11, "/", &headers);
        outgoing(&mut request, false, false).unwrap();
        prop_assert!(!request.headers().contains_key(CONNECTION));
        prop_assert!(request.headers().contains_key(HOST));
        let named = value.split(',').any(|name| name.trim().eq_ignore_ascii_case("x-a"));
        prop_assert_eq!(request.headers().contains_key("x-a"), !named);
    }
}

#[test]
fn nobody_changes_to_another_http() {
    for (upgrade, wanted) in [
        ("websocket", true),
        ("WebSocket", true),
        ("h2c", false),
        ("H2C", false),
        ("websocket, h2c", false),
        (" h2c ", false),
        ("HTTP/2.0", false),
    ] {
        let request = Request::builder().header("connection", "upgrade, http2-settings");
        let request = request.header("upgrade", upgrade).header("http2-settings", "AAMAAABk");
        let mut request = request.uri("/").header("host", "x").body(()).unwrap();
        assert_eq!(wants_upgrade(&request), wanted, "{upgrade}");
        outgoing(&mut request, false, wanted).unwrap();
        assert_eq!(request.headers().contains_key("upgrade"), wanted, "{upgrade}");
        assert!(!request.headers().contains_key("http2-settings"));
    }
}

/// What is written after it has come cannot be named by whoever sent it.
#[test]
fn what_is_written_later_stays() {
    let headers =
        [("host", "a"), ("connection", "close, x-criticality, baggage, x-a"), ("x-a", "1")];
    let mut request = request(Version::HTTP_11, "/", &headers);
    arrived(&mut request);
    request.headers_mut().insert("x-criticality", "SHEDDABLE".parse().unwrap());
    outgoing(&mut request, false, false).unwrap();
    assert_eq!(request.headers()["x-criticality"], "SHEDDABLE");
    assert!(!request.headers().contains_key("x-a"));
}

#[test]
fn an_upgrade_is_still_one_after_it_has_come() {
    let headers = [("host", "a"), ("connection", "Upgrade, x-a"), ("upgrade", "websocket")];
    let mut request = request(Version::HTTP_11, "/", &headers);
    arrived(&mut request);
    assert!(wants_upgrade(&request));
}
