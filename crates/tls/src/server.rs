//! The side that is connected to.

use crate::error::InvalidTls;
use crate::identity::identity;
use crate::live::{Live, News, Recipe, watch};
use crate::pem::{Part, Pem, certificates, key};
use crate::roots;
use core::fmt;
use core::time::Duration;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Whether clients show certificates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Clients {
    /// They are not asked for any.
    #[default]
    Ignored,
    /// They may show one, signed by one of these roots. One that is signed by somebody else fails
    /// the handshake.
    Optional(Pem),
    /// They have to.
    Required(Pem),
}

/// What a server shows, and wants to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Its certificate first, then those that lead to a root.
    pub certificates: Pem,
    /// The key of the first.
    pub key: Pem,
    /// Certificates of clients.
    pub clients: Clients,
}

impl ServerOptions {
    /// This certificate and its key, for clients without any.
    pub fn new(certificates: impl Into<Pem>, key: impl Into<Pem>) -> Self {
        Self { certificates: certificates.into(), key: key.into(), clients: Clients::Ignored }
    }
}

/// A server's side of TLS. Cheap to clone; all clones have the same certificates.
#[derive(Clone)]
pub struct Server {
    live: Arc<Live<ServerOptions>>,
}

/// Why a connection ends with its handshake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// It was not done in time.
    #[error("the handshake was not done in time")]
    TimedOut,
    /// There was none: no TLS, no certificate, or not one of ours.
    #[error("the handshake failed: {0}")]
    Failed(#[source] io::Error),
}

impl Server {
    /// Reads everything. What is wrong now is an error; what is wrong later is not used.
    pub fn new(options: ServerOptions) -> Result<Self, InvalidTls> {
        Ok(Self { live: Arc::new(Live::new(options)?) })
    }

    /// For the next handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.live.current()
    }

    /// What it was made of.
    pub fn options(&self) -> &ServerOptions {
        self.live.recipe()
    }

    /// Reads the files again; whether anything has changed. If they are wrong, the old ones stay.
    pub fn reload(&self) -> Result<bool, InvalidTls> {
        self.live.reload()
    }

    /// Looks at the files every `period` for as long as there is a clone of this server, and tells
    /// what it has found, on a thread of its own.
    pub fn watch(&self, period: Duration, tell: impl Fn(News) + Send + 'static) -> io::Result<()> {
        watch(&self.live, period, tell)
    }

    /// A look at the files, as [`Server::watch`] takes them.
    pub fn look(&self) -> Option<News> {
        self.live.look()
    }

    /// The handshake, and who the peer is.
    pub async fn accept<I>(
        &self,
        io: I,
        time_max: Duration,
    ) -> Result<(TlsStream<I>, Option<Box<str>>), AcceptError>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = TlsAcceptor::from(self.config()).accept(io);
        let done = tokio::time::timeout(time_max, handshake).await;
        let stream = done.map_err(|_| AcceptError::TimedOut)?.map_err(AcceptError::Failed)?;
        let shown = stream.get_ref().1.peer_certificates();
        let identity = shown.and_then(<[_]>::first).and_then(identity);
        Ok((stream, identity))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(self.options()).finish()
    }
}

impl Recipe for ServerOptions {
    type Made = ServerConfig;

    fn parts(&self) -> Vec<(Part, Pem)> {
        let mut parts =
            vec![(Part::Certificates, self.certificates.clone()), (Part::Key, self.key.clone())];
        if let Clients::Optional(roots) | Clients::Required(roots) = &self.clients {
            parts.push((Part::Roots, roots.clone()));
        }
        parts
    }

    fn make(&self, read: &[Vec<u8>]) -> Result<ServerConfig, InvalidTls> {
        let place = self.certificates.place(Part::Certificates);
        let unusable = |error: rustls::Error| unusable(&place, error);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let verifier = |pem: &Pem| {
            let place = pem.place(Part::Roots);
            let store = Arc::new(roots::store(&read[2], &place, true)?);
            Ok(WebPkiClientVerifier::builder_with_provider(store, Arc::clone(&provider)))
        };
        let wrong = |error: rustls::server::VerifierBuilderError| {
            let what = format!("clients cannot be verified by them: {error}");
            InvalidTls::new(Part::Roots.name(), what, Part::Roots.right()).because(error)
        };
        let builder = match &self.clients {
            Clients::Ignored => builder.with_no_client_auth(),
            Clients::Optional(roots) => builder.with_client_cert_verifier(
                verifier(roots)?.allow_unauthenticated().build().map_err(wrong)?,
            ),
            Clients::Required(roots) => {
                builder.with_client_cert_verifier(verifier(roots)?.build().map_err(wrong)?)
            }
        };
        let chain = certificates(&read[0], &place, Part::Certificates)?;
        let key = key(&read[1], &self.key.place(Part::Key))?;
        let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// What rustls finds wrong with a certificate and its key.
pub(crate) fn unusable(place: &str, error: rustls::Error) -> InvalidTls {
    match &error {
        rustls::Error::InconsistentKeys(_) => InvalidTls::new(
            place,
            "the certificate is not for this key",
            "the key that the first certificate was made for",
        ),
        other => InvalidTls::new(
            place,
            format!("the certificates or the key cannot be used: {other}"),
            Part::Certificates.right(),
        ),
    }
    .because(error)
}
