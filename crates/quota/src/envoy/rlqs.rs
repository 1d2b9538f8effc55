//! RLQS: an Envoy reports what it counts, and is told how many requests it may let through.
//!
//! Each Envoy is a task of the fleet, with a part of every limit of its own; its stream here stands
//! for it in the book. It cannot say that it has taken a grant in, so one counts as taken as soon
//! as it is sent.
//!
//! **When its stream ends** it goes on with what it was told until [`TTL`] is over. So what it
//! holds counts like that of a task that was lost, and it finds its place again (`names`) when it
//! comes back. If it has not by then, it has left.
//!
//! **When it comes from another leader** it has buckets from before. It is told nothing of them
//! until this leader has learned, and what they let through counts as what it has: nobody is cut
//! off by an election. A bucket that came up while nobody led was never told anything, and looks
//! the same. So where the leader grants less than that, as all together is too much, it is told.
//!
//! **Haste.** What is new is told at most every [`HASTE`], all else when the book has spoken or an
//! interval is over: a report costs no more than its own size. Beyond [`MESSAGES_MAX`] in an
//! interval no more is read until the next, and an Envoy that invents buckets waits by itself.
//!
//! Of a service without a `hit`, and of which no answer has told its cost, nobody knows what a
//! request costs: its Envoys are refused, with what to do.

use super::buckets::{Buckets, CUSTOMER, Line, Word};
use super::claim::nested;
use super::costs::Costs;
use super::names::{self, Name, Names};
use crate::access::{Caller, Pass, Reporter, Voice};
use crate::message::{grants, limits, write_usages};
use crate::server::Inner;
use crate::server::owner::{Opened, Owner};
use crate::server::stream::{Said, StreamId};
use core::pin::Pin;
use core::time::Duration;
use futures_util::{Stream, StreamExt as _};
use prost::Message as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate::clock::Clock;
use tidegate::serve::Peer;
use tidegate_core::fleet::{Generation, Limits, Usage, unseen_part};
use tidegate_core::{CostRate, CustomerId};
use tidegate_wire::proto::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::{
    BucketAction, bucket_action,
};
use tidegate_wire::proto::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_server::{
    RateLimitQuotaService, RateLimitQuotaServiceServer,
};
use tidegate_wire::proto::envoy::service::rate_limit_quota::v3::{
    RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use tidegate_wire::proto::envoy::r#type::v3::RateLimitStrategy;
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// For how long an Envoy keeps what it was told. When it is over everything passes, so it is much
/// longer than a server is ever away.
const TTL: Duration = Duration::from_secs(300);
/// Everything is told again so often: an Envoy that loses its server has nearly all of it left.
const AGAIN: Duration = Duration::from_secs(30);
/// For so long at most nothing is said of buckets from before. With what [`AGAIN`] may have taken
/// of it, two minutes of [`TTL`] are left for the time without a leader.
const MUTE_MAX: Duration = Duration::from_secs(150);
/// A grant that is less by one part in so many is still all that was said: grants are rounded.
const CLOSE: u64 = 20;
/// What is new is told no more often; a round of the book takes longer.
const HASTE: Duration = Duration::from_millis(100);
/// Messages that are read in an interval: one for each bucket that there may be.
const MESSAGES_MAX: u32 = 4_096;
/// Whoever opens a stream has something to say.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Thousands of buckets with the longest ids, and as many that have to be abandoned.
const MESSAGE_MAX: usize = 8 << 20;
/// Messages that an Envoy has not read.
const BACKLOG: usize = 8;

type Out = mpsc::Sender<Result<RateLimitQuotaResponse, Status>>;

/// Answers Envoys.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    inner: Arc<Inner>,
    names: Names,
}

/// Who opens a stream.
struct Guest {
    pass: Pass,
    voice: Voice,
    name: Name,
}

pub(crate) fn service(inner: &Arc<Inner>) -> RateLimitQuotaServiceServer<Answers> {
    let answers = Answers { inner: Arc::clone(inner), names: Names::default() };
    RateLimitQuotaServiceServer::new(answers).max_decoding_message_size(MESSAGE_MAX)
}

