//! A thin client of etcd v3: what an election and a configuration need, and no more.
//!
//! One connection at a time. A member that does not answer in time, or says that it cannot (it has
//! no leader, it ends), makes way for the next of the list, for all calls. Every call has a
//! deadline, and asks the member to refuse at once while it knows no leader. What was asked of one
//! that did not answer may have been done: callers must be able to ask again.
//!
//! A keep-alive is a stream of its own for one question and one answer: twice a second that costs
//! nothing, and there is no stream to watch over.

mod watch;

use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_wire::proto::etcdserverpb as wire;
use tidegate_wire::proto::etcdserverpb::kv_client::KvClient;
use tidegate_wire::proto::etcdserverpb::lease_client::LeaseClient;
use tidegate_wire::proto::mvccpb::KeyValue;
use tokio::time::{Instant, timeout_at};
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

/// Connections that lead nowhere are noticed. etcd hangs up on whoever asks more often than every
/// five seconds.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(3);
/// Asks a member to refuse while it knows no leader.
const NEEDS_LEADER: &str = "hasleader";

/// Why etcd did not do it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// There is nobody to ask.
    #[error("there are no endpoints of etcd; at least one, such as http://etcd-1:2379")]
    NoEndpoint,
    /// One is no address.
    #[error("`{0}` is no endpoint of etcd; one would be http://etcd-1:2379")]
    Endpoint(String),
    /// None of those that were asked has answered.
    #[error("etcd at {endpoint} does not answer: {what}")]
    Silent {
        /// The last one.
        endpoint: String,
        /// What happened.
        what: String,
    },
    /// It says no.
    #[error("etcd answers {code}: {message}")]
    Refused {
        /// By its code.
        code: Code,
        /// In its words.
        message: String,
    },
}

/// How a connection to an endpoint comes to be.
type Dial = Arc<dyn Fn(&Endpoint) -> Channel + Send + Sync>;

/// A client of the members of one etcd. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct Etcd {
    inner: Arc<Inner>,
}

struct Inner {
    endpoints: Vec<Endpoint>,
    dial: Dial,
    line: Mutex<Line>,
}

/// Whose turn it is, and the connection there.
#[derive(Default)]
struct Line {
    turn: usize,
    channel: Option<Channel>,
}

impl core::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let endpoints = self.inner.endpoints.iter().map(Endpoint::uri);
        f.debug_list().entries(endpoints).finish()
    }
}

impl Etcd {
    /// A client of the members at these addresses (`http://host:port`), which are tried in turn.
    pub fn new<A: AsRef<str>>(endpoints: impl IntoIterator<Item = A>) -> Result<Self, EtcdError> {
        Self::dialling(endpoints, Arc::new(Endpoint::connect_lazy))
    }

