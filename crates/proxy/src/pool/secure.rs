//! TLS to a program, and what it speaks.
//!
//! A program behind TLS says by ALPN what it speaks, so nothing has to be configured. But a request
//! has to be written for HTTP/2 or HTTP/1.1 before it is sent. So the first one that needs to know
//! makes a connection that offers both; what was picked is used for it, and remembered. From then
//! on connections offer just that. If a handshake fails, it is forgotten: the program may have been
//! replaced by one that speaks something else.

use super::{Failure, Io};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use core::time::Duration;
use http::Request;
use http::uri::Scheme;
use std::io;
use tidegate_tls::rustls::pki_types::ServerName;
use tidegate_tls::{Client, Offer};
use tokio::net::TcpStream;

/// How to encrypt, and whom to expect.
#[derive(Debug, Clone)]
pub(crate) struct Secure {
    pub(crate) client: Client,
    pub(crate) name: ServerName<'static>,
}

impl Secure {
    /// The handshake; whether HTTP/2 was picked. Its time is limited by whoever calls.
    pub(super) async fn shake(&self, io: TcpStream, offer: Offer) -> io::Result<(Io, bool)> {
        let shaken = self.client.connect(io, self.name.clone(), offer, Duration::MAX).await;
        let stream = shaken.map_err(io::Error::other)?;
        let http2 = Client::speaks_http2(&stream);
        if offer == Offer::Http2 && !http2 {
            return Err(io::Error::other("it does not speak HTTP/2 by ALPN"));
        }
        Ok((Io::Tls { io: Box::new(stream) }, http2))
    }
}

/// What a program behind TLS speaks, as far as is known.
#[derive(Debug, Default)]
pub(super) struct Spoken(AtomicU8);

impl Spoken {
    const UNKNOWN: u8 = 0;
    const HTTP1: u8 = 1;
    const HTTP2: u8 = 2;

    pub(super) fn is_http2(&self) -> Option<bool> {
        match self.0.load(Relaxed) {
            Self::HTTP1 => Some(false),
            Self::HTTP2 => Some(true),
            _ => None,
        }
    }

    pub(super) fn is(&self, http2: bool) {
        self.0.store(if http2 { Self::HTTP2 } else { Self::HTTP1 }, Relaxed);
    }

    /// What is wrong with a connection may be that.
    pub(super) fn forget_if(&self, failure: &Failure) {
        if matches!(failure, Failure::Connect(_)) {
            self.0.store(Self::UNKNOWN, Relaxed);
        }
    }
}

/// A request over TLS says so.
pub(super) fn mark<B>(request: &mut Request<B>) {
    if request.uri().scheme() == Some(&Scheme::HTTPS) || request.uri().authority().is_none() {
        return;
    }
    let mut parts = core::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(Scheme::HTTPS);
    // It was a URI with an authority and a path before.
    if let Ok(uri) = http::Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}
