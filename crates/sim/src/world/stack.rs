//! What a client does before a request leaves it and after it comes back.

use super::connections::Link;
use super::envoy::EnvoyThrottle;
use super::spec::{BalanceSpec, RetrySpec, StackSpec};
use core::num::NonZeroU32;
use core::time::Duration;
use tidegate_core::balance::{
    BackendId, Join, LeastLoaded, LoadReport, Outcome, Policy, Prequal, RoundRobin, Weighted,
};
use tidegate_core::decision::Advice;
use tidegate_core::retry::{RetryBudget, RetryDecision, RetryPolicy};
use tidegate_core::rng::{Rng, SeededRng, shuffle};
use tidegate_core::subset::subset;
use tidegate_core::throttle::{self, Throttle};
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Criticality, Timestamp};

/// One client task's access to one service.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(crate) datacenter: usize,
    /// Whom it asks.
    pub(crate) service: usize,
    pub(crate) attempt_timeout: Option<Duration>,
    policy: Policy,
    /// The world's number of each member of the subset.
    pub(crate) members: Vec<u32>,
    /// The way to each of them; none where connections cost nothing.
    pub(crate) links: Vec<Link>,
    throttle: Option<Throttle>,
    envoy: Option<EnvoyThrottle>,
    retries: RetrySpec,
    budget: Option<RetryBudget>,
}

/// How an attempt came out, as far as the client can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Refused(Advice),
    Failed,
    NoAnswer,
}

/// How a task stands, as its clients hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    LameDuck,
    Gone,
    /// Just started.
    Back,
}

impl Stack {
    /// For client number `client`, with the numbers of the tasks that it may choose from.
    pub(crate) fn new(
        spec: &StackSpec,
        datacenter: usize,
        service: usize,
        client: u64,
        tasks: Vec<u32>,
    ) -> Result<Self, InvalidNumber> {
        let mut members = match spec.subset {
            Some((policy, size)) => {
                let chosen = subset(policy, client, tasks.len() as u32, size);
                chosen.into_iter().map(|index| tasks[index as usize]).collect()
            }
            None => tasks,
        };
        shuffle(&mut members, &mut SeededRng::new(client));
        let count = members.len().max(1);
        let mut policy: Policy = match &spec.balance {
            BalanceSpec::RoundRobin => RoundRobin::new(count).into(),
            BalanceSpec::LeastLoaded(config) => LeastLoaded::new(*config).into(),
            BalanceSpec::Weighted(config) => {
                let mut config = *config;
                config.backends_max = count;
                Weighted::new(config)?.into()
            }
            BalanceSpec::Prequal(config) => Prequal::new(*config)?.into(),
        };
        for member in 0..members.len() {
            policy.add(BackendId(member as u32), Join::Warm, Timestamp::ZERO);
        }
        Ok(Self {
            datacenter,
            service,
            attempt_timeout: spec.attempt_timeout,
            policy,
            members,
            links: Vec::new(),
            throttle: spec.throttle.map(Throttle::new),
            envoy: spec.envoy_throttle.map(EnvoyThrottle::new),
            retries: spec.retries,
            budget: match spec.retries {
                RetrySpec::Budget(config) => Some(RetryBudget::new(config)),
                _ => None,
            },
        })
    }

    /// A task of the world stands otherwise than before.
    pub(crate) fn stand(&mut self, number: u32, stand: Stand, now: Timestamp) {
        let Some(member) = self.members.iter().position(|&m| m == number) else { return };
        let member = BackendId(member as u32);
        match stand {
            Stand::LameDuck => self.policy.lame_duck(member, now),
            Stand::Gone => self.policy.remove(member, now),
            Stand::Back => self.policy.add(member, Join::Cold, now),
        };
    }

    /// A request (not a retry) wants to be sent.
    pub(crate) fn on_request(&mut self, now: Timestamp) {
        if let Some(budget) = &mut self.budget {
            budget.deposit(now);
        }
    }