#[tonic::async_trait]
impl RateLimitQuotaService for Answers {
    type StreamRateLimitQuotasStream =
        Pin<Box<dyn Stream<Item = Result<RateLimitQuotaResponse, Status>> + Send>>;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Self::StreamRateLimitQuotasStream>, Status> {
        let caller = Caller::of(&request);
        let peer = request.extensions().get::<Peer>();
        let identity = peer.and_then(Peer::identity).unwrap_or("").to_owned();
        let address = peer.and_then(Peer::address).map(|address| address.ip().to_string());
        let name = names::said(request.metadata()).map(str::to_owned).or(address);
        let mut reports = request.into_inner();
        let (out, told) = mpsc::channel(BACKLOG);
        let Self { inner, names } = self.clone();
        // Envoy waits for headers before it reports, so they must not wait for a report.
        tokio::spawn(async move {
            let first = timeout(HELLO_WITHIN, reports.message()).await;
            let Ok(Ok(Some(first))) = first else { return };
            let pass = Pass::new(&inner.access, caller, &first.domain);
            let served = async {
                let voice = pass.speak()?;
                let owner = inner.owner(&first.domain)?;
                // A customer that speaks for itself only does not choose how many it is.
                let (name, most) = match voice {
                    Voice::Everyone => (name.unwrap_or_default(), names::OF_NAME_MAX),
                    Voice::One(_) => (String::new(), names::OF_CUSTOMER_MAX),
                };
                let name = names.take(&first.domain, &format!("{identity} {name}"), most);
                let name = name.ok_or_else(|| {
                    Status::resource_exhausted(format!("more than {most} streams by one name"))
                })?;
                let guest = Guest { pass, voice, name };
                serve(owner, inner.clock.clone(), guest, first, reports, &out).await
            };
            if let Err(status) = served.await {
                let _ = out.try_send(Err(status));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(told))))
    }
}

