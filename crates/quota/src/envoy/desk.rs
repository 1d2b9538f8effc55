//! A task of the fleet that is part of the server, and decides for those who cannot.
//!
//! It has the gate of any task and the same member (`client::member`), whose stream is a channel to
//! the owner of the book. It exists from the first question about its service on.
//!
//! ```text
//! question             open at this criticality?   no: counts as demand, at the mean cost
//!                                                  yes: charges `hit`, if the file says so and
//!                                                  answers do not tell
//! cost of an answer    charged, whatever the gate says: it was used
//!                      not if RLQS has counted the request: then it only tells what they cost
//! ```
//!
//! Between a question and the cost of its answer nothing is charged, so a burst may pass that would
//! not have; what it used is owed and made up for before the next one.
//!
//! **The first question about a customer** finds only what is set aside for tasks without a grant.
//! A refusal therefore has the desk report at once, not at the end of its interval; if it has just
//! reported, as soon as there is something to tell again.
//!
//! **Under a leader that learns** it begins with what it says that it has (`claim`).
//!
//! **When there is no room** for one more task it refuses nobody, and tries again once an interval.

use super::claim::{Claim, GRACE, join};
use super::costs::Costs;
use crate::access::Reporter;
use crate::client::member::{Member, Next};
use crate::config::Service;
use crate::server::grpc::read;
use crate::server::owner::{Opened, Owner};
use crate::server::stream::{Said, StreamId, Words};
use core::time::Duration;
use prost::Message as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::Task;
use tidegate::clock::Clock;
use tidegate::task::BuildError;
use tidegate_core::quota::{QuotaConfig, QuotaLane};
use tidegate_core::{Cost, Criticality, CustomerId};
use tidegate_wire::proto::tidegate::quota::v1::{Directory, TaskMessage};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tonic::Code;

/// What the desk is called among the tasks of its service.
const NAME: &str = "envoy-desk";
/// Reports that a refusal asks for are no more frequent; rates over less would be chance.
const HASTE: Duration = Duration::from_millis(100);
/// Numbers for customers, of which those that were removed keep theirs.
const CUSTOMERS_MIN: usize = 1_024;

/// Decides for one service.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    inner: Arc<Inner>,
    part: tokio::task::AbortHandle,
}

#[derive(Debug)]
struct Inner {
    task: Task,
    /// What a question costs that no answer will tell the cost of.
    hit: Option<Cost>,
    costs: Costs,
    counting: Mutex<Counting>,
    refused: Notify,
}

#[derive(Debug)]
struct Counting {
    lane: QuotaLane,
}

impl Desk {
    /// Takes its place among the tasks of `owner`, on the current runtime, until the desk and all
    /// its clones are gone.
    pub(crate) fn open(
        name: &str,
        service: &Service,
        owner: Owner,
        clock: Clock,
    ) -> Result<Self, BuildError> {
        let mut quota = QuotaConfig::default();
        quota.customers_max = service.fleet.customers_max.max(CUSTOMERS_MIN);
        let task = Task::builder(name).clock(clock).quota(quota).system_signals(false).build()?;
        let lane = task.gate().quota().lane();
        let (hit, costs) = (service.hit, owner.costs.clone());
        let counting = Mutex::new(Counting { lane });
        let inner = Inner { task, hit, costs, counting, refused: Notify::new() };
        let inner = Arc::new(inner);
        let member = Member::new(inner.task.clone(), NAME.to_owned(), 1);
        let part = take_part(Arc::downgrade(&inner), member, owner, service.report_every);
        let part = tokio::spawn(part).abort_handle();
        Ok(Self { inner, part })
    }

    /// Whether it takes part still. One that does not has limits that nobody renews.
    pub(crate) fn is_open(&self) -> bool {
        !self.part.is_finished()
    }

    /// Whether `hits` requests of a customer may pass; if not, in how long to ask again.
    pub(crate) fn ask(
        &self,
        customer: &str,
        criticality: Criticality,
        hits: u64,
    ) -> Result<(), Duration> {
        let inner = &self.inner;
        let each = inner.costs.expect(customer);
        let measured = inner.costs.are_measured(customer);
        let (customer, now) = (inner.task.customer(customer), inner.task.clock().now());
        let mut counting = inner.counting();
        let cost = Cost::from_nanos(each.as_nanos().saturating_mul(hits));
        let open = inner.task.gate().quota().check(customer, criticality, now);
        if open.is_err() {
            counting.lane.refuse(customer, criticality, cost);
            inner.refused.notify_one();
        } else if inner.hit.is_some() && !measured {
            let _ = counting.lane.charge(customer, criticality, cost, now);
        }
        open
    }

