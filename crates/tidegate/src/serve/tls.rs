//! Encrypted connections, and who a peer is.
//!
//! Certificates, keys and roots are `tidegate-tls`'s. A handshake takes up to a millisecond of CPU,
//! so it comes after the connection gate, and a peer that does not finish it in time is cut off.
//!
//! A certificate of the client tells who it is: by its one SPIFFE ID, `spiffe://…`, or else by its
//! first name of DNS, `dns:…`. A certificate that was not signed by a root we were given fails the
//! handshake; one without such a name is served as nobody in particular. What a name counts as can
//! be asked once more ([`Tls::classify`]), now that it is known, and a connection may have to go
//! after all.
//!
//! Certificates are renewed while the server runs: by files that are watched
//! ([`Server::watch`]), or by [`Tls::reload`].

use super::Peer;
use core::fmt;
use core::time::Duration;
use std::sync::{Arc, PoisonError, RwLock};
use tidegate_core::Criticality;
use tidegate_core::connection::gate::ConnectionGate;
use tidegate_tls::rustls::ServerConfig;
use tidegate_tls::tokio_rustls::TlsAcceptor;
use tidegate_tls::tokio_rustls::server::TlsStream;
use tidegate_tls::{Clients, HANDSHAKE_MAX, InvalidTls, Pem, Server, ServerOptions, identity};
use tokio::io::{AsyncRead, AsyncWrite};

/// Whether clients show certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientCertificates<'a> {
    /// They are not asked for any.
    Ignored,
    /// They may show one, signed by one of these roots (PEM).
    Optional(&'a [u8]),
    /// They have to.
    Required(&'a [u8]),
}

type Classify = Arc<dyn Fn(&str) -> Option<Criticality> + Send + Sync>;

/// How connections are encrypted. Cheap to clone; all clones have the same certificates.
#[derive(Clone)]
pub struct Tls {
    source: Arc<RwLock<Source>>,
    handshake_max: Duration,
    classify: Option<Classify>,
}

/// Where the configuration of the next handshake comes from.
enum Source {
    Server(Server),
    Config(Arc<ServerConfig>),
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("handshake_max", &self.handshake_max).finish_non_exhaustive()
    }
}

impl From<Server> for Tls {
    /// Certificates of files, which [`Server::watch`] renews.
    fn from(server: Server) -> Self {
        Self::new(Source::Server(server))
    }
}

impl Tls {
    fn new(source: Source) -> Self {
        let source = Arc::new(RwLock::new(source));
        Self { source, handshake_max: HANDSHAKE_MAX, classify: None }
    }

    /// Certificates (the server's own first) and key as PEM.
    pub fn from_pem(
        certificates: &[u8],
        key: &[u8],
        clients: ClientCertificates<'_>,
    ) -> Result<Self, InvalidTls> {
        Ok(server(certificates, key, clients)?.into())
    }

    /// Whatever rustls can do. Set its ALPN protocols, or there will be no HTTP/2.
    pub fn from_config(config: Arc<ServerConfig>) -> Self {
        Self::new(Source::Config(config))
    }

    /// How long a handshake may take; 10 s if not said.
    #[must_use]
    pub const fn handshake_max(mut self, handshake_max: Duration) -> Self {
        self.handshake_max = handshake_max;
        self
    }

    /// What a peer of this name counts as, if anything.
    #[must_use]
    pub fn classify(
        mut self,
        class: impl Fn(&str) -> Option<Criticality> + Send + Sync + 'static,
    ) -> Self {
        self.classify = Some(Arc::new(class));
        self
    }

    /// New certificates, for handshakes from now on. If they are not in order, the old ones stay.
    pub fn reload(
        &self,
        certificates: &[u8],
        key: &[u8],
        clients: ClientCertificates<'_>,
    ) -> Result<(), InvalidTls> {
        let server = server(certificates, key, clients)?;
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = Source::Server(server);
        Ok(())
    }

    fn config(&self) -> Arc<ServerConfig> {
        match &*self.source.read().unwrap_or_else(PoisonError::into_inner) {
            Source::Server(server) => server.config(),
            Source::Config(config) => Arc::clone(config),
        }
    }

    /// The handshake.
    pub(super) async fn accept<I>(
        &self,
        io: I,
        peer: Peer,
        gate: &ConnectionGate,
    ) -> Result<(TlsStream<I>, Peer), Unsecured>
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let handshake = TlsAcceptor::from(self.config()).accept(io);
        let Ok(Ok(stream)) = tokio::time::timeout(self.handshake_max, handshake).await else {
            return Err(Unsecured::Failed);
        };
        let certificates = stream.get_ref().1.peer_certificates();
        let identity = certificates.and_then(<[_]>::first).and_then(identity);
        let class = match (&self.classify, &identity) {
            (Some(classify), Some(identity)) => classify(identity),
            _ => None,
        };
        if class.is_some_and(|class| gate.confirm(class).is_err()) {
            return Err(Unsecured::Refused);
        }
        Ok((stream, peer.secured(identity, class)))
    }
}

/// Why a connection ends with its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsecured {
    /// There was none, or not in time.
    Failed,
    /// Whoever it is, there is no room for it.
    Refused,
}

fn server(
    certificates: &[u8],
    key: &[u8],
    clients: ClientCertificates<'_>,
) -> Result<Server, InvalidTls> {
    let mut options = ServerOptions::new(Pem::text(certificates), Pem::text(key));
    options.clients = match clients {
        ClientCertificates::Ignored => Clients::Ignored,
        ClientCertificates::Optional(roots) => Clients::Optional(Pem::text(roots)),
        ClientCertificates::Required(roots) => Clients::Required(Pem::text(roots)),
    };
    Server::new(options)
}
