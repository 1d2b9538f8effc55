//! Which headers pass, and how a request is addressed.
//!
//! Some headers speak of one connection and must not reach the next (RFC 9110, section 7.6.1):
//! `connection` and whatever it names, and a few that old programs send without naming them. A
//! proxy that lets them through lets a client tear holes between what we take for a request and
//! what the program does: that is how requests are smuggled. Lengths are hyper's on both sides: it
//! refuses requests with two of them, drops one that stands beside a transfer coding and closes the
//! connection after, and writes its own.
//!
//! | | from HTTP/1 | from HTTP/2 |
//! |---|---|---|
//! | to HTTP/1 | `host` stays; the target becomes a path | `:authority` becomes `host` |
//! | to HTTP/2 | `host` becomes `:authority` | as it is |

use http::header::{
    CONNECTION, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};

static KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
static PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
static HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Why a request cannot be handed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unforwardable {
    /// Tunnels are not for a proxy that stands in front of one program.
    #[error("CONNECT is not for this proxy")]
    Connect,
    /// It is not said for whom it is, or it is said twice.
    #[error("one host has to be named")]
    Host,
}

/// Whether a request wants to change the protocol of its connection, which only HTTP/1.1 can.
///
/// To another HTTP it may not: what comes after would be requests that nobody here has seen. A
/// request that asks for that is answered as if it had not, which RFC 9110 allows.
pub fn wants_upgrade<B>(request: &Request<B>) -> bool {
    request.version() == Version::HTTP_11
        && request.headers().contains_key(UPGRADE)
        && names(request.headers(), "upgrade")
        && !to_http(request.headers())
}

/// Whether a change to `h2c` or any other HTTP is among those that are asked for.
fn to_http(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(UPGRADE).iter();
    values.any(|value| {
        value.as_bytes().split(|b| *b == b',').any(|protocol| {
            let protocol = protocol.trim_ascii().to_ascii_lowercase();
            protocol.starts_with(b"h2") || protocol.starts_with(b"http")
        })
    })
}

/// Whether `connection` names `token`.
fn names(headers: &HeaderMap, token: &str) -> bool {
    let mut values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.any(|value| value.split(',').any(|name| name.trim().eq_ignore_ascii_case(token)))
}

/// What of a head matters here, found in one pass over it. A look-up by name hashes, and costs as
/// much as to go past several headers; there would be two dozen look-ups of what is seldom there.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    connection: bool,
    /// Any other that is for one connection only.
    hop: bool,
    expect: bool,
    hosts: usize,
    cookies: usize,
}

impl Seen {
    fn of(headers: &HeaderMap) -> Self {
        let mut seen = Self::default();
        for (name, _) in headers {
            match name.as_str() {
                "host" => seen.hosts += 1,
                "cookie" => seen.cookies += 1,
                "expect" => seen.expect = true,
                "connection" => seen.connection = true,
                "keep-alive"
                | "proxy-connection"
                | "http2-settings"
                | "transfer-encoding"
                | "upgrade"
                | "proxy-authenticate"
                | "proxy-authorization"
                | "te" => {
                    seen.hop = true;
                }
                _ => {}
            }
        }
        seen
    }
}

/// Takes out what is for this connection only.
pub fn strip(headers: &mut HeaderMap) {
    strip_seen(headers, Seen::of(headers));
}

fn strip_seen(headers: &mut HeaderMap, seen: Seen) {
    if seen.connection {
        strip_named(headers);
    }
    if seen.hop {
        strip_hop(headers);
    }
}

#[cold]
fn strip_hop(headers: &mut HeaderMap) {
    for name in [&KEEP_ALIVE, &PROXY_CONNECTION, &HTTP2_SETTINGS] {
        headers.remove(name);
    }
    headers.remove(TRANSFER_ENCODING);
    headers.remove(UPGRADE);
    headers.remove(PROXY_AUTHENTICATE);
    headers.remove(PROXY_AUTHORIZATION);
    // It is only ever good for "trailers", which is hyper's business in HTTP/1 and gRPC's in
    // HTTP/2.
    if headers.get_all(TE).iter().any(|te| te != "trailers") {
        headers.remove(TE);
    }
}

