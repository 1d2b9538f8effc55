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
    Stop(oneshot::Sender<wire::ServiceStatus>),
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

/// What is owned.
struct Owned {
    name: String,
    book: Book,
    costs: Costs,
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
        let costs = Costs::new(service.hit, service.fleet.customers_max);
        costs.name(book.named());
        let owned = Owned { name, book, costs: costs.clone() };
        tokio::spawn(own(owned, inbox, every, reign));
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

    /// Another file.
    pub(crate) async fn reload(&self, service: Service) {
        let _ = self.orders.send(Order::Reload(Box::new(service))).await;
    }

    /// Limits of the server above.
    pub(crate) async fn provide(&self, provided: Provided) {
        let _ = self.orders.send(Order::Provide(provided)).await;
    }

    /// Ends it, and all streams. Returns how things stood when nobody was heard or told anything
    /// any more; nothing if it had ended before.
    pub(crate) async fn stop(&self) -> Option<wire::ServiceStatus> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::Stop(reply)).await.ok()?;
        answer.await.ok()
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
    mut owned: Owned,
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
                let book = &mut owned.book;
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
                None => return,
                Some(Order::Stop(reply)) => {
                    let Owned { name, book, .. } = owned;
                    let status = book.status(&name);
                    drop(book);
                    let _ = reply.send(status);
                    return;
                }
                Some(order) => obey(&mut owned, order, &reign),
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

fn obey(owned: &mut Owned, order: Order, reign: &Reign) {
    let Owned { name, book, costs } = owned;
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
        // Whom the file names counts until the server above of a zone has named others.
        Order::Reload(service) => {
            book.reload(*service);
            costs.name(book.named());
        }
        Order::Provide(provided) => {
            book.provide(provided);
            costs.name(book.named());
        }
        // Whoever reads orders has ended by then.
        Order::Stop(_) => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::collections::BTreeMap;
    use tidegate_core::Cost;
    use tidegate_core::fleet::Limits;

    fn service(customers: &str) -> Service {
        let text = format!(
            "quota: {{ services: {{ search: {{ default: 1, customers: {{ {customers} }} }} }} }}"
        );
        Config::parse("test.yaml", &text).unwrap().services.remove("search").unwrap()
    }

    fn owner() -> Owner {
        let (service, clock) = (service("a: 1"), Clock::monotonic());
        let book = Book::new(service.clone(), 7, false, clock.now()).unwrap();
        Owner::start("search".to_owned(), book, &service, Fence::never(), clock)
    }

    /// Whether answers to this customer are averaged by themselves. That of one whom nobody names
    /// is one of everyone else.
    fn is_named(owner: &Owner, customer: &str) -> bool {
        let costs = Costs::clone(&owner.costs);
        assert!(!costs.are_measured(""), "of each customer once, and nobody before");
        costs.told(customer, Cost::from_millis(5));
        !costs.are_measured("")
    }

    /// Whoever came before the end was let in, and may be using something.
    #[tokio::test]
    async fn what_an_owner_says_at_its_end_knows_of_all_who_were_let_in() {
        let owner = owner();
        let hello = wire::Hello { task: "t".to_owned(), ..wire::Hello::default() };
        let open = || owner.open(hello.clone(), Reporter::default());
        let (opened, stood) = tokio::join!(open(), owner.stop());
        let mut opened = opened.unwrap();
        assert_eq!(stood.unwrap().tasks, 1);
        while opened.messages.try_recv().is_ok() {}
        assert!(opened.messages.is_closed(), "by then all streams have ended");
        assert!(open().await.is_err());
        assert_eq!(owner.stop().await, None);
    }

    #[tokio::test]
    async fn costs_are_kept_of_those_whom_the_file_names_until_the_server_above_names_others() {
        let owner = owner();
        assert!(is_named(&owner, "a"));
        owner.reload(service("a: 1, b: 1")).await;
        let _ = owner.status().await;
        assert!(is_named(&owner, "b"), "nobody above has said anything");
        let limits = Limits::UNLIMITED;
        let customers = BTreeMap::from([("c".to_owned(), limits)]);
        owner.provide(Provided { default: limits, customers }).await;
        let _ = owner.status().await;
        assert!(is_named(&owner, "c"));
        owner.reload(service("a: 1, b: 1, d: 1")).await;
        let _ = owner.status().await;
        assert!(!is_named(&owner, "d"), "the file has no say any more");
    }
}
