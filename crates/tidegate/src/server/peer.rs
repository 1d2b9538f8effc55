//! Who is at the other end of a connection.

use core::fmt;
use std::sync::Arc;
use tidegate_core::CustomerId;
use tidegate_wire::customer::Peer;

/// Who is at the other end of a connection, as it has proved.
///
/// The layer looks for it in the extensions of each request. Whoever accepts connections makes it
/// once, with [`Task::peer`](crate::Task::peer), from the URI of the certificate that the handshake
/// has verified, and puts a clone (a count of references) into each request of that connection.
/// Requests that come by [`serve`](crate::serve()) have it by themselves. Without it, a peer is a
/// stranger.
///
/// ```
/// use http::Request;
/// use tidegate::Task;
/// use tidegate_core::fleet::Limits;
/// use tidegate_wire::customer::Identities;
///
/// let identities = Identities::default().customer("spiffe://prod/ns/{customer}/sa/*")?;
/// let task = Task::builder("search")
///     .identities(identities)
///     .customer("shop", Limits::UNLIMITED)
///     .build()?;
///
/// // Once per connection, after the handshake:
/// let peer = task.peer(Some("spiffe://prod/ns/shop/sa/web"));
/// // For each request:
/// let mut request = Request::new(());
/// request.extensions_mut().insert(peer.clone());
/// # assert_eq!(peer.customer(), task.customer("shop"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PeerIdentity {
    inner: Arc<(Peer, CustomerId)>,
}

impl PeerIdentity {
    pub(crate) fn new(peer: Peer, customer: CustomerId) -> Self {
        Self { inner: Arc::new((peer, customer)) }
    }

    /// What it may claim, and whether it may speak for others.
    pub fn peer(&self) -> &Peer {
        &self.inner.0
    }

    /// Whom its requests are charged to, unless it speaks for others.
    pub fn customer(&self) -> CustomerId {
        self.inner.1
    }
}

impl fmt::Debug for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerIdentity").field(self.peer()).field(&self.customer()).finish()
    }
}
