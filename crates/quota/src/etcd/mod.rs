//! A thin client of etcd v3: what an election and a configuration need, and no more.
//!
//! One connection at a time. A member that does not answer in time, or says that it cannot (it has
//! no leader, it ends), makes way for the next of the list, for all calls. Every call has a
//! deadline, and asks the member to refuse at once while it knows no leader. What was asked of one
//! that did not answer may have been done: callers must be able to ask again.
//!
//! An etcd that asks who one is is shown a certificate, or the token of a user. Tokens end by
//! themselves and with the member that gave them: a call that is refused for its token asks for
//! another, once. The password is in a file, which is read each time.
//!
//! A keep-alive is a stream of its own for one question and one answer: twice a second that costs
//! nothing, and there is no stream to watch over.

mod watch;

use crate::link::{Alert, Link, refusal};
use core::time::Duration;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_tls::{ClientOptions, News, Pem};
use tidegate_wire::proto::etcdserverpb as wire;
use tidegate_wire::proto::etcdserverpb::auth_client::AuthClient;
use tidegate_wire::proto::etcdserverpb::kv_client::KvClient;
use tidegate_wire::proto::etcdserverpb::lease_client::LeaseClient;
use tidegate_wire::proto::mvccpb::KeyValue;
use tokio::time::{Instant, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

/// Connections that lead nowhere are noticed. etcd hangs up on whoever asks more often than every
/// five seconds.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_WITHIN: Duration = Duration::from_secs(3);
/// Asks a member to refuse while it knows no leader.
const NEEDS_LEADER: &str = "hasleader";

/// Who asks, for an etcd that wants to know.
const TOKEN: &str = "token";

/// How rustls begins to say that it does not believe the other end. By its words, as layers in
/// between keep nothing else of an error.
const DOUBT: &str = "invalid peer certificate: ";

/// Why etcd did not do it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// There is nobody to ask.
    #[error("there are no endpoints of etcd; at least one, such as http://etcd-1:2379")]
    NoEndpoint,
    /// Certificates cannot be used.
    #[error("{0}")]
    Tls(String),
    /// The password cannot be read.
    #[error("the password of etcd's user {user} cannot be read from {path}: {why}")]
    Password {
        /// Whose.
        user: String,
        /// Where it should be.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
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
    /// Certificates do not lead to an agreement.
    #[error("{what}: {why}; {next}")]
    Certificates {
        /// Whose, shown to whom.
        what: String,
        /// In the words of TLS.
        why: String,
        /// What to do about it.
        next: &'static str,
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

/// A user of etcd's.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdUser {
    /// Its name.
    pub name: String,
    /// Where its password is; blanks and the end of the line do not count.
    pub password_file: PathBuf,
}

impl EtcdUser {
    /// Whose password is in this file.
    pub fn new(name: impl Into<String>, password_file: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), password_file: password_file.into() }
    }
}

/// The token of a user, if there is one.
type Token = Option<MetadataValue<Ascii>>;

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
    user: Option<EtcdUser>,
    /// What is shown to members.
    shown: Option<Pem>,
    /// What is wrong with files of certificates that have changed.
    files: Arc<Mutex<Option<String>>>,
    /// Why members have refused us last.
    alert: Alert,
    line: Mutex<Line>,
}

