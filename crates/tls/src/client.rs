//! The side that connects.

use crate::error::InvalidTls;
use crate::live::{Live, News, Recipe, watch};
use crate::pem::{Part, Pem, certificates, key};
use crate::roots::{self, Roots};
use crate::server::unusable;
use core::fmt;
use core::time::Duration;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Who a client says that it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Its certificate first, then those that lead to a root.
    pub certificates: Pem,
    /// The key of the first.
    pub key: Pem,
}

impl Identity {
    /// This certificate and its key.
    pub fn new(certificates: impl Into<Pem>, key: impl Into<Pem>) -> Self {
        Self { certificates: certificates.into(), key: key.into() }
    }
}

/// Whom a client believes, and what it shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Whom to believe.
    pub roots: Roots,
    /// What to show to servers that ask for it.
    pub identity: Option<Identity>,
}

/// Which protocols to offer by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// HTTP/1.1 and nothing else.
    Http1,
    /// HTTP/2 and nothing else.
    Http2,
    /// HTTP/2 rather than HTTP/1.1.
    Either,
}

impl Offer {
    fn protocols(self) -> Vec<Vec<u8>> {
        let names: &[&[u8]] = match self {
            Self::Http1 => &[b"http/1.1"],
            Self::Http2 => &[b"h2"],
            Self::Either => &[b"h2", b"http/1.1"],
        };
        names.iter().map(|name| name.to_vec()).collect()
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// It was not done in time.
    #[error("the handshake was not done in time")]
    TimedOut,
    /// The server is not who it should be, or does not want us.
    #[error("the handshake failed: {0}")]
    Failed(#[source] io::Error),
}

/// A client's side of TLS. Cheap to clone; all clones have the same certificates.
#[derive(Clone)]
pub struct Client {
    live: Arc<Live<ClientOptions>>,
}

impl Client {
    /// Reads everything. What is wrong now is an error; what is wrong later is not used.
    pub fn new(options: ClientOptions) -> Result<Self, InvalidTls> {
        Ok(Self { live: Arc::new(Live::new(options)?) })
    }

    /// For the next handshake. It offers no protocols.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.live.current()
    }

    /// What it was made of.
    pub fn options(&self) -> &ClientOptions {
        self.live.recipe()
    }

    /// Reads the files again; whether anything has changed. If they are wrong, the old ones stay.
    pub fn reload(&self) -> Result<bool, InvalidTls> {
        self.live.reload()
    }

    /// Looks at the files every `period` for as long as there is a clone of this client, and tells
    /// what it has found, on a thread of its own.
    pub fn watch(&self, period: Duration, tell: impl Fn(News) + Send + 'static) -> io::Result<()> {
        watch(&self.live, period, tell)
    }

    /// The handshake with a server that has to have the name `name`. Whether it speaks HTTP/2 by
    /// ALPN says [`Client::speaks_http2`].
    pub async fn connect<I>(
        &self,
        io: I,
        name: ServerName<'static>,
        offer: Offer,
        time_max: Duration,
    ) -> Result<TlsStream<I>, ConnectError>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let connector = TlsConnector::from(self.config());
        let handshake = connector.with_alpn(offer.protocols()).connect(name, io);
        let done = tokio::time::timeout(time_max, handshake).await;
        done.map_err(|_| ConnectError::TimedOut)?.map_err(ConnectError::Failed)
    }

    /// Whether the server has picked HTTP/2. One that does not know ALPN has picked nothing.
    pub fn speaks_http2<I>(stream: &TlsStream<I>) -> bool {
        stream.get_ref().1.alpn_protocol() == Some(b"h2")
    }

    /// The name that a certificate has to have: of DNS, or an address, with or without brackets.
    pub fn name(host: &str) -> Result<ServerName<'static>, InvalidTls> {
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        ServerName::try_from(bare).map_err(|error| {
            let right = "a name such as app.internal, or an address";
            InvalidTls::new(host, "no certificate can have this name", right).because(error)
        })
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(self.options()).finish()
    }
}

impl Recipe for ClientOptions {
    type Made = ClientConfig;

    fn parts(&self) -> Vec<(Part, Pem)> {
        let mut parts = vec![(Part::Roots, self.roots.pem())];
        if let Some(identity) = &self.identity {
            parts.push((Part::Certificates, identity.certificates.clone()));
            parts.push((Part::Key, identity.key.clone()));
        }
        parts
    }

    fn make(&self, read: &[Vec<u8>]) -> Result<ClientConfig, InvalidTls> {
        let place = self.roots.pem().place(Part::Roots);
        let store = roots::store(&read[0], &place, self.roots.strict())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&place, error))?
            .with_root_certificates(store);
        let Some(identity) = &self.identity else { return Ok(builder.with_no_client_auth()) };
        let place = identity.certificates.place(Part::Certificates);
        let chain = certificates(&read[1], &place, Part::Certificates)?;
        let key = key(&read[2], &identity.key.place(Part::Key))?;
        builder.with_client_auth_cert(chain, key).map_err(|error| unusable(&place, error))
    }
}
