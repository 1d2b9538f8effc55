//! Connections to quota servers and masters of Doorman, with TLS where their addresses say so.
//!
//! `http://` is spoken in the clear and `https://` by TLS, to a server whose certificate has the
//! name that stands in the address. Whoever was given certificates never speaks in the clear: an
//! address that asks for it is refused, and so is a redirect.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::rng::Rng;
use tidegate_tls::tokio_rustls::client::TlsStream;
use tidegate_tls::{Client, ClientOptions, HANDSHAKE_MAX, InvalidTls, News, Offer, PERIOD, rustls};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tonic::transport::{Channel, Endpoint};

/// The port of addresses by `https://` that name none.
const PORT_HTTPS: u16 = 443;

/// How long an error in writing waits for the reason that the other end has given: that is in this
/// machine already, so this is only for one that has stopped, and much less than any call waits.
const ALERT_WITHIN: Duration = Duration::from_secs(1);

/// What is wrong with an address, or with certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// It is none.
    #[error("`{address}` is no address of a server; one would be http://quota:7300")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        #[source]
        source: Option<tonic::transport::Error>,
    },
    /// There are certificates to show, and the address has no TLS.
    #[error("`{address}` would be spoken to in the clear, though there are certificates to show")]
    Clear {
        /// What was given.
        address: String,
    },
    /// Certificates, keys or roots are wrong.
    #[error(transparent)]
    Tls(#[from] InvalidTls),
    /// Nobody can look whether they change.
    #[error("the system gives us no thread")]
    Thread(#[source] io::Error),
}

/// What the other end has said last when it refused us by TLS. A server that does not like a
/// certificate says so after the handshake, and layers above only tell that the connection ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Alert(Arc<Mutex<Option<String>>>);

impl Alert {
    /// That, if it was said on the last connection.
    pub(crate) fn said(&self) -> Option<String> {
        self.lock().clone()
    }

    fn note(&self, error: &io::Error) {
        if let Some(inner) = error.get_ref()
            && let Some(alert @ rustls::Error::AlertReceived(_)) = inner.downcast_ref()
        {
            *self.lock() = Some(alert.to_string());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that notes why it was refused.
struct Heard<S> {
    stream: S,
    alert: Alert,
    end: End,
}

/// Whether a connection can be written to.
enum End {
    No,
    /// It cannot, for this reason, which waits until then for what there is to read.
    Near(io::Error, Pin<Box<Sleep>>),
    /// It cannot, and everyone knows.
    Over,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Heard<S> {
    const fn new(stream: S, alert: Alert) -> Self {
        Self { stream, alert, end: End::No }
    }

    /// Whoever refuses us says so and hangs up. If we write before we read we only notice the
    /// second. The first is there already, but the runtime may have yet to hear of it, and whoever
    /// writes may try again for any other reason meanwhile: so the error waits for what there is to
    /// read. A connection that has ended can be read to its end.
    fn write<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if matches!(self.end, End::No) {
            match write(Pin::new(&mut self.stream), cx) {
                Poll::Ready(Err(error)) => {
                    self.alert.note(&error);
                    self.end = End::Near(error, Box::pin(sleep(ALERT_WITHIN)));
                }
                polled => return polled,
            }
        }
        let mut over = self.read_rest(cx).is_ready() || matches!(self.end, End::Over);
        if let End::Near(_, until) = &mut self.end {
            over |= until.as_mut().poll(cx).is_ready();
        }
        if !over {
            return Poll::Pending;
        }
        Poll::Ready(Err(match core::mem::replace(&mut self.end, End::Over) {
            End::Near(error, _) => error,
            End::No | End::Over => io::ErrorKind::BrokenPipe.into(),
        }))
    }

    /// Reads until the end of a connection, of which only an alert still matters.
    fn read_rest(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut space = [0; 1_024];
        loop {
            let mut found = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut found)) {
                Ok(()) if !found.filled().is_empty() => {}
                Ok(()) => return Poll::Ready(()),
                Err(error) => {
                    self.alert.note(&error);
                    return Poll::Ready(());
                }
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Poll::Ready(Err(error)) = &polled {
            self.alert.note(error);
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, |stream, cx| stream.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// How to connect.
#[derive(Debug, Clone, Default)]
pub(crate) struct Link {
    tls: Option<Client>,
    alert: Alert,
    /// Only by TLS, as somebody has asked for.
    strict: bool,
}

impl Link {
    /// With these certificates, if any. They are read again when they change, and `tell` hears of
    /// those that are wrong.
    pub(crate) fn new(
        options: Option<ClientOptions>,
        tell: impl Fn(News) + Send + 'static,
    ) -> Result<Self, LinkError> {
        let Some(options) = options else { return Ok(Self::default()) };
        let client = Client::new(options)?;
        client.watch(PERIOD, tell).map_err(LinkError::Thread)?;
        Ok(Self { tls: Some(client), strict: true, ..Self::default() })
    }

    /// To look at addresses only: with certificates, or without.
    pub(crate) fn scheme(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// Where it is noted why the other end refuses us.
    pub(crate) fn alert(&self) -> Alert {
        self.alert.clone()
    }

    /// Where to connect to. Without `scheme://` it is spoken to as everyone else.
    pub(crate) fn endpoint(&self, address: &str) -> Result<Endpoint, LinkError> {
        let whole = match address.contains("://") {
            true => address.to_owned(),
            false if self.strict => format!("https://{address}"),
            false => format!("http://{address}"),
        };
        let wrong = |source| LinkError::Address { address: address.to_owned(), source };
        let endpoint = Endpoint::from_shared(whole).map_err(|source| wrong(Some(source)))?;
        match endpoint.uri().scheme_str() {
            Some("https") => {
                Client::name(endpoint.uri().host().unwrap_or_default())?;
                Ok(endpoint)
            }
            Some("http") if self.strict => Err(LinkError::Clear { address: address.to_owned() }),
            Some("http") => Ok(endpoint),
            _ => Err(wrong(None)),
        }
    }

    /// Where the leader is that the server at `from` has told of: by host and port, spoken to as
    /// that server is, or by a whole address. Who was asked by TLS sends nobody where there is
    /// none.
    fn elsewhere(&self, from: &Endpoint, leader: &str) -> Option<Endpoint> {
        let scheme = from.uri().scheme_str().unwrap_or("http");
        let whole =
            if leader.contains("://") { leader.to_owned() } else { format!("{scheme}://{leader}") };
        let found = self.endpoint(&whole).ok()?;
        (scheme != "https" || found.uri().scheme_str() == Some("https")).then_some(found)
    }

    /// What a server's refusal means, in words. One that wants a certificate and is shown none
    /// ends the connection after the handshake, which looks like any other end.
    pub(crate) fn told(&self, endpoint: &Endpoint, status: &tonic::Status) -> String {
        let mut text = format!("{}: {}", status.code(), status.message());
        if let Some(source) = std::error::Error::source(status) {
            text = format!("{text}: {}", crate::client::explain(source));
            let shows = self.tls.as_ref().is_some_and(|tls| tls.options().identity.is_some());
            if endpoint.uri().scheme_str() == Some("https") && !shows {
                text.push_str(" (no certificate was shown; does the server ask for one?)");
            }
        }
        text
    }

    /// A channel that connects when it is used, and again when it was cut.
    pub(crate) fn connect_lazy(&self, endpoint: &Endpoint) -> Channel {
        if endpoint.uri().scheme_str() != Some("https") {
            return endpoint.connect_lazy();
        }
        let (client, alert) = (self.tls.clone(), self.alert());
        let connector = tower::service_fn(move |uri| {
            let (client, alert) = (client.clone(), alert.clone());
            async move {
                let client = match client {
                    Some(client) => client,
                    None => Client::new(ClientOptions::default()).map_err(io::Error::other)?,
                };
                shake(client, uri, alert).await
            }
        });
        endpoint.connect_with_connector_lazy(connector)
    }

    /// Connects.
    pub(crate) async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, String> {
        let secure = endpoint.uri().scheme_str() == Some("https");
        let connected = if secure {
            let client = match &self.tls {
                Some(client) => client.clone(),
                // Nobody has said whom to believe: those that everyone on this machine does.
                None => Client::new(ClientOptions::default()).map_err(|error| error.to_string())?,
            };
            let alert = self.alert();
            let connector = tower::service_fn(move |uri| shake(client.clone(), uri, alert.clone()));
            endpoint.connect_with_connector(connector).await
        } else {
            endpoint.connect().await
        };
        connected.map_err(|error| crate::client::explain(&error))
    }
}

/// One of several servers after the other, or whom the last has named.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) link: Link,
    /// Never empty.
    endpoints: Vec<Endpoint>,
    /// Whose turn it is.
    turn: usize,
    /// Where to go next.
    leader: Option<Endpoint>,
}

impl Route {
    /// To these, from one by chance on; nothing if there are none.
    pub(crate) fn new<A: AsRef<str>>(
        link: Link,
        addresses: &[A],
        dice: &mut impl Rng,
    ) -> Result<Option<Self>, LinkError> {
        let endpoints = addresses.iter().map(|address| link.endpoint(address.as_ref()));
        let endpoints = endpoints.collect::<Result<Vec<_>, _>>()?;
        if endpoints.is_empty() {
            return Ok(None);
        }
        let turn = dice.below(endpoints.len() as u64) as usize;
        Ok(Some(Self { link, endpoints, turn, leader: None }))
    }

    /// Whom to ask next.
    pub(crate) fn next(&mut self) -> Endpoint {
        self.leader.take().unwrap_or_else(|| {
            self.turn = (self.turn + 1) % self.endpoints.len();
            self.endpoints[self.turn].clone()
        })
    }

    /// The same again.
    pub(crate) fn again(&mut self, endpoint: &Endpoint) {
        self.leader = Some(endpoint.clone());
    }

    /// The server at `from` has said that `leader` is the one to ask, or knows of none.
    pub(crate) fn redirect(&mut self, from: &Endpoint, leader: Option<&str>) {
        let leader = leader.filter(|leader| !leader.is_empty());
        self.leader = leader.and_then(|leader| self.link.elsewhere(from, leader));
    }
}

/// TCP and TLS. Its time is limited by whoever calls, and by that of handshakes.
async fn shake(
    client: Client,
    uri: http::Uri,
    alert: Alert,
) -> io::Result<TokioIo<Heard<TlsStream<TcpStream>>>> {
    *alert.lock() = None;
    let host = uri.host().unwrap_or_default();
    let name = Client::name(host).map_err(io::Error::other)?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let io = TcpStream::connect((bare, uri.port_u16().unwrap_or(PORT_HTTPS))).await?;
    io.set_nodelay(true)?;
    let stream = client.connect(io, name, Offer::Http2, HANDSHAKE_MAX).await;
    let stream = stream.map_err(io::Error::other)?;
    if !Client::speaks_http2(&stream) {
        return Err(io::Error::other("it does not speak HTTP/2 by ALPN"));
    }
    Ok(TokioIo::new(Heard::new(stream, alert)))
}

/// What to say of files that were refused.
pub(crate) fn refusal(news: &News) -> Option<String> {
    match news {
        News::Refused(error) => Some(error.to_string()),
        _ => None,
    }
}

/// Long enough for a server behind a long line.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::rng::SeededRng;
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::Instant;

    /// A connection that was refused. The runtime hears so after it was read so often.
    struct Refused {
        reads: Option<u32>,
    }

    impl AsyncRead for Refused {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            _: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match &mut self.reads {
                None => return Poll::Pending,
                Some(0) => {}
                Some(left) => {
                    *left -= 1;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
            let alert = rustls::AlertDescription::CertificateRequired;
            let alert = rustls::Error::AlertReceived(alert);
            Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, alert)))
        }
    }

    impl AsyncWrite for Refused {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[u8],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn why_a_connection_was_refused_is_heard_however_late_the_runtime_hears_of_it() {
        for (reads, said, took) in [
            (Some(0), true, Duration::ZERO),
            (Some(1), true, Duration::ZERO),
            (Some(7), true, Duration::ZERO),
            (None, false, ALERT_WITHIN),
        ] {
            let (alert, start) = (Alert::default(), Instant::now());
            let mut heard = Heard::new(Refused { reads }, alert.clone());
            for _ in 0..2 {
                heard.write_all(b"hello").await.unwrap_err();
                assert_eq!((alert.said().is_some(), start.elapsed()), (said, took), "{reads:?}");
            }
        }
    }

    #[test]
    fn nobody_is_sent_from_tls_to_where_there_is_none() {
        for (from, leader, clear, strict) in [
            ("http://a:1", "b:2", Some("http://b:2/"), None),
            ("https://a:1", "b:2", Some("https://b:2/"), Some("https://b:2/")),
            ("http://a:1", "https://b:2", Some("https://b:2/"), Some("https://b:2/")),
            ("https://a:1", "http://b:2", None, None),
            ("http://a:1", "not an address", None, None),
        ] {
            let from = Endpoint::from_static(from);
            let found = |link: &Link| link.elsewhere(&from, leader).map(|e| e.uri().to_string());
            assert_eq!(found(&Link::default()).as_deref(), clear, "{leader}");
            assert_eq!(found(&Link::scheme(true)).as_deref(), strict, "{leader}");
        }
    }

    #[test]
    fn servers_have_their_turns_and_a_leader_is_next() {
        let mut dice = SeededRng::new(1);
        assert!(Route::new::<&str>(Link::default(), &[], &mut dice).unwrap().is_none());
        assert!(Route::new(Link::default(), &["not an address"], &mut dice).is_err());
        let servers = ["http://a:1", "http://b:1"];
        let mut route = Route::new(Link::default(), &servers, &mut dice).unwrap().unwrap();
        let mut next = || route.next().uri().to_string();
        let (first, second) = (next(), next());
        assert_ne!(first, second);
        assert_eq!(next(), first);
        let from = Endpoint::from_static("https://c:1");
        // Who was sent to TLS is not sent back from it, whoever was asked at first.
        for (leader, expected) in [
            (Some("d:1"), Some("https://d:1/")),
            (Some("http://d:1"), None),
            (Some(""), None),
            (None, None),
        ] {
            route.redirect(&from, leader);
            let found = route.next().uri().to_string();
            let own = found == first || found == second;
            assert_eq!((!own).then_some(found.as_str()), expected, "{leader:?}");
        }
        route.again(&from);
        assert_eq!(route.next().uri(), from.uri());
    }

    #[test]
    fn whoever_has_certificates_speaks_by_tls_only() {
        let open = Link::default();
        let strict = Link::scheme(true);
        for (address, clear, secure) in [
            ("http://quota:7300", Some("http://quota:7300/"), None),
            ("https://quota:7300", Some("https://quota:7300/"), Some("https://quota:7300/")),
            ("quota:7300", Some("http://quota:7300/"), Some("https://quota:7300/")),
            ("[::1]:7300", Some("http://[::1]:7300/"), Some("https://[::1]:7300/")),
            ("ftp://quota", None, None),
            ("not an address", None, None),
        ] {
            let uri = |link: &Link| link.endpoint(address).ok().map(|e| e.uri().to_string());
            assert_eq!(uri(&open).as_deref(), clear, "{address}");
            assert_eq!(uri(&strict).as_deref(), secure, "{address}");
        }
    }
}
