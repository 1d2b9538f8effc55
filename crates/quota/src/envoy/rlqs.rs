//! RLQS: an Envoy reports what it counts, and is told how many requests it may let through.
//!
//! Each Envoy is a task of the fleet, with a part of every limit of its own; its stream here stands
//! for it in the book. It cannot say that it has taken a grant in, so one counts as taken as soon
//! as it is sent. When its stream ends it has left: an Envoy that lives on keeps what it was told
//! until [`TTL`] is over, and comes back long before.
//!
//! Of a service without a `hit`, and of which no answer has told its cost, nobody knows what a
//! request costs: its Envoys are refused, with what to do.

use super::buckets::{BUCKETS_MAX, Buckets, CUSTOMER};
use super::costs::Costs;
use crate::access::{Caller, Pass, Reporter, Voice};
use crate::message::{grants, limits, write_usages};
use crate::server::Inner;
use crate::server::owner::{Opened, Owner};
use crate::server::stream::{Said, StreamId};
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use futures_util::Stream;
use prost::Message as _;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate::clock::Clock;
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
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// For how long an Envoy keeps what it was told. When it is over everything passes, so it is much
/// longer than a server is ever away.
const TTL: Duration = Duration::from_secs(300);
/// Everything is told again before that.
const AGAIN: Duration = Duration::from_secs(100);
/// Whoever opens a stream has something to say.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Thousands of buckets have some 400 KB.
const MESSAGE_MAX: usize = 1 << 20;
/// Messages that an Envoy has not read.
const BACKLOG: usize = 8;

type Out = mpsc::Sender<Result<RateLimitQuotaResponse, Status>>;

/// Answers Envoys.
#[derive(Debug, Clone)]
pub(crate) struct Answers {
    inner: Arc<Inner>,
}

pub(crate) fn service(inner: &Arc<Inner>) -> RateLimitQuotaServiceServer<Answers> {
    let answers = Answers { inner: Arc::clone(inner) };
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
        let mut reports = request.into_inner();
        let (out, told) = mpsc::channel(BACKLOG);
        let inner = Arc::clone(&self.inner);
        // Envoy waits for headers before it reports, so they must not wait for a report.
        tokio::spawn(async move {
            let first = timeout(HELLO_WITHIN, reports.message()).await;
            let Ok(Ok(Some(first))) = first else { return };
            if let Err(status) = serve(&inner, caller, first, reports, &out).await {
                let _ = out.try_send(Err(status));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(told))))
    }
}

async fn serve(
    inner: &Inner,
    caller: Caller,
    first: RateLimitQuotaUsageReports,
    mut reports: Streaming<RateLimitQuotaUsageReports>,
    out: &Out,
) -> Result<(), Status> {
    static ENVOYS: AtomicU64 = AtomicU64::new(0);
    let mut pass = Pass::new(&inner.access, caller, &first.domain);
    let voice = pass.speak()?;
    let owner = inner.owner(&first.domain)?;
    if !owner.costs.are_known() {
        return Err(Status::failed_precondition(format!(
            "service {:?} has no `hit`: say in the server's file what a request costs, such as \
             `hit: 2ms`, so that CPU time can be counted in requests, \
             until answers tell their cost",
            first.domain
        )));
    }
    let task = format!("rlqs-{}", ENVOYS.fetch_add(1, Ordering::Relaxed));
    let service = first.domain.clone();
    let hello = wire::Hello { service, task, ..wire::Hello::default() };
    let every = owner.service.report_every;
    owner.turn(inner.clock.now()).await?;
    let Opened { id, mut messages, .. } = owner.open(hello, Reporter::default()).await?;
    let mut envoy = Envoy {
        voice,
        buckets: Buckets::default(),
        costs: owner.costs.clone(),
        customers: BTreeMap::new(),
        held: BTreeMap::new(),
        places: 1,
        epoch: 0,
        number: 0,
        clock: inner.clock.clone(),
        told: Instant::now(),
    };
    envoy.count(&first)?;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        let said = tokio::select! {
            () = out.closed() => break Ok(()),
            report = reports.message() => match report {
                Ok(Some(report)) => match envoy.admit(&mut pass, &report) {
                    Ok(()) => None,
                    Err(status) => break Err(status),
                },
                Ok(None) | Err(_) => break Ok(()),
            },
            message = messages.recv() => match message {
                Some(Ok(message)) => envoy.hear(&message),
                Some(Err(status)) => break Err(status),
                None => return Ok(()),
            },
            _ = ticks.tick() => Some(envoy.report()),
        };
        if !owner.fence.is_open(inner.clock.now()) {
            return Err(Status::unavailable("this server does not lead any more"));
        }
        if !envoy.tell(out) {
            break Err(Status::resource_exhausted("assignments were not read for too long"));
        }
        if let Some(said) = said
            && !owner.hear(id, said).await
        {
            return Ok(());
        }
    };
    leave(&owner, id).await;
    ended
}