    /// The same, over connections of one's own.
    pub(crate) fn dialling<A: AsRef<str>>(
        endpoints: impl IntoIterator<Item = A>,
        dial: Dial,
    ) -> Result<Self, EtcdError> {
        let mut found = Vec::new();
        for address in endpoints {
            let address = address.as_ref();
            let endpoint = Endpoint::from_shared(address.to_owned()).ok();
            let named = endpoint.filter(|endpoint| endpoint.uri().authority().is_some());
            let endpoint = named.ok_or_else(|| EtcdError::Endpoint(address.to_owned()))?;
            found.push(
                endpoint
                    .connect_timeout(PING_WITHIN)
                    .http2_keep_alive_interval(PING_EVERY)
                    .keep_alive_timeout(PING_WITHIN),
            );
        }
        if found.is_empty() {
            return Err(EtcdError::NoEndpoint);
        }
        let inner = Inner { endpoints: found, dial, line: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What is under a key, if anything, as all members agree.
    pub async fn get(&self, key: &str, within: Duration) -> Result<Option<KeyValue>, EtcdError> {
        let range = wire::RangeRequest { key: key.into(), ..wire::RangeRequest::default() };
        let ask = |line| {
            let range = asking(range.clone());
            async { KvClient::new(line).range(range).await }
        };
        Ok(self.call(within, ask).await?.kvs.into_iter().next())
    }

    /// Writes a key, which goes with no lease.
    pub async fn put(&self, key: &str, value: &str, within: Duration) -> Result<(), EtcdError> {
        let put = wire::PutRequest { key: key.into(), value: value.into(), lease: 0 };
        let ask = |line| {
            let put = asking(put.clone());
            async { KvClient::new(line).put(put).await }
        };
        self.call(within, ask).await.map(|_| ())
    }

    /// Does one thing or the other, at once.
    pub async fn txn(
        &self,
        txn: wire::TxnRequest,
        within: Duration,
    ) -> Result<wire::TxnResponse, EtcdError> {
        let ask = |line| {
            let txn = asking(txn.clone());
            async { KvClient::new(line).txn(txn).await }
        };
        self.call(within, ask).await
    }

    /// A new lease of so many seconds.
    pub async fn grant(&self, seconds: u64, within: Duration) -> Result<i64, EtcdError> {
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        let grant = wire::LeaseGrantRequest { ttl, id: 0 };
        let ask = |line| async move { LeaseClient::new(line).lease_grant(asking(grant)).await };
        self.call(within, ask).await.map(|answer| answer.id)
    }

    /// Ends a lease, and all keys that go with it.
    pub async fn revoke(&self, lease: i64, within: Duration) -> Result<(), EtcdError> {
        let revoke = wire::LeaseRevokeRequest { id: lease };
        let ask = |line| async move { LeaseClient::new(line).lease_revoke(asking(revoke)).await };
        self.call(within, ask).await.map(|_| ())
    }

    /// Renews a lease. Returns whether there still is one.
    pub async fn keep_alive(&self, lease: i64, within: Duration) -> Result<bool, EtcdError> {
        let keep = wire::LeaseKeepAliveRequest { id: lease };
        let ask = |line| async move {
            let keep = tokio_stream::once(keep);
            let answers = LeaseClient::new(line).lease_keep_alive(asking(keep)).await?;
            let answer = answers.into_inner().message().await?;
            answer.map(Response::new).ok_or_else(|| Status::unavailable("it said nothing"))
        };
        self.call(within, ask).await.map(|answer| answer.ttl > 0)
    }

    /// Asks one member, and if it cannot answer the next, but each only once.
    async fn call<T, F>(
        &self,
        within: Duration,
        ask: impl Fn(Channel) -> F + Send,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let end = Instant::now() + within;
        let mut last = EtcdError::NoEndpoint;
        for _ in 0..self.inner.endpoints.len() {
            let (turn, channel) = self.line();
            let what = match timeout_at(end, ask(channel)).await {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) if !is_of_the_line(&status) => {
                    let (code, message) = (status.code(), status.message().to_owned());
                    return Err(EtcdError::Refused { code, message });
                }
                Ok(Err(status)) => crate::client::explain(&status),
                Err(_) => format!("nothing came within {within:?}"),
            };
            let endpoint = self.inner.endpoints[turn].uri().to_string();
            last = EtcdError::Silent { endpoint, what };
            self.hang_up(turn);
            if Instant::now() >= end {
                break;
            }
        }
        Err(last)
    }

    /// The connection to whose turn it is.
    fn line(&self) -> (usize, Channel) {
        let mut line = self.lock();
        let turn = line.turn;
        let dial = || (self.inner.dial)(&self.inner.endpoints[turn]);
        (turn, line.channel.get_or_insert_with(dial).clone())
    }

    /// The next one's turn, unless somebody else has noticed before.
    fn hang_up(&self, turn: usize) {
        let mut line = self.lock();
        if line.turn == turn {
            *line = Line { turn: (turn + 1) % self.inner.endpoints.len(), channel: None };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.inner.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn asking<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(NEEDS_LEADER, MetadataValue::from_static("true"));
    request
}

/// Whether another member may answer what this one did not. What is wrong with the question itself
/// is wrong everywhere.
fn is_of_the_line(status: &Status) -> bool {
    !matches!(
        status.code(),
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
    )
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
