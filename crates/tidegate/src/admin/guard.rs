//! Who may look.
//!
//! The page tells who the customers are, how full the task is and what it refuses: not for
//! strangers. It changes nothing, so where no token was set, whoever sits at this machine may see
//! it, and nobody else. Where one was set, everybody needs it, also at this machine: whoever sets
//! one shares the machine, or has something before the page that makes all requests local.
//!
//! | asks | no token was set | shows the token | does not |
//! |---|---|---|---|
//! | from this machine, for a name of this machine | served | served | refused |
//! | from this machine, for another name | refused | served | refused |
//! | from elsewhere, or from nobody knows where | refused | served | refused |
//! | anything but GET and HEAD | refused | refused | refused |
//!
//! **A name of this machine.** A page of a stranger can make its own name mean 127.0.0.1 and then
//! ask, from the browser of whoever sits here, as if it were us (DNS rebinding). Its requests carry
//! its name in `host`. And a proxy on this machine that serves others says so as a rule, in
//! `forwarded`, `via`, `x-forwarded-for` and others: what comes through it comes from elsewhere.
//! One that says nothing, and passes on our own name, cannot be told from whoever sits here: set a
//! token where there is one.
//!
//! **The token** comes as `authorization: Bearer`, or once as `?token=` in the address, which is
//! answered by a cookie and the address without it, so that it does not stay in the history of the
//! browser. The new address is written relative to the old one: whatever path the router is nested
//! at, or a proxy has taken off, stays. Browsers send a cookie to all ports of a host, so its name
//! has the port that was asked for, and the pages of two services do not forget each other's. No
//! script can read it.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use http::header::{AUTHORIZATION, COOKIE, FORWARDED, HOST, HeaderName, VIA};
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use std::net::SocketAddr;

/// The name of the cookie, before the port.
const COOKIE_NAME: &str = "tidegate_token";
/// What proxies say about whom they serve.
const PROXIED: [HeaderName; 7] = [
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-real-ip"),
    HeaderName::from_static("x-envoy-external-address"),
    HeaderName::from_static("x-envoy-attempt-count"),
];
/// Whoever sits here comes from one of these. Other addresses of loopback are for those who pass on
/// what comes from elsewhere: a mesh has 127.0.0.6.
const THIS_MACHINE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// With letters and digits these are 95 bits: nobody guesses that over a network.
const TOKEN_MIN: usize = 16;

/// A token that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token has {TOKEN_MIN} or more letters, digits, `-`, `.`, `_` or `~`, so that nobody guesses \
     it and it fits into an address: `openssl rand -hex 24` makes one"
)]
#[non_exhaustive]
pub struct InvalidToken;

/// What lets people in from elsewhere.
#[derive(Clone)]
pub(super) struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    pub(super) fn new(token: String) -> Result<Self, InvalidToken> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
        if token.len() < TOKEN_MIN || !token.chars().all(fits) {
            return Err(InvalidToken);
        }
        Ok(Self(token))
    }

    /// Looks at every byte, so that the time it takes does not tell how many were right.
    fn is(&self, other: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), other.as_bytes());
        let differ = own.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b));
        own.len() == other.len() && differ == 0
    }

    /// The cookie of this name that stands for it.
    fn cookie(&self, name: &str) -> String {
        format!("{name}={}; Path=/; HttpOnly; SameSite=Strict", self.0)
    }
}

/// What becomes of somebody who asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Serve,
    /// The token was in the address: keep it in this cookie, and go there.
    Remember {
        cookie: String,
        location: String,
    },
    MethodNotAllowed,
    /// A token is wanted, or is not right.
    Unauthorized,
    Forbidden(&'static str),
}

const NO_TOKEN: &str = "This is for those who sit at the machine. To open it to others, give \
                        the admin router a token \
     (Admin::token) and ask with `authorization: Bearer TOKEN` or `?token=TOKEN`.\n";
const OTHER_NAME: &str = "This machine is asked by a name that is not its own: use localhost, \
                          127.0.0.1 or [::1], or \
     give the admin router a token (Admin::token).\n";
const OTHER_SITE: &str = "A page of another site asks. That is not answered.\n";

/// Decides about a request from `peer`, if that is known.
pub(super) fn check(token: Option<&Token>, peer: Option<IpAddr>, request: &Parts) -> Verdict {
    let Parts { method, uri, headers, .. } = request;
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Verdict::MethodNotAllowed;
    }
    // Links may lead here from anywhere; scripts of other sites may not ask.
    let is = |name: &HeaderName, value: &str| headers.get(name).is_some_and(|v| v == value);
    if is(&SEC_FETCH_SITE, "cross-site") && !is(&SEC_FETCH_MODE, "navigate") {
        return Verdict::Forbidden(OTHER_SITE);
    }
    if let Some(token) = token {
        let name = cookie_name(headers, uri);
        return match shown(headers, uri, &name) {
            Some(Shown::InAddress(found)) if token.is(found) => {
                Verdict::Remember { cookie: token.cookie(&name), location: without_token(uri) }
            }
            Some(Shown::InHeader(found)) if token.is(found) => Verdict::Serve,
            _ => Verdict::Unauthorized,
        };
    }
    let proxied = PROXIED.iter().any(|name| headers.contains_key(name));
    if proxied || !peer.is_some_and(|ip| THIS_MACHINE.contains(&ip.to_canonical())) {
        return Verdict::Forbidden(NO_TOKEN);
    }
    if !host(headers, uri).is_some_and(is_of_this_machine) {
        return Verdict::Forbidden(OTHER_NAME);
    }
    Verdict::Serve
}