    /// An answer to a customer has used so much, as somebody says who is `trusted` for everyone, or
    /// the customer itself. The latter says nothing of what requests cost; where its question was
    /// charged already, only what is beyond that is.
    pub(crate) fn used(&self, customer: &str, criticality: Criticality, cost: Cost, trusted: bool) {
        let inner = &self.inner;
        let (id, now) = (inner.task.customer(customer), inner.task.clock().now());
        let charged = if !trusted && inner.hit.is_some() && !inner.costs.are_measured(customer) {
            inner.costs.expect(customer)
        } else {
            Cost::ZERO
        };
        let rest = Cost::from_nanos(cost.as_nanos().saturating_sub(charged.as_nanos()));
        let _ = inner.counting().lane.charge(id, criticality, rest, now);
        if trusted {
            // Names that nobody has configured are everyone else's.
            inner.costs.told(if id == CustomerId::DEFAULT { "" } else { customer }, cost);
        }
    }
}

impl Inner {
    fn counting(&self) -> MutexGuard<'_, Counting> {
        self.counting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says of `claim` what there is before the member reports anything, and returns the welcome with
/// all that was said until it was told what it gets. Nothing if nobody owns the service any more.
async fn make(
    claim: Claim,
    task: &Task,
    (owner, id): (&Owner, StreamId),
    messages: &mut mpsc::Receiver<Words>,
    every: Duration,
) -> Option<Words> {
    let mut welcome = match messages.recv().await? {
        Ok(welcome) => welcome,
        Err(status) => return Some(Err(status)),
    };
    let directory = Directory::decode(welcome.directory.clone()).unwrap_or_default();
    let report = Some(claim.report(task, directory));
    if !owner.hear(id, Said { report, ..Said::default() }).await {
        return None;
    }
    // It is told with the next round. Who wants nothing is told nothing.
    let told = async {
        while let Some(Ok(next)) = messages.recv().await {
            let told = next.grants.is_some();
            join(&mut welcome, *next);
            if told {
                break;
            }
        }
    };
    let _ = timeout(every * GRACE, told).await;
    Some(Ok(welcome))
}

/// Reports and listens for as long as there is a desk, and an owner.
async fn take_part(
    desk: std::sync::Weak<Inner>,
    mut member: Member,
    owner: Owner,
    every: Duration,
) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = Instant::now();
    // When to report, though the interval is not over.
    let mut hurry: Option<Instant> = None;
    let mut claim = None;
    if owner.status().await.is_some_and(|status| status.learning)
        && let Some(inner) = desk.upgrade()
    {
        let (default, customers) = (owner.service.default, owner.service.customers.iter());
        claim = Some(Claim::begin(&inner.task, default, customers));
        drop(inner);
        sleep(every * GRACE).await;
    }
    loop {
        let Some(hello) = member.hello().hello else { return };
        let Opened { id, mut messages, .. } = match owner.open(hello, Reporter::default()).await {
            Ok(opened) => opened,
            // Nobody owns the service any more, or nobody asks.
            Err(status) if status.code() == Code::Unavailable || desk.strong_count() == 0 => return,
            Err(_) => {
                sleep(every).await;
                continue;
            }
        };
        let mut first = None;
        // Reports of this stream that were not the member's.
        let mut own = 0;
        if let Some(claim) = claim.take() {
            let Some(inner) = desk.upgrade() else { return };
            match make(claim, &inner.task, (&owner, id), &mut messages, every).await {
                Some(Ok(welcome)) => (first, own) = (Some(welcome), 1),
                Some(Err(_)) => continue,
                None => return,
            }
        }
        loop {
            let Some(inner) = desk.upgrade() else {
                // The desk is gone: so is what it held.
                let farewell = TaskMessage { leaves: true, ..TaskMessage::default() };
                if let Ok(said) = read(farewell) {
                    owner.hear(id, said).await;
                }
                return;
            };
            let next = async {
                match first.take() {
                    Some(first) => Some(Ok(first)),
                    None => messages.recv().await,
                }
            };
            let words = tokio::select! {
                biased;
                message = next => match message {
                    Some(Ok(mut message)) => {
                        message.answers = message.answers.saturating_sub(own);
                        match member.hear(&message) {
                            Ok(Next::Say(words)) => words.map(|words| *words),
                            Ok(Next::Resume | Next::Go(_)) | Err(_) => break,
                        }
                    }
                    Some(Err(_)) => break,
                    // Nobody owns the service any more.
                    None => return,
                },
                _ = ticks.tick() => {
                    (reported, hurry) = (Instant::now(), None);
                    member.tick()
                }
                () = inner.refused.notified(), if hurry.is_none() => {
                    hurry = Some(reported + HASTE);
                    continue;
                }
                () = sleep_until(hurry.unwrap_or(reported)), if hurry.is_some() => {
                    (reported, hurry) = (Instant::now(), None);
                    member.tick()
                }
            };
            let words = words.map(|mut words| {
                if let Some(report) = &mut words.report {
                    report.number += own;
                }
                words
            });
            let said = words.map(read);
            if let Some(Ok(said)) = said
                && !owner.hear(id, said).await
            {
                return;
            }
        }
        sleep(HASTE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::server::book::Book;
    use Criticality::Critical;
    use tidegate::clock::Hand;
    use tidegate_wire::proto::tidegate::quota::v1::Hello;

    /// A service with these lines, led by somebody who has nothing to learn.
    fn lead(lines: &str) -> (Service, Owner, Clock, Hand) {
        lead_after(lines, false)
    }

    /// The same by somebody who `learns`.
    fn lead_after(lines: &str, learns: bool) -> (Service, Owner, Clock, Hand) {
        let text = format!("quota:\n  services:\n    search: {lines}\n");
        let service = Config::parse("test.yaml", &text).unwrap().services.remove("search").unwrap();
        let (clock, hand) = Clock::manual();
        let book = Book::new(service.clone(), 1, learns, clock.now()).unwrap();
        let fence = crate::election::fence::Fence::never();
        let owner = Owner::start("search".to_owned(), book, &service, fence, clock.clone());
        (service, owner, clock, hand)
    }

    /// Time passes, for the runtime and for the clock alike.
    async fn pass(hand: &Hand, millis: u64) {
        for _ in 0..millis / 5 {
            hand.advance(Duration::from_millis(5));
            sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_right_after_a_report_is_told_before_the_interval_is_over() {
        let (service, owner, clock, hand) =
            lead("{ default: 1, customers: { bad: 2 }, reports: { every: 20s, round: 10ms } }");
        let desk = Desk::open("search", &service, owner.clone(), clock).unwrap();
        // It reports at 20 s, and is asked 10 ms later.
        pass(&hand, 20_010).await;
        while desk.ask("bad", Critical, 1).is_ok() {
            desk.used("bad", Critical, Cost::from_millis(10), true);
        }
        let demand = async || {
            let customers = owner.status().await.unwrap().customers;
            customers.iter().find(|customer| customer.name == "bad").unwrap().demand.clone()
        };
        assert_eq!(demand().await, [0; 0]);
        pass(&hand, 150).await;
        assert!(demand().await[2] > 0, "{:?}", demand().await);
    }

    /// Half of its limit for as long as the leader learns, and longer.
    #[tokio::test(start_paused = true)]
    async fn nobody_is_refused_by_an_election_who_is_within_its_limit() {
        let (service, owner, clock, hand) =
            lead_after("{ default: 1, customers: { good: 2, bad: 1 } }", true);
        let desk = Desk::open("search", &service, owner.clone(), clock).unwrap();
        let (mut refused, mut served) = (0, 0);
        for _ in 0..130 * 20 {
            for _ in 0..5 {
                match desk.ask("good", Critical, 1) {
                    Ok(()) => desk.used("good", Critical, Cost::from_millis(10), true),
                    Err(_) => refused += 1,
                }
            }
            for _ in 0..20 {
                if desk.ask("bad", Critical, 1).is_ok() {
                    desk.used("bad", Critical, Cost::from_millis(10), true);
                    served += 1;
                }
            }
            pass(&hand, 50).await;
        }
        assert_eq!(refused, 0);
        // Within a tenth of its limit over all that time, with the burst that it has saved.
        let used = f64::from(served) * 0.01 / 130.0;
        assert!((0.7..1.1).contains(&used), "{used} of 1 CPU");
        assert!(!owner.status().await.unwrap().learning);
    }

    #[tokio::test(start_paused = true)]
    async fn a_desk_that_found_no_room_takes_its_place_when_there_is_some() {
        let (service, owner, clock, hand) =
            lead("{ default: 1, customers: { good: 2 }, sizes: { tasks: 1 } }");
        let hello = Hello { service: "search".into(), task: "first".into(), ..Hello::default() };
        let first = owner.open(hello, Reporter::default()).await.unwrap();
        let desk = Desk::open("search", &service, owner.clone(), clock).unwrap();
        pass(&hand, 5_000).await;
        assert_eq!(desk.inner.task.customer("good"), CustomerId::DEFAULT, "it knows nobody");
        owner
            .hear(first.id, read(TaskMessage { leaves: true, ..TaskMessage::default() }).unwrap())
            .await;
        pass(&hand, 5_000).await;
        assert_ne!(desk.inner.task.customer("good"), CustomerId::DEFAULT);
        assert!(desk.ask("good", Critical, 1).is_ok());
    }
}
