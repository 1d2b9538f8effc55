//! Who is at the other end of a connection.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
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
    remembered: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl Peer {
    pub(super) fn new(address: Option<SocketAddr>, criticality: Option<Criticality>) -> Self {
        Self { inner: Arc::new(Inner { address, criticality, ..Inner::default() }) }
    }

    /// After the handshake, which may have told more about it.
    #[cfg(feature = "tls")]
    pub(super) fn secured(self, identity: Option<Box<str>>, class: Option<Criticality>) -> Self {
        let criticality = class.or(self.inner.criticality);
        let address = self.inner.address;
        let inner = Inner { address, criticality, identity, secure: true, ..Inner::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Its address, if the connection has any.
    pub fn address(&self) -> Option<SocketAddr> {
        self.inner.address
    }

    /// What its connection counts as, if anything told.
    pub fn criticality(&self) -> Option<Criticality> {
        self.inner.criticality
    }

    /// Who its certificate says it is, which was signed by one that we trust: its one SPIFFE ID,
    /// `spiffe://…`, or else its first name of DNS, `dns:…`. Nothing without TLS, without a
    /// certificate, and without such a name.
    pub fn identity(&self) -> Option<&str> {
        self.inner.identity.as_deref()
    }

    /// Whether the connection is encrypted.
    pub fn is_secure(&self) -> bool {
        self.inner.secure
    }

    /// What `make` finds out about this peer, once for all requests of its connection: to look a
    /// customer up by name for each of them would cost more than to decide about it. There is one
    /// such thing; nothing is returned to whoever asks for another type of it.
    pub fn remember<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.inner.remembered.get_or_init(|| Box::new(make())).downcast_ref()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_found_out_once() {
        let peer = Peer::new(None, None);
        let clone = peer.clone();
        assert_eq!(peer.remember(|| 7_u32), Some(&7));
        assert_eq!(clone.remember(|| 8_u32), Some(&7));
        assert_eq!(clone.remember(|| "seven"), None);
        assert_eq!(Peer::new(None, None).remember(|| 8_u32), Some(&8));
    }
}