/// A token, right or wrong.
enum Shown<'a> {
    InHeader(&'a str),
    InAddress(&'a str),
}

fn shown<'a>(headers: &'a HeaderMap, uri: &'a Uri, cookie: &str) -> Option<Shown<'a>> {
    if let Some(token) = parameter(uri, "token") {
        return Some(Shown::InAddress(token));
    }
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = bearer.and_then(|value| value.split_once(' '));
    if let Some((scheme, token)) = bearer
        && scheme.eq_ignore_ascii_case("bearer")
    {
        return Some(Shown::InHeader(token.trim()));
    }
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|c| c.split_once('='));
    pairs.find(|(name, _)| name.trim() == cookie).map(|(_, v)| Shown::InHeader(v.trim()))
}

/// The value of a parameter of the address, as it stands there.
pub(super) fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// The same address without the token, from there.
fn without_token(uri: &Uri) -> String {
    let rest: Vec<&str> = (uri.query().unwrap_or_default().split('&'))
        .filter(|pair| !pair.is_empty() && !pair.starts_with("token="))
        .collect();
    format!("?{}", rest.join("&"))
}

/// With the port that was asked for, if that is not the usual one.
fn cookie_name(headers: &HeaderMap, uri: &Uri) -> String {
    let port = authority(headers, uri).and_then(|of| of.get(host_end(of)..)?.strip_prefix(':'));
    match port.filter(|port| port.bytes().all(|byte| byte.is_ascii_digit())) {
        Some(port) if !port.is_empty() => format!("{COOKIE_NAME}_{port}"),
        _ => COOKIE_NAME.to_owned(),
    }
}

/// Whom the request is for.
fn authority<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let mut named = headers.get_all(HOST).iter();
    match (named.next(), named.next()) {
        (Some(host), None) => host.to_str().ok(),
        (None, _) => Some(uri.authority()?.as_str()),
        (Some(_), Some(_)) => None,
    }
}

/// Where the port begins.
fn host_end(authority: &str) -> usize {
    match authority.rfind(']') {
        Some(bracket) => bracket + 1,
        None => authority.find(':').unwrap_or(authority.len()),
    }
}

fn host<'a>(headers: &'a HeaderMap, uri: &'a Uri) -> Option<&'a str> {
    let authority = authority(headers, uri)?;
    authority.get(..host_end(authority))
}