/// Takes out of a request that has just come what is for this connection only, but for what it
/// takes to change the protocol.
pub(crate) fn arrived<B>(request: &mut Request<B>) {
    if !request.headers().contains_key(CONNECTION) {
        return;
    }
    let upgrade = wants_upgrade(request);
    let protocol = request.headers().get(UPGRADE).filter(|_| upgrade).cloned();
    let headers = request.headers_mut();
    strip_named(headers);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
}

/// What `connection` names. A client may name any header, but not those that say what a request is:
/// with `connection: host` it could have ours taken out.
fn strip_named(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        // What nearly all of them say, and no name of a header that would pass otherwise.
        .filter(|name| !["keep-alive", "close"].iter().any(|word| name.eq_ignore_ascii_case(word)))
        .filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok())
        .filter(|name| name != HOST && name != http::header::CONTENT_LENGTH && name != TE)
        .collect();
    for name in named {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
}

/// Makes a request that came to us one that goes to the program, by HTTP/2 or by HTTP/1. Keeps what
/// it takes to change the protocol if `upgrade`.
pub fn outgoing<B>(
    request: &mut Request<B>,
    http2: bool,
    upgrade: bool,
) -> Result<(), Unforwardable> {
    if request.method() == Method::CONNECT {
        return Err(Unforwardable::Connect);
    }
    let version = request.version();
    let protocol = if upgrade { request.headers().get(UPGRADE).cloned() } else { None };
    let headers = request.headers_mut();
    let seen = Seen::of(headers);
    strip_seen(headers, seen);
    if seen.expect {
        // We ask the client for the body ourselves, by reading it.
        headers.remove(EXPECT);
    }
    headers.append(VIA, via(version));
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    if seen.hosts > 1 {
        return Err(Unforwardable::Host);
    }
    if http2 { to_http2(request) } else { to_http1(request, seen) }
}

fn to_http1<B>(request: &mut Request<B>, seen: Seen) -> Result<(), Unforwardable> {
    *request.version_mut() = Version::HTTP_11;
    // Whoever gives a whole URI means that host, whatever the header says (RFC 9112, 3.2.2).
    if let Some(authority) = request.uri().authority() {
        let host = HeaderValue::from_str(authority.host_and_port());
        let host = host.map_err(|_| Unforwardable::Host)?;
        request.headers_mut().insert(HOST, host);
        *request.uri_mut() = path_only(request.uri());
    } else if seen.hosts == 0 {
        // HTTP/1.0 has none; the program speaks HTTP/1.1 to us and needs one.
        request.headers_mut().insert(HOST, HeaderValue::from_static(""));
    }
    if seen.cookies > 1 {
        // A field of its own for each is HTTP/2's way to write cookies; HTTP/1 has one.
        join_cookies(request.headers_mut());
    }
    Ok(())
}

pub(crate) fn to_http2<B>(request: &mut Request<B>) -> Result<(), Unforwardable> {
    *request.version_mut() = Version::HTTP_2;
    let host = request.headers_mut().remove(HOST);
    request.headers_mut().remove(TRAILER);
    let known = request.uri().scheme() == Some(&Scheme::HTTP);
    if known && request.uri().authority().is_some() {
        return Ok(());
    }
    let authority = match (request.uri().authority(), &host) {
        (Some(authority), _) => authority.clone(),
        (None, Some(host)) => {
            Authority::try_from(host.as_bytes()).map_err(|_| Unforwardable::Host)?
        }
        (None, None) => return Err(Unforwardable::Host),
    };
    let mut parts = core::mem::take(request.uri_mut()).into_parts();
    // How the caller came to us, or says that it did, is not how we go on; a pool that encrypts
    // says so itself.
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(authority);
    parts.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| Unforwardable::Host)?;
    Ok(())
}

fn path_only(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::from(path)
}

fn join_cookies(headers: &mut HeaderMap) {
    use http::header::COOKIE;
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.next().is_none() || cookies.next().is_none() {
        return;
    }
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// `host` and `port` without who asks: a name and password in a target are nobody's business.
trait HostAndPort {
    fn host_and_port(&self) -> &str;
}

impl HostAndPort for Authority {
    fn host_and_port(&self) -> &str {
        self.as_str().rsplit_once('@').map_or(self.as_str(), |(_, host)| host)
    }
}

fn via(version: Version) -> HeaderValue {
    HeaderValue::from_static(match version {
        Version::HTTP_2 => "2.0 tidegate",
        Version::HTTP_10 => "1.0 tidegate",
        _ => "1.1 tidegate",
    })
}

#[cfg(test)]
mod tests;