    /// Whether the throttle lets an attempt out.
    pub(crate) fn allows(
        &mut self,
        criticality: Criticality,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> bool {
        self.throttle.as_mut().is_none_or(|t| t.decide(criticality, now, rng).is_ok())
            && self.envoy.as_mut().is_none_or(|t| t.allows(now, rng))
    }

    /// Chooses a task: the member and its number in the world.
    pub(crate) fn pick(&mut self, now: Timestamp, rng: &mut impl Rng) -> Option<(BackendId, u32)> {
        if self.policy.next_deadline().is_some_and(|at| at <= now) {
            self.policy.on_deadline(now);
        }
        let member = self.policy.pick(now, rng)?.backend;
        self.policy.on_start(member, now);
        if let Some(link) = self.links.get_mut(member.0 as usize) {
            link.on_start(now);
        }
        Some((member, self.members[member.0 as usize]))
    }

    /// The backends to probe, by number in the world.
    pub(crate) fn probes(&mut self, rng: &mut impl Rng) -> Vec<(BackendId, u32)> {
        let Some(probes) = self.policy.probes_wanted(rng) else { return Vec::new() };
        probes.as_slice().iter().map(|&m| (m, self.members[m.0 as usize])).collect()
    }

    pub(crate) fn on_probe(
        &mut self,
        member: BackendId,
        inflight: u32,
        latency: Duration,
        now: Timestamp,
    ) {
        self.policy.on_probe(member, inflight, latency, now);
    }

    /// An attempt came back.
    pub(crate) fn on_fate(
        &mut self,
        member: BackendId,
        criticality: Criticality,
        fate: Fate,
        report: Option<&LoadReport>,
        now: Timestamp,
    ) {
        let (throttled, balanced) = match fate {
            Fate::Answered => (throttle::Outcome::Accepted, Outcome::Success),
            Fate::Refused(_) => (throttle::Outcome::Refused, Outcome::Failure),
            Fate::Failed => (throttle::Outcome::Accepted, Outcome::Failure),
            Fate::NoAnswer => (throttle::Outcome::NoAnswer, Outcome::Failure),
        };
        if let Some(throttle) = &mut self.throttle {
            throttle.on_response(criticality, throttled, now);
        }
        if let Some(throttle) = &mut self.envoy {
            throttle.on_response(fate == Fate::Answered, now);
        }
        self.policy.on_complete(member, balanced, now);
        if let Some(link) = self.links.get_mut(member.0 as usize) {
            link.on_end(now);
        }
        if let Some(report) = report {
            self.policy.on_report(member, report, now);
        }
    }

    /// Whether to try again after attempt number `attempt`, and after how long.
    pub(crate) fn retry(
        &mut self,
        attempt: u8,
        fate: Fate,
        remaining: Duration,
        now: Timestamp,
    ) -> Option<Duration> {
        let advice = match fate {
            Fate::Answered => return None,
            Fate::Refused(advice) => advice,
            Fate::Failed | Fate::NoAnswer => Advice::RetryElsewhere,
        };
        let (attempts, advice) = match self.retries {
            RetrySpec::Never => return None,
            RetrySpec::Naive { attempts } => (attempts, Advice::RetryElsewhere),
            RetrySpec::Advised { attempts } => (attempts, advice),
            RetrySpec::Budget(_) => (3, advice),
        };
        let mut policy = RetryPolicy::default();
        policy.attempts_max = NonZeroU32::new(attempts).unwrap_or(NonZeroU32::MIN);
        let budget = &mut self.budget;
        let withdraw = || budget.as_mut().is_none_or(|b| b.withdraw(now));
        match policy.decide(u32::from(attempt), advice, remaining, withdraw) {
            RetryDecision::Retry { after } => Some(after),
            RetryDecision::GiveUp(_) => None,
        }
    }
}
