//! Load that does not wait for answers.
//!
//! Requests start at times that were drawn beforehand, whatever became of the ones before, and
//! their latency counts from then: what a request waits for a connection, or for this process, it
//! waits. At the deadline the caller gives up and closes the connection, as callers do; the server
//! may not notice.

use crate::Outcome;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate::Criticality;
use tidegate_core::rng::{Rng, SeededRng};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep_until, timeout_at};

pub(crate) const DEADLINE: Duration = Duration::from_secs(1);

/// Connections that are there from the start.
pub(crate) const CONNECTIONS: usize = 256;
/// What ten times a capacity of 200 a second needs if nobody is answered within the deadline,
/// doubled.
const CONNECTIONS_MAX: usize = 4_096;

/// Percent of all requests, highest criticality first.
const MIX: [(Criticality, u64); 4] = [
    (Criticality::CriticalPlus, 10),
    (Criticality::Critical, 40),
    (Criticality::SheddablePlus, 30),
    (Criticality::Sheddable, 20),
];

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A 200 within the deadline.
    Good,
    /// An answer that says no.
    Refused,
    /// Nothing within the deadline.
    Late,
    /// No connection, or one that broke, or another answer.
    Failed,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) criticality: Criticality,
    /// When it was to start, in seconds since the phase began.
    pub(crate) start: f64,
    /// Seconds since then.
    pub(crate) latency: f64,
    pub(crate) end: End,
}

/// How many answers there were.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answers {
    /// 200.
    pub(crate) good: u64,
    pub(crate) others: u64,
}

/// A connection, which is closed when this is dropped.
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driver: AbortHandle,
    pool: Arc<Mutex<Pool>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
        lock(&self.pool).open -= 1;
    }
}

#[derive(Default)]
struct Pool {
    idle: Vec<Connection>,
    open: usize,
}

fn lock(pool: &Mutex<Pool>) -> std::sync::MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Callers of one server.
#[derive(Clone)]
pub(crate) struct Load {
    address: SocketAddr,
    pool: Arc<Mutex<Pool>>,
}

impl Load {
    pub(crate) async fn new(address: SocketAddr, connections: usize) -> Outcome<Self> {
        let load = Self { address, pool: Arc::default() };
        for _ in 0..connections {
            let connection = load.connect().await?;
            load.put_back(connection);
        }
        Ok(load)
    }

    /// Closes what is idle.
    pub(crate) fn close(&self) {
        // Dropped when the pool is free again: each takes itself off the count.
        let idle = std::mem::take(&mut lock(&self.pool).idle);
        drop(idle);
    }

    async fn connect(&self) -> Outcome<Connection> {
        {
            let mut pool = lock(&self.pool);
            if pool.open >= CONNECTIONS_MAX {
                return Err("there are too many connections".into());
            }
            pool.open += 1;
        }
        let opened = Opening(&self.pool);
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async {
            // Whoever asks is told.
            let _ = connection.await;
        });
        std::mem::forget(opened);
        let (driver, pool) = (driver.abort_handle(), Arc::clone(&self.pool));
        Ok(Connection { sender, driver, pool })
    }

    fn put_back(&self, connection: Connection) {
        lock(&self.pool).idle.push(connection);
    }

    async fn connection(&self) -> Outcome<Connection> {
        loop {
            let idle = lock(&self.pool).idle.pop();
            let Some(mut connection) = idle else { return self.connect().await };
            if connection.sender.ready().await.is_ok() {
                return Ok(connection);
            }
        }
    }

    async fn ask(&self, criticality: Criticality) -> Outcome<StatusCode> {
        let mut connection = self.connection().await?;
        let request = Request::get("/")
            .header("host", "localhost")
            .header("x-criticality", criticality.name())
            .body(Empty::new())?;
        let answer = connection.sender.send_request(request).await?;
        let status = answer.status();
        answer.into_body().collect().await?;
        self.put_back(connection);
        Ok(status)
    }

    /// `callers` ask again as soon as they are answered, for `duration`.
    pub(crate) async fn closed(&self, callers: usize, duration: Duration) -> Outcome<Answers> {
        let until = Instant::now() + duration;
        let callers: Vec<JoinHandle<Outcome<Answers>>> = (0..callers)
            .map(|_| {
                let load = self.clone();
                tokio::spawn(async move {
                    let mut answers = Answers::default();
                    while Instant::now() < until {
                        match load.ask(Criticality::Critical).await? {
                            StatusCode::OK => answers.good += 1,
                            _ => answers.others += 1,
                        }
                    }
                    Ok(answers)
                })
            })
            .collect();
        let mut answers = Answers::default();
        for caller in callers {
            let Answers { good, others } = caller.await??;
            answers.good += good;
            answers.others += others;
        }
        Ok(answers)
    }

    /// `rate` requests a second on average, for `seconds` from `begin` on. Returns when the last
    /// has been sent.
    pub(crate) async fn open(
        &self,
        rate: f64,
        seconds: f64,
        begin: Instant,
        rng: &mut SeededRng,
    ) -> Vec<JoinHandle<Answer>> {
        let mut answers = Vec::with_capacity((rate * seconds * 1.2) as usize);
        let mut at = 0.0;
        loop {
            // Of times between events of a Poisson process.
            at -= (1.0 - rng.unit()).ln() / rate;
            if at >= seconds {
                break;
            }
            let criticality = draw(rng);
            let start = begin + Duration::from_secs_f64(at);
            if start > Instant::now() {
                sleep_until(start).await;
            }
            let load = self.clone();
            answers.push(tokio::spawn(async move {
                let end = match timeout_at(start + DEADLINE, load.ask(criticality)).await {
                    Ok(Ok(StatusCode::OK)) => End::Good,
                    Ok(Ok(
                        StatusCode::SERVICE_UNAVAILABLE
                        | StatusCode::TOO_MANY_REQUESTS
                        | StatusCode::GATEWAY_TIMEOUT,
                    )) => End::Refused,
                    Ok(_) => End::Failed,
                    Err(_) => End::Late,
                };
                let latency = start.elapsed().as_secs_f64();
                Answer { criticality, start: at, latency, end }
            }));
        }
        sleep_until(begin + Duration::from_secs_f64(seconds)).await;
        answers
    }
}

/// A connection on its way, taken off the count if it does not come.
struct Opening<'a>(&'a Mutex<Pool>);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        lock(self.0).open -= 1;
    }
}

fn draw(rng: &mut SeededRng) -> Criticality {
    let mut left = rng.below(100);
    for (criticality, percent) in MIX {
        if left < percent {
            return criticality;
        }
        left -= percent;
    }
    Criticality::Sheddable
}