async fn leave(owner: &Owner, id: StreamId) {
    owner.hear(id, Said { leaves: true, ..Said::default() }).await;
}

/// One Envoy as a task of the fleet.
struct Envoy {
    voice: Voice,
    buckets: Buckets,
    costs: Costs,
    /// Numbers by name, and what is set aside for all tasks without a grant.
    customers: BTreeMap<String, (u32, Limits)>,
    /// Grants, by number.
    held: BTreeMap<u32, Limits>,
    /// By what to divide that which is set aside.
    places: u64,
    epoch: u64,
    number: u64,
    clock: Clock,
    /// When everything was told last.
    told: Instant,
}

impl Envoy {
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
        let now = self.clock.now();
        let mut room = true;
        for usage in &report.bucket_quota_usages {
            let of = usage.bucket_id.as_ref().and_then(|id| id.bucket.get(CUSTOMER));
            self.voice.speaks_for(of.map_or("", String::as_str))?;
            room &= self.buckets.report(usage, |customer| self.costs.expect(customer), now);
        }
        if room {
            return Ok(());
        }
        let what = format!("more than {BUCKETS_MAX} buckets: match by customer, not by request");
        Err(Status::resource_exhausted(what))
    }

    /// What customers of this Envoy use and want.
    fn report(&mut self) -> Said {
        self.number += 1;
        let mut lines = BTreeMap::<u32, Usage>::new();
        for (name, (used, demand)) in self.buckets.usages(self.clock.now()) {
            let number = self.customers.get(name).map_or(0, |(number, _)| *number);
            let nothing = [CostRate::ZERO; 4];
            let customer = CustomerId(number);
            let line = Usage { customer, used: nothing, demand: nothing, has: None };
            let line = lines.entry(number).or_insert(line);
            line.used = core::array::from_fn(|l| line.used[l] + used[l]);
            line.demand = core::array::from_fn(|l| line.demand[l] + demand[l]);
        }
        Said { report: Some(write_usages(self.number, lines.into_values())), ..Said::default() }
    }

    /// The book has something to say. Returns the acknowledgement.
    fn hear(&mut self, message: &ServerMessage) -> Option<Said> {
        if let Some(welcome) = &message.welcome {
            self.epoch = welcome.task.as_ref().map_or(0, |task| task.epoch);
        }
        self.customers.retain(|_, (number, _)| !message.gone.contains(number));
        if message.places > 0 {
            self.places = message.places;
        }
        // The book is in this process, and writes what can be read.
        let directory = wire::Directory::decode(message.directory.clone()).unwrap_or_default();
        for customer in directory.customers {
            let aside = limits(&customer.aside).unwrap_or(Limits::ZERO);
            self.customers.insert(customer.name, (customer.number, aside));
        }
        let granted = message.grants.as_ref()?;
        self.held.extend(grants(granted).into_iter().flatten());
        for number in &granted.revoked {
            self.held.remove(number);
        }
        let acked = Some(Generation { epoch: self.epoch, number: granted.number });
        Some(Said { acked, ..Said::default() })
    }

    /// Tells the Envoy what has changed. Returns whether it reads.
    fn tell(&mut self, out: &Out) -> bool {
        let again = self.told.elapsed() >= AGAIN;
        if again {
            self.told = Instant::now();
        }
        let (customers, held, places) = (&self.customers, &self.held, self.places);
        let limits = |name: &str| {
            let of = customers.get(name).or_else(|| customers.get(""));
            of.map_or(Limits::ZERO, |(number, aside)| {
                let unseen = unseen_part(*aside, places);
                held.get(number).map_or(unseen, |limits| limits.max(unseen))
            })
        };
        if customers.is_empty() {
            return true;
        }
        let said = self.buckets.assign(limits, again);
        if said.is_empty() {
            return true;
        }
        let ttl = prost_types::Duration { seconds: TTL.as_secs() as i64, nanos: 0 };
        let bucket_action = said.into_iter().map(|(id, strategy)| BucketAction {
            bucket_id: Some(id),
            bucket_action: Some(bucket_action::BucketAction::QuotaAssignmentAction(
                bucket_action::QuotaAssignmentAction {
                    assignment_time_to_live: Some(ttl),
                    rate_limit_strategy: Some(strategy),
                },
            )),
        });
        let response = RateLimitQuotaResponse { bucket_action: bucket_action.collect() };
        out.try_send(Ok(response)).is_ok()
    }
}
