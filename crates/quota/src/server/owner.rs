//! Who owns a book: one task of the runtime, which everyone else writes to.
//!
//! A book is plain and takes `&mut self`. Its owner reads orders from a channel of fixed size and
//! ends a round whenever it is time. If orders come faster than it can follow, senders wait, each
//! stream by itself, and the peers behind them by the flow control of HTTP/2; rounds go on.
//!
//! Rounds are done step by step, when [`Pace`] says so, with orders between the steps.
//!
//! Before each order and each round it looks whether the reign still lasts. If not, nobody is heard
//! or told anything, and all streams end; the book stays, in case the reign turns out to go on.

use super::book::{Book, Provided, Rounds};
use super::stream::{BACKLOG, Said, StreamId, Words};
use crate::access::Reporter;
use crate::config::Service;
use crate::election::fence::Fence;
use crate::envoy::costs::Costs;
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate::clock::Clock;
use tidegate_core::Timestamp;
use tidegate_core::fleet::{Joins, Pace};
use tidegate_wire::proto::tidegate::quota::v1 as wire;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Status;

/// Orders that wait. A few for each stream that is being read; more would only make what they say
/// older.
const ORDERS: usize = 256;
/// A task's new stream.
pub(crate) struct Opened {
    pub(crate) id: StreamId,
    pub(crate) messages: mpsc::Receiver<Words>,
    /// To end it with something that is wrong.
    pub(crate) out: mpsc::WeakSender<Words>,
}

enum Order {
    Open(wire::Hello, Reporter, oneshot::Sender<Result<Opened, Status>>),
    Hear(StreamId, Said),
    Close(StreamId),
    Reload(Box<Service>),
    Provide(Provided),
    Stop,
    Status(oneshot::Sender<(wire::ServiceStatus, Rounds)>),
}

/// Writes to the owner of a book. When it is stopped, or the last of these is gone, the owner ends,
/// and all its streams with it.
#[derive(Debug, Clone)]
pub(crate) struct Owner {
    orders: mpsc::Sender<Order>,
    /// As it was when the owner began; limits change, the rest does not.
    pub(crate) service: Arc<Service>,
    /// What requests cost that Envoys count.
    pub(crate) costs: Costs,
    /// What of it may still be sent.
    pub(crate) fence: Fence,
    joins: Arc<Mutex<Joins>>,
}

/// For how long the book counts.
struct Reign {
    fence: Fence,
    clock: Clock,
}

impl Owner {
    /// Has the book owned by the current runtime.
    pub(crate) fn start(
        name: String,
        book: Book,
        service: &Service,
        fence: Fence,
        clock: Clock,
    ) -> Self {
        let (orders, inbox) = mpsc::channel(ORDERS);
        let every = (service.round_every, service.report_every);
        let reign = Reign { fence: fence.clone(), clock };
        tokio::spawn(own(name, book, inbox, every, reign));
        let costs = Costs::new(service.hit, service.fleet.customers_max);
        costs.name(service.customers.keys());
        Self { orders, service: Arc::new(service.clone()), costs, fence, joins: Arc::default() }
    }

    /// Whoever comes from elsewhere waits here for its turn to open a stream.
    pub(crate) async fn turn(&self, now: Timestamp) -> Result<(), Status> {
        let turn = self.joins.lock().unwrap_or_else(PoisonError::into_inner).turn(now);
        let wait = turn.map_err(|crowd| Status::unavailable(crowd.to_string()))?;
        if !wait.is_zero() {
            sleep(wait).await;
        }
        Ok(())
    }

    /// For somebody who may.
    pub(crate) async fn open(
        &self,
        hello: wire::Hello,
        reporter: Reporter,
    ) -> Result<Opened, Status> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::Open(hello, reporter, reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// Returns whether anybody listened.
    pub(crate) async fn hear(&self, of: StreamId, said: Said) -> bool {
        self.orders.send(Order::Hear(of, said)).await.is_ok()
    }

    pub(crate) async fn close(&self, of: StreamId) {
        let _ = self.orders.send(Order::Close(of)).await;
    }

    /// Another file. That of a zone names nobody once the server above was heard of.
    pub(crate) async fn reload(&self, service: Service, of_a_zone: bool) {
        if !of_a_zone {
            self.costs.name(service.customers.keys());
        }
        let _ = self.orders.send(Order::Reload(Box::new(service))).await;
    }

    /// Limits of the server above.
    pub(crate) async fn provide(&self, provided: Provided) {
        self.costs.name(provided.customers.keys());
        let _ = self.orders.send(Order::Provide(provided)).await;
    }

    pub(crate) async fn stop(&self) {
        let _ = self.orders.send(Order::Stop).await;
    }

    pub(crate) async fn status(&self) -> Option<wire::ServiceStatus> {
        self.stand().await.map(|(status, _)| status)
    }

    /// How things stand, and after how many rounds.
    pub(crate) async fn stand(&self) -> Option<(wire::ServiceStatus, Rounds)> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::Status(reply)).await.ok()?;
        answer.await.ok()
    }
}

fn gone() -> Status {
    Status::unavailable("the service is no longer configured here, or no longer led")
}

async fn own(
    name: String,
    mut book: Book,
    mut inbox: mpsc::Receiver<Order>,
    (round_every, report_every): (Duration, Duration),
    reign: Reign,
) {
    let mut pace = Pace::new(round_every, report_every);
    let (mut began, mut done, mut steps) = (Instant::now(), 0, 0);
    let next = sleep_until(began);
    tokio::pin!(next);
    loop {
        tokio::select! {
            biased;
            () = &mut next => {
                let start = Instant::now();
                let mut more = false;
                if !book.is_amid() {
                    (began, done) = (start, 0);
                }
                match reign.now() {
                    None => book.end_streams(),
                    Some(now) => {
                        if !book.is_amid() {
                            book.save_messages(pace.is_busy());
                            steps = book.begin(now, wall());
                        }
                        more = book.step(now);
                    }
                }
                done += 1;
                let end = Instant::now();
                let (took, since) = (end - start, end - began);
                let pause = if more {
                    pace.step(took, since, done, steps)
                } else {
                    pace.end(took, since)
                };
                next.as_mut().reset(end + pause);
            }
            order = inbox.recv() => match order {
                None | Some(Order::Stop) => return,
                Some(order) => obey(&name, &mut book, order, &reign),
            },
        }
    }
}

impl Reign {
    /// The time, if the reign lasts.
    fn now(&self) -> Option<Timestamp> {
        let now = self.clock.now();
        self.fence.is_open(now).then_some(now)
    }
}

fn obey(name: &str, book: &mut Book, order: Order, reign: &Reign) {
    match order {
        Order::Open(hello, reporter, reply) => {
            let (out, messages) = mpsc::channel(BACKLOG);
            let weak = out.downgrade();
            let opened = reign
                .now()
                .ok_or_else(gone)
                .and_then(|now| book.open_for(&hello, &reporter, out, now));
            let _ = reply.send(opened.map(|id| Opened { id, messages, out: weak }));
        }
        Order::Hear(of, said) => match reign.now() {
            Some(now) => book.hear(of, &said, now),
            None => book.end_streams(),
        },
        Order::Close(of) => book.close(of),
        Order::Reload(service) => book.reload(*service),
        Order::Provide(provided) => book.provide(provided),
        // Whoever reads orders has ended by then.
        Order::Stop => {}
        Order::Status(reply) => {
            let _ = reply.send((book.status(name), book.rounds()));
        }
    }
}

/// Milliseconds since 1970, for people.
fn wall() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
