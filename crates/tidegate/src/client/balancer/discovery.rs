//! Who there is to send to.
//!
//! A list, a name in DNS, or whatever a user's stream says. Discovery that fails is no news: the
//! endpoints that were known yesterday most likely still serve, and a client that forgets them
//! because a name server hiccuped has made an outage of it. So the old set stays until there is a
//! new one, and a name that resolves to nothing counts as a failure.
//!
//! Discovery is asked on the keeper's ticks, and whenever what it waits for wakes it.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use futures_util::Stream;
use futures_util::future::{BoxFuture, FutureExt};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_core::spillover::DatacenterId;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A task to send to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    address: String,
    datacenter: Option<DatacenterId>,
}

impl Endpoint {
    /// The one at `address`, in whatever form the maker of services understands: `10.1.2.3:80`.
    pub fn new(address: impl Into<String>) -> Self {
        Self { address: address.into(), datacenter: None }
    }

    /// The same, in this datacenter. Without one it counts as in the first that was configured.
    #[must_use]
    pub fn in_datacenter(self, datacenter: DatacenterId) -> Self {
        Self { datacenter: Some(datacenter), ..self }
    }

    /// Where it is. Endpoints are told apart by this.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// In which datacenter.
    pub const fn datacenter(&self) -> Option<DatacenterId> {
        self.datacenter
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.address)
    }
}

impl From<&str> for Endpoint {
    fn from(address: &str) -> Self {
        Self::new(address)
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::new(address.to_string())
    }
}

/// News of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// These, and no others. Their order is their numbering for subsets: newcomers go at the end.
    Set(Vec<Endpoint>),
    /// This one too, or again after it was a lame duck.
    Add(Endpoint),
    /// Not this address any more.
    Remove(String),
    /// This address asks for no new requests, until it is added again.
    LameDuck(String),
}

/// Where endpoints come from.
#[must_use]
pub struct Discovery(Source);

enum Source {
    List(Option<Vec<Endpoint>>),
    Dns(Dns),
    Stream(Pin<Box<dyn Stream<Item = Change> + Send>>),
    Over,
}

impl Discovery {
    /// These for ever.
    pub fn list<E: Into<Endpoint>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self(Source::List(Some(endpoints.into_iter().map(Into::into).collect())))
    }

    /// Whatever `host:port` resolves to, asked again every 30 s. Names of schedulers live for
    /// about that long; more often burdens the name server, with every client at once.
    pub fn dns(name: impl Into<String>) -> Self {
        Self::dns_every(name, Duration::from_secs(30))
    }

    /// Whatever `host:port` resolves to, asked again in this interval.
    pub fn dns_every(name: impl Into<String>, interval: Duration) -> Self {
        let name = name.into();
        let resolve = move || {
            let name = name.clone();
            async move { Ok(tokio::net::lookup_host(name).await?.collect()) }.boxed()
        };
        Self::resolver(resolve, interval)
    }

    /// Whatever `resolve` finds, asked again in this interval.
    pub fn resolver(
        resolve: impl Fn() -> BoxFuture<'static, Resolved> + Send + Sync + 'static,
        interval: Duration,
    ) -> Self {
        let resolve = Arc::new(resolve);
        Self(Source::Dns(Dns { resolve, interval, due: None, lookup: None, failures: 0 }))
    }

    /// What `changes` says. When it ends the set stays as it is.
    pub fn stream(changes: impl Stream<Item = Change> + Send + 'static) -> Self {
        Self(Source::Stream(Box::pin(changes)))
    }

    /// The next news, if there are any; the waker is told when there may be more.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Change> {
        match &mut self.0 {
            Source::List(list) => {
                let list = list.take();
                self.0 = Source::Over;
                list.map_or(Poll::Pending, |list| Poll::Ready(Change::Set(list)))
            }
            Source::Dns(dns) => dns.poll(cx, now),
            Source::Stream(changes) => match changes.as_mut().poll_next(cx) {
                Poll::Ready(Some(change)) => Poll::Ready(change),
                Poll::Ready(None) => {
                    self.0 = Source::Over;
                    Poll::Pending
                }
                Poll::Pending => Poll::Pending,
            },
            Source::Over => Poll::Pending,
        }
    }

    /// How often it could not be found out who there is.
    pub(super) const fn failures(&self) -> u64 {
        match &self.0 {
            Source::Dns(dns) => dns.failures,
            _ => 0,
        }
    }
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Source::List(_) => "Discovery::list",
            Source::Dns(_) => "Discovery::dns",
            Source::Stream(_) => "Discovery::stream",
            Source::Over => "Discovery::over",
        })
    }
}

/// What a look-up comes to.
type Resolved = io::Result<Vec<SocketAddr>>;

type Resolve = dyn Fn() -> BoxFuture<'static, Resolved> + Send + Sync;

/// Asks again and again.
struct Dns {
    resolve: Arc<Resolve>,
    interval: Duration,
    /// None: at once.
    due: Option<Instant>,
    lookup: Option<JoinHandle<Resolved>>,
    failures: u64,
}

/// A failed look-up is repeated after this long if the interval is longer: a name server that is
/// away for a moment should not cost half a minute, and once a second bothers nobody.
const AGAIN: Duration = Duration::from_secs(1);

impl Dns {
    fn poll(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Change> {
        if self.lookup.is_none() && self.due.is_none_or(|due| due <= now) {
            self.lookup = Some(tokio::spawn((self.resolve)()));
        }
        let Some(lookup) = &mut self.lookup else { return Poll::Pending };
        let Poll::Ready(found) = Pin::new(lookup).poll(cx) else { return Poll::Pending };
        self.lookup = None;
        // A look-up is also lost when its runtime ends.
        let mut found = found.map_err(io::Error::other).flatten().unwrap_or_default();
        if found.is_empty() {
            self.failures += 1;
            self.due = Some(now + self.interval.min(AGAIN));
            return Poll::Pending;
        }
        self.due = Some(now + self.interval);
        // Name servers turn the list around; its order is the numbering for subsets.
        found.sort_unstable();
        found.dedup();
        Poll::Ready(Change::Set(found.into_iter().map(Into::into).collect()))
    }
}
