//! A task of the fleet that is part of the server, and decides for those who cannot.
//!
//! It has the gate of any task and the same member (`client::member`), whose stream is a channel to
//! the owner of the book. It exists from the first question about its service on.
//!
//! ```text
//! question             open at this criticality?   no: counts as demand, at the mean cost
//!                                                  yes: charges `hit`, if the file says so
//! cost of an answer    charged, whatever the gate says: it was used
//! ```
//!
//! Between a question and the cost of its answer nothing is charged, so a burst may pass that would
//! not have; what it used is owed and made up for before the next one.
//!
//! **The first question about a customer** finds only what is set aside for tasks without a grant.
//! A refusal therefore has the desk report at once, not at the end of its interval.

use crate::client::member::{Member, Next};
use crate::config::Service;
use crate::server::grpc::read;
use crate::server::owner::{Opened, Owner};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::Task;
use tidegate::clock::Clock;
use tidegate::task::BuildError;
use tidegate_core::quota::{QuotaConfig, QuotaLane};
use tidegate_core::{Cost, Criticality, CustomerId};
use tidegate_wire::proto::tidegate::quota::v1::TaskMessage;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// What the desk is called among the tasks of its service.
const NAME: &str = "envoy-desk";
/// Reports that a refusal asks for are no more frequent; rates over less would be chance.
const HASTE: Duration = Duration::from_millis(100);
/// Until the first answer has told its cost.
const COST_GUESS: Cost = Cost::from_millis(1);
/// The weight of the latest answer in the mean: some thirty are remembered.
const MEAN_WEIGHT: f64 = 1.0 / 32.0;
/// Numbers for customers, of which those that were removed keep theirs.
const CUSTOMERS_MIN: usize = 1_024;

/// Decides for one service.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    task: Task,
    /// What a question costs that no answer will tell the cost of.
    hit: Option<Cost>,
    counting: Mutex<Counting>,
    refused: Notify,
}

#[derive(Debug)]
struct Counting {
    lane: QuotaLane,
    /// Mean cost of answers in nanoseconds, by customer.
    means: BTreeMap<CustomerId, f64>,
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
        quota.customers_max = (2 * service.customers.len()).max(CUSTOMERS_MIN);
        let task = Task::builder(name).clock(clock).quota(quota).system_signals(false).build()?;
        let lane = task.gate().quota().lane();
        let counting = Mutex::new(Counting { lane, means: BTreeMap::new() });
        let inner = Inner { task, hit: service.hit, counting, refused: Notify::new() };
        let desk = Self { inner: Arc::new(inner) };
        let member = Member::new(desk.inner.task.clone(), NAME.to_owned(), 1);
        tokio::spawn(take_part(Arc::downgrade(&desk.inner), member, owner, service.report_every));
        Ok(desk)
    }

    /// Whether `hits` requests of a customer may pass; if not, in how long to ask again.
    pub(crate) fn ask(
        &self,
        customer: &str,
        criticality: Criticality,
        hits: u64,
    ) -> Result<(), Duration> {
        let inner = &self.inner;
        let (customer, now) = (inner.task.customer(customer), inner.task.clock().now());
        let mut counting = inner.counting();
        let each = inner.hit.unwrap_or_else(|| {
            let mean = counting.means.get(&customer);
            mean.map_or(COST_GUESS, |mean| Cost::from_nanos(*mean as u64))
        });
        let cost = Cost::from_nanos(each.as_nanos().saturating_mul(hits));
        let open = inner.task.gate().quota().check(customer, criticality, now);
        if open.is_err() {
            counting.lane.refuse(customer, criticality, cost);
            inner.refused.notify_one();
        } else if inner.hit.is_some() {
            let _ = counting.lane.charge(customer, criticality, cost, now);
        }
        open
    }

    /// An answer to a customer has used so much.
    pub(crate) fn used(&self, customer: &str, criticality: Criticality, cost: Cost) {
        let inner = &self.inner;
        let (customer, now) = (inner.task.customer(customer), inner.task.clock().now());
        let mut counting = inner.counting();
        let _ = counting.lane.charge(customer, criticality, cost, now);
        let nanos = cost.as_nanos() as f64;
        let mean = counting.means.entry(customer).or_insert(nanos);
        *mean += (nanos - *mean) * MEAN_WEIGHT;
    }
}

impl Inner {
    fn counting(&self) -> MutexGuard<'_, Counting> {
        self.counting.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    loop {
        let Some(hello) = member.hello().hello else { return };
        let Ok(Opened { id, mut messages, .. }) = owner.open(hello).await else { return };
        loop {
            let Some(inner) = desk.upgrade() else {
                // The desk is gone: so is what it held.
                let farewell = TaskMessage { leaves: true, ..TaskMessage::default() };
                if let Ok(said) = read(farewell) {
                    owner.hear(id, said).await;
                }
                return;
            };
            let words = tokio::select! {
                message = messages.recv() => match message {
                    Some(Ok(message)) => match member.hear(&message) {
                        Ok(Next::Say(words)) => words,
                        Ok(Next::Resume | Next::Go(_)) | Err(_) => break,
                    },
                    Some(Err(_)) => break,
                    // Nobody owns the service any more.
                    None => return,
                },
                _ = ticks.tick() => { reported = Instant::now(); member.tick() }
                () = inner.refused.notified() => {
                    if reported.elapsed() < HASTE {
                        continue;
                    }
                    reported = Instant::now();
                    member.tick()
                }
            };
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