async fn serve(
    owner: Owner,
    clock: Clock,
    Guest { mut pass, voice, name }: Guest,
    first: RateLimitQuotaUsageReports,
    mut reports: impl Stream<Item = Result<RateLimitQuotaUsageReports, Status>> + Unpin,
    out: &Out,
) -> Result<(), Status> {
    if !owner.costs.are_known() {
        return Err(Status::failed_precondition(format!(
            "service {:?} has no `hit`: say in the server's file what a request costs, such as \
             `hit: 2ms`, so that CPU time can be counted in requests, \
             until answers tell their cost",
            first.domain
        )));
    }
    let service = first.domain.clone();
    let (task, resumes) = (name.task(), name.resumes());
    let mut hello = wire::Hello { service, task, resumes, ..wire::Hello::default() };
    owner.turn(clock.now()).await?;
    let Opened { id, mut messages, .. } = owner.open(hello.clone(), Reporter::default()).await?;
    let mut envoy = Envoy::new(voice, owner.costs.clone(), clock);
    // Whose a bucket is, is known when the customers are.
    let Some(welcome) = messages.recv().await else { return Ok(()) };
    let mut said = envoy.hear(&*welcome?);
    name.joined(envoy.task);
    hello.resumes = envoy.task;
    let mut ended = envoy.count(&first);
    let mut ticks = interval(owner.service.report_every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while ended.is_ok() {
        if !owner.fence.is_open(envoy.clock.now()) {
            return Err(Status::unavailable("this server does not lead any more"));
        }
        if !envoy.tell(out) {
            let what = "assignments were not read for too long";
            ended = Err(Status::resource_exhausted(what));
            break;
        }
        if let Some(said) = said.take()
            && !owner.hear(id, said).await
        {
            return Ok(());
        }
        let next = loop {
            tokio::select! {
                () = out.closed() => break None,
                report = reports.next(), if envoy.read < MESSAGES_MAX => match report {
                    Some(Ok(report)) => {
                        ended = envoy.admit(&mut pass, &report);
                        if ended.is_err() {
                            break None;
                        }
                    }
                    None | Some(Err(_)) => break None,
                },
                message = messages.recv() => match message {
                    Some(Ok(message)) => break Some(envoy.hear(&message)),
                    Some(Err(status)) => {
                        ended = Err(status);
                        break None;
                    }
                    None => return Ok(()),
                },
                _ = ticks.tick() => break Some(Some(envoy.report())),
                () = sleep_until(envoy.told + HASTE), if envoy.has_news => break Some(None),
            }
        };
        match next {
            Some(next) => said = next,
            None => break,
        }
    }
    part(owner, id, &envoy, name, hello).await;
    ended
}

/// The stream has ended. If the Envoy may be using something it counts until that is over.
async fn part(owner: Owner, id: StreamId, envoy: &Envoy, name: Name, hello: wire::Hello) {
    let leaves = || Said { leaves: true, ..Said::default() };
    if !envoy.buckets.may_be_used() {
        owner.hear(id, leaves()).await;
        return;
    }
    owner.close(id).await;
    let farewell = tokio::spawn(async move {
        sleep(TTL).await;
        if let Ok(opened) = owner.open(hello, Reporter::default()).await {
            owner.hear(opened.id, leaves()).await;
        }
    });
    name.leave(farewell.abort_handle());
}

/// One Envoy as a task of the fleet.
struct Envoy {
    voice: Voice,
    buckets: Buckets,
    costs: Costs,
    /// Numbers by name.
    customers: BTreeMap<String, u32>,
    /// What is set aside for all tasks without a grant, by number.
    aside: BTreeMap<u32, Limits>,
    /// Grants, by number.
    held: BTreeMap<u32, Limits>,
    /// What it was said to have from before, by number.
    claimed: BTreeMap<u32, CostRate>,
    /// By what to divide that which is set aside.
    places: u64,
    /// Who it is in the book, and whether it came there new.
    task: Option<wire::TaskId>,
    joined: bool,
    learning: bool,
    number: u64,
    clock: Clock,
    opened: Instant,
    /// When anything was told last, and when everything.
    told: Instant,
    told_all: Instant,
    /// Messages that were read in this interval.
    read: u32,
    /// There is something to tell that need not wait for the end of it.
    has_news: bool,
}

/// Who a customer is by number: whoever is not configured is everyone else.
fn who(customers: &BTreeMap<String, u32>) -> impl Fn(&str) -> u32 {
    |name| customers.get(name).copied().unwrap_or(CustomerId::DEFAULT.0)
}

impl Envoy {
    fn new(voice: Voice, costs: Costs, clock: Clock) -> Self {
        let now = Instant::now();
        Self {
            voice,
            buckets: Buckets::default(),
            costs,
            customers: BTreeMap::new(),
            aside: BTreeMap::new(),
            held: BTreeMap::new(),
            claimed: BTreeMap::new(),
            places: 1,
            task: None,
            joined: false,
            learning: false,
            number: 0,
            clock,
            opened: now,
            told: now,
            told_all: now,
            read: 0,
            has_news: false,
        }
    }

    /// Counts, unless there are other lists by now which let it speak for others, or nobody.
    fn admit(
        &mut self,
        pass: &mut Pass,
        report: &RateLimitQuotaUsageReports,
    ) -> Result<(), Status> {
        if pass.is_stale() {
            self.voice = pass.speak()?;
        }
        self.count(report)
    }

    fn count(&mut self, report: &RateLimitQuotaUsageReports) -> Result<(), Status> {
        self.read += 1;
        let now = self.clock.now();
        for usage in &report.bucket_quota_usages {
            let of = usage.bucket_id.as_ref().and_then(|id| id.bucket.get(CUSTOMER));
            self.voice.speaks_for(of.map_or("", String::as_str))?;
            let expect = |customer: &str| self.costs.expect(customer);
            self.has_news |= self.buckets.report(usage, who(&self.customers), expect, now);
        }
        Ok(())
    }

    /// What customers of this Envoy use and want, and have from before if nobody knows of it.
    fn report(&mut self) -> Said {
        (self.number, self.read) = (self.number + 1, 0);
        let lines = self.buckets.usages(who(&self.customers), self.clock.now());
        let mut said = Vec::with_capacity(lines.len());
        for (number, Line { used, demand, before }) in lines {
            let has = before.filter(|_| self.joined).map(|rates| nested(rates, 1));
            // What is said after the first grant does not count.
            if let (Some(has), false) = (has, self.held.contains_key(&number)) {
                let claimed = self.claimed.entry(number).or_default();
                *claimed = has.whole().max(*claimed);
            }
            said.push(Usage { customer: CustomerId(number), used, demand, has });
        }
        Said { report: Some(write_usages(self.number, said)), ..Said::default() }
    }

    /// The book has something to say. Returns the acknowledgement.
    fn hear(&mut self, message: &ServerMessage) -> Option<Said> {
        if let Some(welcome) = &message.welcome {
            (self.task, self.joined) = (welcome.task, welcome.joined);
        }
        self.learning = message.learning;
        self.customers.retain(|_, number| !message.gone.contains(number));
        self.aside.retain(|number, _| !message.gone.contains(number));
        if message.places > 0 {
            self.places = message.places;
        }
        // The book is in this process, and writes what can be read.
        let directory = wire::Directory::decode(message.directory.clone()).unwrap_or_default();
        for customer in directory.customers {
            let aside = limits(&customer.aside).unwrap_or(Limits::ZERO);
            self.customers.insert(customer.name, customer.number);
            self.aside.insert(customer.number, aside);
        }
        let granted = message.grants.as_ref()?;
        self.held.extend(grants(granted).into_iter().flatten());
        for number in &granted.revoked {
            self.held.remove(number);
        }
        let epoch = self.task.map_or(0, |task| task.epoch);
        let acked = Some(Generation { epoch, number: granted.number });
        Some(Said { acked, ..Said::default() })
    }

    /// Tells the Envoy what has changed. Returns whether it reads.
    fn tell(&mut self, out: &Out) -> bool {
        let now = Instant::now();
        let again = now - self.told_all >= AGAIN;
        if again {
            self.told_all = now;
        }
        (self.told, self.has_news) = (now, false);
        let (aside, held, places) = (&self.aside, &self.held, self.places);
        let limits = |number: u32| {
            let unseen = unseen_part(aside.get(&number).copied().unwrap_or(Limits::ZERO), places);
            held.get(&number).map_or(unseen, |limits| limits.max(unseen))
        };
        let late = now - self.opened >= MUTE_MAX;
        let (learned, claimed) = (!self.learning, &self.claimed);
        let is_known = |number: u32| {
            let granted = held.get(&number).map(Limits::whole);
            late || granted.is_some_and(|granted| {
                let claimed = claimed.get(&number).map_or(0, |rate| rate.as_nanos_per_sec());
                learned || granted.as_nanos_per_sec() < claimed - claimed / CLOSE
            })
        };
        let said = self.buckets.assign(who(&self.customers), limits, is_known, again);
        if said.is_empty() {
            return true;
        }
        let bucket_action = said.into_iter().map(|(id, word)| BucketAction {
            bucket_id: Some(id),
            bucket_action: Some(match word {
                Word::Assign(strategy) => {
                    let ttl = prost_types::Duration { seconds: TTL.as_secs() as i64, nanos: 0 };
                    bucket_action::BucketAction::QuotaAssignmentAction(
                        bucket_action::QuotaAssignmentAction {
                            assignment_time_to_live: Some(ttl),
                            rate_limit_strategy: Some(RateLimitStrategy {
                                strategy: Some(strategy),
                            }),
                        },
                    )
                }
                Word::Abandon => bucket_action::BucketAction::AbandonAction(
                    bucket_action::AbandonAction::default(),
                ),
            }),
        });
        let response = RateLimitQuotaResponse { bucket_action: bucket_action.collect() };
        out.try_send(Ok(response)).is_ok()
    }
}

#[cfg(test)]
mod tests;