fn is_of_this_machine(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return ip.to_canonical().is_loopback();
    }
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// Where a request comes from, by whichever server has taken it.
pub(super) fn peer(request: &Parts) -> Option<IpAddr> {
    let extensions = &request.extensions;
    if let Some(peer) = extensions.get::<crate::serve::Peer>() {
        return peer.address().map(|address| address.ip());
    }
    let info = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>();
    info.map(|info| info.0.ip())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    const TOKEN: &str = "0123456789abcdef";

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn with_token(peer: IpAddr, uri: &str, headers: &[(&str, &str)]) -> Verdict {
        check(Token::new(TOKEN.into()).ok().as_ref(), Some(peer), &parts(uri, headers))
    }

    #[test]
    fn without_a_token_only_those_at_the_machine_are_served() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        let mapped = IpAddr::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        let there = IpAddr::from(Ipv4Addr::new(10, 0, 0, 7));
        let local: &[(&str, &str)] = &[("host", "localhost:9000")];
        let (no_token, other_name) = (Verdict::Forbidden(NO_TOKEN), Verdict::Forbidden(OTHER_NAME));
        for (peer, headers, expected) in [
            (Some(here), local, &Verdict::Serve),
            (Some(mapped), local, &Verdict::Serve),
            (Some(IpAddr::from(Ipv6Addr::LOCALHOST)), local, &Verdict::Serve),
            (Some(here), &[("host", "127.0.0.1")], &Verdict::Serve),
            (Some(here), &[("host", "127.9.9.9:1")], &Verdict::Serve),
            (Some(here), &[("host", "[::1]:80")], &Verdict::Serve),
            (Some(here), &[("host", "Demo.LOCALHOST.")], &Verdict::Serve),
            (Some(there), local, &no_token),
            (None, local, &no_token),
            (Some(here), &[("host", "evil.example")], &other_name),
            (Some(here), &[("host", "127.0.0.1.evil.example")], &other_name),
            (Some(here), &[("host", "localhost.evil.example:80")], &other_name),
            (Some(here), &[("host", "evillocalhost")], &other_name),
            (Some(here), &[("host", "10.0.0.7")], &other_name),
            (Some(here), &[("host", "localhost"), ("host", "evil.example")], &other_name),
            (Some(here), &[], &other_name),
            (Some(here), &[("host", "localhost"), ("x-forwarded-for", "10.0.0.7")], &no_token),
            (Some(here), &[("host", "localhost"), ("forwarded", "for=10.0.0.7")], &no_token),
            (
                Some(here),
                &[("host", "localhost"), ("sec-fetch-site", "cross-site")],
                &Verdict::Forbidden(OTHER_SITE),
            ),
            (
                Some(here),
                &[
                    ("host", "localhost"),
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-mode", "navigate"),
                ],
                &Verdict::Serve,
            ),
        ] {
            assert_eq!(&check(None, peer, &parts("/", headers)), expected, "{peer:?} {headers:?}");
        }
        // HTTP/2 has the name in the address.
        let parts = parts("http://localhost:9000/", &[]);
        assert_eq!(check(None, Some(here), &parts), Verdict::Serve);
    }

    #[test]
    fn with_a_token_everybody_needs_it_and_a_wrong_one_is_none() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        let there = IpAddr::from(Ipv4Addr::new(10, 0, 0, 7));
        let outside: &[(&str, &str)] = &[("host", "dash.example")];
        let bearer = format!("bearer {TOKEN}");
        let cookie = format!("a=b; {COOKIE_NAME}={TOKEN}");
        for (peer, headers, expected) in [
            (there, outside, Verdict::Unauthorized),
            (here, outside, Verdict::Unauthorized),
            (here, &[("host", "localhost")], Verdict::Unauthorized),
            (here, &[("host", "localhost"), ("authorization", &bearer)], Verdict::Serve),
            (there, &[("host", "dash.example"), ("authorization", &bearer)], Verdict::Serve),
            (there, &[("host", "dash.example"), ("cookie", &cookie)], Verdict::Serve),
            (
                there,
                &[("host", "dash.example"), ("authorization", "Bearer 0123456789abcdee")],
                Verdict::Unauthorized,
            ),
            (
                there,
                &[("host", "dash.example"), ("authorization", "Bearer 0123456789abcde")],
                Verdict::Unauthorized,
            ),
            (
                there,
                &[("host", "dash.example"), ("authorization", "Bearer")],
                Verdict::Unauthorized,
            ),
        ] {
            assert_eq!(with_token(peer, "/", headers), expected, "{peer} {headers:?}");
        }
        let remember = |location: &str| Verdict::Remember {
            cookie: format!("{COOKIE_NAME}={TOKEN}; Path=/; HttpOnly; SameSite=Strict"),
            location: location.to_owned(),
        };
        for (uri, expected) in [
            ("/?token=0123456789abcdef", remember("?")),
            ("/?part=a&token=0123456789abcdef", remember("?part=a")),
            ("//evil.example/?token=0123456789abcdef", remember("?")),
            ("/?token=0123456789abcdee", Verdict::Unauthorized),
        ] {
            assert_eq!(with_token(there, uri, outside), expected, "{uri}");
        }
        assert_eq!(with_token(here, "/?token=x", &[("host", "localhost")]), Verdict::Unauthorized);
    }

    #[test]
    fn pages_at_two_ports_have_two_cookies() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        for (host, name) in [
            ("localhost:9900", "tidegate_token_9900"),
            ("127.0.0.1:9901", "tidegate_token_9901"),
            ("[::1]:9902", "tidegate_token_9902"),
            ("[::1]", "tidegate_token"),
            ("dash.example", "tidegate_token"),
            ("dash.example:", "tidegate_token"),
            ("dash.example:a=b;", "tidegate_token"),
        ] {
            let headers = [("host", host)];
            let verdict = with_token(here, &format!("/?token={TOKEN}"), &headers);
            let Verdict::Remember { cookie, .. } = verdict else { panic!("{verdict:?}") };
            assert!(cookie.starts_with(&format!("{name}={TOKEN};")), "{host}: {cookie}");
            // The other's comes along, and counts for nothing.
            let both = format!("tidegate_token_1=fedcba9876543210; {name}={TOKEN}");
            let headers = [("host", host), ("cookie", &both)];
            assert_eq!(with_token(here, "/", &headers), Verdict::Serve, "{host}");
            let other = format!("tidegate_token_1={TOKEN}");
            let headers = [("host", host), ("cookie", &other)];
            assert_eq!(with_token(here, "/", &headers), Verdict::Unauthorized, "{host}");
        }
    }

    #[test]
    fn nothing_is_changed_by_anybody() {
        let mut parts = parts("/", &[("host", "localhost")]);
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            parts.method = method;
            let verdict = check(None, Some(Ipv4Addr::LOCALHOST.into()), &parts);
            assert_eq!(verdict, Verdict::MethodNotAllowed);
        }
    }

    #[test]
    fn tokens_are_long_and_fit_into_an_address() {
        for token in ["", "short", "0123456789abcde", "0123456789 abcdef", "0123456789&abcdef"] {
            assert_eq!(Token::new(token.into()).err(), Some(InvalidToken), "{token}");
        }
        assert!(!format!("{:?}", Token::new(TOKEN.into())).contains(TOKEN));
    }
}
