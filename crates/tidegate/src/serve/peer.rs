//! Who is at the other end of a connection.

use super::connection::Place;
use crate::server::PeerIdentity;
use crate::task::Task;
use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
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
    known: OnceLock<Box<Known>>,
    /// Its connection's place among those that there may be, for as long as that is there.
    place: Option<Weak<Held>>,
}

/// Who a peer is to a task, and to the next one that its requests have come to. Behind one listener
/// there are as many tasks as somebody has made: one, or a few.
#[derive(Debug)]
struct Known {
    task: u64,
    identity: PeerIdentity,
    next: OnceLock<Box<Self>>,
}

/// A connection's place among those that there may be. A connection that changes its protocol is no
/// longer HTTP's, but somebody's all the same: who goes on with it keeps this.
#[derive(Debug, Clone)]
#[must_use = "the place is given back when this is dropped"]
pub struct Stay(#[expect(dead_code, reason = "it is held, not looked at")] Arc<Held>);

/// What is held for as long as a connection is there.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) _place: Place,
    pub(super) _guest: Option<Box<dyn Any + Send + Sync>>,
}

impl Peer {
    /// Of a connection that has a place.
    pub(super) fn new(
        address: Option<SocketAddr>,
        criticality: Option<Criticality>,
        place: &Arc<Held>,
    ) -> Self {
        let place = Some(Arc::downgrade(place));
        Self { inner: Arc::new(Inner { address, criticality, place, ..Inner::default() }) }
    }

    /// Keeps the place of its connection, if that is still there.
    pub fn stay(&self) -> Option<Stay> {
        self.inner.place.as_ref()?.upgrade().map(Stay)
    }

    /// After the handshake, which may have told more about it.
    #[cfg(feature = "tls")]
    pub(super) fn secured(self, identity: Option<Box<str>>, class: Option<Criticality>) -> Self {
        let criticality = class.or(self.inner.criticality);
        let (address, place) = (self.inner.address, self.inner.place.clone());
        let inner =
            Inner { address, criticality, identity, secure: true, place, ..Inner::default() };
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

    /// Who it is to `task`, which is looked up once: customers have other numbers, and peers other
    /// ceilings, at the next.
    #[inline]
    pub(crate) fn known_to(&self, task: &Task) -> &PeerIdentity {
        let mut place = &self.inner.known;
        loop {
            let known = place.get_or_init(|| {
                let identity = task.peer(self.identity());
                Box::new(Known { task: task.inner.id, identity, next: OnceLock::new() })
            });
            if known.task == task.inner.id {
                return &known.identity;
            }
            place = &known.next;
        }
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
        let peer = Peer::default();
        let clone = peer.clone();
        assert_eq!(peer.remember(|| 7_u32), Some(&7));
        assert_eq!(clone.remember(|| 8_u32), Some(&7));
        assert_eq!(clone.remember(|| "seven"), None);
        assert_eq!(Peer::default().remember(|| 8_u32), Some(&8));
    }
}