/// Whose turn it is, and the connection there.
#[derive(Default)]
struct Line {
    turn: usize,
    channel: Option<Channel>,
    /// What that member takes the user by.
    token: Token,
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
        Self::secured(endpoints, None, None)
    }

    /// The same by TLS, at addresses with `https://`, and as a user.
    pub fn secured<A: AsRef<str>>(
        endpoints: impl IntoIterator<Item = A>,
        tls: Option<ClientOptions>,
        user: Option<EtcdUser>,
    ) -> Result<Self, EtcdError> {
        let shown = tls.as_ref().and_then(|tls| tls.identity.as_ref());
        let shown = shown.map(|identity| identity.certificates.clone());
        let files = Arc::<Mutex<_>>::default();
        let told = Arc::clone(&files);
        let tell = move |news: News| {
            *told.lock().unwrap_or_else(PoisonError::into_inner) = refusal(&news);
        };
        let link = Link::new(tls, tell).map_err(|error| EtcdError::Tls(error.to_string()))?;
        let alert = link.alert();
        let mut etcd = Self::dialling(endpoints, Arc::new(move |at| link.connect_lazy(at)))?;
        if let Some(inner) = Arc::get_mut(&mut etcd.inner) {
            (inner.user, inner.shown) = (user, shown);
            (inner.files, inner.alert) = (files, alert);
        }
        Ok(etcd)
    }

    /// What is wrong with files of certificates that have changed, if anything: those from before
    /// are shown until then.
    pub fn refused_files(&self) -> Option<String> {
        self.inner.files.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let inner = Inner {
            endpoints: found,
            dial,
            user: None,
            shown: None,
            files: Arc::default(),
            alert: Alert::default(),
            line: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What is under a key, if anything, as all members agree.
    pub async fn get(&self, key: &str, within: Duration) -> Result<Option<KeyValue>, EtcdError> {
        let range = wire::RangeRequest { key: key.into(), ..wire::RangeRequest::default() };
        let ask = |line, token| {
            let range = asking(range.clone(), token);
            async { KvClient::new(line).range(range).await }
        };
        Ok(self.call(within, ask).await?.kvs.into_iter().next())
    }

    /// Writes a key, which goes with no lease.
    pub async fn put(&self, key: &str, value: &str, within: Duration) -> Result<(), EtcdError> {
        let put = wire::PutRequest { key: key.into(), value: value.into(), lease: 0 };
        let ask = |line, token| {
            let put = asking(put.clone(), token);
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
        let ask = |line, token| {
            let txn = asking(txn.clone(), token);
            async { KvClient::new(line).txn(txn).await }
        };
        self.call(within, ask).await
    }

    /// A new lease of so many seconds.
    pub async fn grant(&self, seconds: u64, within: Duration) -> Result<i64, EtcdError> {
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        let grant = wire::LeaseGrantRequest { ttl, id: 0 };
        let ask = |line, token| async move {
            LeaseClient::new(line).lease_grant(asking(grant, token)).await
        };
        self.call(within, ask).await.map(|answer| answer.id)
    }

    /// Ends a lease, and all keys that go with it.
    pub async fn revoke(&self, lease: i64, within: Duration) -> Result<(), EtcdError> {
        let revoke = wire::LeaseRevokeRequest { id: lease };
        let ask = |line, token| async move {
            LeaseClient::new(line).lease_revoke(asking(revoke, token)).await
        };
        self.call(within, ask).await.map(|_| ())
    }

    /// Renews a lease. Returns whether there still is one.
    pub async fn keep_alive(&self, lease: i64, within: Duration) -> Result<bool, EtcdError> {
        let keep = wire::LeaseKeepAliveRequest { id: lease };
        let ask = |line, token| async move {
            let keep = tokio_stream::once(keep);
            let answers = LeaseClient::new(line).lease_keep_alive(asking(keep, token)).await?;
            let answer = answers.into_inner().message().await?;
            answer.map(Response::new).ok_or_else(|| Status::unavailable("it said nothing"))
        };
        self.call(within, ask).await.map(|answer| answer.ttl > 0)
    }

    /// Asks one member, and if it cannot answer the next, but each only once.
    async fn call<T, F>(
        &self,
        within: Duration,
        ask: impl Fn(Channel, Token) -> F + Send,
    ) -> Result<T, EtcdError>
    where
        F: Future<Output = Result<Response<T>, Status>> + Send,
    {
        let end = Instant::now() + within;
        let mut last = EtcdError::NoEndpoint;
        let (mut asked, mut fresh) = (0, false);
        while asked < self.inner.endpoints.len() {
            let (turn, channel, token) = self.line();
            let answer = timeout_at(end, async {
                let token = match (&self.inner.user, token) {
                    (Some(user), None) => Some(self.sign_in(user, turn, channel.clone()).await?),
                    (_, token) => token,
                };
                Ok::<_, EtcdError>(ask(channel, token).await)
            });
            let what = match answer.await {
                Ok(Ok(Ok(answer))) => return Ok(answer.into_inner()),
                Ok(Err(error @ EtcdError::Password { .. })) => return Err(error),
                Ok(Err(EtcdError::Refused { code, message })) => {
                    return Err(EtcdError::Refused { code, message });
                }
                Ok(Err(error)) => error.to_string(),
                // Tokens end: it is asked for another, once.
                Ok(Ok(Err(status))) if self.is_of_the_token(&status) && !fresh => {
                    fresh = true;
                    self.forget_token(turn);
                    continue;
                }
                Ok(Ok(Err(status))) if !is_of_the_line(&status) => {
                    let (code, message) = (status.code(), status.message().to_owned());
                    return Err(EtcdError::Refused { code, message });
                }
                Ok(Ok(Err(status))) => crate::client::explain(&status),
                Err(_) => format!("nothing came within {within:?}"),
            };
            asked += 1;
            last = self.silent(turn, what);
            self.hang_up(turn);
            if Instant::now() >= end {
                break;
            }
        }
        Err(last)
    }

    /// A member has not answered, for this reason. That of certificates is one which somebody has
    /// to do something about.
    fn silent(&self, turn: usize, what: String) -> EtcdError {
        let endpoint = self.inner.endpoints[turn].uri().to_string();
        let doubted = what.find(DOUBT).map(|at| what[at..].to_owned());
        let (what, why, next) = match (self.inner.alert.said(), doubted, &self.inner.shown) {
            (Some(why), _, Some(shown)) => {
                let shown = match shown {
                    Pem::File(path) => format!("the certificate in {}", path.display()),
                    Pem::Text(_) => "the certificate it is shown".to_owned(),
                };
                let what = format!("etcd at {endpoint} refuses {shown}");
                let next = "its root has to be in etcd's --trusted-ca-file, and it has to be valid \
                            still; or name another in `election.tls.cert` and `.key`";
                (what, why, next)
            }
            (Some(why), _, None) => {
                let what = format!("etcd at {endpoint} wants a certificate and is shown none");
                (what, why, "name one in `election.tls.cert` and `.key`")
            }
            (None, Some(why), _) => {
                let what = format!("the certificate of etcd at {endpoint} is not believed");
                let next = "name its root in `election.tls.ca`, and the endpoint as its \
                            certificate does";
                (what, why, next)
            }
            (None, None, _) => return EtcdError::Silent { endpoint, what },
        };
        EtcdError::Certificates { what, why, next }
    }

    /// The user's token at the member whose turn it is.
    async fn sign_in(
        &self,
        user: &EtcdUser,
        turn: usize,
        channel: Channel,
    ) -> Result<MetadataValue<Ascii>, EtcdError> {
        let unread = |why: String| EtcdError::Password {
            user: user.name.clone(),
            path: user.password_file.clone(),
            why,
        };
        let read = std::fs::read_to_string(&user.password_file);
        let password = read.map_err(|error| unread(error.to_string()))?.trim().to_owned();
        let asked = wire::AuthenticateRequest { name: user.name.clone(), password };
        let answer = AuthClient::new(channel).authenticate(asking(asked, None)).await;
        let endpoint = || self.inner.endpoints[turn].uri().to_string();
        let silent = |what: String| EtcdError::Silent { endpoint: endpoint(), what };
        let answer = answer.map_err(|status| {
            if is_of_the_line(&status) {
                return silent(crate::client::explain(&status));
            }
            let (code, message) = (status.code(), status.message().to_owned());
            EtcdError::Refused { code, message }
        })?;
        let token = MetadataValue::try_from(answer.into_inner().token);
        let token = token.map_err(|_| silent("its token cannot be sent".to_owned()))?;
        let mut line = self.lock();
        if line.turn == turn {
            line.token = Some(token.clone());
        }
        Ok(token)
    }

    /// Whether a call was refused for its token: it has none, one that has ended, or one from
    /// before rights were changed.
    fn is_of_the_token(&self, status: &Status) -> bool {
        let words = ["user name is empty", "revision in header is old"];
        self.inner.user.is_some()
            && (status.code() == Code::Unauthenticated
                || words.iter().any(|words| status.message().contains(words)))
    }

    fn forget_token(&self, turn: usize) {
        let mut line = self.lock();
        if line.turn == turn {
            line.token = None;
        }
    }

    /// The connection to whose turn it is.
    fn line(&self) -> (usize, Channel, Token) {
        let mut line = self.lock();
        let (turn, token) = (line.turn, line.token.clone());
        let dial = || (self.inner.dial)(&self.inner.endpoints[turn]);
        (turn, line.channel.get_or_insert_with(dial).clone(), token)
    }

    /// The next one's turn, unless somebody else has noticed before.
    fn hang_up(&self, turn: usize) {
        let mut line = self.lock();
        if line.turn == turn {
            *line = Line { turn: (turn + 1) % self.inner.endpoints.len(), ..Line::default() };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.inner.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn asking<T>(message: T, token: Token) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(NEEDS_LEADER, MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert(TOKEN, token);
    }
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
