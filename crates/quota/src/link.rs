//! Connections to quota servers and masters of Doorman, with TLS where their addresses say so.
//!
//! `http://` is spoken in the clear and `https://` by TLS, to a server whose certificate has the
//! name that stands in the address. Whoever was given certificates never speaks in the clear: an
//! address that asks for it is refused, and so is a redirect.

use core::time::Duration;
use hyper_util::rt::TokioIo;
use std::io;
use tidegate_tls::{Client, ClientOptions, HANDSHAKE_MAX, InvalidTls, News, Offer, PERIOD};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

/// The port of addresses by `https://` that name none.
const PORT_HTTPS: u16 = 443;

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

/// How to connect.
#[derive(Debug, Clone, Default)]
pub(crate) struct Link {
    tls: Option<Client>,
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
        Ok(Self { tls: Some(client), strict: true })
    }

    /// To look at addresses only: with certificates, or without.
    pub(crate) const fn scheme(strict: bool) -> Self {
        Self { tls: None, strict }
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

    /// Connects.
    pub(crate) async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, String> {
        let secure = endpoint.uri().scheme_str() == Some("https");
        let connected = if secure {
            let client = match &self.tls {
                Some(client) => client.clone(),
                // Nobody has said whom to believe: those that everyone on this machine does.
                None => Client::new(ClientOptions::default()).map_err(|error| error.to_string())?,
            };
            let connector = tower::service_fn(move |uri| shake(client.clone(), uri));
            endpoint.connect_with_connector(connector).await
        } else {
            endpoint.connect().await
        };
        connected.map_err(|error| crate::client::explain(&error))
    }
}

/// TCP and TLS. Its time is limited by whoever calls, and by that of handshakes.
async fn shake(
    client: Client,
    uri: http::Uri,
) -> io::Result<TokioIo<tidegate_tls::tokio_rustls::client::TlsStream<TcpStream>>> {
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
    Ok(TokioIo::new(stream))
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
