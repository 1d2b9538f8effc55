//! Who is at the other end of a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_core::Criticality;

/// Who is at the other end of a connection. Every request that came over it has one among its
/// extensions. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    address: Option<SocketAddr>,
    criticality: Option<Criticality>,
    identity: Option<Box<str>>,
    secure: bool,
}

impl Peer {
    pub(super) fn new(address: Option<SocketAddr>, criticality: Option<Criticality>) -> Self {
        Self { inner: Arc::new(Inner { address, criticality, ..Inner::default() }) }
    }

    /// After the handshake.
    #[cfg(feature = "tls")]
    pub(super) fn secured(self, identity: Option<Box<str>>) -> Self {
        let Inner { address, criticality, .. } = *self.inner;
        Self { inner: Arc::new(Inner { address, criticality, identity, secure: true }) }
    }

    /// The same peer, known to be of this class.
    #[cfg(feature = "tls")]
    pub(super) fn classed(self, criticality: Criticality) -> Self {
        let Inner { address, secure, .. } = *self.inner;
        let identity = self.inner.identity.clone();
        Self {
            inner: Arc::new(Inner { address, criticality: Some(criticality), identity, secure }),
        }
    }

    /// Its address, if the connection has any.
    pub fn address(&self) -> Option<SocketAddr> {
        self.inner.address
    }

    /// What its connection counts as, if anything told.
    pub fn criticality(&self) -> Option<Criticality> {
        self.inner.criticality
    }

    /// The SPIFFE ID in its certificate, which was signed by one that we trust: `spiffe://…`.
    /// Nothing without TLS, without a certificate, and where there is not exactly one such name.
    pub fn identity(&self) -> Option<&str> {
        self.inner.identity.as_deref()
    }

    /// Whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.inner.secure
    }
}

#[cfg(feature = "axum")]
impl axum::extract::connect_info::Connected<Peer> for Peer {
    fn connect_info(peer: Self) -> Self {
        peer
    }
}

/// The unspecified address for peers that have none, such as those of a Unix socket.
#[cfg(feature = "axum")]
impl axum::extract::connect_info::Connected<Peer> for SocketAddr {
    fn connect_info(peer: Peer) -> Self {
        peer.address().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)))
    }
}
